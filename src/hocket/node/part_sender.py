"""Sends the parts of results while their handlers run, as messages on the bus. It sends whatever is there when it gets
to it, many parts in one message if need be, so no handler waits for it and nothing piles up. A listener that missed
parts of a running job asks for them, and gets them again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from hocket.bus.messages import BusMessage
from hocket.bus.signed import SignedMessages
from hocket.bus.subject_names import read_subject, subject_name, subject_pattern
from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.parts import PART_BYTES_MAX, WantedParts, decode_wanted, encode_message
from hocket.kernel.postcard import Malformed
from hocket.mesh.rate_limit import Buckets
from hocket.work.parts import RunParts

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
