"""Answers the requests of programs: who asks, whether its token allows it, and then the route's function on a thread.
Every error is a problem of RFC 9457 with the sentence that the command line would print; no traceback leaves this
node. Each program and each address has its limits.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from hocket.api import Principal, Program, Service, programs
from hocket.api.operation import Download, TokenNeed
from hocket.api.programs import KeptAnswer, KeyReused, KeyUnderWay, UnknownToken
from hocket.errors import HocketError, NotFound, Unreachable
from hocket.kernel.ids import content_hash
from hocket.mesh import wire
from hocket.mesh.quotas import Buckets
from hocket.mesh.wire import BodyTooLong, NoRoom, Reply, Request
from hocket.node.log_events import PlaceGone
from hocket.node.node import Node
from hocket.server.contents import (
    UPLOAD_BYTES_MAX,
    UPLOADS_MAX,
    UPLOADS_OF_PROGRAM_MAX,
    download_reply,
    uploaded,
)
from hocket.server.description import describe
from hocket.server.known_programs import KnownPrograms, OpenRequests, Shares, TokenEnding
from hocket.server.negotiation import AT_ONCE_BYTES_MAX, is_negotiable, negotiated
from hocket.server.problems import (
    INTERNAL,
    PROBLEM,
    RETRY_S,
    BadContentType,
    BadMethod,
    BadRange,
    Problem,
    TooBusy,
    WaitEnded,
    problem_of,
)
from hocket.server.routes import BODY_BYTES_MAX, PREFIX, ROUTES, ApiCall, ApiRoute, RouteTable
from hocket.server.streams import EVENTS, LINES, Done, LineAnswers, stream_reply

RATE_PER_S = 200.0
BURST = 400.0
# With another rate, a program may ask so long at twice the rate.
BURST_S = 2.0
# Requests without a good token, from one address.
STRANGERS_RATE_PER_S = 5.0
STRANGERS_BURST = 50.0
# The most requests of one program, and of all, in work at once. Those that wait for a lock count, too.
REQUESTS_OF_PROGRAM_MAX = 128
REQUESTS_MAX = 400
# The most claims of workers of one program, and of all, that wait for jobs.
CLAIMS_OF_PROGRAM_MAX = 512
CLAIMS_MAX = 2_048
# The most streams of one program, and of all, at once.
STREAMS_OF_PROGRAM_MAX = 64
STREAMS_MAX = 256
# A request that works longer than this is watched: it ends if its program disconnects.
QUICK_S = 0.1
READ_THREADS = 4
WRITE_THREADS = 8

OPENAPI = f"{PREFIX}openapi.json"
KEY = "idempotency-key"
# Refusals of the API that are counted and told, besides those that are final.
_COUNTED = frozenset((403, 413, 415, 429, 503))
LAST = "last-event-id"
_HEADERS = {"content-type": wire.JSON, "cache-control": "no-store", "x-content-type-options": "nosniff"}

T = TypeVar("T")


class Api:
    """Make it on the event loop of the node. `refused` is called with the status, the reason and the details of
    what the operator should know. `chosen` is a token that the operator has set, `rate_per_s` how often one token may
    ask, and `base_path` where a proxy has put this server. Close it when done.
    """

    def __init__(
        self,
        node: Node,
        refused: Callable[[int, str, str], None] = lambda status, reason, detail: None,
        *,
        chosen: str | None = None,
        routes: Sequence[ApiRoute] = ROUTES,
        base_path: str = "",
        rate_per_s: float | None = None,
    ) -> None:
        self._node, self._refused, self._routes = node, refused, routes
        self._table, self._base_path = RouteTable(routes), base_path.rstrip("/")
        self._service = Service(node.runtime, node=node.blocking())
        monotonic = node.environment.monotonic
        self._programs = KnownPrograms(self._service, chosen, monotonic)
        self._rate = RATE_PER_S if rate_per_s is None else rate_per_s
        self._burst = BURST if rate_per_s is None else BURST_S * rate_per_s
        self._rates = Buckets(self._rate, self._burst, monotonic)
        self._strangers = Buckets(STRANGERS_RATE_PER_S, STRANGERS_BURST, monotonic)
        self._asking: Counter[str] = Counter()
        self._claiming: Counter[str] = Counter()
        self._streams = Shares("streams", STREAMS_OF_PROGRAM_MAX, STREAMS_MAX)
        self._uploads = Shares("uploads", UPLOADS_OF_PROGRAM_MAX, UPLOADS_MAX)
        # The requests with a key in work: what each says, by its program and key.
        self._keyed: dict[tuple[str, str], bytes] = {}
        self._open = OpenRequests(self._programs, self.read)
        self._reading = ThreadPoolExecutor(READ_THREADS, "hocket-api-read")
        self._writing = ThreadPoolExecutor(WRITE_THREADS, "hocket-api")

    def stop(self) -> None:
        """Ends the requests that wait."""
        self._open.stop()

    def close(self) -> None:
        for each in (self._reading, self._writing):
            each.shutdown(cancel_futures=True)

    async def answer(self, request: Request) -> Reply:
        """The request's path is not decoded, since a key in it may have slashes."""
        try:
            reply = await self._answer(request)
        except (HocketError, BodyTooLong, NoRoom) as error:
            return self._error(error, request.path)
        if not is_negotiable(request, reply):
            return reply
        if len(reply.body) <= AT_ONCE_BYTES_MAX:
            return negotiated(request, reply)
        return await self.read(lambda: negotiated(request, reply))

    async def admitted(self, request: Request) -> Program | Reply:
        """The program that sends a request, for a face with requests of another form, or the reply that refuses it."""
        try:
            return await self._recognise(request)
        except HocketError as error:
            return self._error(error, request.path)

    def refused(self, error: HocketError | BodyTooLong | NoRoom, request: Request) -> Reply:
        return self._error(error, request.path)

    @contextmanager
    def held_open(self, request: Request, program: Program, *, is_stream: bool) -> Iterator[TokenEnding]:
        """While a request of another form is in work; what it waits for must end when its token does. A stream is idle
        most of the time, and does not count as a request.
        """
        share = self._streams.one(program.name) if is_stream else self.counted(program.name)
        with share, self._open.one(_token(request)) as ending:
            yield ending

    async def refusal(self, request: Request, need: TokenNeed) -> Reply | None:
        """The reply to a request for a path outside the API, if its token does not grant what that needs."""
        try:
            program = await self._recognise(request)
            with self.counted(program.name):
                self.call(program).service.check(need.resource, need.action)
        except HocketError as error:
            return self._error(error, request.path)
        return None

    def failed(self, error: Exception, path: str) -> Reply:
        """The reply to a request that met a bug."""
        self._refused(500, "an API request failed", f"{type(error).__name__}: {error}")
        return self._problem_reply(INTERNAL, path, "this node failed; its log says why")

    def _problem_reply(
        self, problem: Problem, path: str, message: str, headers: Mapping[str, str] = {}, first: int | None = None
    ) -> Reply:
        methods, _ = self._table.find(path)
        form = next((each.errors for each in methods.values()), None)
        if form is not None:
            return _reply(problem.status, form[1](problem.status, problem.error, message), headers)
        answer = msgspec.structs.replace(problem.answer(message), first=first)
        return _reply(problem.status, answer, {"content-type": PROBLEM, **headers})

    async def _answer(self, request: Request) -> Reply:
        if request.path == OPENAPI:
            if request.method != "GET":
                raise BadMethod(["GET"])
            return Reply(200, _HEADERS, self._description)
        methods, values = self._table.find(request.path)
        if not methods:
            raise NotFound(f"no such path; {OPENAPI} lists all")
        if request.method not in methods:
            raise BadMethod(sorted(methods))
        route = methods[request.method]
        program = await self._recognise(request)
        try:
            reply = await self._answer_to(program, route, values, request)
        except (HocketError, BodyTooLong, NoRoom) as error:
            reply = self._error(error, request.path)
        return reply._replace(headers={**reply.headers, **self._limits(program)})

    async def _answer_to(self, program: Program, route: ApiRoute, values: Mapping[str, str], request: Request) -> Reply:
        with ExitStack() as stack:
            stack.enter_context(self.counted(program.name, route.counted_apart))
            call = self.call(program)
            route.check_some(call)
            arguments = route.arguments(values, _resumed(request) if route.is_stream else request.query)
            ending: TokenEnding | None = None
            if route.takes_lines or route.is_stream or route.is_download:
                ending = stack.enter_context(self._open.one(_token(request)))
            if route.takes_lines and ending is not None:
                answers = self._line_answers(route, call, arguments, request, ending)
                return Reply(200, {**_HEADERS, "content-type": LINES}, stream=_Counted(answers, stack.pop_all()))
            if route.body is not None:
                request = await _whole(request)
                arguments["body"] = route.read_body(request.body)
            route.check(call, arguments)
            if route.takes_upload:
                stack.enter_context(self._uploads.one(program.name))
                _check_type(request, wire.OCTETS)
                file = await uploaded(request, call.service.runtime.home.path, self.write)
                arguments["upload"] = stack.enter_context(file)
            key = request.headers.get(KEY) if route.creates else None
            if key is None:
                if route.is_stream or route.is_download:
                    stack.enter_context(self._streams.one(program.name))
                reply = await self._run(route, call, arguments, request, ending)
                if reply.stream is None:
                    return reply
                # A stream counts until it ends, and not as a request in work: it does nothing most of the time.
                if route.is_stream or route.is_download:
                    self._asking[program.name] -= 1
                    stack.callback(self._asking.update, [program.name])
                return reply._replace(stream=_Counted(reply.stream, stack.pop_all()))
            return await self._run_once(route, call, arguments, request, key)

    @cached_property
    def _description(self) -> bytes:
        return msgspec.json.encode(describe(self._routes, self._base_path))

    async def _recognise(self, request: Request) -> Program:
        hint = "send a token in the header `Authorization: Bearer TOKEN`; `hocket token create` makes one"
        return await self.recognise(_token(request), request.address, hint)

    async def recognise(self, token: str, address: str, hint: str) -> Program:
        """The program with this token; `hint` says to a caller without one what to do. Raises UnknownToken."""
        try:
            if not token:
                raise UnknownToken(hint)
            known = self._programs.known(token)
            return await self.read(lambda: self._programs.recognise(token)) if known is None else known
        except UnknownToken:
            self.count_stranger(address)
            self._refused(401, "a program without a good token", "")
            raise

    def count_stranger(self, address: str) -> None:
        """Raises TooBusy if too many requests without a good token come from an address."""
        if wait := self._strangers.take(address):
            raise TooBusy("too many requests without a good token from this address", wait) from None

    @contextmanager
    def counted(self, program: str, apart: bool = False) -> Iterator[None]:
        if wait := self._rates.take(program):
            raise TooBusy(f"more than {self._rate:.0f} requests a second with this token", wait)
        asking, own, limit = self._asking, REQUESTS_OF_PROGRAM_MAX, REQUESTS_MAX
        if apart:
            asking, own, limit = self._claiming, CLAIMS_OF_PROGRAM_MAX, CLAIMS_MAX
        if asking[program] >= own:
            raise TooBusy(f"{own} requests with this token are in work; wait for one to end")
        if asking.total() >= limit:
            raise TooBusy(f"{limit} requests are in work; wait for one to end")
        asking[program] += 1
        try:
            yield
        finally:
            asking[program] -= 1
            if not asking[program]:
                del asking[program]

    def _limits(self, program: Program) -> dict[str, str]:
        """What a program may ask for, and what of it is left."""
        left, free = int(self._rates.level(program.name)), REQUESTS_OF_PROGRAM_MAX - self._asking[program.name]
        policy = f'"rate";q={self._burst:.0f};w={max(1, round(self._burst / self._rate))}'
        policy += f', "open";q={REQUESTS_OF_PROGRAM_MAX};qu="concurrent-requests"'
        policy += f', "body";q={BODY_BYTES_MAX};qu="content-bytes"'
        wait = 0 if left else max(1, round(1 / self._rate))
        return {"ratelimit-policy": policy, "ratelimit": f'"rate";r={left};t={wait}, "open";r={max(0, free)}'}

    @property
    def service(self) -> Service:
        """That of the node itself."""
        return self._service

    def call(self, program: Program) -> ApiCall:
        principal = Principal(self._service.runtime.log.node, program.name)
        return ApiCall(self._service.acting_as(principal, program), program, self._node)

    def stream(self, items: AsyncIterator[Any], token: str, program: Program, headers: Mapping[str, str]) -> Reply:
        """Sends items as events until the token ends or the server stops, for a face with requests of another form."""
        with ExitStack() as stack:
            ending = stack.enter_context(self._open.one(token))
            stack.enter_context(self._streams.one(program.name))
            reply = stream_reply(items, EVENTS, headers, ending)
            assert reply.stream is not None
            return reply._replace(stream=_Counted(reply.stream, stack.pop_all()))

    def download(
        self, content: Download, request: Request, token: str, program: Program, headers: Mapping[str, str]
    ) -> Reply:
        """Sends bytes until the token ends or the server stops, for a face with requests of another form."""
        with ExitStack() as stack:
            ending = stack.enter_context(self._open.one(token))
            stack.enter_context(self._streams.one(program.name))
            reply = download_reply(request, content, headers, ending, self.read)
            return reply if reply.stream is None else reply._replace(stream=_Counted(reply.stream, stack.pop_all()))

    async def perform(self, route: ApiRoute, call: ApiCall, arguments: Mapping[str, Any]) -> Any:
        """Does what a route does, for a face with requests of another form."""
        route.check_some(call)
        route.check(call, arguments)
        if route.is_async:
            return await route.function(call, **arguments)
        off_loop = self.read if route.method == "GET" else self.write
        return await off_loop(partial(route.function, call, **arguments))

    async def _run(
        self,
        route: ApiRoute,
        call: ApiCall,
        arguments: Mapping[str, Any],
        request: Request,
        ending: TokenEnding | None = None,
    ) -> Reply:
        if route.is_async:
            answer = await self._wait(request, route.function(call, **arguments))
        elif route.method == "GET":
            answer = await self.read(partial(route.function, call, **arguments))
        else:
            answer = await self.write(partial(route.function, call, **arguments))
        if route.is_stream:
            accept = request.headers.get("accept", "")
            assert ending is not None
            return stream_reply(answer, accept, _HEADERS, ending, route.key)
        if isinstance(answer, Download):
            assert ending is not None
            return download_reply(request, answer, _HEADERS, ending, self.read)
        reply = answer if isinstance(answer, Reply) else _reply(route.status, answer)
        return reply._replace(undelivered=call.service.undelivered)

    def _line_answers(
        self, route: ApiRoute, call: ApiCall, arguments: Mapping[str, Any], request: Request, ending: TokenEnding
    ) -> LineAnswers:
        _check_type(request, LINES)
        assert request.pieces is not None

        def perform(lines: list[bytes]) -> Awaitable[Done]:
            return self.write(partial(route.function, call, lines=lines, **arguments))

        return LineAnswers(request.pieces(), perform, ending)

    async def _run_once(
        self, route: ApiRoute, call: ApiCall, arguments: Mapping[str, Any], request: Request, key: str
    ) -> Reply:
        """A request whose outcome is not known keeps its key, and so is not done again."""
        place, content = (call.program.name, key), _hash(request)
        keyed = programs.KeyedRequest(self._service, call.program.name, key, content)
        if place in self._keyed:
            raise (KeyUnderWay if self._keyed[place] == content else KeyReused)(key)
        self._keyed[place] = content
        try:
            kept = await self.write(keyed.begin)
            if kept is not None:
                return Reply(kept.status, {**_HEADERS, "idempotent-replayed": "true"}, kept.body)
            try:
                reply = await self._run(route, call, arguments, request)
            except Unreachable:
                raise
            except HocketError:
                await self.write(keyed.forget)
                raise
            await self.write(lambda: keyed.keep(KeptAnswer(reply.status, reply.body)))
            return reply
        finally:
            del self._keyed[place]

    async def _wait(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Does something that may wait long. It ends when the caller disconnects, its token ends, or
        the server stops.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait([task], timeout=QUICK_S)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        with self._open.one(_token(request)) as ending:
            ends: list[asyncio.Task[Any]] = [asyncio.create_task(ending.wait())]
            if request.gone is not None:
                ends.append(asyncio.create_task(request.gone()))
            try:
                await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
                if not task.done():
                    raise ending.error("the server stops, and the request has not been done; send it again")
                return task.result()
            finally:
                for each in (task, *ends):
                    if not each.done():
                        each.cancel()
                await asyncio.wait([task, *ends])

    async def read(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, work)

    async def write(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, work)

    def _error(self, error: Exception, path: str) -> Reply:
        problem = problem_of(error)
        match error:
            case BodyTooLong():
                methods, _ = self._table.find(path)
                is_upload = any(each.takes_upload for each in methods.values())
                message = f"the body is longer than {UPLOAD_BYTES_MAX if is_upload else BODY_BYTES_MAX} bytes"
            case NoRoom():
                message = "this node has too many bodies in memory; come back later"
            case _:
                message = str(error)
        if (problem.status in _COUNTED and not isinstance(error, WaitEnded)) or problem.is_final:
            self._refused(problem.status, f"an API request: {problem.title}", "")
        headers: dict[str, str] = {}
        if problem.status in (429, 503) or isinstance(error, KeyUnderWay):
            headers["retry-after"] = str(error.retry_s if isinstance(error, TooBusy) else RETRY_S)
        if isinstance(error, UnknownToken):
            headers["www-authenticate"] = "Bearer"
        if isinstance(error, BadMethod):
            headers["allow"] = ", ".join(error.methods)
        if isinstance(error, BadRange):
            headers["content-range"] = f"bytes */{error.size}"
        first = error.first if isinstance(error, PlaceGone) else None
        return self._problem_reply(problem, path, message, headers, first)


class _Counted:
    """A stream that gives back what it holds when it is closed."""

    def __init__(self, stream: AsyncIterator[bytes], held: ExitStack) -> None:
        self._stream, self._held = stream, held

    def __aiter__(self) -> "_Counted":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._stream)

    async def aclose(self) -> None:
        self._held.close()
        if hasattr(self._stream, "aclose"):
            await self._stream.aclose()


def _token(request: Request) -> str:
    """The token that a request shows; empty if it shows none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _resumed(request: Request) -> str:
    """The query of a request for a stream. A browser that connects again sends its first query, and says after which
    event it is.
    """
    last = request.headers.get(LAST)
    if not last:
        return request.query
    kept = [each for each in request.query.split("&") if each and not each.startswith("after=")]
    return "&".join([*kept, f"after={quote(last)}"])


def _check_type(request: Request, wanted: str) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != wanted:
        raise BadContentType(f"send the body as {wanted}, and say so in the header Content-Type")


async def _whole(request: Request) -> Request:
    _check_type(request, wire.JSON)
    return await request.whole(BODY_BYTES_MAX)


def _hash(request: Request) -> bytes:
    head = f"{request.method}\n{request.path}\n{request.query}\n"
    return content_hash(head.encode() + request.body)


def _reply(status: int, answer: Any, headers: Mapping[str, str] = {}) -> Reply:
    if status == HTTPStatus.NO_CONTENT:
        return Reply(status, {"cache-control": "no-store", **headers})
    return Reply(status, {**_HEADERS, **headers}, msgspec.json.encode(answer))
