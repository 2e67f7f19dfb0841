"""The mesh-rules document: what every node of a mesh must agree on before it exchanges a single op. Two nodes compare
its hash; `mesh` decides what happens if the hashes differ. The Likewise document names its content and leaves its
layout open; ours is a version, the caveat names and the sanitisation names, in the order of its chapters. A mesh that
uses Hocket's extensions has a block for them after these, and one with bound ids has a second block. Two bytes may
follow: whether ranked jobs are open, and whether ops come in bundles. What is no and stands last is left out, so that a
mesh without all of these has exactly the bytes, and the hash, of a strict one.
"""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import astuple, replace

from hocket.kernel.ids import content_hash
from hocket.kernel.postcard import BOOL, STR, U32, U64, Malformed, Reader, encode, pair, seq
from hocket.kernel.postcard import struct as fields
from hocket.kernel.ucan import Quota
from hocket.kernel.vocabulary import EXTENSION_BASE

RULES_BYTES_MAX = 64 * 1024
SKEW_MS_DEFAULT = 300_000
LATE_MS_DEFAULT = 86_400_000
# A read-only node writes little: its introduction, and proofs of what it has found out about others.
READERS_DEFAULT = Quota(ops_per_s=20, bytes_per_s=64 * 1024, ops=20_000, bytes=32 * 1024**2)
# More than a busy worker writes.
WRITERS_DEFAULT = Quota(ops_per_s=2_000, bytes_per_s=8 * 1024**2, ops=100_000_000, bytes=64 * 1024**3)
IDLE_OPS_DEFAULT = 2_000
# Ops that only the coordinator writes in ordinary work. A mesh that derives more adds them by `hocket mesh rules set`.
DERIVATION_OPS = ("CascadeTombstone",)
DERIVATION_KINDS = ("likewise.derive.",)

CAVEATS = ("source_types", "predicates", "kind_prefix", "time_range", "sanitize", "audit_inference")
SANITIZE = ("StripGeo", "RedactParticipants", "TruncateContent", "StripCustomMetadata")


class Extensions(Struct, frozen=True):
    """What a mesh of Hocket nodes agrees on beyond Likewise v0.1: the numbers and names of the extra payloads; whether
    the coordinator decides claims; how far ahead of a receiver's clock an op may be before it is held; and which
    payloads and which kinds of job count only from the coordinator in force.
    """

    variants: tuple[tuple[int, str], ...]
    arbiter: bool
    skew_ms: int
    derivation_ops: tuple[str, ...] = ()
    derivation_kinds: tuple[str, ...] = ()


class Bounds(Struct, frozen=True):
    """What keeps a member from doing more than it was granted. Ids are bound to content, and ops to their author's
    previous op. An op that arrives longer than `late_ms` after the end of the delegation that it relies on waits for
    the owner's decision. `readers` and `writers` are the quotas of nodes whose invitation sets none: of read-only
    nodes, and of all others but the owner's. `idle_ops` is how many ops that do not count one author may leave on one
    job, because they are read again whenever the job is folded again.
    """

    late_ms: int = LATE_MS_DEFAULT
    readers: Quota = READERS_DEFAULT
    writers: Quota = WRITERS_DEFAULT
    idle_ops: int = IDLE_OPS_DEFAULT


class Rules(Struct, frozen=True):
    """With `ranked_open`, a job that workers claim by rank is open if neither its submitter nor its kind says
    otherwise, so that no coordinator is needed. With `bundles`, one envelope may carry several facts.
    """

    version: str = "0.1"
    caveats: tuple[str, ...] = CAVEATS
    sanitize: tuple[str, ...] = SANITIZE
    extensions: Extensions | None = None
    bounds: Bounds | None = None
    ranked_open: bool = False
    bundles: bool = False

    @property
    def is_strict(self) -> bool:
        """Whether the mesh keeps to Likewise v0.1: no node writes Hocket's own payloads in it."""
        return self.extensions is None


# The extra payloads that a mesh with these rules agrees on. What a newer program knows beyond them is no part of the
# rules: a node that does not know it keeps it and passes it on, so nothing is ever added here.
VARIANTS_AGREED = (
    (1024, "FailWork"),
    (1025, "CancelJob"),
    (1026, "RetryJob"),
    (1027, "ReportProgress"),
    (1028, "SetSchedule"),
    (1029, "ClearSchedule"),
    (1030, "AcceptWork"),
    (1031, "Sanitised"),
    (1032, "ReportFork"),
    (1033, "RevokeRoot"),
)

STRICT = Rules()
# Only the extensions, for logs from before ids were bound.
UNBOUND = Rules(
    extensions=Extensions(
        variants=VARIANTS_AGREED,
        arbiter=True,
        skew_ms=SKEW_MS_DEFAULT,
        derivation_ops=DERIVATION_OPS,
        derivation_kinds=DERIVATION_KINDS,
    )
)
HOCKET = replace(UNBOUND, bounds=Bounds(), bundles=True)

_NAMES = seq(STR, limit=1024)
_EXTENSIONS = fields(Extensions, seq(pair(U32, STR), limit=1024), BOOL, U64, _NAMES, _NAMES)
_QUOTA = fields(Quota, U64, U64, U64, U64)
_BOUNDS = fields(Bounds, U64, _QUOTA, _QUOTA, U64)
_DEFAULT_QUOTAS = encode(_BOUNDS, Bounds(0))[1:]


def encode_rules(rules: Rules) -> bytes:
    if rules.bounds is not None and None in (*astuple(rules.bounds.readers), *astuple(rules.bounds.writers)):
        raise Malformed("the quotas of a mesh must set every limit")
    data = encode(STR, rules.version) + encode(_NAMES, rules.caveats) + encode(_NAMES, rules.sanitize)
    if rules.extensions is not None:
        data += encode(_EXTENSIONS, rules.extensions)
    if rules.bounds is not None:
        data += encode(_BOUNDS, rules.bounds)
    if rules.ranked_open or rules.bundles:
        data += encode(BOOL, rules.ranked_open)
    if rules.bundles:
        data += encode(BOOL, True)
    _check(rules, len(data))
    return data


def decode_rules(data: bytes) -> Rules:
    r = Reader(data)
    version, caveats, sanitize = STR.read(r), _NAMES.read(r), _NAMES.read(r)
    extensions = _EXTENSIONS.read(r) if r.remaining() else None
    bounds = _BOUNDS.read(r) if r.remaining() else None
    said = [BOOL.read(r) for _ in range(min(r.remaining(), 2))]
    if said and not said[-1]:
        raise Malformed("what the rules leave out is no")
    rules = Rules(version, caveats, sanitize, extensions, bounds, *said)
    if r.remaining():
        raise Malformed(f"{r.remaining()} bytes follow the rules")
    _check(rules, len(data))
    return rules


def decode_kept_rules(data: bytes) -> Rules:
    """The rules as a home stores them. The first programs that bound ids stored only the limit on late ops; such a mesh
    has the default quotas.
    """
    try:
        return decode_rules(data)
    except Malformed:
        return decode_rules(data + _DEFAULT_QUOTAS)


@lru_cache(maxsize=16)
def rules_hash(rules: Rules) -> bytes:
    return content_hash(encode_rules(rules))


def _check(rules: Rules, size: int) -> None:
    if size > RULES_BYTES_MAX:
        raise Malformed(f"rules of {size} bytes; at most {RULES_BYTES_MAX}")
    if rules.bounds is not None and rules.extensions is None:
        raise Malformed("bounds need extensions, and there are none")
    if (rules.ranked_open or rules.bundles) and rules.bounds is None:
        raise Malformed("open ranked jobs and bundles need bounds, and there are none")
    if rules.extensions is not None:
        numbers = [number for number, _ in rules.extensions.variants]
        if numbers != sorted(set(numbers)) or any(number < EXTENSION_BASE for number in numbers):
            raise Malformed(f"extra payloads are numbered from {EXTENSION_BASE} on, ascending")
