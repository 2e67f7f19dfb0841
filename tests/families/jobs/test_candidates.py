"""Who is ranked for a job: expiry, epochs, and what workers gain by saying something else every second."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.jobs.candidates import (
    ASKED_MAX,
    EPOCH_MS,
    EXPIRY_MS,
    EXPIRY_MS_MAX,
    OFFERS_KEPT,
    WORKERS_PER_NODE_MAX,
    KnownWorkers,
    Unheard,
    WorkerHeard,
    epoch_at,
    node_of,
    worker_id,
)
from hocket.families.jobs.rendezvous import may_try_at, rank_weighted, score, should_claim, turn_of
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text

BEGIN_MS = 1_700_000_000_000 // EPOCH_MS * EPOCH_MS
LATER_MS = BEGIN_MS + 10 * EPOCH_MS
KIND = "acme.render"
SEED = bytes(range(32))


def heard(at_ms: int, name: str = "worker-1", node: int = 1, **rest: Any) -> WorkerHeard:
    return WorkerHeard(node, name, Hlc(at_ms, 0, node), at_ms, **{"kinds": (KIND,), **rest})


def names(known: KnownWorkers, announced_ms: int, now_ms: int | None = None, kind: str = KIND, **rest: Any) -> set[str]:
    found = known.candidates(kind, announced_ms, announced_ms if now_ms is None else now_ms, **rest)
    return {worker.partition("/")[2] for worker in found.weights}


def test_a_workers_id_is_its_nodes_and_its_own():
    worker = worker_id(0xAB, "worker-17-0a0b0c0d")
    assert worker == f"{node_text(0xAB)}/worker-17-0a0b0c0d" and node_of(worker) == 0xAB
    known = KnownWorkers(BEGIN_MS)
    for node, name in ((1, "worker-1"), (1, "worker-2"), (2, "worker-1")):
        known.hear(heard(BEGIN_MS, name, node))
    weights = known.candidates(KIND, BEGIN_MS, BEGIN_MS).weights
    assert weights == {worker_id(1, "worker-1"): 1, worker_id(1, "worker-2"): 1, worker_id(2, "worker-1"): 1}


@pytest.mark.req("GR-06")
@pytest.mark.parametrize(
    ("kinds", "is_one"),
    [((KIND,), True), (("acme.",), True), (("acme",), False), (("acme.film", "b."), False), ((), False)],
)
def test_the_candidates_serve_the_kind(kinds: tuple[str, ...], is_one: bool):
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(BEGIN_MS, kinds=kinds))
    assert bool(names(known, BEGIN_MS)) is is_one


@pytest.mark.req("GR-06")
def test_the_candidates_have_the_labels_that_the_job_needs():
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(BEGIN_MS, "plain"))
    known.hear(heard(BEGIN_MS, "gpu", labels=("gpu=a100",)))
    assert names(known, BEGIN_MS) == {"plain", "gpu"}
    assert names(known, BEGIN_MS, needs=("gpu",)) == {"gpu"} and names(known, BEGIN_MS, needs=("gpu=h100",)) == set()


@pytest.mark.req("GR-06")
def test_a_silent_worker_is_no_candidate_after_its_expiry():
    start = BEGIN_MS + 3_000
    known = KnownWorkers(start)
    known.hear(heard(start, "usual"))
    known.hear(heard(start, "short", expiry_ms=12_000))
    known.hear(heard(start, "for ever", expiry_ms=10**15))
    known.hear(heard(start, "never", expiry_ms=-1))
    told = {at: names(known, start, start + at) for at in (0, 11_999, 12_000, 29_999, 30_000, 59_999, 60_000)}
    assert told[0] == told[11_999] == {"usual", "short", "for ever"}
    assert told[12_000] == told[29_999] == {"usual", "for ever"}
    assert told[EXPIRY_MS] == told[EXPIRY_MS_MAX - 1] == {"for ever"} and told[EXPIRY_MS_MAX] == set()


@pytest.mark.req("GR-06")
def test_a_word_that_is_heard_again_is_no_sign_of_life():
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(BEGIN_MS))
    assert known.hear(heard(BEGIN_MS)._replace(heard_ms=BEGIN_MS + 20_000)) is Unheard.OLD
    assert names(known, BEGIN_MS, BEGIN_MS + EXPIRY_MS) == set()


@pytest.mark.req("GR-06")
def test_a_worker_that_leaves_is_no_candidate_from_then_on_and_an_old_word_does_not_bring_it_back():
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(LATER_MS))
    assert names(known, LATER_MS + EPOCH_MS) == {"worker-1"}
    assert known.hear(heard(LATER_MS + 12_000, expiry_ms=0)) is None
    assert names(known, LATER_MS + EPOCH_MS, LATER_MS + 12_000) == set()
    late = heard(LATER_MS + 11_000)._replace(heard_ms=LATER_MS + 13_000)
    assert known.hear(late) is Unheard.OLD
    assert names(known, LATER_MS + EPOCH_MS, LATER_MS + 13_000) == set()
    assert known.hear(heard(LATER_MS + 14_000)) is None, "it may come back"
    assert names(known, LATER_MS + 14_000) == set() and names(known, LATER_MS + 2 * EPOCH_MS) == {"worker-1"}


@pytest.mark.req("GR-06")
def test_a_worker_that_joins_counts_from_the_next_epoch():
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(LATER_MS + 3_000))
    ends = LATER_MS + EPOCH_MS
    assert names(known, LATER_MS + 4_000) == names(known, LATER_MS + 4_000, ends + 5_000) == set()
    assert names(known, ends) == {"worker-1"}


@pytest.mark.req("GR-06")
def test_a_node_that_has_just_started_counts_those_that_it_hears_first_at_once():
    known = KnownWorkers(LATER_MS - 1)
    known.hear(heard(LATER_MS + EPOCH_MS - 2, "first"))
    known.hear(heard(LATER_MS + EPOCH_MS - 1, "second"))
    assert names(known, LATER_MS - 1, LATER_MS + EPOCH_MS) == {"first"}
    assert names(known, LATER_MS + EPOCH_MS) == {"first", "second"}


@pytest.mark.req("GR-06")
def test_a_kind_that_is_no_longer_served_is_left_at_once():
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(BEGIN_MS))
    known.hear(heard(LATER_MS - 20_000, kinds=(KIND, "acme.film")))
    known.hear(heard(LATER_MS, kinds=("acme.film",)))
    assert names(known, LATER_MS) == set() and names(known, LATER_MS, kind="acme.film") == {"worker-1"}


@pytest.mark.req("GR-06")
@given(st.permutations([(1, "a", 1.0), (1, "b", 2.0), (2, "a", 1.0), (3, "c", 4.0)]))
def test_nodes_with_the_same_candidates_agree_on_the_digest(order: list[tuple[int, str, float]]):
    def digest(facts: list[tuple[int, str, float]], at_ms: int) -> str:
        known = KnownWorkers(at_ms)
        for node, name, weight in facts:
            known.hear(heard(at_ms, name, node, weight=weight))
        return known.candidates(KIND, at_ms, at_ms).digest

    told = digest(order, BEGIN_MS)
    assert told == digest(sorted(order), BEGIN_MS) == digest(order, BEGIN_MS + 3_600_000), "whatever their clocks say"
    assert told not in (digest(order[1:], BEGIN_MS), digest([*order, (9, "z", 1.0)], BEGIN_MS))
    assert told != digest([(node, name, weight * 2) for node, name, weight in order], BEGIN_MS)


@pytest.mark.req("GR-06")
def test_the_epoch_is_that_of_the_announcement():
    known = KnownWorkers(BEGIN_MS)
    assert known.candidates(KIND, LATER_MS + 9_999, LATER_MS + 50_000).epoch == epoch_at(LATER_MS)
    assert known.candidates(KIND, LATER_MS + 10_000, LATER_MS + 50_000).epoch == epoch_at(LATER_MS) + 1


@pytest.mark.req("GR-09")
def test_a_weight_counts_from_the_next_epoch_only():
    known = KnownWorkers(BEGIN_MS)
    for second in range(40):
        known.hear(heard(LATER_MS + second * 1_000, weight=1.0 + second))
    weights = {
        second: set(known.candidates(KIND, LATER_MS + second * 1_000, LATER_MS + 40_000).weights.values())
        for second in range(41)
    }
    assert all(weights[second] == set() for second in range(10))
    assert all(weights[second] == {10.0} for second in range(10, 20)), "the last one of the epoch before"
    assert all(weights[second] == {20.0} for second in range(20, 30))
    assert all(weights[second] == {30.0} for second in range(30, 40)) and weights[40] == {40.0}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-4, 1e4])
def test_a_bad_weight_is_not_heard(weight: float):
    known = KnownWorkers(BEGIN_MS)
    assert known.hear(heard(BEGIN_MS, weight=weight)) is Unheard.BAD_WEIGHT and names(known, BEGIN_MS) == set()


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "x" * 129])
def test_a_bad_name_is_not_heard(name: str):
    known = KnownWorkers(BEGIN_MS)
    assert known.hear(heard(BEGIN_MS, name)) is Unheard.BAD_NAME and names(known, BEGIN_MS) == set()


def test_what_is_remembered_is_bounded():
    known = KnownWorkers(BEGIN_MS)
    known.hear(heard(BEGIN_MS, "honest", node=2))
    for number in range(1_000):
        known.hear(heard(BEGIN_MS + number, f"flood-{number}"))
        if number % 30 == 0:
            known.hear(heard(BEGIN_MS + number, "steady"))
        assert "steady" in known._nodes[1]
    last = {f"flood-{number}" for number in range(1_001 - WORKERS_PER_NODE_MAX, 1_000)}
    assert names(known, BEGIN_MS, BEGIN_MS + 1_000) == {"honest", "steady", *last}, "those that were heard last"
    for epoch in range(1, 50):
        known.hear(heard(BEGIN_MS + epoch * EPOCH_MS, "honest", node=2, weight=float(epoch)))
    assert {node: len(workers) for node, workers in known._nodes.items()} == {2: 1}, "the flood is forgotten"
    assert len(known._nodes[2]["honest"].offers) == OFFERS_KEPT
    for number in range(ASKED_MAX + 10):
        known.candidates(f"kind-{number}", LATER_MS, LATER_MS)
    assert len(known._asked) <= ASKED_MAX


steps = st.lists(
    st.tuples(
        st.integers(0, 12_000),
        st.sampled_from([(1, "a"), (1, "b"), (2, "a")]),
        st.sampled_from([("acme.",), (KIND,), ("b.film",)]),
        st.sampled_from([1.0, 2.0]),
        st.sampled_from([0, 7_000, 30_000, 10**9]),
        st.integers(0, 15_000),
    ),
    max_size=12,
)


def by_the_book(facts: list[WorkerHeard], started_ms: int, announced_ms: int, now_ms: int) -> dict[str, float]:
    """The candidates by the words of the module, from the whole history."""
    found: dict[str, float] = {}
    for node, name in {(fact.node, fact.name) for fact in facts}:
        own: list[WorkerHeard] = []
        for fact in facts:
            if (fact.node, fact.name) == (node, name) and (not own or fact.said > own[-1].said):
                own.append(fact)
        while own and any(_ends(one) <= two.heard_ms for one, two in itertools.pairwise(own)):
            own = own[1:]  # it was away in between
        last = own[-1]
        counting = [
            fact
            for place, fact in enumerate(own)
            if epoch_at(fact.heard_ms) < epoch_at(announced_ms)
            or (place == 0 and fact.heard_ms < started_ms + EPOCH_MS)
        ]
        if counting and now_ms < _ends(last):
            now, then = last.kinds, counting[-1].kinds
            if all(any(KIND.startswith(kind) for kind in kinds) for kinds in (now, then)):
                found[worker_id(node, name)] = counting[-1].weight
    return found


def _ends(fact: WorkerHeard) -> int:
    return fact.heard_ms + min(fact.expiry_ms, EXPIRY_MS_MAX)


@pytest.mark.req("GR-06")
@given(steps, st.integers(0, 9_999), st.data())
def test_the_candidates_are_those_of_the_whole_history(steps: list[Any], offset: int, data: st.DataObject):
    started = now = BEGIN_MS + offset
    known, facts = KnownWorkers(started), []
    for wait, (node, name), kinds, weight, expiry, transit in steps:
        now += wait
        fact = WorkerHeard(node, name, Hlc(now - transit, 0, node), now, kinds, (), weight, expiry)
        facts.append(fact)
        known.hear(fact)
        announced = data.draw(st.integers(max(started, now - 15_000), now))
        for later in (0, data.draw(st.integers(0, 9_000))):
            now += later
            assert known.candidates(KIND, announced, now).weights == by_the_book(facts, started, announced, now)


def published(known: set[str], job: str, seed: bytes) -> str:
    """The winner by the published resolver, which forgets nobody."""
    return min(known, key=lambda worker: score(job, seed, worker))


@pytest.mark.req("GR-06", "GR-07")
def test_ghosts_keep_no_job_for_longer_than_their_expiry():
    """A worker is killed and started again 100 times, once a second, under a new name each time; two others stay. A job
    is announced every second. The published resolver gives nearly all of them to names of the dead, for ever.
    """
    known, ever = KnownWorkers(BEGIN_MS), set[str]()
    waiting, waited, restarts, left_by_published = dict[int, str](), dict[int, int](), 100, 0
    for second in range(300):
        now = LATER_MS + second * 1_000
        facts = [heard(now, "stays", 1), heard(now, "stays", 2), heard(now, f"worker-{min(second, restarts)}", 3)]
        alive = {worker_id(fact.node, fact.name) for fact in facts}
        assert [known.hear(fact) for fact in facts] == [None] * 3
        ever |= alive
        waiting[now] = f"job-{second}"
        left_by_published += published(ever, waiting[now], SEED) not in alive
        for announced, job in list(waiting.items()):
            weights = known.candidates(KIND, announced, now).weights
            if any(may_try_at(turn_of(job, SEED, each, weights), announced) <= now for each in alive):
                waited[announced] = now - announced
                del waiting[announced]
    assert len(ever) == 103 and left_by_published > 200
    assert max(waited.values()) <= EXPIRY_MS and min(waiting, default=now) >= now - EXPIRY_MS
    quiet = LATER_MS + restarts * 1_000 + EXPIRY_MS
    assert {wait for announced, wait in waited.items() if announced >= quiet} == {0}


@pytest.mark.req("GR-07")
def test_a_dead_winner_leaves_its_job_for_ever_by_the_published_rule_and_for_a_timeout_each_by_ours():
    workers = {f"w{number}": 1.0 for number in range(10)}
    order = rank_weighted("job", SEED, workers)
    alive = order[3:]
    assert not any(should_claim("job", SEED, worker, workers) for worker in alive), "however often they ask"
    tries = {worker: may_try_at(turn_of("job", SEED, worker, workers), 0) for worker in alive}
    assert min(tries.items(), key=lambda each: each[1]) == (order[3], 15_000)


def play(known: KnownWorkers, says: Any, *, at_once: bool) -> float:
    """The share of the jobs that a worker gets that hears of each job and may then say something about itself. With
    `at_once`, what it says counts at once.
    """
    honest = {worker_id(node, "honest") for node in range(1, 11)}
    won, jobs = 0, 2_000
    for number in range(jobs):
        now = LATER_MS + number * 1_000
        for node in range(1, 11):
            known.hear(heard(now, "honest", node))
        job, seed = f"job-{number}", number.to_bytes(32, "big")
        said = says(now, job, seed)
        for fact in said:
            known.hear(fact)
        weights = dict(known.candidates(KIND, now, now).weights)
        if at_once:
            weights |= {worker_id(fact.node, fact.name): fact.weight for fact in said[:1]}
        won += bool(weights) and rank_weighted(job, seed, weights)[0] not in honest
    return won / jobs


@pytest.mark.req("GR-09")
def test_a_worker_that_raises_its_weight_for_each_job_gains_nothing():
    """It says 1000 when it sees a job and 1 again right after, so that it looks like the others."""

    def says(now: int, job: str, seed: bytes) -> list[WorkerHeard]:
        return [heard(now, "hostile", 66, weight=1_000.0), heard(now + 500, "hostile", 66, weight=1.0)]

    assert play(KnownWorkers(BEGIN_MS), says, at_once=True) > 0.95
    assert abs(play(KnownWorkers(BEGIN_MS), says, at_once=False) - 1 / 11) < 0.03


@pytest.mark.req("GR-04", "GR-06")
def test_a_worker_that_takes_a_winning_name_for_each_job_gains_nothing():
    """It tries names until one wins the job that it sees, and joins under that name."""

    def says(now: int, job: str, seed: bytes) -> list[WorkerHeard]:
        tries = (f"hostile-{now}-{number}" for number in range(100))
        name = min(tries, key=lambda name: score(job, seed, worker_id(66, name)))
        return [heard(now, name, 66, expiry_ms=1_000)]

    assert play(KnownWorkers(BEGIN_MS), says, at_once=True) > 0.85
    assert play(KnownWorkers(BEGIN_MS), says, at_once=False) == 0.0
