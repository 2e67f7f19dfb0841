"""The sign of life of each process, and schedules that cannot be read."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hocket
import hocket.testing
from hocket.events.troubles import Troubles
from hocket.families.jobs import cron
from hocket.families.jobs.rules import tick_id
from hocket.families.liveness import ProcessLock, is_alive
from hocket.kernel.vocabulary import SetSchedule
from hocket.work.maintenance import Sweep
from tests.work.mesh import PATIENCE_S

pytestmark = pytest.mark.touches("LW-18")


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(hocket.__file__).parents[1])}


def test_a_process_is_alive_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, hocket.families.liveness as p\n"
        "lock = p.ProcessLock(pathlib.Path(sys.argv[1]), 'a'); print(flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    process.stdout.readline()
    assert is_alive(tmp_path, "a")
    assert is_alive(tmp_path, "a"), "looking does not end it"
    process.kill()
    process.wait()
    assert not is_alive(tmp_path, "a")
    assert list(tmp_path.iterdir()) == []
    assert not is_alive(tmp_path, "never was")


def test_a_forked_child_is_no_sign_of_life(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path, "a")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    os.close(read)
    assert is_alive(tmp_path, "a")
    os.close(lock._fd)
    lock._fd = -1
    try:
        deadline = time.monotonic() + PATIENCE_S
        while is_alive(tmp_path, "a"):
            assert time.monotonic() < deadline, "the child keeps the lock"
            time.sleep(0.005)
    finally:
        os.close(write)
        os.waitpid(child, 0)


@pytest.mark.req("LW-41")
@pytest.mark.parametrize(
    "bad",
    [
        SetSchedule("bad", "no cron", "UTC", "w.tick", b"{}", b""),
        SetSchedule("bad", "* * * * *", "Nowhere/Land", "w.tick", b"{}", b""),
        SetSchedule("bad", "* * * * *", "UTC", "", b"{}", b""),
        SetSchedule("bad", "* * * * *", "UTC", "w.tick", b"{}", b"no policy"),
        SetSchedule("bad", "0 0 30 2 *", "UTC", "w.tick", b"{}", b""),
    ],
    ids=["cron", "zone", "kind", "policy", "never"],
)
def test_a_schedule_that_cannot_be_read_does_not_hold_up_the_others(bad: SetSchedule) -> None:
    with hocket.testing.node() as node:
        good = cron.check(cron.NewSchedule("good", "* * * * *", "UTC", hocket.kind("w.tick").draft({})))
        node.runtime.log.run(lambda tx: tx.author(bad))
        node.runtime.log.run(lambda tx: cron.add(tx, good))
        node.clock.advance(120)
        assert node.runtime.log.run(cron.make_due) == 1
        assert node.runtime.log.run(cron.make_due) == 0


@pytest.mark.req("LW-41")
@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (1_743_301_800, 1_743_301_800),
        (1_743_301_800.999, 1_743_301_800),
        (1_743_301_799.999, 1_743_215_400),
    ],
)
def test_the_last_tick_is_the_newest_that_is_not_in_the_future(at: float, expected: int) -> None:
    with hocket.testing.node(at=1_700_000_000) as node:
        plan = cron.check(cron.NewSchedule("x", "30 2 * * *", "UTC", hocket.kind("w.tick").draft({})))
        node.runtime.log.run(lambda tx: cron.add(tx, plan))
        with node.runtime.read() as session:
            (schedule,) = session.schedules()
        assert cron.last_tick(schedule, int(at * 1000)) == expected * 1000
        following = cron.next_tick(schedule, expected * 1000)
        assert following == (expected + 86_400) * 1000


@pytest.mark.req("LW-41", "LW-42")
def test_a_tick_has_one_id_whenever_it_is_made() -> None:
    ids = set()
    for late in (0, 30, 50):
        with hocket.testing.node(1, at=1_743_301_700) as node:
            plan = cron.check(cron.NewSchedule("x", "30 2 * * *", "UTC", hocket.kind("w.tick").draft({})))
            node.runtime.log.run(lambda tx, plan=plan: cron.add(tx, plan))
            node.clock.now = 1_743_301_800 + late
            assert node.runtime.log.run(cron.make_due) == 1
            with node.runtime.read() as session:
                (entry,) = session.each_job()
                (schedule,) = session.schedules()
            assert entry.job.id == tick_id(schedule.op, 1_743_301_800_000)
            ids.add(entry.job.id)
    assert len(ids) == 1


@pytest.mark.req("LW-41")
def test_a_tick_near_a_clock_change_is_made_once_each_day() -> None:
    """Half past two does not exist on one night in Vienna, and on another it comes twice."""
    for start in (1_743_100_000, 1_761_250_000):
        with hocket.testing.node(at=start) as node:
            job_draft = hocket.kind("w.tick").draft({})
            plan = cron.check(cron.NewSchedule("x", "30 2 * * *", "Europe/Vienna", job_draft, "queue"))
            node.runtime.log.run(lambda tx, plan=plan: cron.add(tx, plan))
            made = 0
            sweep = Sweep(Troubles(pytest.fail, lambda: 0.0), pytest.fail)
            for _ in range(5 * 24 * 4):
                node.clock.advance(900)
                with node.runtime.read() as session:
                    is_due = sweep.is_due(session, round(node.clock.now * 1000))
                assert node.runtime.log.run(cron.make_due) == is_due
                made += is_due
            assert made == 5


@pytest.mark.req("LW-41")
def test_a_schedule_that_is_removed_or_set_anew_ticks_accordingly() -> None:
    with hocket.testing.node() as node:
        log = node.runtime.log
        plan = cron.check(cron.NewSchedule("x", "* * * * *", "UTC", hocket.kind("w.tick").draft({"n": 1})))
        log.run(lambda tx: cron.add(tx, plan))
        node.clock.advance(61)
        assert log.run(cron.make_due) == 1
        log.run(lambda tx: cron.add(tx, plan))
        assert log.run(cron.make_due) == 0, "set anew in the same minute"
        log.run(lambda tx: cron.remove(tx, "x"))
        node.clock.advance(600)
        assert log.run(cron.make_due) == 0
        with pytest.raises(hocket.Usage, match="no schedule 'x'"):
            log.run(lambda tx: cron.remove(tx, "x"))
        assert node.runtime.rebuild().unchanged
        assert log.run(cron.make_due) == 0
