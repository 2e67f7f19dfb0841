"""Requests that a program may repeat without doing them twice: it marks each with a key of its own. The answer is kept
for a day and given again to a request with the same key. A request whose outcome is not known, because the server died
or could not reach the coordinator, is not done again either.
"""

from typing import NamedTuple

from hocket.api import Service
from hocket.errors import Conflict, Usage
from hocket.store import AnswerRow

KEPT_MS = 86_400_000
KEYS_PER_PROGRAM_MAX = 10_000
KEY_CHARS_MAX = 255


class KeptAnswer(NamedTuple):
    status: int
    body: bytes


class TooManyKeys(Conflict):
    """A program has used too many keys within a day."""


def begin(service: Service, program: str, key: str, request: bytes) -> KeptAnswer | None:
    """The answer to an earlier request with this key; None if this is the first one. `request` is a hash of everything
    that the request says. Raises Conflict if the key stands for another request, or if its outcome is not known.
    """
    if not 0 < len(key) <= KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        raise Usage(f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} printable ASCII characters")
    now = service.runtime.log.physical()
    with service.runtime.store.write() as session:
        session.drop_answers(now - KEPT_MS)
        known = session.answer(program, key)
        if known is None:
            if session.answer_count(program) >= KEYS_PER_PROGRAM_MAX:
                raise TooManyKeys(f"this token has used {KEYS_PER_PROGRAM_MAX} keys within a day, and no more fit")
            session.put_answer(AnswerRow(program, key, request, None, None, now))
            return None
    if known.request != request:
        raise Conflict(f"the Idempotency-Key {key!r} was used for another request; take a new one")
    if known.status is None:
        raise Conflict(
            f"the first request with the Idempotency-Key {key!r} has not ended, or its outcome is not known;"
            " look whether it was done before you take a new key"
        )
    return KeptAnswer(known.status, known.body or b"")


def keep(service: Service, program: str, key: str, request: bytes, answer: KeptAnswer) -> None:
    now = service.runtime.log.physical()
    with service.runtime.store.write() as session:
        session.put_answer(AnswerRow(program, key, request, answer.status, answer.body, now))


def forget(service: Service, program: str, key: str) -> None:
    """The request did nothing, so it may be tried again."""
    with service.runtime.store.write() as session:
        session.drop_answer(program, key)
