"""Jobs that wait for one that did not succeed, where the node that ended it did not know them, and their submitter did
not know of the end.
"""

import pytest

from hocket.events.troubles import Troubles
from hocket.families.jobs.rescue import OTHERS_MS
from hocket.families.jobs.rules import Outcome
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.vocabulary import CancelJob, ScheduleJob
from hocket.log import Log
from hocket.work import maintenance as sweeping
from hocket.work.maintenance import BLOCKED_EVERY_MS, Sweep
from tests.log.roster.world import INTRODUCTIONS, READER, START, Clock, Script, introduction, job_id, new_log, sent

ELSEWHERE = 1


def new_sweep() -> Sweep:
    return Sweep(Troubles(lambda event: None, lambda: 0.0), lambda event: None)


def swept(log: Log, clock: Clock, sweep: Sweep) -> bool:
    """One round as the loop makes it; whether it was due."""
    clock.now += BLOCKED_EVERY_MS
    with log.store.read() as session:
        due = sweep.is_due(session, clock.now)
    if due:
        log.run(lambda tx: sweep(tx, set()))
    return due


def outcome(log: Log, number: int) -> Outcome | None:
    log.settle()
    with log.store.read() as session:
        found = session.job(job_id(number))
    assert found is not None
    return found.job.outcome


def heard(clock: Clock, count: int, *, is_open: bool = False, is_cancelled: bool = True) -> Log:
    """A log with a job, perhaps cancelled, and jobs of another node that come after it and arrived later."""
    log, script = new_log(wall=clock), Script()
    first = script.say(ELSEWHERE, 1, ScheduleJob(job_id(0), "acme.render", b"{}", encode_policy(Policy())))
    log.admit(sent([*INTRODUCTIONS, introduction(READER), first]))
    if is_cancelled:
        assert log.run(lambda tx: tx.author(CancelJob(job_id(0), "a client's wish")))
    policy = encode_policy(Policy(after=(ulid_text(job_id(0)),), open=is_open))
    for number in range(1, count + 1):
        later = script.say(
            ELSEWHERE, clock.now - START + number, ScheduleJob(job_id(number), "acme.render", b"{}", policy), [first.id]
        )
        log.admit(sent([later]))
    return log


@pytest.mark.req("LW-40")
def test_the_sweep_cancels_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BLOCKED_AT_ONCE", 2)
    clock = Clock()
    log, sweep = heard(clock, 5), new_sweep()
    assert {outcome(log, number) for number in range(1, 6)} == {None}
    assert swept(log, clock, sweep)
    assert {outcome(log, number) for number in range(1, 6)} == {Outcome.CANCELLED}
    assert not swept(log, clock, sweep)


def test_every_blocked_job_is_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "BLOCKED_AT_ONCE", 2)
    clock = Clock()
    log, sweep = heard(clock, 5, is_cancelled=False), new_sweep()
    assert not any(swept(log, clock, sweep) for _ in range(7))
    script = Script(100)
    dead = script.say(ELSEWHERE, 20, ScheduleJob(job_id(20), "acme.zoom", b"{}", encode_policy(Policy())))
    log.admit(sent([dead]))
    log.run(lambda tx: tx.author(CancelJob(job_id(20), "a client's wish")))
    policy = encode_policy(Policy(after=(ulid_text(job_id(20)),)))
    log.admit(sent([script.say(ELSEWHERE, 21, ScheduleJob(job_id(21), "acme.zoom", b"{}", policy), [dead.id])]))
    assert sum(swept(log, clock, sweep) for _ in range(4)) == 1
    assert outcome(log, 21) is Outcome.CANCELLED and outcome(log, 1) is None


def test_other_nodes_wait_for_the_submitter_of_an_open_job() -> None:
    clock = Clock()
    log, sweep = heard(clock, 1, is_open=True), new_sweep()
    assert swept(log, clock, sweep) and outcome(log, 1) is None
    clock.now += OTHERS_MS
    assert swept(log, clock, sweep) and outcome(log, 1) is Outcome.CANCELLED
