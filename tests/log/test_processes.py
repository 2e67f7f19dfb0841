"""Several processes of one node, some of them killed: what one was told is durable is there, the log can be proved, and
its times rise without a gap in the order.
"""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from hocket.errors import StoreError
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.clock import unpack
from hocket.kernel.policy import Policy
from hocket.log.rebuild import roster_digest
from hocket.node.runtime import Runtime
from tests.log.processes import go, rest, start


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Runtime.init(tmp_path / "home").close()
    return tmp_path / "home"


def proved(home: Path) -> set[str]:
    """The jobs on the log, after everything about it has been checked."""
    with Runtime.open(home) as runtime:
        audit = runtime.verify()
        assert audit.findings == []
        with runtime.read() as session:
            rows = session.ops_after(0, 1_000_000)
            numbers = {row.seq for row in (*rows, *session.entries_after(0, 1_000_000))}
            assert numbers == set(range(1, session.head().seq + 1))
            times = [unpack(row.hlc) for row in rows]
            assert all(earlier < later for earlier, later in pairwise(times))
            assert len({row.id for row in rows}) == len(rows)
            assert session.head()[:2] >= times[-1][:2]
            return {entry.job.id.hex() for entry in session.each_job()}


@pytest.mark.req("LW-22", "VX-01", "VX-07", "VX-08")
def test_processes_that_append_at_the_same_time(home: Path) -> None:
    children = [start("append", home, 40) for _ in range(4)]
    for child in children:
        go(child)
    told = [word for child in children for word in rest(child)]
    assert len(told) == len(set(told)) == 4 * (14 * 1 + 13 * 3 + 13 * 2)
    assert proved(home) == set(told)


@pytest.mark.req("LW-22", "VX-07", "VX-08")
def test_a_process_killed_at_any_moment_loses_nothing_that_it_was_told_is_durable(home: Path) -> None:
    chance = random.Random(7)
    told: set[str] = set()
    for _ in range(10):
        child = start("forever", home)
        assert child.stdout is not None
        go(child)
        for _ in range(chance.randrange(1, 25)):
            told.update(child.stdout.readline().split())
        child.kill()
        # What it said before it died and we had not read yet counts too; a last half line does not.
        left = child.stdout.read()
        told.update(word for line in left.splitlines(keepends=True) if line.endswith("\n") for word in line.split())
        child.wait()
        assert told <= proved(home)
    assert len(told) > 50


@pytest.mark.req("LW-22", "VX-07")
def test_processes_that_are_killed_while_others_append(home: Path) -> None:
    steady = start("append", home, 60)
    go(steady)
    told: set[str] = set()
    chance = random.Random(11)
    for _ in range(4):
        child = start("forever", home)
        assert child.stdout is not None
        go(child)
        for _ in range(chance.randrange(1, 10)):
            told.update(child.stdout.readline().split())
        child.kill()
        child.wait()
    told.update(rest(steady))
    assert told <= proved(home)


@pytest.mark.req("LW-33")
@pytest.mark.parametrize("kill_after", [1, 3])
def test_a_rebuild_killed_half_way_goes_on_where_it_was(home: Path, kill_after: int) -> None:
    with Runtime.open(home) as runtime:
        made = runtime.submit([Draft("k", b"{}", Policy(priority=number)) for number in range(30)])
        for _ in range(10):
            claim = runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken[0]
            held = jobs.Held(claim.job.id, claim.job.claim_op or b"")
            runtime.log.run(lambda tx, held=held: jobs.complete(tx, held, b"7", 1))
        runtime.submit([Draft("plain", b"{}", Policy())])
        with runtime.read() as session:
            digest, total = roster_digest(session), session.head().seq
            reasons = [row.reason for row in session.ops_after(0, 1_000)]
    child = start("rebuild", home, 7)
    assert child.stdout is not None
    for _ in range(kill_after):
        done, _ = map(int, child.stdout.readline().split())
    child.kill()
    child.stdout.read()
    child.wait()
    assert done < total

    with Runtime.open(home) as runtime:
        with runtime.store.read() as session:
            assert session.head().rebuilding is not None
        with pytest.raises(StoreError, match="rebuil"):
            runtime.submit([Draft("k", b"{}", Policy(priority=1))])
        with pytest.raises(StoreError, match="rebuil"):
            runtime.submit([Draft("plain", b"{}", Policy())])
        with pytest.raises(StoreError, match="rebuil"):
            runtime.log.run(lambda tx: jobs.cancel(tx, made[0].job_id, ""))
        steps: list[int] = []
        rebuilt = runtime.rebuild(lambda done, total: steps.append(done))
        assert (rebuilt.before, rebuilt.after) == (None, digest)
        # The steps that were done are not done again.
        assert steps[-1] <= total - done
        with runtime.read() as session:
            assert session.head().rebuilding is None
            assert [row.reason for row in session.ops_after(0, 1_000)] == reasons
            assert session.head().seq == total
        assert runtime.rebuild().unchanged
        runtime.log.run(lambda tx: jobs.cancel(tx, made[0].job_id, ""))
    proved(home)


@pytest.mark.req("LW-33")
def test_two_rebuilds_at_once_do_not_hurt(home: Path) -> None:
    with Runtime.open(home) as runtime:
        runtime.submit([Draft("k", b"{}", Policy(priority=number)) for number in range(40)])
        with runtime.read() as session:
            digest = roster_digest(session)
    children = [start("rebuild", home, 3) for _ in range(2)]
    for child in children:
        rest(child)
    with Runtime.open(home) as runtime, runtime.read() as session:
        assert roster_digest(session) == digest
        assert session.head().rebuilding is None
