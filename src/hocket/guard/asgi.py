"""Fences over HTTP. A client that holds a lock or a job sends its fence in the header `Hocket-Fence`; the middleware
checks its form and puts it into the request's scope, and answers for the application if that finds the fence stale.
"""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from hocket.errors import StaleFence, Usage
from hocket.guard.fences import check_fence

HEADER = "Hocket-Fence"
# Where the application finds the fence: `scope["hocket.fence"]`.
IN_SCOPE = "hocket.fence"
READS = ("GET", "HEAD", "OPTIONS", "TRACE")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class FenceMiddleware:
    """Requests that write need a fence; those that only read may have one.

    Answers 428 if a write has no fence, 400 if the fence is no fence, and 409 if the application raises StaleFence
    before it has begun to answer. The application makes its write with `hocket.fenced`: only there the fence and the
    write are compared in one step.
    """

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def observed(message: MutableMapping[str, Any]) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        given = [value for name, value in scope["headers"] if name.lower() == HEADER.lower().encode()]
        try:
            if not given and scope["method"] not in READS:
                await _answer(send, 428, {"error": f"this request writes, so it needs the header {HEADER}"})
                return
            fence = _fence_of(given) if given else None
        except Usage as error:
            await _answer(send, 400, {"error": f"header {HEADER}: {error}"})
            return
        try:
            await self._app({**scope, IN_SCOPE: fence}, receive, observed)
        except StaleFence as error:
            if has_begun:
                raise
            await _answer(send, 409, {"error": str(error), "fence": error.fence, "newest": error.newest})


def _fence_of(given: list[bytes]) -> int:
    if len(given) > 1:
        raise Usage(f"it was sent {len(given)} times")
    text = given[0].decode("latin-1").strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        raise Usage(f"{text[:60]!r} is not a whole number between 1 and 2^53 - 1")
    return check_fence(int(text))


async def _answer(send: Send, status: int, said: dict[str, object]) -> None:
    body = json.dumps(said).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
