"""Recognises programs by their tokens without reading the store for every request. What was read is believed for a
second at most, and not after a token was revoked: `revoke` leaves a mark in the home, and every request looks at that
first. What this node may do itself is looked up again as soon as it has changed in this process.
"""

from collections.abc import Callable
from typing import NamedTuple

from hocket.api import Program, Service, programs
from hocket.kernel.ids import content_hash

# For so long a token that was read is believed, and so many are remembered.
BELIEVED_S = 1.0
KNOWN_MAX = 1_000


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
