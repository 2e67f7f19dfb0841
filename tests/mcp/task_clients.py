"""A client that knows tasks, as an extension of the official one."""

import asyncio
from typing import Any, Literal

import mcp_types as types
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim

from tests.mcp.agents import Agent

EXTENSION = "io.modelcontextprotocol/tasks"
# The server asks for two seconds.
POLL_S = 0.1


class TaskStatus(types.Result):
    task_id: str
    status: str
    created_at: str
    last_updated_at: str
    poll_interval_ms: int
    status_message: str | None = None


class Task(TaskStatus):
    result: dict[str, Any] | None = None
    input_requests: dict[str, Any] | None = None


class NewTask(TaskStatus):
    result_type: Literal["task"] = "task"


class GetTask(types.Request[types.GetTaskRequestParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    name_param = "taskId"


class CancelTask(types.Request[types.CancelTaskRequestParams, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    name_param = "taskId"


class UpdateTaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any]


class UpdateTask(types.Request[UpdateTaskParams, Literal["tasks/update"]]):
    method: Literal["tasks/update"] = "tasks/update"
    name_param = "taskId"


class Tasks(ClientExtension):
    """With it a tool call that goes on as a task is over when the task is."""

    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=NewTask, resolve=self._ended)]

    async def _ended(self, task: NewTask, context: ClaimContext) -> types.CallToolResult:
        while (shown := await context.session.send_request(_get(task.task_id), Task)).status == "working":
            await asyncio.sleep(POLL_S)
        return types.CallToolResult.model_validate(shown.result)


def _get(task_id: str) -> GetTask:
    return GetTask(params=types.GetTaskRequestParams(task_id=task_id))


async def new_task(agent: Agent, tool: str, **arguments: Any) -> NewTask:
    """The task that a call becomes."""
    answer = await agent.client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(answer, NewTask), answer
    return answer


async def task_of(agent: Agent, task_id: str) -> Task:
    return await agent.client.session.send_request(_get(task_id), Task)


async def cancel(agent: Agent, task_id: str) -> None:
    params = types.CancelTaskRequestParams(task_id=task_id)
    await agent.client.session.send_request(CancelTask(params=params), types.EmptyResult)


async def answer(agent: Agent, task_id: str, responses: dict[str, Any]) -> None:
    params = UpdateTaskParams(task_id=task_id, input_responses=responses)
    await agent.client.session.send_request(UpdateTask(params=params), types.EmptyResult)


async def listen_to_tasks(agent: Agent, task_ids: list[str]) -> None:
    """Ends when the server ends it."""
    wanted = types.SubscriptionFilter.model_validate({"taskIds": task_ids})
    params = types.SubscriptionsListenRequestParams(notifications=wanted)
    await agent.client.session.send_request(types.SubscriptionsListenRequest(params=params), types.EmptyResult)
