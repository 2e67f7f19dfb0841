"""What every path of the gate needs: who the caller is, how a request is refused, and how its query and its answer are
read and written.

`Turns` decide whose batch is admitted next. A few are admitted at once; of the nodes that wait, the one that has used
the least of the store's time goes first. So a node that sends costly ops waits for the others, and the others do not
wait for it.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from hocket.kernel.authority import Standing
from hocket.kernel.frontier import Frontier, parse_frontier
from hocket.kernel.postcard import Malformed
from hocket.mesh import wire
from hocket.mesh.outgoing import PAGE_OPS_MAX, PeerReader
from hocket.mesh.wire import Reply, Request

PAGE_OPS_DEFAULT = 1_000


class Caller(NamedTuple):
    reader: PeerReader
    standing: Standing
    nonce: str
    permissions: int
    is_forked: bool

    @property
    def node(self) -> int:
        return self.reader.node


class RequestRefused(Exception):
    """Ends a request: a status for the caller, a reason for the operator. There are only a few reasons; `detail` may
    repeat what the caller sent. `node` is the caller, if proven.
    """

    def __init__(self, status: int, reason: str, node: int | None = None, detail: str = "", **headers: str) -> None:
        super().__init__(reason)
        self.status, self.reason, self.node, self.detail = status, reason, node, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def asked_page(request: Request, node: int) -> tuple[Frontier, int]:
    try:
        asked = parse_qsl(request.query, keep_blank_values=True, strict_parsing=True, max_num_fields=8)
    except ValueError:
        raise RequestRefused(400, "an unreadable query", node) from None
    values = dict(asked)
    if len(values) != len(asked) or not values.keys() <= {"since", "limit"} or "since" not in values:
        raise RequestRefused(400, "a query without since, or with more than since and limit", node)
    try:
        since = parse_frontier(values["since"])
    except Malformed:
        raise RequestRefused(400, "an unreadable frontier", node) from None
    limit = values.get("limit", str(PAGE_OPS_DEFAULT))
    if not limit.isascii() or not limit.isdigit():
        raise RequestRefused(400, "a limit that is not a number", node)
    return since, PAGE_OPS_MAX if len(limit) > 9 else min(PAGE_OPS_MAX, int(limit))


def check_type(request: Request, node: int | None) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != wire.OCTETS:
        raise RequestRefused(415, "an unsupported content type", node)


@contextmanager
def at_once(counts: Counter[int], node: int, limit: int, reason: str) -> Iterator[None]:
    """Limits how much is done for one node at once."""
    if counts[node] >= limit:
        raise RequestRefused(429, reason, node, retry_after="1")
    counts[node] += 1
    try:
        yield
    finally:
        counts[node] -= 1
        if not counts[node]:
            del counts[node]


def json_reply(status: int, value: object, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, {"content-type": wire.JSON, **(headers or {})}, msgspec.json.encode(value))


class Turns:
    """`used` gives how much of the store's time a node has used of late; equals go in the order of their arrival. With
    `is_contested`, another node always waits: a simulation has no moment between two slices of a batch.
    """

    def __init__(self, at_once: int, used: Callable[[int], float], is_contested: bool = False) -> None:
        self._free, self._used, self._is_contested = at_once, used, is_contested
        self._waiting: list[tuple[float, int, int, asyncio.Future[None]]] = []
        self._arrivals = count()

    @asynccontextmanager
    async def turn(self, node: int) -> AsyncIterator[None]:
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(node)
        try:
            yield
        finally:
            self._pass_on()

    def is_awaited(self, node: int) -> bool:
        """Whether another node waits for its turn. Any thread may ask."""
        return self._is_contested or any(other != node for _, _, other, _ in list(self._waiting))

    async def _wait(self, node: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._used(node), next(self._arrivals), node, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
