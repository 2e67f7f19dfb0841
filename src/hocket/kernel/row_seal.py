"""The seal of a row that a node keeps beside the log: a MAC under a key that only the node has. It shows the node that
it wrote the row itself. A store that nodes share can be written to by all of them.
"""

import hmac
from collections.abc import Sequence

import msgspec
from blake3 import blake3

from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey

SEAL_BYTES = 32
_CONTEXT = "hocket 2026-11 rows beside the log"
_encode = msgspec.msgpack.Encoder().encode

SealedValue = bytes | str | int | None


class RowSeal:
    """Seals the rows of one node."""

    __slots__ = ("_key", "node")

    def __init__(self, key: SigningKey) -> None:
        self.node = node_id(key.public).to_bytes(8, "big")
        self._key: bytes = blake3(key.seed, derive_key_context=_CONTEXT).digest()

    def of(self, table: str, values: Sequence[SealedValue]) -> bytes:
        """The seal of a row of this node."""
        return blake3(_encode((table, self.node, *values)), key=self._key).digest()

    def is_right(self, table: str, values: Sequence[SealedValue], seal: bytes) -> bool:
        return hmac.compare_digest(self.of(table, values), seal)
