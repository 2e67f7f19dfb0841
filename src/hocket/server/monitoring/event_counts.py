"""Counts the events of one process, by their types and the few fields that make good labels. It knows nothing of
Prometheus, so that counting costs little and needs no package.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from hocket.api import Service
from hocket.events import Event
from hocket.events.jobs import (
    JobClaimed,
    JobHandedBack,
    JobPostponed,
    JobRescued,
    LeaseLost,
    ResultDiscarded,
    RetryPlanned,
    RunFailed,
    RunFinished,
    RunStarted,
)
from hocket.events.nodes import OpRefused
from hocket.kernel.extension import extensions, loaded
from hocket.server.monitoring import metrics
from hocket.server.monitoring.metrics import Labels, Metric, Samples

# The upper bounds of the buckets: from a quick handler to one that runs for hours.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
# A label has at most this many values; all others are counted together.
LABEL_VALUES_MAX = 100
OTHER = "other"


class BoundedLabel:
    """The first values of a label are kept. Later ones become `other`, so that no member of a mesh can fill a metrics
    database with names that it makes up.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= LABEL_VALUES_MAX:
                return OTHER
            self._known.add(value)
        return value


@dataclass
class Histogram:
    """How many values fell into each bucket, the last one without a bound, and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS_S, value)] += 1
        self.total += value


class EventCounts:
    """Call it with each event."""

    def __init__(self) -> None:
        self.kind = BoundedLabel()
        self.counters: defaultdict[tuple[Metric, Labels], float] = defaultdict(float)
        self.shown: dict[str, Callable[[Service], Samples]] = {}
        """What extensions show besides, from an event and the store."""
        self._counts = {type: place for each in extensions() for type, place in each.counts.items()}
        self.histograms: dict[tuple[Metric, Labels], Histogram] = {}

    def __call__(self, event: Event) -> None:
        self.add(metrics.EVENTS, type(event).__name__)
        match event:
            case JobClaimed(kind=kind, waited_s=float(waited_s)):
                self.observe(metrics.WAIT_SECONDS, waited_s, self.kind(kind))
            case RunStarted(kind=kind):
                self.add(metrics.RUNS_STARTED, self.kind(kind))
            case RunFinished():
                self._ended(event, "succeeded")
            case RunFailed():
                self._ended(event, "failed")
            case JobHandedBack(kind=kind):
                self.add(metrics.RUNS, self.kind(kind), "handed_back")
            case JobPostponed(kind=kind):
                self.add(metrics.RUNS, self.kind(kind), "postponed")
            case RetryPlanned(kind=kind):
                self.add(metrics.RETRIES, self.kind(kind))
            case JobRescued(kind=kind):
                self.add(metrics.RESCUED, self.kind(kind))
            case LeaseLost():
                self.add(metrics.LEASES_LOST)
            case ResultDiscarded():
                self.add(metrics.RESULTS_DISCARDED)
            case OpRefused(reason=reason, count=count):
                self.counters[metrics.OPS_REFUSED, (reason.lower(),)] += count
            case _ if place := self._counts.get(type(event).__name__):
                loaded(place)(self, event)

    def _ended(self, event: RunFinished | RunFailed, outcome: str) -> None:
        kind = self.kind(event.kind)
        self.add(metrics.RUNS, kind, outcome)
        self.observe(metrics.RUN_SECONDS, event.run_s, kind, outcome)
        if event.cost is not None:
            self.counters[metrics.RUN_COST, (kind,)] += event.cost

    def add(self, metric: Metric, *labels: str) -> None:
        self.counters[metric, labels] += 1

    def observe(self, metric: Metric, value: float, *labels: str) -> None:
        key = metric, labels
        if key not in self.histograms:
            self.histograms[key] = Histogram()
        self.histograms[key].observe(value)
