"""A plain ScheduleJob op is recognised by its bytes, without reading it."""

import pytest

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import NO_ID, bound, decode, is_signed_by, link_to, plain_schedule, plain_schedule_link
from hocket.kernel.signing import OpSigner
from hocket.kernel.vocabulary import ScheduleJob

KEY, OTHER = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
NODE = node_id(KEY.public)
LINK = link_to(NO_ID)


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("logical", [0, 127, 128, 2**31])
@pytest.mark.parametrize("payload", [b"", b"{}", b"x" * 200, b"x" * 70_000])
def test_the_link_of_a_plain_schedule_is_found_if_the_id_follows_from_its_content(logical: int, payload: bytes) -> None:
    stamp = Hlc(1_700_000_000_000, logical, NODE)
    job_id, body = plain_schedule(None, stamp, LINK, "a.kind", payload)
    op = OpSigner(KEY, NODE, at_once=True).for_log(body)
    assert plain_schedule_link(op, job_id, stamp, "a.kind") == LINK == decode(op).link
    assert plain_schedule_link(op, job_id, stamp, "a.kinds") is None
    assert plain_schedule_link(op, job_id, stamp._replace(logical=1), "a.kind") is None
    for place in range(16, len(body), max(1, len(body) // 60)):
        changed = bytearray(op)
        changed[place] ^= 1
        assert plain_schedule_link(bytes(changed), job_id, stamp, "a.kind") is None


@pytest.mark.req("LW-48")
def test_an_op_with_options_is_not_plain() -> None:
    stamp = Hlc(1_700_000_000_000, 0, NODE)
    op, body = bound(stamp, (LINK,), ScheduleJob(NO_ID, "a.kind", b"{}", b'{"priority":1}'))
    assert plain_schedule_link(body + b"\x00", op.id, stamp, "a.kind") is None


@pytest.mark.req("LW-48")
def test_an_op_is_its_nodes_if_the_node_signs_it_so_again() -> None:
    _, body = bound(Hlc(1_700_000_000_000, 0, NODE), (LINK,), ScheduleJob(NO_ID, "a.kind", b"{}", b""))
    data = OpSigner(KEY, NODE, at_once=True).for_log(body)
    op = decode(data)
    assert is_signed_by(data, op, KEY)
    assert not is_signed_by(data, op, OTHER)
    changed = data.replace(b"{}", b"[]")
    assert not is_signed_by(changed, decode(changed), KEY)
