"""The agreements of the mesh: who may do what, where kinds are routed, and schedules."""

from typing import NamedTuple, Protocol

from hocket.store.statements import Statements, insert, insert_new, upsert

_BIND = insert_new("nodes", "node, public, issuer, hlc")
_SET_DELEGATION = insert_new("delegations", "op, cid, hlc, token") + " RETURNING 1"
_SET_REVOCATION = insert_new("revocations", "op, cid, hlc, root") + " RETURNING 1"
_SET_COORDINATOR = upsert("coordinators", "hlc, op, node, pin", "hlc")
_SET_SUCCESSION = insert_new("successions", "op, hlc, pin, payload") + " RETURNING 1"
_SET_FORK = insert_new("forks", "op, node, since") + " RETURNING 1"
_SET_ROUTE = upsert("routes", "kind, hlc, node", "kind, hlc")
_ROUTES_UNTIL = "SELECT hlc, node FROM routes WHERE kind = ? AND hlc <= ? ORDER BY hlc DESC"
_ROUTES = """
    SELECT kind, hlc, node FROM routes AS route
    WHERE NOT EXISTS (SELECT 1 FROM routes AS later WHERE later.kind = route.kind AND later.hlc > route.hlc)
    ORDER BY kind"""
_COLUMNS = "name, hlc, cron, timezone, kind, payload, policy, last_tick, op"
_SET_SCHEDULE = insert("schedules", f"{_COLUMNS}, counts") + " ON CONFLICT (op) DO UPDATE SET counts = excluded.counts"
_SCHEDULES = f"""
    SELECT {_COLUMNS} FROM schedules AS schedule WHERE counts = 1 AND cron IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM schedules AS later
        WHERE later.name = schedule.name AND later.hlc > schedule.hlc AND later.counts = 1)
    ORDER BY name"""
_SCHEDULE_BEFORE = (
    f"SELECT {_COLUMNS} FROM schedules WHERE name = ? AND hlc < ? AND counts = 1 ORDER BY hlc DESC LIMIT 1"
)
_SCHEDULE_AFTER = "SELECT hlc FROM schedules WHERE name = ? AND hlc > ? AND counts = 1 ORDER BY hlc LIMIT 1"

NodeKeys = dict[bytes, tuple[bytes, str]]
"""The public key of each node, and the user who has delegated to it."""


class Delegated(NamedTuple):
    """A delegation token on the log, and its time."""

    op_id: bytes
    cid: bytes
    hlc: bytes
    token: bytes


class Revoked(NamedTuple):
    """`root` is 1 if the user's own key has signed it."""

    op_id: bytes
    cid: bytes
    hlc: bytes
    root: int = 0


class Coordinator(NamedTuple):
    """Which node is the coordinator from this time on. `pin` commits to the last op of its predecessor that was known
    then.
    """

    hlc: bytes
    op_id: bytes
    node: bytes
    pin: bytes | None = None


class SuccessionRow(NamedTuple):
    """An op about who follows the coordinator: its whole payload, and what it commits to of the coordinator before."""

    op_id: bytes
    hlc: bytes
    pin: bytes | None
    payload: bytes


class Fork(NamedTuple):
    """The proof, in this op, that a node has shown two histories from this time on."""

    op_id: bytes
    node: bytes
    since: bytes


class Schedule(NamedTuple):
    """A cron schedule as one op set it, or cleared it (`cron` is None). `last_tick` is the newest tick that has a job,
    or the time at which the schedule was set. The HLC contains its author.
    """

    name: str
    hlc: bytes
    cron: str | None
    timezone: str
    kind: str
    payload: bytes
    policy: bytes
    last_tick: int
    op: bytes

    @property
    def author(self) -> int:
        return int.from_bytes(self.hlc[12:], "big")


class ChecksRegisters(Protocol):
    """What a store that nodes share asks about nodes and routes: see `RowCheck`."""

    def nodes(self, keys: NodeKeys) -> NodeKeys:
        """The nodes whose delegations lead back to the user, with the keys that these name."""

    def route(self, kind: str, hlc: bytes, node: bytes | None) -> bool:
        """Whether an op of an owner's node routed the kind so at this time."""

    def enter_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        """The transaction enters a route, by an op that it has yet to store."""


class RegisterSession(Statements):
    """A `set_` or `drop_` that returns a bool says whether it changed anything."""

    row_check: ChecksRegisters | None

    def bind(self, node: bytes, public: bytes, issuer: str, hlc: bytes) -> None:
        self._put(_BIND, (node, public, issuer, hlc))

    def nodes(self) -> NodeKeys:
        rows = self._rows("SELECT node, public, issuer FROM nodes")
        keys = {node: (public, issuer) for node, public, issuer in rows}
        return keys if self.row_check is None else self.row_check.nodes(keys)

    def set_delegation(self, delegated: Delegated) -> bool:
        return bool(self._rows(_SET_DELEGATION, *delegated))

    def drop_delegation(self, op_id: bytes) -> bool:
        return bool(self._rows("DELETE FROM delegations WHERE op = ? RETURNING 1", op_id))

    def delegations(self) -> list[Delegated]:
        return [Delegated(*row) for row in self._rows("SELECT op, cid, hlc, token FROM delegations ORDER BY hlc")]

    def set_revocation(self, revoked: Revoked) -> bool:
        return bool(self._rows(_SET_REVOCATION, *revoked))

    def drop_revocation(self, op_id: bytes) -> bool:
        return bool(self._rows("DELETE FROM revocations WHERE op = ? RETURNING 1", op_id))

    def revocations(self) -> list[Revoked]:
        return [Revoked(*row) for row in self._rows("SELECT op, cid, hlc, root FROM revocations ORDER BY hlc")]

    def set_coordinator(self, coordinator: Coordinator) -> None:
        self._put(_SET_COORDINATOR, coordinator)

    def drop_coordinator(self, op_id: bytes) -> None:
        self._put("DELETE FROM coordinators WHERE op = ?", (op_id,))

    def coordinators(self) -> list[Coordinator]:
        return [Coordinator(*row) for row in self._rows("SELECT hlc, op, node, pin FROM coordinators ORDER BY hlc")]

    def set_succession(self, row: SuccessionRow) -> bool:
        return bool(self._rows(_SET_SUCCESSION, *row))

    def drop_succession(self, op_id: bytes) -> bool:
        return bool(self._rows("DELETE FROM successions WHERE op = ? RETURNING 1", op_id))

    def successions(self) -> list[SuccessionRow]:
        return [SuccessionRow(*row) for row in self._rows("SELECT op, hlc, pin, payload FROM successions ORDER BY hlc")]

    def set_fork(self, fork: Fork) -> bool:
        return bool(self._rows(_SET_FORK, *fork))

    def drop_fork(self, op_id: bytes) -> bool:
        return bool(self._rows("DELETE FROM forks WHERE op = ? RETURNING 1", op_id))

    def forks(self) -> list[Fork]:
        return [Fork(*row) for row in self._rows("SELECT op, node, since FROM forks ORDER BY since, op")]

    def set_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        self._put(_SET_ROUTE, (kind, hlc, node))

    def drop_route(self, kind: str, hlc: bytes) -> None:
        self._put("DELETE FROM routes WHERE kind = ? AND hlc = ?", (kind, hlc))

    def has_routes(self) -> bool:
        return bool(self._one("SELECT EXISTS (SELECT 1 FROM routes)"))

    def route(self, kind: str, hlc: bytes) -> bytes | None:
        """The node that the kind is routed to at that time, if any."""
        rows = self._rows(f"{_ROUTES_UNTIL} LIMIT 1", kind, hlc)
        check = self.row_check
        if check is not None and rows and not check.route(kind, *rows[0]):
            rows = [row for row in self._rows(_ROUTES_UNTIL, kind, hlc) if check.route(kind, *row)]
        return rows[0][1] if rows else None

    def routes(self) -> list[tuple[str, bytes, bytes | None]]:
        """The current routes: each kind that was ever routed, since when, and to which node."""
        return [(kind, hlc, node) for kind, hlc, node in self._rows(_ROUTES)]

    def set_schedule(self, schedule: Schedule, counts: bool) -> None:
        self._put(_SET_SCHEDULE, (*schedule, int(counts)))

    def strike_schedule(self, op_id: bytes) -> None:
        self._put("UPDATE schedules SET counts = 0 WHERE op = ?", (op_id,))

    def schedules(self) -> list[Schedule]:
        """The current schedules."""
        return [Schedule(*row) for row in self._rows(_SCHEDULES)]

    def schedule_before(self, name: str, hlc: bytes) -> Schedule | None:
        """The last op before that time that counts and is about the name."""
        rows = self._rows(_SCHEDULE_BEFORE, name, hlc)
        return Schedule(*rows[0]) if rows else None

    def schedule_after(self, name: str, hlc: bytes) -> bytes | None:
        """The time of the next op after that time that counts and is about the name."""
        after: bytes | None = self._one(_SCHEDULE_AFTER, name, hlc)
        return after

    def schedule_ops_after(self, name: str, hlc: bytes) -> list[bytes]:
        """The later ops about the name, whether or not they count, in HLC order."""
        return self._column("SELECT op FROM schedules WHERE name = ? AND hlc > ? ORDER BY hlc", name, hlc)

    def schedule_ops_by(self, node: bytes) -> list[bytes]:
        return self._column("SELECT op FROM schedules WHERE substr(hlc, 13) = ?", node)

    def ticked(self, op_id: bytes, tick: int) -> None:
        """A tick of the schedule that this op set has a job."""
        self._put("UPDATE schedules SET last_tick = ?1 WHERE op = ?2 AND last_tick < ?1", (tick, op_id))

    def set_last_tick(self, op_id: bytes, tick: int) -> None:
        """The newest tick of the schedule that has a job; without one, the time at which the schedule was set."""
        self._put("UPDATE schedules SET last_tick = ? WHERE op = ?", (tick, op_id))
