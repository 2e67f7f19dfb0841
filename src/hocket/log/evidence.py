"""What shows that ops are their authors': how each is signed, checked now, and a file of signed ops that others can
check. `audit` proves the whole log.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from hocket.kernel.ops import decode, verify_op
from hocket.kernel.postcard import Malformed, write_varint
from hocket.kernel.signing import OpSigner, is_mark
from hocket.kernel.vocabulary import Sanitised
from hocket.log import Log
from hocket.log.audit import trusted_keys
from hocket.store import OpRow, Session


class SignatureState(StrEnum):
    """`OWN` is an op that this node wrote and marked; it is signed when it leaves the node. `LEFT_OUT` is one that
    another node has cut for this one, without the signature. `UNKNOWN` is one of an author without a key here.
    """

    VERIFIED = "verified"
    OWN = "own"
    LEFT_OUT = "left out"
    UNKNOWN = "unknown key"
    BAD = "bad"


def signature_states(log: Log, session: Session, rows: Sequence[OpRow]) -> dict[int, SignatureState]:
    """How each of these ops is signed, by its number. A bundle is checked once for all its ops."""
    permissions = log.permissions(session)
    keys = trusted_keys(permissions.authority, permissions.delegations)
    found: dict[bytes, SignatureState] = {}
    for row in rows:
        entry = _entry(row)
        if entry not in found:
            found[entry] = _state(entry, keys, log.signer)
    return {row.seq: found[_entry(row)] for row in rows}


def _state(entry: bytes, keys: Mapping[int, bytes], marks: OpSigner) -> SignatureState:
    try:
        op = decode(entry)
    except Malformed:
        return SignatureState.BAD
    if isinstance(op.payload, Sanitised):
        return SignatureState.LEFT_OUT
    if op.signature is not None and is_mark(op.signature):
        return SignatureState.OWN if marks.is_own(entry) else SignatureState.BAD
    if op.node_id not in keys:
        return SignatureState.UNKNOWN
    return SignatureState.VERIFIED if verify_op(entry, op, keys[op.node_id]) else SignatureState.BAD


def signed_ops(log: Log, rows: Sequence[OpRow]) -> bytes:
    """Ops as a file in the form of an exported log, each signed. Ops of one bundle are the bundle."""
    entries = list(dict.fromkeys(map(_entry, rows)))
    file = bytearray()
    write_varint(file, len(entries))
    for entry in entries:
        file += log.signed(entry)
    return bytes(file)


def _entry(row: OpRow) -> bytes:
    """The bytes that were signed."""
    return row.body if row.bundle is None else row.bundle
