"""Workers, and what every process of a node has: tasks in the background, a store, breakers, a clock."""

from hocket.events import ERROR, INFO, Event
from hocket.kernel.texts import counted, span

_COMMANDS = "hocket.run"


class WorkerStarted(Event):
    level = INFO
    process: int
    kinds: tuple[str, ...]

    @property
    def served(self) -> str:
        """The kinds; a worker without handlers also says what that means."""
        if self.kinds == (_COMMANDS,):
            return f"{_COMMANDS} only, the commands of `hocket run`; name a module for handlers: `hocket work tasks.py`"
        return ", ".join(self.kinds)

    def __str__(self) -> str:
        return f"worker {self.process} serves {self.served}"


class KindsNotClaimable(Event):
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        kinds = ", ".join(self.kinds)
        return f"this node may not claim {kinds} jobs: it has no grant for them, or a route sends them to another node"


class AvailabilityChanged(Event):
    """`availability` is active, draining or quarantined."""

    availability: str

    def __str__(self) -> str:
        match self.availability:
            case "draining":
                return "this node is draining: running jobs finish, and it takes no new ones until `hocket node resume`"
            case "quarantined":
                return "this node is quarantined: it returns its jobs, and takes no new ones until `hocket node resume`"
        return "this node takes new jobs again"


class WorkerStopping(Event):
    level = INFO
    grace_s: float

    def __str__(self) -> str:
        grace = counted(float(self.grace_s), "second")
        return f"stopping; handlers may finish within {grace}, a second signal stops now"


class WorkerDeclaredDead(Event):
    sentence = "other workers declared this worker dead; it registers again and drops the claims that it has lost"


class HandlerLoopBlocked(Event):
    sentence = "an async handler has blocked the handlers' loop for {blocked_s:.0f} seconds"
    blocked_s: float


class HandlerStuck(Event):
    sentence = "job {job_id}: the worker told its handler ({kind}) to stop, but it goes on; the worker has given it up"
    job_id: str
    kind: str


class WorkerSpent(Event):
    """The worker stops, because stuck handlers end only with its process."""

    sentence = "all {slots} handlers of this worker are stuck; a new process replaces it"
    slots: int


class AllowanceIsRisky(Event):
    """The patterns may let other nodes run commands that the owner did not mean to allow."""

    sentence = "{warning}"
    warning: str


class GpusUnpriced(Event):
    """The rate card has no rate for GPUs of this machine."""

    classes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the rate card has no rate_gpu_sec for this machine's {', '.join(self.classes)}: the use of these GPUs"
            " has no price and counts towards no cap on costs"
        )


class EvictionNotAllowed(Event):
    sentence = "expired artifacts stay: this node may not evict them; grant it artifact:write"


class MetricsServed(Event):
    level = INFO
    sentence = "metrics are at {address}/metrics"
    address: str


class BackgroundTaskFailed(Event):
    level = ERROR
    sentence = "{task} failed ({error}); restarting in {restart_s:.1f} seconds"
    task: str
    error: str
    restart_s: float


class StepFailed(Event):
    """One step of several failed; the others succeeded."""

    sentence = "{step} failed ({error}); everything else continues"
    step: str
    error: str


class BatchFailed(Event):
    """Several steps failed in one transaction. The process retries each in a transaction of its own."""

    sentence = "{batch} failed ({error}); retrying each step on its own"
    batch: str
    error: str


class StoreUnavailable(Event):
    sentence = "{error}; retrying"
    error: str


class BreakerOpened(Event):
    """Calls to `what`, a peer or the store, have failed so often in a row that none goes out for a while."""

    sentence = "{what} failed {failures} times ({error}); the next try is in {wait_s:.0f} seconds"
    what: str
    failures: int
    error: str
    wait_s: float


class BreakerProbing(Event):
    """One call goes out to `what`. Its result closes the breaker or opens it again."""

    routine = True
    level = INFO
    sentence = "trying {what} again"
    what: str


class BreakerClosed(Event):
    level = INFO
    sentence = "{what} answers again"
    what: str


class ClockDisagrees(Event):
    """The clock of this process is off by so much, measured against the other processes of its node."""

    off_ms: int

    def __str__(self) -> str:
        how = "ahead of" if self.off_ms > 0 else "behind"
        return (
            f"the clock of this process is {span(abs(self.off_ms))} {how} that of this node's other processes, so it"
            " goes by theirs; set the one that is wrong, or wait a few seconds if the clock was just set right"
        )
