"""The statements about the agreements of the mesh: delegations, coordinators, routes, schedules."""

from hocket.store.registers import Coordinator, Delegated, Fork, Revoked, Schedule
from hocket.store.sqlite.statements import Statements

_SCHEDULE = "name, hlc, cron, timezone, kind, payload, policy, last_tick, op"


class RegisterStatements(Statements):
    def bind(self, node: bytes, public: bytes, issuer: str, hlc: bytes) -> None:
        self._sql("INSERT OR IGNORE INTO nodes VALUES (?, ?, ?, ?)", (node, public, issuer, hlc))

    def nodes(self) -> dict[bytes, tuple[bytes, str]]:
        keys = {node: (public, issuer) for node, public, issuer in self._sql("SELECT node, public, issuer FROM nodes")}
        return keys if self.row_check is None else self.row_check.nodes(keys)

    def set_delegation(self, delegated: Delegated) -> bool:
        sql = "INSERT OR IGNORE INTO delegations (op, cid, hlc, token) VALUES (?, ?, ?, ?) RETURNING 1"
        return bool(self._sql(sql, delegated).fetchall())

    def drop_delegation(self, op_id: bytes) -> bool:
        return bool(self._sql("DELETE FROM delegations WHERE op = ? RETURNING 1", (op_id,)).fetchall())

    def delegations(self) -> list[Delegated]:
        return [Delegated(*row) for row in self._sql("SELECT op, cid, hlc, token FROM delegations ORDER BY hlc")]

    def set_revocation(self, revoked: Revoked) -> bool:
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
        sql = "SELECT hlc, node FROM routes WHERE kind = ? AND hlc <= ? ORDER BY hlc DESC"
        rows = list(self._rows(f"{sql} LIMIT 1", kind, hlc))
        check = self.row_check
        if check is not None and rows and not check.route(kind, *rows[0]):
            rows = [row for row in self._rows(sql, kind, hlc) if check.route(kind, *row)]
        return rows[0][1] if rows else None

    def routes(self) -> list[tuple[str, bytes, bytes | None]]:
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
        return self._schedules(
            """WHERE (name, hlc) IN (SELECT name, max(hlc) FROM schedules WHERE counts = 1 GROUP BY name)
               AND counts = 1 AND cron IS NOT NULL ORDER BY name"""
        )

    def schedule_before(self, name: str, hlc: bytes) -> Schedule | None:
        tail = "WHERE name = ? AND hlc < ? AND counts = 1 ORDER BY hlc DESC LIMIT 1"
        return next(iter(self._schedules(tail, name, hlc)), None)

    def schedule_after(self, name: str, hlc: bytes) -> bytes | None:
        found: bytes | None = self._one(
            "SELECT min(hlc) FROM schedules WHERE name = ? AND hlc > ? AND counts = 1", name, hlc
        )
        return found

    def schedule_ops_after(self, name: str, hlc: bytes) -> list[bytes]:
        return [
            row[0] for row in self._sql("SELECT op FROM schedules WHERE name = ? AND hlc > ? ORDER BY hlc", (name, hlc))
        ]

    def schedule_ops_by(self, node: bytes) -> list[bytes]:
        return [row[0] for row in self._sql("SELECT op FROM schedules WHERE substr(hlc, 13) = ?", (node,))]

    def ticked(self, op_id: bytes, tick: int) -> None:
        self._sql("UPDATE schedules SET last_tick = max(last_tick, ?) WHERE op = ?", (tick, op_id))

    def set_last_tick(self, op_id: bytes, tick: int) -> None:
        self._sql("UPDATE schedules SET last_tick = ? WHERE op = ?", (tick, op_id))

    def _schedules(self, tail: str, *values: object) -> list[Schedule]:
        return [Schedule(*row) for row in self._sql(f"SELECT {_SCHEDULE} FROM schedules {tail}", values)]
