"""What two nodes exchange, as plain values: requests, replies, the names of headers and paths, and the limits that both
sides keep. `Transport` sends a request to an address; the real one is in `http`, and a simulation passes its own.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from hocket.bus.hints import ANYTHING, Changes, decode_changes, encode_changes
from hocket.families.access import NodeAccess
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash
from hocket.store import Session

T = TypeVar("T")

BODY_BYTES_MAX = 8 * 1024 * 1024
PROTOCOL = 1

OPS = "/ops"
EXCHANGE = "/exchange"
HINTS = "/hints"
INTRODUCE = "/introduce"
CHECKPOINTS = "/checkpoints"
HEALTH = "/healthz"
BLOBS = "/v1/blobs"
PRESENCE = "/v1/presence"
OUTPUT = "/v1/output"
SNAPSHOT = "/v1/snapshot"
# Messages for agents, under both names. The first is older than the Agent2Agent protocol and has nothing to do with it;
# nodes still send to it, because those of earlier versions know no other.
DELIVER = "/v1/a2a/deliver"
DELIVER_ANEW = "/v1/deliver"
BUS = "/v1/bus"

OCTETS = "application/octet-stream"
JSON = "application/json"
EVENTS = "text/event-stream"

# Header names are lower-case everywhere here, since HTTP ignores their case.
RULES_HASH = "x-likewise-mesh-rules-hash"
NEXT_FRONTIER = "x-likewise-next-frontier"
# Ours. The frontier of a server whose answer is complete; the token by which the server identifies itself; its time in
# seconds, for a client whose token it found too old or too new; and the counts of an exchange.
FRONTIER = "x-hocket-frontier"
NODE = "x-hocket-node"
TIME = "x-hocket-time"
WINDOW = "x-hocket-window"
APPENDED, DUPLICATED, REJECTED, HELD = "x-hocket-appended", "x-hocket-duplicated", "x-hocket-rejected", "x-hocket-held"
UNLINKED = "x-hocket-unlinked"
# What each side's program knows beyond Likewise v0.1. Operators are told about differences; nothing depends on it.
KNOWS = "x-hocket-knows"
# How many ops were refused because the caller's quota is used up, and the seconds until more is accepted.
OVER_QUOTA, RETRY_S = "x-hocket-over-quota", "x-hocket-retry-s"
COUNTS = (APPENDED, DUPLICATED, REJECTED, HELD, UNLINKED, OVER_QUOTA, RETRY_S)
# Counts that a server of an earlier version leaves out.
LATER_COUNTS = frozenset((HELD, UNLINKED, OVER_QUOTA, RETRY_S))
# What a server signs besides the status and the body of its answer, in this order.
SIGNED = (RULES_HASH, NEXT_FRONTIER, FRONTIER, *COUNTS)


class BodyTooLong(Exception):
    """A body is longer than the reader allows."""


class NoRoom(Exception):
    """There is no room for more bodies now."""


class Request(NamedTuple):
    """`query` is the raw text after the question mark; header names are lower-case. `address` is the caller's, for
    limits; empty where that has no meaning. If the body has not arrived yet, `read` takes the largest allowed size and
    raises BodyTooLong or NoRoom, and `pieces` gives it as it comes. `gone` returns when the caller disconnects; call it
    after the body was read.
    """

    method: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = {}
    body: bytes = b""
    address: str = ""
    read: Callable[[int], Awaitable[bytes]] | None = None
    gone: Callable[[], Coroutine[None, None, None]] | None = None
    pieces: Callable[[], AsyncIterator[bytes]] | None = None

    async def whole(self, limit: int) -> "Request":
        """Reads the body and returns the request with it. Raises BodyTooLong beyond `limit` bytes."""
        body = self.body if self.read is None else await self.read(limit)
        if len(body) > limit:
            raise BodyTooLong
        return self._replace(body=body, read=None)


class SecondProof(Protocol):
    """A proof on the requests between nodes beside their bearer tokens. `hint` says what to compare if a node has
    none.
    """

    hint: str

    def stamp(self, bearer: str, now_ms: int) -> str:
        """The proof for a request with this bearer token."""
        ...

    def is_valid(self, proof: str, bearer: str, now_ms: int) -> bool: ...


class Reply(NamedTuple):
    """With a `stream`, the body is what the stream yields, until it ends. `undelivered` is called if the caller goes
    before the reply is written.
    """

    status: int
    headers: Mapping[str, str] = {}
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    undelivered: Callable[[], None] | None = None


def answer_hash(reply: Reply) -> str:
    """The hash of the answer in the server's token: it covers everything that the caller believes."""
    lines = [str(reply.status), *(f"{name}: {reply.headers.get(name, '')}" for name in SIGNED)]
    head = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
    return content_hash(head + content_hash(reply.body)).hex()


class _Hint(msgspec.Struct):
    changes: str


def hint(changes: Changes) -> bytes:
    """One event of a hint stream. Its data is JSON; earlier versions send and expect an empty object."""
    text = base64.b64encode(encode_changes(changes)).decode()
    return b"event: ops\ndata: %b\n\n" % msgspec.json.encode(_Hint(text))


def read_hint(data: bytes) -> Changes:
    """The changes that an event's data names. If another version's data is unreadable, anything may have changed."""
    try:
        return decode_changes(base64.b64decode(decode_json(data, _Hint).changes, validate=True))
    except (msgspec.MsgspecError, ValueError):
        return ANYTHING


def message_event(sealed: bytes) -> bytes:
    """One event of a stream of messages."""
    return b"event: message\ndata: %b\n\n" % base64.b64encode(sealed)


def read_message(data: bytes) -> bytes:
    """The message in an event's data; raises ValueError if there is none."""
    return base64.b64decode(data.strip(), validate=True)


class Transport(Protocol):
    """Both raise Unreachable if the address does not answer, not in time, or with too much."""

    async def send(self, address: str, request: Request) -> Reply: ...

    def hints(self, address: str, headers: Mapping[str, str]) -> AsyncIterator[Changes]:
        """The changes that the peer reports, until the connection ends. The first hint means that the connection is
        up.
        """


async def look(access: NodeAccess, query: Callable[[Session], T]) -> T:
    """Runs a query over one consistent view of the store."""

    def work() -> T:
        with access.log.store.read() as session:
            return query(session)

    return await access.call(work)


async def note(access: NodeAccess, change: Callable[[Session], T]) -> T:
    """Changes what this node stores about other nodes. It is on no log, so it wakes nothing."""

    def work() -> T:
        with access.log.store.write() as session:
            return change(session)

    return await access.call(work)
