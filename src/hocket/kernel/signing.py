"""Marking and signing a node's own ops. On the node's log a short mark stands in the place of the signature. It is made
with a secret of the node, so that a program which can write to the store, but has no key, cannot make the node sign for
it. No other node takes a marked op for a signed one.

An op gets its signature when it leaves the node. Ed25519 gives the same op the same signature every time, so any
process of the node may sign it, and every receiver gets the same bytes.

Two signed ops of one author can prove that it has two histories: an honest author links each op to the one before it,
at a later time, so no two of its ops share a link, a time or an id, and none has the time of a fact in a bundle. The
proof holds both ops as they were signed and the author's key, so that any node can check it. `authority` decides what
follows for the author's ops; the log finds the two ops.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

from hocket.kernel.bundles import last_time
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.jws import SIGNATURE_CHARS, detached, detached_prefix
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.ops import MAX_OP_BYTES, MAX_SIGNATURE_BYTES, Op, decode, is_bound, verify_op, with_signature
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import Bundle, ReportFork

_MARK_BYTES = 16
_SECRET_CONTEXT = b"hocket mark\0"
# What stands before a mark: a signature field of 17 bytes that begins with a zero, as no text does.
_FIELD = b"\x01\x11\x00"
_FIELD_BYTES = len(_FIELD) + _MARK_BYTES
# Signed ops up to this size are kept for the next receiver, so many of them.
_KEPT_BYTES = 2048
_KEPT_OPS = 2048
_END_CONTEXT = b"hocket log end\0"
# Marks were longer before version 12 of the store. The second half of such a mark was empty, and its text ended so.
_LONG_END = b"A" * 42
_LONG_EMPTY = bytes(32)


class ForgedMark(Exception):
    """An op is marked as this node's, and the mark was not made with the node's key."""


def is_marked(op: bytes) -> bool:
    """Whether an op on the log of its author bears a mark and no signature."""
    return op[-_FIELD_BYTES:-_MARK_BYTES] == _FIELD


def is_mark(signature: bytes) -> bool:
    """Whether this content of a signature field is a mark."""
    return signature.startswith(_FIELD[-1:])


def signed_form(op: bytes, node: int) -> bytes:
    """The bytes that the signature of an op of this node covers, whether the op is signed or marked. Raises Malformed
    for an op without either, which was changed for its reader.
    """
    if is_marked(op):
        return op[:-_FIELD_BYTES] + b"\x00"
    head = _signature_head(node)
    end = len(op) - len(head) - SIGNATURE_CHARS
    if end < 0 or not op.startswith(head, end):
        raise Malformed("the op has no signature of its author")
    return op[:end] + b"\x00"


@lru_cache(maxsize=1024)
def _signature_head(node: int) -> bytes:
    """What stands between the body of an op of this node and the characters of the signature."""
    prefix = detached_prefix(node)
    return with_signature(b"", prefix + bytes(SIGNATURE_CHARS))[:-SIGNATURE_CHARS]


def has_long_mark(op: bytes) -> bool:
    """Whether a program before version 12 of the store has marked an op and left it so."""
    return op.endswith(_LONG_END)


def end_message(node: int, seq: int, chain: bytes) -> bytes:
    """What a node signs of the end of its log: the number of the last op, and its link."""
    return _END_CONTEXT + node.to_bytes(8, "big") + seq.to_bytes(8, "big") + chain


def is_end_of(public: bytes, node: int, seq: int, chain: bytes, signature: bytes) -> bool:
    return verify(public, signature, end_message(node, seq, chain))


class OpSigner:
    """Marks and signs the ops of one node. It signs them `at_once` for a log that other nodes write, too: none of them
    could sign later what this node has left.
    """

    __slots__ = ("_at_once", "_end_context", "_kept", "_marking", "_secret", "_sign", "_sign_end", "node")

    def __init__(self, key: SigningKey, node: int, *, at_once: bool = False) -> None:
        self.node = node
        self._at_once = at_once
        self._sign = key.sign
        # The end is signed 50 times a second at most, and a node without peers signs nothing else.
        self._sign_end = key.sign_with_sodium
        self._secret = blake2b(_SECRET_CONTEXT, key=key.seed, digest_size=32).digest()
        self._marking = blake2b(key=self._secret, digest_size=_MARK_BYTES)
        self._end_context = _END_CONTEXT + node.to_bytes(8, "big")
        self._kept = lru_cache(maxsize=_KEPT_OPS)(self._signed)

    def for_log(self, body: bytes, *, at_once: bool = False) -> bytes:
        """The op for this node's log, from its unsigned bytes: marked, or signed if that is needed at once."""
        if at_once or self._at_once:
            return self._signed(body)
        if len(body) > MAX_OP_BYTES - 2 * MAX_SIGNATURE_BYTES:
            self._signed(body)  # raises Malformed for an op that could never leave the node
        return body + _FIELD + self._mark(body)

    def is_own(self, op: bytes) -> bool:
        """Whether this node has marked an op that bears a mark."""
        return self._mark(op[:-_FIELD_BYTES]) == op[-_MARK_BYTES:]

    def signed(self, op: bytes) -> bytes:
        """The op with its signature. An op without a mark is given back as it is. Raises ForgedMark."""
        if not is_marked(op):
            return op
        if not self.is_own(op):
            return self._foreign(op)
        body = op[:-_FIELD_BYTES]
        return self._kept(body) if len(body) <= _KEPT_BYTES else self._signed(body)

    def _foreign(self, op: bytes) -> bytes:
        """An op that was sanitised for this node has no signature, and may end with any bytes."""
        try:
            if decode(op).node_id != self.node:
                return op
        except Malformed:
            pass
        raise ForgedMark

    def without_long_mark(self, op: bytes) -> bytes:
        """The signed op from one with a long mark. Raises ForgedMark."""
        size = len(with_signature(b"", detached(bytes(64), self.node)))
        body = op[:-size]
        long_mark = blake2b(body, key=self._secret, digest_size=32).digest() + _LONG_EMPTY
        if with_signature(body, detached(long_mark, self.node)) != op:
            raise ForgedMark
        return self._signed(body)

    def note_signature(self, message: bytes) -> bytes:
        """The raw signature on a message of a checkpoint. No op begins as these do."""
        return self._sign(message)

    def end_mark(self, seq: int, chain: bytes) -> bytes:
        """Shows the node's own processes that one of them wrote this end of the log."""
        return self._mark(self._end_context + seq.to_bytes(8, "big") + chain)

    def end_signature(self, seq: int, chain: bytes) -> bytes:
        """Shows everyone that the node had this log."""
        return self._sign_end(end_message(self.node, seq, chain))

    def _mark(self, body: bytes) -> bytes:
        mark = self._marking.copy()
        mark.update(body)
        return mark.digest()

    def _signed(self, body: bytes) -> bytes:
        return with_signature(body, detached(self._sign(body + b"\x00"), self.node))


# Two ops must fit into the op that reports them.
BOUND_OP_BYTES_MAX = (MAX_OP_BYTES - 1024) // 2


class Forked(NamedTuple):
    """The node, and the time from which on it has two histories."""

    node: int
    since: Hlc


def is_fork(left: Op, right: Op) -> bool:
    """Whether two ops of one author, both bound to their content, cannot be in one history."""
    if left == right:
        return False
    same_link = left.link is not None and left.link == right.link
    return same_link or left.id == right.id or _share_a_time(left, right)


def _share_a_time(left: Op, right: Op) -> bool:
    """A bundle takes the times of its facts, too."""
    first, second = sorted((left, right), key=lambda op: op.timestamp)
    if not isinstance(first.payload, Bundle):
        return first.timestamp == second.timestamp
    try:
        return second.timestamp <= last_time(first)
    except Malformed:
        return first.timestamp == second.timestamp


def read_fork(report: ReportFork) -> Forked | None:
    """What a report proves; None if it proves nothing."""
    node = node_id(report.public)
    ops: list[Op] = []
    for data in (report.left, report.right):
        try:
            op = decode(data)
        except Malformed:
            return None
        if op.node_id != node or not verify_op(data, op, report.public) or not is_bound(data, op):
            return None
        ops.append(op)
    left, right = ops
    return Forked(node, min(left.timestamp, right.timestamp)) if is_fork(left, right) else None
