"""The statements about the agreements of the mesh: delegations, coordinators, routes, schedules."""

from hocket.store.postgres.statements import PostgresStatements, insert, insert_new, upsert
from hocket.store.registers import Coordinator, Delegated, Fork, Revoked, Schedule

_SCHEDULE = "name, hlc, cron, timezone, kind, payload, policy, last_tick, op"


class PostgresRegisters(PostgresStatements):
    def bind(self, node: bytes, public: bytes, issuer: str, hlc: bytes) -> None:
        self._put(insert_new("nodes", "node, public, issuer, hlc"), (node, public, issuer, hlc))

    def nodes(self) -> dict[bytes, tuple[bytes, str]]:
        rows = self._rows("SELECT node, public, issuer FROM nodes")
        keys = {node: (public, issuer) for node, public, issuer in rows}
        return keys if self.row_check is None else self.row_check.nodes(keys)

    def set_delegation(self, delegated: Delegated) -> bool:
        return self._sql(insert_new("delegations", "op, cid, hlc, token"), delegated).rowcount > 0

    def drop_delegation(self, op_id: bytes) -> bool:
        return self._drop("delegations", op_id)

    def delegations(self) -> list[Delegated]:
        return [Delegated(*row) for row in self._rows("SELECT op, cid, hlc, token FROM delegations ORDER BY hlc")]

    def set_revocation(self, revoked: Revoked) -> bool:
        return self._sql(insert_new("revocations", "op, cid, hlc, root"), revoked).rowcount > 0

    def drop_revocation(self, op_id: bytes) -> bool:
        return self._drop("revocations", op_id)

    def revocations(self) -> list[Revoked]:
        return [Revoked(*row) for row in self._rows("SELECT op, cid, hlc, root FROM revocations ORDER BY hlc")]

    def set_coordinator(self, coordinator: Coordinator) -> None:
        self._put(upsert("coordinators", "hlc, op, node, pin", "hlc"), coordinator)

    def drop_coordinator(self, op_id: bytes) -> None:
        self._drop("coordinators", op_id)

    def coordinators(self) -> list[Coordinator]:
        return [Coordinator(*row) for row in self._rows("SELECT hlc, op, node, pin FROM coordinators ORDER BY hlc")]

    def set_fork(self, fork: Fork) -> bool:
        return self._sql(insert_new("forks", "op, node, since"), fork).rowcount > 0

    def drop_fork(self, op_id: bytes) -> bool:
        return self._drop("forks", op_id)

    def forks(self) -> list[Fork]:
        return [Fork(*row) for row in self._rows("SELECT op, node, since FROM forks ORDER BY since, op")]

    def _drop(self, table: str, op_id: bytes) -> bool:
        return self._sql(f"DELETE FROM {table} WHERE op = %s", (op_id,)).rowcount > 0

    def set_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        if self._told is not None:
            self._told.has_routes = None
        self._put(upsert("routes", "kind, hlc, node", "kind, hlc"), (kind, hlc, node))

    def drop_route(self, kind: str, hlc: bytes) -> None:
        if self._told is not None:
            self._told.has_routes = None
        self._put("DELETE FROM routes WHERE kind = %s AND hlc = %s", (kind, hlc))

    def has_routes(self) -> bool:
        if self._told is not None and self._told.has_routes is not None:
            return self._told.has_routes
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM routes)"))

    def route(self, kind: str, hlc: bytes) -> bytes | None:
        sql = "SELECT hlc, node FROM routes WHERE kind = %s AND hlc <= %s ORDER BY hlc DESC"
        rows = self._rows(f"{sql} LIMIT 1", kind, hlc)
        check = self.row_check
        if check is not None and rows and not check.route(kind, *rows[0]):
            rows = [row for row in self._rows(sql, kind, hlc) if check.route(kind, *row)]
        return rows[0][1] if rows else None

    def routes(self) -> list[tuple[str, bytes, bytes | None]]:
        rows = self._rows("SELECT DISTINCT ON (kind) kind, hlc, node FROM routes ORDER BY kind, hlc DESC")
        return [(kind, hlc, node) for kind, hlc, node in rows]

    def set_schedule(self, schedule: Schedule, counts: bool) -> None:
        sql = f"{insert('schedules', f'{_SCHEDULE}, counts')} ON CONFLICT (op) DO UPDATE SET counts = excluded.counts"
        self._put(sql, (*schedule, int(counts)))

    def strike_schedule(self, op_id: bytes) -> None:
        self._put("UPDATE schedules SET counts = 0 WHERE op = %s", (op_id,))

    def schedules(self) -> list[Schedule]:
        latest = f"SELECT DISTINCT ON (name) {_SCHEDULE} FROM schedules WHERE counts = 1 ORDER BY name, hlc DESC"
        rows = self._rows(f"SELECT * FROM ({latest}) AS latest WHERE cron IS NOT NULL ORDER BY name")
        return [Schedule(*row) for row in rows]

    def schedule_before(self, name: str, hlc: bytes) -> Schedule | None:
        where = "WHERE name = %s AND hlc < %s AND counts = 1 ORDER BY hlc DESC LIMIT 1"
        rows = self._rows(f"SELECT {_SCHEDULE} FROM schedules {where}", name, hlc)
        return Schedule(*rows[0]) if rows else None

    def schedule_after(self, name: str, hlc: bytes) -> bytes | None:
        where = "WHERE name = %s AND hlc > %s AND counts = 1 ORDER BY hlc LIMIT 1"
        found: bytes | None = self._one(f"SELECT hlc FROM schedules {where}", name, hlc)
        return found

    def schedule_ops_after(self, name: str, hlc: bytes) -> list[bytes]:
        return self._column("SELECT op FROM schedules WHERE name = %s AND hlc > %s ORDER BY hlc", name, hlc)

    def schedule_ops_by(self, node: bytes) -> list[bytes]:
        return self._column("SELECT op FROM schedules WHERE substr(hlc, 13) = %s", node)

    def ticked(self, op_id: bytes, tick: int) -> None:
        self._put("UPDATE schedules SET last_tick = greatest(last_tick, %s) WHERE op = %s", (tick, op_id))

    def set_last_tick(self, op_id: bytes, tick: int) -> None:
        self._put("UPDATE schedules SET last_tick = %s WHERE op = %s", (tick, op_id))
