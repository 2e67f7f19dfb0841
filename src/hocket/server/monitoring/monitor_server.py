"""A server for the metrics and the probes of a process that serves nothing else. It asks for no token, so it listens on
this machine unless the operator names another interface, and gives metrics only to requests that name this machine.
"""

from collections.abc import Awaitable, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hocket.errors import Usage
from hocket.mesh.wire import Reply, Request
from hocket.server.connections import Connections
from hocket.server.monitoring.monitor import METRICS, Monitor, names_this_machine
from hocket.server.running import AppServer, bound_listener

Routes = Mapping[tuple[str, str], Callable[[Request], Awaitable[Reply]]]
LOCAL = "127.0.0.1"
BODY_BYTES_MAX = 1_024
_FOREIGN_NAME = b"ask for the metrics by the machine's IP address or host name, or start with --metrics NAME:PORT\n"


def parse_address(text: str) -> tuple[str, int]:
    """`PORT`, or `HOST:PORT`; an IPv6 address stands in brackets. Port 0 takes any free port."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise Usage(f"bad --metrics {text!r}; write PORT or HOST:PORT, like 9464 or 0.0.0.0:9464")
    return host.removeprefix("[").removesuffix("]") or LOCAL, int(port)


class MonitorServer:
    """Answers `routes` besides, by method and path."""

    def __init__(self, monitor: Monitor, host: str, port: int, routes: Routes) -> None:
        self._monitor, self._host, self._routes = monitor, host, routes
        listener = bound_listener(host, port)
        listener.connections = Connections()
        shown, number = listener.getsockname()[:2]
        self.address = f"http://{f'[{shown}]' if ':' in shown else shown}:{number}"
        self._server = AppServer(self._answer, listener)

    async def __aenter__(self) -> "MonitorServer":
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        route = self._routes.get((scope["method"], scope["path"]))
        is_told = scope["path"] == METRICS or route is not None
        if is_told and not names_this_machine(headers.get("host"), self._host):
            reply = Reply(403, {"content-type": "text/plain"}, _FOREIGN_NAME)
        elif route is not None:
            reply = await route(Request(scope["method"], scope["path"], headers=headers, body=await _body(receive)))
        else:
            reply = await self._monitor.answer(Request(scope["method"], scope["path"], headers=headers))
        await Response(reply.body, reply.status, dict(reply.headers))(scope, receive, send)


async def _body(receive: Receive) -> bytes:
    """The beginning of the body; no route takes more."""
    body = b""
    while len(body) <= BODY_BYTES_MAX:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body[: BODY_BYTES_MAX + 1]
