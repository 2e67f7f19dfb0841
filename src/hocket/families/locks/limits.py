"""How much of one scope of locks one node may use, whatever the other nodes use. The arbiter checks this before it
writes or accepts an op, and not the fold: an op that the arbiter has put in force stays in force when a newer program,
which may know other limits, folds the log again. So no fence is given twice.
"""

from typing import Protocol

from hocket.families.locks.facts import AcquireLocks, BreakLock
from hocket.families.locks.index import LockRequest
from hocket.families.locks.key_patterns import is_pattern
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason

# Of one key.
STARS_MAX = 8
# Keys with stars of one request.
PATTERNS_MAX = 16
# Of one node in one scope: its holds, its waits, their keys with stars, and the characters of all their keys.
HOLDS_MAX = 4096
WAITS_MAX = 1024
NODE_PATTERNS_MAX = 64
NODE_CHARS_MAX = 256 * 1024


class NodesRequest(LockRequest, Protocol):
    """A hold or a wait of a node. `op` is the op that asked for it."""

    @property
    def node(self) -> int: ...
    @property
    def op(self) -> bytes: ...


class UsedScope(Protocol):
    """What nodes hold and wait for in a scope."""

    @property
    def holds(self) -> tuple[NodesRequest, ...]: ...
    @property
    def waits(self) -> tuple[NodesRequest, ...]: ...


def excess(scope: UsedScope | None, op: Op) -> Reason | None:
    """Why the arbiter does not put this op in force: it asks for more than one request, or one node, may have."""
    payload = op.payload
    if isinstance(payload, BreakLock):
        return Reason.BAD_PATTERN if payload.key.count("*") > STARS_MAX else None
    if not isinstance(payload, AcquireLocks):
        return None
    wanted = payload.keys
    patterns = sum(map(is_pattern, wanted))
    if patterns > PATTERNS_MAX or (patterns and any(key.count("*") > STARS_MAX for key in wanted)):
        return Reason.BAD_PATTERN
    if scope is None:
        return None
    holds = [hold for hold in scope.holds if hold.node == op.node_id]
    waits = [wait for wait in scope.waits if wait.node == op.node_id and wait.op not in op.cited]
    keys = [key for each in (*holds, *waits) for key in each.keys]
    is_too_much = (
        len(holds) >= HOLDS_MAX
        or (len(waits) >= WAITS_MAX and payload.wait_ms > 0)
        or (patterns and sum(map(is_pattern, keys)) + patterns > NODE_PATTERNS_MAX)
        or sum(map(len, keys)) + sum(map(len, wanted)) > NODE_CHARS_MAX
    )
    return Reason.TOO_MANY_LOCKS if is_too_much else None
