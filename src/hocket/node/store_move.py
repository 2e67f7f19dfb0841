"""Moves a home's log into another store: `hocket store move`. It copies while the old store can still be used. Then it
excludes writers, copies the rest and marks the old store as moved, and the home uses the new one. Blobs move too where
they change sides. Each step can be repeated, so a move that was killed anywhere is finished by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from hocket.errors import Conflict, Usage
from hocket.families.blobs import STORED_BYTES_MAX, HomeBlobs, stored_parts
from hocket.families.liveness import machine_liveness
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.keys import RowMac
from hocket.log import Log
from hocket.log.copies import StoreCopy, copy_unlogged, origin
from hocket.node.home import Home
from hocket.node.home_store import blob_place, check_idle, log_in
from hocket.node.running import running_servers
from hocket.node.runtime import Progress
from hocket.node.variables import DB_PATH, DB_URL, STORE, given, named_store
from hocket.store import BlobTable, Store, backend
from hocket.store import open as open_store
from hocket.store.artifact_rows import BLOBS, BlobPlace
from hocket.store.connections import without_password
from hocket.store.local import MOVED, MOVING

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
        raise Conflict(f"`hocket mesh serve` is running (process {pids}); stop it before a move")


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
        _settle(log)
        _begin(kept, fresh, log.node, transfer.target_place, without_password(new))
        transfer.copy()
        copy = StoreCopy(kept, log_in(fresh, home), without_password(new))
        for _ in range(ENDS_MAX):
            while (done := copy.step()).ops < done.of:
                progress(done.ops, done.of)
            if _ended(kept, fresh, copy, transfer, log.node, without_password(new)):
                progress(done.of, done.of)
                return _count(fresh)
            _settle(log)
    raise Conflict(f"other programs keep writing to {without_password(old)}; stop them, and repeat the move")


def _settle(log: Log) -> None:
    """Folds what is not folded yet, and lets every subject follow the horizon: then the log can be copied."""
    log.settle()
    while True:
        with log.store.read() as session:
            horizon = session.horizon()
        if horizon is None or horizon.is_denied:
            return
        log.horizons.step()


def _check_alone(store: Store, log: Log, why: str) -> None:
    """Raises Conflict if other nodes share the store: they could not use what is on this machine alone."""
    with store.read() as session:
        others = log.sharers(session)
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


# So many blobs are looked for at once.
STEP = 500


def blob_transfer(home: Home, kept: Store, old: str, new: str, place: BlobPlace | None) -> BlobTransfer:
    """`place` is where the nodes of the new store keep their blobs; None: in the same as before, if that can be."""
    old_table, new_table = backend(old).blobs, backend(new).blobs
    if place is BlobPlace.STORE and new_table is None:
        raise Usage("--blobs store is for a store in PostgreSQL, and the new one is not; leave it out")
    with kept.read() as session:
        before = blob_place(session)
    source = old_table(old) if old_table is not None and before is BlobPlace.STORE else None
    after = place or (BlobPlace.HOME if source is None else BlobPlace.STORE)
    target = new_table(new) if new_table is not None and after is BlobPlace.STORE else None
    return BlobTransfer(HomeBlobs(home.blobs), source, target)


class BlobTransfer:
    """`source` and `target` are the tables of the old and of the new store; None stands for the home."""

    def __init__(self, home: HomeBlobs, source: BlobTable | None, target: BlobTable | None) -> None:
        self._home, self._source, self._target = home, source, target
        self.copied = 0

    @property
    def target_place(self) -> BlobPlace:
        return BlobPlace.HOME if self._target is None else BlobPlace.STORE

    @property
    def is_homeward(self) -> bool:
        return self._source is not None and self._target is None

    def copy(self) -> None:
        """Copies every blob that the target lacks. Raises Damaged for one that does not match its hash."""
        if self._source is None and self._target is None:
            return
        for sizes in self._pages():
            for hash in sizes.keys() - self._there(list(sizes)):
                self._copy(hash, sizes[hash])
                self.copied += 1

    def close(self) -> None:
        self._home.close()
        for table in (self._source, self._target):
            if table is not None:
                table.close()

    def _pages(self) -> Iterator[dict[bytes, int]]:
        """The blobs that belong into the target, with their sizes."""
        page: dict[bytes, int] = {}
        for hash, size in self._at_home() if self._source is None else self._source.all():
            page[hash] = size
            if len(page) == STEP:
                yield page
                page = {}
        yield page

    def _at_home(self) -> Iterator[tuple[bytes, int]]:
        for hash, _ in self._home.all():
            if (size := self._home.size(hash)) <= STORED_BYTES_MAX:
                yield hash, size

    def _there(self, hashes: list[bytes]) -> set[bytes]:
        return {*filter(self._home.has, hashes)} if self._target is None else self._target.among(hashes)

    def _copy(self, hash: bytes, size: int) -> None:
        if self._target is not None:
            self._target.write(hash, size, lambda: self._parts(hash))
        else:
            self._home.keep(self._home.stage_parts(self._parts(hash)))

    def _parts(self, hash: bytes) -> Iterator[bytes]:
        return self._home.chunks(hash) if self._source is None else stored_parts(self._source, hash)
