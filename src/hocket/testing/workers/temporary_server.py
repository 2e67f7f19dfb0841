"""A real `hocket mesh serve` on a home of its own, which can be killed and started again, and the node of that home in
this process, which submits jobs and looks at them.
"""

import asyncio
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import hocket
from hocket.api import Service, programs
from hocket.api.admin import AsyncAdmin
from hocket.api.jobs import JobDetails
from hocket.errors import Failed
from hocket.node.node import Node
from hocket.node.runtime import Runtime

START_S = 60
REQUEST_S = 90
LINE_BYTES_MAX = 64 * 1024
OUTPUT_BYTES_MAX = 4_096
# The prefix of the kinds that the worker may have.
KINDS = "check."


class TemporaryServer:
    """`home` is a directory that does not exist yet. Enter it with `async with`."""

    port = 0
    token = ""
    node: Node
    admin: AsyncAdmin

    def __init__(self, home: Path) -> None:
        self._home = home
        self._log = home.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "TemporaryServer":
        await asyncio.to_thread(lambda: Runtime.init(self._home, name="server").close())
        self._opening = hocket.open(self._home)
        self.node = await self._opening.__aenter__()
        self.admin = AsyncAdmin(self.node)
        try:
            made = await self.node.call(self._make_token)
            self.token = made.token
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _make_token(self) -> programs.TokenMade:
        return programs.create(Service(self.node.runtime), "worker", may=[f"job:all:{KINDS}"])

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        await self._opening.__aexit__(None, None, None)

    async def start(self) -> None:
        """Starts the server, on the same port as before."""
        command = [
            sys.executable,
            "-m",
            "hocket",
            "--home",
            str(self._home),
            "--json",
            "serve",
            "--port",
            str(self.port),
        ]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=kept,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        assert self._process.stdout is not None
        with suppress(TimeoutError):
            line = await asyncio.wait_for(self._process.stdout.readline(), START_S)
            if line:
                self.port = int(json.loads(line)["address"].rpartition(":")[2])
                return
        await self.kill()
        tail = self._log.read_text("utf-8", "replace")[-OUTPUT_BYTES_MAX:].strip()
        raise Failed(f"the server did not start: {tail or 'it printed nothing'}")

    async def kill(self) -> None:
        """Kills the server with SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def submit(self, kind: str, **payload: Any) -> str:
        handle = await self.node.submit(kind, **payload)
        return handle.job_id

    async def job(self, job_id: str) -> JobDetails:
        return await self.admin.job(job_id)

    async def post(self, step: str, body: dict[str, Any]) -> dict[str, Any]:
        """Sends a worker's request with the worker's token, past the proxy. Raises Failed if it is refused."""
        return await asyncio.to_thread(self._post, step, body)

    def _post(self, step: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        url = f"http://127.0.0.1:{self.port}/v1/jobs/{step}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_S) as reply:
                answer: dict[str, Any] = json.load(reply)
                return answer
        except urllib.error.HTTPError as error:
            raise Failed(f"the server refuses {step}: {error.read().decode(errors='replace')}") from None
