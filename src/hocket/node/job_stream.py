"""The parts of results as messages on the bus. The sender sends whatever is there when it gets to it, many parts in one
message if need be, so no handler waits for it and nothing piles up. Who follows a job gets its parts as they come, asks
for those that were missed, and reads the rest from the whole at the end. The log says who holds the job under which
fence, and parts of other senders do not count.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import closing, suppress
from typing import Any, NamedTuple

from hocket.bus.hints import about
from hocket.bus.messages import BusMessage, read_subject, subject_name, subject_pattern
from hocket.bus.signed import SignedMessages
from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.families import artifacts
from hocket.families.jobs import view
from hocket.families.jobs.parts import (
    PART_BYTES_MAX,
    Part,
    PartsInOrder,
    WantedParts,
    decode_message,
    decode_wanted,
    decode_whole,
    encode_message,
    encode_wanted,
)
from hocket.families.jobs.progress import newest_notes
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import JOB
from hocket.mesh.quotas import Buckets
from hocket.node.calls import ProgramNode, StreamNews
from hocket.node.handles import ending_of
from hocket.store import Session, Stage
from hocket.work.run_outputs import RunParts

PARTS = "parts"
WANTED = "parts-wanted"
# A wish is answered with so many messages; the listener asks for more.
AGAIN_MAX = 16
LISTEN_S = 60.0
# Wishes that are answered, of one node and of all together. A listener asks again for what was not.
WISHES_RATE_PER_S, WISHES_BURST = 20.0, 40.0
ALL_WISHES_RATE_PER_S, ALL_WISHES_BURST = 50.0, 100.0


def parts_subject(mesh: str, job_id: bytes) -> str:
    return subject_name(mesh, PARTS, ulid_text(job_id))


def wanted_subject(mesh: str, job_id: bytes) -> str:
    return subject_name(mesh, WANTED, ulid_text(job_id))


class PartSender:
    """Make it on the event loop of the node. `open_bus` opens the bus at the first part. Close it when done."""

    def __init__(self, open_bus: Callable[[], Awaitable[SignedMessages]], mesh: str) -> None:
        self._open_bus, self._mesh = open_bus, mesh
        self._loop = asyncio.get_running_loop()
        self._told: dict[tuple[bytes, int], RunParts] = {}
        self._is_woken = False
        self._wake = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._runs: dict[bytes, RunParts] = {}
        self._sent: dict[bytes, int] = {}
        self._wishes = Buckets(WISHES_RATE_PER_S, WISHES_BURST, self._loop.time)
        self._all_wishes = Buckets(ALL_WISHES_RATE_PER_S, ALL_WISHES_BURST, self._loop.time)
        self.refused = 0
        """How many wishes were not answered because there were too many."""

    def tell(self, parts: RunParts) -> None:
        """The run has more parts, or is over. Any thread may call this; it does not block."""
        self._told[parts.job_id, parts.fence] = parts
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: the parts come with the whole
                self._loop.call_soon_threadsafe(self._woken)

    async def close(self) -> None:
        if self._sending is not None:
            await end_tasks([self._sending])

    def _woken(self) -> None:
        self._wake.set()
        if self._sending is None:
            self._sending = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            bus = await self._open_bus()
        except HocketError:
            return  # without a bus, the parts come with the whole
        answering = asyncio.create_task(self._answer(bus))
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._is_woken = False
                for key in list(self._told):
                    await self._send_new(bus, self._told.pop(key))
        finally:
            await end_tasks([answering])

    async def _send_new(self, bus: SignedMessages, parts: RunParts) -> None:
        known = self._runs.get(parts.job_id)
        if known is not None and known.fence > parts.fence:
            return
        if known is not parts:
            self._runs[parts.job_id], self._sent[parts.job_id] = parts, 0
        is_over = parts.is_over
        self._sent[parts.job_id] = await self._send(bus, parts, self._sent[parts.job_id])
        if is_over:
            del self._runs[parts.job_id], self._sent[parts.job_id]

    async def _send(self, bus: SignedMessages, parts: RunParts, first: int, messages: int | None = None) -> int:
        """Sends the parts from `first` on, in at most so many messages. Returns the number of the next."""
        subject, made = parts_subject(self._mesh, parts.job_id), parts.made
        while first < len(made) and messages != 0:
            end, size = first, 0
            while end < len(made) and (size := size + len(made[end]) + 1) <= PART_BYTES_MAX + 1:
                end += 1
            await bus.publish(subject, encode_message(parts.fence, first, made[first:end], parts.is_bytes))
            first, messages = end, None if messages is None else messages - 1
        return first

    async def _answer(self, bus: SignedMessages) -> None:
        queue = await bus.subscribe(subject_pattern(self._mesh, WANTED))
        try:
            while True:
                message = await queue.get(LISTEN_S)
                if message is not None and (found := _wish(message)) is not None:
                    job_id, wanted = found
                    parts = self._runs.get(job_id)
                    if parts is None or parts.fence != wanted.fence or wanted.first >= self._sent[job_id]:
                        continue
                    if self._wishes.take(message.at and message.at.node) or self._all_wishes.take(""):
                        self.refused += 1
                        continue
                    await self._send(bus, parts, wanted.first, AGAIN_MAX)
        finally:
            queue.close()


def _wish(message: BusMessage) -> tuple[bytes, WantedParts] | None:
    try:
        return parse_ulid(read_subject(message.subject).kind), decode_wanted(message.data)
    except (Malformed, ValueError):
        return None


# A listener asks for missing parts at most this often, and looks at the log again after so long without news.
ASK_S = 0.2
LOOK_S = 1.0


class _JobLook(NamedTuple):
    fence: int
    claimer: int | None
    progress: Any
    is_pending: bool
    is_done: bool


async def job_parts(node: ProgramNode, job_id: bytes, news: StreamNews) -> AsyncGenerator[Part, None]:
    """The parts of the job, each once and in order. Raises JobFailed or JobCancelled as `result` does."""
    bus = await node.message_bus()
    if node.delivery is not None:
        node.delivery.start()
    with closing(await bus.subscribe(parts_subject(node.log.user, job_id))) as queue:
        with closing(node.listen(about(JOB, job_id))) as changes:
            listener = _PartsListener(node, bus, job_id, news)
            hearing = asyncio.create_task(queue.get(LOOK_S))
            looking = asyncio.create_task(changes.wait(LOOK_S))
            try:
                while not await listener.look():
                    while not looking.done():
                        await asyncio.wait([hearing, looking], return_when=asyncio.FIRST_COMPLETED)
                        if hearing.done():
                            message = hearing.result()
                            hearing = asyncio.create_task(queue.get(LOOK_S))
                            for part in listener.hear(message):
                                yield part
                            await listener.ask_again()
                    looking = asyncio.create_task(changes.wait(LOOK_S))
            finally:
                for each in (hearing, looking):
                    each.cancel()
                await asyncio.wait([hearing, looking])
    fence, values = await listener.whole()
    for part in listener.order.finish(fence, values):
        yield part


class _PartsListener:
    def __init__(self, node: ProgramNode, bus: SignedMessages, job_id: bytes, news: StreamNews) -> None:
        self._node, self._bus, self._job_id, self._news = node, bus, job_id, news
        self.order = PartsInOrder()
        self._claimer: int | None = None
        self._progress: Any = None
        self._asked_at = 0.0

    async def look(self) -> bool:
        """Reads what the log has. Returns whether the job has ended."""
        found = await self._node.read(lambda session: _look(session, self._job_id))
        self._claimer = found.claimer
        if found.progress is not None and found.progress != self._progress:
            self._news.progress(found.progress)
        self._progress = found.progress
        if found.is_done:
            return True
        if self._news.waiting is not None:
            self._news.waiting(await self._node.waiting(self._job_id) if found.is_pending else None)
        if not found.is_pending:
            if self._node.delivery is not None and found.claimer != self._node.log.node:
                self._node.delivery.hear_progress()
            self.order.begin(found.fence)
            await self._ask()
        return False

    def hear(self, message: BusMessage | None) -> list[Part]:
        if message is None or message.at is None or message.at.node != self._claimer:
            return []
        try:
            return list(self.order.take(decode_message(message.data)))
        except Malformed:
            return []

    async def ask_again(self) -> None:
        if self.order.has_gap and asyncio.get_running_loop().time() >= self._asked_at + ASK_S:
            await self._ask()

    async def _ask(self) -> None:
        """Asks for the parts from the next on. The holder of the job answers if it has sent them before."""
        self._asked_at = asyncio.get_running_loop().time()
        subject = wanted_subject(self._node.log.user, self._job_id)
        await self._bus.publish(subject, encode_wanted(self.order.fence, self.order.next))

    async def whole(self) -> tuple[int, list[Any]]:
        """Every part of the job, with its fence. Raises if the job did not succeed, or the whole cannot be read."""
        node, job_id = self._node, self._job_id
        await node.read(lambda session: ending_of(session, job_id))
        fetch = node.fetch

        def read() -> tuple[int, list[Any]]:
            with node.runtime.read() as session:
                entry = session.job(job_id)
                assert entry is not None
                made = view.whole(session, entry.job)
                if made is None:
                    return entry.job.fence, []
                content = made.content_inline
                if content is None:
                    kept = artifacts.find(session, ulid_text(made.artifact_id))
                    content = artifacts.content(session, node.blobs, kept, fetch)
                return entry.job.fence, decode_whole(content, view.is_of_bytes(made))

        return await node.call(read)


def _look(session: Session, job_id: bytes) -> _JobLook:
    entry = view.find(session, ulid_text(job_id))
    job = entry.job
    note = newest_notes(session, [job]).get(job.id)
    shown = None if note is None else view.readable(note)
    return _JobLook(job.fence, job.claimer, shown, entry.stage < Stage.CLAIMED, entry.stage is Stage.DONE)
