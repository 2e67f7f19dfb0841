"""Workers and what runs beside them."""

from hocket.events.event import ERROR, INFO, Event
from hocket.kernel.durations import span
from hocket.kernel.plurals import counted

_COMMANDS = "hocket.run"


class WorkerStarted(Event, frozen=True):
    level = INFO

    process: int
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"worker {self.process} serves {self.served}"

    @property
    def served(self) -> str:
        """The kinds; a worker without handlers also says what that means."""
        if self.kinds == (_COMMANDS,):
            return f"{_COMMANDS} only, the commands of `hocket run`; name a module for handlers: `hocket work tasks.py`"
        return ", ".join(self.kinds)


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


class GpusUnpriced(Event, frozen=True):
    """The rate card has no rate for GPUs of this machine. Commands that use them run, and their use is not priced."""

    classes: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"the rate card has no rate_gpu_sec for this machine's {', '.join(self.classes)}: what commands use of"
            " them is not priced, and counts towards no cap on costs"
        )


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
            " goes by theirs; set the one that is wrong, or wait a few seconds if the clock was just set right"
        )


class EvictionNotAllowed(Event, frozen=True):
    def __str__(self) -> str:
        return "expired artifacts stay: this node may not evict them; grant it artifact:write"
