"""Writes the ops of whole days into an archive. It goes on after what the archive has already, and writes the last day
of each author again if the log has more ops of that day by now.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Conflict, Failed, StoreError
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import node_text
from hocket.kernel.ops import NO_ID, decode, link_to
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import Sanitised, number_of
from hocket.log import Log
from hocket.log.archives.day_file import FORMAT, DayFile, Header, day_of, encode, fits, start_of
from hocket.log.archives.folder import ArchiveFolder, ArchivePlace
from hocket.log.audit import author_keys
from hocket.store import OpRow, Session

BATCH = 1_000
SANITISED = number_of(Sanitised)


class Archived(NamedTuple):
    """A file that was written, or would be."""

    file: str
    ops: int
    bytes: int


def write_archive(
    log: Log,
    path: Path,
    before_ms: int,
    *,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Archived]:
    """Writes the days that had ended at that time. Gives each file once it is on disk. Raises Conflict if the archive
    is of another mesh or has other ops.
    """
    if log.rules.bounds is None:
        raise Failed("a mesh of strict Likewise v0.1 has no archives: its ops are not linked, so one could be missing")
    with log.store.read() as session:
        total = session.entry_count()
        keys = author_keys(session, log.user)
        authors = sorted(int.from_bytes(node, "big") for node in session.frontier())
    folder, until_ms, done = ArchiveFolder(path), start_of(day_of(before_ms)), 0
    with nullcontext() if dry_run else folder.writing():
        for author in authors:
            if author not in keys:
                raise StoreError(f"no delegation says which key node {node_text(author)} has. Run `hocket log verify`")
            for file in _AuthorDays(log, folder, author, keys[author], until_ms).files():
                place = ArchivePlace(file.header.author, file.header.day, file.header.part)
                frame = encode(file)
                if not dry_run:
                    folder.put(place, frame)
                done += len(file.ops)
                progress(done, total)
                yield Archived(place.name, len(file.ops), len(frame))


class _AuthorDays:
    """The days of one author that had ended at `until_ms`."""

    def __init__(self, log: Log, folder: ArchiveFolder, author: int, key: bytes, until_ms: int) -> None:
        self._log, self._folder, self._until_ms = log, folder, until_ms
        self._author, self._key = author, key

    def files(self) -> Iterator[DayFile]:
        """The files that the archive lacks."""
        places = self._folder.places(node_text(self._author))
        last_day = places[-1].day if places else None
        first_ms = 0 if last_day is None else start_of(last_day)
        there = {place: self._read(place) for place in places if place.day == last_day}
        before = next((place for place in reversed(places) if place.day != last_day), None)
        for file in self._days(first_ms, before):
            place = ArchivePlace(file.header.author, file.header.day, file.header.part)
            old = there.pop(place, None)
            if old is None:
                yield file
            elif old.ops != file.ops[: len(old.ops)]:
                raise self._foreign(place)
            elif len(old.ops) < len(file.ops):
                yield file
        if there:
            raise self._foreign(min(there))

    def _read(self, place: ArchivePlace) -> DayFile:
        try:
            file = self._folder.read(place)
        except Malformed as error:
            raise Conflict(
                f"{self._folder.path / place.name} is damaged: {error}. Remove it, and archive again"
            ) from None
        if file.header.mesh != self._log.user:
            raise Conflict(
                f"{self._folder.path} is the archive of another mesh, {file.header.mesh}; use another folder"
            )
        return file

    def _foreign(self, place: ArchivePlace) -> Conflict:
        return Conflict(f"{self._folder.path / place.name} has ops that this log has not; archive into another folder")

    def _days(self, first_ms: int, before: ArchivePlace | None) -> Iterator[DayFile]:
        """The files from that day on, which follow the one before."""
        previous = NO_ID if before is None else decode(self._read(before).ops[-1]).id
        day, part, ops, size = "", 0, list[bytes](), 0
        for row in self._rows(first_ms):
            op = decode(row.body)
            if op.link != link_to(previous):
                if before is not None and not day:
                    raise self._foreign(before)
                raise StoreError(
                    f"the op before number {row.seq}, of node {node_text(self._author)}, is not on this log"
                )
            previous = op.id
            raw, its_day = self._log.signed(row.body), day_of(op.timestamp.wall)
            if ops and (its_day != day or not fits(ops, size, raw)):
                yield self._file(day, part, ops)
                part, ops, size = part + 1 if its_day == day else 0, [], 0
            day = its_day
            ops.append(raw)
            size += len(raw)
        if ops:
            yield self._file(day, part, ops)

    def _rows(self, first_ms: int) -> Iterator[OpRow]:
        node = self._author.to_bytes(8, "big")
        after = pack(Hlc(first_ms, 0, 0))
        while True:
            # A transaction for each batch: one that lasts keeps the database from cleaning up.
            with self._log.store.read() as session:
                rows = self._checked(session, session.entries_of_author(node, after, BATCH))
            for row in rows:
                if unpack(row.hlc).wall >= self._until_ms:
                    return
                yield row
            if len(rows) < BATCH:
                return
            after = rows[-1].hlc

    def _checked(self, session: Session, rows: list[OpRow]) -> list[OpRow]:
        if any(row.variant == SANITISED for row in rows):
            raise Failed(
                f"this node may read ops of node {node_text(self._author)} only in part, without their signatures;"
                " archive on a node that reads all"
            )
        if session.row_check is not None and len(session.row_check.ops(rows)) < len(rows):
            raise StoreError(
                f"an op of node {node_text(self._author)} is not the one that it signed; `hocket log verify` shows it"
            )
        return rows

    def _file(self, day: str, part: int, ops: list[bytes]) -> DayFile:
        header = Header(FORMAT, self._log.user, node_text(self._author), self._key.hex(), day, part, len(ops))
        return DayFile(header, ops)
