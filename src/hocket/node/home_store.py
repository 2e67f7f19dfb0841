"""The store of a home as its processes use it: opened with its replica, checked, brought to the current version, and
the bus beside it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hocket.bus.pipes import Pipes
from hocket.errors import Conflict, StoreError
from hocket.kernel.keys import RowMac
from hocket.log import RULES, Log
from hocket.log.machine_clock import SteadyWall
from hocket.node.home import Home
from hocket.node.variables import listen_address, named_store, replica_path
from hocket.store import Migration, backend
from hocket.store import open as open_store
from hocket.store.connections import without_password
from hocket.store.local import MOVING, REPLICA

if TYPE_CHECKING:
    from pathlib import Path

    from hocket.bus.shared import SharedBus
    from hocket.kernel.rules import Rules
    from hocket.log.replica import ReplicatedStore
    from hocket.node.home import Home
    from hocket.store import Session, Store
    from hocket.store.artifacts import BlobPlace
    from hocket.work.blobs import Blobs
    from hocket.work.liveness import Liveness


def opened_store(home: Home) -> Store:
    """The home's store, with its replica if there is one."""
    path, address = replica_path(home.server, home.replica), home.store_address
    if path is None:
        return open_store(address)
    from hocket.log.replica import ReplicatedStore

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
    from hocket.log.replica import ReplicatedStore

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
    from hocket.work.liveness import WorkerState, standing

    now = max(session.head().wall, now_ms)
    running = [each for each in session.workers() if standing(liveness, each, now) is WorkerState.RUNNING]
    if running:
        pids = ", ".join(str(each.pid) for each in running)
        raise Conflict(f"workers are running (process {pids}); stop them before {before}")


def put_rules(home: Home, store: Store, rules: Rules) -> None:
    """Stores the rules of a new home. A half-created home that already has ops keeps its rules, and so does a store
    that other nodes share.
    """
    from hocket.kernel.ids import node_id
    from hocket.kernel.rules import decode_kept_rules, encode_rules
    from hocket.log.permissions import founder

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
    from hocket.store.artifacts import BLOBS, BlobPlace

    with store.write() as session:
        if session.head().seq == 0:
            session.set_meta(BLOBS, (place or BlobPlace.HOME).encode())
        elif place not in (None, blob_place(session)):
            where = without_password(str(home.store_address))
            raise Conflict(f"the nodes of {where} keep blobs in the {blob_place(session)} already; leave out --blobs")


def blob_place(session: Session) -> BlobPlace:
    from hocket.store.artifacts import BLOBS, BlobPlace

    return BlobPlace.STORE if session.meta(BLOBS) == BlobPlace.STORE.encode() else BlobPlace.HOME


def blobs_of(home: Home, store: Store) -> Blobs:
    """The blobs of a home, which its store may have."""
    from hocket.store.artifacts import BlobPlace
    from hocket.work.blobs import HomeBlobs

    here = HomeBlobs(home.blobs)
    table = None if home.server is None else backend(home.server).blobs
    if home.server is None or table is None:
        return here
    with store.read() as session:
        place = blob_place(session)
    if place is not BlobPlace.STORE:
        return here
    from hocket.work.store_blobs import StoreBlobs

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
    from hocket.work.liveness import place_of

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
