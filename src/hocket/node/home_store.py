"""The store of a home as its processes use it: opened with its replica, checked, brought to the current version, and
the bus beside it.

A database file has the log of one node. A store in a database server may have the log of several: its founder, whose
delegation is its first op, and the nodes that were told to share it. A node that was not told, a home of another user,
and a second home with the same key are refused. The home remembers the MACs of rows that it has ended, such as revoked
tokens: a node that writes to the store could put such a row back as it was.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hocket.bus.hints import Pipes
from hocket.errors import Conflict, StoreError, StoreMoved
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, node_id, node_text
from hocket.kernel.keys import MAC_BYTES, RowMac
from hocket.kernel.mesh_rules import encode_rules
from hocket.log import RULES, Log
from hocket.log.machine_clock import SteadyWall
from hocket.log.permissions import founder
from hocket.node.home import Home
from hocket.node.variables import listen_address, named_store, replica_path
from hocket.store import Migration, backend
from hocket.store import open as open_store
from hocket.store.connections import without_password
from hocket.store.local import MOVING, REPLICA

if TYPE_CHECKING:
    from hocket.bus.shared import SharedBus
    from hocket.families.blobs import Blobs
    from hocket.families.liveness import Liveness
    from hocket.kernel.mesh_rules import Rules
    from hocket.log.copies import ReplicatedStore
    from hocket.log.permissions import Permissions
    from hocket.log.state_check import CheckedStateFiles
    from hocket.log.written.journal import WrittenEntries
    from hocket.store import Session, Store
    from hocket.store.artifact_rows import BlobPlace

# The store's key, for each node, of the home that uses it.
HOME = "home"
# A home says that it uses the store when it is opened, if the last time was longer ago than this.
USED_MS = 60_000
# After so long without a word, another home with the same key may take its place.
LEFT_MS = 600_000


def opened_store(home: Home) -> Store:
    """The home's store, with its replica if there is one."""
    path, address = replica_path(home.server, home.replica), home.store_address
    if path is None:
        return open_store(address)
    from hocket.log.copies import ReplicatedStore

    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"cannot create the replica {path}: {error.strerror}") from error
    replicated = ReplicatedStore(
        path, open_store(path, create=True), lambda: open_store(address), lambda store: log_in(store, home)
    )
    replicated.mac_rows(RowMac(home.node_key()))
    return replicated


def replica_in(store: Store) -> ReplicatedStore | None:
    """The store of a server with its replica, if it has one."""
    from hocket.log.copies import ReplicatedStore

    return store if isinstance(store, ReplicatedStore) else None


def log_in(store: Store, home: Home) -> Log:
    """The log of this home's node in a store, without a bus and without threads."""
    return Log(store, home.node_key(), home.user_did(), wall=SteadyWall(), randomness=os.urandom)


def check_whole(home: Home, store: Store) -> None:
    """Raises Conflict if the store is a copy: the target of a move that has not ended, or a replica."""
    with store.read() as session:
        is_unfinished, is_replica = bool(session.meta(MOVING)), session.meta(REPLICA) is not None
    why = ""
    if is_unfinished:
        why = "has only a part of a log that is being moved there; run `hocket store move` again"
    elif is_replica and replica_in(store) is None:
        why = "is a replica of another store, which takes the changes; use that one"
    if why:
        store.close()
        raise Conflict(f"{without_password(str(home.store_address))} {why}")


def check_idle(session: Session, liveness: Liveness, now_ms: int, before: str) -> None:
    """Raises Conflict if workers of this store are running."""
    from hocket.families.liveness import WorkerState, standing

    now = max(session.head().wall, now_ms)
    running = [each for each in session.workers() if standing(liveness, each, now) is WorkerState.RUNNING]
    if running:
        which = ", ".join(f"process {each.pid}" if each.pid else "one over HTTP" for each in running)
        raise Conflict(f"workers are running ({which}); stop them before {before}")


def put_rules(home: Home, store: Store, rules: Rules) -> None:
    """Stores the rules of a new home. A half-created home that already has ops keeps its rules, and so does a store
    that other nodes share.
    """
    from hocket.kernel.mesh_rules import decode_kept_rules, encode_rules

    with store.write() as session:
        kept = session.meta(RULES)
        if kept is None or session.head().seq == 0:
            session.set_meta(RULES, encode_rules(rules))
        elif founder(session) == node_id(home.node_key().public) and kept != encode_rules(rules):
            has = decode_kept_rules(kept)
            ranked = "with" if has.ranked_open else "without"
            how = "with --strict" if has.is_strict else f"without --strict and {ranked} --ranked-open"
            raise Conflict(f"the half-created home has other rules (it was begun {how}); choose another --home")


def put_blob_place(home: Home, store: Store, place: BlobPlace | None) -> None:
    """Notes in a new store of a server where its nodes keep their blobs. Raises Conflict if the store says otherwise
    already.
    """
    if home.server is None:
        return
    from hocket.store.artifact_rows import BLOBS, BlobPlace

    with store.write() as session:
        if session.head().seq == 0:
            session.set_meta(BLOBS, (place or BlobPlace.HOME).encode())
        elif place not in (None, blob_place(session)):
            where = without_password(str(home.store_address))
            raise Conflict(f"the nodes of {where} keep blobs in the {blob_place(session)} already; leave out --blobs")


def blob_place(session: Session) -> BlobPlace:
    from hocket.store.artifact_rows import BLOBS, BlobPlace

    return BlobPlace.STORE if session.meta(BLOBS) == BlobPlace.STORE.encode() else BlobPlace.HOME


def blobs_of(home: Home, store: Store) -> Blobs:
    """The blobs of a home, which its store may have."""
    from hocket.families.blobs import HomeBlobs
    from hocket.store.artifact_rows import BlobPlace

    here = HomeBlobs(home.blobs)
    table = None if home.server is None else backend(home.server).blobs
    if home.server is None or table is None:
        return here
    with store.read() as session:
        place = blob_place(session)
    if place is not BlobPlace.STORE:
        return here
    from hocket.families.blobs import StoreBlobs

    return StoreBlobs(here, table(home.server))


def bus_of(home: Home) -> Pipes | SharedBus:
    pipes = Pipes(home.processes)
    if home.server is None:
        return pipes
    from hocket.bus.shared import SharedBus
    from hocket.store.connections import NoNotes

    hear, direct = backend(home.server).listener, listen_address()
    notes = NoNotes() if hear is None else hear(home.server, direct)
    return SharedBus(pipes, notes, _origin(home.processes))


def _origin(processes: Path) -> bytes:
    """An id that all processes share which use this directory on this machine, and no others."""
    import hashlib

    from hocket.bus.shared import ORIGIN_BYTES
    from hocket.families.liveness import place_of

    place = place_of(processes)
    if not (place.boot and place.locks):
        return os.urandom(ORIGIN_BYTES)
    return hashlib.sha256(f"{place.host} {place.boot} {place.locks}".encode()).digest()[:ORIGIN_BYTES]


def migrate(home: Home, address: str | None, *, dry_run: bool) -> tuple[str, Migration]:
    """Migrates the store at an address, which is created if there is none, or else the home's. Gives its address
    without the password, and what was done; with `dry_run`, what would be done.
    """
    if address is None:
        home.check()
    where = str(home.store_address) if address is None else named_store(address)
    migration = backend(where).migration(where)
    if not dry_run:
        open_store(where, create=address is not None and backend(where).is_server).close()
    return without_password(where), migration


class HomeInUse(msgspec.Struct, frozen=True):
    """`place` tells homes apart: the machine and the directory."""

    place: str
    path: str
    used_ms: int


def ended_rows(home: Home) -> EndedRows:
    """The rows beside a shared log that count no more, as this home remembers them."""

    return EndedRows(home.path / "ended_rows")


def checked_states(home: Home) -> CheckedStateFiles:
    """The states in a shared store that this home has compared with their ops."""
    from hocket.log.state_check import CheckedStateFiles

    return CheckedStateFiles(home.checked_states)


def written_entries(home: Home) -> WrittenEntries:
    """What this node has written last to a store that nodes share, as its home remembers it."""
    import logging

    from hocket.log.written.journal import WrittenEntries

    written = WrittenEntries(home.written)
    written.report = lambda lost: logging.getLogger("hocket").warning("%s", lost)
    return written


def check_database(home: Home, store: Store) -> None:
    """Raises Conflict if a database file outside the home has the log of another node."""
    if home.has_own_database() or home.server is not None:
        return
    with store.read() as session:
        began = founder(session)
    if began not in (None, node_id(home.node_key().public)):
        raise Conflict(f"{home.database} has the log of another node; give each home a database of its own")


def check_own_store(home: Home, store: Store) -> None:
    """Raises Conflict if a store outside the home has the log of another node, and this node is to have its own."""
    check_database(home, store)
    with store.read() as session:
        began = founder(session)
    if home.server is not None and began not in (None, node_id(home.node_key().public)):
        raise Conflict(
            "the shared store has the log of another node, and this invitation is for a node with a store of its"
            " own; invite with --share, or unset HOCKET_STORE"
        )


def check_rules(home: Home, store: Store) -> None:
    """Notes by which rules this node judges in a shared store. Raises Conflict if they are others now: every node that
    shares the store can write there what it likes.
    """
    if home.server is None:
        return
    with store.read() as session:
        kept = session.meta(RULES)
    if kept is None:
        return
    noted, found = home.noted_rules(), content_hash(kept).hex()
    if noted is None:
        home.note_rules(found)
    elif noted != found:
        raise Conflict(
            f"the mesh rules in the store are not those of this node any more; if the owner has changed them, remove"
            f" {home.path / 'rules'}, and otherwise find out who writes to the store"
        )


def check_joined_rules(session: Session, rules: Rules) -> None:
    """Raises Conflict if the store has other rules than the inviting node."""
    if session.meta(RULES) != encode_rules(rules):
        raise Conflict("the mesh rules in the store are not those of the inviting node; ask its owner who changed them")


def check_sharing(session: Session, node: int, permissions: Permissions, now_ms: int) -> None:
    """Raises Conflict unless this node is the founder of a shared store, or was told to share it."""
    from hocket.kernel.authority import Standing

    began, authority = founder(session), permissions.authority
    if began is None or began == node:
        return
    if authority.standing(began, now_ms) is Standing.UNKNOWN:
        raise Conflict(
            "the shared store has the log of another user; choose another database, or on PostgreSQL another schema"
            " with ?schema=NAME"
        )
    if node_text(began) in authority.stores(node, now_ms):
        return
    if authority.standing(node, now_ms) is Standing.UNKNOWN:
        raise Conflict(
            f"the shared store has the log of node {node_text(began)}, and this home's key is not in it; make an"
            " invitation there with `hocket mesh invite NAME --share`, and join with it in a new home"
        )
    raise Conflict(
        f"node {node_text(node)} may not share the store of node {node_text(began)}, or no longer; make an"
        " invitation there with `hocket mesh invite NAME --share`, and join with it"
    )


def note_home(home: Home, log: Log) -> None:
    """Notes that this home uses the shared store as its node. Raises Conflict if another home does so: two homes with
    one key would take each other's workers and claims for their own.
    """
    from hocket.families.liveness import place_of

    author, now_ms = log.node.to_bytes(8, "big"), log.physical()
    place = place_of(home.processes)
    ours = HomeInUse(f"{place.host}/{place.locks}", str(home.path), now_ms)
    with log.store.read() as session:
        if not _is_news(session, author, ours):
            return
    with suppress(StoreMoved), log.store.write() as session:  # a store that has moved can still be read
        if _is_news(session, author, ours):
            session.set_node_meta(author, HOME, msgspec.json.encode(ours))


def _is_news(session: Session, author: bytes, ours: HomeInUse) -> bool:
    noted = session.node_meta(author, HOME)
    if noted is None:
        return True
    known = decode_json(noted, HomeInUse)
    if known.place == ours.place:
        return ours.used_ms - known.used_ms > USED_MS
    last_ms = max(known.used_ms, *(each.beat for each in session.workers(author)), 0)
    if ours.used_ms - last_ms <= LEFT_MS:
        raise Conflict(
            f"node {node_text(int.from_bytes(author, 'big'))} uses this store from another home, {known.path}; give"
            f" this home a key of its own with `hocket mesh join`. A home that was moved is let in {LEFT_MS // 60_000}"
            " minutes after the old one was last used"
        )
    return True


class EndedRows:
    """A file to which all processes of the home append."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._macs: set[bytes] = set()
        self._lock = threading.Lock()

    def add(self, mac: bytes) -> None:
        """Returns when it is on the disk."""
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(file, mac)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error.strerror}; nothing was ended") from error

    def __contains__(self, mac: object) -> bool:
        with self._lock:
            self._follow()
            return mac in self._macs

    def _follow(self) -> None:
        """Reads what was added since, by any process."""
        try:
            if self._path.stat().st_size < self._read + MAC_BYTES:
                return
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self._path}: {error.strerror}; make it readable") from error
        whole = len(new) - len(new) % MAC_BYTES
        self._macs |= {new[at : at + MAC_BYTES] for at in range(0, whole, MAC_BYTES)}
        self._read += whole
