"""The rules of messages: who gets one, who may acknowledge it, and when it is dead. Random histories are folded and
compared with what the words of the requirement say about them.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.families.inbox.facts import (
    MESSAGE,
    AcknowledgeMessage,
    ClaimMessage,
    RetryMessage,
    ReturnMessage,
    SendMessage,
)
from hocket.families.inbox.rules import (
    BODY_BYTES_MAX,
    MESSAGES,
    RECEIVERS_MAX,
    TTL_MS_MAX,
    Address,
    DeliveryState,
    Message,
    MessageDelivery,
    addresses_of,
    is_agent,
    read_address,
)
from hocket.kernel.arbitration import Reason, Standings, fold
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import derived_ulid, node_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import AcceptOffer, Payload, Subject

A, B, C = 11, 22, 33
SENT = 1_000
M = derived_ulid(SENT, b"message")


class Alone:
    """What the fold asks, on a log where everybody may do everything. `arbiter_node` decides, if there is one."""

    def __init__(self, arbiter_node: int | None = None) -> None:
        self._arbiter, self.ops = arbiter_node, dict[bytes, Op]()

    def refusal(self, op: Op, word: str) -> Reason | None:
        return None

    def arbiter(self, at: Hlc) -> int | None:
        return self._arbiter

    def is_overtaken(self, at: Hlc) -> bool:
        return False

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        return self.ops.get(op_id)


class History:
    def __init__(self, to: str = "editor", arbiter: int | None = None, **options: Any) -> None:
        self.context = Alone(arbiter)
        self.ops: list[Op] = []
        self.send = self.say(A, 0, sending(to, **options))

    def say(self, node: int, at: int, payload: Payload, cites: tuple[bytes, ...] = ()) -> Op:
        op_id = derived_ulid(SENT + at, len(self.ops).to_bytes(4, "big"))
        op = Op(op_id, Hlc(SENT + at, len(self.ops), node), node, cites, payload)
        self.ops.append(op)
        self.context.ops[op_id] = op
        return op

    def claim(self, node: int, at: int, agent: str = "editor", lease: int = 100) -> Op:
        return self.say(node, at, ClaimMessage(M, agent, lease))

    def ack(self, node: int, at: int, claim: Op | None, agent: str = "editor") -> Op:
        return self.say(node, at, AcknowledgeMessage(M, agent), () if claim is None else (claim.id,))

    def back(self, node: int, at: int, claim: Op, delay: int = 0, agent: str = "editor") -> Op:
        return self.say(node, at, ReturnMessage(M, agent, delay, "busy"), (claim.id,))

    def folded(self) -> tuple[Message | None, Standings]:
        standings: Standings = {}
        state = fold(MESSAGES, Subject(MESSAGE, M), self.ops, self.context, lambda op, known: None, standings)
        return state, standings

    def reason(self, op: Op) -> Reason | int:
        number = self.folded()[1][op.id][1]
        return Reason(number) if number else 0

    @property
    def state(self) -> Message:
        state, _ = self.folded()
        assert state is not None
        return state


def sending(to: str = "editor", **options: Any) -> SendMessage:
    given = {"sender": "writer", "message_type": "", "thread": None, "reply_to": None, "priority": 0}
    return SendMessage(M, to, **(given | {"ttl_ms": 100_000, "tries_max": 3, "body": b"hello"} | options))


@pytest.mark.req("VX-10")
def test_a_message_is_leased_to_one_consumer_and_acknowledged_under_that_lease() -> None:
    history = History()
    first = history.claim(A, 10)
    rival = history.claim(B, 20)
    stranger = history.ack(B, 30, first)
    other_agent = history.ack(A, 31, first, agent="reviewer")
    without_claim = history.ack(A, 32, None)
    good = history.ack(A, 40, first)
    again = history.ack(A, 50, first)
    late = history.claim(B, 500)
    assert [history.reason(op) for op in (first, rival, stranger, other_agent, without_claim, good, again, late)] == [
        0,
        Reason.MESSAGE_LEASED,
        Reason.NOT_HOLDER,
        Reason.NOT_HOLDER,
        Reason.STALE_LEASE,
        0,
        Reason.MESSAGE_ACKNOWLEDGED,
        Reason.MESSAGE_ACKNOWLEDGED,
    ]


class NaiveInbox:
    """The published design: a row for each message, and an acknowledgement that names the row."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bool] = {}

    def send(self, message_id: bytes) -> None:
        self.rows[message_id] = False

    def poll(self) -> list[bytes]:
        return [message_id for message_id, is_acknowledged in self.rows.items() if not is_acknowledged]

    def acknowledge(self, message_id: bytes) -> None:
        self.rows[message_id] = True


@pytest.mark.req("VX-10")
def test_the_naive_inbox_loses_a_message_that_a_stranger_acknowledges_and_ours_does_not() -> None:
    naive = NaiveInbox()
    naive.send(M)
    assert naive.poll() == [M] == naive.poll()  # two consumers get it at once
    naive.acknowledge(M)  # a third party, which never had it
    assert naive.poll() == []  # the receiver dies before it has processed it: lost

    ours = History()
    claim = ours.claim(A, 10)
    assert ours.reason(ours.claim(B, 11)) == Reason.MESSAGE_LEASED
    assert ours.reason(ours.ack(C, 12, claim)) == Reason.NOT_HOLDER
    redelivered = ours.claim(B, 200)
    assert ours.reason(redelivered) == 0 and ours.state.deliveries[0].tries == 2


@pytest.mark.req("VX-10")
def test_the_lease_runs_out_and_the_message_goes_to_the_next_one() -> None:
    history = History()
    first = history.claim(A, 10, lease=100)
    too_early = history.claim(B, 110)
    second = history.claim(B, 111)
    stale = history.ack(A, 120, first)
    good = history.ack(B, 130, second)
    assert [history.reason(op) for op in (too_early, second, stale, good)] == [
        Reason.MESSAGE_LEASED,
        0,
        Reason.NOT_HOLDER,
        0,
    ]


def test_a_consumer_cannot_use_an_older_lease_of_its_own() -> None:
    history = History()
    first = history.claim(A, 10, lease=100)
    second = history.claim(A, 200, lease=100)
    assert history.reason(history.ack(A, 210, first)) == Reason.STALE_LEASE
    assert history.reason(history.ack(A, 220, second)) == 0


@pytest.mark.req("VX-10")
def test_a_message_is_dead_after_its_last_try_until_somebody_retries_it() -> None:
    history = History(tries_max=2)
    history.back(A, 20, history.claim(A, 10), delay=50)
    delayed = history.claim(A, 60)
    history.claim(A, 70, lease=100)
    dead = history.claim(B, 300)
    retry = history.say(B, 310, RetryMessage(M, "mended"))
    again = history.say(B, 311, RetryMessage(M, "twice"))
    claim = history.claim(B, 320)
    good = history.ack(B, 330, claim)
    assert [history.reason(op) for op in (delayed, dead, retry, again, claim, good)] == [
        Reason.MESSAGE_DELAYED,
        Reason.MESSAGE_DEAD,
        0,
        Reason.NOT_DEAD,
        0,
        0,
    ]


@pytest.mark.req("VX-10")
def test_a_message_that_has_expired_is_not_delivered() -> None:
    history = History(ttl_ms=100)
    held = history.claim(A, 90, lease=1_000)
    assert history.reason(history.claim(B, 100)) == Reason.MESSAGE_EXPIRED
    assert history.reason(history.say(B, 101, RetryMessage(M, ""))) == Reason.MESSAGE_EXPIRED
    assert history.reason(history.ack(A, 120, held)) == 0  # it was delivered in time


def test_a_message_to_one_node_is_for_that_node_alone_and_needs_no_arbiter() -> None:
    history = History(to=f"editor@{node_text(B)}", arbiter=A)
    assert history.reason(history.claim(A, 10)) == Reason.NOT_RECEIVER
    claim = history.claim(B, 20)
    assert history.reason(claim) == 0 and history.reason(history.ack(B, 30, claim)) == 0


def test_a_message_to_an_agent_is_decided_by_the_arbiter() -> None:
    history = History(arbiter=A)
    offer, rival = history.claim(B, 10), history.claim(C, 11)
    assert [history.reason(op) for op in (offer, rival)] == [Reason.OFFERED, Reason.OFFERED]
    accepted = history.say(A, 20, AcceptOffer(MESSAGE, M, rival.id))
    late = history.say(A, 21, AcceptOffer(MESSAGE, M, offer.id))
    assert history.reason(accepted) == 0 and history.reason(late) == Reason.MESSAGE_LEASED
    assert (history.state.deliveries[0].node, history.state.deliveries[0].op) == (C, accepted.id)
    ack = history.ack(C, 30, accepted)
    history.say(A, 40, AcceptOffer(MESSAGE, M, ack.id))
    assert history.state.deliveries[0].state is DeliveryState.ACKNOWLEDGED


@pytest.mark.req("VX-10")
def test_everybody_in_a_group_gets_its_own_delivery() -> None:
    history = History(to="team/", arbiter=A)
    one, two = history.claim(B, 10, "team/one"), history.claim(C, 10, "team/two")
    here_too = history.claim(B, 11, "team/two")
    outside = history.claim(B, 12, "editor")
    history.ack(B, 20, one, "team/one")
    again = history.claim(B, 300, "team/one")
    assert [history.reason(op) for op in (one, two, here_too, outside, again)] == [
        0,
        0,
        0,
        Reason.NOT_RECEIVER,
        Reason.MESSAGE_ACKNOWLEDGED,
    ]
    assert {(each.agent, each.node): each.state.name for each in history.state.deliveries} == {
        ("team/one", B): "ACKNOWLEDGED",
        ("team/two", C): "LEASED",
        ("team/two", B): "LEASED",
    }


@pytest.mark.parametrize(
    ("to", "options", "reason"),
    [
        ("", {}, Reason.BAD_ADDRESS),
        ("/", {}, Reason.BAD_ADDRESS),
        ("a//b", {}, Reason.BAD_ADDRESS),
        ("@" + node_text(A), {}, Reason.BAD_ADDRESS),
        ("editor@gpu-box", {}, Reason.BAD_ADDRESS),
        ("team/@" + node_text(A), {}, Reason.BAD_ADDRESS),
        ("all@" + node_text(A), {}, Reason.BAD_ADDRESS),
        ("edi\ntor", {}, Reason.BAD_ADDRESS),
        ("x" * 129, {}, Reason.BAD_ADDRESS),
        ("editor", {"sender": ""}, Reason.BAD_MESSAGE),
        ("editor", {"sender": "a b"}, Reason.BAD_MESSAGE),
        ("editor", {"ttl_ms": 0}, Reason.BAD_MESSAGE),
        ("editor", {"ttl_ms": TTL_MS_MAX + 1}, Reason.BAD_MESSAGE),
        ("editor", {"tries_max": 0}, Reason.BAD_MESSAGE),
        ("editor", {"body": bytes(BODY_BYTES_MAX + 1)}, Reason.BAD_MESSAGE),
        ("editor", {"message_type": "a\x00"}, Reason.BAD_MESSAGE),
        ("editor", {"attachments": (("", M),)}, Reason.BAD_MESSAGE),
        ("editor", {"thread": b"short"}, Reason.BAD_MESSAGE),
    ],
)
def test_a_message_that_makes_no_sense_does_not_count(to: str, options: dict[str, Any], reason: Reason) -> None:
    history = History(to, **options)
    assert history.reason(history.send) == reason
    assert history.reason(history.claim(A, 10)) == Reason.UNKNOWN_MESSAGE


agents = st.text("ab/", max_size=6)


@given(agents, st.sampled_from((A, B)))
def test_an_address_reaches_exactly_the_agents_that_it_names(agent: str, node: int) -> None:
    if not is_agent(agent):
        assert read_address(agent) is None or agent.endswith("/")
        return
    reached = set(addresses_of(agent, node))
    assert all(read_address(each) is not None for each in reached)
    for other in ("a", "b", "a/", "a/b", "a/b/", "all", str(Address("a", A)), str(Address("a/b", B))):
        address = read_address(other)
        assert address is not None and str(address) == other
        expected = (
            other == "all"
            or (address.is_group and agent.startswith(other))
            or (address.name == agent and address.node in (None, node))
        )
        assert (other in reached) == expected


acts = st.tuples(
    st.sampled_from((A, B)),
    st.sampled_from(("editor", "reviewer")),
    st.sampled_from(("claim", "ack", "return", "retry")),
    st.integers(0, 60),
    st.integers(-3, 0),
)


@given(st.lists(acts, max_size=25), st.integers(1, 3), st.randoms())
def test_any_history_keeps_the_promises(history: list[tuple[int, str, str, int, int]], tries: int, chance: Any) -> None:
    """In any order of arrival: one consumer at a time, at most so many tries, one acknowledgement by the holder under
    its lease, and nothing after that.
    """
    world = History(tries_max=tries, ttl_ms=600)
    claims: list[Op] = [world.send]
    at = 0
    for node, agent, act, later, which in history:
        at += later
        cited = claims[max(which, -len(claims))]
        if act == "claim":
            claims.append(world.say(node, at, ClaimMessage(M, agent, 50)))
        elif act == "ack":
            world.ack(node, at, cited, agent)
        elif act == "return":
            world.back(node, at, cited, 10, agent)
        else:
            world.say(node, at, RetryMessage(M, ""))
    state, standings = world.folded()
    chance.shuffle(world.ops)
    assert world.folded() == (state, standings)

    holder: Op | None = None
    until = ready = used = 0
    is_over = False
    for op in sorted(world.ops[:], key=lambda op: op.timestamp):
        if standings[op.id][1]:
            continue
        wall, payload = op.timestamp.wall, op.payload
        assert not is_over
        if isinstance(payload, ClaimMessage):
            assert payload.agent == "editor" and wall < SENT + 600
            assert wall >= ready and (holder is None or wall > until) and used < tries
            holder, until, used = op, wall + 50, used + 1
        elif isinstance(payload, AcknowledgeMessage | ReturnMessage):
            assert holder is not None and op.cited == (holder.id,) and op.node_id == holder.node_id
            is_over = isinstance(payload, AcknowledgeMessage)
            holder, ready = None, wall + 10
        elif isinstance(payload, RetryMessage):
            assert used == tries and (holder is None or wall > until)
            holder, used, ready = None, 0, 0
    assert state is not None and (state.deliveries[0].state is DeliveryState.ACKNOWLEDGED) == is_over


@pytest.mark.req("LW-49")
@pytest.mark.parametrize("to", ["all", "team/"])
def test_the_agents_of_one_node_do_not_push_out_those_of_others(to: str) -> None:
    history = History(to)
    states = list(DeliveryState)
    made_up = [
        MessageDelivery(f"team/{number}", B, states[number % 4], 1, SENT + 50, b"claim")
        for number in range(RECEIVERS_MAX)
    ]
    full = replace(history.state, deliveries=tuple(made_up))
    one_less = replace(full, deliveries=full.deliveries[1:])

    def claimed(message: Message, node: int, agent: str) -> Message | Reason:
        op = Op(b"op", Hlc(SENT + 60, 0, node), node, (), ClaimMessage(M, agent, 100))
        return MESSAGES.apply(message, op, history.context)

    assert claimed(full, B, "team/new") is Reason.TOO_MANY_RECEIVERS
    assert isinstance(claimed(one_less, B, "team/new"), Message)
    assert isinstance(claimed(full, A, "team/new"), Message)
    assert isinstance(claimed(full, B, "team/1"), Message), "it has received the message before"


def test_a_message_that_was_dead_is_received_again_at_the_limit() -> None:
    history = History("all")
    dead = [MessageDelivery(str(number), B, DeliveryState.DEAD, 3, 0, b"x") for number in range(RECEIVERS_MAX)]
    retry = Op(b"retry", Hlc(SENT + 60, 0, A), A, (), RetryMessage(M, "again"))
    ready = MESSAGES.apply(replace(history.state, deliveries=tuple(dead[:3])), retry, history.context)
    assert isinstance(ready, Message)
    full = replace(ready, deliveries=(*ready.deliveries, *dead[3:]))
    claim = Op(b"op", Hlc(SENT + 70, 0, B), B, (), ClaimMessage(M, "1", 100))
    assert isinstance(MESSAGES.apply(full, claim, history.context), Message)
