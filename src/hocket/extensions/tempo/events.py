"""Pulses, beats, and the reports and alarms of each bar."""

from typing import TYPE_CHECKING

from hocket.events import DEBUG, INFO, WARNING, Event
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from hocket.extensions.tempo.messages import BarReport


class ReverbStarted(Event):
    level = INFO
    sentence = "process {pid} reports the bars of cluster {cluster_id}"
    pid: int
    cluster_id: str


class BarReported(Event):
    """A reverb has a new report of a window. `alarms` are those that it raises."""

    routine = True
    level = INFO
    report: "BarReport"
    alarms: tuple[str, ...] = ()

    def __str__(self) -> str:
        report = self.report
        alarms = f"; alarms: {', '.join(self.alarms)}" if self.alarms else ""
        return (
            f"window {report.window}: {counted(report.tasks, 'task')}, {counted(report.overruns, 'overrun')},"
            f" {counted(report.broken_promises, 'broken promise')}{alarms}"
        )


class AlarmRaised(Event):
    """A window raises an alarm that the window before it did not raise."""

    sentence = "window {window} raises the alarm {alarm}; see `hocket tempo report`"
    alarm: str
    window: str


class AlarmEnded(Event):
    level = INFO
    sentence = "alarm {alarm} ended with window {window}"
    alarm: str
    window: str


class _TempoEvent(Event):
    logger = "hocket.tempo"
    level = INFO
    cluster: str


class PulseStarted(_TempoEvent):
    """This pulse listens, and leads if no other does."""

    sentence = "this pulse listens to {cluster}"


class PulseLeads(_TempoEvent):
    sentence = "this pulse leads {cluster} (fence {fence})"
    fence: int


class PulseFollows(_TempoEvent):
    """This pulse led until now. `reason` says why it no longer does."""

    sentence = "this pulse no longer leads {cluster} (fence {fence}): {reason}"
    fence: int
    reason: str


class PulseLockFailed(_TempoEvent):
    """This pulse could not ask for the lock of the leader. It tries again."""

    level = WARNING
    sentence = "this pulse cannot ask who leads {cluster}: {error}; it tries again"
    error: str


class RegisterReplaced(_TempoEvent):
    """The leader's register on the bus had a value that no member that may lead has signed."""

    level = WARNING
    sentence = (
        "the register of {cluster} on the bus had a value that no pulse of this mesh wrote; this pulse replaced it."
        " Restrict who may write to it with permissions of the NATS server"
    )


class BeatSent(_TempoEvent):
    """`late_s` is how long after the start of the beat its frame left, and `drift_s` how far the time of day is ahead
    of the pulse's clock.
    """

    routine = True
    level = DEBUG
    beat_index: int
    tempo_bpm: int
    late_s: float
    drift_s: float
    is_degraded: bool

    def __str__(self) -> str:
        kind = "degraded beat" if self.is_degraded else "beat"
        return f"{kind} {self.beat_index} of {self.cluster} sent, {1000 * self.late_s:.1f} ms late"


class TempoChanged(_TempoEvent):
    """The leading pulse has decided this."""

    sentence = "the tempo of {cluster} goes from {from_bpm} to {to_bpm} beats a minute"
    from_bpm: int
    to_bpm: int


class BeatsDegraded(_TempoEvent):
    level = WARNING
    sentence = (
        "no pulse leads {cluster}: this process counts {tempo_bpm} beats a minute by the pulses that it hears, or by"
        " its own clock"
    )
    tempo_bpm: int


class BeatsLed(_TempoEvent):
    """After a time without a leader, or at the start."""

    sentence = "node {leader} leads {cluster} (fence {fence})"
    leader: str
    fence: int


class ReportRefused(_TempoEvent):
    """An adaptive tempo ignores the reports of this node. A pulse says so once a minute."""

    level = WARNING
    sentence = "the tempo of {cluster} ignores the reports of node {node}, which may not lead"
    node: str


class FrameRefused(_TempoEvent):
    """This process refused `count` frames of a node for this reason since the last such event, at most one a minute."""

    level = WARNING
    node: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {counted(self.count, 'frame')} of node {self.node} for {self.cluster}: {self.reason}"
