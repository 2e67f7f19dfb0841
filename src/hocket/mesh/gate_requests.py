"""What every path of the gate needs: who the caller is, how a request is refused, and how its query and its answer are
read and written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
