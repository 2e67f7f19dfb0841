"""A strict v0.1 mesh from the command line."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from .conftest import TASKS, Program, until

RULES_HASH = "blake3:5f1d8b45ab0b837306daa001387428ddfdc10d289b9decd5b01b3d80f0224e50"


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Program]:
    """The program on a strict home."""
    (tmp_path / "tasks.py").write_text(TASKS)
    program = Program(tmp_path / "home")
    program("init", "--strict", code=0)
    yield program
    for process in program.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.req("LW-46")
def test_a_strict_home_writes_none_of_our_payloads(strict: Program, tmp_path: Path):
    shown = strict("rules", "show", "--json", code=0).json
    assert shown["strict"] and shown["hash"] == RULES_HASH and shown["extensions"] is None
    assert "strict" in strict("rules", "show", code=0).out
    assert "strict" in strict("rules", "set", "--skew", "2m", code=2).sentence
    good = strict("submit", "test.slow", f'{{"began": "{tmp_path / "began"}", "seconds": 0.7}}', "--json", code=0).json
    bad = strict("submit", "test.fail", "--retries", "0", "--json", code=0).json
    worker = strict.start("work", "tasks.py")
    until(lambda: strict("show", good["job_id"], "--json").json["outcome"] == "succeeded")
    until(lambda: any(op["type"] == "YieldWork" for op in strict("show", bad["job_id"], "--json").json["ops"]))
    worker.terminate()
    strict.finished(worker)
    shown = strict("show", bad["job_id"], "--json").json
    assert "it broke" in next(op["detail"] for op in shown["ops"] if op["type"] == "YieldWork")
    assert "strict mesh" in strict("cancel", bad["job_id"], code=2).sentence
    assert "strict mesh" in strict("retry", bad["job_id"], code=2).sentence
    assert "strict mesh" in strict("cron", "add", "n", "* * * * *", "test.echo", code=2).sentence
    strict("log", "verify", code=0)
    assert strict("run", "--", "sh", "-c", "exit 3", code=3).err.count("stays in the queue") == 1
    types = {op["type"] for op in strict("log", "--limit", "1000", "--json").json}
    assert types == {
        *("DelegateUcan", "DesignateCoordinator", "ScheduleJob", "ClaimWork", "CompleteJob", "YieldWork"),
        "CreateArtifact",
    }


@pytest.mark.req("LW-46")
def test_a_home_that_was_begun_keeps_its_rules(strict: Program):
    (strict.home / "complete").unlink()
    assert "has other rules" in strict("init", code=3).sentence
    strict("init", "--strict", code=0)
    assert strict("rules", "show", "--json", code=0).json["strict"]


@pytest.mark.req("LW-18")
def test_a_worker_rests_after_its_handlers_error(strict: Program):
    """Any node may claim the job at once; this worker does not."""
    bad = strict("submit", "test.fail", "--json", code=0).json["job_id"]
    strict.start("work", "tasks.py")
    claims = lambda: [op for op in strict("show", bad, "--json").json["ops"] if op["type"] == "ClaimWork"]  # noqa: E731
    until(lambda: len(claims()) == 3)
    ops = strict("show", bad, "--json").json["ops"]
    times = [
        datetime.fromisoformat(op["hlc"].partition("Z")[0]) for op in ops if op["type"] in ("ClaimWork", "YieldWork")
    ]
    first, second = (claimed - yielded for yielded, claimed in zip(times[1:4:2], times[2:5:2], strict=True))
    assert first >= timedelta(seconds=1) and second >= timedelta(seconds=2)
