"""The agent card at its well-known path, and the JSON-RPC binding of the protocol at `/a2a`."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from hocket.a2a import following
from hocket.a2a.card import PROTOCOL_VERSION, key_set, signed_card
from hocket.a2a.errors import (
    INTERNAL,
    INVALID_REQUEST,
    NO_METHOD,
    PARSE,
    A2aError,
    ErrorReason,
    as_a2a_error,
    no_push_notifications,
    unsupported,
)
from hocket.a2a.requests import ListParams, SendParams, TaskParams, read_params
from hocket.a2a.tasks import ClientTasks, Task
from hocket.api import Program
from hocket.cancelling import end_tasks
from hocket.errors import HocketError
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.jws import NESTING_MAX, is_too_deep
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request
from hocket.node.node import Node
from hocket.server.api import Api
from hocket.server.known_programs import TokenEnding
from hocket.server.problems import BadMethod
from hocket.server.program_caller import ProgramCaller, check_origin
from hocket.server.routes import BODY_BYTES_MAX
from hocket.server.streams import QUIET_S

PATH = "/a2a"
CARD_PATH = "/.well-known/agent-card.json"
KEYS_PATH = "/.well-known/a2a-keys.json"
# How long a client may keep the card.
CARD_S = 300
VERSION = "a2a-version"
_JSON = {"content-type": "application/json", "cache-control": "no-store", "x-content-type-options": "nosniff"}
_EVENTS = {"content-type": "text/event-stream", "cache-control": "no-store", "x-accel-buffering": "no"}

RequestId = str | int | float | None


class RpcCall(NamedTuple):
    id: RequestId
    method: str
    params: Any


class A2aSite:
    """`skills` are the kinds whose jobs agents may submit here, and `address` tells where this server is reached."""

    def __init__(self, node: Node, api: Api, skills: Sequence[str], address: Callable[[], str]) -> None:
        self._node, self._api, self._skills, self._address = node, api, tuple(dict.fromkeys(skills)), address
        self._documents: dict[str, bytes] = {}
        self._answers: dict[str, Callable[[ClientTasks, Any], Awaitable[Any]]] = {
            "GetTask": lambda tasks, params: tasks.get(read_params(params, TaskParams)),
            "ListTasks": lambda tasks, params: tasks.page(read_params(params, ListParams)),
            "CancelTask": lambda tasks, params: tasks.cancel(read_params(params, TaskParams)),
        }

    def has(self, path: str) -> bool:
        return path in (PATH, CARD_PATH, KEYS_PATH)

    def failed(self, error: Exception, path: str) -> Reply:
        return self._api.failed(error, path)

    async def answer(self, request: Request) -> Reply:
        try:
            wanted = "POST" if request.path == PATH else "GET"
            if request.method != wanted:
                raise BadMethod([wanted])
            if request.path != PATH:
                return _kept(await self._document(request.path), request)
            check_origin(request)
            program = await self._api.admitted(request)
            return program if isinstance(program, Reply) else await self._answer(request, program)
        except (HocketError, BodyTooLong, NoRoom) as error:
            return self._api.refused(error, request)

    async def _document(self, path: str) -> bytes:
        if path not in self._documents:
            self._documents[path] = msgspec.json.encode(await self._api.read(partial(self._made, path)))
        return self._documents[path]

    def _made(self, path: str) -> dict[str, Any]:
        runtime, address = self._node.runtime, self._address()
        key = runtime.home.node_key()
        if path == KEYS_PATH:
            return key_set(key)
        name = self._api.service.names().get(node_text(runtime.log.node), "hocket")
        return signed_card(name, address + PATH, address + KEYS_PATH, self._skills, key)

    async def _answer(self, request: Request, program: Program) -> Reply:
        request = await request.whole(BODY_BYTES_MAX)
        id: RequestId = None
        try:
            id, method, params = _read(request.body)
            _check_version(request)
            return await self._answer_call(request, program, RpcCall(id, method, params))
        except HocketError as error:
            shown = as_a2a_error(error)
            if shown is None:
                raise
            return Reply(200, _JSON, _response(id, error=shown.shown))

    async def _answer_call(self, request: Request, program: Program, call: RpcCall) -> Reply:
        tasks = ClientTasks(ProgramCaller(self._api, self._node, program), self._skills)
        is_stream = call.method in ("SendStreamingMessage", "SubscribeToTask")
        with ExitStack() as stack:
            if call.method in self._answers:
                stack.enter_context(self._api.held_open(request, program, is_stream=False))
                answer = await self._answers[call.method](tasks, call.params)
                return Reply(200, _JSON, _response(call.id, result=answer))
            if is_stream or call.method == "SendMessage":
                return await self._follow(request, program, call, tasks)
        raise _no_method(call.method)

    async def _follow(self, request: Request, program: Program, call: RpcCall, tasks: ClientTasks) -> Reply:
        """Sends the events of a task, or the task when it has ended."""
        with ExitStack() as stack:
            with self._api.held_open(request, program, is_stream=False):
                if call.method == "SubscribeToTask":
                    task = await tasks.task(read_params(call.params, TaskParams).id)
                    if task.state.is_over:
                        raise unsupported(f"the task has ended: {task.state.value}; GetTask has its result")
                else:
                    asked = read_params(call.params, SendParams)
                    task = await tasks.send(asked)
                    if call.method == "SendMessage" and (
                        task.state.ends_wait or (asked.configuration and asked.configuration.return_immediately)
                    ):
                        return Reply(200, _JSON, _response(call.id, result={"task": task.shown()}))
            ending = stack.enter_context(self._api.held_open(request, program, is_stream=True))
            if call.method == "SendMessage":
                # White space before the answer keeps the connection open while the task goes on.
                pieces = _TaskAnswer(_ended(tasks, task, call.id), call.id, ending, b"", b"\n", b" ")
                return Reply(200, _JSON, stream=pieces.holding(stack))
            events = _events(following.events(tasks, task), call.id)
            pieces = _TaskAnswer(events, call.id, ending, b"data: ", b"\n\n", b":\n\n")
            return Reply(200, _EVENTS, stream=pieces.holding(stack))


async def _ended(tasks: ClientTasks, task: Task, id: RequestId) -> AsyncGenerator[bytes, None]:
    yield _response(id, result={"task": (await following.ended(tasks, task)).shown()})


async def _events(items: AsyncGenerator[dict[str, Any], None], id: RequestId) -> AsyncGenerator[bytes, None]:
    try:
        async for each in items:
            yield _response(id, result=each)
    finally:
        await items.aclose()


class _TaskAnswer:
    """The body of an answer that comes in pieces, each `before` and `after` something. It sends `quiet` while there is
    none, and ends with its token, and with the server. The sender closes it.
    """

    def __init__(
        self,
        items: AsyncGenerator[bytes, None],
        id: RequestId,
        ending: TokenEnding,
        before: bytes,
        after: bytes,
        quiet: bytes,
    ) -> None:
        self._items, self._id, self._ending = items, id, ending
        self._before, self._after, self._quiet = before, after, quiet
        self._next: asyncio.Task[bytes | None] | None = None
        self._stopped: asyncio.Task[Any] | None = None
        self._held = ExitStack()
        self._is_over = False

    def holding(self, stack: ExitStack) -> "_TaskAnswer":
        self._held = stack.pop_all()
        return self

    def __aiter__(self) -> "_TaskAnswer":
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        self._next = self._next or asyncio.create_task(_next(self._items))
        self._stopped = self._stopped or asyncio.create_task(self._ending.wait())
        done, _ = await asyncio.wait([self._next, self._stopped], timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not done:
                return self._quiet
            if not self._next.done():
                raise self._ending.error("the server stops; ask for the task again")
            item, self._next = self._next.result(), None
            if item is None:
                self._is_over = True
                raise StopAsyncIteration
        except HocketError as error:
            self._is_over = True
            shown = as_a2a_error(error) or A2aError(INTERNAL, str(error))
            item = _response(self._id, error=shown.shown)
        return self._before + item + self._after

    async def aclose(self) -> None:
        self._is_over = True
        await end_tasks([each for each in (self._next, self._stopped) if each is not None])
        await self._items.aclose()
        self._held.close()


async def _next(items: AsyncGenerator[bytes, None]) -> bytes | None:
    return await anext(items, None)


def _read(body: bytes) -> RpcCall:
    if is_too_deep(body):
        raise A2aError(INVALID_REQUEST, f"the request is nested deeper than {NESTING_MAX}")
    try:
        call = decode_json(body, Any)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise A2aError(PARSE, f"the body is no JSON: {error}") from None
    if not isinstance(call, dict) or call.get("jsonrpc") != "2.0" or not isinstance(call.get("method"), str):
        raise A2aError(INVALID_REQUEST, "the body is one request of JSON-RPC 2.0, with a method")
    if "id" not in call or isinstance(call["id"], bool) or not isinstance(call["id"], RequestId):
        raise A2aError(INVALID_REQUEST, "the id of a request is a text or a number")
    return RpcCall(call["id"], call["method"], call.get("params", {}))


def _check_version(request: Request) -> None:
    given = request.headers.get(VERSION) or parse_qs(request.query).get("A2A-Version", [""])[0]
    if ".".join(given.split(".")[:2]) != PROTOCOL_VERSION:
        named = given[:16] or "0.3, which no header A2A-Version means"
        raise A2aError(ErrorReason.VERSION_NOT_SUPPORTED, f"this agent speaks A2A {PROTOCOL_VERSION}, and not {named}")


def _no_method(method: str) -> A2aError:
    if method.endswith(("PushNotificationConfig", "PushNotificationConfigs")):
        return no_push_notifications()
    if method == "GetExtendedAgentCard":
        return unsupported("this agent has no extended card")
    return A2aError(NO_METHOD, f"there is no method {method[:64]!r}")


def _response(id: RequestId, **outcome: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, **outcome})


def _kept(content: bytes, request: Request) -> Reply:
    """What a client may keep for a while."""
    tag = f'"{content_hash(content).hex()[:32]}"'
    head: Mapping[str, str] = {**_JSON, "cache-control": f"public, max-age={CARD_S}", "etag": tag}
    return Reply(304, head) if request.headers.get("if-none-match") == tag else Reply(200, head, content)
