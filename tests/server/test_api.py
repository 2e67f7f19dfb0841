"""The frame of the HTTP API, over real sockets: what every route does with bad requests, limits, repeated requests and
waits. The routes of this page are made for the tests.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import msgspec
import pytest

from hocket.api import Service, programs
from hocket.api.operation import PAGE_MAX, TokenNeed, page_of
from hocket.errors import Conflict, Failed, NotFound, StoreError, Unreachable, Usage
from hocket.node.node import Node
from hocket.server import api as api_module
from hocket.server import problems
from hocket.server.api import Api
from hocket.server.problems import PROBLEM, PROBLEMS, TYPES
from hocket.server.routes import ROUTES, ApiCall, ApiRoute, RouteTable
from tests.mesh.world import Place, world
from tests.server.served import ROOT, Served
from tests.server.test_tokens import made

NEED = TokenNeed("Row", "Write", lambda call, asked: [asked["name"]])
ERRORS: dict[str, Exception] = {
    "usage": Usage("that is wrong"),
    "not_found": NotFound("no such thing"),
    "conflict": Conflict("another was first"),
    "unreachable": Unreachable("the coordinator does not answer"),
    "store": StoreError("the disk is full"),
    "bug": RuntimeError("secret detail"),
    "failed": Failed("a check failed"),
}


class Thing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=0, le=9)]
    note: str = ""


class ThingMade(msgspec.Struct, frozen=True):
    name: str
    count: int
    agent: str


class Things:
    """Counts what was made, and stops where a test says."""

    def __init__(self) -> None:
        self.count = 0
        self.may_go = threading.Event()
        self.may_go.set()
        self.error: Exception | None = None
        self.waiting = 0
        self.woken = asyncio.Event()

    def routes(self) -> list[ApiRoute]:
        def make(call: ApiCall, name: str, body: Thing) -> ThingMade:
            """Make a thing."""
            assert self.may_go.wait(30)
            self.count += 1
            if self.error is not None:
                raise self.error
            return ThingMade(name, self.count, call.service.principal.agent or "")

        def fail(call: ApiCall, name: str) -> ThingMade:
            raise ERRORS[name]

        async def wait(call: ApiCall, name: str) -> ThingMade:
            self.waiting += 1
            try:
                await self.woken.wait()
            finally:
                self.waiting -= 1
            return ThingMade(name, 0, "")

        return [
            ApiRoute("POST", "/v1/things/{name}", make, NEED, creates=True),
            ApiRoute("GET", "/v1/things/{name}/fail", fail, NEED),
            ApiRoute("GET", "/v1/things/{name}/wait", wait, NEED),
            *ROUTES,
        ]


class Asker:
    def __init__(self, place: Place, things: Things, api: Api, session: aiohttp.ClientSession, token: str) -> None:
        self.place, self.things, self.api, self.token, self.told = place, things, api, token, []
        self._session = session

    async def __call__(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        sent = {"Authorization": f"Bearer {token or self.token}"}
        if body is not None and not isinstance(body, bytes):
            body, sent["Content-Type"] = msgspec.json.encode(body), "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._session.request(method, self.place.address + path, data=body, headers=sent) as reply:
            content = await reply.read()
            received = {name.lower(): value for name, value in reply.headers.items()}
            return reply.status, msgspec.json.decode(content) if content else None, received


@asynccontextmanager
async def asking(directory: Path) -> AsyncIterator[Asker]:
    """A node whose server has the routes of this page, and a token for them."""
    told: list[tuple[int, str, str]] = []
    async with world(directory, "a") as (a,):
        await a.stop_serving()
        things, service = Things(), Service(a.runtime)
        node = Node(a.runtime)
        api = Api(node, lambda *each: told.append(each), routes=things.routes())
        token = programs.create(service, "ci", ["row:write", "mesh:read"]).token
        await a.serve(api=api)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            asker = Asker(a, things, api, session, token)
            asker.told = told
            try:
                yield asker
            finally:
                things.may_go.set()
                things.woken.set()
                await asyncio.to_thread(api.close)
                await node.finish()


def run(directory: Path, test: Callable[[Asker], Awaitable[None]]) -> None:
    async def inside() -> None:
        async with asking(directory) as ask:
            await test(ask)

    asyncio.run(inside())


BAD_REQUESTS: list[tuple[str, str, Any, dict[str, str], int, str]] = [
    ("POST", "/v1/things/a", {"size": 10}, {}, 400, "<= 9"),
    ("POST", "/v1/things/a", {"size": -1}, {}, 400, ">= 0"),
    ("POST", "/v1/things/a", {"size": "1"}, {}, 400, "expected `int`"),
    ("POST", "/v1/things/a", {"size": 1.5}, {}, 400, "expected `int`"),
    ("POST", "/v1/things/a", {"size": 1, "more": 1}, {}, 400, "unknown field"),
    ("POST", "/v1/things/a", {}, {}, 400, "size"),
    ("POST", "/v1/things/a", [], {}, 400, "expected `object`"),
    ("POST", "/v1/things/a", b"{", {"Content-Type": "application/json"}, 400, "the body is wrong"),
    ("POST", "/v1/things/a", b"", {"Content-Type": "application/json"}, 400, "the body is wrong"),
    ("POST", "/v1/things/a", b'{"size": 1, "note": "\xff"}', {"Content-Type": "application/json"}, 400, "body"),
    ("POST", "/v1/things/a", b"[" * 100_000, {"Content-Type": "application/json"}, 400, "body"),
    ("POST", "/v1/things/a", b'{"size": 1}', {"Content-Type": "text/plain"}, 415, "application/json"),
    ("POST", "/v1/things/a", b'{"size": 1}', {"Content-Type": ""}, 415, "application/json"),
    ("POST", "/v1/things/%ff", {"size": 1}, {}, 400, "not UTF-8"),
    ("POST", "/v1/things/a?x=1", {"size": 1}, {}, 400, "unknown query parameter 'x'"),
    ("POST", "/v1/things/a", {"size": 1}, {"Idempotency-Key": "x" * 256}, 400, "Idempotency-Key"),
    ("GET", "/v1/nodes?limit=0", None, {}, 400, ">= 1"),
    ("GET", "/v1/nodes?limit=1001", None, {}, 400, "<= 1000"),
    ("GET", "/v1/nodes?limit=abc", None, {}, 400, "expected `int`"),
    ("GET", "/v1/nodes?limit=1&limit=2", None, {}, 400, "twice"),
    ("GET", "/v1/nodes?limit", None, {}, 400, "name=value"),
    ("GET", "/v1/nodes?after=%ff", None, {}, 400, "UTF-8"),
    ("GET", "/v1/nodes?" + "&".join(f"a{n}=1" for n in range(40)), None, {}, 400, "name=value"),
    ("GET", "/v1/nodes/nobody", None, {}, 404, "no node 'nobody'"),
    ("GET", "/v1/nothing", None, {}, 404, "/v1/openapi.json"),
    ("GET", "/v1/nodes/", None, {}, 404, "no such path"),
    ("PATCH", "/v1/nodes", None, {}, 405, "supports GET"),
    ("POST", "/v1/openapi.json", None, {}, 405, "supports GET"),
]


def test_bad_requests_get_a_fitting_status_and_a_sentence(tmp_path: Path):
    async def test(ask: Asker) -> None:
        for method, path, body, headers, status, sentence in BAD_REQUESTS:
            found, answer, headers = await ask(method, path, body, **headers)
            assert (found, sentence in answer["message"]) == (status, True), (method, path, found, answer)
            assert answer.keys() == {"type", "title", "status", "detail", "error", "message"}
            assert headers["content-type"] == PROBLEM and answer["type"].startswith(TYPES)
            assert (answer["status"], answer["detail"]) == (status, answer["message"])
        assert ask.things.count == 0

    run(tmp_path, test)


def test_errors_of_the_service_have_their_status_and_no_traceback(tmp_path: Path):
    async def test(ask: Asker) -> None:
        found = {name: (await ask("GET", f"/v1/things/{name}/fail"))[:2] for name in ERRORS}
        assert {name: (status, answer["error"]) for name, (status, answer) in found.items()} == {
            "usage": (400, "usage"),
            "not_found": (404, "not_found"),
            "conflict": (409, "conflict"),
            "unreachable": (503, "unreachable"),
            "store": (503, "unreachable"),
            "bug": (500, "internal"),
            "failed": (500, "internal"),
        }
        assert found["conflict"][1]["message"] == "another was first"
        assert "secret" not in str(found["bug"])
        assert (500, "an API request failed", "RuntimeError: secret detail") in ask.told

    run(tmp_path, test)


def test_a_key_in_the_path_may_have_slashes_and_any_letters(tmp_path: Path):
    async def test(ask: Asker) -> None:
        for raw, name in (("a%2Fb", "a/b"), ("%3F%23", "?#"), ("%C3%A4", "ä"), ("a+b", "a+b"), ("%2e%2E", "..")):
            reader, writer = await asyncio.open_connection("127.0.0.1", ask.place.server.port)  # type: ignore[union-attr]
            writer.write(
                f"POST /v1/things/{raw} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ask.token}\r\n"
                "content-type: application/json\r\ncontent-length: 10\r\nconnection: close\r\n\r\n"
                '{"size":1}'.encode()
            )
            answer = (await reader.read()).partition(b"\r\n\r\n")[2]
            assert msgspec.json.decode(answer)["name"] == name
            writer.close()

    run(tmp_path, test)


def test_a_repeated_request_with_a_key_is_done_once(tmp_path: Path):
    async def test(ask: Asker) -> None:
        first = await ask("POST", "/v1/things/a", {"size": 1}, Idempotency_Key="k1")
        again = await ask("POST", "/v1/things/a", {"size": 1}, Idempotency_Key="k1")
        assert first[:2] == again[:2] == (201, {"name": "a", "count": 1, "agent": "ci"})
        assert again[2]["idempotent-replayed"] == "true" and "idempotent-replayed" not in first[2]
        status, answer, _ = await ask("POST", "/v1/things/a", {"size": 2}, Idempotency_Key="k1")
        assert (status, answer["error"], answer["final"]) == (422, "key_reused", True)
        assert "another request" in answer["message"]
        # A key belongs to its token.
        other = programs.create(Service(ask.place.runtime), "cd", ["row:write"]).token
        assert (await ask("POST", "/v1/things/a", {"size": 1}, other, Idempotency_Key="k1"))[1]["count"] == 2
        assert (await ask("POST", "/v1/things/a", {"size": 1}))[1]["count"] == 3

    run(tmp_path, test)


def test_two_requests_with_one_key_at_once_are_done_once(tmp_path: Path):
    async def test(ask: Asker) -> None:
        ask.things.may_go.clear()
        asked = [asyncio.create_task(ask("POST", "/v1/things/a", {"size": 1}, Idempotency_Key="k")) for _ in range(5)]
        ended = asyncio.as_completed(asked)
        for _ in range(4):  # one that came later would get the first one's answer
            _, answer, headers = await next(ended)
            assert (answer["type"], answer["error"]) == (f"{TYPES}key-under-way", "conflict") and headers["retry-after"]
        other = await ask("POST", "/v1/things/a", {"size": 2}, Idempotency_Key="k")
        assert (other[0], other[1]["error"]) == (422, "key_reused")
        ask.things.may_go.set()
        assert sorted([(await each)[0] for each in asked]) == [201, 409, 409, 409, 409] and ask.things.count == 1

    run(tmp_path, test)


def test_a_request_that_did_nothing_may_be_repeated_and_one_of_unknown_outcome_may_not(tmp_path: Path):
    async def test(ask: Asker) -> None:
        async def post(key: str) -> tuple[int, str | None]:
            status, answer, _ = await ask("POST", "/v1/things/a", {"size": 1}, Idempotency_Key=key)
            return status, answer.get("type")

        for error, status, after in (
            (Conflict("held"), 409, (201, None)),
            (Unreachable("away"), 503, (409, f"{TYPES}outcome-unknown")),
            (RuntimeError("bug"), 500, (409, f"{TYPES}outcome-unknown")),
        ):
            ask.things.error = error
            assert (await post(type(error).__name__))[0] == status
            ask.things.error = None
            assert await post(type(error).__name__) == after

    run(tmp_path, test)


def test_keys_are_kept_for_a_day_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import hocket.testing

    monkeypatch.setattr(programs, "KEYS_PER_PROGRAM_MAX", 2)
    answer = programs.KeptAnswer(201, b"{}")
    with hocket.testing.node() as node:
        service = Service(node.runtime)
        assert programs.KeyedRequest(service, "ci", "a", b"1").begin() is None
        programs.KeyedRequest(service, "ci", "a", b"1").keep(answer)
        assert programs.KeyedRequest(service, "ci", "b", b"1").begin() is None
        with pytest.raises(programs.TooManyKeys):
            programs.KeyedRequest(service, "ci", "c", b"1").begin()
        assert programs.KeyedRequest(service, "ci", "a", b"1").begin() == answer
        node.clock.advance(86_401)
        assert programs.KeyedRequest(service, "ci", "a", b"1").begin() is None


def test_many_requests_wait_at_once_and_hold_up_nobody(tmp_path: Path):
    async def test(ask: Asker) -> None:
        waiting = [asyncio.create_task(ask("GET", "/v1/things/a/wait")) for _ in range(100)]
        async with asyncio.timeout(30):
            while ask.things.waiting < 100:
                await asyncio.sleep(0.01)
            assert (await ask("GET", "/v1/nodes"))[0] == 200
            assert (await ask("POST", "/v1/things/a", {"size": 1}))[0] == 201
        ask.things.woken.set()
        assert {(await each)[0] for each in waiting} == {200}

    run(tmp_path, test)


def test_a_request_that_waits_ends_when_its_caller_disconnects(tmp_path: Path):
    async def test(ask: Asker) -> None:
        waiting = asyncio.create_task(ask("GET", "/v1/things/a/wait"))
        async with asyncio.timeout(30):
            while not ask.things.waiting:
                await asyncio.sleep(0.01)
            waiting.cancel()
            while ask.things.waiting:
                await asyncio.sleep(0.01)

    run(tmp_path, test)


def test_a_request_that_waits_is_answered_when_the_server_stops(tmp_path: Path):
    async def test(ask: Asker) -> None:
        waiting = asyncio.create_task(ask("GET", "/v1/things/a/wait"))
        async with asyncio.timeout(30):
            while not ask.things.waiting:
                await asyncio.sleep(0.01)
        await ask.place.stop_serving()
        status, answer, headers = await waiting
        assert (status, answer["error"], ask.things.waiting) == (503, "unreachable", 0) and headers["retry-after"]

    run(tmp_path, test)


def test_a_program_has_only_so_many_requests_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api_module, "REQUESTS_OF_PROGRAM_MAX", 3)

    async def test(ask: Asker) -> None:
        waiting = [asyncio.create_task(ask("GET", "/v1/things/a/wait")) for _ in range(3)]
        async with asyncio.timeout(30):
            while ask.things.waiting < 3:
                await asyncio.sleep(0.01)
        status, answer, headers = await ask("GET", "/v1/nodes")
        assert (status, answer["error"], headers["retry-after"]) == (429, "too_many", "1")
        other = programs.create(Service(ask.place.runtime), "cd", ["mesh:read"]).token
        assert (await ask("GET", "/v1/nodes", token=other))[0] == 200
        ask.things.woken.set()
        await asyncio.gather(*waiting)
        assert (await ask("GET", "/v1/nodes"))[0] == 200

    run(tmp_path, test)


def test_a_program_that_asks_too_often_is_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(api_module, "BURST", 5.0)
    monkeypatch.setattr(api_module, "RATE_PER_S", 0.1)

    async def test(ask: Asker) -> None:
        found = [await ask("GET", "/v1/nodes") for _ in range(7)]
        assert [status for status, _, _ in found] == [200] * 5 + [429] * 2
        assert int(found[-1][2]["retry-after"]) > 1

    run(tmp_path, test)


async def began(ask: Asker, token: str, size: int) -> bytes:
    """The answer to a request of which only the head was sent."""
    assert ask.place.server is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", ask.place.server.port)
    head = f"POST /v1/things/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {size}\r\n"
    writer.write(f"{head}content-type: application/json\r\n\r\n".encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


def test_a_refused_caller_costs_no_body(tmp_path: Path):
    """Its token is judged before its body is read, and so is the length of the body."""

    async def test(ask: Asker) -> None:
        assert (await began(ask, "no", 1_000_000)).startswith(b"HTTP/1.1 401")
        answer = await began(ask, ask.token, 4 * 1024 * 1024 + 1)
        assert answer.startswith(b"HTTP/1.1 413") and b"longer than 4194304 bytes" in answer

    run(tmp_path, test)


def test_the_gate_keeps_its_paths(tmp_path: Path):
    async def test(ask: Asker) -> None:
        for path in ("/v1/blobs", "/v1/output"):
            status, answer, headers = await ask("GET", path)
            assert (status, answer) == (401, None) and "x-likewise-mesh-rules-hash" in {
                each.lower() for each in headers
            }

    run(tmp_path, test)


def test_pages_of_nodes_have_each_of_them_once():
    names = [f"{n:03}" for n in range(10)]
    for limit in (1, 3, 5, 10, PAGE_MAX):
        seen: list[str] = []
        after = None
        while True:
            page = page_of(reversed(names), str, limit, after)
            assert len(page.items) <= limit
            seen += page.items
            if (after := page.next) is None:
                break
        assert seen == names


def test_every_route_is_refused_to_a_token_without_its_grant(served: Served):
    """Whatever else the request has: nothing is done or told before that is judged."""
    token = made(served.home, "nothing", "evidence:read")
    for route in ROUTES:
        if route.need.is_any:
            continue  # its items are judged one by one
        path = route.path
        for parameter in route.parameters:
            path = path.replace(f"{{{parameter}}}", EXAMPLES.get(parameter, "x"))
        query = f"?{QUERIES[route.function.__name__]}" if route.function.__name__ in QUERIES else ""
        answer = served.ask(route.method, path + query, token, BODIES.get(route.function.__name__))
        assert answer.status == 403, (route.method, route.path, answer.body)
        assert str(route.need) in answer.json["message"]


EXAMPLES = {"node": "here", **dict.fromkeys(("message", "conflict"), "01JZZZZZZZZZZZZZZZZZZZZZZZ")}
QUERIES = {"delete_row": "version=x"}
BODIES: dict[str, Any] = {
    "acquire_lock": {"keys": ["a"]},
    "renew_lock": {"fence": 1},
    "release_lock": {"fence": 1},
    "break_lock": {"reason": "because"},
    "send_message": {"to": "a", "body": "x"},
    "put_row": {"value": 1},
    **{name: {} for name in ("claim_messages", "acknowledge_message", "return_message", "retry_message")},
    **{name: {} for name in ("resolve_conflict", "drain_node", "quarantine_node", "resume_node", "beat")},
}


def test_each_status_is_decided_by_one_class():
    for index, problem in enumerate(PROBLEMS):
        earlier = tuple(kind for each in PROBLEMS[:index] for kind in each.classes)
        assert not any(issubclass(kind, earlier) for kind in problem.classes)


def test_a_path_without_parameters_comes_first():
    def one(call: ApiCall) -> None: ...

    def other(call: ApiCall, name: str) -> None: ...

    routes = [ApiRoute("GET", "/v1/a/{name}", other, NEED), ApiRoute("GET", "/v1/a/b", one, NEED)]
    table = RouteTable(routes)
    assert table.find("/v1/a/b") == ({"GET": routes[1]}, {})
    assert table.find("/v1/a/c") == ({"GET": routes[0]}, {"name": "c"})
    assert table.find("/v1/a/") == table.find("/v1/a/b/c") == ({}, {})


def test_the_page_on_errors_has_every_type():
    assert problems.listed() in (ROOT / "docs/errors.md").read_text()
    assert len({each.name for each in PROBLEMS}) == len(PROBLEMS)
