"""The half of the SQLite store's statements that is about other nodes: who may do what, where kinds are routed,
schedules, artifacts, peers and invitations. `sqlite_session` is the other half.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import apsw

from hocket.kernel.subjects import Subject
from hocket.store import (
    Artifact,
    Coordinator,
    Delegated,
    Fork,
    Invitation,
    OverQuota,
    Peer,
    Revoked,
    Schedule,
    SubjectRow,
    WrittenTotals,
)

_ARTIFACT = "id, op_id, type, source_job, hash, size, expires, inline, made"
_SCHEDULE = "name, hlc, cron, timezone, kind, payload, policy, last_tick, op"
_INVITATION = "secret_hash, name, grants, expires, used_by, made"


class MeshStatements:
    _sql: Callable[..., apsw.Cursor]
    _one: Callable[..., Any]
    _many: Callable[..., apsw.Cursor]

    def bind(self, node: bytes, public: bytes, issuer: str, hlc: bytes) -> None:
        self._sql("INSERT OR IGNORE INTO nodes VALUES (?, ?, ?, ?)", (node, public, issuer, hlc))

    def nodes(self) -> dict[bytes, tuple[bytes, str]]:
        return {node: (public, issuer) for node, public, issuer in self._sql("SELECT node, public, issuer FROM nodes")}

    def set_delegation(self, delegated: Delegated) -> bool:
        """False when it was there already."""
        sql = "INSERT OR IGNORE INTO delegations (op, cid, hlc, token) VALUES (?, ?, ?, ?) RETURNING 1"
        return bool(self._sql(sql, delegated).fetchall())

    def drop_delegation(self, op_id: bytes) -> bool:
        return bool(self._sql("DELETE FROM delegations WHERE op = ? RETURNING 1", (op_id,)).fetchall())

    def delegations(self) -> list[Delegated]:
        return [Delegated(*row) for row in self._sql("SELECT op, cid, hlc, token FROM delegations ORDER BY hlc")]

    def set_revocation(self, revoked: Revoked) -> bool:
        """False when it was there already."""
        sql = "INSERT OR IGNORE INTO revocations (op, cid, hlc, root) VALUES (?, ?, ?, ?) RETURNING 1"
        return bool(self._sql(sql, revoked).fetchall())

    def drop_revocation(self, op_id: bytes) -> bool:
        return bool(self._sql("DELETE FROM revocations WHERE op = ? RETURNING 1", (op_id,)).fetchall())

    def revocations(self) -> list[Revoked]:
        return [Revoked(*row) for row in self._sql("SELECT op, cid, hlc, root FROM revocations ORDER BY hlc")]

    def set_coordinator(self, coordinator: Coordinator) -> None:
        self._sql("REPLACE INTO coordinators (hlc, op, node, pin) VALUES (?, ?, ?, ?)", coordinator)

    def drop_coordinator(self, op_id: bytes) -> None:
        self._sql("DELETE FROM coordinators WHERE op = ?", (op_id,))

    def coordinators(self) -> list[Coordinator]:
        return [Coordinator(*row) for row in self._sql("SELECT hlc, op, node, pin FROM coordinators ORDER BY hlc")]

    def set_fork(self, fork: Fork) -> bool:
        """False when it was there already."""
        return bool(self._sql("INSERT OR IGNORE INTO forks VALUES (?, ?, ?) RETURNING 1", fork).fetchall())

    def drop_fork(self, op_id: bytes) -> bool:
        return bool(self._sql("DELETE FROM forks WHERE op = ? RETURNING 1", (op_id,)).fetchall())

    def forks(self) -> list[Fork]:
        return [Fork(*row) for row in self._sql("SELECT op, node, since FROM forks ORDER BY since, op")]

    def set_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        self._sql("REPLACE INTO routes VALUES (?, ?, ?)", (kind, hlc, node))

    def drop_route(self, kind: str, hlc: bytes) -> None:
        self._sql("DELETE FROM routes WHERE kind = ? AND hlc = ?", (kind, hlc))

    def has_routes(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM routes)"))

    def route(self, kind: str, hlc: bytes) -> bytes | None:
        return self._one("SELECT node FROM routes WHERE kind = ? AND hlc <= ? ORDER BY hlc DESC LIMIT 1", kind, hlc)  # type: ignore[no-any-return]

    def routes(self) -> list[tuple[str, bytes, bytes | None]]:
        """What holds now: each kind that was ever routed, since when, and to which node."""
        return list(self._sql("SELECT kind, max(hlc), node FROM routes GROUP BY kind ORDER BY kind"))

    def set_schedule(self, schedule: Schedule, counts: bool) -> None:
        self._sql(
            """INSERT INTO schedules VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
               ON CONFLICT (op) DO UPDATE SET counts = excluded.counts""",
            (*schedule, counts),
        )

    def strike_schedule(self, op_id: bytes) -> None:
        self._sql("UPDATE schedules SET counts = 0 WHERE op = ?", (op_id,))

    def schedules(self) -> list[Schedule]:
        """Those in force."""
        return self._schedules(
            """WHERE (name, hlc) IN (SELECT name, max(hlc) FROM schedules WHERE counts = 1 GROUP BY name)
               AND counts = 1 AND cron IS NOT NULL ORDER BY name"""
        )

    def schedule_before(self, name: str, hlc: bytes) -> Schedule | None:
        """What was last said of the name before that time, and counts."""
        tail = "WHERE name = ? AND hlc < ? AND counts = 1 ORDER BY hlc DESC LIMIT 1"
        return next(iter(self._schedules(tail, name, hlc)), None)

    def schedule_after(self, name: str, hlc: bytes) -> bytes | None:
        """When the next thing that counts was said of the name after that time."""
        found: bytes | None = self._one(
            "SELECT min(hlc) FROM schedules WHERE name = ? AND hlc > ? AND counts = 1", name, hlc
        )
        return found

    def schedule_ops_after(self, name: str, hlc: bytes) -> list[bytes]:
        """The later ops about the name, whether they count or not, in HLC order."""
        return [
            row[0] for row in self._sql("SELECT op FROM schedules WHERE name = ? AND hlc > ? ORDER BY hlc", (name, hlc))
        ]

    def schedule_ops_by(self, node: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT op FROM schedules WHERE substr(hlc, 13) = ?", (node,))]

    def ticked(self, op_id: bytes, tick: int) -> None:
        """A tick of the schedule that this op set has a job."""
        self._sql("UPDATE schedules SET last_tick = max(last_tick, ?) WHERE op = ?", (tick, op_id))

    def set_last_tick(self, op_id: bytes, tick: int) -> None:
        """The newest tick of the schedule that has a job; without one, when the schedule was set."""
        self._sql("UPDATE schedules SET last_tick = ? WHERE op = ?", (tick, op_id))

    def _schedules(self, tail: str, *values: object) -> list[Schedule]:
        return [Schedule(*row) for row in self._sql(f"SELECT {_SCHEDULE} FROM schedules {tail}", values)]

    def add_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        self._many(f"INSERT OR IGNORE INTO artifacts ({_ARTIFACT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", artifacts)

    def drop_artifact(self, artifact_id: bytes) -> None:
        self._sql("DELETE FROM artifacts WHERE id = ?", (artifact_id,))

    def artifact(self, artifact_id: bytes) -> Artifact | None:
        return next(iter(self._artifacts("WHERE id = ?", artifact_id)), None)

    def artifacts_of_job(self, job_id: bytes) -> list[Artifact]:
        """What a job's runs made, in that order, and its result, which is listed with the job."""
        listed: bytes = self._one("SELECT artifacts FROM jobs WHERE id = ?", job_id) or b""
        found = self._artifacts("WHERE source_job = ? AND type <> 'hocket.result'", job_id)
        found += self._artifacts_of([listed[i : i + 16] for i in range(0, len(listed), 16)])
        of_job = {each.id: each for each in found if each.source_job == job_id}
        return sorted(of_job.values(), key=lambda each: each.made)

    def artifacts_of_hash(self, content_hash: bytes) -> list[Artifact]:
        """The artifacts whose content is that blob."""
        return self._artifacts("WHERE hash = ? AND inline = 0 ORDER BY id", content_hash)

    def artifacts(self, after: bytes, limit: int) -> list[Artifact]:
        return self._artifacts("WHERE id > ? ORDER BY id LIMIT ?", after, limit)

    def expired_artifacts(self, now: int, limit: int, kept: str) -> list[Artifact]:
        """Those whose time to live is over and that nobody has evicted yet, without those of the kept type that an op
        cites.
        """
        return self._artifacts(
            """WHERE expires <= ? AND NOT EXISTS (SELECT 1 FROM evictions WHERE artifact = artifacts.id)
               AND NOT (type = ? AND EXISTS (
                   SELECT 1 FROM cites WHERE dep IN (artifacts.id, substr(artifacts.op_id, 1, 16))))
               LIMIT ?""",
            *(now, kept, limit),
        )

    def _artifacts_of(self, ids: list[bytes]) -> list[Artifact]:
        return [found for each in ids if (found := self.artifact(each)) is not None]

    def _artifacts(self, tail: str, *values: Any) -> list[Artifact]:
        return [Artifact(*row) for row in self._sql(f"SELECT {_ARTIFACT} FROM artifacts {tail}", values)]

    def add_eviction(self, op_id: bytes, artifact_id: bytes) -> None:
        self._sql("INSERT OR IGNORE INTO evictions VALUES (?, ?)", (op_id, artifact_id))

    def drop_eviction(self, op_id: bytes) -> None:
        self._sql("DELETE FROM evictions WHERE op = ?", (op_id,))

    def is_evicted(self, artifact_id: bytes) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM evictions WHERE artifact = ?)", artifact_id))

    # How much each author has written.

    def add_written(self, node: bytes, written: WrittenTotals) -> None:
        self._sql(
            """INSERT INTO written VALUES (?, ?, ?)
               ON CONFLICT (node) DO UPDATE SET ops = ops + excluded.ops, bytes = bytes + excluded.bytes""",
            (node, *written),
        )

    def written(self, nodes: Iterable[bytes]) -> dict[bytes, WrittenTotals]:
        rows = self._many("SELECT node, ops, bytes FROM written WHERE node = ?", [(node,) for node in nodes])
        return {node: WrittenTotals(ops, size) for node, ops, size in rows}

    def idle_ops(self, subject: Subject, node: bytes, acceptances: Sequence[int]) -> int:
        """How many ops about a subject do not count, of this author, beyond the offers that were accepted: as many as
        there are ops of the variants `acceptances` that count.
        """
        return int(
            self._one(
                """SELECT total(CASE WHEN substr(hlc, 13) = ? THEN reason != 0 ELSE 0 END)
                          - total(variant IN (SELECT value FROM json_each(?)) AND reason = 0)
                   FROM ops WHERE key = ? AND settled = 1 AND family = ?""",
                *(node, str(list(acceptances)), subject.key, subject.family),
            )
        )

    def put_over_quota(self, noted: OverQuota) -> None:
        self._sql("REPLACE INTO over_quota VALUES (?, ?, ?)", noted)

    def over_quota(self) -> dict[bytes, OverQuota]:
        return {row[0]: OverQuota(*row) for row in self._sql("SELECT node, wall, ops FROM over_quota")}

    # Other nodes, as this one deals with them.

    def put_peer(self, peer: Peer) -> None:
        self._sql(
            "REPLACE INTO peers (address, node, pulled, state, detail, seen, added) VALUES (?, ?, ?, ?, ?, ?, ?)", peer
        )

    def drop_peer(self, address: str) -> bool:
        return bool(self._sql("DELETE FROM peers WHERE address = ? RETURNING 1", (address,)).fetchall())

    def peers(self) -> list[Peer]:
        rows = self._sql("SELECT address, node, pulled, state, detail, seen, added FROM peers ORDER BY added, address")
        return [Peer(*row) for row in rows]

    def programs(self) -> dict[bytes, str]:
        """What the program of each other node knows, as far as it has said so."""
        return dict(self._sql("SELECT node, knows FROM programs"))

    def set_program(self, node: bytes, knows: str) -> None:
        self._sql("REPLACE INTO programs VALUES (?, ?)", (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._sql(f"REPLACE INTO invitations ({_INVITATION}) VALUES (?, ?, ?, ?, ?, ?)", invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        sql = f"SELECT {_INVITATION} FROM invitations WHERE secret_hash = ?"
        row = self._sql(sql, (secret_hash,)).fetchone()
        return None if row is None else Invitation(*row)

    def invitations(self) -> list[Invitation]:
        return [Invitation(*row) for row in self._sql(f"SELECT {_INVITATION} FROM invitations ORDER BY made")]

    # The states of families without tables of their own.

    def subject_state(self, subject: Subject) -> bytes | None:
        state: bytes | None = self._one("SELECT state FROM subjects WHERE family = ? AND key = ?", *subject)
        return state

    def put_subject(self, row: SubjectRow) -> None:
        self._sql("REPLACE INTO subjects VALUES (?, ?, ?, ?)", (*row.subject, row.last, row.state))

    def drop_subject(self, subject: Subject) -> None:
        self._sql("DELETE FROM subjects WHERE family = ? AND key = ?", subject)

    def subjects_since(self, family: str, hlc: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT key FROM subjects WHERE family = ? AND last > ?", (family, hlc))]

    def each_subject(self) -> list[SubjectRow]:
        rows = self._sql("SELECT family, key, last, state FROM subjects ORDER BY family, key")
        return [SubjectRow(Subject(family, key), last, state) for family, key, last, state in rows]
