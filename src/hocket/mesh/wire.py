"""What crosses between two nodes, as plain values: requests, replies, the names of headers and paths, and the bounds
that both sides keep. `Transport` is how a request gets to an address, the
real one is in `http`, and a simulation hands in its own.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from hocket.bus.changes import ANYTHING, Changes, decode_changes, encode_changes
from hocket.kernel.ids import content_hash
from hocket.store import Session
from hocket.work.node_access import NodeAccess

T = TypeVar("T")

BODY_BYTES_MAX = 8 * 1024 * 1024
PROTOCOL = 1

OPS = "/ops"
EXCHANGE = "/exchange"
HINTS = "/hints"
INTRODUCE = "/introduce"
HEALTH = "/healthz"
BLOBS = "/v1/blobs"

OCTETS = "application/octet-stream"
JSON = "application/json"
EVENTS = "text/event-stream"

# Header names are lower-case everywhere here, as HTTP does not tell the cases apart.
RULES_HASH = "x-likewise-mesh-rules-hash"
NEXT_FRONTIER = "x-likewise-next-frontier"
# Ours. The frontier of a server whose answer leaves nothing out; the token by which the server says which node it is;
# its time in seconds, for a client whose token it found too old or too new; and the counts of an exchange.
FRONTIER = "x-hocket-frontier"
NODE = "x-hocket-node"
TIME = "x-hocket-time"
APPENDED, DUPLICATED, REJECTED, HELD = "x-hocket-appended", "x-hocket-duplicated", "x-hocket-rejected", "x-hocket-held"
UNLINKED = "x-hocket-unlinked"
# What the program of either side knows beyond Likewise v0.1. Operators are told of differences; nothing hangs on it.
KNOWS = "x-hocket-knows"
# How many ops were refused because the caller's quota is used up, and after how many seconds more is taken.
OVER_QUOTA, RETRY_S = "x-hocket-over-quota", "x-hocket-retry-s"
COUNTS = (APPENDED, DUPLICATED, REJECTED, HELD, UNLINKED, OVER_QUOTA, RETRY_S)
# Those that a server of an earlier version leaves out.
LATER_COUNTS = frozenset((HELD, UNLINKED, OVER_QUOTA, RETRY_S))
# What a server signs for beside the status and the body of its answer, in this order.
SIGNED = (RULES_HASH, NEXT_FRONTIER, FRONTIER, *COUNTS)


class BodyTooLong(Exception):
    """A body is longer than the reader wants it."""


class NoRoom(Exception):
    """There is no room for more bodies now."""


class Request(NamedTuple):
    """`query` is raw, as it stood behind the question mark; header names are lower-case. `address` is where it comes
    from, for limits; empty where that has no meaning. A request whose body is still on its way has `read`, which takes
    the largest size that is wanted and raises BodyTooLong or NoRoom.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    address: str = ""
    read: Callable[[int], Awaitable[bytes]] | None = None

    async def whole(self, limit: int) -> "Request":
        """The same with its body."""
        body = self.body if self.read is None else await self.read(limit)
        if len(body) > limit:
            raise BodyTooLong
        return self._replace(body=body, read=None)


class Reply(NamedTuple):
    """With a `stream`, the body is whatever that gives, for as long as it goes on."""

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None


def answer_hash(reply: Reply) -> str:
    """What the server's token says of its answer: a hash of everything that the caller believes."""
    lines = [str(reply.status), *(f"{name}: {reply.headers.get(name, '')}" for name in SIGNED)]
    head = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    return content_hash(head + content_hash(reply.body)).hex()


class _Hint(msgspec.Struct):
    changes: str


def hint(changes: Changes) -> bytes:
    """One event of a stream of hints. Its data is JSON; earlier versions send and expect an empty object."""
    text = base64.b64encode(encode_changes(changes)).decode()
    return b"event: ops\ndata: %b\n\n" % msgspec.json.encode(_Hint(text))


def read_hint(data: bytes) -> Changes:
    """What the data of an event says. An earlier or a later version may mean anything."""
    try:
        return decode_changes(base64.b64decode(msgspec.json.decode(data, type=_Hint).changes, validate=True))
    except (msgspec.MsgspecError, ValueError):
        return ANYTHING


class Transport(Protocol):
    """Both raise Unreachable when the address does not answer, or not in time, or with more than it may."""

    async def send(self, address: str, request: Request) -> Reply: ...

    def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        """What the peer says that has changed, until the connection ends. The first hint says that it stands."""


async def look(access: NodeAccess, query: Callable[[Session], T]) -> T:
    """Runs a query over one consistent view of the store."""

    def work() -> T:
        with access.log.store.read() as session:
            return query(session)

    return await access.call(work)


async def note(access: NodeAccess, change: Callable[[Session], T]) -> T:
    """Changes what this node keeps about other nodes. Nobody is woken: it is on no log."""

    def work() -> T:
        with access.log.store.write() as session:
            return change(session)

    return await access.call(work)
