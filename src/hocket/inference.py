"""Model calls over HTTP, for handlers: a thin client for any server that speaks OpenAI's chat protocol. It works only
with the context of a job, which records every call: the literal request as the prompt, the literal response as the
output, even if the response is an error or there is none.
"""

import asyncio
import http.client
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from hocket.errors import Failed, Unreachable, Usage
from hocket.work.context import Context
from hocket.work.inference import Answer, count, member

__all__ = ["Answer", "OpenAI"]

T = TypeVar("T")

TIMEOUT_S = 120.0
RESPONSE_BYTES_MAX = 8 * 1024 * 1024
READ_BYTES = 64 * 1024
ERROR_CHARS_SHOWN = 300


class OpenAI:
    """An endpoint, like `OpenAI("http://localhost:11434/v1")`. The key goes into a header and is never recorded. A call
    takes at most `timeout` seconds.
    """

    def __init__(self, base_url: str, api_key: str | None = None, *, timeout: float = TIMEOUT_S) -> None:
        self._url = _checked(base_url)
        self._api_key = api_key
        self._timeout = timeout

    def chat(
        self,
        ctx: Context,
        *,
        model: str,
        messages: Sequence[dict[str, Any]],
        context: Iterable[str | bytes] = (),
        **options: Any,
    ) -> dict[str, Any]:
        """Calls the model and returns the response, as the protocol defines it. `options` go into the request
        (temperature, tools, …); `context` is that of `ctx.infer`. Raises Unreachable if there is no answer, Failed if
        it is an error.
        """
        request = _request(model, messages, options)
        answer: dict[str, Any] = _context(ctx).infer(
            model=model, version=model, backend=self._backend, prompt=request, context=context, call=self._post
        )
        return answer

    async def chat_async(
        self,
        ctx: Context,
        *,
        model: str,
        messages: Sequence[dict[str, Any]],
        context: Iterable[str | bytes] = (),
        **options: Any,
    ) -> dict[str, Any]:
        """Calls the model from an async handler and returns the response; does not block the event loop. See `chat`."""
        request = _request(model, messages, options)
        answer: dict[str, Any] = await _context(ctx).infer(
            model=model,
            version=model,
            backend=self._backend,
            prompt=request,
            context=context,
            call=lambda prompt: _in_thread(lambda: self._post(prompt)),
        )
        return answer

    @property
    def _backend(self) -> str:
        return f"openai {self._url.hostname}"[:255]

    def _post(self, request: str) -> Answer:
        try:
            status, body = self._exchange(request.encode())
        except TimeoutError:
            raise self._unreachable(f"gave no answer within {self._timeout:g} seconds") from None
        except (OSError, http.client.HTTPException) as error:
            said = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._unreachable(f"failed: {said}") from error
        return self._answer(status, body)

    def _exchange(self, body: bytes) -> tuple[int, bytes]:
        """One request and its response. Follows no redirect: the key is for this address only."""
        until = time.monotonic() + self._timeout
        secure = self._url.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._url.netloc, timeout=self._timeout)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        try:
            connection.request("POST", f"{self._url.path.rstrip('/')}/chat/completions", body, headers)
            response = connection.getresponse()
            parts = bytearray()
            while part := response.read1(READ_BYTES):
                parts += part
                if len(parts) > RESPONSE_BYTES_MAX:
                    raise http.client.HTTPException(f"the response has more than {RESPONSE_BYTES_MAX} bytes")
                if time.monotonic() > until:
                    raise TimeoutError
                if connection.sock is not None:
                    connection.sock.settimeout(max(0.001, until - time.monotonic()))
            if response.length:
                raise http.client.HTTPException("the response is incomplete")
            return response.status, bytes(parts)
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes) -> Answer:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            value = None
        if status != 200 or not isinstance(value, dict):
            said = " ".join(body.decode(errors="replace").split())[:ERROR_CHARS_SHOWN]
            what = f"answered {status}" if status != 200 else "answered with something other than a JSON object"
            return Answer(None, body, error=Failed(f"the model endpoint {self._url.geturl()} {what}: {said}"))
        version = next(
            (v for v in (value.get("system_fingerprint"), value.get("model")) if isinstance(v, str) and v), ""
        )
        usage = value.get("usage")
        tokens = count(member(usage, "prompt_tokens")), count(member(usage, "completion_tokens"))
        return Answer(value, body, version[:255] or None, *tokens)

    def _unreachable(self, what: str) -> Unreachable:
        return Unreachable(f"the model endpoint {self._url.geturl()} {what}")


def _checked(base_url: str) -> SplitResult:
    try:
        url = urlsplit(base_url)
        if url.scheme in ("http", "https") and url.hostname and not (url.query or url.fragment or "@" in url.netloc):
            url.port  # noqa: B018 — reading it here reports a bad port here
            return url
    except ValueError:
        pass
    raise Usage(f"{base_url!r} is not an endpoint's URL; write it like https://host:8080/v1")


def _context(ctx: Context) -> Context:
    if not isinstance(ctx, Context):
        raise Usage("a model call is recorded with its job; pass the handler's ctx")
    return ctx


def _request(model: str, messages: Sequence[dict[str, Any]], options: dict[str, Any]) -> str:
    if options.get("stream"):
        raise Usage("recorded calls cannot stream; leave out stream=True")
    try:
        return msgspec.json.encode({"model": model, "messages": list(messages)} | options).decode()
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Usage(f"the request cannot be written as JSON: {error}") from None


async def _in_thread(work: Callable[[], T]) -> T:
    """Runs a function in a thread of its own. If the caller stops waiting, the thread still ends within the timeout."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = work(), None
        except BaseException as error:
            outcome = None, error
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            # The loop was closed meanwhile, so there is no waiter.
            pass

    threading.Thread(target=run, name="hocket-inference", daemon=True).start()
    return await done
