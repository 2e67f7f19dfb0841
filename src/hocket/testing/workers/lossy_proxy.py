"""A proxy between a worker and the server. It records every request of the worker with its answer, and it can lose,
cut, hold back or refuse what passes, as a bad network does.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

EXCHANGES_MAX = 100_000
BODY_BYTES_MAX = 16 * 1024 * 1024
HEAD_BYTES_MAX = 64 * 1024
BUSY_S = 1


class NetworkFault(Enum):
    """What happens to a request. A request that is not forwarded has no effect on the server."""

    REFUSE = "the connection ends before the server has the request"
    BUSY = "the answer is 503, and the server does not have the request"
    LOSE = "the server acts, and the connection ends without its answer"
    CUT = "the server acts, and half of its answer arrives"


FORWARDED = (NetworkFault.LOSE, NetworkFault.CUT)


@dataclass
class Exchange:
    """One request of the worker. `status` is 0 while it has no answer from the server, and `arrived` tells whether the
    worker got the answer.
    """

    path: str
    body: dict[str, Any]
    at: float
    status: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    fault: NetworkFault | None = None
    arrived: bool = False

    @property
    def step(self) -> str:
        return self.path.rpartition("/")[2]


class SentEnd(NamedTuple):
    """A worker's request to end a hold. `error` is the server's refusal."""

    at: float
    job_id: str
    fence: int
    do: str
    content: dict[str, Any]
    status: int
    error: str | None


class LossyProxy:
    """`next_faults` has faults for the coming requests of a step, such as `claim`, and `faults` has one for all of
    them; the step `*` means every step. A fault that loses the answer of a claim waits for one that has jobs. While
    `gates` has an event for a step, its answers wait for the event. With `drains`, every answer to a worker says so.
    """

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self.exchanges: deque[Exchange] = deque(maxlen=EXCHANGES_MAX)
        self.next_faults: dict[str, list[NetworkFault]] = {}
        self.faults: dict[str, NetworkFault] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.drains = False
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Accepts connections from now on; gives the address."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=HEAD_BYTES_MAX)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def of(self, step: str) -> list[Exchange]:
        return [each for each in self.exchanges if each.step == step]

    def claims(self, job_id: str) -> list[Exchange]:
        """The claims whose answers have the job."""
        return [
            each for each in self.of("claim") if any(job["job_id"] == job_id for job in each.answer.get("jobs", []))
        ]

    def renewals(self, job_id: str) -> list[tuple[Exchange, str]]:
        """The renewals of a job, with the state that the server answered; it is empty while there is no answer."""
        found = []
        for each in self.of("renew"):
            if any(hold.get("job_id") == job_id for hold in each.body.get("holds", [])):
                states = {hold["job_id"]: hold["state"] for hold in each.answer.get("holds", [])}
                found.append((each, states.get(job_id, "")))
        return found

    def ends(self, job_id: str) -> list[SentEnd]:
        """The requests to end a hold of the job, whether single or among many."""
        return [end for each in self.exchanges for end in _ends(each) if end.job_id == job_id]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        gone = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
        # asyncio would print that a connection was cancelled, which is how the proxy closes.
        with suppress(asyncio.CancelledError, *gone):
            while await self._pass(reader, writer):
                pass
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Passes one request on, and its answer back. False if the connection must end."""
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        length = int(_headers(head).get("content-length", "0"))
        if length > BODY_BYTES_MAX:
            return False
        body = await reader.readexactly(length)
        exchange = Exchange(path, _object(body), time.monotonic())
        self.exchanges.append(exchange)
        fault = self._fault_before(exchange.step)
        if fault is NetworkFault.REFUSE:
            exchange.fault = fault
            return False
        if fault is NetworkFault.BUSY:
            exchange.fault = fault
            writer.write(_answer(f"503 Service Unavailable\r\nRetry-After: {BUSY_S}", b'{"error": "busy"}'))
            await writer.drain()
            return True
        answer = await self._forwarded(method, path, head, body, reader)
        if answer is None:
            return False
        status, more, content = answer
        exchange.status, exchange.answer = int(status.split(" ")[0]), _object(content)
        if self.drains and exchange.step in ("claim", "renew") and exchange.status == 200:
            exchange.answer["drain"] = True
            content = json.dumps(exchange.answer).encode()
        if (gate := self.gates.get(exchange.step)) is not None and (exchange.step != "claim" or _has_jobs(exchange)):
            await gate.wait()
        exchange.fault = self._fault_after(exchange)
        if exchange.fault is NetworkFault.LOSE:
            return False
        whole = _answer(status + more, content)
        if exchange.fault is NetworkFault.CUT:
            writer.write(whole[: -len(content) // 2])
            await writer.drain()
            return False
        writer.write(whole)
        await writer.drain()
        exchange.arrived = True
        return True

    def _fault_before(self, step: str) -> NetworkFault | None:
        standing = self.faults.get(step, self.faults.get("*"))
        if standing is not None and standing not in FORWARDED:
            return standing
        coming = self.next_faults.get(step, [])
        return coming.pop(0) if coming and coming[0] not in FORWARDED else None

    def _fault_after(self, exchange: Exchange) -> NetworkFault | None:
        coming = self.next_faults.get(exchange.step, [])
        if coming and coming[0] in FORWARDED and (exchange.step != "claim" or _has_jobs(exchange)):
            return coming.pop(0)
        return None

    async def _forwarded(
        self, method: str, path: str, head: bytes, body: bytes, client: asyncio.StreamReader
    ) -> tuple[str, str, bytes] | None:
        """The status, further headers and body of the server's answer; None if the server or the client has gone."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port())
        except OSError:
            return None
        kept = [
            line
            for line in head.decode("latin-1").split("\r\n")[1:]
            if line and line.partition(":")[0].lower() not in ("connection", "expect", "accept-encoding")
        ]
        lines = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
        answering = asyncio.ensure_future(_read(reader))
        leaving = asyncio.ensure_future(client.read(1))
        try:
            writer.write("\r\n".join(lines).encode("latin-1") + body)
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            return answering.result() if answering.done() else None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            return None
        finally:
            answering.cancel()
            leaving.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)
            writer.close()


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    headers = _headers(head)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    more = "".join(f"\r\n{name}: {headers[name]}" for name in ("content-type", "retry-after") if name in headers)
    return head.split(b"\r\n", 1)[0].decode("latin-1").partition(" ")[2], more, body


def _answer(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


def _object(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        if isinstance(found := json.loads(body), dict):
            return found
    return {}


def _has_jobs(exchange: Exchange) -> bool:
    return bool(exchange.answer.get("jobs"))


def _ends(exchange: Exchange) -> Iterator[SentEnd]:
    at, body, status, answer = exchange.at, exchange.body, exchange.status, exchange.answer
    if exchange.path == "/v1/jobs/end":
        answers = {each.get("job_id"): each for each in answer.get("ends", [])}
        for each in body.get("ends", []):
            refusal = answers.get(each.get("job_id"), answer if status >= 400 else {}).get("error")
            yield _end(at, each.get("job_id", ""), each, status, refusal)
    elif exchange.step in ("complete", "fail", "postpone", "yield"):
        job_id = exchange.path.split("/")[-2]
        yield _end(at, job_id, {**body, "do": exchange.step}, status, answer.get("error") if status >= 400 else None)


def _end(at: float, job_id: str, body: dict[str, Any], status: int, refusal: Any) -> SentEnd:
    content = {name: value for name, value in body.items() if name not in ("worker", "job_id")}
    error = refusal.get("error") if isinstance(refusal, dict) else refusal
    return SentEnd(at, job_id, body.get("fence", 0), body.get("do", ""), content, status, error)
