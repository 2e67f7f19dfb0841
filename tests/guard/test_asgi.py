"""Fences over HTTP: the middleware in front of an application that writes with the guard."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import hocket


class Pages:
    """An application that keeps a text and tells the fence that it got."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.execute("CREATE TABLE page (text TEXT)")
        self.begins_early = False
        self.scopes: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope["type"])
        if scope["type"] != "http":
            return
        if self.begins_early:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["method"] == "PUT":
            with hocket.fenced(self.database, scope["path"], scope["hocket.fence"]):
                self.database.execute("INSERT INTO page VALUES (?)", (str(scope["hocket.fence"]),))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": str(scope["hocket.fence"]).encode()})


def ask(app: Any, method: str, *fences: str) -> tuple[int, bytes]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"hocket-fence", fence.encode("latin-1")) for fence in fences]
    scope = {"type": "http", "method": method, "path": "/page", "headers": headers}
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    return Pages(tmp_path / "pages.db")


@pytest.mark.req("VX-06")
def test_a_stale_write_is_answered_with_409(pages: Pages) -> None:
    app = hocket.FenceMiddleware(pages)
    assert ask(app, "PUT", "3") == (204, b"3")
    assert ask(app, "PUT", "5") == (204, b"5")
    status, body = ask(app, "PUT", "4")
    assert status == 409 and b'"fence": 4' in body and b'"newest": 5' in body and b"is stale" in body
    assert pages.database.execute("SELECT text FROM page").fetchall() == [("3",), ("5",)]


@pytest.mark.req("VX-06")
def test_a_write_needs_a_fence_and_a_read_does_not(pages: Pages) -> None:
    app = hocket.FenceMiddleware(pages)
    for method in ("PUT", "POST", "PATCH", "DELETE", "LINK"):
        assert ask(app, method)[0] == 428
    assert ask(app, "GET") == (204, b"None")
    assert ask(app, "GET", "7") == (204, b"7")
    assert pages.database.execute("SELECT text FROM page").fetchall() == []


@pytest.mark.parametrize(
    "fences",
    [("",), ("0",), ("-1",), ("+1",), ("1.0",), ("true",), ("0x1f",), ("١",), ("9" * 19,), ("9" * 5000,), ("1, 2",)]
    + [("1", "2")],
)
def test_what_is_no_fence_is_answered_with_400(fences: tuple[str, ...], pages: Pages) -> None:
    fences = tuple(fence.encode().decode("latin-1") for fence in fences)
    for method in ("PUT", "GET"):
        status, body = ask(hocket.FenceMiddleware(pages), method, *fences)
        assert status == 400 and b"Hocket-Fence" in body and len(body) < 400
    assert pages.scopes == []


def test_an_answer_that_has_begun_is_not_begun_again(pages: Pages) -> None:
    app = hocket.FenceMiddleware(pages)
    ask(app, "PUT", "5")
    pages.begins_early = True
    with pytest.raises(hocket.StaleFence):
        ask(app, "PUT", "4")


def test_other_protocols_pass(pages: Pages) -> None:
    asyncio.run(hocket.FenceMiddleware(pages)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert pages.scopes == ["lifespan"]
