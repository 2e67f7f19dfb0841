"""Writes the ops of whole days into an archive. It goes on after what the archive has already, and writes the last file
of each author again if the log has more ops of that day by now. The first archive of a log that is pruned already
begins at its horizon, with a snapshot.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Conflict, Failed, StoreError
from hocket.families.retention.facts import AuthorHead, MoveHorizon
from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import node_text
from hocket.kernel.ops import NO_ID, decode, link_to
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import Bundle, Sanitised, number_of
from hocket.log import Log
from hocket.log.archives.archive import SNAPSHOT, Archive, ArchivePlace, target_at
from hocket.log.archives.day_file import FORMAT, DayFile, Header, day_of, encode, fits, start_of
from hocket.log.archives.reached import ArchivedHead, note_archive, noted_heads
from hocket.log.audit import author_keys
from hocket.log.snapshots.writing import write_snapshot
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
    address: str | Path,
    before_ms: int,
    *,
    dry_run: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Archived]:
    """Writes the days that had ended at that time. Gives each file once it is stored. At the end the home notes how far
    the archive reaches. Raises Conflict if the archive is of another mesh or has other ops.
    """
    if log.rules.bounds is None:
        raise Failed("a mesh of strict Likewise v0.1 has no archives: its ops are not linked, so one could be missing")
    target = target_at(address)
    with log.store.read() as session:
        total = session.entry_count()
        keys = author_keys(session, log.user)
        authors = sorted(int.from_bytes(node, "big") for node in session.frontier())
        noted = noted_heads(session, target.shown)
    archive, until_ms, done = Archive(target), start_of(day_of(before_ms)), 0
    heads: dict[bytes, ArchivedHead] = {}
    with nullcontext() if dry_run else target.writing():
        begins = _begins(log, archive)
        if begins is None:
            begins, size = _heads(log), 0
            if not dry_run:
                manifest, size = archive.put_snapshot(lambda path: write_snapshot(log, path))
                begins = _heads_of(manifest.horizon)
            yield Archived(SNAPSHOT, 0, size)
        for author in authors:
            if author not in keys:
                raise StoreError(f"no delegation says which key node {node_text(author)} has. Run `hocket log verify`")
            days = _AuthorDays(log, archive, author, keys[author], until_ms, begins.get(author))
            days.noted = noted.get(author.to_bytes(8, "big"))
            for file in days.files():
                place = ArchivePlace(file.header.author, file.header.day, file.header.part)
                frame = encode(file)
                if not dry_run:
                    archive.put(place, frame)
                done += len(file.ops)
                progress(done, total)
                yield Archived(place.name, len(file.ops), len(frame))
            if days.head is not None:
                heads[author.to_bytes(8, "big")] = days.head
    if not dry_run:
        with log.store.write() as session:
            note_archive(session, target.shown, log.physical(), until_ms, heads)


def _begins(log: Log, archive: Archive) -> dict[int, AuthorHead] | None:
    """After which entries the files of authors begin, if not with their first. None if the archive has yet to get the
    snapshot that says so.
    """
    if archive.has_snapshot():
        with archive.snapshot() as folder:
            assert folder is not None
            if (mesh := folder.mesh()) != log.user:
                raise _of_another_mesh(archive, mesh)
            return _heads_of(folder.manifest().horizon)
    with log.store.read() as session:
        row = session.horizon()
        if row is None or archive.authors() or not session.gaps():
            return {}
    if not row.is_deleted:
        raise Conflict(
            "a part of the log was deleted without an archive, and what the next horizon let go waits for one, which"
            " would not be whole; waive it once with `hocket retain … --no-archive`, and archive from then on"
        )
    return None


def _heads(log: Log) -> dict[int, AuthorHead]:
    with log.store.read() as session:
        row = session.horizon()
        stored = None if row is None else session.op(row.op)
    return {} if stored is None else _heads_of(stored.body)


def _heads_of(op: bytes) -> dict[int, AuthorHead]:
    moved = decode(op).payload
    assert isinstance(moved, MoveHorizon)
    return {each.node: each for each in moved.heads}


def _of_another_mesh(archive: Archive, mesh: str) -> Conflict:
    return Conflict(f"{archive.target.shown} is the archive of another mesh, {mesh}; use another folder")


class _AuthorDays:
    """The days of one author that had ended at `until_ms`, behind the entry `begin` if there is one. `head` is where
    they end, once `files` is through.
    """

    def __init__(
        self, log: Log, archive: Archive, author: int, key: bytes, until_ms: int, begin: AuthorHead | None
    ) -> None:
        self._log, self._archive, self._until_ms = log, archive, until_ms
        self._author, self._key = author, key
        self._begin = None if begin is None else ArchivedHead(pack(begin.at), begin.entry)
        self.head = self._begin
        self.noted: ArchivedHead | None = None
        """Where the last complete run has ended. What is archived may be pruned since."""

    def files(self) -> Iterator[DayFile]:
        """The files that the archive lacks, and its last one again if it has grown."""
        places = self._archive.places(node_text(self._author))
        last = places[-1] if places else None
        if last is None:
            begin = self._begin or ArchivedHead(bytes(20), NO_ID)
            day, part, ops, previous, after = "", 0, list[bytes](), begin.entry_id, begin.hlc
        else:
            day, part, ops = last.day, last.part, self._read(last).ops
            previous = self._end(ops[-1]).entry_id
            # From just before the last op on, which this log must have.
            after = pack(Hlc(decode(ops[-1]).timestamp.wall, 0, 0))
        size, has_grown, is_here = sum(map(len, ops)), False, last is None
        for row in self._rows(after):
            op = decode(row.body)
            if not is_here and last is not None and op.link != link_to(previous):
                if row.hlc > self._end(ops[-1]).hlc:
                    raise self._foreign(last)
                is_here = op.id == previous
                continue
            if op.link != link_to(previous):
                raise StoreError(
                    f"the op before number {row.seq}, of node {node_text(self._author)}, is not on this log"
                )
            is_here, previous = True, op.id
            raw, its_day = self._log.signed(row.body), day_of(op.timestamp.wall)
            if ops and (its_day != day or not fits(ops, size, raw)):
                if has_grown:
                    yield self._file(day, part, ops)
                part, ops, size = part + 1 if its_day == day else 0, [], 0
            day, has_grown = its_day, True
            ops.append(raw)
            size += len(raw)
        if (
            last is not None
            and not is_here
            and unpack(after).wall < self._until_ms
            and self._end(ops[-1]) != self.noted
        ):
            raise self._foreign(last)
        if has_grown:
            yield self._file(day, part, ops)
        if ops:
            self.head = self._end(ops[-1])

    def _end(self, raw: bytes) -> ArchivedHead:
        op = decode(raw)
        last = read_facts(raw)[-1].op if isinstance(op.payload, Bundle) else op
        return ArchivedHead(pack(last.timestamp), op.id)

    def _read(self, place: ArchivePlace) -> DayFile:
        try:
            file = self._archive.read(place)
        except Malformed as error:
            raise Conflict(f"{self._archive.shown(place)} is damaged: {error}. Remove it, and archive again") from None
        if file.header.mesh != self._log.user:
            raise _of_another_mesh(self._archive, file.header.mesh)
        return file

    def _foreign(self, place: ArchivePlace) -> Conflict:
        return Conflict(f"{self._archive.shown(place)} has ops that this log has not; archive into another folder")

    def _rows(self, after: bytes) -> Iterator[OpRow]:
        node = self._author.to_bytes(8, "big")
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
