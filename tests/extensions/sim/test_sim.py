"""The simulator itself: runs come out the same from the same seed, whatever the process; every fault does what it says;
and no rule is broken.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
from hocket.errors import Unreachable
from hocket.extensions import sim
from hocket.extensions.sim import checks, disk, faults, loop
from hocket.extensions.sim.coordination_load import LockRun, MessageLoad, MessageRun, held_twice
from hocket.extensions.sim.load import OPEN, SOLE, SimRun
from hocket.extensions.sim.network import GIVE_UP_S, Network
from hocket.store import MEMORY
from hocket.store import open as open_store

pytestmark = pytest.mark.touches("LW-40")

SOURCE = str(Path(hocket.__file__).parents[1])


# Whole runs.


def test_a_seed_gives_the_same_run_wherever_the_program_lies(tmp_path: Path) -> None:
    """An op's id follows from its content, so nothing of this machine may come into an op."""
    shutil.copytree(Path(hocket.__file__).parent, tmp_path / "hocket", ignore=shutil.ignore_patterns("__pycache__"))
    code = "from hocket.extensions import sim; print(sim.run(3, nodes=3, minutes=0.1, jobs=4).digest)"
    done = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True)
        for path in (SOURCE, str(tmp_path))
    ]
    assert done[0].stdout == done[1].stdout != b"", done


@pytest.mark.req("LW-38", "LW-39")
@pytest.mark.parametrize(
    ("seed", "minutes", "jobs"),
    [(0, 0.5, 12), *(pytest.param(seed, 1, 20, marks=pytest.mark.soak) for seed in range(12))],
)
def test_no_rule_is_broken_whatever_goes_wrong(seed: int, minutes: float, jobs: int) -> None:
    report = sim.run(seed, nodes=5, minutes=minutes, jobs=jobs)
    assert not report.violations, report
    assert report.settled_s is not None
    assert report.jobs > 5 and report.runs >= report.jobs / 2
    assert report.locks > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_seeds(part: int) -> None:
    for seed in range(part * 50, part * 50 + 50):
        report = sim.run(seed)
        assert not report.violations, report


@pytest.mark.parametrize(("minutes", "jobs"), [(0.2, 4), pytest.param(0.4, 8, marks=pytest.mark.soak)])
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_each_fault_alone(fault: str, minutes: float, jobs: int) -> None:
    report = sim.run(1, nodes=3, minutes=minutes, faults=[fault], jobs=jobs)
    assert not report.violations, report
    assert report.faults == (fault,)


def test_without_faults_every_job_runs_once_for_each_attempt() -> None:
    report = sim.run(3, nodes=3, minutes=0.25, faults=(), jobs=6)
    assert not report.violations, report
    assert report.jobs == 6


def test_one_node_is_a_mesh_too() -> None:
    report = sim.run(3, nodes=1, minutes=0.5, jobs=5)
    assert not report.violations, report


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    code = "from hocket.extensions import sim; print(sim.run(4, nodes=3, minutes=0.15, jobs=4).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": hashing, "PYTHONPATH": SOURCE},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashing in ("1", "2")
    }
    assert digests == {sim.run(4, nodes=3, minutes=0.15, jobs=4).digest + "\n"}
    assert sim.run(5, nodes=3, minutes=0.15, jobs=4).digest + "\n" not in digests


def test_a_violation_is_shown_with_its_seed_and_what_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks.Violation("a rule", None, "it was broken")
    monkeypatch.setattr(checks, "overlaps", lambda runs: iter([found]))
    report = sim.run(9, nodes=2, minutes=0.3, jobs=3)
    assert report.violations == (found,)
    text = str(report)
    assert text.startswith("seed 9:") and "a rule: it was broken" in text and "--seed 9" in text
    assert len(report.events) > 3


@pytest.mark.parametrize("bad", [{"nodes": 0}, {"minutes": 0}, {"faults": ["rain"]}])
def test_what_cannot_be_simulated(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        sim.run(1, **bad)  # type: ignore[arg-type]


# Time.


def test_time_jumps_and_nobody_waits() -> None:
    async def main() -> list[str]:
        order: list[str] = []

        async def late(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(f"{name} {asyncio.get_running_loop().time():.1f}")

        await asyncio.gather(late("a", 3600), late("b", 60), late("c", 60))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await asyncio.Event().wait()
        return order

    assert loop.run(main()) == ["b 60.0", "c 60.0", "a 3600.0"]


def test_when_everybody_waits_for_nothing_it_says_so() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(loop.Stuck):
        loop.run(main())


def test_a_life_ends_with_all_that_it_began() -> None:
    async def main() -> list[str]:
        said: list[str] = []

        async def child() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                said.append("child")

        async def parent() -> None:
            await asyncio.wait([asyncio.create_task(child())])

        life = loop.Life()
        life.start(parent(), "parent")
        await asyncio.sleep(1)
        life.end()
        await life.ended()
        assert asyncio.get_running_loop().time() == 1
        return said

    assert loop.run(main()) == ["child"]


# Disk and network.


def test_a_power_cut_before_the_commit_undoes_it_and_one_after_keeps_it() -> None:
    store = disk.SimStore(open_store(MEMORY), lambda: None)
    for cut, kept in (("before", None), ("after", b"2")):
        store.cut = cut  # type: ignore[assignment]
        with pytest.raises(disk.PowerCut), store.write() as session:
            session.set_meta("key", b"2")
        with store.read() as session:
            assert session.meta("key") == kept
    with store.write() as session:
        session.set_meta("key", b"3")
    with store.read() as session:
        assert session.meta("key") == b"3"


def test_a_network_that_loses_repeats_and_cuts() -> None:
    async def main() -> None:
        import random

        life, served = loop.Life(), []
        network = Network(random.Random(1), lambda node: None if node == 9 else life)

        async def serve() -> str:
            served.append(1)
            return "answer"

        assert await network.call(0, 1, serve) == "answer"
        with pytest.raises(Unreachable, match="is down"):
            await network.call(0, 9, serve)
        network.weather.duplicate = 1.0
        assert await network.call(0, 1, serve) == "answer"
        await asyncio.sleep(1)
        assert len(served) == 3
        network.weather.duplicate = 0.0
        network.weather.loss = 1.0
        before = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match="does not answer"):
            await network.call(0, 1, serve)
        assert asyncio.get_running_loop().time() - before == pytest.approx(GIVE_UP_S)
        network.weather.loss = 0.0
        network.weather.groups = {0: 1, 1: 0}
        with pytest.raises(Unreachable):
            await network.call(0, 1, serve)
        assert len(served) == 3
        network.weather.groups = {0: 1, 1: 1}
        assert await network.call(0, 1, serve) == "answer"

    loop.run(main())


# Checks.


def test_overlaps_are_found_and_neighbours_are_not() -> None:
    job = bytes(16)
    apart = [SimRun(job, SOLE, 1, 0, 0.0, 1.0), SimRun(job, SOLE, 2, 1, 1.0, 2.0)]
    assert list(checks.overlaps(apart)) == []
    both = [SimRun(job, SOLE, 1, 0, 0.0, 1.5), SimRun(job, SOLE, 2, 1, 1.0, 2.0)]
    (found,) = checks.overlaps(both)
    assert found.about == job and "fence 2" in found.sentence
    endless = [SimRun(job, SOLE, 1, 0, 0.0, None), SimRun(job, SOLE, 2, 1, 9.0, 9.5)]
    assert len(list(checks.overlaps(endless))) == 1
    assert list(checks.overlaps([SimRun(job, OPEN, 1, 0, 0.0, 1.5), SimRun(job, OPEN, 1, 1, 1.0, 2.0)])) == []


def test_locks_that_are_held_twice_are_found_and_others_are_not() -> None:
    def run(node: int, key: str, start: float, end: float | None, shared: bool = False) -> LockRun:
        return LockRun(node, "editor", (key,), shared, node, start, start, end)

    apart = [run(1, "file:a", 0, 1), run(2, "file:a", 1, 2), run(3, "file:b", 0, 2)]
    readers = [run(1, "file:a", 0, 2, True), run(2, "file:*", 1, 2, True)]
    assert list(held_twice(apart)) == list(held_twice(readers)) == []
    for other in (run(2, "file:a", 1, 2), run(2, "file:*", 1, 2), run(2, "file:a", 1, 2, True)):
        (found,) = held_twice([run(1, "file:a", 0, 1.5), other])
        assert found.rule == "no two holders of a lock at once" and "fence 2" in found.sentence
    assert len(list(held_twice([run(1, "file:a", 0, None), run(2, "file:a", 9, 10)]))) == 1


def test_messages_that_two_consumers_have_or_a_stale_one_ends_are_found() -> None:
    def broken(*runs: MessageRun) -> set[str]:
        load = MessageLoad((), (), lambda *_: None)
        load.runs += runs
        return {violation.rule for violation in load.at_the_end()}

    message, other = bytes(16), bytes(15) + b"1"
    assert not broken(MessageRun(message, 0, 0, 1, 1, 1.2), MessageRun(message, 1, 1.1, 2), MessageRun(other, 1, 0, 2))
    assert broken(MessageRun(message, 0, 0, 2), MessageRun(message, 1, 1, 2)) == {
        "no two consumers of a message at once"
    }
    late = MessageRun(message, 0, 0, 1, asked=1.5, told=1.6)
    assert broken(late, MessageRun(message, 1, 1.2, 2)) == {"only the lease holder ends a delivery"}


def test_what_is_under_way_when_a_program_on_virtual_time_ends_is_cancelled() -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.sleep(1_000_000)
        finally:
            ended.append("endless")

    async def main() -> None:
        tasks.append(asyncio.create_task(endless()))
        await asyncio.sleep(1)

    tasks: list[asyncio.Task[None]] = []
    loop.run(main())
    assert ended == ["endless"] and tasks[0].cancelled()
