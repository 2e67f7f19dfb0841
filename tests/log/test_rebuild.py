"""Everything that is derived can be dropped, spoilt or left behind, and comes out the same from the ops."""

import pytest

from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import Policy
from hocket.log import Log
from hocket.log import rebuild as rebuilding
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild, roster_digest
from hocket.store import Stage
from tests.log.roster.test_rules import Story
from tests.log.roster.world import INTRODUCTIONS, NOW, new_log, sent
from tests.log.test_audit import fill, sql
from tests.stores import raw

pytestmark = pytest.mark.touches("LW-33")

TABLES = ("jobs", "after", "arguments", "cites", "nodes", "routes", "schedules", "artifacts")


def derived(log: Log) -> dict[str, list[tuple[object, ...]]]:
    """Every derived table, whole, and every op's verdict. Which process holds a job is on no log and is left out."""
    raw(log.store, "UPDATE jobs SET worker = NULL")
    tables = {name: raw(log.store, f"SELECT * FROM {name} ORDER BY 1, 2") for name in TABLES}
    tables["reasons"] = raw(log.store, "SELECT seq, reason FROM ops ORDER BY seq")
    return tables


@pytest.fixture
def log() -> Log:
    """A log with refused, waiting and colliding ops on it, and one submit that is not folded yet."""
    log = fill(new_log())
    story = Story(first=200)
    story.schedule(100)
    story.claim(0, 101)
    story.claim(1, 102)
    story.say(0, 103, story.ops[1].payload, (b"nobody has this!",))
    story.claim(2, 104)
    story.claim(2, 104)
    log.admit(sent(story.ops))
    log.append_plain("k", b"{}")
    return log


@pytest.mark.req("LW-33")
def test_every_derived_table_comes_out_the_same(log: Log) -> None:
    log.settle()
    before = derived(log)
    reasons = {reason for _, reason in before["reasons"]}
    assert reasons >= {0, Reason.WAITING, Reason.ALREADY_CLAIMED, Reason.INTEGRITY}
    assert rebuild(log.store, log.permissions_reader, NOW).unchanged
    assert derived(log) == before
    assert verify(log.store, user=log.user).findings == []


@pytest.mark.req("LW-33")
@pytest.mark.parametrize("step", [1, 2, 5])
def test_whatever_the_size_of_its_steps(log: Log, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    log.settle()
    before = derived(log)
    monkeypatch.setattr(rebuilding, "STEP", step)
    rebuild(log.store, log.permissions_reader, NOW)
    assert derived(log) == before


@pytest.mark.req("LW-33")
@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE ops SET reason = 12 WHERE reason = 0 AND settled = 1",
        "UPDATE ops SET reason = 0",
        "DELETE FROM jobs",
        "UPDATE jobs SET fence = fence + 1, stage = 0",
        "DELETE FROM cites",
        "DELETE FROM nodes",
        "DELETE FROM routes",
        "DELETE FROM artifacts",
    ],
)
def test_what_was_spoilt_is_mended(log: Log, spoil: str) -> None:
    log.settle()
    before = derived(log)
    sql(log, spoil)
    assert derived(log) != before
    rebuild(log.store, log.permissions_reader, NOW)
    assert derived(log) == before


@pytest.mark.req("LW-33")
def test_submits_that_were_not_folded_yet_are_not_lost(log: Log) -> None:
    with log.store.read() as session:
        assert session.head().unsettled == 1
    other = new_log()
    with log.store.read() as session:
        other.admit(sent(INTRODUCTIONS))
        count = sum(1 for _ in session.each_job())
    after = rebuild(log.store, log.permissions_reader, NOW).after
    with log.store.read() as session:
        assert session.head().unsettled == 0
        assert sum(1 for _ in session.each_job()) == count + 1
        assert roster_digest(session) == after
    log.settle()
    assert rebuild(log.store, log.permissions_reader, NOW).unchanged


@pytest.mark.req("LW-32")
@pytest.mark.parametrize("step", [1, 3, 7, 10, 11])
def test_submits_are_folded_in_steps_until_none_is_left(step: int) -> None:
    log = new_log()
    made = [log.append_plain("k", b"{}") for _ in range(10)]
    log.run(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(priority=1))]))
    made += [log.append_plain("k", b"{}") for _ in range(3)]
    steps = 0
    while log.run(lambda tx: tx.settle(step)):
        steps += 1
        assert steps <= 20
    assert steps == -(-13 // step)
    with log.store.read() as session:
        assert session.head().unsettled == 0
        assert {entry.job.id for entry, _ in session.ready("k", 100)} >= set(made)
        assert session.counts() == {(Stage.READY, None): 14}
    assert rebuild(log.store, log.permissions_reader, NOW).unchanged


def test_a_submit_that_is_not_folded_yet_can_be_asked_for_by_whoever_decides() -> None:
    """A claim, a cancel, a job that comes after it: each folds what it must."""
    log = new_log()
    job = log.append_plain("k", b"{}")
    log.run(lambda tx: jobs.cancel(tx, job, ""))
    other = log.append_plain("k", b"{}")
    taken = log.run(lambda tx: claiming.claim(tx, 1, 5, lambda kind: 1_000)).taken
    assert [claim.job.id for claim in taken] == [other]
    assert verify(log.store, user=log.user).ops == 4
