"""Messages on a log: the same state and the same queues in every order of arrival and after a rebuild; the order within
a thread; this machine's own clock, not the mesh's, ends a lease.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Conflict, Usage
from hocket.families.access import acceptance
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.facts import MESSAGE, AcknowledgeMessage, ClaimMessage, SendMessage
from hocket.families.inbox.projector import messages_of
from hocket.families.inbox.requests import REPLIES_MAX, MessageDraft
from hocket.families.jobs import claiming as accepting
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import AcceptOffer, DelegateUcan, DesignateCoordinator, RevokeUcan
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from tests.effort import orders
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, USER, Clock, Script, new_log, op_id, sent

A, B, C = 0, 1, 2
BLOBS: Any = None  # no message here has an attachment


def letter(number: int, to: str = "editor", **options: Any) -> SendMessage:
    given = {"sender": "writer", "message_type": "", "thread": None, "reply_to": None, "priority": 0}
    given |= {"ttl_ms": 1_000_000_000, "tries_max": 3, "body": b"hello"}
    return SendMessage(op_id(number), to, **(given | options))


def shown(log: Log) -> object:
    with log.store.read() as session:
        reasons = {row.id: row.reason for row in session.ops_after(0, 100_000)}
        queues = session.deliveries(None, False, ("", b""), 1_000), session.deliveries(None, True, ("", b""), 1_000)
        return list(session.each_message()), queues, reasons


def everywhere_the_same(ops: list[Op]) -> Log:
    """In any order, one op at a time and all at once, and a rebuild after each."""
    seen = []
    for order in orders(ops):
        for batches in ([[op] for op in order], [list(order)]):
            log = new_log()
            log.admit(sent(INTRODUCTIONS))
            for batch in batches:
                log.admit(sent(batch))
            seen.append(shown(log))
            rebuild(log.store, log.permissions_reader, NOW)
            seen.append(shown(log))
    assert all(other == seen[0] for other in seen)
    return log


def reason(log: Log, op: Op) -> Reason | int:
    with log.store.read() as session:
        row = session.op(op.id)
    assert row is not None
    return Reason(row.reason) if row.reason else 0


def test_a_message_is_the_same_in_every_order_of_arrival() -> None:
    script = Script()
    script.say(A, 10, letter(1), number=1)
    claim = script.say(B, 20, ClaimMessage(op_id(1), "editor", 100), number=2)
    rival = script.say(C, 30, ClaimMessage(op_id(1), "editor", 100), number=3)
    ack = script.say(B, 40, AcknowledgeMessage(op_id(1), "editor"), (claim.id,), number=4)
    log = everywhere_the_same(script.ops)
    assert [reason(log, op) for op in (claim, rival, ack)] == [0, Reason.MESSAGE_LEASED, 0]
    with log.store.read() as session:
        assert session.deliveries(None, False, ("", b""), 10) == []


def test_the_messages_of_a_thread_queue_up_in_every_order_of_arrival() -> None:
    script = Script()
    for number in (1, 2, 3):
        script.say(A, 10 * number, letter(number, thread=None if number == 1 else op_id(1)), number=number)
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        queued = session.deliveries(None, False, ("", b""), 10)
    assert {row.message_id: row.stage.name for row in queued} == {
        op_id(1): "READY",
        op_id(2): "BLOCKED",
        op_id(3): "BLOCKED",
    }


def test_a_revoked_sender_takes_its_message_and_its_place_in_the_thread_with_it() -> None:
    script = Script()
    cid = INTRODUCTIONS[B].payload.ucan_cid  # type: ignore[union-attr]
    script.say(B, 20, letter(1), number=1)
    script.say(A, 30, letter(2, thread=op_id(1)), number=2)
    script.say(A, 10, RevokeUcan(cid), number=3)
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        (left,) = session.deliveries(None, False, ("", b""), 10)
    assert (left.message_id, left.stage.name) == (op_id(2), "READY")


def test_an_accepted_claim_is_the_same_in_every_order_of_arrival() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]), number=9)
    script.say(A, 10, letter(1), number=1)
    offer = script.say(B, 20, ClaimMessage(op_id(1), "editor", 100), number=2)
    accepted = script.say(A, 30, AcceptOffer(MESSAGE, op_id(1), offer.id), number=3)
    log = everywhere_the_same(script.ops)
    with log.store.read() as session:
        (message,) = session.each_message()
    assert (message.deliveries[0].node, message.deliveries[0].op) == (NODES[B], accepted.id)


# One node that writes by itself.


class Desk:
    """A node with a clock that a test moves."""

    def __init__(self, number: int = A) -> None:
        self.clock = Clock()
        self.log = new_log(key=KEYS[number], wall=self.clock)
        token = issue(USER, KEYS[number].public, ROOT, 0, None)
        self.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))

    def send(self, to: str = "editor", **options: Any) -> bytes:
        draft = MessageDraft(to, b"hello", options.pop("sender", "writer"), **options)
        return self.log.run(lambda tx: inbox.send(tx, BLOBS, inbox.check_draft(draft)))

    def claim(self, count: int = 1, agent: str = "editor", lease: int = 100) -> list[bytes]:
        made = self.log.run(lambda tx: inbox.claim(tx, agent, count, lease))
        assert not made.offers
        return [each.message_id for each in made.taken]

    def ack(self, message_id: bytes, agent: str = "editor") -> Reason | None:
        said = self.log.run(lambda tx: inbox.acknowledge(tx, message_id, agent))
        return said if isinstance(said, Reason) else None

    def nack(self, message_id: bytes, delay: int = 0, agent: str = "editor") -> Reason | None:
        said = self.log.run(lambda tx: inbox.hand_back(tx, message_id, agent, delay, "busy"))
        return said if isinstance(said, Reason) else None

    def dead(self) -> list[bytes]:
        self.log.run(lambda tx: messages_of(tx.projection).move_due())
        with self.log.store.read() as session:
            return [row.message_id for row in session.deliveries(None, True, ("", b""), 100)]

    def pull(self, other: "Desk") -> None:
        with other.log.store.read() as session:
            rows = session.ops_after(0, 100_000)
        sent = [other.log.signed(row.body) for row in rows]
        self.log.admit([(raw, decode(raw)) for raw in sent], decide=accepting.accept)


@pytest.mark.req("VX-10")
def test_the_most_urgent_comes_first_and_equals_in_order() -> None:
    desk = Desk()
    first, urgent, second = desk.send(), desk.send(priority=9), desk.send()
    assert desk.claim(5) == [urgent, first, second]


@pytest.mark.req("VX-10")
def test_a_thread_is_delivered_in_order_whatever_the_priorities() -> None:
    desk = Desk()
    first = desk.send()
    second, third = desk.send(thread=first, priority=5), desk.send(thread=first, priority=9)
    other = desk.send(priority=1)
    assert desk.claim(1) == [other]
    assert desk.claim(2) == [first, second]
    # The third waits until the others are acknowledged, even if one of them comes back.
    assert desk.claim(5) == []
    assert desk.nack(first) is None and desk.claim(5) == [first]
    assert desk.ack(first) is None and desk.ack(second) is None
    assert desk.claim(5) == [third]


def test_a_thread_goes_on_when_its_first_message_is_dead_or_has_expired() -> None:
    desk = Desk()
    first = desk.send(ttl_ms=5_000)
    second = desk.send(thread=first)
    third = desk.send(thread=first, ttl_ms=5_000)
    fourth = desk.send(thread=first)
    for _ in range(inbox.TRIES_DEFAULT):
        assert desk.claim(1) == [first] and desk.nack(first) is None
    assert desk.dead() == [first] and desk.claim(1) == [second]
    desk.clock.now += 10_000
    assert desk.ack(second) is Reason.LEASE_PASSED
    assert desk.claim(1) == [second] and desk.ack(second) is None
    assert desk.claim(1) == [fourth]
    assert set(desk.dead()) == {first, third}


@pytest.mark.req("VX-10")
def test_after_the_lease_the_message_is_delivered_again_and_the_old_holder_is_too_late() -> None:
    desk = Desk()
    message = desk.send()
    assert desk.claim(1) == [message] and desk.claim(1) == []
    desk.clock.now += 101
    assert desk.ack(message) is Reason.LEASE_PASSED
    assert desk.claim(1) == [message]


def test_a_message_that_was_returned_with_a_delay_rests_so_long() -> None:
    desk = Desk()
    message = desk.send()
    assert desk.claim(1) == [message] and desk.nack(message, 1_000) is None
    desk.clock.now += 999
    assert desk.claim(1) == []
    desk.clock.now += 1
    assert desk.claim(1) == [message]


@pytest.mark.req("VX-10")
def test_dead_letters_after_so_many_leases_that_ran_out() -> None:
    desk = Desk()
    message = desk.send()
    for _ in range(inbox.TRIES_DEFAULT):
        assert desk.claim(1) == [message]
        desk.clock.now += 101
    assert desk.claim(1) == [] and desk.dead() == [message]
    assert isinstance(desk.log.run(lambda tx: inbox.retry(tx, message, "mended")), Op)
    assert desk.dead() == [] and desk.claim(1) == [message] and desk.ack(message) is None


@pytest.mark.req("VX-10")
def test_a_group_and_all_reach_each_agent_once() -> None:
    desk = Desk()
    for_team, for_all = desk.send("team/"), desk.send("all", sender="team/one")
    assert desk.claim(5, "team/two") == [for_team, for_all]
    assert desk.claim(5, "team/one") == [for_team]  # it has sent the other one itself
    assert desk.claim(5, "stranger") == [for_all]
    assert desk.ack(for_team, "team/two") is None
    desk.clock.now += 101
    assert desk.claim(5, "team/two") == [for_all]
    assert desk.claim(5, "team/one") == [for_team]
    desk.clock.now += inbox.TTL_MS_DEFAULT
    assert desk.claim(5, "team/late") == [] and desk.dead() == []


def test_programs_that_answer_each_other_stop_at_some_point() -> None:
    desk = Desk()
    last = desk.send(ttl_ms=1)
    for _ in range(REPLIES_MAX):
        last = desk.send(reply_to=last)
    with pytest.raises(Conflict, match="a chain of 256 replies"):
        desk.send(reply_to=last)
    assert desk.send("editor", thread=last)  # a new message may follow in the thread
    rebuild(desk.log.store, desk.log.permissions_reader, NOW)
    with pytest.raises(Conflict):
        desk.send(reply_to=last)


def test_a_reply_joins_the_thread_and_needs_a_message() -> None:
    desk = Desk()
    first = desk.send()
    second = desk.send("writer", reply_to=first)
    third = desk.send(thread=second)
    with desk.log.store.read() as session:
        assert [each.id for each in session.thread(first, 10)] == [first, second, third]
    with pytest.raises(Usage, match="to reply to"):
        desk.send(reply_to=op_id(7))


def test_a_lease_is_counted_on_the_machines_own_clock() -> None:
    """Another node's clock may move the log's clock ahead; that ends nobody's lease."""
    desk = Desk()
    message = desk.send()
    assert desk.claim(1, lease=30_000) == [message]
    desk.log.run(lambda tx: tx.hear(Hlc(NOW + 60_000, 0, NODES[B])))
    desk.clock.now += 1
    assert desk.claim(1) == []
    assert desk.ack(message) is None


def test_a_claim_that_reaches_the_arbiter_too_late_is_not_accepted() -> None:
    arbiter, other = Desk(A), Desk(B)
    arbiter.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    arbiter.pull(other)
    message = arbiter.send()
    other.pull(arbiter)
    made = other.log.run(lambda tx: inbox.claim(tx, "editor", 1, 1_000))
    assert [op.payload.message_id for op in made.offers] == [message]  # type: ignore[union-attr]
    arbiter.clock.now += 5_000
    arbiter.pull(other)
    assert arbiter.claim(1) == [message]


acts = st.tuples(
    st.integers(0, 2), st.sampled_from(("send", "claim", "ack", "nack", "pull", "tick")), st.integers(0, 2)
)
receivers = ("team/editor", "team/", "all", f"team/editor@{node_text(NODES[1])}")


@given(st.booleans(), st.lists(acts, max_size=20))
def test_nodes_that_have_heard_everything_agree(has_arbiter: bool, history: list[tuple[int, str, int]]) -> None:
    desks = [Desk(number) for number in range(3)]
    for desk in desks[1:]:
        desk.pull(desks[0])
    if has_arbiter:
        desks[0].log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    held: list[tuple[Desk, bytes]] = []
    for who, act, which in history:
        desk = desks[who]
        if act == "send":
            desk.send(receivers[(which + len(held)) % 4])
        elif act == "pull":
            desk.pull(desks[which])
        elif act == "tick":
            for each in desks:
                each.clock.now += 60
        elif act == "claim":
            made = desk.log.run(lambda tx: inbox.claim(tx, "team/editor", 2, 100))
            held += [(desk, each.message_id) for each in made.taken]
            held += [(desk, op.payload.message_id) for op in made.offers]  # type: ignore[union-attr]
        elif held:
            holder, message = held[which % len(held)]
            (holder.ack if act == "ack" else holder.nack)(message, agent="team/editor")
    for _ in range(3):
        for desk in desks:
            for other in desks:
                desk.pull(other)
    states = []
    for desk in desks:
        with desk.log.store.read() as session:
            states.append(list(session.each_message()))
        assert not verify(desk.log.store, user=desk.log.user, is_bound=False).findings
        rebuild(desk.log.store, desk.log.permissions_reader, NOW)
        with desk.log.store.read() as session:
            states.append(list(session.each_message()))
    assert all(state == states[0] for state in states)


@pytest.mark.req("VX-10")
def test_the_arbiter_keeps_the_order_of_a_thread_between_nodes() -> None:
    arbiter, other = Desk(A), Desk(B)
    arbiter.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
    arbiter.pull(other)
    first = arbiter.send()
    second, third = arbiter.send(thread=first), arbiter.send(thread=first)
    assert arbiter.log.run(lambda tx: tx.author(ClaimMessage(second, "editor", 100))) is Reason.NOT_ITS_TURN
    other.pull(arbiter)
    skipping = other.log.run(lambda tx: tx.author(ClaimMessage(second, "editor", 1_000)))
    made = other.log.run(lambda tx: inbox.claim(tx, "editor", 2, 1_000))
    arbiter.pull(other)
    other.pull(arbiter)
    assert isinstance(skipping, Op)
    with other.log.store.read() as session:
        assert acceptance(session, skipping) is None
        assert [each.message_id for each in inbox.accepted(session, made.offers)] == [first, second]
    assert arbiter.claim(5) == []  # the rest of the thread waits for the one that holds its beginning
    with other.log.store.read() as session:
        assert session.message(third) is not None
