"""A real server of a real home in a process of its own, and requests to it over real sockets."""

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from hocket.node.runtime import Runtime
from tests.cli.fork_server import run_command, start_command

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """The home and the address of a running server."""

    def __init__(self, home: Path, address: str, process: "subprocess.Popen[str] | None" = None) -> None:
        self.home, self.address, self._process = home, address, process

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def ask(
        self, method: str, path: str, token: str | None = None, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """A body that is not bytes is sent as JSON."""
        sent = dict(headers or {})
        if token is not None:
            sent.setdefault("Authorization", f"Bearer {token}")
        if body is not None and not isinstance(body, bytes):
            sent.setdefault("Content-Type", "application/json")
            body = json.dumps(body).encode()
        where = urlsplit(self.address)
        connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
        try:
            # A server that refuses a body need not read all of it before it answers.
            with suppress(ConnectionResetError, BrokenPipeError):
                connection.request(method, path, body, sent)
            reply = connection.getresponse()
            return Answer(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()


def hocket(home: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    done = run_command(["--home", str(home), *words], None, environment(variables), ROOT, PATIENCE_S)
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **variables}


@contextmanager
def serving(home: Path, *options: str, **variables: str) -> Iterator[Served]:
    """Runs `hocket mesh serve` for a home until the block ends."""
    words = ["--home", str(home), "serve", "--port", "0", "--json", *options]
    ours, theirs = os.pipe()
    process = start_command(words, environment(variables), ROOT, (theirs, 2))
    os.close(theirs)
    with open(ours) as said:
        try:
            yield Served(home, json.loads(said.readline())["address"], process)
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) in (0, -signal.SIGKILL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a home with one node, for all tests of a module."""
    home: Path = tmp_path_factory.mktemp("served") / "home"
    Runtime.init(home, name="box").close()
    with serving(home) as running:
        yield running
