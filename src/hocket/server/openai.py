"""Chat completions in OpenAI's form. A request becomes a job of one kind; the answer comes from the worker that holds
the job, as one object or as a stream of events. A client that disconnects cancels its job.

The payload of the job has `model`, `messages` and the options that the request gave. A part that is text is content; a
part that is an object can have `content` or other members of a delta, `finish_reason`, and `usage`. Without `usage`,
words of the messages and parts of the answer are counted.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec

from hocket.api.operation import TokenNeed
from hocket.errors import HocketError, NotFound, Unreachable, Usage
from hocket.families.jobs.parts import Part
from hocket.kernel.decoding import convert
from hocket.mesh.wire import Reply
from hocket.node.handles import Handle, JobCancelled
from hocket.node.node import Node
from hocket.server.routes import ApiCall, ApiRoute
from hocket.work.handlers import kind as job_kind

# How long a request waits for a worker to begin its job, and for its whole answer.
BEGIN_S = 60
ANSWER_S = 600.0
MESSAGES_MAX = 10_000
# How many parts wait for a client that reads slowly.
WAITING_MAX = 1_024
GONE = "the client has disconnected"

_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}
_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What it gives besides `n`, `stream` and `stream_options` goes to the handler."""

    model: str
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1, max_length=MESSAGES_MAX)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None


class TokenUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: dict[str, Any]
    finish_reason: str


class ChatCompletion(msgspec.Struct, frozen=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TokenUsage


class ChatModel(msgspec.Struct, frozen=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ChatModels(msgspec.Struct, frozen=True):
    object: Literal["list"]
    data: list[ChatModel]


class OpenAiError(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: str
    param: str | None = None


class OpenAiErrorAnswer(msgspec.Struct, frozen=True):
    error: OpenAiError


def error_answer(status: int, word: str, message: str) -> OpenAiErrorAnswer:
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return OpenAiErrorAnswer(OpenAiError(message, kind, word))


def routes(kind: str) -> tuple[ApiRoute, ...]:
    """The routes whose requests become jobs of this kind."""
    need = TokenNeed("Job", "Schedule", lambda service, asked: [kind])

    async def chat_completions(call: ApiCall, body: ChatRequest) -> ChatCompletion:
        """Answer a chat. With `stream` the answer is a stream of server-sent events."""
        if body.model != kind:
            raise NotFound(f"no model {body.model!r}; this server has {kind}")
        if body.n not in (None, 1):
            raise Usage("n must be 1: a request becomes one job")
        job = _ChatJob(call.node, body, await _submit(call.node, kind, body))
        try:
            if not body.stream:
                return await job.completion()
            await job.begin()
        except BaseException:
            await job.close()
            raise
        return Reply(200, _EVENTS, stream=_ChatEvents(job))  # type: ignore[return-value]

    def list_models(call: ApiCall) -> ChatModels:
        """List the models: the kind of the jobs is the only one."""
        return ChatModels("list", [ChatModel(kind, "model", 0, "hocket")])

    return (
        ApiRoute("POST", "/v1/chat/completions", chat_completions, need, errors=(OpenAiErrorAnswer, error_answer)),
        ApiRoute("GET", "/v1/models", list_models, need, errors=(OpenAiErrorAnswer, error_answer)),
    )


async def _submit(node: Node, kind: str, body: ChatRequest) -> Handle[Any]:
    given = msgspec.to_builtins(body)
    payload = {name: value for name, value in given.items() if name not in ("stream", "stream_options", "n")}
    return await node.submit(job_kind(kind, ttl=BEGIN_S), **payload)


class _ChatJob:
    """One request: its job, and the answer as far as it has come. Close it; a job that has not ended is cancelled."""

    def __init__(self, node: Node, asked: ChatRequest, handle: Handle[Any]) -> None:
        self.asked = asked
        self._handle = handle
        self._created = node.environment.physical_ms() // 1000
        self._parts: asyncio.Queue[Part | HocketError | None] = asyncio.Queue(WAITING_MAX)
        self._following = asyncio.create_task(self._follow())
        self._first: Part | None = None
        self._count = 0
        self._usage: Any = None
        self._finish = "stop"
        self._is_over = False

    async def begin(self) -> None:
        """Waits for the first part, so that a job that fails before is answered with its status."""
        self._first = await self._next()

    async def completion(self) -> ChatCompletion:
        message: dict[str, Any] = {}
        while (part := await self._next()) is not None:
            if part.is_restart:
                message, self._count = {}, 1
            for name, value in self._delta(part.value).items():
                message[name] = message.get(name, "") + value if isinstance(value, str) else value
        if not self._count:
            message = self._delta(await self._handle.result())
        message = {"role": "assistant", "content": None, **message}
        choice = ChatChoice(0, message, self._finish)
        return ChatCompletion(
            self._id, "chat.completion", self._created, self.asked.model, [choice], self._usage_counted()
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """The events of a stream, after `begin`."""
        yield self._chunk({"role": "assistant", "content": ""})
        part = self._first
        while part is not None:
            if part.is_restart:
                raise Unreachable("the worker was lost in the middle of its answer; send the request again")
            if delta := self._delta(part.value):
                yield self._chunk(delta)
            part = await self._next()
        if not self._count:
            yield self._chunk(self._delta(await self._handle.result()))
        yield self._chunk({}, self._finish)
        if self._tells_usage:
            yield _event({**self._head, "choices": [], "usage": self._usage_counted()})
        yield b"data: [DONE]\n\n"

    async def close(self) -> None:
        self._following.cancel()
        await asyncio.wait([self._following])
        if not self._is_over:
            self._is_over = True
            with suppress(HocketError):  # it has just ended, or the coordinator is away and hears of it later
                await asyncio.shield(asyncio.create_task(self._handle.cancel(GONE)))

    async def _follow(self) -> None:
        """Reads the job's parts, in a task of its own: a request can be cancelled at any point."""
        try:
            async with asyncio.timeout(ANSWER_S):
                async for part in self._handle.stream():
                    await self._parts.put(part)
        except TimeoutError:
            await self._parts.put(Unreachable(f"the answer was not complete within {ANSWER_S:g} seconds"))
            return
        except JobCancelled as error:
            end: HocketError | None = Unreachable(str(error))
        except HocketError as error:
            end = error
        else:
            end = None
        self._is_over = True
        await self._parts.put(end)

    async def _next(self) -> Part | None:
        part = await self._parts.get()
        if isinstance(part, HocketError):
            raise part
        self._count += part is not None
        return part

    def _delta(self, value: Any) -> dict[str, Any]:
        if isinstance(value, dict):
            delta = dict(value)
            self._usage = delta.pop("usage", self._usage)
            self._finish = delta.pop("finish_reason", None) or self._finish
            return delta
        if value is None:
            return {}
        return {"content": value if isinstance(value, str) else msgspec.json.encode(value).decode()}

    def _usage_counted(self) -> TokenUsage:
        with suppress(msgspec.ValidationError):
            return convert(self._usage, TokenUsage)
        texts = [each.get("content") for each in self.asked.messages]
        asked = sum(len(each.split()) for each in texts if isinstance(each, str))
        return TokenUsage(asked, self._count, asked + self._count)

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self._handle.job_id}"

    @property
    def _tells_usage(self) -> bool:
        return self.asked.stream_options is not None and self.asked.stream_options.include_usage

    @property
    def _head(self) -> dict[str, Any]:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": self._created, "model": self.asked.model}
        return head | ({"usage": None} if self._tells_usage else {})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


class _ChatEvents:
    """The stream of one answer. Closing it, even before it has begun, closes the job."""

    def __init__(self, job: _ChatJob) -> None:
        self._job, self._events = job, _events(job)

    def __aiter__(self) -> "_ChatEvents":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()
        await self._job.close()


async def _events(job: _ChatJob) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in job.chunks():
            yield chunk
    except HocketError as error:
        yield _event(error_answer(500, "internal", str(error)))


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
