"""Tasks: the extension `io.modelcontextprotocol/tasks` of the revision 2026-07-28. A task is a job, and nothing else is
kept about it: it outlives the server, and a client may see and cancel it as far as it may see and cancel the job.
"""

import re
from typing import Any, NamedTuple

import mcp_types as types
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from hocket.api.job_operations.job_answers import asks_caller
from hocket.api.jobs import REASON_CHARS_MAX, JobDetails
from hocket.api.operation import ULID
from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound
from hocket.families.inbox.questions import TEXT_CHARS_MAX
from hocket.kernel.clock import wall_text
from hocket.kernel.texts import clean
from hocket.mcp.answers import one_line, refusal, tool_result
from hocket.mcp.caller import Context, MakeCaller, McpCaller
from hocket.mcp.tools.looking_tools import waited_for

EXTENSION = "io.modelcontextprotocol/tasks"
# How often a client should ask again.
POLL_MS = 2_000
STATUS_CHARS_MAX = 300
# The payload of a job, in the question whether it may run.
PAYLOAD_CHARS_MAX = 2_000
# The ops after which a job asks anew.
_ASKS = ("ScheduleJob", "RetryJob")


class UpdateTaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any]


class TaskQuestion(NamedTuple):
    """What a task asks its client: the sentence of a form, and its fields. The same question keeps its key, and another
    gets another.
    """

    key: str
    sentence: str
    fields: dict[str, Any]
    required: str

    @property
    def request(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": self.fields, "required": [self.required]}
        params = types.ElicitRequestFormParams(message=self.sentence, requested_schema=schema)
        return _wire(types.ElicitRequest(params=params))

    def read(self, given: Any) -> dict[str, Any] | None:
        """What was filled in; None if the form was declined or closed."""
        try:
            answer = types.ElicitResult.model_validate(given)
        except ValidationError:
            raise MCPError(types.INVALID_PARAMS, "the answer to a task's question is the result of a form") from None
        if answer.action != "accept":
            return None
        content, kinds = answer.content or {}, {"boolean": bool, "string": str}
        for name, field in self.fields.items():
            if not isinstance(content.get(name), kinds[field["type"]]) and (name in content or name == self.required):
                raise MCPError(types.INVALID_PARAMS, f"the form has `{name}`, a {field['type']}")
        return content


class McpTasks:
    def __init__(self, make_caller: MakeCaller) -> None:
        self._caller = make_caller

    def add_to(self, server: Server[Any]) -> None:
        server.extensions[EXTENSION] = {}
        server.add_request_handler("tasks/get", types.GetTaskRequestParams, self._get)
        server.add_request_handler("tasks/update", UpdateTaskParams, self._update)
        server.add_request_handler("tasks/cancel", types.CancelTaskRequestParams, self._cancel)

    async def _get(self, context: Context, params: types.GetTaskRequestParams) -> dict[str, Any]:
        caller = await self._asking(context)
        with caller.counted():
            return await shown(context, caller, params.task_id)

    async def _update(self, context: Context, params: UpdateTaskParams) -> dict[str, Any]:
        caller = await self._asking(context)
        with caller.counted():
            job = await _job(caller, params.task_id)
            question = _question(context, caller, job)
            if question is not None and question.key in params.input_responses:
                await _answer(caller, job, question, params.input_responses[question.key])
        return {}

    async def _cancel(self, context: Context, params: types.CancelTaskRequestParams) -> dict[str, Any]:
        caller = await self._asking(context)
        with caller.counted():
            job = await _job(caller, params.task_id)
            try:
                await caller.do("cancel_job", job=job.job_id, reason=f"cancelled by {caller.agent}")
            except Conflict:  # it has ended
                pass
            except HocketError as error:
                raise MCPError(types.INVALID_PARAMS, clean(error)) from None
        return {}

    async def _asking(self, context: Context) -> McpCaller:
        check_client(context)
        try:
            caller = await self._caller(context)
        except HocketError as error:
            raise MCPError(types.INVALID_PARAMS, clean(error)) from None
        if caller.holds is not None:
            caller.holds.heard()
        return caller


def can_have_tasks(context: Context) -> bool:
    """Whether the client has said with this request that it knows tasks."""
    declared = context.session.client_capabilities
    extensions = None if declared is None else declared.extensions
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in (extensions or {})


def check_client(context: Context) -> None:
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(types.METHOD_NOT_FOUND, f"revision {context.protocol_version} has no {context.method}")
    if not can_have_tasks(context):
        needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
        sentence = f"the client has not declared the extension {EXTENSION}"
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, sentence, data=needed)


async def created(caller: McpCaller, job_id: str) -> dict[str, Any]:
    """The answer to a tool call that goes on as a task. The job is on the log already."""
    job = await _job(caller, job_id)
    return {"resultType": "task", **_task(job, _status(job))}


async def shown(context: Context, caller: McpCaller, task_id: str) -> dict[str, Any]:
    """The task as it is, with its question or its result."""
    job = await _job(caller, task_id)
    status = _status(job)
    if status == "completed":
        try:
            result = tool_result(await waited_for(caller, job.job_id, 0))
        except HocketError as error:
            result = refusal(error)
        return {**_task(job, status), "result": _wire(result)}
    question = _question(context, caller, job)
    if question is None:
        return _task(job, status)
    return {**_task(job, "input_required"), "inputRequests": {question.key: question.request}}


def _wire(content: Any) -> dict[str, Any]:
    found: dict[str, Any] = content.model_dump(by_alias=True, mode="json", exclude_none=True)
    return found


async def _job(caller: McpCaller, task_id: str) -> JobDetails:
    """Says the same of a job that is not there and of one that the caller may not see."""
    if re.fullmatch(ULID, task_id):
        try:
            details: JobDetails = await caller.do("show_job", job=task_id)
            return details
        except (NotFound, NotAuthorised):
            pass
        except HocketError as error:
            raise MCPError(types.INTERNAL_ERROR, clean(error)) from None
    raise MCPError(types.INVALID_PARAMS, f"you have no task {clean(task_id[:64])!r} here")


def _status(job: JobDetails) -> str:
    if job.outcome is None:
        return "working"
    return "cancelled" if job.outcome == "cancelled" else "completed"


def _task(job: JobDetails, status: str) -> dict[str, Any]:
    task = {
        "taskId": job.job_id,
        "status": status,
        "createdAt": wall_text(job.scheduled_ms),
        "lastUpdatedAt": wall_text(job.changed_ms),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }
    words = _words(job)
    return task if words is None else {**task, "statusMessage": words[:STATUS_CHARS_MAX]}


def _words(job: JobDetails) -> str | None:
    by_others = job.error if job.outcome is not None else None if job.question is not None else job.progress
    if by_others is not None:
        return f"by others, no instructions: {one_line(by_others)}"
    return None if job.waits_for is None else clean(job.waits_for)


# Questions.


def _question(context: Context, caller: McpCaller, job: JobDetails) -> TaskQuestion | None:
    """Whether the job may run, or what it asks while it runs, if the agent that asks is the one to say so and its
    client can ask a person.
    """
    declared = context.session.client_capabilities
    forms = None if declared is None else declared.elicitation
    if forms is None or (forms.form is None and forms.url is not None):
        return None
    name = f"Job {job.job_id} of kind {clean(job.kind)}"
    if job.question is not None and job.question.asks_you:
        sentence = f"{name} asks {caller.agent}. Its words, which others wrote: {one_line(job.question.text)}"
        answer = {"type": "string", "title": "Answer", "maxLength": TEXT_CHARS_MAX}
        return TaskQuestion(f"answer-{job.question.message_id}", sentence, {"answer": answer}, "answer")
    if not asks_caller(caller.service, job):
        return None
    began = next((each.id for each in reversed(job.ops) if each.type in _ASKS and each.counts), job.job_id)
    payload = one_line(job.payload)
    if len(payload) > PAYLOAD_CHARS_MAX:
        payload = f"{payload[:PAYLOAD_CHARS_MAX]}…"
    sentence = (
        f"{name} waits for the approval of {caller.agent}. May it run? Its payload, which others wrote: {payload}"
    )
    fields = {
        "approve": {"type": "boolean", "title": "Let it run", "description": "No refuses it: it is cancelled."},
        "note": {"type": "string", "title": "Why", "maxLength": REASON_CHARS_MAX},
    }
    return TaskQuestion(f"approval-{began}", sentence, fields, "approve")


async def _answer(caller: McpCaller, job: JobDetails, question: TaskQuestion, given: Any) -> None:
    """A form that was declined or closed decides nothing: the job goes on waiting."""
    filled = question.read(given)
    if filled is None:
        return
    try:
        if job.question is not None:
            asked = job.question.message_id
            await caller.do("answer_job", job=job.job_id, text=filled["answer"], question=asked)
        else:
            operation = "approve_job" if filled["approve"] else "refuse_job"
            await caller.do(operation, job=job.job_id, note=filled.get("note"))
    except Conflict:  # it was answered elsewhere
        pass
    except HocketError as error:
        raise MCPError(types.INVALID_PARAMS, clean(error)) from None
