"""Follows one job: its parts from the bus as they come, and what is missing from the whole at the end. The log says who
holds the job under which fence. Parts of other senders do not count, so a listener that hears a part before it knows
of the claim asks for it again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Any, NamedTuple

from hocket.bus.changes import about
from hocket.bus.messages import BusMessage
from hocket.bus.signed import SignedMessages
from hocket.kernel.ids import ulid_text
from hocket.kernel.parts import Part, PartsInOrder, decode_message, decode_whole, encode_wanted
from hocket.kernel.postcard import Malformed
from hocket.kernel.subjects import JOB
from hocket.node.handles import ending_of
from hocket.node.part_sender import parts_subject, wanted_subject
from hocket.node.requests import ProgramNode
from hocket.node.stream_news import StreamNews
from hocket.store import Session, Stage
from hocket.work import artifacts, view
from hocket.work.progress import newest_notes

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
