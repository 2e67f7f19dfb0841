"""Every metric of the core: its name, what it counts, and its labels. Names follow Prometheus' conventions: base
units, `_total` for counters, a plural for things that are counted now. An extension that counts has a
module `metrics` like this. docs/metrics.md and the dashboard name no other.
"""

from enum import StrEnum
from typing import NamedTuple


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    name: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()


Labels = tuple[str, ...]
Samples = dict[Metric, dict[Labels, float]]
_COUNTER, _GAUGE, _HISTOGRAM = MetricType

# Of this process, from its events. They begin at 0 with the process.
EVENTS = Metric("hocket_events_total", _COUNTER, "Events of this process by type.", ("type",))
RUNS_STARTED = Metric("hocket_runs_started_total", _COUNTER, "Handlers that this worker started.", ("kind",))
RUNS = Metric("hocket_runs_total", _COUNTER, "Runs of handlers that ended here, by outcome.", ("kind", "outcome"))
RUN_SECONDS = Metric("hocket_run_duration_seconds", _HISTOGRAM, "How long handlers ran.", ("kind", "outcome"))
RUN_COST = Metric("hocket_run_cost_total", _COUNTER, "What runs cost by this worker's rate card.", ("kind",))
WAIT_SECONDS = Metric(
    "hocket_job_wait_seconds", _HISTOGRAM, "Time from when a job could start to its first claim.", ("kind",)
)
RETRIES = Metric("hocket_retries_total", _COUNTER, "Failed runs whose job is tried again.", ("kind",))
RESCUED = Metric("hocket_jobs_rescued_total", _COUNTER, "Jobs taken back from workers that are gone.", ("kind",))
LEASES_LOST = Metric("hocket_leases_lost_total", _COUNTER, "Runs that were stopped because their lease was lost.")
RESULTS_DISCARDED = Metric("hocket_results_discarded_total", _COUNTER, "Results that came too late to count.")
OPS_REFUSED = Metric("hocket_ops_refused_total", _COUNTER, "Ops of other nodes that were refused.", ("reason",))
REQUESTS_REFUSED = Metric("hocket_requests_refused_total", _COUNTER, "HTTP requests that were refused.", ("reason",))
BUS_DROPPED = Metric(
    "hocket_bus_messages_dropped_total",
    _COUNTER,
    "Messages of the bus that this process could not send, did not believe or was too slow for.",
    ("reason",),
)
BUS_CONNECTED = Metric("hocket_bus_connected", _GAUGE, "Whether this process is connected to its bus.")

# Of this node, from its store. Every process of a node shows the same.
JOBS = Metric("hocket_jobs", _GAUGE, "Jobs by kind and state or outcome.", ("kind", "state"))
LOG_OPS = Metric("hocket_log_ops", _GAUGE, "Ops on the log of this node.")
OPS_NOT_COUNTED = Metric("hocket_log_ops_refused", _GAUGE, "Ops that do not count, by reason.", ("reason",))
OPS_HELD = Metric("hocket_log_ops_held", _GAUGE, "Ops from clocks that are ahead, which wait.")
HORIZON_AGE = Metric("hocket_horizon_age_seconds", _GAUGE, "How far back the log is settled; without a horizon 0.")
DELETED_OPS = Metric("hocket_deleted_ops", _GAUGE, "Ops that retention let go and that were deleted here.")
OUTBOX_OPS = Metric("hocket_outbox_ops", _GAUGE, "Ops of this node that the coordinator does not have.")
SYNC_LAG = Metric("hocket_sync_lag_seconds", _GAUGE, "Age of the oldest op that the coordinator does not have.")
CHECKPOINTS = Metric("hocket_checkpoints", _GAUGE, "Checkpoints of authors, by how they stand.", ("standing",))
CHECKPOINT_MADE = Metric(
    "hocket_checkpoint_timestamp_seconds", _GAUGE, "When this node has signed its own newest checkpoint."
)
PEERS = Metric("hocket_peers", _GAUGE, "Peers by state.", ("state",))
PEER_SEEN = Metric(
    "hocket_peer_last_exchange_timestamp_seconds", _GAUGE, "When the last exchange with a peer succeeded.", ("peer",)
)
WORKERS = Metric("hocket_workers", _GAUGE, "Workers that share this store, by state.", ("state",))
NODES = Metric("hocket_nodes", _GAUGE, "Nodes by how alive they are.", ("grade",))

# Of jobs that go by rank, from the claims of the last ten minutes.
GRID_CLAIMS = Metric(
    "hocket_grid_claims", _GAUGE, "Claims on ranked jobs in the last ten minutes.", ("kind", "worker_node")
)
GRID_SHARE = Metric(
    "hocket_grid_share_ratio", _GAUGE, "A node's share of the claims on ranked jobs.", ("kind", "worker_node")
)
GRID_EXPECTED = Metric(
    "hocket_grid_expected_share_ratio", _GAUGE, "The share that its workers' weights promise.", ("kind", "worker_node")
)
GRID_WORKERS = Metric("hocket_grid_workers", _GAUGE, "Workers that are candidates for a kind.", ("kind", "worker_node"))
GRID_WORKER_SHARE = Metric(
    "hocket_grid_worker_share_ratio", _GAUGE, "A worker's share of the claims on ranked jobs.", ("kind", "worker")
)
GRID_WORKER_EXPECTED = Metric(
    "hocket_grid_worker_expected_share_ratio", _GAUGE, "The share that its weight promises.", ("kind", "worker")
)
GRID_TAKEOVERS = Metric(
    "hocket_grid_takeovers", _GAUGE, "Claims after the first claim timeout, in the last ten minutes.", ("kind",)
)
GRID_REFUSED = Metric(
    "hocket_grid_claims_refused", _GAUGE, "Claims that the coordinator refused, in the last ten minutes.", ("kind",)
)
GRID_DOUBLE_STARTS = Metric(
    "hocket_grid_double_starts", _GAUGE, "Open jobs claimed twice, in the last ten minutes.", ("kind",)
)
GRID_EPOCH = Metric("hocket_grid_epoch", _GAUGE, "The epoch of the candidates for a kind.", ("kind",))

INFO = Metric("hocket_node_info", _GAUGE, "Always 1. The labels say which node and version this is.", ("version",))
STORE_READABLE = Metric("hocket_store_readable", _GAUGE, "Whether this process could read its store for this answer.")

ALL = tuple(each for each in globals().values() if isinstance(each, Metric))
