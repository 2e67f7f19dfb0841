"""Moves a home's log into another store: `hocket store move`. It copies while the old store can still be used. Then it
excludes writers, copies the rest and marks the old store as moved, and the home uses the new one. Each step can be
repeated, so a move that was killed anywhere is finished by the next one.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from hocket.errors import Conflict, Usage
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.row_mac import RowMac
from hocket.log import Log
from hocket.log.ownership import writers
from hocket.log.store_copy import StoreCopy, copy_unlogged, origin
from hocket.node.blob_transfer import BlobTransfer, blob_transfer
from hocket.node.home import Home
from hocket.node.home_store import check_idle, log_in
from hocket.node.runtime import Progress
from hocket.node.servers import running_servers
from hocket.node.variables import DB_PATH, DB_URL, STORE, given, named_store
from hocket.store import Store, backend
from hocket.store import open as open_store
from hocket.store.blobs import BLOBS, BlobPlace
from hocket.store.secrecy import without_password
from hocket.store.unlogged import MOVED, MOVING
from hocket.work.liveness import machine_liveness

# How often the end of the copy is tried again because another process wrote meanwhile.
ENDS_MAX = 20


class Moved(NamedTuple):
    """`blobs` is how many were copied. `to_change` says which variable still names the old store."""

    ops: int
    blobs: int
    source: str
    target: str
    to_change: str | None


def move(home: Home, source: str, target: str, progress: Progress, blobs: BlobPlace | None = None) -> Moved:
    """Moves the log of this home's node from one store to another, whose nodes keep their blobs in that place; by
    default in the same as before. Raises an error, and leaves the home and the old store as they are, if it cannot.
    """
    home.check()
    old, new = _place(home, source), _place(home, target)
    if without_password(old) == without_password(new):
        raise Usage(f"{without_password(old)} is both the old and the new store; name two")
    if not backend(new).is_server and Path(new) != home.database:
        raise Usage(f"this home's file is {home.database}; name that one, or set {DB_PATH} to {new} for every program")
    with closing(open_store(old)) as kept:
        kept.mac_rows(RowMac(home.node_key()))
        gone = _moved_to(kept)
        if gone is None:
            _check_movable(home, kept, old)
        elif gone != without_password(new):
            raise Conflict(f"{without_password(old)} was moved to {gone} already")
        with closing(blob_transfer(home, kept, old, new, blobs)) as transfer, _opened(home, new) as fresh:
            ops = _copy(home, kept, fresh, transfer, old, new, progress) if gone is None else _count(fresh)
            with fresh.write() as session:
                session.set_meta(MOVING, b"")
    home.use_store(new if backend(new).is_server else None)
    return Moved(ops, transfer.copied, without_password(old), without_password(new), _to_change(home, new))


def _place(home: Home, address: str) -> str:
    if backend(address).is_server:
        return named_store(address)
    path = unquote(address.removeprefix("sqlite://")) if address.startswith("sqlite:///") else address
    return str(Path(path).expanduser().absolute())


def _to_change(home: Home, new: str) -> str | None:
    """What the environment must say from now on, if it names the old store."""
    for name in (STORE, DB_PATH, DB_URL):
        if (value := given(name)) is None:
            continue
        if backend(value).is_server and backend(new).is_server and without_password(value) != without_password(new):
            return f"set {name} to the new address, or unset it, for every program of this home"
        if backend(value).is_server is not backend(new).is_server:
            return f"unset {name}, which names the old store, for every program of this home"
    return None


def _moved_to(store: Store) -> str | None:
    with store.read() as session:
        moved = session.meta(MOVED)
    return None if moved is None else moved.decode()


def _count(store: Store) -> int:
    with store.read() as session:
        return session.head().seq


def _check_movable(home: Home, store: Store, where: str) -> None:
    """Raises Conflict if the store has not the log of this home's node, or is in use."""
    with store.read() as session:
        if node_id(home.node_key().public).to_bytes(8, "big") not in session.nodes():
            raise Conflict(f"{without_password(where)} has not the log of the node of {home.path}; name its store")
        now_ms = round((store.server_clock or time.time)() * 1000)
        check_idle(session, machine_liveness(home.processes, time.monotonic), now_ms, "a move")
    if servers := running_servers(home.processes):
        pids = ", ".join(str(each.pid) for each in servers)
        raise Conflict(f"`hocket serve` is running (process {pids}); stop it before a move")


@contextmanager
def _opened(home: Home, new: str) -> Iterator[Store]:
    if not backend(new).is_server:
        home.new_database()
    with closing(open_store(new, create=True)) as store:
        store.mac_rows(RowMac(home.node_key()))
        yield store


def _copy(home: Home, kept: Store, fresh: Store, transfer: BlobTransfer, old: str, new: str, progress: Progress) -> int:
    with closing(log_in(kept, home)) as log:
        if backend(old).is_server and not backend(new).is_server:
            _check_alone(kept, log, "and cannot use a file here; move it to another server instead")
        if transfer.is_homeward and backend(new).is_server:
            _check_alone(kept, log, "and could no longer read its blobs; leave out --blobs home")
        log.settle()
        _begin(kept, fresh, log.node, transfer.target_place, without_password(new))
        transfer.copy()
        copy = StoreCopy(kept, log_in(fresh, home), without_password(new))
        for _ in range(ENDS_MAX):
            while (done := copy.step()).ops < done.of:
                progress(done.ops, done.of)
            if _ended(kept, fresh, copy, transfer, log.node, without_password(new)):
                progress(done.of, done.of)
                return _count(fresh)
            log.settle()
    raise Conflict(f"other programs keep writing to {without_password(old)}; stop them, and repeat the move")


def _check_alone(store: Store, log: Log, why: str) -> None:
    """Raises Conflict if other nodes share the store: they could not use what is on this machine alone."""
    with store.read() as session:
        others = writers(session, log.permissions(session)) - {log.node}
    if others:
        names = ", ".join(map(node_text, sorted(others)))
        raise Conflict(f"node {names} shares this store, {why}")


def _begin(kept: Store, fresh: Store, node: int, blobs: BlobPlace, shown: str) -> None:
    """Marks the new store as unfinished. Raises Conflict if it has a log that this move has not brought."""
    with kept.read() as source, fresh.write() as session:
        if session.head().seq and session.meta(MOVING) != origin(source):
            moved = session.meta(MOVED)
            whose = "a log" if moved is None else f"an older copy of a log, which was moved to {moved.decode()}"
            raise Conflict(f"{shown} is not empty, it has {whose}; choose another place, or remove that")
        copy_unlogged(source, session, node, {MOVING: origin(source), BLOBS: blobs.encode()})


def _ended(kept: Store, fresh: Store, copy: StoreCopy, transfer: BlobTransfer, node: int, shown: str) -> bool:
    """Copies the rest while nobody can write, and marks the old store as moved. False if more has to be folded."""
    with kept.write() as source:
        head = source.head()
        if head.unsettled or head.rebuilding is not None:
            return False
        while (done := copy.step_in(source)).ops < done.of:
            pass
        transfer.copy()
        with fresh.write() as session:
            copy_unlogged(source, session, node, {MOVING: origin(source), BLOBS: transfer.target_place.encode()})
            copied = session.head()
            clock = max((copied.wall, copied.logical), (head.wall, head.logical))
            session.put_head(copied._replace(wall=clock[0], logical=clock[1]))
        source.mark_moved(shown)
    return True
