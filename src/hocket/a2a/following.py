"""Waits for a task, and streams what becomes of it: its state, the parts of its result, and its end."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from typing import Any

from hocket.a2a.states import TaskState
from hocket.a2a.tasks import ClientTasks, Task, artifact
from hocket.api.job_operations.job_news import JobNews
from hocket.bus.hints import about
from hocket.cancelling import end_tasks
from hocket.kernel.ids import parse_ulid
from hocket.kernel.vocabulary import JOB

# A hint of a change may be lost: a task is looked at again after this long.
LOOK_S = 15.0


async def ended(tasks: ClientTasks, task: Task) -> Task:
    """The task when it does not go on without its client."""
    with closing(tasks.caller.node.listen(about(JOB, parse_ulid(task.job.job_id)))) as changes:
        while not (task := await tasks.task(task.job.job_id)).state.ends_wait:
            await changes.wait(LOOK_S)
    return task


async def events(tasks: ClientTasks, task: Task) -> AsyncGenerator[dict[str, Any], None]:
    """The task as it is, then each change, until it has ended or waits for a message of its client."""
    job_id = task.job.job_id
    with closing(tasks.caller.node.listen(about(JOB, parse_ulid(job_id)))) as changes:
        sent = task = await tasks.task(job_id)
        yield {"task": task.shown()}
        if task.state.ends_stream:
            return
        news = await _news(tasks, task)
        next_news = asyncio.create_task(_next(news))
        next_change = asyncio.create_task(changes.wait(LOOK_S))
        parts = 0
        try:
            while True:
                await asyncio.wait([next_news, next_change], return_when=asyncio.FIRST_COMPLETED)
                if next_news.done():
                    item = next_news.result()
                    if item is None or item.outcome is not None:
                        break
                    if item.part is not None:
                        shown = artifact(item.part.value, is_base64=item.part.is_base64)
                        yield _artifact_update(task, shown, append=parts > 0 and not item.part.is_restart)
                        parts += 1
                    next_news = asyncio.create_task(_next(news))
                    if item.part is not None and not next_change.done():
                        continue
                if next_change.done():
                    next_change = asyncio.create_task(changes.wait(LOOK_S))
                task = await tasks.task(job_id)
                if not task.state.is_over and _words(task) != _words(sent):
                    sent = task
                    yield _status_update(task)
                if task.state is TaskState.INPUT_REQUIRED:
                    return
        finally:
            await end_tasks([next_news, next_change])
            if isinstance(news, AsyncGenerator):
                await news.aclose()
        task = await tasks.task(job_id)
        for each in task.artifacts if not parts else ():
            yield _artifact_update(task, each, lastChunk=True)
        yield _status_update(task)


async def _news(tasks: ClientTasks, task: Task) -> AsyncIterator[JobNews]:
    """Parts, progress and the end; without the right to read results, only the end."""
    if tasks.caller.service.may("Artifact", "Read", task.job.kind):
        news: AsyncIterator[JobNews] = await tasks.caller.do("job_parts", job=task.job.job_id)
        return news
    return _end_only(tasks, task)


async def _next(news: AsyncIterator[JobNews]) -> JobNews | None:
    return await anext(news, None)


async def _end_only(tasks: ClientTasks, task: Task) -> AsyncGenerator[JobNews, None]:
    with closing(tasks.caller.node.listen(about(JOB, parse_ulid(task.job.job_id)))) as changes:
        while not (await tasks.task(task.job.job_id)).state.is_over:
            await changes.wait(LOOK_S)
    yield JobNews(outcome="")


def _words(task: Task) -> Any:
    status = task.status
    return status["state"], status.get("message", {}).get("parts")


def _status_update(task: Task) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": task.job.job_id, "contextId": task.context, "status": task.status}}


def _artifact_update(task: Task, shown: dict[str, Any], **flags: bool) -> dict[str, Any]:
    about_task = {"taskId": task.job.job_id, "contextId": task.context}
    return {
        "artifactUpdate": {**about_task, "artifact": shown} | {name: True for name, value in flags.items() if value}
    }
