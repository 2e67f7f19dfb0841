"""Answers `/metrics`, `/healthz` and `/readyz` of one process. A process that answers is healthy. It is ready if it can
do its work now: it can read its store, and does not stop. Many requests at once cost as much as one, because an answer
counts for a second.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING

import msgspec

from hocket.api import Service
from hocket.api.figures import why_not_ready
from hocket.errors import StoreError
from hocket.events import Emit, ignore
from hocket.events.troubles import described
from hocket.events.workers import StepFailed
from hocket.kernel.ids import node_text
from hocket.mesh import wire
from hocket.mesh.wire import Reply, Request
from hocket.node.node import Node
from hocket.server.monitoring.event_counts import EventCounts

if TYPE_CHECKING:
    from hocket.server.monitoring.collector import Collector

METRICS, HEALTH, READY = "/metrics", wire.HEALTH, "/readyz"
FRESH_S = 1.0
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Monitor:
    """`counts` has counted the events of this process. `refusals` gives what its server refused, `troubles` why it
    cannot work now.
    """

    def __init__(
        self,
        node: Node,
        counts: EventCounts,
        refusals: Callable[[], Mapping[str, int]] = dict,
        troubles: Callable[[], list[str]] = list,
        emit: Emit = ignore,
    ) -> None:
        self._emit = emit
        self._node, self._counts, self._refusals, self._troubles = node, counts, refusals, troubles
        self._service = Service(node.runtime)
        self._collector: Collector | None = None
        self._asking = asyncio.Lock()
        self._answers: dict[str, tuple[float, str, Reply]] = {}
        self._paths = {METRICS: self._metrics, HEALTH: self._health, READY: self._ready}

    def has(self, path: str) -> bool:
        return path in self._paths

    async def answer(self, request: Request) -> Reply:
        make = self._paths.get(request.path)
        if make is None:
            return Reply(404, _HEADERS)
        if request.method not in ("GET", "HEAD"):
            return Reply(405, {**_HEADERS, "allow": "GET, HEAD"})
        try:
            reply = await self._fresh(request, make)
        except Exception as error:
            self._emit(StepFailed(f"answering {request.path}", described(error)))
            return Reply(500, _HEADERS)
        return reply if request.method == "GET" else reply._replace(body=b"")

    async def _fresh(self, request: Request, make: Callable[[Request], Awaitable[Reply]]) -> Reply:
        monotonic, accept = self._node.environment.monotonic, request.headers.get("accept", "")
        async with self._asking:
            made_at, accepted, reply = self._answers.get(request.path, (0.0, None, Reply(503)))
            if accept != accepted or monotonic() - made_at >= FRESH_S:
                reply = await make(request)
                self._answers[request.path] = monotonic(), accept, reply
            return reply

    async def _health(self, request: Request) -> Reply:
        return _reply(200, {"node": node_text(self._service.runtime.log.node)})

    async def _ready(self, request: Request) -> Reply:
        try:
            troubles = await self._node.call(lambda: why_not_ready(self._service)) + self._troubles()
        except StoreError:
            troubles = ["the store cannot be read"]
        return _reply(503 if troubles else 200, {"ready": not troubles, "reasons": troubles})

    async def _metrics(self, request: Request) -> Reply:
        collector, accept = self._whole_collector(), request.headers.get("accept", "")
        text, content_type = await self._node.call(lambda: collector.text(accept))
        return Reply(200, {**_HEADERS, "content-type": content_type}, text)

    def _whole_collector(self) -> "Collector":
        if self._collector is None:
            from hocket.server.monitoring.collector import Collector

            self._collector = Collector(self._service, self._counts, self._refusals, lambda: self._node.open_bus)
        return self._collector


def _reply(status: int, answer: Mapping[str, object]) -> Reply:
    return Reply(status, {**_HEADERS, "content-type": wire.JSON}, msgspec.json.encode(answer))


_HOST = re.compile(r"\[([^\]]*)\](?::[0-9]*)?|([^:]*)(?::[0-9]*)?")


def names_this_machine(host: str | None, bound: str = "") -> bool:
    """Whether a request names this machine in its Host header. Metrics are given without a token to callers on this
    machine, and a browser is one: a web page whose own name was pointed at this machine's address (DNS rebinding) reads
    what this machine answers, and then the header has the page's name. No one outside can give a page an address in
    digits, or a name without a dot.

    `host` is the header, None if there was none, as from no browser. `bound` is the name that the operator gave to the
    server's socket.
    """
    if host is None:
        return True
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return False
    name = (found[1] or found[2] or "").lower()
    try:
        ip_address(name)
        return True
    except ValueError:
        is_local = "." not in name or name.endswith(".localhost")
        return bool(name) and (is_local or name in (bound.lower(), socket.gethostname().lower()))
