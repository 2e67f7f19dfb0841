"""What jobs can be asked for, decided on the log: retries, keys, order, limits, results. No process and no waiting: a
node in memory whose clock the test moves.
"""

from itertools import pairwise

import pytest

import hocket
import hocket.testing
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Held
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.retrying import backoff_ms
from hocket.kernel.vocabulary import ClaimWork
from hocket.testing import MemorySyncNode

pytestmark = pytest.mark.touches("LW-41")

LEASE_MS = 60_000


def claim(node: MemorySyncNode, limit: int = 100) -> list[jobs.Claim]:
    return node.runtime.log.run(lambda tx: claiming.claim(tx, 1, limit, lambda kind: LEASE_MS)).taken


def again_at(node: MemorySyncNode) -> int | None:
    """When it is worth asking again, where nothing can be claimed now."""
    claims = node.runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: LEASE_MS))
    assert claims.taken == []
    return claims.again_at


def held(taken: jobs.Claim) -> Held:
    assert taken.job.claim_op is not None
    return Held(taken.job.id, taken.job.claim_op)


def complete(node: MemorySyncNode, taken: jobs.Claim, result: bytes | None = None) -> Job | Reason:
    return node.runtime.log.run(lambda tx: jobs.complete(tx, held(taken), result, 1))


def fail(node: MemorySyncNode, taken: jobs.Claim, retry: bool = True) -> object:
    return node.runtime.log.run(lambda tx: jobs.fail(tx, held(taken), "ValueError: no", "the traceback", retry))


def words(taken: list[jobs.Claim]) -> list[str]:
    return [each.job.kind for each in taken]


# Retries.


@pytest.mark.req("LW-41")
def test_each_failure_rests_longer_and_the_last_one_is_the_end():
    with hocket.testing.node() as node:
        handle = node.submit(hocket.kind("a", retries=3, backoff="10s", backoff_max="30s"))
        rests = []
        for _ in range(3):
            (taken,) = claim(node)
            fail(node, taken)
            assert claim(node) == []
            due = again_at(node)
            assert due is not None
            rests.append(due - round(node.clock.now * 1000))
            node.clock.now = due / 1000 - 0.002
            assert claim(node) == [], "before its time"
            node.clock.now = due / 1000
        policy = hocket.kind("a", backoff="10s", backoff_max="30s").policy
        for number, rest in enumerate(rests, 1):
            rests = policy.backoff_ms, policy.backoff_max_ms
            assert backoff_ms(number, *rests, 0) <= rest <= backoff_ms(number, *rests, 65535)
        (taken,) = claim(node)
        fail(node, taken)
        shown = handle.status()
        assert (shown["state"], shown["outcome"], shown["failures"]) == ("failed", "failed", 4)
        assert shown["error"] == "ValueError: no"
        assert shown["traceback"] == "the traceback"
        assert again_at(node) is None


@pytest.mark.req("LW-41")
def test_a_dead_letter_can_be_tried_anew_by_hand_and_only_that():
    with hocket.testing.node() as node:
        handle = node.submit(hocket.kind("a", retries=0))
        with pytest.raises(hocket.Conflict, match="is pending"):
            handle.retry()
        (taken,) = claim(node)
        with pytest.raises(hocket.Conflict, match="is claimed"):
            handle.retry()
        fail(node, taken)
        with pytest.raises(hocket.JobFailed, match="ValueError: no"):
            handle.result()
        handle.retry()
        assert handle.status()["failures"] == 0
        (taken,) = claim(node)
        assert taken.job.fence == 2
        complete(node, taken, b"1")
        assert handle.result() == 1
        with pytest.raises(hocket.Conflict, match="has succeeded"):
            handle.retry()


@pytest.mark.req("LW-41")
def test_a_failure_that_asks_for_no_retry_is_final_at_once():
    with hocket.testing.node() as node:
        handle = node.submit(hocket.kind("a", retries=9))
        fail(node, claim(node)[0], retry=False)
        assert handle.status()["outcome"] == "failed"


# Unique keys.


@pytest.mark.req("LW-41")
def test_a_unique_key_leads_to_the_job_that_is_active():
    with hocket.testing.node() as node:
        once = hocket.kind("a", unique="k")
        first, second = node.submit(once), node.submit(once)
        assert (first.created, second.created, second.job_id) == (True, False, first.job_id)
        (taken,) = claim(node)
        assert not node.submit(once).created
        complete(node, taken)
        third = node.submit(once)
        assert third.created
        assert third.job_id != first.job_id


@pytest.mark.req("LW-41")
def test_a_unique_key_belongs_to_its_kind_and_may_last_beyond_the_end():
    with hocket.testing.node() as node:
        once = hocket.kind("a", unique="k", unique_for="1h")
        first = node.submit(once)
        assert node.submit(hocket.kind("b", unique="k")).created
        (a, _) = claim(node)
        complete(node, a)
        assert node.submit(once).job_id == first.job_id
        node.clock.advance(3599)
        assert node.submit(once).job_id == first.job_id
        node.clock.advance(2)
        assert node.submit(once).created


@pytest.mark.req("LW-41")
def test_a_unique_key_holds_within_one_batch():
    with hocket.testing.node() as node:
        once = hocket.kind("a", unique="k")
        handles = node.submit_many([(once, {"n": n}) for n in range(3)])
        assert [handle.created for handle in handles] == [True, False, False]
        assert len({handle.job_id for handle in handles}) == 1


# Order.


@pytest.mark.req("LW-41")
def test_the_most_urgent_first_and_the_oldest_among_equals():
    with hocket.testing.node() as node:
        for kind, priority in (("a", 0), ("b", 5), ("c", -5), ("d", 5), ("e", 0)):
            node.submit(hocket.kind(kind, priority=priority))
        assert words(claim(node, 3)) == ["b", "d", "a"]
        assert words(claim(node, 3)) == ["e", "c"]


@pytest.mark.req("LW-41")
def test_nothing_starts_before_its_time():
    with hocket.testing.node() as node:
        due = round(node.clock.now * 1000) + 5_000
        node.submit(hocket.kind("a", not_before=due))
        assert claim(node) == []
        assert again_at(node) == due
        node.clock.now = (due - 2) / 1000
        assert claim(node) == []
        node.clock.now = due / 1000
        assert words(claim(node)) == ["a"]


@pytest.mark.req("LW-41")
def test_a_chain_and_a_fan_in_run_in_order():
    with hocket.testing.node() as node:
        a, b = node.submit("a"), node.submit("b")
        c = node.submit(hocket.kind("c", after=[a, b]))
        node.submit(hocket.kind("d", after=c))
        ta, tb = claim(node)
        complete(node, ta)
        assert claim(node) == []
        complete(node, tb)
        (tc,) = claim(node)
        assert tc.job.kind == "c"
        complete(node, tc)
        assert words(claim(node)) == ["d"]


@pytest.mark.req("LW-41")
@pytest.mark.parametrize("how", ["fails", "cancelled"])
def test_what_comes_after_a_job_that_ended_badly_is_called_off(how: str):
    with hocket.testing.node() as node:
        a, other = node.submit(hocket.kind("a", retries=0)), node.submit("z")
        b = node.submit(hocket.kind("b", after=[a, other]))
        c = node.submit(hocket.kind("c", after=b))
        if how == "fails":
            fail(node, claim(node)[0])
        else:
            a.cancel("no need")
        for handle, before in ((b, a), (c, b)):
            with pytest.raises(hocket.JobCancelled, match=before.job_id):
                handle.result()
        assert other.status()["outcome"] is None
        with pytest.raises(hocket.Conflict, match="nothing can come after it"):
            node.submit(hocket.kind("d", after=a))


@pytest.mark.req("LW-16")
def test_a_job_comes_after_jobs_that_are_there_and_after_nothing_else():
    with hocket.testing.node() as node:
        with pytest.raises(hocket.Usage, match="no job 00000000000000000000000001 to come after"):
            node.submit(hocket.kind("a", after="00000000000000000000000001"))
        assert node.runtime.verify().ops == 2


# Cancelling.


@pytest.mark.req("LW-41")
def test_cancel_of_a_pending_job_is_final_until_it_is_retried():
    with hocket.testing.node() as node:
        handle = node.submit("a")
        handle.cancel("changed my mind")
        assert claim(node) == []
        with pytest.raises(hocket.JobCancelled, match="changed my mind"):
            handle.result()
        with pytest.raises(hocket.Conflict, match="nothing to cancel"):
            handle.cancel()
        handle.retry()
        assert len(claim(node)) == 1


@pytest.mark.req("LW-41")
def test_cancel_of_a_running_job_makes_its_end_too_late():
    with hocket.testing.node() as node:
        handle = node.submit("a")
        (taken,) = claim(node)
        handle.cancel()
        assert complete(node, taken, b"1") is Reason.COMPLETED
        assert handle.status()["result"] is None
        handle.retry()
        assert complete(node, taken) is Reason.STALE_CLAIM


# Limits.


@pytest.mark.req("LW-41")
def test_no_more_of_a_kind_at_once_than_it_allows():
    with hocket.testing.node() as node:
        node.submit_many([(hocket.kind("a", concurrency=2), {})] * 5 + [("b", {})])
        taken = claim(node)
        assert sorted(words(taken)) == ["a", "a", "b"]
        assert claim(node) == []
        complete(node, next(each for each in taken if each.job.kind == "a"))
        assert words(claim(node)) == ["a"]
        assert claim(node) == []


@pytest.mark.req("LW-41")
def test_no_more_of_a_kind_in_a_while_than_its_rate():
    with hocket.testing.node() as node:
        node.submit_many([(hocket.kind("a", rate="4/m"), {})] * 12)
        starts: list[float] = []
        for _ in range(100):
            claims = node.runtime.log.run(lambda tx: claiming.claim(tx, 1, 100, lambda kind: LEASE_MS))
            starts += [node.clock.now] * len(claims.taken)
            if claims.again_at is not None:
                node.clock.now = max(node.clock.now, claims.again_at / 1000)
        assert len(starts) == 12
        assert starts[:4] == [starts[0]] * 4, "a burst of four after a rest"
        for early, late in pairwise(starts[3:]):
            assert 15.0 <= late - early <= 15.1


# Holding.


@pytest.mark.req("LW-04", "LW-05", "LW-08", "LW-37")
def test_a_renewal_moves_the_deadline_keeps_the_fence_and_needs_the_claim_in_force():
    with hocket.testing.node() as node:
        handle = node.submit("a")
        (first,) = claim(node)
        assert first.job.deadline == round(node.clock.now * 1000) + LEASE_MS
        node.clock.advance(40)
        renewed = node.runtime.log.run(lambda tx: jobs.renew(tx, held(first), LEASE_MS))
        assert not isinstance(renewed, Reason)
        assert (renewed.fence, renewed.deadline) == (1, round(node.clock.now * 1000) + LEASE_MS)
        node.runtime.log.run(lambda tx: jobs.hand_back(tx, held(first), "enough"))
        (second,) = claim(node)
        assert second.job.fence == 2
        for late in (
            lambda tx: jobs.renew(tx, held(first), LEASE_MS),
            lambda tx: jobs.complete(tx, held(first), None, 1),
            lambda tx: jobs.complete(tx, held(first), b"1", 1),
            lambda tx: jobs.hand_back(tx, held(first), "again"),
            lambda tx: jobs.fail(tx, held(first), "no", "", True),
            lambda tx: jobs.report(tx, held(first), b"1"),
        ):
            assert node.runtime.log.run(late) is Reason.STALE_CLAIM
        complete(node, second, b"2")
        assert handle.result() == 2
        assert [op["type"] for op in handle.status()["ops"]].count("CompleteJob") == 1


@pytest.mark.req("LW-06", "LW-07", "LW-08")
def test_a_lease_ends_by_the_logs_clock_and_only_then():
    with hocket.testing.node() as node:
        node.submit("a")
        (first,) = claim(node)
        node.clock.advance(60)
        assert node.runtime.log.run(lambda tx: rescue.expire(tx, 10)) == 0
        node.clock.advance(0.002)
        assert node.runtime.log.run(lambda tx: jobs.renew(tx, held(first), LEASE_MS)) is Reason.LEASE_PASSED
        assert node.runtime.log.run(lambda tx: rescue.expire(tx, 10)) == 1
        assert node.runtime.log.run(lambda tx: rescue.expire(tx, 10)) == 0
        (second,) = claim(node)
        assert second.job.fence == 2
        assert complete(node, first) is Reason.STALE_CLAIM


@pytest.mark.req("LW-02", "LW-09")
def test_a_claim_on_a_held_or_a_completed_job_is_refused():
    with hocket.testing.node() as node:
        node.submit("a")
        (taken,) = claim(node)
        again = ClaimWork(taken.job.id, node.runtime.log.node, LEASE_MS)
        other = ClaimWork(taken.job.id, 7, LEASE_MS)
        assert node.runtime.log.run(lambda tx: tx.author(other)) is Reason.NOT_CLAIMER
        complete(node, taken)
        assert node.runtime.log.run(lambda tx: tx.author(again)) is Reason.COMPLETED


@pytest.mark.req("LW-19")
def test_kinds_without_a_handler_are_left_alone():
    with hocket.testing.node() as node:
        node.submit("a")
        node.submit("b")
        known = {"b": LEASE_MS}
        assert words(node.runtime.log.run(lambda tx: claiming.claim(tx, 1, 9, known.get)).taken) == ["b"]
        assert node.runtime.log.run(lambda tx: claiming.claim(tx, 1, 9, known.get)) == ([], None, [])
        assert words(claim(node)) == ["a"]


def test_a_log_with_all_of_this_proves_itself():
    with hocket.testing.node() as node:
        a = node.submit(hocket.kind("a", retries=1, backoff="1s"))
        node.submit(hocket.kind("b", after=a))
        fail(node, claim(node)[0])
        node.clock.advance(60)
        complete(node, claim(node)[0], b'{"deep": [1, 2]}')
        claim(node)
        node.clock.advance(120)
        node.runtime.log.run(lambda tx: rescue.expire(tx, 10))
        assert a.result() == {"deep": [1, 2]}
        assert node.runtime.verify().findings == []
        assert node.runtime.rebuild().unchanged
