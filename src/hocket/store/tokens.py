"""The store's records of programs that use this node over HTTP: their tokens, and the answers to requests that must not
be done twice. None of this is on a log.
"""

from typing import NamedTuple, Protocol


class TokenRow(NamedTuple):
    """A program's token. `id` is the public part of it, `hash` is that of the whole token, `grants` are capabilities as
    JSON. Times are in milliseconds.
    """

    name: str
    id: str
    hash: bytes
    grants: bytes
    made: int
    expires: int | None
    revoked: int | None = None
    used: int | None = None


class AnswerRow(NamedTuple):
    """The answer to the request that a program marked with this key. `request` is the request's hash; a status of None
    means that no answer is known yet.
    """

    token: str
    key: str
    request: bytes
    status: int | None
    body: bytes | None
    made: int


class TokenSession(Protocol):
    def put_token(self, token: TokenRow) -> None:
        """Adds a token, or replaces the one of that name."""

    def token(self, id: str) -> TokenRow | None: ...
    def tokens(self) -> list[TokenRow]: ...
    def put_answer(self, answer: AnswerRow) -> None: ...
    def answer(self, token: str, key: str) -> AnswerRow | None: ...
    def answer_count(self, token: str) -> int: ...
    def drop_answer(self, token: str, key: str) -> None: ...
    def drop_answers(self, before: int) -> None:
        """Drops the answers that were made before this time."""
