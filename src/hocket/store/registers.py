"""The agreements of the mesh: who may do what, where kinds are routed, and schedules."""

from typing import NamedTuple, Protocol


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


class RegisterSession(Protocol):
    """A `set_` or `drop_` that returns a bool says whether it changed anything."""

    def bind(self, node: bytes, public: bytes, issuer: str, hlc: bytes) -> None: ...
    def nodes(self) -> dict[bytes, tuple[bytes, str]]: ...
    def set_delegation(self, delegated: Delegated) -> bool: ...
    def drop_delegation(self, op_id: bytes) -> bool: ...
    def delegations(self) -> list[Delegated]: ...
    def set_revocation(self, revoked: Revoked) -> bool: ...
    def drop_revocation(self, op_id: bytes) -> bool: ...
    def revocations(self) -> list[Revoked]: ...
    def set_coordinator(self, coordinator: Coordinator) -> None: ...
    def drop_coordinator(self, op_id: bytes) -> None: ...
    def coordinators(self) -> list[Coordinator]: ...
    def set_fork(self, fork: Fork) -> bool: ...
    def drop_fork(self, op_id: bytes) -> bool: ...
    def forks(self) -> list[Fork]: ...
    def set_route(self, kind: str, hlc: bytes, node: bytes | None) -> None: ...
    def drop_route(self, kind: str, hlc: bytes) -> None: ...
    def has_routes(self) -> bool: ...
    def route(self, kind: str, hlc: bytes) -> bytes | None:
        """The node that the kind is routed to at that time, if any."""

    def routes(self) -> list[tuple[str, bytes, bytes | None]]:
        """The current routes: each kind that was ever routed, since when, and to which node."""

    def set_schedule(self, schedule: Schedule, counts: bool) -> None: ...
    def strike_schedule(self, op_id: bytes) -> None: ...

    def schedules(self) -> list[Schedule]:
        """The current schedules."""

    def schedule_before(self, name: str, hlc: bytes) -> Schedule | None:
        """The last op before that time that counts and is about the name."""

    def schedule_after(self, name: str, hlc: bytes) -> bytes | None:
        """The time of the next op after that time that counts and is about the name."""

    def schedule_ops_after(self, name: str, hlc: bytes) -> list[bytes]:
        """The later ops about the name, whether or not they count, in HLC order."""

    def schedule_ops_by(self, node: bytes) -> list[bytes]: ...

    def ticked(self, op_id: bytes, tick: int) -> None:
        """A tick of the schedule that this op set has a job."""

    def set_last_tick(self, op_id: bytes, tick: int) -> None:
        """The newest tick of the schedule that has a job; without one, the time at which the schedule was set."""
