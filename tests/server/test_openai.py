"""Chat completions in OpenAI's form: a real server, a real worker process, requests over real sockets."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hocket.api import Service, job_lists, programs
from hocket.api.job_lists import JobQuery
from hocket.node.runtime import Runtime
from hocket.server import openai
from hocket.server.description import describe
from hocket.server.routes import ROUTES
from tests.cli.fork_server import start_command
from tests.server.served import PATIENCE_S, ROOT, Answer, Served, environment, serving

KIND = "test.chat"
HANDLERS = """
import time
from pathlib import Path

import hocket


@hocket.job("test.chat")
def chat(ctx, messages, **options):
    asked = messages[-1]["content"]
    if asked == "fail":
        raise ValueError("it broke")
    if asked == "options":
        yield {"content": str(options.get("temperature"))}
        yield {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, "finish_reason": "length"}
        return
    if asked.startswith("endless "):
        try:
            while True:
                yield "on "
                time.sleep(0.01)
        finally:
            Path(asked.removeprefix("endless ")).touch()
    if asked == "plain":
        return "all at once"
    for word in asked.split():
        yield word + " "
"""


class Chat(Served):
    """The server, with a token that may submit, and one that may not."""

    def __init__(self, served: Served, token: str, weak: str) -> None:
        super().__init__(served.home, served.address)
        self.token, self.weak = token, weak

    def chat(self, content: str, token: str | None = None, **more: Any) -> Answer:
        body = {"model": KIND, "messages": [{"role": "user", "content": content}], **more}
        return self.ask("POST", "/v1/chat/completions", token or self.token, body)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    root = tmp_path_factory.mktemp("chat")
    handlers = root / "handlers.py"
    handlers.write_text(HANDLERS)
    with Runtime.init(root / "home", name="box") as runtime:
        token = programs.create(Service(runtime), "chatter", ["job:schedule:test."]).token
        weak = programs.create(Service(runtime), "reader", ["job:schedule:other."]).token
    worker = start_command(["--home", str(root / "home"), "work", str(handlers)], environment({}), ROOT)
    try:
        with serving(root / "home", "--openai", KIND) as served:
            yield Chat(served, token, weak)
    finally:
        worker.terminate()
        worker.communicate(timeout=PATIENCE_S)


def events(answer: Answer) -> list[Any]:
    lines = [line for line in answer.body.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_an_answer_is_one_object(chat: Chat) -> None:
    answer = chat.chat("to be or")
    assert answer.status == 200, answer
    said = answer.json
    assert said["id"].startswith("chatcmpl-") and said["object"] == "chat.completion" and said["model"] == KIND
    message = {"role": "assistant", "content": "to be or "}
    assert said["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]
    assert said["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_a_stream_is_a_chunk_for_each_part(chat: Chat) -> None:
    answer = chat.chat("to be", stream=True, stream_options={"include_usage": True})
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *chunks, usage = events(answer)
    deltas = [(each["choices"][0]["delta"], each["choices"][0]["finish_reason"]) for each in chunks]
    assert deltas == [
        ({"role": "assistant", "content": ""}, None),
        ({"content": "to "}, None),
        ({"content": "be "}, None),
        ({}, "stop"),
    ]
    assert {each["object"] for each in chunks} == {"chat.completion.chunk"}
    assert len({each["id"] for each in chunks}) == 1
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 2
    assert "usage" not in events(chat.chat("to be", stream=True))[0]


def test_the_handler_gets_the_options_and_can_tell_usage_and_why_it_ended(chat: Chat) -> None:
    said = chat.chat("options", temperature=0.5).json
    assert said["choices"][0]["message"]["content"] == "0.5" and said["choices"][0]["finish_reason"] == "length"
    assert said["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
def test_a_result_without_parts_is_the_content(chat: Chat, stream: bool) -> None:
    answer = chat.chat("plain", stream=stream)
    if stream:
        assert events(answer)[1]["choices"][0]["delta"] == {"content": "all at once"}
    else:
        assert answer.json["choices"][0]["message"]["content"] == "all at once"


@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_the_form_and_the_status(chat: Chat, stream: bool) -> None:
    def error(answer: Answer, status: int) -> dict[str, Any]:
        assert answer.status == status, answer
        assert set(answer.json) == {"error"}
        return answer.json["error"]

    assert "it broke" in error(chat.chat("fail", stream=stream), 500)["message"]
    assert error(chat.chat("x", "nonsense", stream=stream), 401)["type"] == "authentication_error"
    assert error(chat.chat("x", chat.weak, stream=stream), 403)["type"] == "permission_error"
    assert "no model" in error(chat.chat("x", model="gpt-4", stream=stream), 404)["message"]
    assert error(chat.chat("x", n=2, stream=stream), 400)["type"] == "invalid_request_error"
    assert error(chat.chat("x", messages=[], stream=stream), 400)["code"] == "usage"
    assert error(chat.chat("x", messages="hello", stream=stream), 400)["code"] == "usage"
    assert error(chat.chat("x" * 4_194_400, stream=stream), 413)["code"] == "too_large"
    assert error(chat.ask("GET", "/v1/chat/completions", chat.token), 405)["code"] == "bad_method"


def test_the_kind_is_the_only_model(chat: Chat) -> None:
    assert chat.ask("GET", "/v1/models").status == 401
    listed = chat.ask("GET", "/v1/models", chat.token).json
    assert listed["object"] == "list" and [each["id"] for each in listed["data"]] == [KIND]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_cancels_its_job(chat: Chat, tmp_path: Path, stream: bool) -> None:
    closed = tmp_path / "closed"

    async def leave() -> None:
        body = {"model": KIND, "messages": [{"role": "user", "content": f"endless {closed}"}], "stream": stream}
        headers = {"Authorization": f"Bearer {chat.token}"}
        timeout = aiohttp.ClientTimeout(total=2.0 if not stream else PATIENCE_S)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            async with session.post(f"{chat.address}/v1/chat/completions", json=body) as answer:
                assert b"on " in await answer.content.readuntil(b"on ")

    if stream:
        asyncio.run(leave())
    else:
        with pytest.raises(TimeoutError):
            asyncio.run(leave())
    deadline = time.monotonic() + PATIENCE_S
    while not closed.exists():
        assert time.monotonic() < deadline, "the handler goes on"
        time.sleep(0.01)
    with Runtime.open(chat.home) as runtime:
        (last,) = job_lists.page(Service(runtime), JobQuery(limit=1)).items
    assert last.error == openai.GONE


def test_it_is_described_and_off_by_default(chat: Chat, served: Served) -> None:
    paths = chat.ask("GET", "/v1/openapi.json").json["paths"]
    assert "post" in paths["/v1/chat/completions"] and "get" in paths["/v1/models"]
    assert "/v1/chat/completions" not in served.ask("GET", "/v1/openapi.json").json["paths"]
    assert served.ask("POST", "/v1/chat/completions", body={}).status == 404
    described = describe((*ROUTES, *openai.routes(KIND)))
    refused = described["paths"]["/v1/chat/completions"]["post"]["responses"]["400"]
    assert refused["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/OpenAiErrorAnswer"}


def test_without_a_worker_the_answer_is_that_none_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's own sweep ends the job."""
    from hocket.mesh.wire import Request
    from hocket.node.node import Node
    from hocket.server.api import Api

    monkeypatch.setattr(openai, "BEGIN_S", 0.2)

    async def body() -> None:
        with Runtime.init(tmp_path / "home") as runtime:
            token = programs.create(Service(runtime), "chatter", ["all"]).token
            node = Node(runtime)
            api = Api(node, routes=openai.routes(KIND))
            asked = {"model": KIND, "messages": [{"role": "user", "content": "x"}], "stream": True}
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            async with asyncio.timeout(PATIENCE_S), node.kept_up(lambda event: None):
                request = Request("POST", "/v1/chat/completions", "", headers, json.dumps(asked).encode())
                reply = await api.answer(request)
            assert reply.status == 503 and b"no worker began it" in reply.body
            api.close()
            await node.finish()

    asyncio.run(body())
