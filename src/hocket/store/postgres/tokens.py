"""The statements about programs' tokens and the answers to their requests."""

from hocket.store.postgres.statements import PostgresStatements, upsert
from hocket.store.tokens import AnswerRow, TokenRow

_TOKEN = "name, id, hash, grants, made, expires, revoked, used"
_ANSWER = "token, key, request, status, body, made"


class PostgresTokens(PostgresStatements):
    def put_token(self, token: TokenRow) -> None:
        self._put(upsert("tokens", _TOKEN, "name"), token)

    def token(self, id: str) -> TokenRow | None:
        row = self._sql(f"SELECT {_TOKEN} FROM tokens WHERE id = %s", (id,)).first
        return None if row is None else TokenRow(*row)

    def tokens(self) -> list[TokenRow]:
        return [TokenRow(*row) for row in self._rows(f"SELECT {_TOKEN} FROM tokens ORDER BY made, name")]

    def put_answer(self, answer: AnswerRow) -> None:
        self._put(upsert("answers", _ANSWER, "token, key"), answer)

    def answer(self, token: str, key: str) -> AnswerRow | None:
        row = self._sql(f"SELECT {_ANSWER} FROM answers WHERE token = %s AND key = %s", (token, key)).first
        return None if row is None else AnswerRow(*row)

    def answer_count(self, token: str) -> int:
        return int(self._one("SELECT count(*) FROM answers WHERE token = %s", token))

    def drop_answer(self, token: str, key: str) -> None:
        self._put("DELETE FROM answers WHERE token = %s AND key = %s", (token, key))

    def drop_answers(self, before: int) -> None:
        self._put("DELETE FROM answers WHERE made < %s", (before,))
