"""The signed envelope around every message on the bus. The bus can lose, repeat and reorder messages, and anyone who
reaches its server can send some. So each message carries its mesh, its author, its time and its subject, and the
author's signature over all of that. `open_envelope` decides whether a message counts: it is from a member of this mesh,
for this subject, not older or newer than the clocks allow, and comes for the first time.
"""

from collections.abc import Callable
from enum import StrEnum
from heapq import heappop, heappush

import msgspec

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SIGNATURE_BYTES, SigningKey, verify
from hocket.kernel.postcard import BOOL, BYTES, NODE, STR, U32, U64, Malformed, Reader, encode, fixed, tuple_of

FORM = 1
PROCESS_BYTES = 8
DATA_BYTES_MAX = 65_536
# What surrounds the data: two subjects, the mesh, the numbers and the signature.
SEALED_BYTES_MAX = DATA_BYTES_MAX + 8_192
# Clocks of a mesh may differ by its skew, but never by less than this.
LIFE_MS = 60_000
# How long an announcement is kept for those who subscribe later.
KEPT_MS = 600_000
# How many messages of one author are remembered. Of the messages before them, none counts any more.
REMEMBERED = 1_024

_CONTEXT = b"hocket bus message 1\0"
_BODY = tuple_of(U32, STR, NODE, U64, U32, fixed(PROCESS_BYTES), BOOL, STR, STR, BYTES)


class Drop(StrEnum):
    """Why a message does not count."""

    TOO_LONG = "too long"
    MALFORMED = "malformed"
    UNSIGNED = "unsigned"  # without a signature, or with one that its author did not make
    FOREIGN = "foreign"  # for another mesh, or another subject
    STALE = "stale"  # too old, or too far ahead
    UNKNOWN = "unknown"  # its author is not a member of this mesh
    REPLAYED = "replayed"


class Envelope(msgspec.Struct, frozen=True):
    """A message with its author, `at.node`. A node may be several processes, whose clocks can show the same time; so
    each of them has a random `process`. `is_kept` marks an announcement.
    """

    cluster: str
    at: Hlc
    process: bytes
    subject: str
    data: bytes
    reply_to: str = ""
    is_kept: bool = False


def seal(envelope: Envelope, key: SigningKey) -> bytes:
    """The envelope with the signature of its author, whose key this is. Raises Malformed if it is too long."""
    if len(envelope.data) > DATA_BYTES_MAX:
        raise Malformed(f"a message has at most {DATA_BYTES_MAX} bytes, not {len(envelope.data)}")
    if envelope.at.node != node_id(key.public):
        raise Malformed("a node signs only messages of its own")
    body = _body(envelope)
    if len(body) + SIGNATURE_BYTES > SEALED_BYTES_MAX:
        raise Malformed("the subjects of a message are too long")
    return body + key.sign(_CONTEXT + body)


def open_envelope(
    data: bytes,
    cluster: str,
    subject: str,
    key_of: Callable[[int], bytes | None],
    now_ms: int,
    seen: "Seen",
    life_ms: int = LIFE_MS,
) -> Envelope | Drop:
    """The message that came on this subject, or why it does not count. `key_of` knows the members' keys. A message that
    counts is remembered in `seen`. The signature is checked last, because that takes longest.
    """
    if len(data) > SEALED_BYTES_MAX:
        return Drop.TOO_LONG
    reader = Reader(data)
    try:
        envelope = _read(reader)
    except Malformed:
        return Drop.MALFORMED
    if reader.remaining() not in (0, SIGNATURE_BYTES):
        return Drop.MALFORMED
    if len(envelope.data) > DATA_BYTES_MAX:
        return Drop.TOO_LONG
    if not reader.remaining():
        return Drop.UNSIGNED
    if envelope.cluster != cluster or envelope.subject != subject:
        return Drop.FOREIGN
    age_ms = now_ms - envelope.at.wall
    if not -life_ms <= age_ms <= life_ms + (KEPT_MS if envelope.is_kept else 0):
        return Drop.STALE
    public = key_of(envelope.at.node)
    if public is None:
        return Drop.UNKNOWN
    if not seen.is_new(envelope):
        return Drop.REPLAYED
    if not verify(public, data[reader.pos :], _CONTEXT + data[: reader.pos]):
        return Drop.UNSIGNED
    seen.note(envelope)
    return envelope


def open_value(data: bytes, cluster: str, subject: str, key_of: Callable[[int], bytes | None]) -> Envelope | None:
    """A value that stays on a server, where it may be old and is read many times; None if no member has signed it for
    this subject.
    """
    reader = Reader(data)
    try:
        envelope = _read(reader)
    except Malformed:
        return None
    public = key_of(envelope.at.node)
    if public is None or (envelope.cluster, envelope.subject) != (cluster, subject):
        return None
    is_signed = reader.remaining() == SIGNATURE_BYTES and len(data) <= SEALED_BYTES_MAX
    return envelope if is_signed and verify(public, data[reader.pos :], _CONTEXT + data[: reader.pos]) else None


def read_envelope(data: bytes) -> Envelope | None:
    """What a message of any author says; None if it is not a message."""
    try:
        return _read(Reader(data)) if len(data) <= SEALED_BYTES_MAX else None
    except Malformed:
        return None


class Seen:
    """The messages that have come, so that none counts twice. It remembers the newest of each author, announcements
    apart from the others: those may be old when they come. Of what lies before them nothing counts, so an author that
    sends too much, or too far out of order, loses messages of its own and of no other.
    """

    def __init__(self, limit: int = REMEMBERED) -> None:
        self._limit = limit
        self._authors: dict[tuple[int, bool], _Author] = {}

    def is_new(self, envelope: Envelope) -> bool:
        author = self._authors.get((envelope.at.node, envelope.is_kept))
        mark = _mark(envelope)
        return author is None or (mark > author.floor and mark not in author.seen)

    def note(self, envelope: Envelope) -> None:
        author = self._authors.setdefault((envelope.at.node, envelope.is_kept), _Author())
        mark = _mark(envelope)
        author.seen.add(mark)
        heappush(author.by_time, mark)
        if len(author.seen) > self._limit:
            author.floor = heappop(author.by_time)
            author.seen.remove(author.floor)


_Mark = tuple[int, int, bytes]


class _Author:
    """`seen` are the messages that are remembered, and `floor` is the newest that was forgotten."""

    __slots__ = ("by_time", "floor", "seen")

    def __init__(self) -> None:
        self.floor: _Mark = (-1, 0, b"")
        self.seen: set[_Mark] = set()
        self.by_time: list[_Mark] = []


def _mark(envelope: Envelope) -> _Mark:
    return envelope.at.wall, envelope.at.logical, envelope.process


def _body(envelope: Envelope) -> bytes:
    wall, logical, node = envelope.at
    fields = (FORM, envelope.cluster, node, wall, logical, envelope.process, envelope.is_kept)
    return encode(_BODY, (*fields, envelope.subject, envelope.reply_to, envelope.data))


def _read(reader: Reader) -> Envelope:
    form, cluster, node, wall, logical, process, is_kept, subject, reply_to, data = _BODY.read(reader)
    if form != FORM:
        raise Malformed(f"unknown form of envelope: {form}")
    return Envelope(cluster, Hlc(wall, logical, node), process, subject, data, reply_to, is_kept)
