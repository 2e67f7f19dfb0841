"""Following jobs from another machine: a worker that opens no port, its coordinator, and a third machine that reaches
only the coordinator. All with real processes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.machines import Machine, Process, machines, until

TALKING = """
import logging, os, time
from pathlib import Path
import hocket

ROOT = Path(os.environ["HOCKET_TEST_ROOT"])
log = logging.getLogger("talking")

@hocket.job("talk.long", lease="5s")
def long(ctx, steps):
    for step in range(steps):
        print("step", step)
        log.info("noted %d", step)
        while not (ROOT / f"go-{step}").exists():
            time.sleep(0.005)
    print("done")

@hocket.job("talk.much")
def much(ctx, lines, gate):
    for number in range(lines):
        print(f"{number:099d}")
    while not (ROOT / gate).exists():
        time.sleep(0.005)

@hocket.job("talk.never")
def never(ctx):
    pass
"""


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[tuple[Machine, Machine, Machine, Machine]]:
    """The owner serves; the worker and two readers reach only it. The last reader may read only other kinds."""
    with machines(tmp_path, "owner", "worker", "reader", "stranger") as made:
        owner, worker, reader, stranger = made
        owner("init")
        address = owner.serve()
        (tmp_path / "talking.py").write_text(TALKING)
        for machine, grants in (
            (worker, ("--worker", "talk.", "--worker", "hocket.run")),
            (reader, ("--may", "job:schedule")),
            (stranger, ("--may", "job:read", "--may", "artifact:read:other.")),
        ):
            token = owner("invite", machine.name, *grants, "--address", address, "--json").json["token"]
            machine("join", token)
        worker.work("-v", "--allow-any", module=str(tmp_path / "talking.py"))
        yield owner, worker, reader, stranger


def shows(process: Process, text: str) -> None:
    until(lambda: text in process.out.read_text(), f"{text!r}, it has {process.out.read_text()!r}")


def known(machine: Machine, job_id: str) -> None:
    machine("sync")
    assert machine.state(job_id) is not None


def test_a_handler_is_followed_from_two_other_machines(
    mesh: tuple[Machine, Machine, Machine, Machine], tmp_path: Path
) -> None:
    owner, worker, reader, _ = mesh
    job_id = reader.submit("talk.long", '{"steps": 3}')
    reader("sync")
    until(lambda: owner.state(job_id) == "claimed", "the claim")
    followers = [machine.start("logs", job_id, "--follow") for machine in (owner, reader, worker)]
    for step in range(3):
        for follower in followers:
            shows(follower, f"INFO talking: noted {step}\n")
            assert f"step {step + 1}" not in follower.out.read_text()
        (tmp_path / f"go-{step}").touch()
    texts = [follower.ended().out for follower in followers]
    assert texts[0] == texts[1] == texts[2] and texts[0].startswith("step 0\n") and texts[0].endswith("done\n")
    assert [follower.popen.returncode for follower in followers] == [0, 0, 0]
    # Afterwards too, from a machine that has never asked.
    assert reader("logs", job_id).out == texts[0]


def test_a_command_is_followed_from_another_machine(
    mesh: tuple[Machine, Machine, Machine, Machine], tmp_path: Path
) -> None:
    owner, worker, reader, _ = mesh
    worker_id = worker.node
    owner("route", "hocket.run", worker_id)
    script = f"echo first; echo other >&2; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo last"
    job_id = owner("run", "--detach", "--", "sh", "-c", script).job_id
    until(lambda: owner.state(job_id) == "claimed", "the claim")
    known(reader, job_id)
    followers = [machine.start("logs", job_id, "--follow") for machine in (owner, reader)]
    errors = reader.start("logs", job_id, "--follow", "--stderr")
    for follower in followers:
        shows(follower, "first\n")
    shows(errors, "other\n")
    assert reader("logs", job_id).out == "first\n"
    (tmp_path / "go").touch()
    assert [follower.ended().out for follower in followers] == ["first\nlast\n"] * 2
    assert errors.ended().out == "other\n"


def test_who_may_not_read_the_results_gets_no_output(
    mesh: tuple[Machine, Machine, Machine, Machine], tmp_path: Path
) -> None:
    owner, _, _, stranger = mesh
    job_id = owner.submit("talk.long", '{"steps": 1}')
    until(lambda: owner.state(job_id) == "claimed", "the claim")
    shows(owner.start("logs", job_id, "--follow"), "step 0\n")
    known(stranger, job_id)
    refused = stranger("logs", job_id, code=5)
    assert refused.out == "" and "does not answer" in refused.sentence
    (tmp_path / "go-0").touch()


def test_much_output_comes_with_its_beginning_and_its_end(
    mesh: tuple[Machine, Machine, Machine, Machine], tmp_path: Path
) -> None:
    """3 MB of output, of which 1 MiB is kept: nobody holds more, and the reader is told what is missing."""
    owner, worker, reader, _ = mesh
    job_id = owner.submit("talk.much", '{"lines": 30000, "gate": "open"}')
    ended = worker.home / "output" / job_id[-2:] / f"{job_id}.1.handler"
    until(lambda: ended.exists() and f"{29_999:099d}".encode() in ended.read_bytes(), "the last line")
    known(reader, job_id)
    follower = reader.start("logs", job_id, "--follow")
    shows(follower, f"{29_999:099d}\n")
    (tmp_path / "open").touch()
    text = follower.ended().out
    assert text.startswith(f"{0:099d}\n") and "bytes left out]" in text and text.endswith(f"{29_999:099d}\n")
    assert len(text) < 1_200_000
    sizes = [path.stat().st_size for machine in mesh for path in machine.home.glob("output/*/*")]
    assert sizes and max(sizes) < 1_200_000


def test_a_handler_that_says_nothing_ends_the_reading(mesh: tuple[Machine, Machine, Machine, Machine]) -> None:
    owner, _, reader, _ = mesh
    job_id = owner.submit("talk.never")
    until(lambda: owner.is_done(job_id), "its end")
    known(reader, job_id)
    assert reader("logs", job_id).out == "" and owner("logs", job_id, "--follow").out == ""


def test_a_worker_that_is_gone_is_said(mesh: tuple[Machine, Machine, Machine, Machine], tmp_path: Path) -> None:
    owner, worker, _, _ = mesh
    job_id = owner.submit("talk.never")
    until(lambda: owner.is_done(job_id), "its end")
    worker.stop()
    assert "on another node, which does not answer" in owner("logs", job_id, code=5).sentence
