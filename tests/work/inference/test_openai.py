"""The client for OpenAI-compatible endpoints, against a real one, well behaved and not."""

import json
import socket

import pytest

import hocket
import hocket.inference
import hocket.testing
from hocket.inference import OpenAI
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, decode_snapshot
from hocket.node.handles import SyncHandle
from hocket.testing import MemorySyncNode
from tests.ports import free_port
from tests.work.artifacts.handlers import content, of_job, run, succeeded
from tests.work.inference.endpoint import Answering, Endpoint, Handler, chat, endpoint

pytestmark = pytest.mark.touches("LW-35")

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The capital of France?"}]
EVIDENCE = "01J00000000000000000000000"


@pytest.fixture(scope="module")
def server():
    with endpoint() as made:
        yield made


@pytest.fixture
def model(server: Endpoint) -> Endpoint:
    server.asked.clear()
    server.answering = lambda handler: handler.say(chat("Paris."))
    return server


def records(node: MemorySyncNode, handle: SyncHandle) -> list[Snapshot]:
    return [decode_snapshot(content(node, each)) for each in of_job(node, handle, SNAPSHOT_TYPE)]


def asking(model: Endpoint, asynchronous: bool = False, timeout: float = 30.0):
    client = OpenAI(model.url, "secret", timeout=timeout)

    def handler(ctx: hocket.Context) -> str:
        said = client.chat(ctx, model="small", messages=MESSAGES, context=[EVIDENCE], temperature=0)
        return said["choices"][0]["message"]["content"]

    async def handler_async(ctx: hocket.Context) -> str:
        said = await client.chat_async(ctx, model="small", messages=MESSAGES, context=[EVIDENCE], temperature=0)
        return said["choices"][0]["message"]["content"]

    return handler_async if asynchronous else handler


@pytest.mark.req("LW-35")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_literal_request_and_response_are_recorded(model: Endpoint, asynchronous: bool):
    with hocket.testing.node() as node:
        handle = run(node, asking(model, asynchronous))
        assert handle.result() == "Paris."
        [asked] = model.asked
        [record] = records(node, handle)
        assert asked["path"] == "/v1/chat/completions" and asked["key"] == "Bearer secret"
        assert record.prompt.encode() == asked["body"]
        assert json.loads(record.prompt) == {"model": "small", "messages": MESSAGES, "temperature": 0}
        assert record.output.encode() == chat("Paris.")
        assert (record.model_id, record.model_version) == ("small", "small-2025-01-01")
        assert record.backend == "openai 127.0.0.1"
        assert (record.telemetry.prompt_tokens, record.telemetry.completion_tokens) == (11, 3)
        assert len(record.evidence) == 1
        with node.runtime.read() as session:
            assert not [row for row in session.ops_after(0, 1000) if b"secret" in row.body]


def test_the_fingerprint_is_the_better_version(model: Endpoint):
    model.answering = lambda handler: handler.say(chat("Paris.", system_fingerprint="fp_42"))
    with hocket.testing.node() as node:
        assert records(node, run(node, asking(model)))[0].model_version == "fp_42"
    model.answering = lambda handler: handler.say(chat("Paris.", model=7, system_fingerprint=None))
    with hocket.testing.node() as node:
        assert records(node, run(node, asking(model)))[0].model_version == "small"


ERROR = b'{"error": {"message": "no such model"}}'


@pytest.mark.req("LW-35")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("answering", "error", "output"),
    [
        (lambda h: h.say(ERROR, 404), 'answered 404: {"error": {"message": "no such model"}}', ERROR.decode()),
        (lambda h: h.say(b"", 500), "answered 500: ", ""),
        (lambda h: h.say(b"over there", 307, Location="http://127.0.0.1:1/"), "answered 307", "over there"),
        (lambda h: h.say(b"<html>"), "answered with something other than a JSON object: <html>", "<html>"),
        (lambda h: h.say(b"[]"), "answered with something other than a JSON object: []", "[]"),
        (lambda h: h.say(b'{"a": "\xff"}'), "answered with something other than a JSON object", '{"a": "\\xff"}'),
        (lambda h: h.say(b"[" * 100_000), "answered with something other than a JSON object", "[" * 100_000),
    ],
)
def test_errors_are_recorded_and_raised_as_sentences(
    model: Endpoint, answering: Answering, error: str, output: str, asynchronous: bool
):
    model.answering = answering
    with hocket.testing.node() as node:
        handle = run(node, asking(model, asynchronous))
        said = handle.status()["error"]
        assert said.startswith(f"the model endpoint {model.url} ") and error[:60] in said
        assert [each.output for each in records(node, handle)] == [output]
        assert len(model.asked) == 1


def drip(handler: Handler) -> None:
    """One byte at a time, for ever."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    try:
        while not handler.server.over.wait(0.02):
            handler.wfile.write(b" ")
            handler.wfile.flush()
    except OSError:
        pass


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("answering", [lambda h: h.server.over.wait(), drip])
def test_an_endpoint_that_hangs_is_given_up(model: Endpoint, answering: Answering, asynchronous: bool):
    model.answering = answering
    with hocket.testing.node() as node:
        handle = run(node, asking(model, asynchronous, timeout=0.3))
        assert handle.status()["error"] == (f"the model endpoint {model.url} gave no answer within 0.3 seconds")
        [record] = records(node, handle)
        assert record.output.startswith("[no answer: Unreachable: ")


def test_what_breaks_off_or_is_too_long(model: Endpoint, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hocket.inference, "RESPONSE_BYTES_MAX", 1000)
    model.answering = lambda handler: handler.say(b" " * 1001)
    with hocket.testing.node() as node:
        handle = run(node, asking(model))
        assert "failed: the response has more than 1000 bytes" in handle.status()["error"]
        assert len(records(node, handle)) == 1

    def cut(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"{")
        handler.connection.shutdown(socket.SHUT_RDWR)

    model.answering = cut
    with hocket.testing.node() as node:
        handle = run(node, asking(model))
        assert "failed: the response is incomplete" in handle.status()["error"]
        assert len(records(node, handle)) == 1


def test_nobody_there():
    client = OpenAI(f"http://127.0.0.1:{free_port()}/v1")
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: client.chat(ctx, model="small", messages=MESSAGES))
        assert "failed: Connection refused" in handle.status()["error"]
        assert len(records(node, handle)) == 1


def test_no_call_without_the_context_of_a_job(model: Endpoint):
    for wrong in (None, "ctx", object()):
        with pytest.raises(hocket.Usage, match="pass the handler's ctx"):
            OpenAI(model.url).chat(wrong, model="small", messages=MESSAGES)
    assert model.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "file:///etc/passwd",
        "ftp://host/",
        "http://",
        "http://u:p@host/",
        "http://host:x/",
        "http://h/?q",
    ],
)
def test_addresses_that_are_none(url: str):
    with pytest.raises(hocket.Usage, match="not an endpoint's URL"):
        OpenAI(url)


def test_requests_that_are_none(model: Endpoint):
    client = OpenAI(model.url)

    def handler(ctx: hocket.Context) -> None:
        with pytest.raises(hocket.Usage, match="stream"):
            client.chat(ctx, model="small", messages=MESSAGES, stream=True)
        with pytest.raises(hocket.Usage, match="as JSON"):
            client.chat(ctx, model="small", messages=[{"content": object()}])
        with pytest.raises(hocket.Usage, match="its model"):
            client.chat(ctx, model="", messages=MESSAGES)
        with pytest.raises(hocket.Usage, match="bytes, at most"):
            client.chat(ctx, model="small", messages=[{"role": "user", "content": "x" * 9_000_000}])

    with hocket.testing.node() as node:
        handle = run(node, handler)
        assert succeeded(node, handle), handle.status()["traceback"]
        assert model.asked == [] and records(node, handle) == []
