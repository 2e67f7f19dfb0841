"""Nodes that share a store do not exclude each other: their transactions run at the same time, each with locks on what
it decides on. Most of these tests run one node's transaction inside another node's, which would otherwise wait for
ever.
"""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import Claims, claim
from hocket.families.jobs.requests import Claim, Draft, Held
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.policy import DEFAULT, Policy, Rate
from hocket.kernel.vocabulary import ClaimWork, RouteKind, ScheduleJob, Subject
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.store import LockMisuse, MustBeAlone, Stage
from tests.node.sharers import Sharers
from tests.stores import raw
from tests.work.mesh import wait_for

T = TypeVar("T")
KIND = "acme.render"
WAITS_FOR_A_LOCK = "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Sharers]:
    made = Sharers(tmp_path)
    yield made
    made.close()


def beside(runtime: Runtime, request: Callable[[Transaction], T]) -> T:
    return runtime.log.run(request, beside=True)


def submit(runtime: Runtime, count: int = 1, policy: Policy = DEFAULT) -> list[bytes]:
    return [made.job_id for made in runtime.submit([Draft(KIND, b"{}", policy)] * count)]


def claims(tx: Transaction, limit: int = 1) -> Claims:
    return claim(tx, 1, limit, lambda kind: 60_000)


def taken(tx: Transaction, limit: int = 1) -> list[Claim]:
    return claims(tx, limit).taken


def complete(tx: Transaction, held: Claim) -> Job:
    assert held.job.claim_op is not None
    done = jobs.complete(tx, Held(held.job.id, held.job.claim_op), b"1", 1)
    assert isinstance(done, Job)
    return done


def check(nodes: Sharers) -> None:
    """The log is whole, has no gap, and says the same as the tables."""
    for each in nodes.all:
        assert each.verify().findings == []
    with nodes.founder.store.read() as session:
        head, rows = session.head(), session.ops_after(0, 100_000)
        numbers = {row.seq for row in (*rows, *session.entries_after(0, 100_000))}
    assert numbers == set(range(1, head.seq + 1))
    assert (head.wall, head.logical) >= max((op.timestamp.wall, op.timestamp.logical) for op in map(read, rows))
    assert nodes.third.rebuild().unchanged


def read(row: object) -> object:
    return decode(row.body)  # type: ignore[attr-defined]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.req("VX-18", "LW-39")
def test_two_nodes_claim_at_the_same_time_and_each_gets_other_jobs(nodes: Sharers) -> None:
    made = submit(nodes.founder, 4)

    def first(tx: Transaction) -> list[Claim]:
        mine = taken(tx, 2)
        theirs.extend(beside(nodes.third, lambda other: taken(other, 2)))
        return mine

    theirs: list[Claim] = []
    mine = beside(nodes.second, first)
    assert [each.job.id for each in (*mine, *theirs)] == made
    assert {each.job.fence for each in (*mine, *theirs)} == {1}
    check(nodes)


@pytest.mark.req("LW-39")
@pytest.mark.touches("LW-07")
def test_an_op_is_later_than_what_another_node_wrote_about_its_job_in_the_meantime(nodes: Sharers) -> None:
    def first(tx: Transaction) -> Job:
        for _ in range(3):
            made.extend(submit(nodes.third))
        return taken(tx, 3)[-1].job

    made: list[bytes] = []
    job = beside(nodes.second, first)
    assert (job.id, job.state, job.fence) == (made[-1], State.CLAIMED, 1)
    with nodes.founder.store.read() as session:
        about = [row.hlc for row in session.ops_about(Subject("job", job.id))]
        (last,) = session.last_ops(1)
    assert about[1:] == [last.hlc], "the claim is the last in both orders"
    check(nodes)


@pytest.mark.req("VX-18")
def test_submits_do_not_wait_for_a_claim_and_are_found_by_it(nodes: Sharers) -> None:
    def first(tx: Transaction) -> list[bytes]:
        plain = nodes.third.log.append_plain(KIND, b"{}")
        assert plain is not None
        (other,) = submit(nodes.third, policy=Policy(priority=1))
        assert tx.session.is_beside
        return [plain, other]

    plain, other = beside(nodes.second, first)
    assert [each.job.id for each in beside(nodes.founder, lambda tx: taken(tx, 5))] == [other, plain]
    check(nodes)


@pytest.mark.req("VX-18")
def test_two_nodes_fold_different_submits(nodes: Sharers) -> None:
    made = [nodes.third.log.append_plain(KIND, b"{}") for _ in range(5)]

    def first(tx: Transaction) -> list[Claim]:
        mine = taken(tx, 2)
        made.append(nodes.third.log.append_plain(KIND, b"{}"))
        found = beside(nodes.third, lambda other: claims(other, 9))
        theirs.extend(found.taken)
        return mine

    theirs: list[Claim] = []
    mine = beside(nodes.second, first)
    assert [each.job.id for each in mine] == made[:2]
    assert [each.job.id for each in theirs] == made[5:], "the first five are being folded by the other node"
    rest = beside(nodes.founder, lambda tx: taken(tx, 9))
    assert [each.job.id for each in rest] == made[2:5]
    with nodes.founder.store.read() as session:
        head = session.head()
    assert head.unsettled == 0 and head.settled == head.seq
    check(nodes)


@pytest.mark.req("VX-18")
def test_a_transaction_that_is_undone_leaves_its_jobs_and_submits_to_others(nodes: Sharers) -> None:
    nodes.third.log.append_plain(KIND, b"{}")
    submit(nodes.founder)

    def first(tx: Transaction) -> None:
        assert len(taken(tx, 2)) == 2
        hidden = beside(nodes.third, lambda other: claims(other, 2))
        assert not hidden.taken and hidden.again_at is not None, "it looks again soon"
        raise KeyError("undone")

    with pytest.raises(KeyError):
        beside(nodes.second, first)
    assert len(beside(nodes.third, lambda tx: taken(tx, 2))) == 2
    check(nodes)


@pytest.mark.req("VX-18")
def test_a_node_that_finds_all_jobs_locked_looks_again_soon(nodes: Sharers) -> None:
    submit(nodes.founder)

    def first(tx: Transaction) -> None:
        assert taken(tx)
        hidden = beside(nodes.third, claims)
        assert not hidden.taken and hidden.again_at is not None

    beside(nodes.second, first)
    assert beside(nodes.third, claims) == Claims([], None)


@pytest.mark.req("VX-18")
@pytest.mark.parametrize("policy", [Policy(concurrency=1), Policy(rate=Rate(1, 60_000))])
def test_a_limit_holds_across_nodes_that_claim_at_the_same_time(nodes: Sharers, policy: Policy) -> None:
    submit(nodes.founder, 3, policy)

    def first(tx: Transaction) -> list[Claim]:
        mine = taken(tx, 1)
        theirs = beside(nodes.third, lambda other: claims(other, 2))
        assert not theirs.taken and theirs.again_at is not None
        return mine

    assert len(beside(nodes.second, first)) == 1
    assert not beside(nodes.third, lambda tx: taken(tx, 2))
    check(nodes)


@pytest.mark.req("VX-18")
def test_both_count_what_they_end(nodes: Sharers) -> None:
    submit(nodes.founder, 4)
    mine, theirs = (beside(each, lambda tx: taken(tx, 2)) for each in (nodes.second, nodes.third))

    def first(tx: Transaction) -> None:
        for each in mine:
            complete(tx, each)
        tx.projection.flush()
        assert tx.session.claimed_count(KIND) == 2, "the counts are with the server"
        beside(nodes.third, lambda other: [complete(other, each) for each in theirs])

    beside(nodes.second, first)
    with nodes.founder.read() as session:
        assert session.counts() == {(Stage.DONE, Outcome.SUCCEEDED): 4}
        assert session.counts_by_kind() == {(Stage.DONE, Outcome.SUCCEEDED, KIND): 4}
    check(nodes)


@pytest.mark.req("VX-18")
@pytest.mark.parametrize(
    "request_to",
    [
        lambda tx, job_id: jobs.submit(tx, [Draft(KIND, b"{}", Policy(unique="one"))]),
        lambda tx, job_id: jobs.submit(tx, [Draft(KIND, b"{}", Policy(after=(ulid_text(job_id),)))]),
        lambda tx, job_id: jobs.cancel(tx, job_id, ""),
        lambda tx, job_id: tx.author(RouteKind(KIND, tx.node)),
    ],
    ids=["unique", "after", "cancel", "route"],
)
def test_what_others_rely_on_without_a_lock_is_changed_alone(nodes: Sharers, request_to: Callable[..., object]) -> None:
    (job_id,) = submit(nodes.founder)
    seen: list[bool] = []

    def watched(tx: Transaction) -> object:
        seen.append(tx.session.is_beside)
        return request_to(tx, job_id)

    beside(nodes.second, watched)
    assert seen == [True, False]
    check(nodes)


@pytest.mark.req("VX-18", "VX-02")
@pytest.mark.parametrize("is_same_author", [False, True])
def test_what_is_alone_or_of_the_same_author_waits(nodes: Sharers, is_same_author: bool) -> None:
    done: list[str] = []

    def second(tx: Transaction) -> None:
        done.append("second")

    def first(tx: Transaction) -> threading.Thread:
        node = Runtime.open(nodes.directory / "second") if is_same_author else nodes.third

        def work() -> None:
            node.log.run(second, beside=is_same_author)
            if is_same_author:
                node.close()

        thread = in_thread(work)
        wait_for(lambda: raw(nodes.founder.store, WAITS_FOR_A_LOCK), "the other transaction")
        done.append("first")
        return thread

    beside(nodes.second, first).join(30)
    assert done == ["first", "second"]


@pytest.mark.req("VX-18")
def test_two_that_wait_for_each_other_both_end(nodes: Sharers) -> None:
    """PostgreSQL undoes one of them, and that one runs again alone."""
    one, two = submit(nodes.founder, 2)
    both = threading.Barrier(2)
    seen: list[bool] = []

    def work(runtime: Runtime, order: tuple[bytes, bytes]) -> None:
        def request(tx: Transaction) -> None:
            seen.append(tx.session.is_beside)
            assert tx.projection.jobs.entry(order[0]) is not None
            if len(seen) <= 2:
                both.wait(30)
            assert tx.projection.jobs.entry(order[1]) is not None
            tx.author(ClaimWork(order[1], tx.node, 1_000))

        beside(runtime, request)

    threads = [
        in_thread(lambda each=each: work(*each)) for each in ((nodes.second, (one, two)), (nodes.third, (two, one)))
    ]
    for thread in threads:
        thread.join(60)
    assert sorted(seen) == [False, True, True]
    with nodes.founder.read() as session:
        assert session.claimed_count(KIND) == 2
    check(nodes)


@pytest.mark.req("VX-18")
def test_the_end_of_the_log_is_changed_under_its_lock(nodes: Sharers) -> None:
    author = nodes.second.log.node.to_bytes(8, "big")
    with pytest.raises(LockMisuse), nodes.second.store.write(author) as session:
        session.put_head(session.head())
    with pytest.raises(LockMisuse), nodes.second.store.write(author) as session:
        session.add_ops([], [])
    with pytest.raises(MustBeAlone), nodes.second.store.write(author) as session:
        session.lock_permissions(exclusive=True)
    with nodes.second.store.write(author) as session:
        before = session.head()
        submit(nodes.third)
        assert session.head() == before
        assert session.lock_end().seq == before.seq + 1


@pytest.mark.req("VX-18", "LW-39")
@pytest.mark.touches("LW-37")
def test_nodes_that_do_everything_at_once_agree_on_one_log(nodes: Sharers) -> None:
    chance = random.Random("beside")
    failed: list[BaseException] = []
    seeds = [chance.random() for _ in nodes.all]

    def work(runtime: Runtime, seed: float) -> None:
        own = random.Random(seed)
        held: list[Claim] = []

        def step(tx: Transaction) -> None:
            for each in held:
                outcome = own.random()
                hold = Held(each.job.id, each.job.claim_op or b"")
                if outcome < 0.6:
                    complete(tx, each)
                elif outcome < 0.8:
                    jobs.fail(tx, hold, "no", "", retry=True)
                else:
                    jobs.hand_back(tx, hold, "no")
            found.extend(taken(tx, own.randint(1, 4)))

        try:
            for _ in range(40):
                found: list[Claim] = []
                kind = own.random()
                if kind < 0.2:
                    runtime.log.append_plain(KIND, b"{}")
                elif kind < 0.4:
                    submit(runtime, own.randint(1, 3), Policy(priority=own.randint(0, 2), concurrency=6))
                elif kind < 0.5:
                    submit(runtime, 1, Policy(unique=f"u{own.randint(0, 3)}"))
                before = own.getstate()

                def request(tx: Transaction) -> None:
                    own.setstate(before)  # noqa: B023
                    found.clear()  # noqa: B023
                    step(tx)

                beside(runtime, request)
                held = found
            for each in held:
                beside(runtime, lambda tx: complete(tx, each))  # noqa: B023
        except BaseException as error:
            failed.append(error)

    threads = [in_thread(lambda each=each: work(*each)) for each in zip(nodes.all, seeds, strict=True)]
    for thread in threads:
        thread.join(120)
    assert not failed
    with nodes.founder.read() as session:
        ops = [decode(row.body) for row in session.ops_after(0, 100_000) if row.reason == 0]
        jobs_made = {op.payload.job_id for op in ops if isinstance(op.payload, ScheduleJob)}
        found = session.jobs_by_id(sorted(jobs_made))
    assert {each.job.id for each in found} == jobs_made
    claims_made = {job_id: 0 for job_id in jobs_made}
    for op in ops:
        if isinstance(op.payload, ClaimWork):
            claims_made[op.payload.job_id] += 1
    assert all(each.job.fence == claims_made[each.job.id] for each in found), "each claim has a fence of its own"
    assert any(each.job.outcome is Outcome.SUCCEEDED for each in found)
    check(nodes)
