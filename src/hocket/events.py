"""What happens while a node works, as values. A program reads an event's type and fields; a person reads its sentence,
`str(event)`. An event is only told: nothing depends on it, and nothing is lost with it. The log has what must last.
"""

from collections.abc import Callable
from typing import ClassVar

import msgspec


class Event(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Ids are in the form that people see. A `routine` event belongs to the ordinary life of a job or a node: programs
    get it, people are not told.
    """

    routine: ClassVar[bool] = False


Emit = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The emitter for those who do not want events."""


def sentences(notice: Callable[[str], None], also: Emit = ignore) -> Emit:
    """Calls `notice` with the sentence of each event that people are told, and `also` with every event."""

    def emit(event: Event) -> None:
        also(event)
        if not event.routine:
            notice(str(event))

    return emit


# Jobs and their runs.


class _RunEvent(Event, frozen=True):
    """`fence` is the number of the worker's hold on the job."""

    routine = True

    job_id: str
    kind: str
    fence: int


class JobClaimed(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: claimed"


class RunStarted(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: its handler started"


class RunFinished(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: succeeded"


class RunFailed(_RunEvent, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"job {self.job_id}: its handler failed: {self.error}"


class JobHandedBack(_RunEvent, frozen=True):
    def __str__(self) -> str:
        return f"job {self.job_id}: handed back"


class LeaseLost(Event, frozen=True):
    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: its handler is stopped: {self.reason}"


class ResultDiscarded(Event, frozen=True):
    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id}: result discarded: it came too late: {self.reason}"


class JobSkipped(Event, frozen=True):
    """A job that this worker does not run. `job_id` is a content id where the job is in a git repository."""

    job_id: str
    reason: str

    def __str__(self) -> str:
        return f"job {self.job_id} is left alone: {self.reason}"


class JobsReclaimed(Event, frozen=True):
    count: int

    def __str__(self) -> str:
        return f"handed back {self.count} jobs of a worker process that died"


class ScheduleSkipped(Event, frozen=True):
    schedule: str
    reason: str

    def __str__(self) -> str:
        return f"schedule {self.schedule!r} makes no job: {self.reason}"


class SecretsNotHandedOver(Event, frozen=True):
    job_id: str
    error: str

    def __str__(self) -> str:
        return f"the secrets of job {self.job_id} cannot be handed over: {self.error}"


# Workers and what runs beside them.


class WorkerStarted(Event, frozen=True):
    process: int
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"worker {self.process} serves {', '.join(self.kinds)}"


class WorkerStopping(Event, frozen=True):
    grace_s: float

    def __str__(self) -> str:
        return f"stopping; handlers may finish within {self.grace_s:g} seconds, a second signal stops now"


class WorkerDeclaredDead(Event, frozen=True):
    def __str__(self) -> str:
        return "other workers took this one for dead; it joins again, and gives up what it has lost"


class HandlerLoopBlocked(Event, frozen=True):
    blocked_s: float

    def __str__(self) -> str:
        return f"an async handler has blocked the handlers' loop for {self.blocked_s:.0f} seconds"


class AllowanceIsRisky(Event, frozen=True):
    """The commands that this worker runs for other nodes may not be those that its owner meant."""

    warning: str

    def __str__(self) -> str:
        return self.warning


class BackgroundTaskFailed(Event, frozen=True):
    task: str
    error: str
    restart_s: float

    def __str__(self) -> str:
        return f"{self.task} failed ({self.error}); it starts again in {self.restart_s:.1f} seconds"


class StepFailed(Event, frozen=True):
    """One step failed among others, which were done."""

    step: str
    error: str

    def __str__(self) -> str:
        return f"{self.step} failed ({self.error}); everything else goes on"


class BatchFailed(Event, frozen=True):
    """Several steps failed in one transaction. Each of them is tried again in a transaction of its own."""

    batch: str
    error: str

    def __str__(self) -> str:
        return f"{self.batch} failed ({self.error}); each step is tried by itself"


class StoreUnavailable(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"{self.error}; trying again"


class EvictionNotAllowed(Event, frozen=True):
    def __str__(self) -> str:
        return "artifacts whose time is over stay: this node may not evict them; grant it artifact:write"


# The arbiter and the coordinator.


class ArbiterUnreachable(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"the arbiter cannot be reached ({self.error}); jobs that need its word wait"


class ArbiterFailed(Event, frozen=True):
    error: str

    def __str__(self) -> str:
        return f"asking the arbiter failed ({self.error}); jobs that need its word wait"


class ArbiterReachable(Event, frozen=True):
    def __str__(self) -> str:
        return "the arbiter can be reached again"


class CoordinatorUnknown(Event, frozen=True):
    def __str__(self) -> str:
        return "this node has yet to hear who the coordinator is; jobs that need its word wait"


class CoordinatorSilent(Event, frozen=True):
    node: str

    def __str__(self) -> str:
        return f"nothing was heard of the coordinator {self.node} for long"


# Other nodes.


class PeerChanged(Event, frozen=True):
    """`state` is how the peer stands now: ok, refused or unreachable."""

    address: str
    state: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is {self.state}{_after_colon(self.detail)}"


class PeerPaused(Event, frozen=True):
    """Nothing is exchanged with the peer, because it stands under other rules."""

    address: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is paused{_after_colon(self.detail)}"


class ProgramDiffers(Event, frozen=True):
    node: str
    difference: str

    def __str__(self) -> str:
        return f"node {self.node}: {self.difference}"


class NodeForked(Event, frozen=True):
    node: str

    def __str__(self) -> str:
        return (
            f"node {self.node} has shown two histories: its key is in use twice, or an old copy of its home was."
            " Nothing that it wrote since counts; revoke it, and let it join anew with a new home"
        )


class NodeOverQuota(Event, frozen=True):
    node: str
    ops: int

    def __str__(self) -> str:
        return (
            f"node {self.node} is over its quota: {self.ops} of its ops were refused for now;"
            " `hocket nodes` shows what it may store"
        )


class OpRefused(Event, frozen=True):
    """Ops that a node brought were refused. `sender` is the node, or the address of the peer that they were pulled
    from; `reason` is the name of one of the kernel's reasons.
    """

    routine = True

    sender: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"{self.count} ops from {self.sender} were refused: {self.reason}"


class OpsCollided(Event, frozen=True):
    node: str
    count: int

    def __str__(self) -> str:
        return (
            f"{self.count} ops from node {self.node} carry timestamps that others of their authors carry too;"
            " is a home in use twice?"
        )


class CallerRefused(Event, frozen=True):
    """A request was refused. `node` is None when the caller did not show who it is."""

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
    """The sum of what a server refused while it ran."""

    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {self.count}: {self.reason}"


class TrafficNotEncrypted(Event, frozen=True):
    def __str__(self) -> str:
        return "what nodes exchange here is not encrypted; give --cert and --key, or keep to a private network"


# Jobs in git repositories; `job_id` is a content id.


class GitUnavailable(Event, frozen=True):
    """The repository cannot be read or written just now. `job_id` is None when that concerns every job."""

    error: str
    job_id: str | None = None

    def __str__(self) -> str:
        return f"{'' if self.job_id is None else f'{self.job_id}: '}{self.error}; trying again"


class GitRunFailed(Event, frozen=True):
    job_id: str
    error: str

    def __str__(self) -> str:
        return f"{self.job_id}: {self.error}"


def _after_colon(detail: str) -> str:
    return f": {detail}" if detail else ""
