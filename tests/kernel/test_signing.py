"""Marks, which stand in the place of signatures until an op is signed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, encode, sign, unsigned, verify_op
from hocket.kernel.signing import ForgedMark, OpSigner, is_marked
from hocket.kernel.vocabulary import RouteKind

KEY, OTHER = SigningKey(bytes(32)), SigningKey(b"\x01" * 32)
NODE = node_id(KEY.public)
SIGNER = OpSigner(KEY, NODE)


def op(kind: str = "k", wall: int = 7) -> Op:
    return Op(bytes(16), Hlc(wall, 0, NODE), NODE, (), RouteKind(kind, None))


ops = st.builds(op, st.text(max_size=300), st.integers(0, 2**40))


@pytest.mark.req("LW-07")
@given(ops)
def test_a_marked_op_becomes_the_signed_one_and_keeps_its_size(op: Op) -> None:
    marked = SIGNER.marked(unsigned(op))
    signed = SIGNER.signed(marked)
    assert signed == encode(sign(op, KEY)) == SIGNER.signed_unchecked(marked)
    assert len(marked) == len(signed)
    assert is_marked(marked) and not is_marked(signed) and not is_marked(encode(op))
    assert SIGNER.signed(signed) == signed, "once is enough"


@pytest.mark.req("LW-07")
@given(ops)
def test_a_mark_is_no_signature(op: Op) -> None:
    marked = SIGNER.marked(unsigned(op))
    assert decode(marked).payload == op.payload
    assert not verify_op(marked, decode(marked), KEY.public)


@pytest.mark.touches("LW-07")
@given(ops, ops)
def test_what_the_node_did_not_mark_is_not_signed(mine: Op, theirs: Op) -> None:
    """Another key's mark, and a mark that was moved to another op."""
    with pytest.raises(ForgedMark):
        SIGNER.signed(OpSigner(OTHER, NODE).marked(unsigned(mine)))
    if mine != theirs:
        field = SIGNER.marked(b"")
        moved = unsigned(theirs) + SIGNER.marked(unsigned(mine))[-len(field) :]
        with pytest.raises(ForgedMark):
            SIGNER.signed(moved)
