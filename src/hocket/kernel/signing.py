"""Signing a node's own ops after they are committed. Until then a mark stands in the place of the signature. The mark
has the size of a signature, so that signing replaces bytes and moves none. It is made with a secret of the node, so
that a program which can write to the store, but has no key, cannot make the node sign for it. No other node takes a
marked op for a signed one.

Ed25519 gives the same op the same signature every time. So any process of the node may sign an op that is marked,
several may do so at once, and an op can be signed for a peer before its signature is stored.
"""

from hashlib import blake2b

from hocket.kernel.jws import SIGNATURE_CHARS, base64url, detached
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import with_signature

_SECRET_CONTEXT = b"hocket mark\0"
# The second half of a mark. No signature ends so.
_UNSIGNED = bytes(32)
# How the text of such a mark ends.
_UNSIGNED_TEXT = b"A" * 42


class ForgedMark(Exception):
    """An op is marked as this node's, and the mark was not made with the node's key."""


def is_marked(op: bytes) -> bool:
    """Whether an op on the log of its author is not signed yet."""
    return op.endswith(_UNSIGNED_TEXT)


class OpSigner:
    """Marks and signs the ops of one node. It signs them `at_once` for a log that other nodes write, too: none of them
    could sign later what this node has left.
    """

    __slots__ = ("_at_once", "_field_bytes", "_secret", "_sign", "node", "seed")

    def __init__(self, key: SigningKey, node: int, *, at_once: bool = False) -> None:
        self.node = node
        self._at_once = at_once
        self.seed = key.seed
        self._sign = key.sign
        self._secret = blake2b(_SECRET_CONTEXT, key=key.seed, digest_size=32).digest()
        self._field_bytes = len(self.marked(b""))

    def for_log(self, body: bytes, *, at_once: bool = False) -> bytes:
        """The op for this node's log, from its unsigned bytes: marked, or signed if that is needed at once."""
        marked = self.marked(body)
        return self.signed_unchecked(marked) if at_once or self._at_once else marked

    def marked(self, body: bytes) -> bytes:
        """The op with a mark, from its unsigned bytes."""
        mark = blake2b(body, key=self._secret, digest_size=32).digest()
        return with_signature(body, detached(mark + _UNSIGNED, self.node))

    def signed(self, op: bytes) -> bytes:
        """The op with its signature. An op without a mark is given back as it is. Raises ForgedMark."""
        if is_marked(op) and self.marked(op[: -self._field_bytes]) != op:
            raise ForgedMark
        return self.signed_unchecked(op)

    def signed_unchecked(self, op: bytes) -> bytes:
        """The same for an op that this process has marked itself."""
        return self.completed(op, self._sign(self.message(op))) if is_marked(op) else op

    def message(self, op: bytes) -> bytes:
        """What is to be signed of a marked op."""
        return op[: -self._field_bytes] + b"\x00"

    def completed(self, op: bytes, signature: bytes) -> bytes:
        """A marked op with this signature, whose text is as long as that of the mark."""
        return op[:-SIGNATURE_CHARS] + base64url(signature)
