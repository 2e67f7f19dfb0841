"""The supervisor of the next command is there before its order, and is never left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.extensions.command.execute import CommandRunner
from tests.extensions.command.bench import Bench, never, now_ms, ready, wait_for

pytestmark = pytest.mark.touches("GT-01")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def pair(bench: Bench) -> list[int]:
    """A supervisor that is ready, and its first process."""
    bench.run("true")
    runner = bench.runner.process
    assert runner is not None
    wait_for(lambda: len(ready(runner)) == 2, "a supervisor and its first process")
    return ready(runner)


def test_the_next_order_goes_to_the_one_that_is_ready(bench: Bench, pair: list[int]) -> None:
    ended = bench.python("import os; print(os.getppid(), os.getpid(), os.getcwd(), os.environ['X'])", env={"X": "y"})
    assert ended.exit_code == 0
    assert bench.heard["stdout"].split() == [b"%d" % each for each in pair] + [os.fsencode(bench.work), b"y"]


@pytest.mark.parametrize("victim", [0, 1], ids=["supervisor", "first process"])
def test_one_that_died_while_it_waited_is_replaced(bench: Bench, pair: list[int], victim: int) -> None:
    os.kill(pair[victim], signal.SIGKILL)
    wait_for(lambda: not is_there(pair[victim]), "it to be gone")
    runner = bench.runner.process
    ended = bench.shell("echo once >> journal; exit 3")
    assert (ended.why, ended.exit_code) == ("exited", 3)
    assert (bench.work / "journal").read_text() == "once\n"
    assert bench.runner.process == runner


def test_what_waits_is_gone_when_the_keeper_is_closed_or_killed(bench: Bench, pair: list[int]) -> None:
    runner = bench.runner.process
    assert runner is not None
    os.kill(runner, signal.SIGKILL)
    wait_for(lambda: not any(map(is_there, pair)), "both to be gone")
    assert bench.run("true").exit_code == 0
    runner = bench.runner.process
    assert runner is not None
    wait_for(lambda: len(ready(runner)) == 2, "a new pair")
    pair = ready(runner)
    bench.runner.close()
    wait_for(lambda: not any(map(is_there, pair)), "both to be gone")


def test_nothing_is_prepared_before_the_first_command_and_after_the_end(bench: Bench) -> None:
    runner = CommandRunner()
    runner.prepare()
    assert runner.process is None
    assert runner.run(bench.order("true"), bench.hear, never, now_ms).exit_code == 0
    runner.close()
    runner.prepare()
    assert runner.process is None


WORKER = """
import sys
from pathlib import Path
from tests.extensions.command.bench import bench_in
with bench_in(Path(sys.argv[1])) as bench:
    bench.run("true")
    print(bench.runner.process, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", [subprocess.Popen.kill, lambda worker: worker.stdin.close()], ids=["killed", "ended"])
def test_what_waits_is_gone_when_the_worker_is(tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        runner = int(worker.stdout.readline())
        wait_for(lambda: len(ready(runner)) == 2, "a supervisor and its first process")
        pair = ready(runner)
        end(worker)
        worker.wait()
    wait_for(lambda: not any(map(is_there, [*pair, runner])), "all to be gone")


def is_there(number: int) -> bool:
    """A process that has ended but that nobody has waited for is not there any more, and has closed everything."""
    try:
        return Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
