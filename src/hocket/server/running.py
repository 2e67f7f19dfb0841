"""A server inside a program. It binds its socket first, so that the port is known and a port in use is a clear error.
Handling signals is left to the program.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from hocket.errors import Unreachable, Usage
from hocket.log import load as load_log
from hocket.mesh.gate import Gate
from hocket.mesh.peers import is_loopback
from hocket.server.api import Api
from hocket.server.app import Site, web_app
from hocket.server.connections import BoundedListener, BoundedProtocol, Connections
from hocket.server.monitoring.monitor import Monitor
from hocket.server.proxies import TrustedProxies, checked_base_path

KEEP_ALIVE_S = 75
STOP_S = 5
BACKLOG = 256
# How often an idle server wakes.
TICK_S = 1.0


class _Uvicorn(uvicorn.Server):
    """Wakes once a second, for the date in its answers; uvicorn's own loop wakes ten times as often."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stopping.wait()


class AppServer:
    """Serves an ASGI application on a bound socket."""

    def __init__(
        self,
        app: ASGIApp,
        listener: BoundedListener,
        protocol: type[BoundedProtocol] = BoundedProtocol,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self._listener = listener
        self._config = uvicorn.Config(
            app,
            http=partial(protocol, connections=listener.connections),  # type: ignore[arg-type]
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=None if cert is None else str(cert),
            ssl_keyfile=None if key is None else str(key),
        )
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the server accepts connections."""
        # Bad input from strangers is not logged; the gate reports what it refuses.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server = _Uvicorn(self._config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
                raise Unreachable(f"the server on port {self._listener.getsockname()[1]} stopped at once")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Lets running requests finish, within a few seconds."""
        if self._server is not None and self._serving is not None:
            self._server.end()
            await self._serving
        self._listener.close()


class Server:
    """Serves a gate. `host` may be a name or an address; port 0 takes any free port. `proxies` are the addresses and
    networks of reverse proxies in front of it, whose X-Forwarded-For is believed, and `base_path` is where they have
    put this server. With an `api` it serves programs, too, with a
    `monitor` metrics and probes, and `sites` have paths of their own.
    """

    def __init__(
        self,
        gate: Gate,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        cert: Path | None = None,
        key: Path | None = None,
        protocol: type[BoundedProtocol] = BoundedProtocol,
        proxies: Collection[str] = (),
        base_path: str = "",
        api: Api | None = None,
        monitor: Monitor | None = None,
        sites: Sequence[Site] = (),
    ) -> None:
        if (cert is None) != (key is None):
            raise Usage("--cert and --key must be given together")
        self._gate, self._host, self._api = gate, host, api
        self._cert, self._key = cert, key
        self._check_certificate()
        trusted, base_path = TrustedProxies(proxies), checked_base_path(base_path)
        listener = bound_listener(host, port)
        listener.connections = Connections(trusted.has, lambda reason: gate.turned_away(503, reason))
        self.port: int = listener.getsockname()[1]
        app = web_app(gate, trusted, api, monitor, base_path, sites)
        self._app_server = AppServer(app, listener, protocol, cert, key)

    @property
    def scheme(self) -> str:
        return "http" if self._cert is None else "https"

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self._host)

    @property
    def address(self) -> str:
        """The address to reach it, as far as this machine can tell: for a server on all interfaces, that of the default
        route.
        """
        host = self._host
        if host in ("0.0.0.0", "::", ""):
            host = outward_host()
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    async def start(self) -> None:
        """Returns when the server accepts connections."""
        load_log()
        await self._gate.open()
        await self._app_server.start()

    async def stop(self) -> None:
        """Lets running requests finish, within a few seconds."""
        await self._gate.close()
        if self._api is not None:
            self._api.stop()
        await self._app_server.stop()

    def _check_certificate(self) -> None:
        if self._cert is None or self._key is None:
            return
        for path in (self._cert, self._key):
            if not path.is_file():
                raise Usage(f"no file at {path}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._cert, self._key)
        except ssl.SSLError as error:
            raise Usage(f"{self._cert} and {self._key} are not a certificate and its key: {error.reason}") from error


def bound_listener(host: str, port: int) -> BoundedListener:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = BoundedListener(family, kind, protocol)
    except OSError as error:
        raise Usage(f"{host!r} is not a host of this machine: {error.strerror}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise Unreachable(f"cannot listen on {host} port {port}: {error.strerror}; choose another --port") from error
    return made


def outward_host() -> str:
    """This machine's address on the default route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
