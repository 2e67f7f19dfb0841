"""What the process that syncs a node tells others over the bus, and hears from them: presence, so that ranks change
when a worker comes or goes; `jobs.<kind>`, which says that a job is ready, so that others fetch it at once; and
`results.<kind>`, which says that a job has ended, so that a node that waits for it fetches the result at once. All of
this goes over HTTP as well, only later; nothing depends on the bus.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, closing, suppress
from functools import partial

import msgspec

from hocket.bus.envelope import Envelope, Seen, read_envelope
from hocket.bus.hints import ANYTHING, about
from hocket.bus.messages import (
    ANNOUNCED_S_MAX,
    BusMessage,
    MessageBus,
    MessageQueue,
    cluster_root,
    subject_name,
    subject_pattern,
)
from hocket.bus.signed import LOOK_S, SignedMessages
from hocket.errors import HocketError
from hocket.families.access import NodeAccess
from hocket.families.liveness import BEAT_S
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_text, parse_ulid, ulid_text
from hocket.kernel.postcard import BYTES, Malformed, decode, encode, seq
from hocket.kernel.vocabulary import JOB, AcceptWork, CancelJob, CompleteJob, ExpireWork, FailWork, YieldWork, number_of
from hocket.mesh import peers
from hocket.mesh.presence import keep
from hocket.mesh.wire import look, message_event
from hocket.store import Session
from hocket.work.environment import Environment
from hocket.work.presence import (
    NodePresence,
    NodeSaid,
    Serving,
    own_presence,
    read_presence,
    read_serving,
    said_text,
    serving_text,
)

JOBS, PRESENCE, RESULTS = "jobs", "presence", "results"
# How often a node looks whether it has something else to say about its workers.
PRESENCE_LOOK_S = 1.0
# Presence that comes within this time is stored together: the first if some of it is new, the second if not.
GATHER_S = 0.2
STEADY_S = 1.0
GATHERED_MAX = 1_024
# A node that knows more nodes than this answers no newcomer, which hears of them from the coordinator, or with their
# next heartbeat: if every node answered, each restart in a mesh of n nodes would bring n messages to n nodes.
ANSWERING_MAX = 64
# The most urgent ready jobs of a kind that are announced after a change, and announced jobs that are remembered.
ANNOUNCED_AT_ONCE = 64
REMEMBERED_MAX = 10_000
ULID_CHARS = 26
# Ends of jobs in one message, ops in one look for them, and the pause after a look: ends within it go together.
RESULTS_AT_ONCE = 64
READ_MAX = 1_000
REPORTED_S = 0.02
# Announcements of a node within this time are one reason to look.
WOKEN_S = 0.005
WAIT_S = 60.0
_ENDS = frozenset(number_of(each) for each in (AcceptWork, CancelJob, CompleteJob, ExpireWork, FailWork, YieldWork))


class BusSharing:
    """`woken` is called with a node that has said that there is a job to fetch."""

    def __init__(
        self, access: NodeAccess, environment: Environment, messages: MessageBus, woken: Callable[[int], None]
    ) -> None:
        self._access, self._environment, self._messages, self._woken = access, environment, messages, woken
        self._cluster = access.log.user
        self._told = ""
        self._told_at = -BEAT_S
        self._met: dict[int, str] = {}
        self._announced: dict[tuple[bytes, int], None] = {}
        self._reported: dict[tuple[bytes, int], None] = {}
        self._read = 0
        self._waking: dict[int, asyncio.TimerHandle] = {}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for part in (self._tell_presence, self._hear_presence, self._announce, self._hear_jobs):
                    tasks.create_task(part())
                for part in (self._announce_results, self._hear_results):
                    tasks.create_task(part())
        finally:
            for handle in self._waking.values():
                handle.cancel()
            await self._tell()  # without the worker that has just ended, if this process has one

    # Presence.

    async def _tell_presence(self) -> None:
        while True:
            await self._tell()
            await asyncio.sleep(PRESENCE_LOOK_S)

    async def _tell(self) -> None:
        workers = serving_text(await look(self._access, self._own))
        now = self._environment.monotonic()
        if workers != self._told or now >= self._told_at + BEAT_S:
            self._told, self._told_at = workers, now
            subject = subject_name(self._cluster, PRESENCE, node_text(self._access.log.node))
            await self._messages.publish(subject, workers.encode())

    def _own(self, session: Session) -> tuple[Serving, ...]:
        environment = self._environment
        return own_presence(session, environment.liveness, self._access.log, environment.hardware).workers

    async def _hear_presence(self) -> None:
        with closing(await self._messages.subscribe(subject_pattern(self._cluster, PRESENCE))) as queue:
            while True:
                message = await queue.get(WAIT_S)
                heard: dict[int, str] = {}
                began, is_steady = self._environment.monotonic(), True
                while message is not None and len(heard) < GATHERED_MAX:
                    if message.at is not None:
                        text = heard[message.at.node] = message.data.decode(errors="replace")
                        is_steady = is_steady and self._met.get(message.at.node) == text
                    until = began + (STEADY_S if is_steady else GATHER_S)
                    message = await queue.get(max(0.0, until - self._environment.monotonic()))
                if heard:
                    if not heard.keys() <= self._met.keys() and len(self._met) < ANSWERING_MAX:
                        self._told_at = -BEAT_S  # a newcomer should not wait for the next heartbeat
                    self._met |= heard
                    workers = {node: tuple(read_serving(text)) for node, text in heard.items()}
                    await self._access.call(lambda workers=workers: self._keep(workers))  # type: ignore[misc]

    def _keep(self, heard: dict[int, tuple[Serving, ...]]) -> None:
        """Stores the workers. What else is known of a node came over HTTP, and stays."""
        log = self._access.log
        nodes = {node.to_bytes(8, "big") for node in heard}
        with log.store.read() as session:
            rows = [row for row in session.presence() if row.node in nodes]
        known = {each.node: each for each in map(read_presence, rows)}
        now_ms = log.physical()
        found = []
        for node, workers in heard.items():
            before = known.get(node, NodePresence(node, NodeSaid(), now_ms))
            said = msgspec.structs.replace(before.said, workers=workers)
            found.append(NodePresence(node, decode_json(said_text(said), NodeSaid), now_ms, before.seen_ms))
        keep(log, found)

    # Jobs.

    async def _announce(self) -> None:
        with closing(self._access.listen(ANYTHING)) as changes:
            while True:
                kinds = (await changes.wait(WAIT_S)).kinds
                if not kinds:
                    continue
                for kind, job_id in await self._access.read(lambda session, kinds=kinds: self._new(session, kinds)):  # type: ignore[misc]
                    try:
                        subject = subject_name(self._cluster, JOBS, kind)
                    except Malformed:
                        continue
                    await self._messages.publish(subject, ulid_text(job_id).encode())

    def _new(self, session: Session, kinds: frozenset[str]) -> list[tuple[str, bytes]]:
        """The ready jobs that this node has submitted or given back, and has not announced yet. The coordinator, from
        which others fetch them, announces all. A node that offers to claim a job is one of many, and is silent.
        """
        log = self._access.log
        is_coordinator = peers.coordinator(log, session) == log.node
        offered = session.offered_jobs()
        found = []
        for kind in session.ready_kinds() if "" in kinds else sorted(kinds):
            for entry, _ in session.ready(kind, ANNOUNCED_AT_ONCE):
                job = entry.job
                is_own = is_coordinator or log.node in (job.scheduled.node, job.last.node)
                if is_own and (job.id, job.fence) not in self._announced:
                    if len(self._announced) >= REMEMBERED_MAX:
                        del self._announced[next(iter(self._announced))]
                    self._announced[job.id, job.fence] = None
                    if is_coordinator or log.node == job.scheduled.node or job.id not in offered:
                        found.append((kind, job.id))
        return found

    async def _hear_jobs(self) -> None:
        with closing(await self._messages.subscribe(subject_pattern(self._cluster, JOBS))) as queue:
            while True:
                message = await queue.get(WAIT_S)
                if message is not None and message.at is not None and message.at.node != self._access.log.node:
                    self._wake(message.at.node)

    # Results.

    async def _announce_results(self) -> None:
        with closing(self._access.listen(about(JOB))) as changes:
            self._read = await self._access.peek(lambda session: session.head().seq)
            while True:
                await changes.wait(WAIT_S)
                is_more = True
                while is_more:
                    ended, is_more = await self._access.peek(self._ended)
                    for kind, lines in ended.items():
                        await self._report(kind, lines)
                await asyncio.sleep(REPORTED_S)

    async def _report(self, kind: str, lines: Sequence[str]) -> None:
        with suppress(Malformed):
            subject = subject_name(self._cluster, RESULTS, kind)
            for first in range(0, len(lines), RESULTS_AT_ONCE):
                some = lines[first : first + RESULTS_AT_ONCE]
                await self._messages.publish(subject, "\n".join(some).encode())

    def _ended(self, session: Session) -> tuple[dict[str, list[str]], bool]:
        """The jobs that have ended by ops of this node since the last look, by kind, and whether there are more. It
        reads the log, because a hint does not name the jobs if there are many.
        """
        author = self._access.log.node.to_bytes(8, "big")
        rows = session.ops_after(min(self._read, session.head().seq), READ_MAX)
        self._read = rows[-1].seq if rows else self._read
        decided = (row for row in rows if row.variant in _ENDS and not row.reason and row.hlc.endswith(author))
        found: dict[str, list[str]] = {}
        for entry in session.jobs_by_id(list(dict.fromkeys(row.job for row in decided if row.job is not None))):
            job = entry.job
            if job.outcome is not None and (job.id, job.fence) not in self._reported:
                if len(self._reported) >= REMEMBERED_MAX:
                    del self._reported[next(iter(self._reported))]
                self._reported[job.id, job.fence] = None
                found.setdefault(job.kind, []).append(f"{ulid_text(job.id)} {job.outcome.name.lower()}")
        return found, len(rows) == READ_MAX

    async def _hear_results(self) -> None:
        with closing(await self._messages.subscribe(subject_pattern(self._cluster, RESULTS))) as queue:
            while True:
                message = await queue.get(WAIT_S)
                if message is None or message.at is None or message.at.node == self._access.log.node:
                    continue
                with suppress(ValueError):
                    lines = message.data.decode("ascii").split("\n", RESULTS_AT_ONCE)[:RESULTS_AT_ONCE]
                    job_ids = [parse_ulid(line[:ULID_CHARS]) for line in lines]
                    if await self._access.read(partial(self._awaits, job_ids=job_ids)):
                        self._wake(message.at.node)

    def _awaits(self, session: Session, job_ids: Sequence[bytes]) -> bool:
        """Whether this node knows one of the jobs, and not yet that it has ended. What it ran itself, it need not ask
        for: the coordinator's answer to its offer tells.
        """
        own = self._access.log.node
        entries = session.jobs_by_id(job_ids)
        return any(entry.job.outcome is None and entry.job.claimer != own for entry in entries)

    def _wake(self, node: int) -> None:
        if node not in self._waking:
            self._waking[node] = asyncio.get_running_loop().call_later(WOKEN_S, self._wake_now, node)

    def _wake_now(self, node: int) -> None:
        del self._waking[node]
        self._woken(node)


# Carries messages of the bus between nodes over their own HTTP streams, where there is no NATS. A node hands its
# messages to the servers of its peers, and gets theirs from a stream; a server passes on what it is handed to the
# streams of the others. Each message is checked where it arrives, and passed on once. One that cannot be sent at once
# is lost.  Every message goes to every node, so this is for meshes of some dozens of nodes; larger ones need NATS.

KEEP_ALIVE_S = 15.0
LISTENERS_MAX = 256
LISTENERS_OF_NODE_MAX = 4
# Messages that are handed to a peer in one request.
BATCH_MAX = 32
RELAYED_BYTES_MAX = 4 * 1024 * 1024
BATCH_BYTES_MAX = 1024 * 1024
# Messages within this time of a request go into the next one, so that they leave room for others.
GAP_S = 0.02
# How many messages are remembered with the peer that they came from.
ORIGINS_MAX = 4_096
# How long a peer's answer may take, until its messages are lost.
SEND_S = 5.0

ALIVE = b":\n\n"
_BATCH = seq(BYTES, limit=BATCH_MAX)
_Mark = tuple[int, int, int, bytes]


class MessageRelay:
    """`bus` is this node's own, between the processes of its home. The relay of a process that serves and that of the
    process that syncs may be two: they meet on that bus.
    """

    def __init__(self, bus: SignedMessages, node: int) -> None:
        self._bus, self._node = bus, node
        self._opener = bus.opener()
        self._waiting: asyncio.Task[None] | None = None
        self._pattern = f"{cluster_root(bus.cluster)}.>"
        self._origins: OrderedDict[_Mark, str] = OrderedDict()
        self._streams: dict[MessageQueue, int] = {}
        self.lost = 0

    # As a server.

    def has_room(self, node: int) -> bool:
        return len(self._streams) < LISTENERS_MAX and Counter(self._streams.values())[node] < LISTENERS_OF_NODE_MAX

    async def listen(self, node: int) -> AsyncIterator[bytes]:
        """The lines of one listener's stream: first the announcements that are kept, then everything as it comes, but
        for the listener's own messages.
        """
        queue = await self._bus.messages.subscribe(self._pattern, since_s=ANNOUNCED_S_MAX)
        self._streams[queue] = node
        try:
            yield ALIVE
            while not queue.is_closed:
                message = await queue.get(KEEP_ALIVE_S)
                if not self._bus.is_member(node):
                    return
                envelope = None if message is None else read_envelope(message.data)
                if message is None:
                    if not queue.is_closed:
                        yield ALIVE
                elif envelope is not None and envelope.at.node != node:
                    yield message_event(message.data)
                    await asyncio.sleep(0)  # so that a listener that has gone is noticed
        finally:
            self._streams.pop(queue, None)
            queue.close()

    async def receive(self, body: bytes) -> bool:
        """Passes on the messages that a peer hands over. False if there are none in the body."""
        try:
            sealed = decode(_BATCH, body)
        except Malformed:
            return False
        for each in sealed:
            await self._arrived(each, "")
        return bool(sealed)

    def close(self) -> None:
        """Ends every stream."""
        for queue in list(self._streams):
            queue.close()
        if self._waiting is not None:
            self._waiting.cancel()

    # As a client.

    async def carry(self, address: str, send: Callable[[bytes], Awaitable[None]], stream: AsyncIterator[bytes]) -> None:
        """Hands messages to a peer, and passes on those of its stream, until the connection ends."""
        sending = asyncio.create_task(self._send(address, send))
        try:
            async with aclosing(stream):  # type: ignore[type-var]
                async for sealed in stream:
                    await self._arrived(sealed, address)
        finally:
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self, address: str, send: Callable[[bytes], Awaitable[None]]) -> None:
        queue = await self._bus.messages.subscribe(self._pattern, since_s=ANNOUNCED_S_MAX)
        seen, dropped = Seen(), 0
        try:
            while not queue.is_closed:
                if batch := await self._batch(queue, seen, address):
                    try:
                        async with asyncio.timeout(SEND_S):
                            await send(encode(_BATCH, tuple(batch)))
                    except (HocketError, TimeoutError):  # the visits report the peer's state
                        self.lost += len(batch)
                    await asyncio.sleep(GAP_S)
                self.lost, dropped = self.lost + queue.dropped - dropped, queue.dropped
        finally:
            queue.close()

    async def _batch(self, queue: MessageQueue, seen: Seen, address: str) -> list[bytes]:
        """The next messages for a peer: those that did not come from there, each once."""
        batch, size = [], 0
        message = await queue.get(KEEP_ALIVE_S)
        while message is not None:
            envelope = read_envelope(message.data)
            if envelope is not None and seen.is_new(envelope) and self._origins.get(_mark(envelope)) != address:
                seen.note(envelope)
                batch.append(message.data)
                size += len(message.data)
            if len(batch) == BATCH_MAX or size > BATCH_BYTES_MAX:
                break
            message = await queue.get(0)
        return batch

    async def _arrived(self, sealed: bytes, address: str) -> None:
        """Puts a message of another node on this node's bus, if it counts and is new."""
        claimed = read_envelope(sealed)
        if claimed is None or claimed.at.node == self._node:
            return
        envelope = self._opener.open(BusMessage(claimed.subject, sealed))
        self._origins.setdefault(_mark(claimed), address)
        if len(self._origins) > ORIGINS_MAX:
            self._origins.popitem(last=False)
        if envelope is not None:
            await self._pass_on(envelope, sealed)
        elif self._opener.has_early and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait_for_authors())

    async def _wait_for_authors(self) -> None:
        """Passes on messages of authors that are known by now."""
        try:
            while self._opener.has_early:
                await asyncio.sleep(LOOK_S)
                for message, envelope in self._opener.open_early():
                    await self._pass_on(envelope, message.data)
        finally:
            self._waiting = None

    async def _pass_on(self, envelope: Envelope, sealed: bytes) -> None:
        if not envelope.subject.startswith(self._pattern[:-1]):
            return
        if envelope.is_kept:
            await self._bus.messages.announce(envelope.subject, sealed)
        else:
            await self._bus.messages.publish(envelope.subject, sealed, reply_to=envelope.reply_to)


def _mark(envelope: Envelope) -> _Mark:
    return envelope.at.node, envelope.at.wall, envelope.at.logical, envelope.process
