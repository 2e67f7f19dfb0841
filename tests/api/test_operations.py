"""An operation that is declared once is a command, a route over HTTP and a method for Python."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from hocket.api import ListPage, Service, ServiceAnswer, programs
from hocket.api.admin import Admin, AsyncAdmin, Method
from hocket.api.operation import After, InShell, Limit, TokenNeed, operation
from hocket.api.views import Line, Table, View
from hocket.cli.declarations import App, call, chosen
from hocket.cli.derived import add_operations
from hocket.cli.settings import settings
from hocket.errors import Conflict
from hocket.mesh import wire
from hocket.mesh.wire import Reply, Request
from hocket.node.node import Node, SyncNode
from hocket.node.runtime import Runtime
from hocket.server.api import Api
from hocket.server.description import describe
from hocket.server.routes import route_of

Colour = Annotated[Literal["light-red", "blue"], Meta(description="The colour.")]


class Painted(ServiceAnswer, frozen=True):
    what: str
    colour: str
    coats: int
    agent: str
    lasts_ms: int | None = None

    def ensure(self) -> None:
        if self.coats > 9:
            raise Conflict("the paint is used up")


def _show(painted: Painted) -> Iterator[View]:
    yield Line(f"{painted.what} is {painted.colour}")


WRITE = TokenNeed("Row", "Write", lambda service, asked: [asked["what"]])


@operation("paint", "POST /v1/things/{what}/paint", WRITE, command="things paint", show=_show)
def paint(
    service: Service,
    what: Annotated[str, Meta(min_length=1, description="The thing.")],
    colour: Colour = "blue",
    coats: Annotated[int, Meta(ge=1, le=20)] = 1,
    lasts_ms: Annotated[int, InShell("--lasts", form="duration", earlier="--for")] | None = None,
    agent: str | None = None,
) -> Painted:
    """Paint a thing.

    It has no effect.

    \b
      hocket x
    """
    return Painted(what, colour, coats, service.agent(agent), lasts_ms)


@operation("count", "GET /v1/things", TokenNeed("Mesh", "Read"), command="things list", key=lambda each: each)
def listing(service: Service) -> list[str]:
    """List things."""
    return ["b", "a", "a"]


@operation(
    "numbers",
    "GET /v1/numbers",
    TokenNeed("Mesh", "Read"),
    command="things numbers",
    show=lambda page: [Table(("number",), [(each,) for each in page.items], "none")],
)
def numbers(service: Service, limit: Limit = 2, after: After | None = None) -> ListPage[int]:
    """List numbers."""
    first = 0 if after is None else int(after) + 1
    items = list(range(first, 5))[:limit]
    return ListPage(items, None if items[-1] == 4 else str(items[-1]))


OPERATIONS = paint, listing, numbers


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with Runtime.init(tmp_path / "home", name="box") as runtime:
        yield runtime


@pytest.fixture
def shell(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(settings, "home", runtime.home.path)
    monkeypatch.setattr(settings, "as_json", False)
    monkeypatch.setenv("HOCKET_AGENT", "me")
    app = App()
    app.callback()(lambda: None)
    add_operations(app, *OPERATIONS)
    return app


def run(app: App, line: str) -> None:
    for function, values in chosen(app, line.split()):
        call(function, values)


def test_it_is_a_command(shell: App, capsys: pytest.CaptureFixture[str]) -> None:
    run(shell, "paint door --colour light-red --coats 3")
    assert capsys.readouterr().out == "door is light-red\n"
    for line in ("paint door --lasts 2s --json", "paint door --for 2s --json"):
        run(shell, line)
        assert msgspec.json.decode(capsys.readouterr().out) == {
            **{"what": "door", "colour": "blue", "coats": 1, "agent": "me", "lasts_ms": 2000}
        }
        settings.as_json = False
    run(shell, "numbers")
    printed = capsys.readouterr()
    assert (
        printed.out.splitlines() == ["0", "1"] and printed.err == "hocket: there are more: continue with --after '1'\n"
    )
    settings.as_json = True
    run(shell, "list")
    with pytest.raises(Conflict):
        run(shell, "paint door --coats 10")
    assert [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()][1]["coats"] == 10


def test_its_help_has_its_sentences_and_examples(shell: App, capsys: pytest.CaptureFixture[str]) -> None:
    shell.typer()(["paint", "--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "Paint a thing." in shown and "  hocket x" in shown and "--lasts" in shown and "--for" not in shown
    assert "light-red|blue" in shown and "--coats COATS" in shown
    assert "{WHAT}" in shown and "The colour." in shown


async def ask(api: Api, method: str, path: str, body: object, query: str = "", token: str = "") -> Reply:
    headers = {"authorization": f"Bearer {token}", "content-type": wire.JSON}
    return await api.answer(Request(method, path, query, headers, msgspec.json.encode(body)))


def test_it_is_a_route(runtime: Runtime) -> None:
    token = programs.create(Service(runtime), "painter", ["row:write:door", "mesh:read"]).token

    async def test() -> None:
        node = Node(runtime)
        api = Api(node, routes=[*map(route_of, OPERATIONS)])
        try:
            painted = await ask(api, "POST", "/v1/things/door/paint", {"coats": 2}, token=token)
            assert painted.status == 200 and msgspec.json.decode(painted.body) == {
                **{"what": "door", "colour": "blue", "coats": 2, "agent": "painter", "lasts_ms": None}
            }
            for path, body, status in (
                ("/v1/things/window/paint", {}, 403),
                ("/v1/things/door/paint", {"coats": 0}, 400),
                ("/v1/things/door/paint", {"agent": "another"}, 403),
                ("/v1/things/door/paint", {"coats": 10}, 409),
                ("/v1/things/door/paint", {"colour": "red"}, 400),
            ):
                assert (await ask(api, "POST", path, body, token=token)).status == status, path
            places, after = [], ""
            while True:
                answer = msgspec.json.decode((await ask(api, "GET", "/v1/things", None, f"limit=1{after}", token)).body)
                places += answer["items"]
                if answer["next"] is None:
                    break
                after = f"&after={answer['next'].replace(' ', '%20')}"
            assert places == ["a", "a", "b"]
            page = msgspec.json.decode((await ask(api, "GET", "/v1/numbers", None, "limit=3&after=0", token)).body)
            assert page == {"items": [1, 2, 3], "next": "3"}
        finally:
            api.close()
            await node.finish()

    asyncio.run(test())


def test_its_description_has_its_parameters() -> None:
    paths = describe([*map(route_of, OPERATIONS)])["paths"]
    painting = paths["/v1/things/{what}/paint"]["post"]
    assert painting["operationId"] == "paint" and painting["summary"] == "Paint a thing."
    assert painting["parameters"][0]["description"] == "The thing."
    assert [each["name"] for each in paths["/v1/things"]["get"]["parameters"]] == ["limit", "after"]


def test_it_is_a_method_for_blocking_and_async_programs(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_AGENT", "me")
    method = Method(paint)
    assert method.__doc__ is not None and method.__doc__.startswith("Paint a thing.")
    assert method.__get__(Admin(SyncNode(runtime)), Admin)("door", coats=2) == Painted("door", "blue", 2, "me")

    async def test() -> None:
        node = Node(runtime)
        assert (await method.__get__(AsyncAdmin(node), AsyncAdmin)("door")).coats == 1
        await node.finish()

    asyncio.run(test())
