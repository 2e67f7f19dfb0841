"""Marks, which stand in the place of signatures until an op is signed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import MAX_OP_BYTES, Op, decode, encode, sign, unsigned, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import ForgedMark, OpSigner, is_end_of, is_mark, is_marked
from hocket.kernel.vocabulary import RouteKind, ScheduleJob

KEY, OTHER = SigningKey(bytes(32)), SigningKey(b"\x01" * 32)
NODE = node_id(KEY.public)
SIGNER = OpSigner(KEY, NODE)


def op(kind: str = "k", wall: int = 7) -> Op:
    return Op(bytes(16), Hlc(wall, 0, NODE), NODE, (), RouteKind(kind, None))


ops = st.builds(op, st.text(max_size=300), st.integers(0, 2**40))


@pytest.mark.req("LW-07")
@given(ops)
def test_a_marked_op_becomes_the_signed_one(op: Op) -> None:
    marked = SIGNER.for_log(unsigned(op))
    signed = SIGNER.signed(marked)
    assert signed == encode(sign(op, KEY)) == SIGNER.for_log(unsigned(op), at_once=True)
    assert is_marked(marked) and not is_marked(signed) and not is_marked(encode(op))
    assert decode(marked).signature is not None and is_mark(decode(marked).signature or b"")
    assert not is_mark(decode(signed).signature or b"")
    assert len(signed) - len(marked) > 100, "a mark is short"
    assert SIGNER.signed(signed) == signed, "once is enough"


@pytest.mark.req("LW-07")
@given(ops)
def test_a_mark_is_no_signature(op: Op) -> None:
    marked = SIGNER.for_log(unsigned(op))
    assert decode(marked).payload == op.payload
    assert not verify_op(marked, decode(marked), KEY.public)


@pytest.mark.touches("LW-07")
@given(ops, ops)
def test_what_the_node_did_not_mark_is_not_signed(mine: Op, theirs: Op) -> None:
    """Another key's mark, and a mark that was moved to another op."""
    with pytest.raises(ForgedMark):
        SIGNER.signed(OpSigner(OTHER, NODE).for_log(unsigned(mine)))
    if mine != theirs:
        field = SIGNER.for_log(b"")
        moved = unsigned(theirs) + SIGNER.for_log(unsigned(mine))[-len(field) :]
        with pytest.raises(ForgedMark):
            SIGNER.signed(moved)


def test_an_op_of_another_node_that_looks_marked_is_left_as_it_is() -> None:
    """One that was sanitised has no signature, and its author chose the bytes before its end."""
    content = b"\x01\x11\x00" + bytes(15)
    sanitised = Op(bytes(16), Hlc(7, 0, 9), 9, (), ScheduleJob(bytes(16), "k", b"", content))
    assert is_marked(encode(sanitised)) and SIGNER.signed(encode(sanitised)) == encode(sanitised)


def test_an_op_that_could_never_leave_the_node_is_not_marked() -> None:
    fits = len(SIGNER.for_log(b"", at_once=True))
    SIGNER.for_log(bytes(MAX_OP_BYTES - fits - 1))
    with pytest.raises(Malformed):
        SIGNER.for_log(bytes(MAX_OP_BYTES - fits + 2))


@pytest.mark.req("VX-07")
@given(st.integers(0, 2**40), st.binary(min_size=32, max_size=32))
def test_the_signed_end_of_a_log_binds_its_node_its_number_and_its_link(seq: int, chain: bytes) -> None:
    signature = SIGNER.end_signature(seq, chain)
    assert is_end_of(KEY.public, NODE, seq, chain, signature)
    other = bytes([chain[0] ^ 1]) + chain[1:]
    for wrong in ((NODE + 1, seq, chain), (NODE, seq + 1, chain), (NODE, seq, other)):
        assert not is_end_of(KEY.public, *wrong, signature)
    assert SIGNER.end_mark(seq, chain) not in (SIGNER.end_mark(seq + 1, chain), SIGNER.end_mark(seq, other))
