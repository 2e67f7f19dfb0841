"""What every path of the gate needs: who the caller is, how a request is refused, and how its query and its answer are
read and written.

`Turns` decide whose batch is admitted next. A few are admitted at once; of the nodes that wait, the one that has used
the least of the store's time goes first. So a node that sends costly ops waits for the others, and the others do not
wait for it.
"""

import asyncio
import fcntl
import heapq
import os
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from hocket.families.access import NodeAccess
from hocket.kernel.authority import Standing
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, encode_frontier, frontier_text, parse_frontier
from hocket.kernel.ids import content_hash, digest
from hocket.kernel.jws import LEEWAY_S, NONCES_MAX, Bearer, Nonces
from hocket.kernel.ops import encode_sequence
from hocket.kernel.postcard import Malformed
from hocket.log.lost_past import note_shared, ops_there
from hocket.mesh import wire
from hocket.mesh.outgoing import PAGE_OPS_MAX, Page, PeerReader, may_have, page
from hocket.mesh.wire import Reply, Request
from hocket.work.environment import Environment

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


class RequestCounts(NamedTuple):
    appended: int
    duplicated: int
    rejected: int
    held: int
    unlinked: int
    over_quota: int
    retry_s: int

    def shown(self) -> dict[str, int]:
        """Likewise's counts and ours; quota counts only if a quota was used up."""
        return {name: count for name, count in self._asdict().items() if count or name not in ("over_quota", "retry_s")}


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


def json_reply(status: int, value: object) -> Reply:
    return Reply(status, {"content-type": wire.JSON}, msgspec.json.encode(value))


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


# The ops that a caller of the gate gets, page by page, and what the gate remembers about that: how far it has
# searched for a reader that may not have all ops, and how far others have this node's own.

# How often it is noted how far a caller has this node's own ops.
SHARED_S = 60.0
# The gate remembers how far it has searched for this many restricted readers, and for this many of each reader's last
# answers.
SCANNED_MAX = 1_000
SCANNED_PER_NODE_MAX = 16


class OpPages:
    """`gave` is told what a node has received."""

    def __init__(self, access: NodeAccess, environment: Environment, gave: Callable[[int, Frontier], None]) -> None:
        self._access, self._environment, self._gave = access, environment, gave
        self._scanned: OrderedDict[int, OrderedDict[bytes, Frontier]] = OrderedDict()
        self._scanning = threading.Lock()
        self._shared_at = 0.0

    def answer(self, caller: Caller, since: Frontier, limit: int) -> Reply:
        """A caller that has an op of this node which this node does not know is told that this node lacks all of its
        own ops: then the caller gives them back.
        """
        log, own = self._access.log, self._access.log.node
        with log.store.read() as session:
            # Whether an op exists that the caller may not read, the answer does not tell.
            known = ops_there(session, since[own]) if own in since and log.rules.bounds is not None else None
            has_lost = known is not None and not may_have(session, caller.reader, known)
        if known is not None and not has_lost:
            self._note_shared(since[own])
        made = self._page(caller, since, limit, has_lost)
        if made.gaps:
            raise RequestRefused(410, "a frontier from before ops that were let go", caller.node)
        if made.whole:
            # A reader's frontier proves nothing about authors that are not on this log.
            self._gave(caller.node, {n: at for n, at in made.scanned.items() if n in made.ours})
        try:
            headers = {"content-type": wire.OCTETS, wire.NEXT_FRONTIER: frontier_text(made.seen)}
            if made.whole:
                whole = caller.reader.reads_everything
                told = made.ours if whole else {n: at for n, at in made.ours.items() if n == caller.node}
                if has_lost:
                    told = told | {own: Hlc(0, 0, own)}
                headers[wire.FRONTIER] = frontier_text(told)
        except Malformed as error:
            raise RequestRefused(
                507, "more authors on the log than an answer can name", caller.node, str(error)
            ) from None
        return Reply(200, headers, encode_sequence(made.bodies))

    def _note_shared(self, at: Hlc) -> None:
        """Notes now and then how far others have this node's own ops."""
        if self._environment.monotonic() >= self._shared_at:
            self._shared_at = self._environment.monotonic() + SHARED_S
            with self._access.log.store.write() as session:
                note_shared(session, at)

    def _page(self, caller: Caller, since: Frontier, limit: int, without_own: bool) -> Page:
        """For a reader that may not have all ops, the gate remembers how far it has searched; the reader is not
        told.
        """
        to, log = caller.reader, self._access.log
        if to.reads_everything:
            return page(log, to, since, limit=limit, without_own=without_own)
        known = self._scanned.get(to.node)
        before = None if known is None else known.get(_state(since, caller))
        made = page(log, to, since, limit=limit, before=before, without_own=without_own)
        with self._scanning:
            mine = self._scanned.pop(to.node, OrderedDict())
            self._scanned[to.node] = mine
            # Only the differences: most of a frontier is what the reader sent.
            mine[_state(made.seen, caller)] = {n: at for n, at in made.scanned.items() if made.seen.get(n) != at}
            if len(mine) > SCANNED_PER_NODE_MAX:
                mine.popitem(last=False)
            if len(self._scanned) > SCANNED_MAX:
                self._scanned.popitem(last=False)
        return made


def _state(frontier: Frontier, caller: Caller) -> bytes:
    """The permissions are a part of the key, because they decide what a reader with this frontier may have."""
    return content_hash(encode_frontier(frontier) + caller.permissions.to_bytes(16, "big", signed=True))


# Which bearer tokens were used already, at any server of a home and before a restart. A file in the home has a record
# for each; the servers append to it under an OS lock, and read what others have appended. It outlives every process,
# but not the last moments before a power failure: a server refuses tokens that were issued before it started anyway.

NAME = "tokens.used"
# The file is written anew, without the tokens that have expired, when it has this many records more than it had then.
RECORDS_MAX = NONCES_MAX
# When the token expires, its node, and a hash of its nonce.
_RECORD = struct.Struct(">QQ16s")
# How often the file was written anew, and how many records it had then.
_HEADER = struct.Struct(">QQ")


class UsedTokens:
    """Without a directory the tokens are remembered in this process alone."""

    def __init__(self, directory: Path | None = None) -> None:
        self._nonces = Nonces()
        self._path = None if directory is None else directory / NAME
        self._fd = -1
        self._rewritten, self._read_to = 0, _HEADER.size

    def use(self, bearer: Bearer, now_s: int) -> bool:
        """Whether the token is used for the first time. Call this after the token was accepted."""
        record = (bearer.expires, bearer.node, digest(bearer.nonce.encode(), 16))
        if self._path is None:
            return self._is_new(record, now_s)
        with self._locked(self._path) as fd:
            rewritten, records = self._catch_up(fd, now_s)
            if not self._is_new(record, now_s):
                return False
            os.pwrite(fd, _RECORD.pack(*record), self._read_to)
            self._read_to += _RECORD.size
            if self._read_to > _HEADER.size + (records + RECORDS_MAX) * _RECORD.size:
                self._rewrite(fd, rewritten + 1, now_s)
            return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_new(self, record: tuple[int, int, bytes], now_s: int) -> bool:
        expires, node, nonce = record
        return self._nonces.use(node, nonce.hex(), expires, now_s)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[int]:
        if self._fd < 0:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield self._fd
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _catch_up(self, fd: int, now_s: int) -> tuple[int, int]:
        """Reads what other servers have appended. Returns the header."""
        head = os.pread(fd, _HEADER.size, 0)
        if len(head) < _HEADER.size:
            os.pwrite(fd, _HEADER.pack(0, 0), 0)
            return 0, 0
        rewritten, records = _HEADER.unpack(head)
        if rewritten != self._rewritten:
            self._rewritten, self._read_to = rewritten, _HEADER.size
        if size := os.fstat(fd).st_size - self._read_to:
            for record in _records(os.pread(fd, size, self._read_to)):
                self._is_new(record, now_s)
                self._read_to += _RECORD.size
        return rewritten, records

    def _rewrite(self, fd: int, rewritten: int, now_s: int) -> None:
        whole = os.pread(fd, self._read_to - _HEADER.size, _HEADER.size)
        kept = [each for each in _records(whole) if each[0] + LEEWAY_S > now_s]
        content = b"".join(_RECORD.pack(*each) for each in kept)
        os.pwrite(fd, _HEADER.pack(rewritten, len(kept)) + content, 0)
        self._rewritten, self._read_to = rewritten, _HEADER.size + len(content)
        os.ftruncate(fd, self._read_to)


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """A last record that was cut off is left out, and overwritten by the next."""
    yield from _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size])
