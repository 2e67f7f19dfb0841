"""Hrana 3, libSQL's protocol over HTTP: batches of statements on a stream, which is a session of the server. A stream
continues as long as each request names the last answer's baton. The server ends one that is idle for ten seconds.
"""

import base64
import http.client
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from hocket.errors import StoreError
from hocket.store.libsql.address import ServerAddress
from hocket.store.libsql.faults import Broken, answered_badly, connecting

T = TypeVar("T")

CONNECT_S = 10.0
# Longer than the server lets one transaction wait for another.
ANSWER_S = 40.0

Statement = tuple[str, Sequence[Any]]
Row = tuple[Any, ...]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


class StepAnswer(NamedTuple):
    """What a statement returned; or its error, a code and a message; or nothing, if it was skipped."""

    rows: list[Row]
    changed: int = 0
    error: tuple[str, str] | None = None
    is_skipped: bool = False


class HranaStream:
    """For one thread at a time. It connects when it is first used, and again after an error."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._http: http.client.HTTPConnection | None = None
        self._base: str | None = None
        self._baton: str | None = None
        self._is_owed = False
        self.round_trips = 0

    def begin(self, statements: Sequence[Statement], questions: Sequence[Statement] = ()) -> list[StepAnswer]:
        """The first statements of a transaction, and questions as in `run`. If the stream that was kept has ended
        meanwhile, as it does when the server restarts, they go to a new one.
        """
        if self._http is not None:
            try:
                self._settle()
                return self._batches(statements, questions, is_first=True)
            except Broken as error:
                if not error.is_repeatable:
                    raise
        self.drop()
        return self._batches(statements, questions, is_first=True)

    def run(self, statements: Sequence[Statement], questions: Sequence[Statement] = ()) -> list[StepAnswer]:
        """Further statements of a transaction, each only if the one before it went well and the transaction is still
        there. Questions only read: their answers may be too large, which leaves the statements as they are.
        """
        return self._batches(statements, questions, is_first=False)

    def run_script(self, script: str) -> None:
        """Many statements in one text, up to the first that fails."""
        (result,) = self._pipeline({"type": "sequence", "sql": script})
        if result["type"] == "error":
            raise Broken(self._address.shown, *_error(result["error"]))

    def read(self, statement: Statement) -> list[Row]:
        """The rows of a statement whose answer is too large for a batch."""
        body = {"baton": self._taken_baton(), "batch": {"steps": [_step(statement, None)]}}
        lines = self._answer_lines(body)
        self._continue(next(lines, {}))
        rows = []
        for line in lines:
            if line["type"] == "row":
                rows.append(_row(line["row"]))
            elif line["type"] in ("step_error", "error"):
                raise Broken(self._address.shown, *_error(line["error"]))
        return rows

    def end(self) -> None:
        """Rolls back, and does not wait for the answer."""
        if self._baton is None:
            self.drop()
            return
        try:
            self._send("/v3/pipeline", _request(self._taken_baton(), _batch([("ROLLBACK", ())], None)))
            self._is_owed = True
        except Broken:
            self.drop()

    def drop(self) -> None:
        """The server rolls back what was not committed, at the latest when another transaction has waited for five
        seconds.
        """
        if self._http is not None:
            self._http.close()
        self._http = self._base = self._baton = None
        self._is_owed = False

    def _batches(
        self, statements: Sequence[Statement], questions: Sequence[Statement], *, is_first: bool
    ) -> list[StepAnswer]:
        parts = [part for part in (statements, questions) if part]
        conditions = [None if is_first else _IN_TRANSACTION, _IN_TRANSACTION]
        results = self._pipeline(*(_batch(part, when) for part, when in zip(parts, conditions, strict=False)))
        return [answer for part, result in zip(parts, results, strict=True) for answer in _answers(result, len(part))]

    def _pipeline(self, *requests: dict[str, Any]) -> list[dict[str, Any]]:
        self._send("/v3/pipeline", _request(self._taken_baton(), *requests))
        answer = _read_json(self._address, self._received(lambda response: response.read()))
        self._continue(answer)
        return list(answer["results"])

    def _answer_lines(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._send("/v3/cursor", _encode(body))
        lines = self._received(lambda response: response.read()).splitlines()
        return (_read_json(self._address, line) for line in lines)

    def _taken_baton(self) -> str | None:
        """Each baton is good for one request."""
        baton, self._baton = self._baton, None
        return baton

    def _continue(self, answer: dict[str, Any]) -> None:
        self._baton = answer.get("baton")
        base = answer.get("base_url")
        if base is not None and base != self._base:
            if self._address.is_tls and not base.startswith("https://"):
                raise StoreError(f"{self._address.shown} wants to continue without TLS; ask its administrator")
            self._base, self._http = base, None

    def _settle(self) -> None:
        """Reads the answer that nobody has waited for."""
        if self._is_owed:
            self._is_owed = False
            self._continue(_read_json(self._address, self._received(lambda response: response.read())))

    def _send(self, path: str, body: bytes) -> None:
        """Connects if need be."""
        is_kept = self._http is not None
        headers = {"Content-Type": "application/json"}
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {self._address.token}"
        try:
            if self._http is None:
                self._http = _connected(self._address, self._base)
            prefix = self._address.path if self._base is None else urlsplit(self._base).path.rstrip("/")
            self._http.request("POST", prefix + path, body, headers)
            self.round_trips += 1
        except (OSError, http.client.HTTPException) as error:
            self.drop()
            raise Broken(self._address.shown, "", str(error) or type(error).__name__, is_repeatable=is_kept) from None

    def _received(self, read: Callable[[http.client.HTTPResponse], bytes]) -> bytes:
        assert self._http is not None
        try:
            response = self._http.getresponse()
            content = read(response)
        except (OSError, http.client.HTTPException) as error:
            is_closed = isinstance(error, http.client.RemoteDisconnected | ConnectionError)
            self.drop()
            raise Broken(self._address.shown, "", str(error) or type(error).__name__, is_repeatable=is_closed) from None
        if response.status != 200:
            self.drop()
            raise answered_badly(self._address, response, content)
        return content


# A statement within a transaction is skipped if the server has ended that.
_IN_TRANSACTION = {"type": "not", "cond": {"type": "is_autocommit"}}


def _connected(address: ServerAddress, base: str | None) -> http.client.HTTPConnection:
    host, port, is_tls = address.host, address.port, address.is_tls
    if base is not None:
        parts = urlsplit(base)
        host, is_tls = parts.hostname or host, parts.scheme == "https"
        port = parts.port or (443 if is_tls else 80)
    made: http.client.HTTPConnection
    try:
        if is_tls:
            made = http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=ssl.create_default_context())
        else:
            made = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        made.connect()
    except OSError as error:
        raise connecting(address.shown, error) from None
    made.sock.settimeout(ANSWER_S)
    return made


def _request(baton: str | None, *requests: dict[str, Any]) -> bytes:
    return _encode({"baton": baton, "requests": requests})


def _batch(statements: Sequence[Statement], condition: dict[str, Any] | None) -> dict[str, Any]:
    steps = [_step(statements[0], condition)]
    steps += [_step(each, {"type": "ok", "step": number}) for number, each in enumerate(statements[1:])]
    return {"type": "batch", "batch": {"steps": steps}}


def _step(statement: Statement, condition: dict[str, Any] | None) -> dict[str, Any]:
    sql, values = statement
    return {
        "condition": condition,
        "stmt": {"sql": sql, "args": [_value(value) for value in values], "want_rows": True},
    }


def _value(value: object) -> dict[str, Any]:
    match value:
        case None:
            return {"type": "null"}
        case bytes():
            return {"type": "blob", "base64": base64.b64encode(value).decode()}
        case str():
            return {"type": "text", "value": str(value)}
        case int():
            return {"type": "integer", "value": str(int(value))}
        case float():
            return {"type": "float", "value": value}
    raise TypeError(f"SQLite has no column for a {type(value).__name__}")


def _answers(result: dict[str, Any], count: int) -> list[StepAnswer]:
    if result["type"] == "error":
        return [StepAnswer([], error=_error(result["error"]))] * count
    found = result["response"]["result"]
    return [_answer(*each) for each in zip(found["step_results"], found["step_errors"], strict=True)]


def _answer(result: dict[str, Any] | None, error: dict[str, Any] | None) -> StepAnswer:
    if error is not None:
        return StepAnswer([], error=_error(error))
    if result is None:
        return StepAnswer([], is_skipped=True)
    return StepAnswer([_row(row) for row in result["rows"]], result["affected_row_count"])


def _error(error: dict[str, Any]) -> tuple[str, str]:
    return error.get("code") or "", error["message"]


def _row(cells: list[dict[str, Any]]) -> Row:
    return tuple([_cell(cell) for cell in cells])


def _cell(cell: dict[str, Any]) -> Any:
    match cell["type"]:
        case "null":
            return None
        case "integer":
            return int(cell["value"])
        case "blob":
            text: str = cell["base64"]
            return base64.b64decode(text + "=" * (-len(text) % 4))
        case _:
            return cell["value"]


def _read_json(address: ServerAddress, content: bytes) -> dict[str, Any]:
    try:
        answer = _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    if not isinstance(answer, dict):
        raise StoreError(f"{address.shown} is not a libSQL server: its answer is not one of Hrana 3; check the address")
    return answer
