"""`--metrics` of long-running commands: counts the events of the process, and serves its metrics and probes."""

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


def monitored(
    node: Node, metrics: str | None, troubles: Callable[[], list[str]]
) -> tuple[AbstractAsyncContextManager[object], Emit]:
    """Serves metrics inside the block, if an address is given. Pass the second to all parts of the process. `troubles`
    gives why the process cannot work now.
    """
    if metrics is None:
        return nullcontext(), log_event
    try:
        from hocket.server.monitoring.event_counts import EventCounts
        from hocket.server.monitoring.monitor import Monitor
        from hocket.server.monitoring.monitor_server import MonitorServer, parse_address
    except ImportError as error:
        raise Usage(f"--metrics needs {error.name}; install hocket[server]") from None
    counts = EventCounts()
    emit = logged(counts)
    server = MonitorServer(Monitor(node, counts, troubles=troubles, emit=emit), *parse_address(metrics))
    log_event(MetricsServed(server.address))
    return server, emit
