"""What a job sends while it runs, for the browsers that look at it: the newest parts of its result, and the end of what
it prints on another node. The server follows a job from the first look on until the job ends or no
browser looks any more; it reads what was printed on this node from the files.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, closing, suppress
from typing import Any, NamedTuple

from hocket.api import Service
from hocket.api.output import OutputReader, OutputTail, tails_here
from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.families.jobs.parts import Part
from hocket.families.jobs.rules import Job
from hocket.node.calls import StreamNews
from hocket.node.node import Node

# So many of the newest parts are shown, and so much of what a job has printed.
PARTS_SHOWN = 200
OUTPUT_BYTES_SHOWN = 16 * 1024
# So many jobs are followed at once; the one whose last look is oldest gives way. One without a look for this long is
# followed no more.
FOLLOWED_MAX = 32
LOOK_S = 90.0
# How often another node is asked for more.
ASK_S = 0.5


class LiveView(NamedTuple):
    """What a job has sent so far, as far as it is shown. `left_out` counts the parts before those."""

    parts: Sequence[Part]
    left_out: int
    output: Sequence[OutputTail]


class _Followed:
    def __init__(self) -> None:
        self.looked = 0.0
        self.task: asyncio.Task[None] | None = None
        self.parts: deque[Part] = deque(maxlen=PARTS_SHOWN)
        self.output: list[OutputTail] = []
        # How often something has come.
        self.news = 0


class LiveJobs:
    """Views ask from any thread. Jobs are followed on the loop of the node."""

    def __init__(self, node: Node, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._node, self._monotonic = node, monotonic
        self._jobs: dict[bytes, _Followed] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def keep(self) -> None:
        """Follows the jobs that browsers look at, until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(LOOK_S / 3)
                for job_id in [id for id, each in self._jobs.items() if self._monotonic() - each.looked > LOOK_S]:
                    await self._forget(job_id)
        finally:
            self._loop = None
            for job_id in list(self._jobs):
                await self._forget(job_id)

    def look(self, service: Service, job: Job) -> LiveView:
        """What is there now. `service` may read what the job makes."""
        here = tails_here(service, job, OUTPUT_BYTES_SHOWN)
        if (followed := self._jobs.get(job.id)) is not None:
            followed.looked = self._monotonic()
        is_done = job.outcome is not None
        if followed is None and self._loop is not None and (not is_done or here is None):
            self._loop.call_soon_threadsafe(self._begin, service, job, here is None)
        parts = [] if followed is None or is_done else list(followed.parts)
        output = here if here is not None else [] if followed is None else followed.output
        return LiveView(parts, parts[0].number if parts else 0, output)

    def news(self, service: Service, job: Job) -> tuple[int, ...]:
        """Differs from what it was before if there is more to see."""
        followed = self._jobs.get(job.id)
        totals = tuple(each.total for each in tails_here(service, job, 0) or ())
        return (0 if followed is None else followed.news, *totals)

    def _begin(self, service: Service, job: Job, is_far: bool) -> None:
        if job.id in self._jobs:
            return
        followed = self._jobs[job.id] = _Followed()
        followed.looked = self._monotonic()
        followed.task = asyncio.create_task(self._follow(service, job, followed, is_far))
        if len(self._jobs) > FOLLOWED_MAX:
            oldest = min(self._jobs, key=lambda id: self._jobs[id].looked)
            if (task := self._jobs.pop(oldest).task) is not None:
                task.cancel()

    async def _forget(self, job_id: bytes) -> None:
        followed = self._jobs.pop(job_id)
        if followed.task is not None:
            await end_tasks([followed.task])

    async def _follow(self, service: Service, job: Job, followed: _Followed, is_far: bool) -> None:
        work: list[Any] = [] if job.outcome is not None else [self._parts(job, followed)]
        if is_far:
            work += [self._printed(service, job, followed)]
        await asyncio.gather(*work)

    async def _parts(self, job: Job, followed: _Followed) -> None:
        with suppress(HocketError):  # how the job ended is shown with the job
            async with aclosing(self._node.parts(job.id, StreamNews())) as parts:
                async for part in parts:
                    if part.is_restart:
                        followed.parts.clear()
                    followed.parts.append(part)
                    followed.news += 1

    async def _printed(self, service: Service, job: Job, followed: _Followed) -> None:
        with suppress(HocketError), closing(OutputReader(service, job)) as reader:
            is_over = False
            while not is_over:
                # A look may ask other nodes on this loop, so it has a thread of its own.
                pieces, is_over = await asyncio.to_thread(reader.look, True)
                if pieces:
                    last = followed.output[0] if followed.output else OutputTail("output", 0, b"", 0)
                    for piece in pieces:
                        before = last.data if (last.fence, last.total) == (piece.fence, piece.start) else b""
                        last = OutputTail(last.stream, piece.fence, before + piece.data, piece.end)
                    followed.output = [last._replace(data=last.data[-OUTPUT_BYTES_SHOWN:])]
                    followed.news += 1
                elif not is_over:
                    await asyncio.sleep(ASK_S)
