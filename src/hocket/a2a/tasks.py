"""Tasks as a client sees them, and what it does with them. A task is a job of one of the kinds that this server offers,
with tags that say which agent sent it and in which context. To every other agent it does not exist.
"""

import re
from typing import Any, NamedTuple

import msgspec

from hocket.a2a.errors import (
    A2aError,
    bad_params,
    no_push_notifications,
    task_not_cancelable,
    task_not_found,
    unsupported,
)
from hocket.a2a.requests import PAGE_DEFAULT as PAGE
from hocket.a2a.requests import A2aMessage, ContextId, ListParams, SendParams, TaskParams
from hocket.a2a.states import CANCELLED, TaskState, state_of_task
from hocket.api.jobs import PAGE_MAX as JOBS_PAGE
from hocket.api.jobs import JobBrief, JobDetails
from hocket.api.operation import ULID
from hocket.api.programs import KeptAnswer, KeyedRequest
from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import content_hash, parse_ulid, ulid_ms
from hocket.server.program_caller import ProgramCaller

# The same message sent again within this time leads to its task, also if that has ended.
MESSAGE_MS = 86_400_000
# A list has the newest tasks of its caller, up to so many, found in so many pages of each kind.
LISTED_MAX = 500
PAGES_MAX = 16
# An agent's name may have characters that a tag has not, so a tag has the beginning of its hash.
AGENT_CHARS = 24
AGENT_TAG, CONTEXT_TAG = "a2a.agent=", "a2a.context="
_PAGE_TOKEN = re.compile(r"(\d{1,15})-([0-9A-HJKMNP-TV-Z]{26})")
# The artifact with the result of a task.
RESULT = "result"


class Task(NamedTuple):
    """A job as a task."""

    job: JobDetails
    state: TaskState

    @property
    def context(self) -> str:
        tags = (each for each in self.job.options.get("tags", ()) if each.startswith(CONTEXT_TAG))
        return next(tags, "").partition("/")[2]

    @property
    def question_id(self) -> str | None:
        """The message of the question that its client can answer now."""
        question = self.job.question
        return None if question is None or self.state is not TaskState.INPUT_REQUIRED else question.message_id

    @property
    def changed_ms(self) -> int:
        question = self.question_id
        return self.job.changed_ms if question is None else max(self.job.changed_ms, ulid_ms(parse_ulid(question)))

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = {"state": self.state.value, "timestamp": wall_text(self.changed_ms)}
        if words := self._words:
            part = {"text": words} if isinstance(words, str) else {"data": words}
            status["message"] = {
                "messageId": self.question_id or f"{self.job.job_id}.{self.changed_ms}",
                "contextId": self.context,
                "taskId": self.job.job_id,
                "role": "ROLE_AGENT",
                "parts": [part],
            }
        return status

    @property
    def _words(self) -> Any:
        if self.state.is_over:
            return self.job.error
        if self.state is TaskState.INPUT_REQUIRED and self.job.question is not None:
            return self.job.question.text
        return self.job.progress or (self.job.waits_for if self.state is not TaskState.WORKING else None)

    @property
    def artifacts(self) -> list[dict[str, Any]]:
        if self.state is not TaskState.COMPLETED or self.job.result is None:
            return []
        return [artifact(self.job.result)]

    def shown(self, *, with_artifacts: bool = True) -> dict[str, Any]:
        shown = {
            "id": self.job.job_id,
            "contextId": self.context,
            "status": self.status,
            "metadata": {"skill": self.job.kind},
        }
        return {**shown, "artifacts": self.artifacts} if with_artifacts else shown


def artifact(value: Any, *, is_base64: bool = False) -> dict[str, Any]:
    """The result, or a part of it."""
    if is_base64:
        part = {"raw": value, "mediaType": "application/octet-stream"}
    elif isinstance(value, str):
        part = {"text": value, "mediaType": "text/plain"}
    else:
        part = {"data": value, "mediaType": "application/json"}
    return {"artifactId": RESULT, "name": RESULT, "parts": [part]}


class _Listed(NamedTuple):
    changed_ms: int
    job_id: str
    state: TaskState

    @property
    def place(self) -> tuple[int, str]:
        return self.changed_ms, self.job_id


def _place(token: str | None) -> tuple[int, str] | None:
    if not token:
        return None
    found = _PAGE_TOKEN.fullmatch(token)
    if found is None:
        raise bad_params("the pageToken is not one of this agent's", "pageToken")
    return int(found[1]), found[2]


class ClientTasks:
    """The tasks of one caller, with these kinds of jobs as skills."""

    def __init__(self, caller: ProgramCaller, skills: tuple[str, ...]) -> None:
        self.caller, self.skills = caller, skills
        agent = content_hash(caller.agent.encode()).hex()[:AGENT_CHARS]
        self._tag, self._context_tag = f"{AGENT_TAG}{agent}", f"{CONTEXT_TAG}{agent}/"

    async def send(self, asked: SendParams) -> Task:
        """The task of a message: a new one, or that of the same message before."""
        if asked.configuration is not None and asked.configuration.task_push_notification_config is not None:
            raise no_push_notifications()
        message = asked.message
        if message.task_id is not None:
            return await self._answer(message.task_id, message)
        payload, kind = message.payload(), message.skill(self.skills)
        self.caller.service.check("Job", "Read", kind)
        key = content_hash(f"{self._tag}\n{message.message_id}".encode()).hex()
        context = message.context_id or f"ctx-{key[:24]}"
        submitted = await self.caller.do(
            "submit_job",
            kind=kind,
            payload=payload,
            tags=[self._tag, f"{self._context_tag}{context}"],
            unique=f"a2a:{key}",
            unique_for_ms=MESSAGE_MS,
            questions_to=self.caller.address,
        )
        task = await self.task(submitted.job_id)
        if not submitted.created and (task.job.payload != payload or task.context != context):
            raise bad_params("this messageId was used for another message; take a new one", "message.messageId")
        return task

    async def _answer(self, task_id: str, message: A2aMessage) -> Task:
        """Gives the message to the job that asks for it; the same message twice is one answer."""
        task = await self.task(task_id)
        if message.context_id not in (None, task.context):
            raise bad_params("the task is of another context", "message.contextId")
        payload, service = message.payload(), self.caller.service
        text = payload["text"] if payload.keys() == {"text"} else msgspec.json.encode(payload).decode()
        content = content_hash(f"{task_id}\n{text}".encode())
        key = f"a2a:{content_hash(message.message_id.encode()).hex()}"
        request = KeyedRequest(service, self.caller.program.name, key, content)
        if await self.caller.api.write(request.begin) is not None:
            return task
        try:
            if (question := task.question_id) is None:
                raise unsupported(f"the task takes no message now, since it asks nothing: {task.state.value}")
            await self.caller.do("answer_job", job=task_id, text=text, question=question)
        except HocketError:
            await self.caller.api.write(request.forget)
            raise
        await self.caller.api.write(lambda: request.keep(KeptAnswer(200, b"")))
        return await self.task(task_id)

    async def task(self, task_id: str) -> Task:
        """Raises A2aError if this caller has no such task."""
        if re.fullmatch(ULID, task_id) is None:
            raise task_not_found(task_id)
        try:
            details = await self.caller.do("show_job", job=task_id)
        except (NotFound, NotAuthorised):
            raise task_not_found(task_id) from None
        task = Task(details, state_of_task(details))
        tags = details.options.get("tags", ())
        if details.kind not in self.skills or not {self._tag, f"{self._context_tag}{task.context}"} <= set(tags):
            raise task_not_found(task_id)
        return task

    async def get(self, asked: TaskParams) -> dict[str, Any]:
        return (await self.task(asked.id)).shown()

    async def cancel(self, asked: TaskParams) -> dict[str, Any]:
        task = await self.task(asked.id)
        if task.state.is_over:
            raise task_not_cancelable(f"the task has ended: {task.state.value}")
        try:
            await self.caller.do("cancel_job", job=asked.id, reason=CANCELLED)
        except Conflict as error:
            raise task_not_cancelable(str(error)) from None
        return (await self.task(asked.id)).shown()

    async def page(self, asked: ListParams) -> dict[str, Any]:
        """The newest tasks of the caller, the last changed first."""
        size, end = asked.page_size or PAGE, _place(asked.page_token)
        since = None if asked.status_timestamp_after is None else asked.status_timestamp_after.timestamp() * 1000
        briefs = await self._briefs(asked.context_id)
        found = [each for brief in briefs if (each := await self._listed(brief)) is not None]
        if asked.status is not None:
            found = [each for each in found if each.state is asked.status]
        if since is not None:
            found = [each for each in found if each.changed_ms >= since]
        found.sort(key=lambda each: each.place, reverse=True)
        rest = [each for each in found if end is None or each.place < end]
        page = [await self.task(each.job_id) for each in rest[:size]]
        return {
            "tasks": [each.shown(with_artifacts=bool(asked.include_artifacts)) for each in page],
            "nextPageToken": "{}-{}".format(*rest[size - 1].place) if len(rest) > size else "",
            "pageSize": size,
            "totalSize": len(found),
        }

    async def _listed(self, brief: JobBrief) -> "_Listed | None":
        state = state_of_task(brief)
        if state.is_over and brief.done_ms is not None:
            return _Listed(brief.done_ms, brief.job_id, state)
        try:
            task = await self.task(brief.job_id)
        except A2aError:  # a tag alone makes no task
            return None
        return _Listed(task.changed_ms, brief.job_id, task.state)

    async def _briefs(self, context: ContextId | None) -> list[JobBrief]:
        tag = self._tag if context is None else f"{self._context_tag}{context}"
        found: list[JobBrief] = []
        for kind in self.skills:
            if not self.caller.service.may("Job", "Read", kind):
                continue
            after: str | None = None
            for _ in range(PAGES_MAX):
                page = await self.caller.do("list_jobs", kind=kind, tag=tag, limit=JOBS_PAGE, after=after)
                found += page.items
                after = page.next
                if after is None or len(found) >= LISTED_MAX * len(self.skills):
                    break
        found.sort(key=lambda each: each.job_id, reverse=True)
        return found[:LISTED_MAX]
