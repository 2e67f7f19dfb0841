"""What ops about the mesh itself establish: which key a node has, what is delegated and revoked, who is the
coordinator, where kinds are routed, which artifacts exist and which schedules are set. The engine decides whether an op
counts.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.policy import names_of
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    JOB,
    NAMES,
    ClearSchedule,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    EraseContent,
    EvictArtifact,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
    RouteKind,
    SetSchedule,
    SetSuccession,
    Subject,
    TakeOver,
    number_of,
    subject_of,
)
from hocket.log.citations import Memory
from hocket.log.permissions import Permissions, changed_since, row_of
from hocket.log.projectors import Engine, Projector, family_names
from hocket.store import Artifact, Coordinator, Delegated, Fork, Revoked, Schedule, Session, SuccessionRow

if TYPE_CHECKING:
    from cronsim import CronSim


class GrantRegister:
    """Delegations, revocations, proofs of two histories, successions and takeovers. Each takes effect as soon as every
    op that it cites is here, whatever its author may do: reading all of them together shows what each is worth.
    """

    payloads = (DelegateUcan, RevokeUcan, RevokeRoot, ReportFork, SetSuccession, TakeOver)

    def __init__(self, session: Session) -> None:
        self._session = session

    def introduce(self, op: Op) -> None:
        """Stores the key of a node that a delegation names, whether or not that op counts: the user has signed which
        key a node has, and that must not depend on the order of arrival. What the node may do is another question.
        """
        if isinstance(op.payload, DelegateUcan):
            delegation = read_ucan(op.payload.ucan_bytes)
            node = delegation.node.to_bytes(8, "big")
            self._session.bind(node, delegation.public, delegation.issuer, pack(op.timestamp))

    def enact(self, op: Op) -> bool:
        """False if it is already there."""
        row = row_of(op)
        if isinstance(row, Delegated):
            return self._session.set_delegation(row)
        if isinstance(row, Fork):
            return self._session.set_fork(row)
        if isinstance(row, SuccessionRow):
            return self._session.set_succession(row)
        assert isinstance(row, Revoked)
        return self._session.set_revocation(row)

    def repeal(self, op: Op) -> bool:
        """Removes it. False if it was not there."""
        session = self._session
        return (
            session.drop_delegation(op.id)
            or session.drop_revocation(op.id)
            or session.drop_fork(op.id)
            or session.drop_succession(op.id)
        )

    def revocations(self) -> list[bytes]:
        return [revoked.op_id for revoked in self._session.revocations()]


class CoordinatorRegister:
    payloads = (DesignateCoordinator,)

    def __init__(self, session: Session, engine: Engine, projectors: dict[str, Projector[object]]) -> None:
        self._session, self._engine, self._projectors = session, engine, projectors

    def has(self, op: Op) -> bool:
        """Whether a designation is already entered."""
        if not isinstance(op.payload, DesignateCoordinator):
            return False
        return any(each.op_id == op.id for each in self._session.coordinators())

    def put(self, op: Op) -> None:
        row = row_of(op)
        assert isinstance(row, Coordinator)
        self._session.set_coordinator(row)

    def enter(self, op: Op) -> None:
        self.put(op)
        self._engine.permissions_changed(op)

    def strike(self, op: Op) -> None:
        self._session.drop_coordinator(op.id)
        self._engine.permissions_changed(op)

    def follow(self, before: Permissions, after: Permissions) -> None:
        """An op about the coordinator that arrives late, or no longer counts, changes who could decide since then, and
        which others of these ops are in force.
        """
        engine, faults, earlier = self._engine, after.succession_faults, before.succession_faults
        for op_id in faults.keys() | earlier.keys():
            if faults.get(op_id) != earlier.get(op_id):
                engine.doubt(op_id)
        changed = changed_since(before.tenures, after.tenures)
        if changed is None:
            return
        engine.flush()
        since = pack(changed._replace(node=0))
        for family in family_names():
            projector = self._projectors[family]
            for key in projector.keys_since(since):
                engine.ask_again(Subject(family, key), permissions=True)
        for subject in engine.offered_since(unpack(since)):
            engine.ask_again(subject, permissions=True)
        derivations = tuple(number for number, name in NAMES.items() if name in after.derivation_ops)
        for row in self._session.ops_of_variants(derivations) if derivations else ():
            if row.hlc > since:
                engine.doubt(row.id)
        for row in self._session.ops_refused_for((Reason.WAITING,)):
            if row.subject is None:
                engine.doubt(row.id)
            else:
                engine.ask_again(row.subject)


class RouteRegister:
    payloads = (RouteKind,)

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._engine = session, engine
        # Read once, on first use: most logs have no routes.
        self._names: set[str] | None = None

    def route(self, kind: str, at: Hlc) -> int | None:
        """The node that the kind is routed to at that time, if any. Its own route goes before that of a prefix, and a
        longer prefix before a shorter one.
        """
        if self._names is None:
            session = self._session
            self._names = {name for name, _, _ in session.routes()} if session.has_routes() else set()
        if not self._names:
            return None
        for name in names_of(kind):
            if name in self._names and (node := self._session.route(name, pack(at))) is not None:
                return int.from_bytes(node, "big")
        return None

    def log_changed(self) -> None:
        """Others may have written since."""
        self._names = None

    def enter(self, op: Op) -> None:
        assert isinstance(op.payload, RouteKind)
        if self._names is not None:
            self._names.add(op.payload.kind)
        node = None if op.payload.route is None else op.payload.route.to_bytes(8, "big")
        if (check := self._session.row_check) is not None:
            check.enter_route(op.payload.kind, pack(op.timestamp), node)
        self._session.set_route(op.payload.kind, pack(op.timestamp), node)
        self._follow(op)

    def strike(self, op: Op) -> None:
        assert isinstance(op.payload, RouteKind)
        self._session.drop_route(op.payload.kind, pack(op.timestamp))
        self._follow(op)

    def _follow(self, op: Op) -> None:
        """A route that arrives late changes who could claim since then."""
        assert isinstance(op.payload, RouteKind)
        self._engine.flush()
        for job_id in self._session.jobs_of_kinds_since(op.payload.kind, pack(op.timestamp)):
            self._engine.ask_again(Subject(JOB, job_id))


_CREATIONS = (number_of(CreateArtifact),)
# Later than any time that an op can carry.
NEVER = 2**62


class ArtifactRegister:
    """Which artifacts exist, which of them are evicted, and of which jobs the content is erased. `is_bound` says that
    ids follow from content.
    """

    payloads = (CreateArtifact, EvictArtifact, EraseContent)

    def __init__(self, session: Session, engine: Engine, is_bound: bool) -> None:
        self._session, self._engine, self._is_bound = session, engine, is_bound
        # Artifacts that are not stored yet.
        self._made: dict[bytes, Artifact] = {}
        self.memory = Memory((self._made,))

    def artifact(self, artifact_id: bytes) -> Artifact | None:
        return self._made.get(artifact_id) or self._session.artifact(artifact_id)

    def enter(self, op: Op) -> None:
        payload = op.payload
        if isinstance(payload, EvictArtifact):
            self._session.add_eviction(op.id, payload.artifact_id)
            return
        if isinstance(payload, EraseContent):
            self._session.add_erasure(op.id, payload.source_job)
            return
        assert isinstance(payload, CreateArtifact)
        artifact = artifact_of(op, payload)
        if self._is_bound and artifact.id == op.id:
            # An artifact with the id of its own op can have no rival.
            self._made[artifact.id] = artifact
        else:
            self._enter_rival(artifact, op)

    def strike(self, op: Op) -> None:
        payload = op.payload
        if isinstance(payload, EvictArtifact):
            self._session.drop_eviction(op.id)
            return
        if isinstance(payload, EraseContent):
            self._session.drop_erasure(op.id)
            return
        assert isinstance(payload, CreateArtifact)
        artifact = self.artifact(payload.artifact_id)
        if artifact is not None and artifact.op_id == op.id:
            self._made.pop(artifact.id, None)
            self._session.drop_artifact(artifact.id)
            for other in self._engine.counting(_CREATIONS):
                if other.payload.artifact_id == artifact.id:  # type: ignore[union-attr]
                    self.enter(other)

    def _enter_rival(self, artifact: Artifact, op: Op) -> None:
        """If several ops create the same artifact, the earliest counts."""
        rival = self._session.artifact(artifact.id)
        if rival is not None and (other := self._engine.known(rival.op_id)[0]) and other.timestamp > op.timestamp:
            self._session.drop_artifact(artifact.id)
        self._session.add_artifacts([artifact])

    def flush(self) -> None:
        """Stores the new artifacts, so that the store's queries see them."""
        if self._made:
            self._session.add_artifacts(list(self._made.values()))
            self._made.clear()


def artifact_of(op: Op, payload: CreateArtifact) -> Artifact:
    """What an op enters."""
    expires = None if payload.ttl_ms is None else min(op.timestamp.wall + payload.ttl_ms, NEVER)
    what = payload.artifact_type, payload.source_job, payload.content_hash, min(payload.size_bytes, NEVER)
    is_inline = int(payload.content_inline is not None)
    return Artifact(payload.artifact_id, op.id, *what, expires, is_inline, pack(op.timestamp))


class ScheduleRegister:
    """Which schedules are set, by which op, and which of their ticks' jobs must be judged again when that changes."""

    payloads = (SetSchedule, ClearSchedule)

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._engine = session, engine

    def enter(self, op: Op) -> None:
        self._session.set_schedule(scheduled(op), counts=True)
        self._follow(op, is_in_force=True)

    def strike(self, op: Op) -> None:
        self._session.strike_schedule(op.id)
        self._follow(op, is_in_force=False)

    def wait(self, op: Op) -> None:
        """The op would count if the schedule that blocks it turned out not to."""
        self._session.set_schedule(scheduled(op), counts=False)

    def _follow(self, op: Op, is_in_force: bool) -> None:
        """An op that sets or clears a schedule and arrives late, or no longer counts, changes who could change the
        schedule since then, and until when the one before it ticked.
        """
        assert isinstance(op.payload, SetSchedule | ClearSchedule)
        at = pack(op.timestamp)
        for later in self._session.schedule_ops_after(op.payload.name, at):
            self._engine.doubt(later)
        earlier = self._session.schedule_before(op.payload.name, at)
        if earlier is not None and (not is_in_force or earlier.last_tick > op.timestamp.wall):
            self._doubt_ticks(earlier.op, op.timestamp.wall)

    def doubt_ticks_of(self, node: int) -> None:
        """The grants of a node have changed, so the ticks of its schedules must be judged again."""
        for schedule_op in self._session.schedule_ops_by(node.to_bytes(8, "big")):
            self._doubt_ticks(schedule_op, 0)

    def _doubt_ticks(self, schedule_op: bytes, since: int) -> None:
        """Marks the jobs of the schedule's ticks after that time to be judged again."""
        for citing in self._engine.citations.citing(schedule_op):
            op, _ = self._engine.known(citing)
            subject = None if op is None else subject_of(op.payload)
            if subject is not None and subject.family == JOB and ulid_ms(subject.key) > since:
                self._engine.ask_again(subject, permissions=True)


def scheduled(op: Op) -> Schedule:
    """What an op says of a schedule."""
    payload = op.payload
    hlc = pack(op.timestamp)
    if isinstance(payload, SetSchedule):
        job = payload.kind, payload.payload, payload.policy_envelope
        return Schedule(payload.name, hlc, payload.cron, payload.timezone, *job, op.timestamp.wall, op.id)
    assert isinstance(payload, ClearSchedule)
    return Schedule(payload.name, hlc, None, "", "", b"", b"", 0, op.id)


# When a schedule ticks, as far as every node must agree on it: the fold needs to know whether a job can be a schedule's
# newest tick. `families.jobs.cron` finds the next tick by this machine's clock and timezones.
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
# The largest distances of local time from UTC.
_WEST, _EAST = timedelta(hours=12), timedelta(hours=14)


def could_be_newest(cron: str, timezone: str, tick_ms: int, now_ms: int) -> bool:
    """Whether that can be the schedule's newest tick now, by what every node knows. In UTC the answer is exact. Another
    timezone needs a machine's table of timezones, and those differ; so here the test is only whether one of the
    possible local days has ticks, and a worker that claims the job checks its own table.
    """
    # Imported here, because a program that only submits has no schedules to judge.
    from cronsim import CronSim, CronSimError

    if tick_ms % 1000:
        return False
    try:
        at = _EPOCH + timedelta(milliseconds=tick_ms)
        if timezone == "UTC":
            # The search begins one second after the given moment.
            return next(CronSim(cron, at - _SECOND)) == at and _EPOCH + timedelta(milliseconds=now_ms) < _next(cron, at)
        expression = _expression(cron)
        first, last = (at - _WEST).date(), (at + _EAST).date()
        days = (first + timedelta(days=n) for n in range((last - first).days + 1))
        return any(day.month in expression.months and expression.match_day(day) for day in days)
    except (CronSimError, StopIteration, ValueError, OverflowError):
        return False


def _next(cron: str, after: datetime) -> datetime:
    from cronsim import CronSim

    return next(CronSim(cron, after), datetime.max)


@lru_cache(256)
def _expression(cron: str) -> "CronSim":
    """For tests of days only; never iterate it."""
    from cronsim import CronSim

    return CronSim(cron, _EPOCH)
