"""The store's records of programs that use this node over HTTP: their tokens, and the answers to requests that must not
be done twice. None of this is on a log.
"""

from collections.abc import Iterator
from typing import NamedTuple

from hocket.store.statements import Statements

# The columns of a token that the MAC covers; then come the MAC and the others.
_COVERED = 7


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


class TokenSession(Statements):
    def put_token(self, token: TokenRow) -> None:
        """Adds a token, or replaces the one of that name."""
        self._put_own("tokens", token[:_COVERED], ", used", token.used)

    def token(self, id: str) -> TokenRow | None:
        return next(self._tokens("AND id = ?", id), None)

    def tokens(self) -> list[TokenRow]:
        return list(self._tokens("ORDER BY made, name"))

    def _tokens(self, tail: str, *values: str) -> Iterator[TokenRow]:
        for row in self._own("tokens", tail, *values, others=", used"):
            yield TokenRow._make((*row[:_COVERED], row[-1]))

    def put_answer(self, answer: AnswerRow) -> None:
        self._put_own("answers", answer)

    def answer(self, token: str, key: str) -> AnswerRow | None:
        row = next(self._own("answers", "AND token = ? AND key = ?", token, key), None)
        return None if row is None else AnswerRow(*row[:-1])

    def answer_count(self, token: str) -> int:
        return int(self._one("SELECT count(*) FROM answers WHERE of_node = ? AND token = ?", self._macs.node, token))

    def drop_answer(self, token: str, key: str) -> None:
        self._put("DELETE FROM answers WHERE of_node = ? AND token = ? AND key = ?", (self._macs.node, token, key))

    def drop_answers(self, before: int) -> None:
        """Drops the answers that were made before this time."""
        self._put("DELETE FROM answers WHERE of_node = ? AND made < ?", (self._macs.node, before))
