"""Hocket: many machines and agents share one stream of jobs. Exactly one of them holds each job, under a lease and a
fence; every step is a signed op on a log, and nothing waits for ever. This module is the public API; everything else
may change between versions. A name is loaded on first use, so that the command line loads only what it needs.
"""

import sys

# An older Python gets so far only with a checkout, or past pip's own check.
if sys.version_info < (3, 11):  # noqa: UP036
    raise ImportError(
        f"Hocket needs Python 3.11 or newer, and this is {sys.version.split()[0]}; install a newer Python"
    )

from hocket.kernel import __version__ as __version__

# `typing.TYPE_CHECKING` is False too; a short command need not load `typing` for it.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hocket.api.admin import Admin, AsyncAdmin, admin
    from hocket.errors import Conflict, HocketError, NotAuthorised, StaleFence, StoreError, Unreachable, Usage
    from hocket.extensions.command.request import command
    from hocket.extensions.tempo.run_pace import WaitExhausted
    from hocket.families.jobs.parts import Part
    from hocket.families.rows.requests import RowConflict
    from hocket.guard.asgi import FenceMiddleware
    from hocket.guard.database import fenced
    from hocket.guard.files import fenced_file
    from hocket.node.handles import Handle, JobCancelled, JobFailed, SyncHandle
    from hocket.node.node import Node, SyncNode
    from hocket.node.opening import init, open, open_sync
    from hocket.work.context import Context
    from hocket.work.decorator import job
    from hocket.work.derivation import derivation
    from hocket.work.handler_errors import Cancelled, Fatal, Later
    from hocket.work.handlers import Handlers, JobType, kind

__all__ = [
    "Admin",
    "AsyncAdmin",
    "Cancelled",
    "Conflict",
    "Context",
    "Fatal",
    "FenceMiddleware",
    "Handle",
    "Handlers",
    "HocketError",
    "JobCancelled",
    "JobFailed",
    "JobType",
    "Later",
    "Node",
    "NotAuthorised",
    "Part",
    "RowConflict",
    "StaleFence",
    "StoreError",
    "SyncHandle",
    "SyncNode",
    "Unreachable",
    "Usage",
    "WaitExhausted",
    "admin",
    "command",
    "derivation",
    "fenced",
    "fenced_file",
    "init",
    "job",
    "kind",
    "open",
    "open_sync",
]

_ROOMS = {
    "families.rows.requests": ("RowConflict",),
    "errors": ("Conflict", "HocketError", "NotAuthorised", "StaleFence", "StoreError", "Unreachable", "Usage"),
    "guard.asgi": ("FenceMiddleware",),
    "guard.database": ("fenced",),
    "guard.files": ("fenced_file",),
    "families.jobs.parts": ("Part",),
    "node.handles": ("Handle", "JobCancelled", "JobFailed", "SyncHandle"),
    "node.node": ("Node", "SyncNode"),
    "node.opening": ("init", "open", "open_sync"),
    "api.admin": ("Admin", "AsyncAdmin", "admin"),
    "extensions.command.request": ("command",),
    "work.decorator": ("job",),
    "work.derivation": ("derivation",),
    "work.handlers": ("Handlers", "JobType", "kind"),
    "work.handler_errors": ("Cancelled", "Fatal", "Later"),
    "work.context": ("Context",),
    "extensions.tempo.run_pace": ("WaitExhausted",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
