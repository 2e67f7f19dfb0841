"""Events: what happens while a node works. A program reads an event's type and fields; a person reads its sentence,
`str(event)`. Events are information only: nothing depends on them, and losing one loses no data. The log holds what
must last. `work.event_logging` writes them to Python's `logging`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import msgspec

from hocket.kernel.durations import span
from hocket.kernel.plurals import counted

if TYPE_CHECKING:
    from hocket.kernel.beats.messages import BarReport

# The levels of `logging`, which a short command does not load.
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Ids are in the form that people see. A `routine` event belongs to the ordinary life of a job or a node: programs
    get it, people only if they ask for it. `logger` and `level` say where and how `logging` shows it.
    """

    routine: ClassVar[bool] = False
    logger: ClassVar[str] = "hocket.node"
    level: ClassVar[int] = WARNING


Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Ignores events."""


def sentences(notice: Callable[[str], None], also: Emit = ignore) -> Emit:
    """Calls `notice` with the sentence of each event that is not routine, and `also` with every event."""

    def emit(event: Event) -> None:
        also(event)
        if not event.routine:
            notice(str(event))

    return emit


# Jobs and their runs.


class _RunEvent(Event, frozen=True):
    """`fence` is the fence of the worker's claim on the job."""

    routine = True
    logger = "hocket.jobs"
    level = INFO

    job_id: str
    kind: str
    fence: int


class JobClaimed(_RunEvent, frozen=True):
    """`waited_s` is the time from the submit, or from when the job could start, to its first claim; None for a later
    claim.
    """

    level = DEBUG

    waited_s: float | None = None

    def __str__(self) -> str:
        return f"job {self.job_id}: claimed"


class RunStarted(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: {self.kind} started"


class RunFinished(_RunEvent, frozen=True):
    """`run_s` is how long its handler ran, and `cost` what that cost if the worker has a rate card."""

    run_s: float = 0.0
    cost: float | None = None

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.kind} succeeded"


class RunFailed(_RunEvent, frozen=True):
    """`last_line` is the last line of an error that has several, else empty. `is_final` is whether the job has failed
    with this run.
    """

    level = WARNING

    error: str
    last_line: str = ""
    is_final: bool = True
    run_s: float = 0.0
    cost: float | None = None

    def __str__(self) -> str:
        more = f" … {self.last_line}" if self.last_line else ""
        return f"job {self.job_id}: {self.kind} failed: {self.error}{more}"


class RetryPlanned(_RunEvent, frozen=True):
    """The job of a failed run is back in the queue. `failures` counts its failed tries."""

    failures: int
    rest_s: float

    def __str__(self) -> str:
        return f"job {self.job_id}: try {self.failures + 1} in {self.rest_s:.1f} seconds"


class JobHandedBack(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: returned to the queue"


class JobPostponed(_RunEvent, frozen=True):
    delay_s: float
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: postponed by {self.delay_s:g} s: {self.reason}"


class KindsNotDefined(Event, frozen=True):
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"this node may not define {', '.join(self.kinds)}: the options of these handlers hold only for jobs that"
            " their own programs submit; the owner grants it with `--may job:define:PREFIX`"
        )


class JobRescued(_RunEvent, frozen=True):
    """This node returned a job to the queue because its worker is gone."""

    level = WARNING

    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: rescued: {self.reason}"


class LeaseLost(Event, frozen=True):
    logger = "hocket.jobs"

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: handler stopped: {self.reason}"


class ResultDiscarded(Event, frozen=True):
    logger = "hocket.jobs"

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: result discarded: {self.reason}"


class JobSkipped(Event, frozen=True):
    """A job that this worker does not run. For a job in a git repository, `job_id` is a content id."""

    logger = "hocket.jobs"

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id} skipped: {self.reason}"


class JobWaiting(Event, frozen=True):
    """A command waits for this job."""

    job_id: str
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"waiting: {self.detail}"


class JobsReclaimed(Event, frozen=True):
    level = INFO

    count: int

    def __str__(self) -> str:
        return f"returned {counted(self.count, 'job')} of a dead worker process to the queue"


class ScheduleSkipped(Event, frozen=True):
    schedule: str
    reason: str

    def __str__(self) -> str:
        return f"schedule {self.schedule!r} submits no job: {self.reason}"


class SecretsNotHandedOver(Event, frozen=True):
    job_id: str
    error: str

    def __str__(self) -> str:
        return f"job {self.job_id}: cannot hand over its secrets: {self.error}"


# Workers and what runs beside them.


class WorkerStarted(Event, frozen=True):
    level = INFO

    process: int
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"worker {self.process} serves {', '.join(self.kinds)}"


class MetricsServed(Event, frozen=True):
    level = INFO

    address: str

    def __str__(self) -> str:
        return f"metrics are at {self.address}/metrics"


class KindsNotClaimable(Event, frozen=True):
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        named = ", ".join(self.kinds)
        return f"this node may not claim {named} jobs: it was not granted that, or they are routed to another node"


class WorkerStopping(Event, frozen=True):
    level = INFO

    grace_s: float

    def __str__(self) -> str:
        grace = counted(float(self.grace_s), "second")
        return f"stopping; handlers may finish within {grace}, a second signal stops now"


class WorkerDeclaredDead(Event, frozen=True):
    def __str__(self) -> str:
        return "other workers declared this worker dead; it registers again and drops the claims that it has lost"


class AvailabilityChanged(Event, frozen=True):
    """`availability` is active, draining or quarantined."""

    availability: str

    def __str__(self) -> str:
        match self.availability:
            case "draining":
                return "this node is draining: running jobs finish, and it takes no new ones until `hocket resume`"
            case "quarantined":
                return "this node is quarantined: it returns its jobs, and takes no new ones until `hocket resume`"
        return "this node takes new jobs again"


class HandlerLoopBlocked(Event, frozen=True):
    blocked_s: float

    def __str__(self) -> str:
        return f"an async handler has blocked the handlers' loop for {self.blocked_s:.0f} seconds"


class HandlerStuck(Event, frozen=True):
    job_id: str
    kind: str

    def __str__(self) -> str:
        return f"job {self.job_id}: its handler ({self.kind}) was told to stop and goes on; the worker has given it up"


class WorkerSpent(Event, frozen=True):
    """The worker stops, because only a new process is rid of the stuck handlers."""

    slots: int

    def __str__(self) -> str:
        return f"{self.slots} handlers are stuck, as many as there are slots; this worker process is replaced"


class AllowanceIsRisky(Event, frozen=True):
    """The patterns may let other nodes run commands that the owner did not mean to allow."""

    warning: str

    def __str__(self) -> str:
        return self.warning


class BackgroundTaskFailed(Event, frozen=True):
    level = ERROR

    task: str
    error: str
    restart_s: float

    def __str__(self) -> str:
        return f"{self.task} failed ({self.error}); restarting in {self.restart_s:.1f} seconds"


class StepFailed(Event, frozen=True):
    """One step of several failed; the others succeeded."""

    step: str
    error: str

    def __str__(self) -> str:
        return f"{self.step} failed ({self.error}); everything else continues"


class BatchFailed(Event, frozen=True):
    """Several steps failed in one transaction. Each step is retried in a transaction of its own."""

    batch: str
    error: str

    def __str__(self) -> str:
        return f"{self.batch} failed ({self.error}); retrying each step on its own"


class StoreUnavailable(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"{self.error}; retrying"


class BreakerOpened(Event, frozen=True):
    """Calls to `what`, a peer or the store, have failed so often in a row that none goes out for a while."""

    what: str
    failures: int
    error: str
    wait_s: float

    def __str__(self) -> str:
        return f"{self.what} failed {self.failures} times ({self.error}); the next try is in {self.wait_s:.0f} seconds"


class BreakerProbing(Event, frozen=True):
    """One call goes out to `what`. Its result closes the breaker or opens it again."""

    routine = True
    level = INFO

    what: str

    def __str__(self) -> str:
        return f"{self.what} is tried again"


class BreakerClosed(Event, frozen=True):
    level = INFO

    what: str

    def __str__(self) -> str:
        return f"{self.what} answers again"


class ClockDisagrees(Event, frozen=True):
    """The clock of this process is off by so much, measured against the other processes of its node."""

    off_ms: int

    def __str__(self) -> str:
        how = "ahead of" if self.off_ms > 0 else "behind"
        return (
            f"the clock of this process is {span(abs(self.off_ms))} {how} that of this node's other processes, so it"
            " goes by theirs; correct it"
        )


class EvictionNotAllowed(Event, frozen=True):
    def __str__(self) -> str:
        return "expired artifacts stay: this node may not evict them; grant it artifact:write"


# The arbiter and the coordinator.


class ArbiterUnreachable(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"no decision from the arbiter ({self.error}); jobs that need one wait"


class ArbiterFailed(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"asking the arbiter failed ({self.error}); jobs that need its decision wait"


class ArbiterReachable(Event, frozen=True):
    level = INFO

    def __str__(self) -> str:
        return "the arbiter decides again"


class CoordinatorUnknown(Event, frozen=True):
    def __str__(self) -> str:
        return "this node does not know the coordinator yet; jobs that need its decision wait"


class CoordinatorSilent(Event, frozen=True):
    node: str

    def __str__(self) -> str:
        return f"the coordinator {self.node} has been silent for long"


class OpsWaiting(Event, frozen=True):
    """Ops of this node that the coordinator does not have, because it cannot be reached. `since_ms` is the time of the
    oldest.
    """

    ops: int
    since_ms: int

    def __str__(self) -> str:
        return f"waiting here for the coordinator: {counted(self.ops, 'op')}, sent in order when it answers"


class OpsDelivered(Event, frozen=True):
    level = INFO

    def __str__(self) -> str:
        return "the coordinator has all ops that waited here"


# The bus.


class MessagesDropped(Event, frozen=True):
    """A subscription's queue was full for the first time. Its receiver is too slow, or a node sends too much."""

    pattern: str
    capacity: int

    def __str__(self) -> str:
        return (
            f"messages on {self.pattern} come faster than they are read: of more than {self.capacity}, the oldest are"
            " dropped"
        )


class BusConnected(Event, frozen=True):
    """`keeps` is whether the server keeps announcements for those who join later."""

    level = INFO

    server: str
    keeps: bool

    def __str__(self) -> str:
        rest = "" if self.keeps else "; it has no JetStream, so late joiners miss announcements"
        return f"the bus {self.server} is connected{rest}"


class BusAway(Event, frozen=True):
    server: str
    error: str

    def __str__(self) -> str:
        return f"the bus {self.server} is away ({self.error}); work goes on without it"


# Tempo.


class ReverbStarted(Event, frozen=True):
    level = INFO

    pid: int
    cluster_id: str

    def __str__(self) -> str:
        return f"process {self.pid} reports the bars of cluster {self.cluster_id}"


class BarReported(Event, frozen=True):
    """A reverb has a new report of a window. `alarms` are those that it raises."""

    routine = True
    level = INFO

    report: "BarReport"
    alarms: tuple[str, ...] = ()

    def __str__(self) -> str:
        report = self.report
        raised = f"; alarms: {', '.join(self.alarms)}" if self.alarms else ""
        return (
            f"window {report.window}: {counted(report.tasks, 'task')}, {counted(report.overruns, 'overrun')},"
            f" {counted(report.broken_promises, 'broken promise')}{raised}"
        )


class AlarmRaised(Event, frozen=True):
    """A window raises an alarm that the window before it did not raise."""

    alarm: str
    window: str

    def __str__(self) -> str:
        return f"alarm {self.alarm}: window {self.window} raises it; see `hocket report`"


class AlarmEnded(Event, frozen=True):
    level = INFO

    alarm: str
    window: str

    def __str__(self) -> str:
        return f"alarm {self.alarm} ended with window {self.window}"


# Other nodes.


class NodeGraded(Event, frozen=True):
    """`grade` is live, warn, alert, critical or dead, by the heartbeats that the node has missed. It is routine: a
    laptop that is closed falls silent, too.
    """

    routine = True
    level = INFO

    node: str
    grade: str
    silent_ms: int

    def __str__(self) -> str:
        if self.grade == "live":
            return f"node {self.node} is heard again"
        return f"node {self.node}: {self.grade}; it was last heard {span(self.silent_ms)} ago"


class PeerChanged(Event, frozen=True):
    """`state` is the peer's state now: ok, refused or unreachable."""

    address: str
    state: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is {self.state}{_after_colon(self.detail)}"


class PeerPaused(Event, frozen=True):
    """This node does not sync with the peer, because their rules differ."""

    address: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is paused{_after_colon(self.detail)}"


class ProgramDiffers(Event, frozen=True):
    level = INFO

    node: str
    difference: str

    def __str__(self) -> str:
        return f"node {self.node}: {self.difference}"


class NodeForked(Event, frozen=True):
    level = ERROR

    node: str

    def __str__(self) -> str:
        return (
            f"node {self.node} has two histories: its key is in use twice, or an old copy of its home was used."
            " Its ops since then do not count; revoke it, and let it join again with a new home"
        )


class HistoryRecovered(Event, frozen=True):
    """This node had lost ops of its own, and has them back. Ops that it had written meanwhile were written again."""

    ops: int
    dropped: int

    def __str__(self) -> str:
        dropped = f"; {self.dropped} no longer count" if self.dropped else ""
        return (
            f"this home was older than what other nodes have of it. The lost ops came back, and {self.ops} ops that"
            f" were written meanwhile were written again, with new job ids{dropped}. If another copy of this home is"
            " in use, stop one of them"
        )


class NodeOverQuota(Event, frozen=True):
    node: str
    ops: int

    def __str__(self) -> str:
        return (
            f"node {self.node} is over its quota: {self.ops} of its ops were refused for now;"
            " `hocket nodes` shows its quota"
        )


class OpRefused(Event, frozen=True):
    """Ops from a node were refused. `sender` is the node, or the address of the peer that they were pulled from;
    `reason` is the name of one of the kernel's reasons.
    """

    routine = True
    level = INFO

    sender: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {counted(self.count, 'op')} from {self.sender}: {self.reason}"


class OpsCollided(Event, frozen=True):
    node: str
    count: int

    def __str__(self) -> str:
        return (
            f"{self.count} ops from node {self.node} have the same timestamp as another op of their author;"
            " check whether a home is in use twice"
        )


class CallerRefused(Event, frozen=True):
    """A request was refused. `node` is None if the caller did not identify itself."""

    status: int
    reason: str
    node: str | None
    detail: str

    def __str__(self) -> str:
        who = "a caller" if self.node is None else f"node {self.node}"
        return f"{who} was refused ({self.status}): {self.reason}{_after_colon(self.detail)}"


class JoinRefused(Event, frozen=True):
    status: int
    reason: str

    def __str__(self) -> str:
        return f"a request to join was refused ({self.status}): {self.reason}"


class RequestsRefused(Event, frozen=True):
    """How often a server refused requests for this reason while it ran."""

    level = INFO

    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {self.count}: {self.reason}"


class TrafficNotEncrypted(Event, frozen=True):
    def __str__(self) -> str:
        return "the traffic of this server is not encrypted; give --cert and --key, or use a private network"


# Jobs in git repositories; `job_id` is a content id.


class GitUnavailable(Event, frozen=True):
    """The repository cannot be read or written now. `job_id` is None if this concerns every job."""

    error: str
    job_id: str | None = None

    def __str__(self) -> str:
        return f"{'' if self.job_id is None else f'{self.job_id}: '}{self.error}; retrying"


class GitRunFailed(Event, frozen=True):
    job_id: str
    error: str

    def __str__(self) -> str:
        return f"{self.job_id}: {self.error}"


# Tempo.


class _TempoEvent(Event, frozen=True):
    logger = "hocket.tempo"
    level = INFO


class PulseStarted(_TempoEvent, frozen=True):
    """This pulse listens, and leads if no other does."""

    cluster: str

    def __str__(self) -> str:
        return f"this pulse listens to {self.cluster}"


class PulseLeads(_TempoEvent, frozen=True):
    cluster: str
    fence: int

    def __str__(self) -> str:
        return f"this pulse leads {self.cluster} (fence {self.fence})"


class PulseFollows(_TempoEvent, frozen=True):
    """This pulse led until now. `reason` says why it no longer does."""

    cluster: str
    fence: int
    reason: str

    def __str__(self) -> str:
        return f"this pulse no longer leads {self.cluster} (fence {self.fence}): {self.reason}"


class PulseLockFailed(_TempoEvent, frozen=True):
    """The lock of the leader could not be asked for. This pulse tries again."""

    level = WARNING

    cluster: str
    error: str

    def __str__(self) -> str:
        return f"this pulse cannot ask who leads {self.cluster}: {self.error}; it tries again"


class BeatSent(_TempoEvent, frozen=True):
    """`late_s` is how long after the start of the beat its frame left, and `drift_s` how far the time of day is ahead
    of the pulse's clock.
    """

    routine = True
    level = DEBUG

    cluster: str
    beat_index: int
    tempo_bpm: int
    late_s: float
    drift_s: float
    is_degraded: bool

    def __str__(self) -> str:
        kind = "degraded beat" if self.is_degraded else "beat"
        return f"{kind} {self.beat_index} of {self.cluster} sent, {1000 * self.late_s:.1f} ms late"


class TempoChanged(_TempoEvent, frozen=True):
    """The leading pulse has decided this."""

    cluster: str
    from_bpm: int
    to_bpm: int

    def __str__(self) -> str:
        return f"the tempo of {self.cluster} goes from {self.from_bpm} to {self.to_bpm} beats a minute"


class BeatsDegraded(_TempoEvent, frozen=True):
    level = WARNING

    cluster: str
    tempo_bpm: int

    def __str__(self) -> str:
        return (
            f"no pulse leads {self.cluster}: this process counts {self.tempo_bpm} beats a minute by the pulses that it"
            " hears, or by its own clock"
        )


class BeatsLed(_TempoEvent, frozen=True):
    """After a time without a leader, or at the start."""

    cluster: str
    leader: str
    fence: int

    def __str__(self) -> str:
        return f"node {self.leader} leads {self.cluster} (fence {self.fence})"


class FrameRefused(_TempoEvent, frozen=True):
    """`count` frames of a node were refused for this reason since the last such event, at most one a minute."""

    level = WARNING

    cluster: str
    node: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {counted(self.count, 'frame')} of node {self.node} for {self.cluster}: {self.reason}"


def _after_colon(detail: str) -> str:
    return f": {detail}" if detail else ""
