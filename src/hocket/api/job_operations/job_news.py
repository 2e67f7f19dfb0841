"""What becomes of one job, as it comes: the parts of its result, its progress, and its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from hocket.api import Service
from hocket.api.jobs import READ, JobText, found_job
from hocket.api.operation import operation
from hocket.cancelling import end_tasks
from hocket.errors import HocketError

if TYPE_CHECKING:
    from hocket.families.jobs.parts import Part
    from hocket.node.node import Node
    from hocket.store import Session

# How much news of a job waits for a reader that is slow; then its progress is left out and its parts wait.
WAITING_MAX = 256


class JobPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a result. `fence` is that of the run which made it, and `number` counts from 0. With `is_restart` the
    parts before it are void: another run has begun from the start. Bytes are base64.
    """

    fence: int
    number: int
    value: Any
    is_restart: bool = False
    is_base64: bool = False


class JobNews(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of: a part of the result, a progress note, or the end of the job with its outcome."""

    part: JobPart | None = None
    progress: Any = None
    outcome: str | None = None
    error: str | None = None


def _place(news: JobNews) -> str:
    return "" if news.part is None else f"{news.part.fence}.{news.part.number}"


@operation("job_parts", "GET /v1/jobs/{job}/parts", READ, key=_place)
async def parts(
    service: Service,
    node: "Node",
    job: JobText,
    after: Annotated[
        str,
        Meta(
            pattern=r"^\d{1,16}\.\d{1,16}$", description="The id of the last part that the program has, FENCE.NUMBER."
        ),
    ]
    | None = None,
) -> AsyncIterator[JobNews]:
    """Follow a job to its end: each part of its result once and in order, its progress, and its outcome; the token also
    needs `artifact:read` for its kind. Parts that were made before are sent first, or those `after` one.
    """
    if after is None:
        since = (0, -1)
    else:
        fence, _, number = after.partition(".")
        since = int(fence), int(number)

    def read(session: "Session") -> bytes:
        found = found_job(service, session, job, "Read")
        service.check("Artifact", "Read", found.kind)
        return found.id

    return _news(node, await node.read(read), since)


async def _news(node: "Node", job_id: bytes, since: tuple[int, int]) -> AsyncGenerator[JobNews, None]:
    from hocket.node.calls import StreamNews
    from hocket.node.handles import JobCancelled, JobFailed

    queue: asyncio.Queue[JobNews | HocketError] = asyncio.Queue(WAITING_MAX)

    def progress(note: Any) -> None:
        if not queue.full():
            queue.put_nowait(JobNews(progress=note))

    async def follow() -> None:
        try:
            async for part in node.parts(job_id, StreamNews(progress)):
                if (part.fence, part.number) > since:
                    await queue.put(JobNews(_shown(part)))
            await queue.put(JobNews(outcome="succeeded"))
        except JobFailed as error:
            await queue.put(JobNews(outcome="failed", error=str(error)))
        except JobCancelled as error:
            await queue.put(JobNews(outcome="cancelled", error=str(error)))
        except HocketError as error:
            await queue.put(error)

    following = asyncio.create_task(follow())
    try:
        while True:
            news = await queue.get()
            if isinstance(news, HocketError):
                raise news
            yield news
            if news.outcome is not None:
                return
    finally:
        await end_tasks([following])


def _shown(part: "Part") -> JobPart:
    return JobPart(part.fence, part.number, part.value, part.is_restart, isinstance(part.value, bytes))
