"""Signed entries for snapshots."""

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, encode, sign
from hocket.kernel.vocabulary import CancelJob


def kept_entry(wall: int = 1) -> bytes:
    key = SigningKey(bytes(32))
    node = node_id(key.public)
    op = Op(bytes(16), Hlc(wall, 0, node), node, (), CancelJob(bytes(16), "why"))
    return encode(sign(op, key))
