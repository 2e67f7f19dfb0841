"""`--metrics` of the commands that run long: counts the events of the process and serves its metrics and probes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Annotated

import typer

from hocket.errors import Usage
from hocket.events import Emit, MetricsServed
from hocket.node.node import Node
from hocket.work.event_logging import log_event, logged

MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve /metrics, /healthz and /readyz there; without a host, for this machine only.",
    ),
]


def monitoring(
    node: Node, address: str | None, troubles: Callable[[], list[str]]
) -> tuple[Emit, AbstractAsyncContextManager[object]]:
    """What to call with each event, and a block that serves the metrics. `troubles` says why the process cannot do its
    work now. Without an address, events are only logged.
    """
    if address is None:
        return log_event, nullcontext()
    try:
        from hocket.server.monitoring.event_counts import EventCounts
        from hocket.server.monitoring.monitor import Monitor
        from hocket.server.monitoring.monitor_server import MonitorServer, parse_address
    except ImportError as error:
        raise Usage(f"--metrics needs {error.name}; install hocket[server]") from None
    counts = EventCounts()
    emit = logged(counts)
    server = MonitorServer(Monitor(node, counts, troubles=troubles, emit=emit), *parse_address(address))
    log_event(MetricsServed(server.address))
    return emit, server
