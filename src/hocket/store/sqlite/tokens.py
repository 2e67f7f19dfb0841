"""The statements about programs' tokens and the answers to their requests."""

from collections.abc import Iterator

from hocket.store.sqlite.statements import Statements
from hocket.store.tokens import AnswerRow, TokenRow

# The columns of a token that the MAC covers; then come the MAC and the others.
_COVERED = 7


class TokenStatements(Statements):
    def put_token(self, token: TokenRow) -> None:
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
        self._sql("DELETE FROM answers WHERE of_node = ? AND token = ? AND key = ?", (self._macs.node, token, key))

    def drop_answers(self, before: int) -> None:
        self._sql("DELETE FROM answers WHERE of_node = ? AND made < ?", (self._macs.node, before))
