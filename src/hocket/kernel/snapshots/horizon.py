"""The horizon in force on a log, as the fold needs it: which ops are late, and which names can no longer be here."""

from collections.abc import Mapping
from typing import NamedTuple

from hocket.kernel.clock import U32_MAX, U64_MAX, Hlc, pack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import DelegateUcan, ReportFork, RevokeRoot, RevokeUcan, SetSuccession, TakeOver

# These always count: who may write, and who decides, must not depend on when a node heard of it.
NEVER_LATE = (DelegateUcan, RevokeUcan, RevokeRoot, ReportFork, SetSuccession, TakeOver)
_NONE = Hlc(0, 0, 0)


def horizon_end(at_ms: int) -> Hlc:
    """The last time that a horizon settles."""
    return Hlc(at_ms, U32_MAX, U64_MAX)


class SettledCut(NamedTuple):
    """`heads` are the times of the last settled ops of authors. What has gone began at `forgotten_ms` or before."""

    horizon: bytes
    at_ms: int
    forgotten_ms: int
    heads: Mapping[int, Hlc]

    @property
    def end(self) -> bytes:
        """The last time that is settled, packed."""
        return pack(horizon_end(self.at_ms))

    def is_late(self, op: Op) -> bool:
        """Whether the op is from before the horizon, and was not there when the horizon was moved."""
        at = op.timestamp
        return at.wall <= self.at_ms and at > self.heads.get(at.node, _NONE) and not isinstance(op.payload, NEVER_LATE)

    def is_settled(self, at: Hlc) -> bool:
        """Whether an op of this time and author stands in front of the horizon."""
        return at <= self.heads.get(at.node, _NONE)

    def is_gone(self, name: bytes) -> bool:
        """Whether an op, a job or an artifact that is not here can no longer come and count."""
        return ulid_ms(name) <= self.at_ms

    def is_forgotten(self, made: bytes, at: Hlc) -> bool:
        """Whether an op of this time makes something that may have been here before, and gone."""
        return at.wall > self.at_ms and ulid_ms(made) <= self.forgotten_ms
