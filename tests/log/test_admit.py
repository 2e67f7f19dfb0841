"""The door: who may come in, what is turned away and counted, and that one bad op harms no other."""

import pytest

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.ops import Op, decode, encode, encode_sequence, read_sequence, sign
from hocket.kernel.postcard import Malformed, UnknownVariant
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, IngestEvidence, RouteKind, ScheduleJob
from hocket.log import Log
from hocket.log.audit import verify
from tests.log.roster.world import (
    INTRODUCTIONS,
    KEYS,
    NODES,
    START,
    STRANGER,
    USER,
    Script,
    introduction,
    job_id,
    new_log,
    op_id,
    sent,
    signed,
)

A, B = 0, 1
GOOD = Script()
GOOD.say(A, 1, ScheduleJob(job_id(1), "k", b"", b""))
GOOD.say(B, 2, RouteKind("k", None))


def counts(log: Log) -> dict[int, int]:
    with log.store.read() as session:
        return session.refusal_counts()


def length(log: Log) -> int:
    with log.store.read() as session:
        return session.head().seq


@pytest.mark.req("LW-23")
def test_nothing_from_an_unknown_node_comes_in() -> None:
    log = new_log()
    admission = log.admit(sent(GOOD.ops))
    assert (admission.appended, admission.refused) == (0, {Reason.UNKNOWN_NODE: 2})
    assert length(log) == 0
    # Once it has introduced itself, what was refused is welcome.
    assert log.admit(sent([*GOOD.ops, *INTRODUCTIONS])).appended == 5
    assert counts(log) == {Reason.UNKNOWN_NODE: 2}


@pytest.mark.req("LW-23")
def test_a_node_that_is_introduced_does_not_introduce_the_others() -> None:
    log = new_log()
    log.admit(sent(INTRODUCTIONS[:1]))
    admission = log.admit(sent(GOOD.ops))
    assert (admission.appended, admission.refused) == (1, {Reason.UNKNOWN_NODE: 1})


@pytest.mark.req("LW-23")
@pytest.mark.parametrize("together", [True, False])
def test_a_node_introduces_itself_even_if_another_has_told_its_delegation(together: bool) -> None:
    """As an inviting node does. The key is known then, and still nothing comes in before the node's own first op."""
    log = new_log()
    log.admit(sent(INTRODUCTIONS[:1]))
    token = issue(USER, KEYS[B].public, ROOT, 0, None)
    by_a = Op(op_id(901), Hlc(START, 0, NODES[A]), NODES[A], (), DelegateUcan(content_hash(token), token))
    by_b = [op for op in GOOD.ops if op.node_id == NODES[B]]
    if together:
        assert log.admit(sent([by_a, *GOOD.ops])).refused == {Reason.UNKNOWN_NODE: 1}
    else:
        assert log.admit(sent([by_a])).appended == 1
        admission = log.admit(sent(GOOD.ops))
        assert (admission.appended, admission.refused) == (1, {Reason.UNKNOWN_NODE: 1})
        assert admission.curable == {NODES[B]: by_b[0].timestamp}
    # Nor does another's delegation count as its first op.
    other = introduction(KEYS[A]).payload
    told = Op(op_id(902), Hlc(START, 0, NODES[B]), NODES[B], (), other)
    assert log.admit(sent([told])).refused == {Reason.UNKNOWN_NODE: 1}
    assert log.admit(sent([*by_b, told, introduction(KEYS[B])])).appended == 3
    assert verify(log.store, user=did_key(USER.public)).findings == []


@pytest.mark.req("LW-23")
@pytest.mark.parametrize("trouble", ["another user", "a broken token", "another token's hash", "another node's token"])
def test_a_bad_introduction_introduces_nobody(trouble: str) -> None:
    key = SigningKey(b"new!" * 8)
    node = node_id(key.public)
    token = issue(STRANGER if trouble == "another user" else USER, key.public, ROOT, 0, None)
    cid = content_hash(token)
    if trouble == "a broken token":
        token = token[:-9] + b"AAAAAAAAA"
        cid = content_hash(token)
    elif trouble == "another token's hash":
        cid = content_hash(b"")
    elif trouble == "another node's token":
        token = issue(USER, KEYS[A].public, ROOT, 0, None)
        cid = content_hash(token)
    first = Op(op_id(901), Hlc(START, 0, node), node, (), DelegateUcan(cid, token))
    then = Op(op_id(902), Hlc(START + 1, 0, node), node, (), RouteKind("k", None))
    log = new_log()
    admission = log.admit([signed(first, key), signed(then, key)])
    reasons = {
        "another user": Reason.FOREIGN_USER,
        "another node's token": Reason.UNKNOWN_NODE,
    }
    assert admission.appended == 0
    assert admission.rejected == 2
    assert reasons.get(trouble, Reason.MALFORMED) in admission.refused
    assert length(log) == 0


@pytest.mark.req("LW-23")
def test_an_introduction_that_is_not_signed_introduces_nobody() -> None:
    """Else ops get in whose author's key is not on the log, and the log cannot be proved any more."""
    first, then = introduction(KEYS[A]), GOOD.ops[0]
    log = new_log()
    admission = log.admit([signed(first, STRANGER), signed(then)])
    assert admission.refused == {Reason.BAD_SIGNATURE: 1, Reason.UNKNOWN_NODE: 1}
    assert verify(log.store, user=did_key(USER.public)).findings == []


@pytest.mark.req("LW-21", "LW-23")
@pytest.mark.parametrize("trouble", ["another key", "no signature", "a changed payload", "another author"])
def test_an_op_that_its_author_did_not_sign_is_refused(trouble: str) -> None:
    log = new_log()
    log.admit(sent(INTRODUCTIONS))
    good, bystander = GOOD.ops
    whole = sign(good, KEYS[A])
    if trouble == "another key":
        whole = sign(good, KEYS[B])
    elif trouble == "no signature":
        whole = good
    elif trouble == "a changed payload":
        whole = Op(good.id, good.timestamp, good.node_id, (), ScheduleJob(job_id(1), "x", b"", b""), whole.signature)
    else:
        whole = Op(good.id, Hlc(START, 0, NODES[B]), NODES[B], (), good.payload, whole.signature)
    admission = log.admit([(encode(whole), whole), signed(bystander)])
    assert (admission.appended, admission.refused) == (1, {Reason.BAD_SIGNATURE: 1})
    with log.store.read() as session:
        (refusal,) = session.refusals(10)
        assert (refusal.op_id, refusal.reason) == (good.id, Reason.BAD_SIGNATURE)
        assert session.op(good.id) is None


def with_variant(raw: bytes, number: int) -> bytes:
    """Changes the payload variant in the bytes of an op."""
    op = decode(raw)
    bare = encode(Op(op.id, op.timestamp, op.node_id, (), RouteKind("", None)))
    head = bare[: bare.index(b"\x00\x19") + 1]
    return head + bytes([number & 0x7F | 0x80, number >> 7]) + b"\x00" * 8


@pytest.mark.req("LW-34")
def test_an_unknown_variant_is_refused_and_counted_and_the_rest_goes_on() -> None:
    log = new_log()
    log.admit(sent(INTRODUCTIONS))
    one, two = sent(GOOD.ops)
    strange = with_variant(one[0], 9_999)
    with pytest.raises(UnknownVariant):
        decode(strange)
    (batch,) = [list(read_sequence(encode_sequence([one[0], strange])))]
    assert isinstance(batch[1][1], UnknownVariant)
    admission = log.admit([*batch, two])
    assert (admission.appended, admission.refused) == (2, {Reason.UNKNOWN_VARIANT: 1})
    with log.store.read() as session:
        (refusal,) = session.refusals(10)
        assert (refusal.op_id, refusal.reason) == (one[1].id, Reason.UNKNOWN_VARIANT)
        assert session.job(job_id(1)) is not None
    assert counts(log) == {Reason.UNKNOWN_VARIANT: 1}


@pytest.mark.req("LW-34")
def test_what_cannot_be_read_is_refused_and_counted_and_the_rest_goes_on() -> None:
    log = new_log()
    log.admit(sent(INTRODUCTIONS))
    one, two = sent(GOOD.ops)
    admission = log.admit([one, (b"\xff\xfe", Malformed("what?")), two])
    assert (admission.appended, admission.refused) == (2, {Reason.MALFORMED: 1})


@pytest.mark.req("LW-34")
def test_the_list_of_refusals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.store.intake.REFUSALS_KEPT", 10)
    log = new_log()
    for _ in range(5):
        log.admit([(bytes([number]) * 16, Malformed("")) for number in range(7)])
    with log.store.read() as session:
        assert [refusal.op_id[0] for refusal in session.refusals(100)] == [6, 5, 4, 3, 2, 1, 0, 6, 5, 4]


@pytest.mark.req("LW-32")
def test_ops_that_are_here_already_are_counted_and_change_nothing() -> None:
    log = new_log()
    everything = sent([*INTRODUCTIONS, *GOOD.ops])
    assert log.admit([*everything, *everything])[:2] == (5, 5)
    before = length(log)
    assert log.admit(everything)[:2] == (0, 5)
    assert length(log) == before


@pytest.mark.req("LW-20")
def test_ops_of_the_rest_of_the_vocabulary_are_kept_and_passed_on() -> None:
    log = new_log()
    evidence = Op(
        op_id(1), Hlc(START, 0, NODES[A]), NODES[A], (), IngestEvidence(job_id(5), bytes(32), "mail", "x", None)
    )
    raw, op = signed(evidence)
    assert log.admit([*sent(INTRODUCTIONS), (raw, op)]).appended == 4
    with log.store.read() as session:
        row = session.op(op.id)
        assert row is not None and (row.body, row.reason) == (raw, 0)


@pytest.mark.req("LW-22", "LW-34")
@pytest.mark.parametrize("wall", [2**48, 2**63, 2**64 - 1])
def test_a_time_beyond_all_bounds_is_refused_and_harms_no_other(wall: int) -> None:
    log = new_log(key=KEYS[2])
    log.admit(sent(INTRODUCTIONS))
    far = Op(op_id(901), Hlc(wall, 0, NODES[A]), NODES[A], (), RouteKind("k", None))
    admission = log.admit(sent([far, *GOOD.ops]))
    assert (admission.appended, admission.rejected) == (2, 1)
    log.append_plain("k", b"{}")
