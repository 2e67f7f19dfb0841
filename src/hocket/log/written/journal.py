"""The newest entries that this node has written to a store that nodes share, in two files of its home. A process adds
an entry when its commit has returned and before its caller hears of it. All processes of the node use the same files,
and each compares the newest entry there with the author's last op at the begin of every write transaction: if the store
lacks it, the store went back to an earlier state.

The system may write the files to the disk later: a machine that loses its power at the same time as the database
forgets the last seconds, and then does not see that the database did so, too.
"""

import fcntl
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec

from hocket.errors import StoreWentBack
from hocket.kernel.clock import unpack, wall_text
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import MAX_OP_BYTES
from hocket.kernel.texts import counted
from hocket.store import NewOp, Session

# Each of the two files ends about here.
FILE_BYTES_MAX = 32 * 1024 * 1024
# The newest entry stands in these bytes at the end of a file.
_TAIL_BYTES = 2 * MAX_OP_BYTES
# Begins every record: a mark, a checksum, the length of the entry and its time.
_HEADER = Struct("<4sII20s")
_MARK = b"\xf1hkt"
_ID_BYTES = 16
_CHUNK = 500


class LostTail(msgspec.Struct, frozen=True):
    """What became of this node's ops from `since_ms` on, which the store had lost when the node noticed, at `at_ms`.
    The node has offered `offered` of them again. Of those, `refused` no longer count, by reason, and `waiting` do not
    count as long as ops of other nodes are missing. `missing` could not be offered again: older ones, which the home
    no longer has, are lost, too.
    """

    at_ms: int
    since_ms: int
    offered: int
    waiting: int
    refused: dict[str, int]
    missing: int

    def __str__(self) -> str:
        sentences = [f"the store went back to an earlier state: {counted(self.offered, 'op')} of this node"]
        sentences[0] += f" since {wall_text(self.since_ms)} had gone and " + ("was" if self.offered == 1 else "were")
        sentences[0] += " offered again"
        if self.waiting:
            sentences.append(f"{self.waiting} of them do not count until other nodes offer theirs again")
        sentences += [f"{number} no longer count: {reason}" for reason, number in sorted(self.refused.items())]
        if self.missing:
            sentences.append(f"{counted(self.missing, 'op')} more, and older ones, are lost")
        return "; ".join(sentences)


class WrittenEntry(NamedTuple):
    hlc: bytes
    body: bytes

    @property
    def id(self) -> bytes:
        return self.body[:_ID_BYTES]


class WrittenEntries:
    """The files are `path` and, with older entries, `path`.old. Calls `report` with what was lost and offered again.
    One write transaction of the process at a time uses this.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._old = path, path.with_name(f"{path.name}.old")
        self._lost = path.with_name(f"{path.name}.lost")
        self.report: Callable[[LostTail], None] = lambda lost: None
        self.latest: LostTail | None = None
        self._file: int | None = None
        self._inode = self._read = 0
        self._last = WrittenEntry(b"", b"")
        self._is_read = False
        self._offering = threading.Lock()
        self._offers: int | None = None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # Each transaction.

    def check(self, session: Session, last: bytes) -> None:
        """Raises StoreWentBack if the store lacks the newest entry. `last` is the id of the author's last one there."""
        if self._offers == threading.get_ident():
            return
        with suppress(OSError):  # then what other processes have added is not known
            if self._has_news():
                self._follow()
        newest = self._last
        if newest.id in (b"", last) or any(row.id == newest.id for row in session.entries_at(newest.hlc)):
            return
        if _is_let_go(session, newest.hlc):
            return
        raise StoreWentBack(
            f"the store has lost op {ulid_text(newest.id)} of this node: it went back to an earlier state; repeat the"
            " change"
        )

    def add(self, entries: Sequence[WrittenEntry]) -> None:
        """These entries are in the store."""
        content = b"".join(_record(each) for each in entries)
        try:
            file = self._opened()
            os.write(file, content)
            end = os.lseek(file, 0, os.SEEK_CUR)
            if end - len(content) == self._read:
                self._read = end
            if end > FILE_BYTES_MAX:
                self._turn(file)
        except OSError:
            pass  # the ops are written, and a full disk of the home must not say otherwise
        self._last = max(self._last, *entries)

    def _opened(self) -> int:
        """The newer file, which another process may have put in the place of the one that this process knows."""
        with suppress(FileNotFoundError):
            if self._file is not None and os.stat(self._path).st_ino == self._inode:
                return self._file
        self.close()
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._inode, self._read = os.fstat(self._file).st_ino, 0
        return self._file

    def _turn(self, file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            if os.stat(self._path).st_ino == self._inode:
                self._path.replace(self._old)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _follow(self) -> None:
        """Learns what other processes have added."""
        if not self._is_read:
            self._is_read = True
            if self._old.exists():
                self._take(_records(_tail(self._old)))
            self._read = max(0, os.fstat(self._opened()).st_size - _TAIL_BYTES)
        while True:
            # The file that this process knows may have become the older one.
            file, inode = self._file if self._file is not None else self._opened(), self._inode
            size = os.fstat(file).st_size
            if size > self._read:
                self._take(_records(os.pread(file, size - self._read, self._read)))
                self._read = size
            self._opened()
            if self._inode == inode:
                return

    def _has_news(self) -> bool:
        try:
            state = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (state.st_ino, state.st_size) != (self._inode, self._read)

    def _take(self, entries: Iterable[WrittenEntry]) -> None:
        self._last = max(self._last, max(entries, default=self._last))

    # A store that went back.

    @contextmanager
    def offering(self) -> Iterator[None]:
        """One thread offers entries again, and its transactions are not compared with what was there. Others wait."""
        with self._offering:
            self._offers = threading.get_ident()
            try:
                yield
            finally:
                self._offers = None

    def lost(self, session: Session) -> list[WrittenEntry]:
        """The entries in the files that the store lacks, in the order of their times. Every op there is folded."""
        entries = sorted({each.id: each for each in self._all()}.values())
        known: set[bytes] = set()
        for first in range(0, len(entries), _CHUNK):
            known.update(session.known_ops([each.id for each in entries[first : first + _CHUNK]]))
        return [each for each in entries if each.id not in known and not _is_let_go(session, each.hlc)]

    def _all(self) -> Iterator[WrittenEntry]:
        for path in (self._old, self._path):
            with suppress(FileNotFoundError):
                yield from _records(path.read_bytes())

    def give_up(self, entries: Sequence[WrittenEntry]) -> None:
        """These entries stay lost. They go into a file of their own, and are looked for no more."""
        lost = {each.id for each in entries}
        unfinished = self._path.with_suffix(f".{os.getpid()}")
        with self._lost.open("ab") as file:
            file.write(b"".join(_record(each) for each in entries))
        unfinished.write_bytes(b"".join(_record(each) for each in self._all() if each.id not in lost))
        unfinished.replace(self._path)
        self._old.unlink(missing_ok=True)
        self._last, self._is_read = WrittenEntry(b"", b""), False

    def note(self, lost: LostTail) -> None:
        """Keeps the report for `hocket node doctor`, and gives it to the process."""
        self.latest = lost
        with suppress(OSError):
            unfinished = self._path.with_suffix(f".{os.getpid()}")
            unfinished.write_bytes(msgspec.json.encode(lost))
            unfinished.replace(report_file(self._path))
        self.report(lost)


def noted(path: Path) -> LostTail | None:
    """The last report of the home whose entries are in the file `path`."""
    with suppress(OSError, msgspec.MsgspecError):
        return decode_json(report_file(path).read_bytes(), LostTail)
    return None


def own_entries(author: bytes, ops: Iterable[NewOp]) -> list[WrittenEntry]:
    """What an author has signed of these ops: no facts of bundles, and no ops of others."""
    return [WrittenEntry(op.hlc, op.body) for op in ops if op.place is None and op.hlc[12:] == author]


def report_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.report")


def _is_let_go(session: Session, hlc: bytes) -> bool:
    """Whether the log's retention may have let an op of that time go."""
    horizon = session.horizon()
    return horizon is not None and unpack(hlc).wall <= horizon.at_ms


def _record(entry: WrittenEntry) -> bytes:
    return _HEADER.pack(_MARK, zlib.crc32(entry.body), len(entry.body), entry.hlc) + entry.body


def _records(content: bytes) -> Iterator[WrittenEntry]:
    """The whole records in a part of a file. One that a killed process left unfinished is passed over."""
    at = content.find(_MARK)
    while 0 <= at <= len(content) - _HEADER.size:
        _, checksum, size, hlc = _HEADER.unpack_from(content, at)
        body = content[at + _HEADER.size : at + _HEADER.size + size]
        if len(body) == size and zlib.crc32(body) == checksum:
            yield WrittenEntry(hlc, body)
            at = content.find(_MARK, at + _HEADER.size + size)
        else:
            at = content.find(_MARK, at + 1)


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return file.read()
