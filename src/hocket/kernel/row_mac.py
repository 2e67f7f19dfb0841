"""The MAC of a row that a node keeps beside the log, under a key that only the node has. It shows the node that
it wrote the row itself. A store that nodes share can be written and read by all of them: secrets that admit a caller
are encrypted there.
"""

from collections.abc import Sequence

import msgspec
from blake3 import blake3

from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey

MAC_BYTES = 32
_CONTEXT = "hocket 2026-11 rows beside the log"
_CONCEALED_CONTEXT = "hocket 2026-11 concealed values beside the log"
_NONCE_BYTES = 16
_encode = msgspec.msgpack.Encoder().encode

MacValue = bytes | str | int | None


class RowMac:
    """Gives the rows of one node their MACs."""

    __slots__ = ("_concealing", "_key", "node")

    def __init__(self, key: SigningKey) -> None:
        self.node = node_id(key.public).to_bytes(8, "big")
        self._key: bytes = blake3(key.seed, derive_key_context=_CONTEXT).digest()
        self._concealing: bytes = blake3(key.seed, derive_key_context=_CONCEALED_CONTEXT).digest()

    def of(self, table: str, values: Sequence[MacValue]) -> bytes:
        """The MAC of a row of this node."""
        return blake3(_encode((table, self.node, *values)), key=self._key).digest()

    def is_right(self, table: str, values: Sequence[MacValue], mac: bytes) -> bool:
        from hmac import compare_digest  # loads OpenSSL's hashes, which reading jobs does not need

        return compare_digest(self.of(table, values), mac)

    def conceal(self, value: bytes) -> bytes:
        """Encrypts a value, always to the same bytes. The nonce is a MAC of the value, so no two values share one."""
        nonce = blake3(b"nonce" + value, key=self._concealing).digest(_NONCE_BYTES)
        return nonce + self._masked(nonce, value)

    def reveal(self, concealed: bytes) -> bytes:
        """What was concealed. Of anything else it gives some bytes."""
        return self._masked(concealed[:_NONCE_BYTES], concealed[_NONCE_BYTES:])

    def _masked(self, nonce: bytes, value: bytes) -> bytes:
        mask = blake3(b"mask" + nonce, key=self._concealing).digest(len(value))
        return bytes(one ^ other for one, other in zip(value, mask, strict=True))
