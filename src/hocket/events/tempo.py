"""Pulses, beats, and the reports and alarms of each bar."""

from typing import TYPE_CHECKING

from hocket.events.event import DEBUG, INFO, WARNING, Event
from hocket.kernel.plurals import counted

if TYPE_CHECKING:
    from hocket.kernel.beats.messages import BarReport


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


class RegisterReplaced(_TempoEvent, frozen=True):
    """The leader's register on the bus had a value that no member that may lead has signed."""

    level = WARNING

    cluster: str

    def __str__(self) -> str:
        return (
            f"the register of {self.cluster} on the bus had a value that no pulse of this mesh wrote; this pulse"
            " replaced it. Restrict who may write to it with permissions of the NATS server"
        )


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


class ReportRefused(_TempoEvent, frozen=True):
    """An adaptive tempo follows no reports of this node; told once a minute."""

    level = WARNING

    cluster: str
    node: str

    def __str__(self) -> str:
        return f"the tempo of {self.cluster} does not follow the reports of node {self.node}: it may not lead"


class FrameRefused(_TempoEvent, frozen=True):
    """`count` frames of a node were refused for this reason since the last such event, at most one a minute."""

    level = WARNING

    cluster: str
    node: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {counted(self.count, 'frame')} of node {self.node} for {self.cluster}: {self.reason}"
