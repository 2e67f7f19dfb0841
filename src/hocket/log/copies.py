"""Copies of a log: as a file, in another store, and as a local replica.

A file is the postcard sequence of its ops, which any Likewise software can read. Export and import both stream, so a
log may have any size. A copy into another store has each op with its number and its signature. It verifies the ops on
the way, reads back what it has written, and folds them as ops from elsewhere are folded. Every step is one transaction,
so a copy that was killed goes on where it ended. Ops that bear only this node's mark are signed in the copy, so the
links there can be others. What a pruned log has comes over in one step, and again when its horizon has moved.

A replica is a local SQLite copy of a store that a database server has. It follows the server: a read first copies the
ops that were sealed there since, unless that was done a moment ago by any process. When the server is away, reads go on
from the copy, and say how old it is. Writes go to the server alone, and a process that has written reads its own
changes.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

from hocket.errors import Conflict, StoreError
from hocket.kernel.bundles import last_time
from hocket.kernel.clock import pack
from hocket.kernel.keys import RowMac
from hocket.kernel.ops import MAX_OP_BYTES, Op, decode, read_op
from hocket.kernel.postcard import Malformed, Reader, write_varint
from hocket.kernel.vocabulary import DelegateUcan, number_of
from hocket.log import Admission, Log
from hocket.log.audit import Auditor
from hocket.log.citations import keyed
from hocket.store import OpRow, RowChecks, Session, Store
from hocket.store.horizon_rows import HORIZON, PREPARING, HorizonRow
from hocket.store.local import KEPT, OF_NODE, REPLICA
from hocket.store.statements import EndedMacs

BATCH = 1_000
CHUNK = 4 * MAX_OP_BYTES


def export_ops(log: Log, out: BinaryIO, progress: Callable[[int, int], None] = lambda done, total: None) -> int:
    """Writes every op in the order of arrival; returns how many. The facts of a bundle count like other ops."""
    with log.store.read() as session:
        _check_whole(session)
        total = session.entry_count()
        count = bytearray()
        write_varint(count, total)
        out.write(count)
        seq = done = 0
        check = session.row_check
        while rows := session.stored_entries(seq, BATCH):
            if check is not None and len(check.ops(rows)) < len(rows):
                raise StoreError(
                    f"an op between number {rows[0].seq} and {rows[-1].seq} is not the one that its author signed;"
                    " `hocket log verify` shows it"
                )
            for row in rows:
                out.write(log.signed(row.body))
            seq = rows[-1].seq
            done += len(rows)
            progress(done, total)
        return session.op_count()


def export_later(log: Log, session: Session, out: BinaryIO) -> None:
    """Writes the entries behind the heads of the horizon, in the order of their times."""
    total = sum(len(rows) for rows in _later(session))
    count = bytearray()
    write_varint(count, total)
    out.write(count)
    for rows in _later(session):
        for row in rows:
            out.write(log.signed(row.body))


def _later(session: Session) -> Iterator[list[OpRow]]:
    after = {author: head.hlc for author, head in session.heads().items()}
    while rows := session.entries_since(after, BATCH):
        yield rows
        after |= {row.hlc[12:]: pack(last_time(decode(row.body))) for row in rows}


def _check_whole(session: Session) -> None:
    """Raises Conflict for a log from which ops were let go."""
    if session.horizon() is not None:
        raise Conflict(
            "the log is pruned, and a file of ops cannot say what stands in the place of those that went; `hocket log"
            " snapshot DIR` writes all that remains, and `hocket log import DIR` takes it"
        )


def import_ops(log: Log, source: BinaryIO) -> Admission:
    """Admits every op of an exported log. Ops that are already here count as duplicates."""
    reading = OpReader(source)
    return log.admit(reading)._replace(unread=reading.unread)


class OpReader:
    """The ops of a sequence with their bytes. Nothing after an unreadable op can be found, so that op is the last;
    `unread` then counts the rest.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.unread = 0

    def __iter__(self) -> Iterator[tuple[bytes, Op | Malformed]]:
        buffer = self._source.read(CHUNK)
        reader = Reader(buffer)
        start = 0
        try:
            self.unread = reader.varint()
            while self.unread:
                self.unread -= 1
                if reader.remaining() < MAX_OP_BYTES and (more := self._source.read(CHUNK)):
                    buffer = buffer[reader.pos :] + more
                    reader = Reader(buffer)
                start = reader.pos
                op = read_op(reader)
                yield buffer[start : reader.pos], op
            start = reader.pos
            if reader.remaining() or self._source.read(1):
                raise Malformed("bytes follow the last op")
        except Malformed as error:
            yield buffer[start : start + 16], error


# So many ops are copied in one transaction.
COPY_STEP = 500
_DELEGATION = number_of(DelegateUcan)


class CopyProgress(NamedTuple):
    """`ops` of the source's `of` are in the copy."""

    ops: int
    of: int


def origin(session: Session) -> bytes:
    """What tells logs apart: the link of the first op. Empty for an empty log."""
    first = session.stored_entries(0, 1)
    return first[0].chain if first and first[0].seq == 1 else b""


class MeetingPoint(NamedTuple):
    """The number of the last op of the source that the copy has, or of a deleted one behind it, and its link there."""

    seq: int
    chain: bytes


class StoreCopy:
    """`log` is that of the copy, which has the rules of the source already."""

    def __init__(self, source: Store, log: Log, shown: str) -> None:
        self._source, self._log, self._shown = source, log, shown
        self._auditor = Auditor(log.user, log.signer, log.rules.bounds is not None)
        self._has_met = False

    def step(self) -> CopyProgress:
        """Copies the next ops, if there are any."""
        with self._source.read() as session:
            return self.step_in(session)

    def step_in(self, session: Session) -> CopyProgress:
        """Copies the next ops within a transaction of the source."""
        head, horizon = session.head(), session.horizon()
        with self._log.store.read() as there:
            done, followed = there.head(), there.horizon()
            at = self._meeting_point(session, there, done.seq)
        if horizon is not None and horizon.is_denied and (followed is None or followed.op != horizon.op):
            return self._take_settled(session, horizon, at)
        if horizon is not None and horizon.is_deleted and followed is not None and not followed.is_deleted:
            from hocket.log.retention.copying import take_gaps  # most logs have no horizon

            take_gaps(session, self._log, horizon)
        rows = session.stored_entries(done.seq, COPY_STEP) if head.seq > done.seq else []
        if rows:
            if rows[0].seq != done.seq + 1:
                raise StoreError("the log is being pruned; try again in a minute")
            self._verify(session, rows, at)
            copy_in(self._log, rows)
        return CopyProgress(rows[-1].seq if rows else done.seq, head.seq)

    def _take_settled(self, session: Session, horizon: HorizonRow, at: MeetingPoint) -> CopyProgress:
        """Brings the copy to where the source is, with what stands in the place of the ops that went."""
        from hocket.log.retention.copying import take_settled

        auditor = self._auditor
        auditor.meet(session)
        auditor.meet_horizon(session, is_whole=at.seq == 0)
        auditor.resume(*at)
        while rows := session.stored_entries(auditor.seq, COPY_STEP):
            auditor.take(session, rows)
            self._check()
        take_settled(session, self._log, horizon)
        seq = session.head().seq
        return CopyProgress(seq, seq)

    def _meeting_point(self, session: Session, there: Session, done: int) -> MeetingPoint:
        """Where the copy ends. Raises Conflict if the copy is one of another log, or of another history of this one."""
        seq, point = done, MeetingPoint(0, bytes(32))
        if session.horizon() is not None and (gap := session.gap_at(done)) is not None:
            seq, point = gap.first - 1, MeetingPoint(gap.last, gap.chain)
        if (copied := there.entry(seq)) is None:
            return point
        last = session.entry(copied.seq)
        if last is None or last.id != copied.id:
            raise Conflict(
                f"{self._shown} is a copy of another log, or of a state that this one has lost; choose another place"
                " for the copy, or remove it"
            )
        return MeetingPoint(done, last.chain) if seq == done else point

    def _verify(self, session: Session, rows: Sequence[OpRow], at: MeetingPoint) -> None:
        auditor = self._auditor
        if not self._has_met or any(row.variant == _DELEGATION for row in rows):
            auditor.meet(session)
            self._has_met = True
        auditor.resume(*at)
        auditor.take(session, rows)
        self._check()

    def _check(self) -> None:
        """Raises StoreError for an op that is not the one that its author signed, or is not in its place."""
        auditor = self._auditor
        if auditor.findings:
            found = auditor.findings[0]
            raise StoreError(
                f"op {found.seq} was not copied: {found.what}; `hocket log verify` shows all that is wrong"
            )


def copy_in(log: Log, rows: Sequence[OpRow]) -> None:
    """Takes ops over from another store of the same log, in their order there."""
    rows = [row._replace(body=log.signed(row.body)) for row in rows]
    ops = [keyed(row) for row in rows]
    with log.store.write() as session:
        if session.head().seq + 1 != rows[0].seq:
            return  # another process was faster
        tx = log.begin(session)
        tx.lock_permissions_for(op.payload for op in ops)
        session.order_ops()
        tx.projection.prepare(ops)
        for row, op in zip(rows, ops, strict=True):
            tx.hear(op.timestamp)
            tx.admit(op, row.body)
        tx.projection.settle()
        tx.close(log.append_received)
        written = session.stored_entries(rows[0].seq - 1, len(rows))
        if [_copied(row) for row in written] != [_copied(row) for row in rows]:
            raise StoreError(
                f"the ops from number {rows[0].seq} on were not stored as they are; nothing of them was kept"
            )


def _copied(row: OpRow) -> tuple[int, bytes, bytes, bytes]:
    return row.seq, row.id, row.hlc, row.body


def copy_unlogged(source: Session, target: Session, node: int, marks: Mapping[str, bytes]) -> None:
    """Replaces what the target has on no log by what the source has, for this node. `marks` are settings of the
    target's own. The horizon comes with the ops.
    """
    horizon = target.meta(HORIZON)
    author = node.to_bytes(8, "big")
    settings = {key: source.node_meta(author, key) for key in OF_NODE}
    for table in KEPT:
        rows = source.unlogged(table)
        target.put_unlogged(table, (row for row in rows if table != "meta" or not _stays(row[0])))
    for key, value in settings.items():
        if value is not None:
            target.set_node_meta(author, key, value)
    for key, mark in (marks if horizon is None else {**marks, HORIZON: horizon}).items():
        target.set_meta(key, mark)


def _stays(key: str) -> bool:
    """Whether a setting is a node's, or of a horizon. Stores that nodes share name the node, others do not."""
    return key in (HORIZON, PREPARING) or key.partition(" ")[0] in OF_NODE


# A copy that is older than this is brought up to date before it is read.
FOLLOW_MS = 1_000
# After the server could not be reached, reads go on for this long before it is tried again.
AWAY_S = 5.0
# The store's key of when the copy had all that was sealed, in milliseconds.
FOLLOWED = "followed"


class ReplicaState(NamedTuple):
    """The copy has all ops up to this number. `followed_ms` is when these were all that were sealed. `error` says why
    the server cannot be followed now.
    """

    path: str
    ops: int
    followed_ms: int
    error: str | None


class ReplicatedStore:
    """`open_primary` connects to the server; it is called when that is needed first. `log_of` gives the log of this
    node in a store.
    """

    def __init__(
        self,
        path: Path,
        copy: Store,
        open_primary: Callable[[], Store],
        log_of: Callable[[Store], Log],
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._path, self._copy, self._open_primary, self._log_of = path, copy, open_primary, log_of
        self._clock_ms = clock_ms
        self._lock, self._following = Lock(), Lock()
        self._primary: Store | None = None
        self._mac: tuple[RowMac, EndedMacs | None] | None = None
        self._row_checks: RowChecks | None = None
        self._copying: StoreCopy | None = None
        self._writes = self._writes_copied = 0
        self._away_until = 0.0
        self._error: str | None = None

    # What a store does.

    def check_rows(self, checks: RowChecks) -> None:
        """The copy is this node's own, and verifies what it takes over."""
        with self._lock:
            self._row_checks = checks
            if self._primary is not None:
                self._primary.check_rows(checks)

    @contextmanager
    def write(self, author: bytes | None = None, *, at_end: bool = False) -> Iterator[Session]:
        try:
            with self.primary.write(author, at_end=at_end) as session:
                yield session
        finally:
            self._writes += 1

    def read(self) -> AbstractContextManager[Session]:
        """A process that has written reads from the server, for its decisions. Others read the copy."""
        if self._writes:
            return self.primary.read()
        self.refresh()
        return self.copy()

    @property
    def server_clock(self) -> Callable[[], float]:
        return self._time_of_day

    def _time_of_day(self) -> float:
        """By the server's clock, or by this machine's until the server has been reached."""
        if self._primary is None and time.monotonic() >= self._away_until:
            try:
                return (self.primary.server_clock or time.time)()
            except StoreError as error:
                self._note_away(error)
        clock = None if self._primary is None else self._primary.server_clock
        return (clock or time.time)()

    def mac_rows(self, mac: RowMac, ended: EndedMacs | None = None) -> None:
        self._copy.mac_rows(mac, ended)
        with self._lock:
            self._mac = mac, ended or (None if self._mac is None else self._mac[1])
            if self._primary is not None:
                self._primary.mac_rows(mac, ended)

    def trim(self) -> bool:
        return self._copy.trim()

    def close(self) -> None:
        if self._writes != self._writes_copied:
            with suppress(StoreError, Conflict):
                self._follow()
        self._copy.close()
        if self._primary is not None:
            self._primary.close()

    # The copy.

    @property
    def primary(self) -> Store:
        with self._lock:
            if self._primary is None:
                self._primary = self._open_primary()
                if self._mac is not None:
                    self._primary.mac_rows(*self._mac)
                if self._row_checks is not None:
                    self._primary.check_rows(self._row_checks)
            return self._primary

    def copy(self) -> AbstractContextManager[Session]:
        """A view of the copy as it is."""
        return self._copy.read()

    def check(self) -> None:
        """Raises Conflict if the copy is that of another store."""
        with self._following:
            self._begin(self.primary)

    def refresh(self) -> bool:
        """Follows the server if the copy is old or this process has written. Whether the copy has what this process
        wrote. Raises Conflict if the copy is that of another store.
        """
        with self._following:
            return self._refresh()

    def _refresh(self) -> bool:
        writes = self._writes
        if writes == self._writes_copied and not self._is_old():
            return True
        if time.monotonic() < self._away_until:
            return writes == self._writes_copied
        try:
            if self._follow():
                self._writes_copied = writes
            self._error = None
        except StoreError as error:
            if self.state.ops == 0:
                raise
            self._note_away(error)
        return writes == self._writes_copied

    def _note_away(self, error: StoreError) -> None:
        self._error, self._away_until = str(error), time.monotonic() + AWAY_S

    @property
    def state(self) -> ReplicaState:
        with self._copy.read() as session:
            return ReplicaState(str(self._path), session.head().seq, int(session.meta(FOLLOWED) or 0), self._error)

    def _is_old(self) -> bool:
        return not 0 <= self._clock_ms() - self.state.followed_ms < FOLLOW_MS

    def _follow(self) -> bool:
        """Copies what is on the server's log by now. Whether nothing has come since."""
        primary = self.primary
        if self._copying is None:
            self._begin(primary)
            self._copying = StoreCopy(primary, self._log_of(self._copy), str(self._path))
        while True:
            now = self._clock_ms()
            done = self._copying.step()
            if done.ops >= done.of:
                break
        with primary.read() as source, self._copy.write() as session:
            # Another process may have copied more since.
            if session.head().seq <= source.head().seq:
                marks = {REPLICA: origin(source), FOLLOWED: str(now).encode()}
                copy_unlogged(source, session, self._log_of(self._copy).node, marks)
            return session.head().seq >= source.head().seq

    def _begin(self, primary: Store) -> None:
        """Makes an empty file a copy of the server's store. Raises Conflict if it is something else."""
        with primary.read() as source, self._copy.write() as session:
            found = session.meta(REPLICA)
            if session.head().seq and found != origin(source):
                what = "a store of its own" if not found else "the replica of another store"
                raise Conflict(f"{self._path} is {what}; name another file, or remove it, and it is made anew")
            if not found:
                copy_unlogged(source, session, self._log_of(self._copy).node, {REPLICA: origin(source)})
