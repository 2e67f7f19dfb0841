"""Puts the metrics of a process together when they are asked for: what its events counted, what its server refused and
its bus dropped, and the figures of its node's store. It keeps no figure of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family

from hocket.api import Service
from hocket.api.figures import Figures, figures
from hocket.bus.signed import SignedMessages
from hocket.errors import StoreError
from hocket.families.jobs.view import COUNTED
from hocket.kernel import __version__
from hocket.kernel.ids import node_text
from hocket.server.monitoring import metrics
from hocket.server.monitoring.event_counts import BUCKETS_S, LABEL_VALUES_MAX, BoundedLabel, EventCounts, Histogram
from hocket.server.monitoring.metrics import Labels, Metric, MetricType, Samples

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Collector:
    """`refusals` gives what the server of this process refused, `bus` its bus if it has opened one. Use `text` from one
    thread at a time.
    """

    def __init__(
        self,
        service: Service,
        counts: EventCounts,
        refusals: Callable[[], Mapping[str, int]] = dict,
        bus: Callable[[], SignedMessages | None] = lambda: None,
    ) -> None:
        self._service, self._counts, self._refusals, self._bus = service, counts, refusals, bus
        self._worker_node = BoundedLabel()
        self._process = ProcessCollector(registry=None)

    def text(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that a client accepts, and the content type."""
        encode, content_type = choose_encoder(OPENMETRICS if "application/openmetrics-text" in accept else "")
        return encode(self), content_type

    def collect(self) -> Iterator[Family]:
        yield from self._process.collect()
        yield from _families(self._of_process(), self._counts.histograms)
        yield from _families(self._of_node(), {}, node_text(self._service.runtime.log.node))

    def _of_process(self) -> Samples:
        samples: Samples = {}
        for (metric, labels), count in list(self._counts.counters.items()):
            samples.setdefault(metric, {})[labels] = count
        samples.setdefault(metrics.LEASES_LOST, {}).setdefault((), 0)
        samples.setdefault(metrics.RESULTS_DISCARDED, {}).setdefault((), 0)
        samples[metrics.REQUESTS_REFUSED] = {(reason,): count for reason, count in self._refusals().items()}
        if (bus := self._bus()) is not None:
            state, unbelieved = bus.state, dict(bus.counts)
            samples[metrics.BUS_DROPPED] = {
                ("not_sent",): state.lost,
                ("queue_full",): bus.dropped,
                **{(reason.value.replace(" ", "_"),): count for reason, count in unbelieved.items()},
            }
            samples[metrics.BUS_CONNECTED] = {(): state.is_connected}
        return samples

    def _of_node(self) -> Samples:
        samples: Samples = {metrics.INFO: {(__version__,): 1}, metrics.STORE_READABLE: {(): 1}}
        try:
            samples |= self._of_store(figures(self._service))
            for shown in list(self._counts.shown.values()):
                samples |= shown(self._service)
            return samples
        except StoreError:
            return samples | {metrics.STORE_READABLE: {(): 0}}

    def _of_store(self, found: Figures) -> Samples:
        # A state without jobs is 0 and not absent, so that graphs and alerts see it.
        jobs = Counter({(self._counts.kind(each.kind), state): 0 for each in found.jobs for state in COUNTED})
        for each in found.jobs:
            jobs[self._counts.kind(each.kind), each.state] += each.jobs
        seen = [each for each in found.peers if each.seen_ms][:LABEL_VALUES_MAX]
        return {
            metrics.JOBS: {labels: count for labels, count in jobs.items()},
            metrics.LOG_OPS: {(): found.ops},
            metrics.OPS_NOT_COUNTED: {(reason,): count for reason, count in found.refused_ops.items()},
            metrics.OPS_HELD: {(): found.held_ops},
            metrics.HORIZON_AGE: {(): (found.horizon_age_ms or 0) / 1000},
            metrics.DELETED_OPS: {(): found.deleted_ops},
            metrics.OUTBOX_OPS: {(): found.outbox_ops},
            metrics.SYNC_LAG: {(): found.lag_ms / 1000},
            metrics.CHECKPOINTS: {(standing,): count for standing, count in found.checkpoints.items()},
            metrics.CHECKPOINT_MADE: {} if found.checkpoint_ms is None else {(): found.checkpoint_ms / 1000},
            metrics.PEERS: dict(Counter((each.state,) for each in found.peers)),
            metrics.PEER_SEEN: {(each.address,): each.seen_ms / 1000 for each in seen},
            metrics.WORKERS: {(state,): count for state, count in found.workers.items()},
            metrics.NODES: {(grade,): count for grade, count in found.nodes.items()},
            **self._of_grid(found),
        }

    def _of_grid(self, found: Figures) -> Samples:
        samples: Samples = {}
        for each in found.grid[:LABEL_VALUES_MAX]:
            kind = self._counts.kind(each.kind)
            for metric, value in (
                (metrics.GRID_EPOCH, each.epoch),
                (metrics.GRID_TAKEOVERS, each.takeovers),
                (metrics.GRID_REFUSED, each.refused),
                (metrics.GRID_DOUBLE_STARTS, each.double_starts),
            ):
                samples.setdefault(metric, {})[kind,] = value
            for node in each.nodes:
                labels = kind, self._worker_node(node.node)
                samples.setdefault(metrics.GRID_CLAIMS, {})[labels] = node.claims
                samples.setdefault(metrics.GRID_WORKERS, {})[labels] = len(node.workers)
                _add_share(samples, metrics.GRID_SHARE, labels, node.share)
                _add_share(samples, metrics.GRID_EXPECTED, labels, node.expected)
            for worker in [worker for node in each.nodes for worker in node.workers][:LABEL_VALUES_MAX]:
                _add_share(samples, metrics.GRID_WORKER_SHARE, (kind, worker.worker), worker.share)
                _add_share(samples, metrics.GRID_WORKER_EXPECTED, (kind, worker.worker), worker.expected)
        return samples


def _add_share(samples: Samples, metric: Metric, labels: Labels, share: float | None) -> None:
    if share is not None:
        samples.setdefault(metric, {})[labels] = share


def _families(
    samples: Samples, histograms: Mapping[tuple[Metric, Labels], Histogram], node: str | None = None
) -> Iterable[Family]:
    """With a `node`, each sample has it as its first label."""
    first = () if node is None else (node,)
    for metric, values in samples.items():
        make = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
        family = make(metric.name, metric.help, labels=metric.labels if node is None else ("node", *metric.labels))
        for labels, value in values.items():
            family.add_metric((*first, *labels), value)
        yield family
    for metric in dict.fromkeys(metric for metric, _ in list(histograms)):
        shown = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for (of, labels), histogram in list(histograms.items()):
            if of is metric:
                bounds = (*(str(each) for each in BUCKETS_S), "+Inf")
                shown.add_metric(labels, list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.total)
        yield shown
