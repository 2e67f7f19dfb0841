"""The ops of locks in any order: nodes that have heard everything agree, and an offer makes nothing be folded again."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.locks.facts import LOCK, AcquireLocks, BreakLock, LockMode, ReleaseLocks, RenewLocks
from hocket.families.locks.rules import LOCKS, TENURE_BITS, Scope
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, make_ulid
from hocket.kernel.ops import Op
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import AcceptOffer, DelegateUcan, DesignateCoordinator, Subject
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.projection import Projection
from hocket.log.rebuild import rebuild
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, USER, Script, new_log, sent
from tests.log.test_families import Node

A, B, C = 0, 1, 2


def acquire(agent: str, wait: int = 0, ttl: int = 1_000) -> AcquireLocks:
    return AcquireLocks("", ("k",), agent, LockMode.EXCLUSIVE, ttl, wait)


def scope(log: Log) -> Scope | None:
    with log.store.read() as session:
        state = session.subject_state(Subject(LOCK, b""))
    return None if state is None else LOCKS.decode(state)


def accept(script: Script, wall: int, offer: Any, node: int = A) -> Any:
    return script.say(node, wall, AcceptOffer(LOCK, b"", offer.id))


@pytest.mark.req("VX-04")
def test_the_arbiter_decides_whatever_comes_first() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    first, second = script.say(B, 10, acquire("one")), script.say(C, 11, acquire("two", wait=500))
    accept(script, 20, second)
    late = accept(script, 21, first)
    log = everywhere_the_same(script.ops)
    state = scope(log)
    assert state is not None and [hold.agent for hold in state.holds] == ["two"]
    assert reason(log, late) == Reason.LOCK_HELD
    assert [reason(log, op) for op in (first, second)] == [Reason.OFFERED, Reason.OFFERED]


@pytest.mark.req("VX-04")
def test_a_late_designation_puts_fences_above_those_that_are_void() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    script.say(A, 10, acquire("one", ttl=5))
    script.say(B, 20, DesignateCoordinator(NODES[B]))
    script.say(A, 30, acquire("void"))
    script.say(B, 31, acquire("two"))
    state = scope(everywhere_the_same(script.ops))
    assert state is not None
    assert [(hold.agent, hold.fence) for hold in state.holds] == [("two", (1 << TENURE_BITS) + 1)]


def test_an_offer_whose_author_became_the_arbiter_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offer left no trace in the state; the designation that comes late finds it all the same."""
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    offer = script.say(B, 30, acquire("two"))
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *script.ops]))
    assert scope(log) is None and reason(log, offer) == Reason.OFFERED
    late = Script(first=100)
    late.say(A, 20, DesignateCoordinator(NODES[B]))
    log.admit(sent(late.ops))
    state = scope(log)
    assert state is not None and [hold.agent for hold in state.holds] == ["two"]
    everywhere_the_same([*script.ops, *late.ops])


def test_an_early_and_a_late_offer_make_nothing_be_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    script.say(A, 20, acquire("one", ttl=10_000))
    log = new_log()
    log.admit(sent([*INTRODUCTIONS, *script.ops]))
    before = scope(log)
    folded: list[object] = []
    monkeypatch.setattr(Projection, "refold", lambda self, subject, permissions: folded.append(subject))
    late = Script(first=100)
    offers = [late.say(B, wall, acquire("two", wait=60_000)) for wall in (10, 19, 40)]
    accepted = late.say(A, 30, AcceptOffer(LOCK, b"", offers[0].id))
    log.admit(sent(late.ops[::-1]))
    assert not folded and before is not None
    assert [reason(log, op) for op in offers] == [Reason.OFFERED] * 3 and reason(log, accepted) == 0
    state = scope(log)
    assert state is not None and [wait.op for wait in state.waits] == [accepted.id]


acts = st.tuples(st.integers(0, 2), st.sampled_from(("acquire", "wait", "renew", "release", "pull")), st.integers(0, 2))


@given(st.booleans(), st.lists(acts, max_size=16))
def test_nodes_that_have_heard_everything_agree(has_arbiter: bool, history: list[tuple[int, str, int]]) -> None:
    nodes = [Node(number) for number in range(3)]
    for node in nodes[1:]:
        node.pull(nodes[0])
    if has_arbiter:
        nodes[0].log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    for who, act, other in history:
        node = nodes[who]
        if act == "pull":
            node.pull(nodes[other])
            continue
        state = scope(node.log)
        fence = 0 if state is None else state.fence
        payload: Any = {
            "acquire": acquire(f"agent {other}"),
            "wait": acquire(f"agent {other}", wait=500),
            "renew": RenewLocks("", f"agent {other}", fence, 1_000),
            "release": ReleaseLocks("", f"agent {other}", fence),
        }[act]
        node.log.run(lambda tx, payload=payload: tx.author(payload))
    for _ in range(3):
        for node in nodes:
            for other_node in nodes:
                node.pull(other_node)
    states = []
    for node in nodes:
        states.append(scope(node.log))
        assert not verify(node.log.store, user=node.log.user, is_bound=False).findings
        rebuild(node.log.store, node.log.permissions_reader, NOW)
        states.append(scope(node.log))
    assert all(state == states[0] for state in states)


@pytest.mark.req("LW-49")
def test_what_a_break_ends_does_not_depend_on_when_its_grants_arrive() -> None:
    """A node that may break `mine/` ends the hold below it and not the wider one; with a later grant for everything,
    whenever that arrives, it ends both.
    """

    def granted(prefix: list[str], wall: int) -> Any:
        caveats = {"key_prefix": prefix}
        capabilities = (Capability("Lock", "Break", caveats), Capability("Lock", "Acquire", caveats))
        token = issue(USER, KEYS[C].public, capabilities, 0, None)
        op_id = make_ulid(wall, content_hash(token)[:10])
        return Op(op_id, Hlc(wall, 0, guest), guest, (), DelegateUcan(content_hash(token), token))

    guest = NODES[C]
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    wide = script.say(A, 10, AcquireLocks("", ("**",), "wide", LockMode.SHARED, 10_000, 0))
    inner = script.say(A, 11, AcquireLocks("", ("mine/a",), "inner", LockMode.SHARED, 10_000, 0))
    narrow, wider = granted(["mine/"], 2), granted([""], 3)
    offer = script.say(C, 20, BreakLock("", "mine/a", "stuck"))
    accepted = accept(script, 30, offer)
    before = (*INTRODUCTIONS[:C], narrow, *script.ops[:3])
    log = everywhere_the_same([offer, accepted], before)
    state = scope(log)
    assert state is not None and [hold.op for hold in state.holds] == [wide.id] and inner.id != wide.id
    log = everywhere_the_same([wider, offer, accepted], before)
    state = scope(log)
    assert state is not None and state.holds == ()
