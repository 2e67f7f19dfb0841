"""A libSQL server that answers as it likes: each answer is read or refused with a sentence, and takes no more memory
than an answer may; the token goes to nobody else and is shown nowhere. A real server cannot be asked for such answers,
so a small one of our own gives them, and passes the others on to a real one.
"""

import base64
import http.client
import http.server
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from hocket import store as stores
from hocket.errors import HocketError, StoreError
from hocket.store.connections import DB_TOKEN
from hocket.store.libsql import hrana
from hocket.store.libsql.answers import PIPELINE_BYTES_MAX
from hocket.store.libsql.connecting import read_address, repeated
from tests.libsql_server import LibsqlServer, new_server
from tests.stores import with_macs

pytestmark = pytest.mark.touches("LW-48")

TOKEN = "eyJhbGciOiJFZERTQSJ9.eyJhIjoicncifQ.mZ3kq0pXvTn4aYbU"
Act = Callable[["Hostile", http.server.BaseHTTPRequestHandler, dict[str, Any]], None]


class Hostile:
    """`act` answers in place of the real server, once it is set."""

    def __init__(self, real: LibsqlServer | None = None) -> None:
        self.real, self.act = real, None if real is not None else _nothing
        self.heard: list[dict[str, Any]] = []
        self.sent = 0
        hostile = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hostile.heard.append(body | {"path": self.path, "token": self.headers.get("Authorization")})
                if hostile.act is not None:
                    hostile.act(hostile, self, body)
                    return
                assert hostile.real is not None
                with closing(http.client.HTTPConnection("127.0.0.1", hostile.real.port)) as onward:
                    onward.request("POST", self.path, json.dumps(body), {"Content-Type": "application/json"})
                    answer = onward.getresponse()
                    respond(self, answer.read(), answer.status)

            def log_message(self, format: str, *values: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def respond(handler: http.server.BaseHTTPRequestHandler, content: bytes, status: int = 200) -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    handler.wfile.write(content)


def _nothing(hostile: Hostile, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    respond(handler, b"")


def saying(content: bytes | Callable[[dict[str, Any]], bytes], status: int = 200) -> Act:
    def act(hostile: Hostile, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        respond(handler, content if isinstance(content, bytes) else content(body), status)

    return act


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    monkeypatch.setenv(DB_TOKEN, TOKEN)
    with closing(Hostile()) as made:
        yield made


@pytest.fixture
def turning(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    """A server that is good until it is told not to be."""
    monkeypatch.setenv(DB_TOKEN, TOKEN)
    real = new_server(has_store=True)
    with closing(Hostile(real)) as made:
        yield made
    real.kill()


@contextmanager
def refused(match: str | None = None) -> Iterator[None]:
    """A sentence, and no part of the token anywhere in what Python would print."""
    with pytest.raises(HocketError, match=match) as raised:
        yield
    assert isinstance(raised.value, StoreError)
    printed = "".join(traceback.format_exception(raised.value)) + repr(raised.value)
    assert TOKEN not in printed and not any(part in printed for part in TOKEN.split("."))


def answering(*cells: Any, **changes: Any) -> Callable[[dict[str, Any]], bytes]:
    """A whole answer in which each statement has one row with these cells."""

    def content(body: dict[str, Any]) -> bytes:
        results = []
        for request in body["requests"]:
            steps = request.get("batch", {}).get("steps", [])
            result = {"cols": [], "rows": [list(cells)], "affected_row_count": 0, "last_insert_rowid": None} | changes
            found = {"step_results": [result] * len(steps), "step_errors": [None] * len(steps)}
            results.append({"type": "ok", "response": {"type": request["type"], "result": found}})
        return json.dumps({"baton": "b", "base_url": None, "results": results}).encode()

    return content


def cell(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def result_of(response: Any) -> bytes:
    return json.dumps({"baton": None, "results": [{"type": "ok", "response": response}]}).encode()


BATCH = {"step_results": [], "step_errors": []}
MALFORMED: dict[str, bytes | Callable[[dict[str, Any]], bytes]] = {
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "number": b"7",
    "no results": b"{}",
    "no UTF-8": b'{"results": ["\xff\xfe"]}',
    "deep": b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "results are a word": b'{"results": "x"}',
    "results are words": b'{"results": ["x", "y"]}',
    "too many results": result_of({"type": "batch", "result": BATCH}).replace(b"}]}", b"}, {}, {}]}"),
    "no response": b'{"results": [{"type": "ok"}]}',
    "no such result": b'{"results": [{"type": "maybe"}]}',
    "an error without a reason": b'{"results": [{"type": "error"}]}',
    "an error that is a word": b'{"results": [{"type": "error", "error": "x"}]}',
    "a message that is a list": b'{"results": [{"type": "error", "error": {"message": [1]}}]}',
    "no steps": result_of({"type": "batch", "result": BATCH}),
    "steps without errors": result_of({"type": "batch", "result": {"step_results": [None]}}),
    "a response of another kind": result_of({"type": "close"}),
    "a baton that is a number": b'{"baton": 7, "results": []}',
    "a long baton": b'{"baton": "' + b"x" * 100_000 + b'", "results": []}',
    "an address that is a number": b'{"base_url": 7, "results": []}',
    "rows that are a word": answering(rows="x"),
    "a row that is a word": answering(rows=["x"]),
    "a cell that is a number": answering(7),
    "a cell of no type": answering({}),
    "a cell of another type": answering(cell("date", value="1815")),
    "an integer that is none": answering(cell("integer", value="x")),
    "an integer of many digits": answering(cell("integer", value="9" * 19_999)),
    "an integer of 65 bits": answering(cell("integer", value=str(2**64))),
    "an integer that is a number": answering(cell("integer", value=7)),
    "text that is null": answering(cell("text", value=None)),
    "half a character": lambda body: answering(cell("text", value="?"))(body).replace(b'"?"', b'"\\ud800"'),
    "a blob that is none": answering(cell("blob", base64="*" * 8)),
    "a blob without content": answering(cell("blob")),
    "a count that is a word": answering(affected_row_count="x"),
    "a count below zero": answering(affected_row_count=-1),
}
# These are answers of Hrana, but not to what was asked.
MISFITTING = {
    "no columns": answering(),
    "many columns": answering(*[cell("integer", value="1")] * 40),
    "nulls": answering(*[cell("null")] * 3),
    "a text": answering(cell("text", value="hocket_version")),
    "a blob": answering(cell("blob", base64=base64.b64encode(b"hocket_version").decode())),
    "no rows": answering(rows=[]),
    "a float": answering(cell("float", value=1.5)),
}


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("name", [*MALFORMED, *MISFITTING])
def test_a_server_whose_first_answer_is_wrong_is_refused(hostile: Hostile, name: str) -> None:
    hostile.act = saying((MALFORMED | MISFITTING)[name])
    with refused(), closing(stores.open(hostile.address)):
        pass


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("name", MALFORMED)
def test_a_server_that_turns_is_refused(turning: Hostile, name: str) -> None:
    with closing(with_macs(stores.open(turning.address))) as store:
        with store.write() as session:
            session.set_meta("a", b"1")
        turning.act = saying(MALFORMED[name])
        with refused("is not a libSQL server"), store.write():
            pass
        with refused("is not a libSQL server"), store.read() as session:
            session.meta("a")
        turning.act = None
        with refused("is not a libSQL server"), store.write() as session:
            assert session.meta("a") == b"1"
            turning.act = saying(MALFORMED[name])
            session.meta("a")
        turning.act = None
        with store.read() as session:
            assert session.meta("a") == b"1"


def endless(start: bytes, piece: bytes) -> Act:
    """Sends until the client has enough, or there is much more than it should take."""

    def act(hostile: Hostile, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.close_connection = True
        with suppress(OSError):
            handler.wfile.write(start)
            while hostile.sent < 6 * PIPELINE_BYTES_MAX:
                hostile.sent += handler.wfile.write(piece)

    return act


@pytest.mark.req("LW-48")
def test_an_answer_without_an_end_is_not_read_to_it(hostile: Hostile) -> None:
    hostile.act = endless(b'{"results": [{"type": "ok", "x": "', b"x" * 1024 * 1024)
    with refused("more than 64 MiB"):
        stores.open(hostile.address)
    assert hostile.sent < 2 * PIPELINE_BYTES_MAX


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("status", [401, 404, 500])
def test_a_refusal_without_an_end_is_not_read_to_it(hostile: Hostile, status: int) -> None:
    def act(hostile: Hostile, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(status)
        handler.end_headers()
        handler.close_connection = True
        with suppress(OSError):
            while hostile.sent < PIPELINE_BYTES_MAX:
                hostile.sent += handler.wfile.write(TOKEN.encode() * 1_000)

    hostile.act = act
    with refused():
        stores.open(hostile.address)
    assert hostile.sent < PIPELINE_BYTES_MAX


@pytest.mark.req("LW-48")
@pytest.mark.parametrize(
    "piece", [b'{"type": "row", "row": [{"type": "null"}]}\n' * 10_000, b" " * 400_000, b"\n" * 400_000, b"x" * 400_000]
)
def test_a_cursor_without_an_end_is_not_read_to_it(
    turning: Hostile, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    """An answer that is said to be too large for a batch comes as a cursor."""
    monkeypatch.setattr(hrana, "CURSOR_BYTES_MAX", 8 * 1024 * 1024)
    monkeypatch.setattr(hrana, "LINE_BYTES_MAX", 4 * 1024 * 1024)

    def act(hostile: Hostile, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        if handler.path.endswith("cursor"):
            endless(b'{"baton": "b", "base_url": null}\n', piece)(hostile, handler, body)
            return
        error = {"message": "too large", "code": "RESPONSE_TOO_LARGE"}
        steps = [len(request["batch"]["steps"]) for request in body["requests"]]
        results = [{"step_results": [None] * count, "step_errors": [error] * count} for count in steps]
        answers = [{"type": "ok", "response": {"type": "batch", "result": each}} for each in results]
        respond(handler, json.dumps({"baton": "b", "results": answers}).encode())

    with closing(with_macs(stores.open(turning.address))) as store:
        turning.act = act
        with refused(r"more than (4|8) MiB"), store.read() as session:
            session.meta("a")
    assert turning.sent < PIPELINE_BYTES_MAX


def json_error(**fields: str) -> bytes:
    return json.dumps(fields).encode()


def status_line(hostile: Hostile, handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
    handler.wfile.write(f"HORRID {TOKEN}\r\n\r\n".encode())
    handler.close_connection = True


@pytest.mark.req("LW-48")
@pytest.mark.parametrize(
    "act",
    [
        *(saying(f"bad token {TOKEN}".encode(), status) for status in (400, 401, 403, 404, 418, 500, 502)),
        *(saying(json_error(message=f"bad token Bearer {TOKEN}"), status) for status in (400, 401, 403, 500)),
        saying(json_error(error=TOKEN.upper(), code=TOKEN), 401),
        saying(json_error(message=f"Namespace {TOKEN.split('.')[1]} does not exist"), 404),
        saying(json_error(message=f"{'x' * 195}{TOKEN}"), 401),
        saying(json.dumps({"results": [{"type": "error", "error": {"message": TOKEN, "code": "X"}}]}).encode()),
        saying(json.dumps({"results": [{"type": TOKEN}]}).encode()),
        saying(answering(cell("integer", value=TOKEN[:20]))),
        saying(answering(cell(TOKEN))),
        status_line,
    ],
)
def test_a_token_that_a_server_repeats_is_not_shown(hostile: Hostile, act: Act) -> None:
    hostile.act = act
    with refused():
        stores.open(hostile.address)
    assert hostile.heard[0]["token"] == f"Bearer {TOKEN}", "the server has it"


@pytest.mark.req("LW-48")
def test_what_a_server_says_is_shown_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DB_TOKEN, TOKEN)
    address = read_address("libsql://db.example")
    assert repeated(address, "the token has expired\nand more") == "the token has expired"
    assert repeated(address, f"bad: {TOKEN}!") == f"bad: {'*' * len(TOKEN)}!"
    assert repeated(address, f"bad: {TOKEN[5:30]}\x1b[2J") == f"bad: {'*' * 25}?[2J"
    assert TOKEN not in repr(address) and TOKEN not in str(address)


@pytest.mark.req("LW-48")
@pytest.mark.parametrize(
    "base", ["http://127.0.0.1:{other}", "https://127.0.0.1:{own}", "http://localhost:{own}", "http://x@127.0.0.1:{own}"]
    + ["http://127.0.0.1:{own}@127.0.0.1:{other}/", "//127.0.0.1:{other}", "http://127.0.0.1:99999", "", "x", "http://[::1"],
)  # fmt: skip
def test_a_server_cannot_send_the_token_elsewhere(turning: Hostile, base: str) -> None:
    with closing(Hostile(turning.real)) as other:
        ports = {"own": turning.address.rpartition(":")[2], "other": other.address.rpartition(":")[2]}

        def content(body: dict[str, Any]) -> bytes:
            return json.dumps(json.loads(answering()(body)) | {"base_url": base.format(**ports)}).encode()

        with closing(with_macs(stores.open(turning.address))) as store:
            turning.act = saying(content)
            with refused("wants to continue at another server"), store.read() as session:
                session.meta("a")
            turning.act = None
            with store.read() as session:
                assert session.meta("a") is None
        assert other.heard == []


@pytest.mark.req("LW-48")
def test_a_server_may_continue_at_another_path(turning: Hostile) -> None:
    def content(body: dict[str, Any]) -> bytes:
        base = f"{turning.address}/sticky/"
        return json.dumps(json.loads(answering(cell("blob", base64="MQ"))(body)) | {"base_url": base}).encode()

    with closing(with_macs(stores.open(turning.address))) as store:
        turning.act = saying(content)
        with store.read() as session:
            assert session.meta("a") == session.meta("b") == b"1"
        # The stream that opened the store may still be sending a ROLLBACK that it does not wait for.
        reads = [heard["path"] for heard in turning.heard if "SELECT value FROM meta" in json.dumps(heard)]
        assert reads[-2:] == ["/v3/pipeline", "/sticky/v3/pipeline"]
        turning.act = None


@pytest.mark.req("LW-48")
def test_an_error_of_a_caller_stays_as_it_is(turning: Hostile) -> None:
    with closing(with_macs(stores.open(turning.address))) as store:
        for error in (ValueError("mine"), TypeError("mine"), KeyError("mine")):
            with pytest.raises(type(error), match="mine"), store.read():
                raise error
