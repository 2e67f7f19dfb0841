"""A family of subjects that the engine has never heard of: counters, which are added to and compared and set. Its
payloads, its rules and the record that names them are all that it takes; late ops, refusals, revocations, offers,
sync and rebuild are the engine's. Adding needs nobody's word; setting is the arbiter's to decide.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.jobs import claiming as accepting
from hocket.kernel.arbitration import Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.family import FAMILIES, Family, FamilyPayload, Judged, Variant
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import Op, decode
from hocket.kernel.postcard import BYTES, U64
from hocket.kernel.postcard import struct as fields
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import AcceptOffer, DelegateUcan, DesignateCoordinator, RevokeUcan, Subject
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, USER, Clock, Script, new_log, sent
from tests.registered import registered

COUNTER = "counter"
A, B, C = 0, 1, 2


class AddTo(FamilyPayload, frozen=True):
    counter: bytes
    amount: int


class SetTo(FamilyPayload, frozen=True):
    """Sets the counter if it has the expected value."""

    counter: bytes
    expected: int
    value: int


class Counter(msgspec.Struct, frozen=True):
    value: int
    last: Hlc


class Counters(SubjectRules[Counter]):
    """The rules."""

    decided = frozenset((SetTo,))

    def apply(self, state: Counter | None, op: Op, context: Any) -> Counter | Reason:
        value, payload = 0 if state is None else state.value, op.payload
        if isinstance(payload, AddTo):
            return Counter(value + payload.amount, op.timestamp)
        assert isinstance(payload, SetTo)
        return Counter(payload.value, op.timestamp) if value == payload.expected else Reason.STALE_CLAIM


ACTION = Judged("Action", "Write")
FAMILY = Family(
    COUNTER,
    (
        Variant(2000, fields(AddTo, BYTES, U64), ACTION),
        Variant(2001, fields(SetTo, BYTES, U64, U64), ACTION),
    ),
    lambda payload: payload.counter,
    lambda: Counters(Counter),
)


@pytest.fixture(autouse=True, scope="module")
def counters() -> Iterator[None]:
    """Makes the program one that knows counters."""
    with registered(FAMILY):
        yield


def value(log: Log, name: bytes = b"visits") -> int | None:
    with log.store.read() as session:
        data = session.subject_state(Subject(COUNTER, name))
    return None if data is None else Counters(Counter).decode(data).value


def test_it_is_folded_in_the_order_of_time_whatever_comes_first() -> None:
    script = Script()
    added = script.say(A, 10, AddTo(b"visits", 5))
    changed = script.say(B, 20, SetTo(b"visits", 5, 50))
    late = script.say(C, 30, SetTo(b"visits", 5, 500))
    again = script.say(A, 40, AddTo(b"visits", 1))
    log = everywhere_the_same(script.ops)
    assert value(log) == 51
    assert [reason(log, op) for op in (added, changed, late, again)] == [0, 0, Reason.STALE_CLAIM, 0]


def test_an_op_that_cites_another_counter_follows_its_fate() -> None:
    script = Script()
    first = script.say(A, 10, SetTo(b"source", 1, 2))
    script.say(B, 20, AddTo(b"visits", 7), (first.id,))
    assert value(everywhere_the_same(script.ops)) is None
    script.say(C, 5, AddTo(b"source", 1))
    assert value(everywhere_the_same(script.ops)) == 7


def test_two_ops_of_one_time_are_both_out() -> None:
    script = Script()
    script.say(A, 10, AddTo(b"visits", 1))
    script.say(B, 20, AddTo(b"visits", 10))
    script.say(B, 20, AddTo(b"visits", 100))
    assert value(everywhere_the_same(script.ops)) == 1


def test_a_revocation_takes_back_what_was_counted() -> None:
    script = Script()
    cid = INTRODUCTIONS[B].payload.ucan_cid  # type: ignore[union-attr]
    script.say(A, 10, AddTo(b"visits", 1))
    script.say(B, 20, AddTo(b"visits", 10))
    script.say(A, 15, RevokeUcan(cid))
    log = everywhere_the_same(script.ops)
    assert value(log) == 1


def test_what_others_set_counts_once_the_arbiter_accepts_it() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    offer = script.say(B, 10, SetTo(b"visits", 0, 5))
    rival = script.say(C, 11, SetTo(b"visits", 0, 6))
    assert value(everywhere_the_same(script.ops)) is None
    script.say(A, 20, AcceptOffer(COUNTER, b"visits", rival.id))
    log = everywhere_the_same(script.ops)
    assert value(log) == 6
    assert [reason(log, op) for op in (offer, rival)] == [Reason.OFFERED, Reason.OFFERED]


def test_a_designation_that_comes_late_also_reaches_a_subject_without_a_state() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    offer = script.say(B, 10, SetTo(b"visits", 7, 5))
    assert reason(everywhere_the_same(script.ops), offer) == Reason.OFFERED


def test_nobody_accepts_in_the_arbiters_place() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    offer = script.say(B, 10, SetTo(b"visits", 0, 5))
    accepted = script.say(B, 20, AcceptOffer(COUNTER, b"visits", offer.id))
    log = everywhere_the_same(script.ops)
    assert value(log) is None and reason(log, accepted) == Reason.NOT_ARBITER


class Node:
    """A node that writes by itself, and exchanges with others."""

    def __init__(self, number: int) -> None:
        self.log = new_log(key=KEYS[number], wall=Clock())
        token = issue(USER, KEYS[number].public, ROOT, 0, None)
        self.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))

    def pull(self, other: "Node") -> None:
        """Takes in all that the other has; the arbiter decides on the way."""
        with other.log.store.read() as session:
            rows = session.ops_after(0, 10_000)
        sent = [other.log.signed(row.body) for row in rows]
        self.log.admit([(raw, decode(raw)) for raw in sent], decide=accepting.accept)


acts = st.tuples(st.integers(0, 2), st.sampled_from(("add", "set", "pull")), st.integers(0, 2), st.integers(0, 3))


@given(st.booleans(), st.lists(acts, max_size=14))
def test_nodes_that_have_heard_everything_agree(has_arbiter: bool, history: list[tuple[int, str, int, int]]) -> None:
    nodes = [Node(number) for number in range(3)]
    for node in nodes[1:]:
        node.pull(nodes[0])
    if has_arbiter:
        nodes[0].log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    names = (b"one", b"two")
    for who, act, other, amount in history:
        name, node = names[amount % 2], nodes[who]
        if act == "pull":
            node.pull(nodes[other])
        else:
            payload = AddTo(name, amount) if act == "add" else SetTo(name, value(node.log, name) or 0, amount * 10)
            node.log.run(lambda tx, payload=payload: tx.author(payload))
    for _ in range(3):
        for node in nodes:
            for other_node in nodes:
                node.pull(other_node)
    states = []
    for node in nodes:
        with node.log.store.read() as session:
            states.append(session.each_subject())
        assert not verify(node.log.store, user=node.log.user, is_bound=False).findings
        rebuild(node.log.store, node.log.permissions_reader, NOW)
        with node.log.store.read() as session:
            states.append(session.each_subject())
    assert all(state == states[0] for state in states)


def test_a_program_that_does_not_know_the_family_keeps_its_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    offer = script.say(B, 10, SetTo(b"visits", 0, 5))
    script.say(A, 20, AcceptOffer(COUNTER, b"visits", offer.id))
    log = new_log()
    with monkeypatch.context() as patch:
        patch.delitem(FAMILIES, COUNTER)
        log.admit(sent([*INTRODUCTIONS, *script.ops]))
        assert value(log) is None
    rebuild(log.store, log.permissions_reader, NOW)
    assert value(log) == 5
