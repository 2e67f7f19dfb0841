"""A worker for jobs that agents of other makers do, in one process of a node at a time, for the agents that the owner
of the home has named. The kind of such a job ends with the name of its agent.

The message has the job's id, so an agent that knows it from an earlier try goes on with its first task; besides, the
job's checkpoint names the task. What the agent asks, the job asks who submitted it. If the job is cancelled, so is the
task.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hocket.cancelling import end_tasks
from hocket.errors import HocketError, NotAuthorised
from hocket.events import Emit
from hocket.extensions.agent_calls.a2a_client import A2aClient, AgentRefused
from hocket.extensions.agent_calls.agent_file import ForeignAgent, read_agents
from hocket.extensions.file_tasks import LOOK_S, Changed
from hocket.kernel.ids import content_hash
from hocket.work.environment import WorkerOptions
from hocket.work.handler_errors import Fatal
from hocket.work.handlers import Handlers, JobType

if TYPE_CHECKING:
    from hocket.node.node import Node

KIND = "hocket.agent."
CALLS_MAX = 64
RETRIES = 20
# How often a task is looked at: at first, and in the end.
FIRST_POLL_S, LAST_POLL_S = 0.25, 10.0
# How long the one who submitted the job has for what the agent asks.
ANSWER_WITHIN = "1d"
_DONE, _LOST = "TASK_STATE_COMPLETED", ("TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")
_ASKS = "TASK_STATE_INPUT_REQUIRED"


# Makes a call of the protocol, with its name and its parameters.
Call = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class FoundTask(NamedTuple):
    """A task as the agent shows it. `text` is what its status says, and `message_id` the id of that."""

    id: str
    context: str
    state: str
    text: str
    message_id: str
    artifacts: list[Any]


class AgentCalls:
    def __init__(self, node: "Node", emit: Emit) -> None:
        self._node, self._emit = node, emit

    async def serve(self, changed: Changed) -> None:
        """Returns when no agent is left."""
        served: dict[str, ForeignAgent] = {}
        working: asyncio.Task[None] | None = None
        try:
            while agents := await self._node.call(lambda: read_agents(self._node.runtime.home.path)):
                if working is None or working.done() or agents != served:
                    if working is not None:
                        await end_tasks([working])
                    served, working = agents, asyncio.create_task(self._work(agents.values()))
                await changed(LOOK_S)
        finally:
            if working is not None:
                await end_tasks([working])

    async def _work(self, agents: Iterable[ForeignAgent]) -> None:
        types: list[JobType[Any, Any]] = []
        for each in agents:
            options: dict[str, Any] = {"retries": RETRIES, "give_up_on": (AgentRefused, NotAuthorised, TimeoutError)}
            types.append(JobType(f"{KIND}{each.name}", function=AgentCall(each).run, **options))
        async with self._node.worker(WorkerOptions(Handlers(types), concurrency=CALLS_MAX, emit=self._emit)) as worker:
            await worker.run()


class AgentCall:
    """The handler for jobs of one agent."""

    def __init__(self, agent: ForeignAgent) -> None:
        self._agent, self._client = agent, A2aClient(agent)

    async def run(
        self,
        ctx: Any,
        text: str | None = None,
        data: dict[str, Any] | None = None,
        skill: str | None = None,
        context: str | None = None,
    ) -> Any:
        parts = [{"text": text}] * (text is not None) + [{"data": data}] * (data is not None)
        if not parts:
            raise Fatal("a job for an agent has a text, or data, or both")
        interface = await asyncio.to_thread(self._client.interface)

        async def call(method: str, params: dict[str, Any]) -> dict[str, Any]:
            return await asyncio.to_thread(self._client.call, interface.path, method, params)

        first = await self._first_id(ctx)
        metadata = {} if skill is None else {"skill": skill}
        known = ctx.last_checkpoint or {}
        task: FoundTask | None = None
        try:
            if known.get("message") == first:
                task = found_task(await call("GetTask", {"id": known["task"]}))
            else:
                answer = await call("SendMessage", _sent(first, parts, metadata, context=context))
                if "message" in answer:
                    return values_of(_parts(answer["message"]))
                task = found_task(answer.get("task"))
                ctx.checkpoint({"message": first, "task": task.id})
            return await self._followed(ctx, call, task, metadata)
        except asyncio.CancelledError:
            if task is not None:
                await self._cancel(ctx, call, task)
            raise

    async def _first_id(self, ctx: Any) -> str:
        """The id of the first message. A job that a person retries is a new task."""
        ops = (await ctx.node.job(ctx.job_id).status())["ops"]
        retries = sum(op["type"] == "RetryJob" and op["counts"] for op in ops)
        return f"{ctx.job_id}-{retries}" if retries else str(ctx.job_id)

    async def _followed(self, ctx: Any, call: Call, task: FoundTask, metadata: dict[str, str]) -> Any:
        pause, shown = FIRST_POLL_S, ""
        while task.state not in (_DONE, *_LOST):
            if task.state == _ASKS:
                answer = await ctx.ask(task.text or "The agent asks for a message.", wait=ANSWER_WITHIN)
                told = content_hash(f"{ctx.job_id}\n{task.message_id}\n{task.text}".encode()).hex()[:32]
                place = {"taskId": task.id, "contextId": task.context}
                await call("SendMessage", _sent(told, [{"text": answer}], metadata, **place))
                pause = FIRST_POLL_S
            elif task.text and task.text != shown:
                shown = task.text
                ctx.progress(shown[:1_000])
            await asyncio.sleep(pause)
            pause = min(LAST_POLL_S, pause * 1.5)
            task = found_task(await call("GetTask", {"id": task.id}))
        if task.state == _DONE:
            return result_of(task)
        raise Fatal(f"{self._agent.name}: {task.state.removeprefix('TASK_STATE_').lower()}: {task.text or 'no reason'}")

    async def _cancel(self, ctx: Any, call: Call, task: FoundTask) -> None:
        """Cancels the task if the job was cancelled. A worker that stops leaves it to the next one."""
        with suppress(HocketError):
            if (await ctx.node.job(ctx.job_id).status())["outcome"] == "cancelled":
                await call("CancelTask", {"id": task.id})


def _sent(id: str, parts: list[Any], metadata: dict[str, str], **place: str | None) -> dict[str, Any]:
    members = {name: value for name, value in place.items() if value is not None}
    names = {"context": "contextId"}
    message = {"messageId": id, "role": "ROLE_USER", "parts": parts, "metadata": metadata}
    message |= {names.get(name, name): value for name, value in members.items()}
    return {"message": message, "configuration": {"returnImmediately": True}}


def found_task(shown: Any) -> FoundTask:
    """Raises AgentRefused for what is no task."""
    status = shown.get("status") if isinstance(shown, dict) else None
    if not isinstance(status, dict) or not isinstance(shown.get("id"), str):
        raise AgentRefused("the agent answered with no task")
    said = status.get("message") or {}
    artifacts = shown.get("artifacts")
    return FoundTask(
        shown["id"],
        str(shown.get("contextId", "")),
        str(status.get("state", "")),
        "\n".join(_word(each) for each in _parts(said)),
        str(said.get("messageId", "")) if isinstance(said, dict) else "",
        artifacts if isinstance(artifacts, list) else [],
    )


def result_of(task: FoundTask) -> Any:
    """The one value of a task with one artifact of one part; else all artifacts, each with its parts."""
    artifacts = [each for each in task.artifacts if isinstance(each, dict)]
    if len(artifacts) == 1:
        return values_of(_parts(artifacts[0]))
    return [{"name": each.get("name") or each.get("artifactId"), "parts": _parts(each)} for each in artifacts] or None


def values_of(parts: list[dict[str, Any]]) -> Any:
    if len(parts) != 1:
        return parts
    (part,) = parts
    return next((part[name] for name in ("text", "data") if name in part), part)


def _parts(message: Any) -> list[dict[str, Any]]:
    found = message.get("parts") if isinstance(message, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _word(part: dict[str, Any]) -> str:
    return str(part["text"]) if "text" in part else msgspec.json.encode(part.get("data")).decode()
