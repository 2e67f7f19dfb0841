"""The HTTP API of a real server: one job a request, over connections that stay open, as a program in another language
submits them. The server is `hocket serve` in a process of its own, and so is the program.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from bench.subject import Result
from hocket.api import Service, programs
from hocket.node.runtime import Runtime

KIND = "bench.noop"
WARM_UP = 100


def submits(home: Path, count: int, connections: int) -> Result:
    """The seconds of so many submits, of each connection one after the other."""
    node = home / "node"
    Runtime.init(node).close()
    with Service(Runtime.open(node)) as service:
        token = programs.create(service, "bench", ["job:all:bench."]).token
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
