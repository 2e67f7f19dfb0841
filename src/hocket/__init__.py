"""Hocket: many machines and agents share one stream of jobs; each job is held by exactly one of them under a
lease and a fence, every step is a signed op on a log, and nothing waits for ever. This is the public face;
everything else may change between versions.
"""

from hocket.errors import Conflict, HocketError, StoreError, Usage
from hocket.node import Handle, JobCancelled, JobFailed, Node, SyncHandle, SyncNode, open
from hocket.work.handlers import Handlers, JobType, job, kind
from hocket.work.runner import Cancelled, Context
from hocket.work.worker import WorkerOptions

__version__ = "0.1.0"

__all__ = [
    "Cancelled",
    "Conflict",
    "Context",
    "Handle",
    "Handlers",
    "HocketError",
    "JobCancelled",
    "JobFailed",
    "JobType",
    "Node",
    "StoreError",
    "SyncHandle",
    "SyncNode",
    "Usage",
    "WorkerOptions",
    "job",
    "kind",
    "open",
]
