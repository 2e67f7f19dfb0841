"""Forks: when two ops prove that their author has two histories, and from which time on. An honest author links each op
to the one before it, at a later time, so no two of its ops share a link, a time or an id, and none has the time of a
fact in a bundle. The proof holds both ops as they were signed and the author's key, so that any node can check it. The
permissions decide what follows for the author's ops; the log finds the two ops.
"""

from typing import NamedTuple

from hocket.kernel.bundles import last_time
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.ops import MAX_OP_BYTES, Op, decode, is_bound, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import Bundle, ReportFork

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
