"""The payloads by which a log forgets: the owner's rules of how long what has ended is kept, and the horizon that the
coordinator moves. Everything up to the horizon is settled.
"""

from enum import IntEnum

from msgspec import Struct

from hocket.kernel.clock import Hlc
from hocket.kernel.family import FamilyPayload, Judged, Variant
from hocket.kernel.postcard import BOOL, BYTES, NODE, STR, U32, U64, ULID, enum, fixed, option, pair, seq
from hocket.kernel.postcard import struct as fields

RETENTION = "retention"
# All ops of this family are about one subject.
RETENTION_KEY = b""
# A horizon lies so far behind the op that moves it, so that ops which were on their way have come.
SETTLED_MS = 3_600_000
# What has ended stays at least so long after its end.
KEEP_MS_MIN = 3_600_000
# The artifacts of windows, which are of no job and whose ids begin with the window's time: what a window was, and the
# report of it. Every node must let the same ones go, also one that runs without the extension that writes them.
WINDOW_TYPE = "hocket.bar-window"
REPORT_TYPE = "hocket.bar-report"
# The most heads, and the most subjects, that one horizon names.
HEADS_MAX = KEPT_MAX = 65_536


class Retained(IntEnum):
    """What a rule is about. Blobs go with the jobs that name them."""

    JOBS = 0
    MESSAGES = 1
    WINDOWS = 2


class AuthorHead(Struct, frozen=True):
    """The last entry of an author up to a horizon: the time of its last op, and its id."""

    node: int
    wall: int
    logical: int
    entry: bytes

    @property
    def at(self) -> Hlc:
        return Hlc(self.wall, self.logical, self.node)


class SetRetention(FamilyPayload, frozen=True):
    """How long what has ended is kept: for `keep_ms`, or the newest `keep_count` of each kind, or what either keeps. A
    rule without both removes an earlier one. `match` is a kind, a prefix of kinds that ends with a dot, or empty for
    all. Nothing is deleted before it is in an archive, unless the rule `waives_archive`, and before so many `witnesses`
    have cosigned what remains.
    """

    what: Retained
    match: str
    keep_ms: int | None
    keep_count: int | None
    waives_archive: bool
    witnesses: int


class MoveHorizon(FamilyPayload, frozen=True):
    """Everything up to the end of the millisecond `at_ms` is settled, as far as the heads of authors reach. `before` is
    the op of the horizon before. The op depends on the rules that decide what goes; `kept` are subjects, each a family
    and a key, that stay all the same. `root` is that of the tree over what remains (`kernel.snapshots`). `is_archived`
    says that all entries up to the heads are in an archive.
    """

    at_ms: int
    before: bytes | None
    heads: tuple[AuthorHead, ...]
    kept: tuple[tuple[str, bytes], ...]
    root: bytes
    is_archived: bool


HEAD = fields(AuthorHead, NODE, U64, U32, ULID)
# The rules of the family say who may write them: the owner, and who moves the horizon.
_OWNER = Judged("Mesh", "Write", is_owners=True)
_WRITTEN = Judged("Ops", None)

VARIANTS = (
    Variant(
        1055,
        fields(SetRetention, enum(Retained), STR, option(U64), option(U64), BOOL, U64),
        _OWNER,
        event="retention.set",
    ),
    Variant(
        1056,
        fields(
            MoveHorizon,
            *(U64, option(ULID), seq(HEAD, HEADS_MAX), seq(pair(STR, BYTES), KEPT_MAX), fixed(32), BOOL),
        ),
        _WRITTEN,
        event="horizon.moved",
    ),
)
