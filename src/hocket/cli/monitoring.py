"""`--metrics` of long-running commands: counts the events of the process, and serves its metrics and probes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import Option
from hocket.errors import Usage
from hocket.events import Emit
from hocket.events.event_logging import log_event, logged
from hocket.events.workers import MetricsServed
from hocket.node.node import Node

if TYPE_CHECKING:
    from hocket.server.monitoring.monitor_server import Routes

MetricsOption = Annotated[
    str | None,
    Option(
        "--metrics", "[HOST:]PORT", "Serve /metrics, /healthz and /readyz there; without a host, for this machine only."
    ),
]


def monitored(
    node: Node, metrics: str | None, troubles: Callable[[], list[str]], routes: "Routes | None" = None
) -> tuple[AbstractAsyncContextManager[object], Emit]:
    """Serves metrics inside the block, if an address is given. Pass the second to all parts of the process. `troubles`
    gives why the process cannot work now. The server answers `routes` besides.
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
    monitor = Monitor(node, counts, troubles=troubles, emit=emit)
    server = MonitorServer(monitor, *parse_address(metrics), routes or {})
    log_event(MetricsServed(server.address))
    return server, emit
