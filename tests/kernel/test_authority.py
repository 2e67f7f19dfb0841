"""Authority against a second, naive one: random delegations, caveats, revocations and ops, and every answer the same.
The rules one by one are in test_authority_rules.py."""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.kernel import vocabulary as v
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority, Standing, counting_revocations
from hocket.kernel.clock import Hlc
from tests.kernel import naive_authority as naive
from tests.kernel.naive_authority import ID, NODES, USER, Naive, cid

SEEDS = st.integers(0, 2**32 - 1)
MANY = settings(max_examples=settings().max_examples * 5 // 2, deadline=None)


def judges(r: Random) -> tuple[list[Any], Authority, Naive]:
    graph, revoked, is_bound = naive.graph(r), naive.revoked(r), r.random() < 0.5
    return graph, Authority(USER, graph, revoked, is_bound), Naive(graph, revoked, is_bound)


def name(reason: Reason | None) -> str | None:
    return None if reason is None else reason.name


def faults(r: Random) -> Iterator[object]:
    graph, authority, second = judges(r)
    for delegation in graph:
        fault = name(authority.fault(delegation))
        assert fault == second.fault(delegation)
        yield fault
    for node in NODES:
        assert {d.cid for d in authority.held(node)} == {d.cid for d in second.held(node)}


def writes(r: Random) -> Iterator[object]:
    _, authority, second = judges(r)
    for _ in range(20):
        payload, wall_ms, kind = naive.op(r), naive.moment(r), naive.kind(r)
        for node in NODES:
            refusal = name(authority.refusal(node, payload, wall_ms, kind))
            assert refusal == second.refusal(node, payload, wall_ms, kind)
            yield refusal


def endings(r: Random) -> Iterator[object]:
    """If the kind of the job is not known, several delegations that last may together allow what one that has ended
    allowed; the kernel looks at each alone, and so says more often that the op may rely on an ended one.
    """
    _, authority, second = judges(r)
    for _ in range(20):
        payload, wall_ms, kind, before_ms = naive.op(r), naive.moment(r), naive.kind(r), naive.moment(r)
        if isinstance(payload, v.Sanitised):
            continue
        for node in NODES:
            said = authority.relied_on_ended(node, payload, wall_ms, kind, before_ms)
            relied = second.relied_on_ended(node, payload, wall_ms, kind, before_ms)
            assert said == relied if kind is not None else said >= relied, (node, payload)
            yield said


def reads(r: Random) -> Iterator[object]:
    _, authority, second = judges(r)
    for _ in range(10):
        payload, wall_ms, kind, now_ms = naive.op(r), naive.moment(r), naive.kind(r), naive.moment(r)
        for node in NODES:
            rules = authority.reading(node, payload, wall_ms, kind, now_ms)
            every = second.readings(node, payload, wall_ms, kind, now_ms)
            if rules is None:
                assert every == []
                assert not authority.reads_everything(node, now_ms)
            else:
                assert rules in every
                assert len(rules) == min(map(len, every))
                assert authority.sanitizes(node, rules, now_ms) == (rules != ())
            if authority.reads_everything(node, now_ms):
                assert rules == ()
            yield None if rules is None else len(rules)


def nodes(r: Random) -> Iterator[object]:
    _, authority, second = judges(r)
    at_ms, kind = naive.moment(r), naive.kind(r)
    for node in NODES:
        good = second.good(node, at_ms)
        owner = any(map(second.owner, good))
        assert authority.is_owner(node, at_ms) == owner
        found = {second.fault(d) for d in second.held(node)}
        standing = authority.standing(node, at_ms)
        if good:
            assert standing is Standing.ACTIVE
        elif None in found:
            assert standing is Standing.SUSPENDED
        else:
            assert standing is (Standing.REVOKED if "REVOKED" in found else Standing.UNKNOWN)
        held = [c for d in good for c in d.capabilities if naive.understood(c)]
        whole = [c for c in held if c.resource == "Ops" and c.action in ("*", "Read")]
        narrowing = ("source_types", "predicates", "kind_prefix", "time_range")
        unlimited = any(not c.caveats.get("sanitize") and not c.caveats.keys() & set(narrowing) for c in whole)
        assert authority.reads_everything(node, at_ms) == unlimited
        promised = [c for c in held if c.caveats.get("audit_inference") is True and owes(c, at_ms, kind)]
        audited = authority.audited(node, at_ms, kind)
        assert audited == (owner or bool(promised))
        for number in range(13):
            assert authority.may_revoke(node, cid(number), at_ms) == second.may_revoke(node, cid(number), at_ms)
        yield standing
        yield "audited" if audited and not owner else "not"


def owes(c: Any, at_ms: int, kind: str | None) -> bool:
    low, high = c.caveats.get("time_range", (0, 10**9))
    if not low <= at_ms < high:
        return False
    job = [action for action in ("Claim", "Complete") if naive.covers(c, "Job", action)]
    outputs = ("Claim", "Artifact", "Episode", "Action")
    if c.resource in outputs:
        return any(naive.covers(c, resource, "Write") for resource in outputs)
    return bool(job) and (kind is None or naive.admits(c, v.ClaimWork(ID, 1, 1), at_ms, kind, job[0]))


def chains(r: Random) -> Iterator[object]:
    _, authority, second = judges(r)
    at_ms, kind = naive.moment(r), naive.kind(r)
    for node in NODES:
        resource, action = r.choice(["Ops", "Job", "Job", "Claim", "Artifact"]), r.choice(naive.ACTIONS)
        chain = authority.may(node, resource, action, kind, at_ms)
        held = [c for d in second.good(node, at_ms) for c in d.capabilities if naive.understood(c)]
        assert (chain is not None) == any(general(c, resource, action, at_ms, kind) for c in held)
        yield chain and len(chain)
        if chain is None:
            continue
        assert chain[0].issuer == USER
        assert chain[-1].node == node
        for parent, child in pairwise(chain):
            assert parent.cid in child.proofs
            assert parent.audience == child.issuer
        for link in chain:
            assert second.fault(link) is None
            assert any(general(c, resource, action, at_ms, kind) for c in link.capabilities if naive.understood(c))


def general(c: Any, resource: str, action: str, at_ms: int, kind: str | None) -> bool:
    """Whether a capability grants an action, so far as can be said without an op."""
    low, high = c.caveats.get("time_range", (0, 10**9))
    by_kind = resource == "Job" or (resource, action) == ("Artifact", "Read")
    limited = by_kind and "kind_prefix" in c.caveats
    if limited and (kind is None or not any(kind.startswith(prefix) for prefix in c.caveats["kind_prefix"])):
        return False
    return naive.covers(c, resource, action) and low <= at_ms < high


def revocations(r: Random) -> Iterator[object]:
    graph = naive.graph(r)
    made = [
        (Hlc(naive.moment(r), r.randint(0, 1), author), author, cid(r.randint(0, 12)))
        for author in r.choices(NODES, k=r.randint(0, 8))
    ]
    is_bound = r.random() < 0.5
    counted = {cid for _, _, cid in counting_revocations(USER, graph, made, is_bound)}
    assert counted == naive.counting(graph, made, is_bound)
    assert {cid for _, _, cid in counting_revocations(USER, graph, reversed(made), is_bound)} == counted
    yield len(counted)


QUESTIONS = [
    pytest.param(faults, marks=pytest.mark.req("LW-24", "LW-25", "LW-27")),
    pytest.param(writes, marks=pytest.mark.req("LW-24", "LW-25", "LW-26", "LW-27")),
    pytest.param(endings, marks=pytest.mark.req("LW-26")),
    pytest.param(reads, marks=pytest.mark.req("LW-25", "LW-26", "LW-29")),
    pytest.param(nodes, marks=pytest.mark.req("LW-24", "LW-25", "LW-26", "LW-27")),
    pytest.param(chains, marks=pytest.mark.req("LW-24", "LW-26")),
    pytest.param(revocations, marks=pytest.mark.req("LW-27")),
]


@pytest.mark.parametrize("question", QUESTIONS)
@MANY
@given(seed=SEEDS)
def test_both_say_the_same(question: Callable[[Random], Iterator[object]], seed: int) -> None:
    for _ in question(Random(seed)):
        pass


@pytest.mark.parametrize(
    ("question", "often"),
    [
        (faults, {None, "UNRESOLVED", "FOREIGN_USER", "UNAUTHORISED", "WIDENED", "REVOKED"}),
        (writes, {None, "UNRESOLVED", "UNAUTHORISED", "REVOKED", "OWNER_ONLY"}),
        (endings, {True, False}),
        (reads, {None, 0, 1, 2}),
        (nodes, {*Standing, "audited"}),
        (chains, {None, 1, 2, 3}),
        (revocations, {0, 1, 2, 3}),
    ],
)
@pytest.mark.req("LW-24")
def test_the_random_graphs_reach_every_answer(question: Callable[[Random], Iterator[object]], often: set[Any]) -> None:
    seen = Counter(answer for seed in range(250) for answer in question(Random(seed)))
    assert {answer for answer, times in seen.items() if times >= 3} >= often, seen
