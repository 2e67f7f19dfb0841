"""The HTTP API of a real server, over connections that stay open, as programs in another language use it: one submit a
request, jobs that workers claim and end 32 at a time, and workers that wait for jobs. The server is `hocket mesh serve`
in a process of its own, and so is the program.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hocket
from bench.subject import Result
from hocket.api import Service, programs
from hocket.node.runtime import Runtime

KIND = "bench.noop"
WARM_UP = 100
CLAIMED_AT_ONCE = 32
WAIT_MS = 50_000
# A server has so many connections with one address; loopback has many addresses.
OF_ADDRESS = 100
# After so long all workers wait.
SETTLE_S = 10.0


def submits(home: Path, count: int, connections: int) -> Result:
    """The seconds of so many submits, of each connection one after the other."""
    node, token = _node(home)
    with _server(node) as (process, address):
        asyncio.run(_submit(address, token, WARM_UP, 1))
        used = _cpu_s(process.pid)
        start = time.perf_counter()
        slowest = asyncio.run(_submit(address, token, count, connections))
        seconds = time.perf_counter() - start
        cpu = _cpu_s(process.pid) - used
    count = count // connections * connections
    return {
        "seconds": seconds,
        "rate": count / seconds,
        "each_ms": seconds / count * 1000,
        "cpu_ms": cpu / count * 1000,
        "slowest_ms": slowest * 1000,
    }


def drain(home: Path, count: int, workers: int) -> Result:
    """The seconds in which so many workers claim and complete all jobs, 32 with each request."""
    node, token = _node(home)
    with hocket.open(node) as opened:
        for first in range(0, count, 1_000):
            opened.submit_many([(KIND, {"n": number}) for number in range(first, min(first + 1_000, count))])
    with _server(node) as (process, address):
        used, start = _cpu_s(process.pid), time.perf_counter()
        done = asyncio.run(_drain(address, token, workers))
        seconds, cpu = time.perf_counter() - start, _cpu_s(process.pid) - used
    if done != count:
        raise RuntimeError(f"{done} jobs done of {count}")
    return {"seconds": seconds, "rate": count / seconds, "cpu_ms": cpu / count * 1000}


def wait(home: Path, workers: int, seconds: float) -> Result:
    """The share of a core that a server needs while so many workers wait for jobs that nobody submits."""
    node, token = _node(home)
    with _server(node) as (process, address):
        return {"cpu_percent": asyncio.run(_wait(address, token, workers, seconds, process.pid))}


def _node(home: Path) -> tuple[Path, str]:
    node = home / "node"
    Runtime.init(node).close()
    with Service(Runtime.open(node)) as service:
        return node, programs.create(service, "bench", ["job:all:bench."]).token


@contextmanager
def _server(node: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    words = ["serve", "--port", "0", "--rate", "1000000", "--json"]
    command = [sys.executable, "-m", "hocket", "--home", str(node), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.terminate()


class _Connection:
    def __init__(self, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._token, self._reader, self._writer = token, reader, writer

    @classmethod
    async def open(cls, address: str, token: str, number: int = 0) -> _Connection:
        where = urlsplit(address)
        own = f"127.0.0.{number // OF_ADDRESS + 2}", 0
        return cls(token, *await asyncio.open_connection(where.hostname, where.port, local_addr=own))

    async def ask(self, step: str, asked: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(asked)
        self._writer.write(
            f"POST /v1/jobs/{step} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
        answer: dict[str, Any] = json.loads(await self._reader.readexactly(length))
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(str(answer))
        return answer

    def close(self) -> None:
        self._writer.close()


async def _drain(address: str, token: str, workers: int) -> int:
    async def one(number: int) -> int:
        connection, done = await _Connection.open(address, token, number), 0
        worker = f"bench-{number}"
        for claim in count():
            asked = {"worker": worker, "claim_id": str(claim), "kinds": [KIND], "count": CLAIMED_AT_ONCE}
            jobs = (await connection.ask("claim", asked))["jobs"]
            if not jobs:
                break
            ends = [{"job_id": job["job_id"], "fence": job["fence"], "do": "complete"} for job in jobs]
            answer = await connection.ask("end", {"worker": worker, "ends": ends})
            done += sum(each.get("state") == "succeeded" for each in answer["ends"])
        connection.close()
        return done

    return sum(await asyncio.gather(*map(one, range(workers))))


async def _wait(address: str, token: str, workers: int, seconds: float, pid: int) -> float:
    async def one(number: int) -> None:
        connection = await _Connection.open(address, token, number)
        for claim in count():
            asked = {"worker": f"bench-{number}", "claim_id": str(claim), "kinds": [KIND], "wait_ms": WAIT_MS}
            await connection.ask("claim", asked)

    waiting = [asyncio.create_task(one(number)) for number in range(workers)]
    done, _ = await asyncio.wait(waiting, timeout=SETTLE_S, return_when=asyncio.FIRST_EXCEPTION)
    for each in done:
        each.result()
    used, start = _cpu_s(pid), time.perf_counter()
    done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for each in done:
        each.result()
    percent = (_cpu_s(pid) - used) / (time.perf_counter() - start) * 100
    for each in waiting:
        each.cancel()
    return percent


async def _submit(address: str, token: str, count: int, connections: int) -> float:
    return max(await asyncio.gather(*(_one(address, token, count // connections) for _ in range(connections))))


async def _one(address: str, token: str, count: int) -> float:
    """The seconds of the slowest of so many requests on one connection."""
    where = urlsplit(address)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    slowest = 0.0
    for number in range(count):
        body = json.dumps({"kind": KIND, "payload": {"n": number}})
        began = time.perf_counter()
        writer.write(
            f"POST /v1/jobs HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 201"):
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
        slowest = max(slowest, time.perf_counter() - began)
    writer.close()
    return slowest


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
