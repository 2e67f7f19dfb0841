"""The payloads about rows, which several agents may write."""

from enum import IntEnum

from hocket.kernel.family import FamilyPayload, Judged, Variant
from hocket.kernel.postcard import BYTES, STR, ULID, enum, option
from hocket.kernel.postcard import struct as fields

ROW = "row"


class Strategy(IntEnum):
    """What happens to a write whose author had read an older version of the row. Left is the write, right is what is
    stored.
    """

    TAKE_LEFT = 0
    TAKE_RIGHT = 1
    DEFER_TO_AGENT = 2
    MANUAL = 3


class PutRow(FamilyPayload, frozen=True):
    """Sets the row `table/key`. `value` is JSON; None deletes the row. `base` is the op that wrote the version that the
    author had read; None if there was no row.
    """

    row: str
    agent: str
    base: bytes | None
    value: bytes | None
    strategy: Strategy


class ResolveConflict(FamilyPayload, frozen=True):
    """Ends the conflict that this op caused; the row then has this value. `base` is the op that wrote the version that
    the author had read.
    """

    row: str
    agent: str
    conflict: bytes
    base: bytes
    value: bytes | None


_WRITE = Judged("Row", "Write", "key_prefix", "row")

VARIANTS = (
    Variant(
        1048,
        fields(PutRow, STR, STR, option(ULID), option(BYTES), enum(Strategy)),
        _WRITE,
        json=("value",),
        event="row.written",
    ),
    Variant(
        1049,
        fields(ResolveConflict, STR, STR, ULID, ULID, option(BYTES)),
        _WRITE,
        json=("value",),
        event="row.resolved",
    ),
)
