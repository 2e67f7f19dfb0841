"""`hocket work` that starts while its store is away or full: it says what it waits for, begins when the store is back,
and ends at a signal. An error that does not pass ends it.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cli.conftest import TASKS, Program, until
from tests.cli.test_faults import small_disk as small_disk
from tests.libsql_server import new_server
from tests.postgres_server import Server


@pytest.fixture
def postgres() -> Iterator[Server]:
    made = Server()
    yield made
    made.remove()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "tasks.py").write_text(TASKS)
    made = Program(tmp_path / "home")
    yield made
    made.end_started()


def waits(program: Program, home: Path | None = None) -> "subprocess.Popen[str]":
    """A worker that has said what it waits for."""
    worker = program.start("work", "tasks.py", home=home)
    assert worker.stderr is not None
    said = worker.stderr.readline()
    assert ("cannot connect to" in said or "no space left" in said) and said.endswith("; retrying\n"), said
    assert worker.poll() is None
    return worker


def check_works(program: Program, worker: "subprocess.Popen[str]", job_id: str, home: Path | None = None) -> None:
    shown = lambda: program("show", job_id, "--json", home=home, code=0).json  # noqa: E731
    until(lambda: shown()["outcome"] == "succeeded", "the job to be done")
    worker.terminate()
    program.finished(worker)


@pytest.mark.req("LW-17", "VX-18")
def test_a_worker_waits_for_a_postgresql_server(program: Program, postgres: Server) -> None:
    program("init", "--store", postgres.new_database(), code=0)
    job_id = program.submit("test.echo")
    postgres.stop()
    worker = waits(program)
    postgres.start()
    check_works(program, worker, job_id)


@pytest.mark.req("LW-17")
def test_a_worker_waits_for_a_libsql_server(program: Program) -> None:
    server = new_server()
    program("init", "--store", server.address, code=0)
    job_id = program.submit("test.echo")
    server.kill()
    worker = waits(program)
    server.start()
    check_works(program, worker, job_id)


@pytest.mark.req("LW-17", "VX-07")
def test_a_worker_waits_for_space_on_its_disk(program: Program, small_disk: Path) -> None:
    home = small_disk / "home"
    program("init", home=home, code=0)
    job_id = program("submit", "test.echo", home=home, code=0).job_id
    filler = small_disk / "filler"
    with pytest.raises(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    worker = waits(program, home)
    filler.unlink()
    check_works(program, worker, job_id, home)


@pytest.mark.req("LW-17")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_worker_that_waits_ends_at_a_signal(program: Program, postgres: Server, number: int, code: int) -> None:
    program("init", "--store", postgres.new_database(), code=0)
    postgres.stop()
    worker = waits(program)
    worker.send_signal(number)
    assert "Traceback" not in program.finished(worker, code).err


WRONG: dict[str, Callable[[str, int], str]] = {
    "check PGPASSFILE": lambda name, port: f"postgresql://guarded:wrong@127.0.0.1:{port}/{name}",
    "check the database's name": lambda name, port: f"postgresql://postgres@127.0.0.1:{port}/no_such",
    "check the host's name": lambda name, port: f"postgresql://postgres@no-such-host.invalid:{port}/{name}",
}


@pytest.mark.req("LW-17")
def test_an_error_that_does_not_pass_ends_the_worker(program: Program, postgres: Server) -> None:
    address = postgres.new_database()
    program("init", "--store", address, code=0)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("CREATE ROLE guarded LOGIN SUPERUSER PASSWORD 'right'")
    name = address.partition("@/")[2].partition("?")[0]
    for remedy, wrong in WRONG.items():
        environment = {"HOCKET_STORE": wrong(name, postgres.port)}
        assert remedy in program("work", "tasks.py", environment=environment, code=5).sentence
