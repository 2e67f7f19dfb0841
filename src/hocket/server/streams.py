"""Answers and bodies that come piece by piece. A stream is sent as server-sent events to a program that accepts them,
and as JSON lines to every other. A body of JSON lines gets an answer line for each of its lines as soon as it is done;
a bad line gets an error, and the others go on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from hocket.api.programs import UnknownToken
from hocket.errors import HocketError, Usage
from hocket.mesh.wire import NoRoom, Reply
from hocket.server.known_programs import TokenEnding
from hocket.server.problems import ApiError, WaitEnded, problem_of

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
OTHER_LINES = "application/jsonl"
# A quiet stream sends an empty comment or line after this long, so that no proxy closes it.
QUIET_S = 15.0
LINE_BYTES_MAX = 2 * 1024 * 1024
# How many lines are done together, and how many answers may wait for a program that sends all lines before it reads.
LINES_AT_ONCE = 256
ANSWERS_WAITING_MAX = 20_000

T = TypeVar("T")


class AnswerLine(msgspec.Struct, Generic[T], frozen=True, omit_defaults=True):
    """What became of one line of the body. Lines are counted from 1; empty lines count and have no answer."""

    line: int
    answer: T | None = None
    error: ApiError | None = None


def stream_reply(
    items: AsyncIterator[Any],
    accept: str,
    headers: Mapping[str, str],
    ending: TokenEnding,
    place: Callable[[Any], str] | None = None,
) -> Reply:
    """The reply that sends these items as they come; the last event is `end` or `error`. `place` gives the id of an
    event, with which a program resumes. Items that have a `place` tell it while they are quiet; those with a
    method `waiting` are sent together if several wait.
    """
    is_events = EVENTS in accept
    lines = OTHER_LINES if OTHER_LINES in accept and LINES not in accept else LINES
    head = {**headers, "content-type": EVENTS if is_events else lines, "x-accel-buffering": "no"}
    return Reply(200, head, stream=_Pieces(items, _event if is_events else _line, ending, place))


def _event(value: Any, place: str | None, name: str | None = None) -> bytes:
    lines = [f"event: {name}\n"] if name else []
    lines += [f"id: {place}\n"] if place else []
    return "".join(lines).encode() + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _line(value: Any, place: str | None, name: str | None = None) -> bytes:
    return msgspec.json.encode(value) + b"\n"


class _Pieces:
    """The bytes of a stream. It ends with an error, if there was one, and when its request must end."""

    def __init__(
        self,
        items: AsyncIterator[Any],
        written: Callable[..., bytes],
        ending: TokenEnding,
        place: Callable[[Any], str] | None,
    ) -> None:
        self._items, self._written, self._place = items, written, place
        self._has_begun = False
        self._ending = ending
        self._next: asyncio.Future[Any] | None = None
        self._stopped: asyncio.Task[Any] | None = None
        self._is_over = False

    def __aiter__(self) -> "_Pieces":
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        if not self._has_begun:
            self._has_begun = True
            if self._written is _event and hasattr(self._items, "place"):
                return self._quiet()  # so that a program knows where it begins, whatever happens next
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._items))
        self._stopped = self._stopped or asyncio.create_task(self._ending.wait())
        done, _ = await asyncio.wait([self._next, self._stopped], timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
        try:
            if not done and not self._next.done():
                # An item that has come by now is before the place that this tells.
                return self._quiet()
            if not self._next.done():
                raise self._ending.error("the server stops; connect again")
            item, self._next = self._next.result(), None
        except StopAsyncIteration:
            self._is_over = True
            if self._written is _event:
                # A browser would connect again.
                return b"event: end\ndata: {}\n\n"
            raise
        except HocketError as error:
            self._is_over = True
            return self._written(problem_of(error).answer(str(error)), None, "error")
        waiting = getattr(self._items, "waiting", None)
        return b"".join(map(self._one, [item] if waiting is None else [item, *waiting()]))

    def _one(self, item: Any) -> bytes:
        return self._written(item, None if self._place is None else self._place(item))

    def _quiet(self) -> bytes:
        if self._written is not _event:
            return b"\n"
        place = getattr(self._items, "place", None)
        return b":\n\n" if place is None else f":\nid: {place}\n\n".encode()

    async def aclose(self) -> None:
        self._is_over = True
        tasks = [each for each in (self._next, self._stopped) if each is not None and not each.done()]
        for each in tasks:
            each.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if hasattr(self._items, "aclose"):
            await self._items.aclose()


Done = Sequence[Any | HocketError]


class LineAnswers:
    """The answers to the lines of a body. The body is read in a task of its own, because many programs send all of it
    before they read the answer. When the request must end, the lines that have come are done and no more are read.
    """

    def __init__(
        self, pieces: AsyncIterator[bytes], perform: Callable[[list[bytes]], Awaitable[Done]], ending: TokenEnding
    ) -> None:
        self._pieces, self._perform, self._ending = pieces, perform, ending
        self._answers: asyncio.Queue[bytes] = asyncio.Queue(ANSWERS_WAITING_MAX // LINES_AT_ONCE)
        self._reading: asyncio.Task[None] | None = None

    def __aiter__(self) -> "LineAnswers":
        return self

    async def __anext__(self) -> bytes:
        reading = self._reading = self._reading or asyncio.create_task(self._read())
        if self._answers.empty() and not reading.done():
            answer = asyncio.create_task(self._answers.get())
            await asyncio.wait([answer, reading], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            answer.cancel()
        if self._answers.empty():
            await reading
            raise StopAsyncIteration
        return self._answers.get_nowait()

    async def aclose(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        number, rest = 0, b""
        stopped = asyncio.create_task(self._ending.wait())
        try:
            while (piece := await self._piece(stopped)) is not None:
                *lines, rest = (rest + piece).split(b"\n")
                rest = rest[: LINE_BYTES_MAX + 1]
                number = await self._do(number, lines)
            await self._do(number, [rest])
        except TimeoutError:
            await self._end(number, WaitEnded("no line came for a minute; the lines before this one are done"))
        except NoRoom:
            why = "this node has too many bodies in memory; the lines before this one are done"
            await self._end(number, WaitEnded(why))
        except (WaitEnded, UnknownToken) as error:
            await self._end(number, error)
        finally:
            stopped.cancel()

    async def _piece(self, stopped: asyncio.Task[Any]) -> bytes | None:
        """The next part of the body; None at its end."""
        piece = asyncio.ensure_future(anext(self._pieces, None))
        try:
            await asyncio.wait([piece, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not piece.done():
                raise self._ending.error("the server stops; the lines before this one are done")
            return piece.result()
        finally:
            if not piece.done():
                piece.cancel()

    async def _do(self, number: int, lines: list[bytes]) -> int:
        """Does these lines, which come after so many. Returns how many there were then."""
        for first in range(0, len(lines), LINES_AT_ONCE):
            some = {number + n: line for n, line in enumerate(lines[first : first + LINES_AT_ONCE], first + 1)}
            asked = {n: line for n, line in some.items() if line.strip() and len(line) <= LINE_BYTES_MAX}
            done: dict[int, Any] = {}
            if asked:
                done = dict(zip(asked, await self._perform(list(asked.values())), strict=True))
            too_long = Usage(f"longer than {LINE_BYTES_MAX} bytes; pass a reference instead of the data")
            done |= {n: too_long for n, line in some.items() if len(line) > LINE_BYTES_MAX}
            answers = [
                AnswerLine[Any](n, error=_problem(each)) if isinstance(each, HocketError) else AnswerLine[Any](n, each)
                for n, each in sorted(done.items())
            ]
            if answers:
                await self._answers.put(b"".join(msgspec.json.encode(each) + b"\n" for each in answers))
        return number + len(lines)

    async def _end(self, number: int, why: HocketError) -> None:
        answer: AnswerLine[Any] = AnswerLine(number + 1, error=_problem(why))
        await self._answers.put(msgspec.json.encode(answer) + b"\n")


def _problem(error: HocketError) -> ApiError:
    return problem_of(error).answer(str(error))
