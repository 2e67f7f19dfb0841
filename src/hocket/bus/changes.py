"""What has changed, as a small value: the kinds of job that may have work ready, and the subjects that were touched. A
listener's topics have the same form, and a change matches them if they have a kind or a subject in common.

An empty name stands for everything of its sort: the kind "" for every kind, the key b"" for a whole family, the family
"" for every family. A kind that ends in a dot stands for all kinds below it. So a change that would grow too large is
widened ("some job" instead of a thousand ids), and an unreadable change is ANYTHING. Widening is always safe, since a
listener that wakes in vain only looks in vain.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from hocket.kernel.postcard import BYTES, STR, U32, Codec, Malformed, Reader, pair, seq, tuple_of, write_varint

# Families of subjects, and their keys. The subjects of ops are families, too: a job, by its id.
CLAIM = "claim"  # a job's id: a worker of this node lost its claim on the job
IDLE = "idle"  # a kind: a worker has a free slot for its jobs, and others hold them all
LOG = "log"  # no key: ops were written
PEER = "peer"  # an address: the operator changed the list of peers
GIT = "git"  # a content id: a job was submitted to a repository
OUTPUT = "output"  # a job's id: its output is wanted

KINDS_MAX = 16
KEYS_MAX = 16
FAMILIES_MAX = 16

# Earlier versions wrote bytes of 1 into the pipes, so no message begins with one.
FORM = 2
_EVERY_KIND, _EVERY_FAMILY, _WHOLE = "", "", b""

Subject = tuple[str, bytes]
_MESSAGE: Codec[tuple[Any, ...]] = tuple_of(U32, seq(STR), seq(pair(STR, seq(BYTES))))


class Changes(msgspec.Struct, frozen=True):
    kinds: frozenset[str] = frozenset()
    subjects: frozenset[Subject] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.kinds or self.subjects)

    def __or__(self, other: "Changes") -> "Changes":
        if not self or self == other:
            return other
        return gathered(self.kinds | other.kinds, _by_family(self.subjects | other.subjects)) if other else self

    def matches(self, topics: "Changes") -> bool:
        kinds, subjects = self.kinds, self.subjects
        return bool(
            (kinds and topics.kinds and _kinds_meet(kinds, topics.kinds))
            or (subjects and topics.subjects and _subjects_meet(subjects, topics.subjects))
        )

    def widened(self) -> "Changes":
        """These changes with every kind instead of some, and whole families instead of keys."""
        kinds = frozenset((_EVERY_KIND,)) if self.kinds else self.kinds
        return Changes(kinds, frozenset((family, _WHOLE) for family, _ in self.subjects))


NOTHING = Changes()
ANYTHING = Changes(frozenset((_EVERY_KIND,)), frozenset(((_EVERY_FAMILY, _WHOLE),)))


def about(family: str, key: bytes = _WHOLE) -> Changes:
    """A change of one subject, or of a whole family."""
    return Changes(subjects=frozenset(((family, key),)))


def gathered(kinds: Collection[str], keys: Mapping[str, Collection[bytes]]) -> Changes:
    """A change of these kinds, and of these keys in each family, within limits: too many of a sort become all of that
    sort.
    """
    if len(kinds) > KINDS_MAX or _EVERY_KIND in kinds:
        kinds = (_EVERY_KIND,)
    if len(keys) > FAMILIES_MAX or _EVERY_FAMILY in keys:
        return Changes(frozenset(kinds), ANYTHING.subjects)
    subjects: set[Subject] = set()
    for family, found in keys.items():
        if len(found) > KEYS_MAX or _WHOLE in found:
            subjects.add((family, _WHOLE))
        else:
            subjects.update((family, key) for key in found)
    return Changes(frozenset(kinds), frozenset(subjects))


def _by_family(subjects: frozenset[Subject]) -> dict[str, set[bytes]]:
    keys: dict[str, set[bytes]] = {}
    for family, key in subjects:
        keys.setdefault(family, set()).add(key)
    return keys


def _kinds_meet(left: frozenset[str], right: frozenset[str]) -> bool:
    return not left.isdisjoint(right) or _begins(left, right) or _begins(right, left)


def _begins(prefixes: frozenset[str], kinds: frozenset[str]) -> bool:
    """Whether a kind on the right is below one on the left."""
    for prefix in prefixes:
        if (not prefix or prefix[-1] == ".") and any(kind.startswith(prefix) for kind in kinds):
            return True
    return False


def _subjects_meet(left: frozenset[Subject], right: frozenset[Subject]) -> bool:
    return not left.isdisjoint(right) or _covers(left, right) or _covers(right, left)


def _covers(left: frozenset[Subject], right: frozenset[Subject]) -> bool:
    """Whether a subject on the right belongs to a family that is whole on the left."""
    for family, key in left:
        if not key and (family == _EVERY_FAMILY or any(family == other for other, _ in right)):
            return True
    return False


# As bytes: exactly one form for each value.


def encode_changes(changes: Changes) -> bytes:
    out = bytearray((FORM,))
    write_varint(out, len(changes.kinds))
    for kind in sorted(changes.kinds):
        STR.write(out, kind)
    keys = _by_family(changes.subjects)
    write_varint(out, len(keys))
    for family in sorted(keys):
        STR.write(out, family)
        write_varint(out, len(keys[family]))
        for key in sorted(keys[family]):
            BYTES.write(out, key)
    return bytes(out)


def encode_within(changes: Changes, size: int) -> bytes:
    """At most this many bytes, widened as far as needed. ANYTHING takes seven."""
    for each in (changes, changes.widened()):
        if len(data := encode_changes(each)) <= size:
            return data
    return encode_changes(ANYTHING)


def decode_changes(data: bytes) -> Changes:
    """Raises Malformed."""
    reader = Reader(data)
    changes = _read_one(reader)
    if reader.remaining():
        raise Malformed(f"{reader.remaining()} bytes follow the changes")
    return changes


def decode_or_anything(data: bytes) -> Changes:
    """The sum of one or several messages. An unreadable one may mean anything."""
    reader = Reader(data)
    merged = NOTHING
    try:
        while reader.remaining():
            merged |= _read_one(reader)
    except Malformed:
        return ANYTHING
    return merged


def _read_one(reader: Reader) -> Changes:
    """The next message. Raises Malformed."""
    kinds: tuple[str, ...]
    families: tuple[tuple[str, tuple[bytes, ...]], ...]
    form, kinds, families = _MESSAGE.read(reader)
    if form != FORM:
        raise Malformed(f"unknown form of changes: {form}")
    _check_ascending(kinds)
    _check_ascending([family for family, _ in families])
    for family, keys in families:
        _check_ascending(keys)
        if not keys:
            raise Malformed(f"the family {family!r} has no keys")
    return Changes(frozenset(kinds), frozenset((family, key) for family, keys in families for key in keys))


def _check_ascending(values: Sequence[str] | Sequence[bytes]) -> None:
    if any(left >= right for left, right in pairwise(values)):  # type: ignore[operator]
        raise Malformed("changes are not in order")
