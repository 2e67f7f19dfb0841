"""How long ops from other nodes take in write transactions, in virtual time. The real time would make a seed come out
differently each time; so the model counts what an op is compared with. The arbiter compares a request for locks, key by
key, with the holds and the waits of the same node, which its keys may meet; the rules' limits bound that.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from hocket.families.locks.facts import LOCK, AcquireLocks
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.log.intake import Intake

# What every op takes, what one comparison takes, and what an op takes at most.
OP_S = 0.0005
COMPARED_S = 0.002
OP_S_MAX = 0.04


class StoreTime:
    """The seconds that the transactions of a run have taken; the stopwatch of all its nodes."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def __call__(self) -> float:
        return self.spent_s

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the ops that any node admits, while the run lasts."""
        plain = Intake.take

        def take(intake: Intake, raw: bytes, op: Op, reason: Reason | None) -> None:
            plain(intake, raw, op, reason)
            self.spent_s += cost_s(intake, op)

        Intake.take = take  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Intake.take = plain  # type: ignore[method-assign]


def cost_s(intake: Intake, op: Op) -> float:
    payload, projection = op.payload, intake.tx.projection
    if not isinstance(payload, AcquireLocks) or projection.arbiter(op.timestamp) != intake.tx.node:
        return OP_S
    scope = projection.projectors[LOCK].state(payload.scope.encode())
    rivals = () if scope is None else (*scope.holds, *scope.waits)
    compared = sum(len(each.keys) for each in rivals if each.node == op.node_id)
    return min(OP_S_MAX, OP_S + COMPARED_S * len(payload.keys) * compared)
