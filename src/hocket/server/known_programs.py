"""Recognises programs by their tokens without reading the store for every request. What was read is believed for a
second at most, and not after a token was revoked: `revoke` leaves a mark in the home, and every request looks at that
first. What this node may do itself is looked up again as soon as it has changed in this process. Requests that stay
open end when their token does.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from hocket.api import Program, Service, programs
from hocket.api.programs import UnknownToken
from hocket.errors import HocketError
from hocket.kernel.ids import content_hash
from hocket.server.problems import TooBusy, WaitEnded

# For so long a token that was read is believed, and so many are remembered.
BELIEVED_S = 1.0
KNOWN_MAX = 1_000
# How often the server looks whether the tokens of open requests are in force.
LOOK_S = 0.25


class _KnownProgram(NamedTuple):
    program: Program
    until: float
    mark: bytes
    permissions: object


class KnownPrograms:
    """`chosen` is a token that the operator has set. Any thread may use it."""

    def __init__(self, service: Service, chosen: str | None, monotonic: Callable[[], float]) -> None:
        self._service, self._chosen, self._monotonic = service, chosen, monotonic
        self._mark = service.runtime.home.revocation_mark()
        # By the hash of the token.
        self._known: dict[bytes, _KnownProgram] = {}

    def known(self, text: str) -> Program | None:
        """The program that shows this token, if nothing can have changed since it was read; None if it must be read."""
        found = self._known.get(content_hash(text.encode()))
        if found is None or found.until <= self._monotonic() or found.mark != self.mark():
            return None
        log, expires = self._service.runtime.log, found.program.expires_ms
        if found.permissions is not log.permissions_reader.latest or (
            expires is not None and expires <= log.physical()
        ):
            return None
        return found.program

    def recognise(self, text: str) -> Program:
        """Reads the store. Raises UnknownToken."""
        mark, until = self.mark(), self._monotonic() + BELIEVED_S
        program = programs.recognise(self._service, text, self._chosen)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        permissions = self._service.runtime.log.permissions_reader.latest
        self._known[content_hash(text.encode())] = _KnownProgram(program, until, mark, permissions)
        return program

    def mark(self) -> bytes:
        """Changes when a token is revoked."""
        return self._mark[:]


class TokenEnding(asyncio.Event):
    """Is set when open requests must end: the server stops, or their token is no longer in force."""

    refused: UnknownToken | None = None

    def error(self, of_stop: str) -> HocketError:
        return WaitEnded(of_stop) if self.refused is None else self.refused


class OpenRequests:
    """Tells open requests when to end. All of one token share a look at it, however many they are. Use it on one event
    loop; `read` runs what reads the store.
    """

    def __init__(self, known: KnownPrograms, read: Callable[[Callable[[], Program]], Awaitable[Program]]) -> None:
        self._programs, self._read = known, read
        self._endings: dict[str, tuple[TokenEnding, int]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True
        for ending, _ in self._endings.values():
            ending.set()

    @contextmanager
    def one(self, token: str) -> Iterator[TokenEnding]:
        """While a request with this token is open."""
        ending, count = self._endings.get(token, (TokenEnding(), 0))
        if self._is_stopping:
            ending.set()
        self._endings[token] = ending, count + 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        try:
            yield ending
        finally:
            known, count = self._endings.get(token, (ending, 0))
            if known is ending and count > 1:
                self._endings[token] = ending, count - 1
            elif known is ending:
                self._endings.pop(token, None)

    async def _look(self) -> None:
        while self._endings and not self._is_stopping:
            await asyncio.sleep(LOOK_S)
            for token, (ending, _) in [*self._endings.items()]:
                if self._programs.known(token) is not None:
                    continue
                try:
                    await self._read(partial(self._programs.recognise, token))
                except UnknownToken as error:
                    ending.refused = error
                    ending.set()
                    # The next request with it gets its own answer.
                    self._endings.pop(token, None)
                except HocketError:
                    # The store is away. Nobody can say that the token has ended.
                    continue
        self._looking = None


class Shares:
    """How many of a thing each program has at once, up to its own limit and that of all."""

    def __init__(self, of: str, own: int, every: int) -> None:
        self._of, self._own, self._every = of, own, every
        self._open: Counter[str] = Counter()

    @contextmanager
    def one(self, program: str) -> Iterator[None]:
        open = self._open
        if open[program] >= self._own or open.total() >= self._every:
            most = f"{self._own} {self._of} of one token and {self._every} of all"
            raise TooBusy(f"at most {most} are open at once; end one first")
        open[program] += 1
        try:
            yield
        finally:
            open[program] -= 1
            if not open[program]:
                del open[program]
