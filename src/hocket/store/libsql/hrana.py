"""Hrana 3, libSQL's protocol over HTTP: batches of statements on a stream, which is a session of the server. A stream
continues as long as each request names the last answer's baton. The server ends one that is idle for ten seconds.
"""

import base64
import http.client
import ssl
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from hocket.kernel.postcard import Malformed
from hocket.store.libsql.answers import (
    CURSOR_BYTES_MAX,
    LINE_BYTES_MAX,
    PIPELINE_BYTES_MAX,
    REFUSAL_BYTES_MAX,
    Continuation,
    CursorFailed,
    Row,
    StepAnswer,
    read_continuation,
    read_entry,
    read_pipeline,
)
from hocket.store.libsql.connecting import BadAnswer, Broken, ServerAddress, answered_badly, connecting, repeated

CONNECT_S = 10.0
# Longer than the server lets one transaction wait for another.
ANSWER_S = 40.0

Statement = tuple[str, Sequence[Any]]
_encode = msgspec.json.Encoder().encode
_PIECE_BYTES = 256 * 1024


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
        (result,) = self._pipeline([0], {"type": "sequence", "sql": script})
        if isinstance(result, tuple):
            raise Broken(self._address.shown, *result)

    def read(self, statement: Statement) -> list[Row]:
        """The rows of a statement whose answer is too large for a batch."""
        self._send("/v3/cursor", _encode({"baton": self._taken_baton(), "batch": {"steps": [_step(statement, None)]}}))
        rows: list[Row] = []
        lines = self._lines()
        try:
            self._continue(read_continuation(next(lines, b"")))
            for line in lines:
                if (row := read_entry(line)) is not None:
                    rows.append(row)
        except Malformed as error:
            raise self._bad_answer(error) from None
        except CursorFailed as error:
            self.drop()
            raise Broken(self._address.shown, error.code, self._repeated(error.message)) from None
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
        requests = [_batch(part, when) for part, when in zip(parts, conditions, strict=False)]
        results = self._pipeline([len(part) for part in parts], *requests)
        answers: list[StepAnswer] = []
        for part, result in zip(parts, results, strict=True):
            answers += [StepAnswer([], error=result)] * len(part) if isinstance(result, tuple) else result
        return answers

    def _pipeline(
        self, statements: Sequence[int], *requests: dict[str, Any]
    ) -> list[list[StepAnswer] | tuple[str, str]]:
        """The results of requests with so many statements each."""
        self._send("/v3/pipeline", _request(self._taken_baton(), *requests))
        content = self._received()
        try:
            answer = read_pipeline(content, statements)
            self._continue(answer.continuation)
        except Malformed as error:
            raise self._bad_answer(error) from None
        return [self._safe(result) for result in answer.results]

    def _safe(self, result: list[StepAnswer] | tuple[str, str]) -> list[StepAnswer] | tuple[str, str]:
        """Makes the errors of a result safe to show."""
        if isinstance(result, tuple):
            return result[0], self._repeated(result[1])
        return [
            each if each.error is None else each._replace(error=(each.error[0], self._repeated(each.error[1])))
            for each in result
        ]

    def _repeated(self, text: str) -> str:
        return repeated(self._address, text)

    def _bad_answer(self, error: Malformed) -> BadAnswer:
        self.drop()
        return BadAnswer(self._address.shown, f"its answer is not one of Hrana 3 ({self._repeated(str(error))})")

    def _taken_baton(self) -> str | None:
        """Each baton is good for one request."""
        baton, self._baton = self._baton, None
        return baton

    def _continue(self, answer: Continuation) -> None:
        """Never at another server: that would get the token."""
        self._baton = answer.baton
        if answer.base_url is not None and answer.base_url != self._base:
            if not self._address.is_origin_of(answer.base_url):
                self.drop()
                raise BadAnswer(
                    self._address.shown, "it wants to continue at another server, which must not get the token"
                )
            self._base = answer.base_url

    def _settle(self) -> None:
        """Reads the answer that nobody has waited for."""
        if self._is_owed:
            self._is_owed = False
            content = self._received()
            try:
                self._continue(read_pipeline(content, [1]).continuation)
            except Malformed as error:
                raise self._bad_answer(error) from None

    def _send(self, path: str, body: bytes) -> None:
        """Connects if need be."""
        is_kept = self._http is not None
        headers = {"Content-Type": "application/json"}
        if self._address.token is not None:
            headers["Authorization"] = f"Bearer {self._address.token}"
        try:
            if self._http is None:
                self._http = _connected(self._address)
            prefix = self._address.path if self._base is None else urlsplit(self._base).path.rstrip("/")
            self._http.request("POST", prefix + path, body, headers)
            self.round_trips += 1
        except (OSError, http.client.HTTPException) as error:
            self.drop()
            raise self._broke(error, is_repeatable=is_kept) from None

    def _received(self) -> bytes:
        return b"".join(self._pieces(self._response(), PIPELINE_BYTES_MAX))

    def _lines(self) -> Iterator[bytes]:
        """The lines of an answer as they come."""
        line = bytearray()
        for piece in self._pieces(self._response(), CURSOR_BYTES_MAX):
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line += end
                if line.strip():
                    yield bytes(line)
                line.clear()
            line += rest
            if len(line) > LINE_BYTES_MAX:
                raise self._too_large(LINE_BYTES_MAX)
        if line.strip():
            yield bytes(line)

    def _response(self) -> http.client.HTTPResponse:
        assert self._http is not None
        try:
            response = self._http.getresponse()
            if response.status == 200:
                return response
            said = response.read(REFUSAL_BYTES_MAX)
        except (OSError, http.client.HTTPException) as error:
            self.drop()
            is_closed = isinstance(error, http.client.RemoteDisconnected | ConnectionError)
            raise self._broke(error, is_repeatable=is_closed) from None
        self.drop()
        raise answered_badly(self._address, response, said)

    def _pieces(self, response: http.client.HTTPResponse, limit: int) -> Iterator[bytes]:
        """The content of an answer, up to so many bytes."""
        size = 0
        while True:
            try:
                piece = response.read(_PIECE_BYTES)
            except (OSError, http.client.HTTPException) as error:
                self.drop()
                is_closed = isinstance(error, http.client.RemoteDisconnected | ConnectionError)
                raise self._broke(error, is_repeatable=is_closed) from None
            if not piece:
                return
            size += len(piece)
            if size > limit:
                raise self._too_large(limit)
            yield piece

    def _too_large(self, limit: int) -> BadAnswer:
        self.drop()
        return BadAnswer(self._address.shown, f"its answer has more than {limit // 1024**2} MiB")

    def _broke(self, error: Exception, *, is_repeatable: bool) -> Broken:
        said = self._repeated(str(error)) or type(error).__name__
        return Broken(self._address.shown, "", said, is_repeatable=is_repeatable)


# A statement within a transaction is skipped if the server has ended that.
_IN_TRANSACTION = {"type": "not", "cond": {"type": "is_autocommit"}}


def _connected(address: ServerAddress) -> http.client.HTTPConnection:
    host, port = address.host, address.port
    made: http.client.HTTPConnection
    try:
        if address.is_tls:
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
