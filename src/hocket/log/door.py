"""Who gets in: whether an op from elsewhere was signed by a node that this user has introduced. A node that
nobody has heard of introduces itself by a delegation of the user's, in an op that it signed itself. What an op
then means, and whether it counts, is decided by the fold.
"""

from collections.abc import Sequence
from concurrent.futures import Executor

from hocket.kernel.ops import Op, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.reasons import Reason
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log.parallel import in_parallel

# The last millisecond that a ULID can hold, in the year 10889.
WALL_MAX = 2**48 - 1

Received = tuple[bytes, Op]


def judge(ops: Sequence[Received], keys: dict[int, bytes], user: str, helpers: Executor | None) -> list[Reason | None]:
    """Why each op is turned away, None for those that may come in. `keys` are the nodes known so far; those
    that are introduced here are added.
    """
    # Introductions are few and come first, since the others hang on them; the rest is verified on all cores.
    introductions = {op.id: _introduce(raw, op, keys, user) for raw, op in ops if isinstance(op.payload, DelegateUcan)}

    def check(part: Sequence[Received]) -> list[Reason | None]:
        return [introductions[op.id] if op.id in introductions else _check(raw, op, keys) for raw, op in part]

    return in_parallel(helpers, check, ops)


def _introduce(raw: bytes, op: Op, keys: dict[int, bytes], user: str) -> Reason | None:
    assert isinstance(op.payload, DelegateUcan)
    try:
        delegation = read_ucan(op.payload.ucan_bytes)
    except Malformed:
        return Reason.MALFORMED
    if delegation.issuer != user:
        return Reason.FOREIGN_USER
    if delegation.cid != op.payload.ucan_cid:
        return Reason.MALFORMED
    known = keys if op.node_id in keys or delegation.node != op.node_id else {op.node_id: delegation.public}
    refused = _check(raw, op, known)
    if refused is None:
        keys.setdefault(delegation.node, delegation.public)
    return refused


def _check(raw: bytes, op: Op, keys: dict[int, bytes]) -> Reason | None:
    if op.timestamp.wall > WALL_MAX:
        return Reason.BEYOND_TIME
    key = keys.get(op.node_id)
    if key is None:
        return Reason.UNKNOWN_NODE
    return None if verify_op(raw, op, key) else Reason.BAD_SIGNATURE
