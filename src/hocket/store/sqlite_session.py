"""The SQL statements of the SQLite store, one method each; those about other nodes are in `sqlite_mesh`. Node ids are
eight big-endian bytes here, because SQLite's integers are signed; HLCs are packed, so that bytes compare as clocks do.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any

import apsw

from hocket.errors import StoreError
from hocket.kernel.clock import pack, unpack
from hocket.kernel.policy import DEFAULT, decode_policy, encode_policy
from hocket.kernel.roster import Job, Outcome, State
from hocket.kernel.subjects import Subject
from hocket.store import Head, JobEntry, LateOp, OpRow, Place, Refusal, Stage, WorkerRow
from hocket.store.sqlite_mesh import MeshStatements

REFUSALS_KEPT = 10_000
CLAIMED_REMEMBERED = 4_096

_HEAD = "wall, logical, seq, chain, settled, unsettled, rebuilding, law, last"
_OP = "seq, id, hlc, variant, family, key, reason, settled, body, chain"
_JOB = (
    "id, kind, stage, priority, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,"
    " claim_op, deadline, ready_at, done, artifacts, error_op, progress, unique_key, worker,"
    " settled"
)
_JOB_OF_J = ", ".join("j." + column.strip() for column in _JOB.split(","))
_WORKER = "name, pid, started, node, beat, host, boot, namespace, locks"
_PUT_HEAD = (
    "UPDATE head SET wall = ?, logical = ?, seq = ?, chain = ?, settled = ?, unsettled = ?, rebuilding = ?, law = ?,"
    " last = ? WHERE one = 1"
)
_ADD_OP = f"INSERT INTO ops ({_OP}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_JOB = f"REPLACE INTO jobs ({_JOB}) VALUES ({', '.join('?' * 23)})"
_PROJECTIONS = (
    *("jobs", "subjects", "after", "cites", "nodes", "routes", "schedules", "artifacts"),
    *("evictions", "delegations", "revocations", "coordinators", "forks", "written"),
)

# What comes of a statement that is good when the schema or the text in the file is not.
_UNREADABLE = (apsw.SQLError, UnicodeDecodeError)

_STAGES = tuple(Stage)
_OUTCOMES = tuple(Outcome)
_STATES = (State.PENDING, State.PENDING, State.PENDING, State.CLAIMED, State.COMPLETED)


class SqliteSession(MeshStatements):
    """`remember_head` is for the session of a write transaction, which excludes every other writer."""

    def __init__(self, connection: apsw.Connection, remember_head: bool = False) -> None:
        self._remember_head = remember_head
        self._connection = connection
        self._sql = connection.execute
        self._many = connection.executemany
        self._data_version = connection.data_version
        self._head: Head | None = None
        self._head_version = -1
        self._head_seen = False
        # Jobs that this connection has written as claimed, for as long as no other connection writes: whoever claims
        # them comes back to end them.
        self._claimed: dict[bytes, JobEntry] = {}

    def _one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row, or None."""
        row = self._sql(sql, values).fetchone()
        return None if row is None else row[0]

    def _rows(self, sql: str, *values: Any) -> Iterable[Any]:
        return self._sql(sql, values)

    def _among(self, sql: str, values: Sequence[bytes]) -> set[bytes]:
        """The one column that a statement gives for any of the values."""
        return {row[0] for row in self._among_rows(sql, values)}

    def _among_rows(self, sql: str, values: Sequence[bytes]) -> Iterator[Any]:
        for start in range(0, len(values), 1_000):
            part = values[start : start + 1_000]
            yield from self._rows(f"{sql}({', '.join('?' * len(part))})", *part)

    # The log.

    def head(self) -> Head:
        """The head, read again only when another connection has written since this one last read or wrote it."""
        version = self._data_version("main")
        self._head_seen = True
        if self._remember_head and self._head is not None and version == self._head_version:
            return self._head
        try:
            row = self._sql(f"SELECT {_HEAD} FROM head").fetchone()
        except _UNREADABLE as error:
            raise _damaged(str(error)) from error
        if row is None or type(row[2]) is not int or type(row[3]) is not bytes:
            raise _damaged("it has lost the end of its log")
        self._head, self._head_version = Head(*row), version
        self._claimed.clear()
        return self._head

    def put_head(self, head: Head) -> None:
        self._sql(_PUT_HEAD, head)
        self._head, self._head_seen = head, True

    def committed(self) -> None:
        """The head that was read or written is the one in force, until somebody else's commit changes the version. A
        transaction that did not look at it cannot tell.
        """
        if self._head_seen:
            self._head_version = self._data_version("main")
        else:
            self._head = None
        self._head_seen = False

    def undone(self) -> None:
        self._head, self._head_seen = None, False

    def add_ops(self, rows: Sequence[OpRow]) -> None:
        if len(rows) == 1:
            self._sql(_ADD_OP, rows[0])
        else:
            self._many(_ADD_OP, rows)

    def unsettled_ops(self, after: int, limit: int) -> list[OpRow]:
        return self._ops("WHERE seq > ? AND settled = 0 ORDER BY seq LIMIT ?", after, limit)

    def mark_settled(self, first: int, last: int) -> None:
        self._sql("UPDATE ops SET settled = 1 WHERE seq BETWEEN ? AND ? AND settled = 0", (first, last))

    def order_ops(self) -> None:
        """Makes the index by author and HLC, if there is none. A node that only ever writes its own ops, which
        it does in HLC order, needs none and is spared the cost; it is made for good when ops from elsewhere
        come, or for a rebuild.
        """
        self._sql("CREATE INDEX IF NOT EXISTS ops_by_author ON ops (substr(hlc, 13), hlc)")

    def op(self, op_id: bytes) -> OpRow | None:
        return self._op("id = ? AND settled = 1", op_id)

    def known_ops(self, op_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """The ops on the log that have these keys, each with its bytes."""
        return dict(self._among_rows("SELECT id, body FROM ops WHERE settled = 1 AND id IN ", op_ids))

    def ops_named(self, op_id: bytes) -> list[OpRow]:
        """The ops with this id: the key of each is the id alone, or with its author behind it."""
        return self._ops("WHERE id BETWEEN ? AND ? AND settled = 1", op_id, op_id + b"\xff" * 8)

    def latest_of(self, node: bytes) -> tuple[bytes, bytes]:
        """The HLC and the id of the author's latest op, or zeros when there is none."""
        sql = "SELECT hlc, id FROM ops WHERE substr(hlc, 13) = ? ORDER BY hlc DESC LIMIT 1"
        return self._sql(sql, (node,)).fetchone() or (bytes(20), bytes(16))

    def ops_with_link(self, node: bytes, link: bytes) -> list[OpRow]:
        """The author's ops that contain these bytes before their payload. This reads every op of the author."""
        return self._ops("WHERE substr(hlc, 13) = ? AND instr(body, ?) > 0 ORDER BY hlc", node, link)

    def op_seq(self, seq: int) -> OpRow | None:
        return self._op("seq = ?", seq)

    def _op(self, where: str, value: bytes | int) -> OpRow | None:
        row = self._sql(f"SELECT {_OP} FROM ops WHERE {where}", (value,)).fetchone()
        return None if row is None else _op_row(row)

    def ops_after(self, seq: int, limit: int) -> list[OpRow]:
        rows = self._ops("WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit)
        # Whoever walks through the log goes on from the last one; a file whose order is lost must not turn that
        # into a circle.
        if any(later.seq <= earlier for later, earlier in zip(rows, (seq, *(row.seq for row in rows)), strict=False)):
            raise _damaged("its ops are out of order")
        return rows

    def last_ops(self, count: int) -> list[OpRow]:
        return self._ops("ORDER BY seq DESC LIMIT ?", count)[::-1]

    def ops_at(self, hlc: bytes) -> list[OpRow]:
        return self._ops("WHERE substr(hlc, 13) = ? AND hlc = ?", hlc[12:], hlc)

    def ops_about(self, subject: Subject, without: Sequence[int] = ()) -> list[OpRow]:
        """In HLC order, but for those that were refused for one of these reasons."""
        refused = f"AND reason NOT IN ({', '.join(str(int(reason)) for reason in without)})" if without else ""
        where = f"WHERE key = ? AND settled = 1 AND family = ? {refused} ORDER BY hlc"
        return self._ops(where, subject.key, subject.family)

    def ops_in_order(self, after: bytes, limit: int) -> list[OpRow]:
        """The next ops of all authors in HLC order."""
        return self._merged({node: after for node in self._authors()}, limit)

    def ops_since(self, frontier: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        """The first ops in HLC order that whoever knows each author up to the frontier does not know."""
        return self._merged({node: frontier.get(node, bytes(20)) for node in self._authors()}, limit)

    def _merged(self, after: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        """Merges the authors' own sequences, which are indexed."""
        sql = f"SELECT {_OP} FROM ops WHERE substr(hlc, 13) = ? AND hlc > ? ORDER BY hlc LIMIT ?"
        authors = [self._connection.cursor().execute(sql, (node, hlc, limit)) for node, hlc in after.items()]
        return [_op_row(row) for row in islice(merge(*authors, key=itemgetter(2)), limit)]

    def ops_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._ops("WHERE substr(hlc, 13) = ? AND hlc > ? ORDER BY hlc LIMIT ?", node, after, limit)

    def written_by(self, node: bytes) -> list[tuple[bytes, Subject | None]]:
        """The ids of an author's ops and what they are about."""
        rows = self._rows("SELECT id, family, key FROM ops WHERE substr(hlc, 13) = ? ORDER BY hlc", node)
        return [(op_id, None if key is None else Subject(family, key)) for op_id, family, key in rows]

    def ops_of_variants(self, variants: Sequence[int]) -> list[OpRow]:
        return self._ops(f"WHERE variant IN ({', '.join('?' * len(variants))}) ORDER BY hlc", *variants)

    def has_variants(self, variants: Sequence[int]) -> bool:
        marks = ", ".join("?" * len(variants))
        return bool(self._one(f"SELECT EXISTS (SELECT 1 FROM ops WHERE variant IN ({marks}))", *variants))

    def _ops(self, tail: str, *values: Any) -> list[OpRow]:
        try:
            return [_op_row(row) for row in self._sql(f"SELECT {_OP} FROM ops {tail}", values)]
        except _UNREADABLE as error:
            raise _damaged(str(error)) from error

    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None:
        self._many("UPDATE ops SET reason = ? WHERE id = ? AND settled = 1", reasons)

    def _authors(self) -> list[bytes]:
        return [
            row[0]
            for row in self._sql(
                """WITH RECURSIVE authors(node) AS (
                       SELECT min(substr(hlc, 13)) FROM ops
                       UNION ALL SELECT (SELECT min(substr(hlc, 13)) FROM ops WHERE substr(hlc, 13) > node)
                       FROM authors WHERE node IS NOT NULL)
                   SELECT node FROM authors WHERE node IS NOT NULL"""
            )
        ]

    def frontier(self) -> dict[bytes, bytes]:
        return {node: self._one("SELECT max(hlc) FROM ops WHERE substr(hlc, 13) = ?", node) for node in self._authors()}

    def refused_ops(self, limit: int) -> list[OpRow]:
        return self._ops("WHERE reason != 0 ORDER BY seq DESC LIMIT ?", limit)

    def ops_refused_for(self, reasons: Sequence[int]) -> list[OpRow]:
        marks = ", ".join("?" * len(reasons))
        return self._ops(f"WHERE reason != 0 AND reason IN ({marks}) ORDER BY seq", *reasons)

    def cite(self, dep: bytes, op_id: bytes) -> None:
        self._sql("INSERT OR IGNORE INTO cites VALUES (?, ?)", (dep, op_id))

    def citing(self, dep: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT op FROM cites WHERE dep = ?", (dep,))]

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        """Which of these something cites."""
        return self._among("SELECT dep FROM cites WHERE dep IN ", deps)

    def refuse(self, refusals: Sequence[Refusal]) -> None:
        self._many("INSERT INTO refusals (op_id, author, reason, wall) VALUES (?, ?, ?, ?)", refusals)
        self._sql("DELETE FROM refusals WHERE number <= (SELECT max(number) FROM refusals) - ?", (REFUSALS_KEPT,))

    def refusals(self, limit: int) -> list[Refusal]:
        rows = self._sql("SELECT op_id, author, reason, wall FROM refusals ORDER BY number DESC LIMIT ?", (limit,))
        return [Refusal(*row) for row in rows]

    def refusal_counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for table in ("refusals", "ops"):
            for reason, count in self._sql(f"SELECT reason, count(*) FROM {table} WHERE reason != 0 GROUP BY reason"):
                counts[reason] = counts.get(reason, 0) + count
        return counts

    def hold(self, op_id: bytes, wall: int, body: bytes, author: bytes = b"") -> None:
        self._sql(
            "INSERT OR IGNORE INTO held (id, wall, body, author) VALUES (?, ?, ?, ?)", (op_id, wall, body, author)
        )

    def held_of(self, author: bytes) -> int:
        return int(self._one("SELECT count(*) FROM held WHERE author = ?", author))

    def due(self, wall: int, limit: int) -> list[bytes]:
        """The held ops whose time has come, the earliest first."""
        return [
            row[0] for row in self._rows("SELECT body FROM held WHERE wall <= ? ORDER BY wall LIMIT ?", wall, limit)
        ]

    def drop_held(self, op_ids: Sequence[bytes]) -> None:
        self._many("DELETE FROM held WHERE id = ?", [(op_id,) for op_id in op_ids])

    def held(self) -> tuple[int, int | None]:
        """How many ops are held, and the wall of the earliest."""
        return self._one("SELECT count(*) FROM held"), self._one("SELECT min(wall) FROM held")

    def hold_late(self, late: LateOp) -> None:
        self._sql("INSERT OR IGNORE INTO late VALUES (?, ?, ?, ?, ?)", late)

    def late_count(self, node: bytes) -> int:
        return int(self._one("SELECT count(*) FROM late WHERE author = ?", node))

    def late_ops(self, node: bytes | None = None) -> list[LateOp]:
        """Those of one author, or of all, in HLC order."""
        rows = self._rows(
            "SELECT id, author, hlc, received, body FROM late WHERE ? IN (author, x'') ORDER BY hlc", node or b""
        )
        return [LateOp(*row) for row in rows]

    def drop_late(self, op_ids: Sequence[bytes]) -> None:
        self._many("DELETE FROM late WHERE id = ?", [(op_id,) for op_id in op_ids])

    def held_among(self, op_ids: Sequence[bytes]) -> set[bytes]:
        """Which of these are held."""
        return self._among("SELECT id FROM held WHERE id IN ", op_ids)

    # The roster.

    def job(self, job_id: bytes) -> JobEntry | None:
        if self._head_seen and job_id in self._claimed:
            return self._claimed[job_id]
        row = self._sql(f"SELECT {_JOB} FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else _entry(row)

    def jobs_by_id(self, job_ids: Sequence[bytes]) -> list[JobEntry]:
        claimed = self._claimed if self._head_seen else {}
        known = [claimed[job_id] for job_id in job_ids if job_id in claimed]
        sought = [(job_id,) for job_id in job_ids if job_id not in claimed]
        return known + [_entry(row) for row in self._many(f"SELECT {_JOB} FROM jobs WHERE id = ?", sought)]

    def jobs_written_of(self, job_ids: Sequence[bytes]) -> set[bytes]:
        """Which of these jobs any op on the log is about."""
        return self._among(
            "SELECT key FROM ops WHERE settled = 1 AND family = 'job' AND key IS NOT NULL AND key IN ",
            job_ids,
        )

    def put_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._many(_PUT_JOB, [_row(entry) for entry in entries])
        for entry in entries if self._remember_head else ():
            if entry.stage is Stage.CLAIMED and len(self._claimed) < CLAIMED_REMEMBERED:
                self._claimed[entry.job.id] = entry
            else:
                self._claimed.pop(entry.job.id, None)

    def drop_job(self, job_id: bytes) -> None:
        self._claimed.pop(job_id, None)
        self._sql("DELETE FROM jobs WHERE id = ?", (job_id,))
        self._sql("DELETE FROM after WHERE job = ?", (job_id,))

    def job_ids(self, low: bytes, high: bytes, limit: int) -> list[bytes]:
        rows = self._sql("SELECT id FROM jobs WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?", (low, high, limit))
        return [row[0] for row in rows]

    def jobs(self, stages: Sequence[Stage], kind: str | None, limit: int, newest_first: bool) -> list[JobEntry]:
        where = (
            "stage = " + str(int(stages[0]))
            if len(stages) == 1
            else f"stage IN ({', '.join(str(int(s)) for s in stages)})"
        )
        values: list[Any] = []
        if kind is not None:
            where += " AND (kind = ? OR (kind > ? AND kind < ?))"
            values += [kind, kind + ".", kind + "/"]
        order = "DESC" if newest_first else "ASC"
        rows = self._sql(f"SELECT {_JOB} FROM jobs WHERE {where} ORDER BY id {order} LIMIT ?", (*values, limit))
        return [_entry(row) for row in rows]

    def each_job(self) -> Iterator[JobEntry]:
        for row in self._sql(f"SELECT {_JOB} FROM jobs ORDER BY id"):
            yield _entry(row)

    def jobs_of_kind_since(self, kind: str, hlc: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT id FROM jobs WHERE kind = ? AND last > ?", (kind, hlc))]

    def jobs_since(self, hlc: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT id FROM jobs WHERE last > ?", (hlc,))]

    def jobs_by_unique_key(self, key: str) -> list[JobEntry]:
        return [_entry(row) for row in self._sql(f"SELECT {_JOB} FROM jobs WHERE unique_key = ?", (key,))]

    def counts(self) -> dict[tuple[Stage, int | None], int]:
        rows = self._sql("SELECT stage, outcome, count(*) FROM jobs GROUP BY stage, outcome")
        return {(Stage(stage), outcome): count for stage, outcome, count in rows}

    def set_after(self, job_id: bytes, dependencies: Sequence[bytes]) -> None:
        self._many("INSERT OR IGNORE INTO after VALUES (?, ?)", [(dependency, job_id) for dependency in dependencies])

    def has_after(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM after)"))

    def dependents(self, job_id: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT job FROM after WHERE dependency = ?", (job_id,))]

    # The queue.

    def promote(self, now: int) -> int:
        """Delayed jobs whose time has come become ready."""
        return len(
            self._sql("UPDATE jobs SET stage = 0 WHERE stage = 1 AND ready_at <= ? RETURNING 1", (now,)).fetchall()
        )

    def ready_kinds(self) -> list[str]:
        """Each kind once, by hopping through the index from kind to kind."""
        return [
            row[0]
            for row in self._sql(
                """WITH RECURSIVE kinds(kind) AS (
                       SELECT min(kind) FROM jobs WHERE stage = 0
                       UNION ALL SELECT (SELECT min(kind) FROM jobs WHERE stage = 0 AND kind > kinds.kind)
                       FROM kinds WHERE kinds.kind IS NOT NULL)
                   SELECT kind FROM kinds WHERE kind IS NOT NULL"""
            )
        ]

    def ready(self, kind: str, limit: int, after: JobEntry | None = None) -> list[tuple[JobEntry, bytes | None]]:
        """The most urgent jobs of a kind, each with its ScheduleJob op (None when that is not stored yet)."""
        beyond = ""
        place: tuple[object, ...] = ()
        if after is not None:
            beyond = "AND j.priority <= ? AND (j.priority < ? OR j.scheduled > ?)"
            place = (after.job.policy.priority, after.job.policy.priority, pack(after.job.scheduled))
        rows = self._sql(
            f"""SELECT {_JOB_OF_J}, ops.body FROM jobs AS j LEFT JOIN ops ON ops.id = j.schedule_op AND ops.settled = 1
                WHERE j.stage = 0 AND j.kind = ? {beyond} ORDER BY j.priority DESC, j.scheduled LIMIT ?""",
            (kind, *place, limit),
        )
        return [(_entry(row[:-1]), row[-1]) for row in rows]

    def claimed_count(self, kind: str) -> int:
        return int(self._one("SELECT count(*) FROM jobs WHERE stage = 3 AND kind = ?", kind))

    def claimed(self) -> list[JobEntry]:
        return [_entry(row) for row in self._sql(f"SELECT {_JOB} FROM jobs WHERE stage = 3")]

    def overdue(self, now: int, limit: int) -> list[JobEntry]:
        rows = self._sql(f"SELECT {_JOB} FROM jobs WHERE stage = 3 AND deadline < ? LIMIT ?", (now, limit))
        return [_entry(row) for row in rows]

    def next_ready_at(self) -> int | None:
        return self._one("SELECT min(ready_at) FROM jobs WHERE stage = 1")  # type: ignore[no-any-return]

    def next_deadline(self) -> int | None:
        return self._one("SELECT min(deadline) FROM jobs WHERE stage = 3")  # type: ignore[no-any-return]

    def busy_kinds(self) -> set[str]:
        """The kinds of which something can start, is running, or rests before it is tried again."""
        claimed = self._sql("SELECT DISTINCT kind FROM jobs WHERE stage = 3")
        resting = "SELECT DISTINCT kind FROM jobs WHERE stage = 1 AND (failures > 0 OR returns > 0)"
        return {*self.ready_kinds(), *(row[0] for row in claimed), *(row[0] for row in self._sql(resting))}

    def busy(self, kind: str, limit: int) -> list[JobEntry]:
        """Jobs of a kind that can start, or rest before they are tried again."""
        resting = "stage = 1 AND (failures > 0 OR returns > 0)"
        rows = self._sql(f"SELECT {_JOB} FROM jobs WHERE kind = ? AND (stage = 0 OR {resting}) LIMIT ?", (kind, limit))
        return [_entry(row) for row in rows]

    def rate(self, kind: str) -> int:
        return self._one("SELECT due FROM rates WHERE kind = ?", kind) or 0

    def set_rate(self, kind: str, due: int) -> None:
        self._sql("REPLACE INTO rates VALUES (?, ?)", (kind, due))

    # This node's processes.

    def put_worker(self, worker: WorkerRow) -> int:
        """Adds a worker, or renews the beat of the one of that name, which rises each time; gives its number."""
        added = f"INSERT INTO workers ({_WORKER}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        renewed = "ON CONFLICT (name) DO UPDATE SET beat = max(excluded.beat, beat + 1) RETURNING number"
        return int(self._one(f"{added} {renewed}", *worker[1:6], *worker.place))

    def has_worker(self, number: int) -> bool:
        return self._one("SELECT 1 FROM workers WHERE number = ?", number) is not None

    def workers(self, node: bytes | None = None) -> list[WorkerRow]:
        """The workers of a node, or of all nodes that share the store."""
        whose = "WHERE ?1 IS NULL OR node IN (?1, x'')"
        rows = self._sql(f"SELECT number, {_WORKER} FROM workers {whose} ORDER BY number", (node,))
        return [WorkerRow._make((*row[:6], Place(*row[6:]))) for row in rows]

    def drop_worker(self, number: int) -> None:
        self._sql("DELETE FROM workers WHERE number = ?", (number,))

    def put_offer(self, op_id: bytes, job_id: bytes, worker: int) -> None:
        self._sql("REPLACE INTO offers VALUES (?, ?, ?)", (op_id, job_id, worker))

    def offered_jobs(self) -> set[bytes]:
        return {row[0] for row in self._rows("SELECT job FROM offers")}

    def offered_by(self, op_id: bytes) -> int | None:
        return self._one("SELECT worker FROM offers WHERE op = ?", op_id)  # type: ignore[no-any-return]

    def drop_offer(self, op_id: bytes) -> None:
        self._sql("DELETE FROM offers WHERE op = ?", (op_id,))

    def drop_offers_of(self, worker: int) -> None:
        self._sql("DELETE FROM offers WHERE worker = ?", (worker,))

    # Maintenance.

    def drop_projections(self) -> None:
        self._claimed.clear()
        for table in _PROJECTIONS:
            self._sql(f"DELETE FROM {table}")

    def damage(self) -> list[str]:
        """What SQLite itself finds wrong with the file; nothing, ordinarily."""
        try:
            return [row[0] for row in self._sql("PRAGMA integrity_check(20)") if row[0] != "ok"]
        except _UNREADABLE as error:
            return [str(error)]

    def meta(self, key: str) -> bytes | None:
        return self._one("SELECT value FROM meta WHERE key = ?", key)  # type: ignore[no-any-return]

    def set_meta(self, key: str, value: bytes) -> None:
        self._sql("REPLACE INTO meta VALUES (?, ?)", (key, value))


def _damaged(how: str) -> StoreError:
    return StoreError(f"the database is damaged ({how}); restore a backup")


def _op_row(row: tuple[Any, ...]) -> OpRow:
    """An op's row. A damaged file can hold anything where bytes were stored; an empty string is given then, which
    whoever checks the op finds to be wrong.
    """
    op = OpRow(*row)
    if type(op.id) is type(op.hlc) is type(op.body) is type(op.chain) is bytes:
        return op
    return op._replace(id=_bytes(op.id), hlc=_bytes(op.hlc), body=_bytes(op.body), chain=_bytes(op.chain))


def _bytes(value: Any) -> bytes:
    return value if type(value) is bytes else b""


def _row(entry: JobEntry) -> tuple[Any, ...]:
    job = entry.job
    policy = job.policy
    return (
        job.id,
        job.kind,
        int(entry.stage),
        policy.priority,
        job.schedule_op,
        pack(job.scheduled),
        encode_policy(policy),
        pack(job.last),
        job.outcome,
        job.fence,
        job.failures,
        job.returns,
        None if job.claimer is None else job.claimer.to_bytes(8, "big"),
        job.claim_op,
        job.deadline,
        job.ready_at,
        None if job.done is None else pack(job.done),
        b"".join(job.artifacts),
        job.error_op,
        job.progress,
        policy.unique,
        entry.worker,
        int(job.is_settled),
    )


def _entry(row: tuple[Any, ...]) -> JobEntry:
    (job_id, kind, stage, _, schedule_op, scheduled, policy, last, outcome, fence, failures, returns, claimer,
     claim_op, deadline, ready_at, done, artifacts, error_op, progress, _, worker, settled) = row  # fmt: skip
    job = Job(
        job_id,
        kind,
        schedule_op,
        unpack(scheduled),
        decode_policy(policy) if policy else DEFAULT,
        unpack(last),
        _STATES[stage],
        None if outcome is None else _OUTCOMES[outcome],
        fence,
        failures,
        returns,
        None if claimer is None else int.from_bytes(claimer, "big"),
        claim_op,
        deadline,
        ready_at,
        None if done is None else unpack(done),
        tuple(artifacts[i : i + 16] for i in range(0, len(artifacts), 16)) if artifacts else (),
        error_op,
        progress,
        bool(settled),
    )
    return JobEntry(job, _STAGES[stage], worker)
