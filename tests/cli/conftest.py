"""The real program, as a process of its own, on real homes. No test sleeps for luck: each waits for what it needs to
see, with a deadline.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.fork_server import PROGRAM as PROGRAM
from tests.cli.fork_server import run_command, start_command
from tests.waiting import wait_for

PATIENCE_S = 60.0
until = wait_for

TASKS = """
import os
import time
from pathlib import Path

import hocket


@hocket.job("test.echo")
def echo(ctx, **payload):
    return payload


@hocket.job("test.fail")
def fail(ctx, **payload):
    raise ValueError("it broke")


@hocket.job("test.slow")
def slow(ctx, began, seconds=60.0):
    Path(began).write_text(str(os.getpid()))
    ctx.progress({"stage": "began"})
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)
    return "slept"


@hocket.job("test.stuck")
def stuck(ctx, began):
    Path(began).write_text(str(os.getpid()))
    # No exception gets into a thread that waits in C, and this wait is one.
    time.sleep(600)
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def job_id(self) -> str:
        """The last word of the first line."""
        return self.out.splitlines()[0].split()[-1]

    @property
    def sentence(self) -> str:
        """The one line on stderr that says what went wrong; others may say what the command waited for."""
        lines = [line for line in self.err.splitlines() if not line.startswith("hocket: waiting: ")]
        assert len(lines) == 1, self.err
        if lines[0].startswith("{"):
            said = json.loads(lines[0])
            assert said["exit_code"] == self.code
            return str(said["error"])
        assert lines[0].startswith("hocket: "), self.err
        return lines[0].removeprefix("hocket: ")


class Program:
    """`hocket` on one home. Calling it runs a command to its end; `start` leaves it running."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.started: list[subprocess.Popen[str]] = []

    def __call__(
        self,
        *arguments: object,
        input: str | bytes | None = None,
        home: Path | None = None,
        environment: dict[str, str] | None = None,
        code: int | None = None,
    ) -> Result:
        given = input.encode() if isinstance(input, str) else input
        told = self.environment(home) | (environment or {})
        done = run_command(list(map(str, arguments)), given, told, self._beside(), PATIENCE_S * 2)
        result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in result.err, result.err
        assert "\x1b" not in result.out + result.err
        assert code is None or result.code == code, result
        return result

    def start(self, *arguments: object, home: Path | None = None) -> "subprocess.Popen[str]":
        process = start_command(list(map(str, arguments)), self.environment(home), self._beside())
        self.started.append(process)
        return process

    def end_started(self) -> None:
        """Kills what was started and still runs."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def _beside(self) -> Path:
        """Where `tasks.py` is."""
        return next(path for path in self.home.parents if path.exists())

    def environment(self, home: Path | None = None) -> dict[str, str]:
        return dict(os.environ) | {"HOCKET_HOME": str(home or self.home)}

    def submit(self, *arguments: object) -> str:
        return self("submit", *arguments, code=0).job_id

    def show(self, job_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self("show", job_id, "--json", code=0).json
        return shown

    def finished(self, process: "subprocess.Popen[str]", code: int | None = 0) -> Result:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert "Traceback" not in err, err
        assert code is None or process.returncode == code, (process.returncode, out, err)
        return Result(process.returncode, out, err)


@pytest.fixture(scope="session")
def fresh_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home as `init` leaves it, to be copied."""
    home = tmp_path_factory.mktemp("fresh") / "home"
    Program(home)("init", code=0)
    return home


@pytest.fixture(scope="session")
def used_home(tmp_path_factory: pytest.TempPathFactory, fresh_home: Path) -> Path:
    """A home with jobs in every state that stays, to be copied."""
    directory = tmp_path_factory.mktemp("used")
    (directory / "tasks.py").write_text(TASKS)
    shutil.copytree(fresh_home, directory / "home")
    hocket = Program(directory / "home")
    lines = [{"kind": "test.echo", "payload": {"n": n, "text": "x" * 300}} for n in range(20)]
    lines += [{"kind": "test.fail", "payload": {}}, {"kind": "other.kind", "payload": {}}]
    hocket("submit", "--batch", "-", input="\n".join(map(json.dumps, lines)), code=0)
    hocket("work", "tasks.py", "--until-idle", code=0)
    return directory / "home"


def copied(source: Path, directory: Path) -> Path:
    (directory / "tasks.py").write_text(TASKS)
    shutil.copytree(source, directory / "home")
    return directory / "home"


@pytest.fixture
def hocket(fresh_home: Path, tmp_path: Path) -> Iterator[Program]:
    """The program on a fresh home of its own, with `tasks.py` beside it. What it started is ended."""
    program = Program(copied(fresh_home, tmp_path))
    yield program
    program.end_started()


@pytest.fixture
def used(used_home: Path, tmp_path: Path) -> Program:
    """The program on a used home of its own."""
    return Program(copied(used_home, tmp_path))


def home_in_postgres(directory: Path) -> Program:
    """A program whose new home has its store in PostgreSQL, with `tasks.py` beside it."""
    from tests.postgres_server import prepared, server

    (directory / "tasks.py").write_text(TASKS)
    program = Program(directory / "home")
    program("init", "--store", server().new_database(template=prepared()), code=0)
    return program
