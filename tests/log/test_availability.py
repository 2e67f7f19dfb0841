"""Whether a node takes new work, folded from ops in any order of arrival, and who may say so."""

import pytest

from hocket.families.availability.facts import Availability, SetAvailability
from hocket.families.availability.rules import REASON_CHARS_MAX
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, make_ulid, node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Log
from hocket.log.projectors import availability_of
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, USER, Script

A, B, C = 0, 1, 2
ACTIVE, DRAINING, QUARANTINED = Availability
CLAIMS = (Capability("Job", "Claim", {}), Capability("Job", "Complete", {}))


def worker(key: SigningKey) -> Op:
    """The introduction of a node that may only claim jobs and end them."""
    token = issue(USER, key.public, CLAIMS, 0, None)
    node = node_id(key.public)
    return Op(make_ulid(1, key.public[:10]), Hlc(1, 0, node), node, (), DelegateUcan(content_hash(token), token))


# The owner's node, and two workers that the owner has invited.
MESH = (INTRODUCTIONS[A], worker(KEYS[B]), worker(KEYS[C]))


def availability(log: Log, node: int) -> Availability:
    with log.store.read() as session:
        state = availability_of(session, NODES[node])
    return ACTIVE if state is None else state.availability


def about(node: int, availability: Availability, reason: str = "") -> SetAvailability:
    return SetAvailability(NODES[node], availability, reason)


@pytest.mark.touches("VX-11")
def test_the_latest_word_counts_whatever_comes_first() -> None:
    script = Script()
    script.say(A, 10, about(B, DRAINING))
    script.say(A, 20, about(B, QUARANTINED, "bad disk"))
    script.say(A, 15, about(B, ACTIVE))
    script.say(A, 30, about(C, DRAINING))
    log = everywhere_the_same(script.ops, MESH)
    assert [availability(log, node) for node in (A, B, C)] == [ACTIVE, QUARANTINED, DRAINING]


def test_a_worker_drains_and_resumes_itself_and_no_other() -> None:
    script = Script()
    drained = script.say(B, 10, about(B, DRAINING))
    other = script.say(B, 20, about(C, DRAINING))
    resumed = script.say(B, 30, about(B, ACTIVE))
    again = script.say(B, 40, about(B, DRAINING))
    log = everywhere_the_same(script.ops, MESH)
    assert [reason(log, op) for op in (drained, other, resumed, again)] == [0, Reason.UNAUTHORISED, 0, 0]
    assert [availability(log, node) for node in (B, C)] == [DRAINING, ACTIVE]


@pytest.mark.parametrize("how", [DRAINING, QUARANTINED])
def test_a_worker_does_not_undo_what_another_node_has_said_about_it(how: Availability) -> None:
    script = Script()
    script.say(A, 10, about(B, how))
    resumed = script.say(B, 20, about(B, ACTIVE))
    drained = script.say(B, 30, about(B, DRAINING))
    log = everywhere_the_same(script.ops, MESH)
    assert availability(log, B) is how
    assert {reason(log, op) for op in (resumed, drained)} == {Reason.NOT_ITS_TO_RESUME}


def test_what_a_worker_said_is_judged_again_when_the_owners_word_comes_late() -> None:
    """A refusal that depends on the state must not be forgotten: each order of arrival ends the same."""
    script = Script()
    script.say(B, 10, about(B, DRAINING))
    script.say(A, 20, about(B, QUARANTINED))
    refused = script.say(B, 30, about(B, ACTIVE))
    script.say(A, 25, about(B, ACTIVE))
    log = everywhere_the_same(script.ops, MESH)
    assert availability(log, B) is ACTIVE and reason(log, refused) == 0


def test_a_worker_does_not_quarantine_itself() -> None:
    script = Script()
    refused = script.say(B, 10, about(B, QUARANTINED))
    log = everywhere_the_same(script.ops, MESH)
    assert availability(log, B) is ACTIVE and reason(log, refused) == Reason.NOT_ITS_TO_RESUME


def test_a_long_reason_is_cut() -> None:
    script = Script()
    script.say(A, 10, about(B, DRAINING, "x" * 100_000))
    log = everywhere_the_same(script.ops, MESH)
    with log.store.read() as session:
        state = availability_of(session, NODES[B])
    assert state is not None and state.reason == "x" * REASON_CHARS_MAX
