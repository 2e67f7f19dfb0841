"""`hocket mesh serve`: runs the server that other nodes connect to, and syncs with this node's peers, until a signal
stops it. `hocket mcp`: serves one agent over stdin and stdout.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from hocket.cli.declarations import Option
from hocket.cli.long_running import start_logging
from hocket.cli.options import (
    BusOption,
    LogFormatOption,
    PolicyOption,
    ProcessAgent,
    QuietOption,
    VerboseOption,
)
from hocket.cli.printing import emit, fields
from hocket.cli.settings import open_runtime
from hocket.errors import Usage
from hocket.events.event_logging import log_event, logged
from hocket.kernel.extension import named_parts

if TYPE_CHECKING:
    from hocket.kernel.ucan import Capability
    from hocket.mcp.site import McpSite
    from hocket.mesh.gate import Gate
    from hocket.node.message_bus import BusSettings
    from hocket.node.node import Node
    from hocket.node.runtime import Runtime
    from hocket.server.api import Api
    from hocket.server.app import Site
    from hocket.server.running import Server

PORT = 7315


class ServerPlace(NamedTuple):
    """Where a server listens, and what stands before it."""

    host: str
    port: int
    cert: Path | None
    key: Path | None
    proxies: list[str]
    base_path: str


def serve(
    host: Annotated[str, Option("--host", "HOST", "The interface to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", "N", "0 takes any free port.", min=0, max=65535)] = PORT,
    address: Annotated[
        str | None, Option("--address", "URL", "The address that invitations carry. Default: a guess.")
    ] = None,
    cert: Annotated[Path | None, Option("--cert", "FILE", "The certificate, with its chain if it has one.")] = None,
    key: Annotated[Path | None, Option("--key", "FILE", "The certificate's key.")] = None,
    trust_proxy: Annotated[
        list[str] | None,
        Option("--trust-proxy", "CIDR", "Believe X-Forwarded-For from this address or network. May be repeated."),
    ] = None,
    base_path: Annotated[
        str, Option("--base-path", "PATH", "Where a reverse proxy has put this server, such as /hocket.")
    ] = "",
    rate: Annotated[
        int | None, Option("--rate", "N", "Requests a second of one token of a program. Default: 200.", min=1)
    ] = None,
    announce: Annotated[bool, Option("--announce", help="Announce this server on the local network.")] = False,
    git: Annotated[
        list[str] | None, Option("--git", "REPO", "Announce jobs that are pushed to this repository; may be repeated.")
    ] = None,
    openai: Annotated[
        str | None, Option("--openai", "KIND", "Answer OpenAI's /v1/chat/completions with jobs of this kind.")
    ] = None,
    mcp: Annotated[bool, Option("--mcp", help="Serve the Model Context Protocol to agents at /mcp.")] = False,
    a2a: Annotated[
        list[str] | None,
        Option("--a2a", "KIND", "Serve the Agent2Agent protocol, with jobs of this kind as a skill; may be repeated."),
    ] = None,
    pulse: Annotated[
        bool, Option("--pulse", help="Also send the beats of a cluster, as `hocket tempo pulse` does.")
    ] = False,
    policy: PolicyOption = None,
    bus: BusOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
) -> None:
    """Serve the other nodes of this mesh and programs, and sync with this node's own peers.

    Prints its address once it accepts connections. Invitations made from then on carry that address. Nodes identify
    themselves with a signed token; programs use the HTTP API with a token of `hocket token create`. Prometheus finds
    metrics at /metrics; from another machine it needs a token that grants mesh:read. Probes use /healthz and /readyz.
    Without --cert, others on the network can read the traffic, so use it or a private network. SIGTERM or Ctrl-C stops
    the server. It does not start while $HOCKET_MESH_ENABLED is 0.

    \b
      hocket mesh serve
      hocket mesh serve --host 0.0.0.0 --announce
      hocket mesh serve --openai acme.chat
      hocket mesh serve --pulse
      hocket mesh serve --mcp
      hocket mesh serve --a2a acme.review --a2a acme.translate
      hocket mesh serve --base-path /hocket --trust-proxy 10.0.0.0/8
      hocket mesh serve --host 0.0.0.0 --cert cert.pem --key key.pem --address https://mesh.example.org:7315
    """
    from hocket.families.jobs.requests import check_kind
    from hocket.mesh.peers import check_address
    from hocket.node.message_bus import bus_settings

    known = None if address is None else check_address(address)
    for kind in (*(a2a or ()), *([] if openai is None else [openai])):
        check_kind(kind)
    lines = start_logging(verbose, quiet, log_format)
    from hocket.api import Service
    from hocket.node.running import only_server

    with open_runtime() as runtime, closing(only_server(runtime.home.processes)):
        lines.name_nodes(Service(runtime).names)
        if policy is not None and not pulse:
            raise Usage("--policy is for --pulse; give both, or neither")
        servers = bus_settings(runtime.home, bus)
        watched = [("git", each) for each in git or ()] + ([("pulse", policy or "")] if pulse else [])
        place = ServerPlace(host, port, cert, key, trust_proxy or [], base_path)
        asyncio.run(_serve(runtime, place, known, rate, announce, servers, openai, mcp, a2a or [], watched))


async def _serve(
    runtime: "Runtime",
    place: "ServerPlace",
    address: str | None,
    rate: int | None,
    announce: bool,
    servers: "BusSettings | None",
    openai: str | None,
    has_mcp: bool,
    skills: list[str],
    watched: list[tuple[str, str]],
) -> None:
    from hocket.node.node import Node
    from hocket.node.running import announce_server
    from hocket.node.signals import stopped_by_signals

    node = Node(runtime)
    try:
        from hocket.server.monitoring.event_counts import EventCounts

        counts = EventCounts()
        emit = logged(counts)
        watch = named_parts("watches")
        watches = [watch[name](node, value, emit) for name, value in watched]
        services = node.services(emit)
        await node.relay_messages(emit, servers)
        from hocket.api import Service, peers
        from hocket.api.programs import chosen_token
        from hocket.page.page import NodePage
        from hocket.server.api import Api
        from hocket.server.monitoring.monitor import Monitor
        from hocket.server.openai import routes as chat_routes
        from hocket.server.proxies import checked_base_path
        from hocket.server.routes import ROUTES
        from hocket.server.running import Server
        from hocket.work.environment import supervising

        ended = asyncio.Event()
        gate = services.gate(lambda: {server.address, *([] if address is None else [address])})
        options: dict[str, Any] = {
            "chosen": chosen_token(dict(os.environ)),
            "base_path": place.base_path,
            "rate_per_s": rate,
        }
        routes = ROUTES if openai is None else (*ROUTES, *chat_routes(openai))
        api = Api(node, gate.turned_away, routes=routes, **options)
        troubles = lambda: ["this server stops"] if ended.is_set() else []  # noqa: E731
        monitor = Monitor(node, counts, lambda: gate.refusals, troubles, emit)
        page = NodePage(node, api, lambda: address or server.address, checked_base_path(place.base_path))
        sites: list[Site] = [page]
        if has_mcp:
            mcp = _mcp_site(node, api)
            sites.append(mcp)
        if skills:
            from hocket.a2a.site import A2aSite

            base = checked_base_path(place.base_path)
            sites.append(A2aSite(node, api, skills, lambda: (address or server.address) + base))
        server = Server(gate, **place._asdict(), api=api, monitor=monitor, sites=sites)
        told = address or server.address
        with stopped_by_signals(ended.set) as received:
            await server.start()
            if place.key is not None:
                runtime.home.note_tls_key(place.key)
            exchange = supervising("the exchange with peers", lambda: services.loop().run(), emit, node.environment)
            figures = supervising("the figures of the page", page.keep_current, emit, node.environment)
            try:
                await node.call(lambda: peers.note_address(Service(runtime), told))
                name, now_ms = node.environment.name("server"), node.environment.physical_ms()
                with closing(announce_server(runtime.home.processes, name, told, now_ms)):
                    async with (
                        exchange,
                        figures,
                        _announced(runtime, server, announce),
                        node.kept_up(emit),
                        AsyncExitStack() as stack,
                    ):
                        if has_mcp:
                            await stack.enter_async_context(mcp.running())
                        for each in watches:
                            await stack.enter_async_context(each)
                        _say(runtime, told, server)
                        await ended.wait()
            finally:
                await server.stop()
                await node.call(api.close)
        _report(gate)
        if received.is_interrupt:
            raise KeyboardInterrupt
    except ImportError as error:
        raise Usage(f"serving needs {error.name}; install hocket[server]") from None
    finally:
        await node.finish()


def _mcp_site(node: "Node", api: "Api") -> "McpSite":
    try:
        from hocket.mcp.site import McpSite
    except ImportError as error:
        raise Usage(f"`hocket mesh serve --mcp` needs {error.name}; install hocket[mcp]") from None
    return McpSite(node, api)


def mcp(
    agent: ProcessAgent = None,
    may: Annotated[
        list[str] | None,
        Option("--may", "GRANT", "Only what this grants, like job:read; may be repeated. Default: what the node may."),
    ] = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
) -> None:
    """Serve the Model Context Protocol to one agent, over stdin and stdout. The client of the agent starts this: see
    docs/mcp.md for the lines in its configuration.

    The agent's locks, jobs and mail are kept while this runs, and are free as soon as it ends, however it ends. With
    --may the agent has only these grants, written as for `hocket token create`; tools that need others are not there.

    \b
      hocket mcp --agent claude
      hocket mcp --agent watcher --may job:read --may lock:read --may mesh:read
    """
    from hocket.kernel.ucan import ROOT
    from hocket.mesh.grants import parse_grants

    capabilities = parse_grants(may, of_node=False) if may else ROOT
    start_logging(verbose, quiet, log_format)
    asyncio.run(_serve_agent(agent or f"mcp-{os.getpid()}", capabilities))


async def _serve_agent(agent: str, capabilities: "Sequence[Capability]") -> None:
    try:
        from hocket.mcp.stdio import serve_stdio
    except ImportError as error:
        raise Usage(f"`hocket mcp` needs {error.name}; install hocket[mcp]") from None
    from hocket.events.event_logging import logged
    from hocket.node.node import Node

    with open_runtime() as runtime:
        node = Node(runtime)
        try:
            received = await serve_stdio(node, agent, capabilities, logged(lambda event: None))
        finally:
            await node.finish()
    if received.is_interrupt:
        raise KeyboardInterrupt


def _say(runtime: "Runtime", address: str, server: "Server") -> None:
    import sys

    from hocket.kernel.ids import node_text

    shown: dict[str, Any] = {"address": address, "node": node_text(runtime.log.node), "process": os.getpid()}
    emit(shown)
    fields(list(shown.items()))
    sys.stdout.flush()
    if server.is_exposed and server.scheme == "http":
        from hocket.events.nodes import TrafficNotEncrypted

        log_event(TrafficNotEncrypted())


def _report(gate: "Gate") -> None:
    """Reports what the server refused while it ran."""
    from hocket.events.nodes import RequestsRefused

    for reason, count in sorted(gate.refusals.items()):
        log_event(RequestsRefused(reason, count))


@asynccontextmanager
async def _announced(runtime: "Runtime", server: "Server", wanted: bool) -> AsyncIterator[None]:
    if not wanted:
        yield
        return
    if not server.is_exposed:
        raise Usage("only this machine can reach this server; to --announce it, give another --host, like 0.0.0.0")
    from hocket.mesh.lan import Announcement
    from hocket.server.running import outward_host

    announcement = Announcement(runtime.log.node, runtime.log.user, server.scheme, [outward_host()], server.port)
    await announcement.open()
    try:
        yield
    finally:
        await announcement.close()
