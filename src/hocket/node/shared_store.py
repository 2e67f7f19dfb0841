"""A home and a store outside of it. A database file has the log of one node. A store in a database server may have the
log of several: its founder, whose delegation is its first op, and the nodes that were told to share it. A node that was
not told, a home of another user, and a second home with the same key are refused. The home remembers the MACs of rows
that it has ended, such as revoked tokens: a node that writes to the store could put such a row back as it was.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hocket.errors import Conflict, StoreError
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, node_id, node_text
from hocket.kernel.keys import MAC_BYTES
from hocket.kernel.rules import encode_rules
from hocket.log import RULES
from hocket.log.permissions import founder

if TYPE_CHECKING:
    from hocket.kernel.rules import Rules
    from hocket.log import Log
    from hocket.log.permissions import Permissions
    from hocket.log.state_check import CheckedStateFiles
    from hocket.node.home import Home
    from hocket.store import Session, Store


# The store's key, for each node, of the home that uses it.
HOME = "home"
# A home says that it uses the store when it is opened, if the last time was longer ago than this.
USED_MS = 60_000
# After so long without a word, another home with the same key may take its place.
LEFT_MS = 600_000


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
            " invitation there with `hocket invite NAME --share`, and join with it in a new home"
        )
    raise Conflict(
        f"node {node_text(node)} may not share the store of node {node_text(began)}, or no longer; make an"
        " invitation there with `hocket invite NAME --share`, and join with it"
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
    with log.store.write() as session:
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
            f" this home a key of its own with `hocket join`. A home that was moved is let in {LEFT_MS // 60_000}"
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
