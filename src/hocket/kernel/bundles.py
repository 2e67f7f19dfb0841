"""Bundles: one envelope that carries several facts of its author, so that many small ops share one signature, one link
and one entry of the log. A bundle means exactly what its facts would mean as ops one after the other. At decoding it is
taken apart into ops, each with a time, an id and a standing of its own; nothing that judges, folds or cites an op
learns that it came in a bundle.

A bundle reserves as many steps of its author's logical clock as it has facts, after its own time. A fact's id is the
milliseconds of its time and a hash over its author, its time, what it depends on and its payload. So the id is known
before the bundle is complete, and a fact that is moved to another place is another fact. What stands before the link in
the bundle (a deadline or a beat) holds for each of its facts; they have no links. The facts of a bundle have one type,
and whoever writes it puts facts about jobs of one kind into it: a reader gets a bundle whole or not at all.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple

from msgspec.structs import astuple

from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.ids import digest, make_ulid
from hocket.kernel.jws import SIGNATURE_CHARS, SIGNATURE_END_CHARS
from hocket.kernel.ops import (
    NO_ID,
    SELF_NAMED,
    Op,
    before_deps_around,
    bound,
    decode,
    deps_bytes,
    logical_bytes,
    read_deps,
)
from hocket.kernel.postcard import U64, Malformed, Reader, StructCodec, encode
from hocket.kernel.vocabulary import (
    VARIANTS,
    AcceptOffer,
    AcceptWork,
    Bundle,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    FailWork,
    Payload,
    PostponeWork,
    ScheduleJob,
    YieldWork,
    number_of,
)

# A bundle has at most so many facts.
FACTS_MAX = 1024
_TYPES: tuple[type[Payload], ...] = (
    ScheduleJob,
    ClaimWork,
    CompleteJob,
    FailWork,
    YieldWork,
    PostponeWork,
    CreateArtifact,
    AcceptWork,
    AcceptOffer,
)
BUNDLED = frozenset(map(number_of, _TYPES))
_FACT_CONTEXT = b"hocket fact\0"
# What the bytes of a fact have more than those that are hashed: an id and no signature, but not the context.
_AROUND_BYTES = 17 - len(_FACT_CONTEXT)
# So many facts are kept of bundles that were taken apart. A job that is folded again needs one fact each of many
# bundles, and the next job often needs their neighbours.
FACTS_KEPT = 8_192
# And so many bytes of such bundles at most: their facts take about three times as much memory.
BYTES_KEPT = 16 * 1024 * 1024
# So many bundles of ScheduleJobs are kept for workers, which read one payload after the other.
_SCHEDULES_KEPT = 3
_SCHEDULE = encode(U64, number_of(ScheduleJob))
_UNSIGNED = b"\x00"
# What stands in a fact before its bundle's signature: a signature field of 87 bytes that begins with a one, as no mark
# and no text does.
BUNDLE_SIGNED = b"\x01\x57\x01"
# What a ScheduleJob depends on, its job, and its bytes after that.
_Schedule = tuple[tuple[bytes, ...], bytes, bytes]


class Fact(NamedTuple):
    """An op that came in a bundle, and its bytes: an envelope without a link and without a signature."""

    op: Op
    body: bytes


def fact(stamp: Hlc, deps: tuple[bytes, ...], payload: Payload, encoded: bytes) -> Fact:
    """The fact with this time. `deps` are the ops that it depends on, and what the bundle says for each of its facts.
    A job or an artifact without an id gets that of the fact. `encoded` is the payload as bytes.
    """
    op, body = bound(stamp, deps, payload, _FACT_CONTEXT, encoded)
    return Fact(op, body + _UNSIGNED)


class BundleDraft:
    """A bundle of payloads of one type, under construction. `begin` is its time, and `said` holds for each of its
    facts. It takes no fact beyond its size.
    """

    def __init__(self, payload: type[Payload], begin: Hlc, said: tuple[bytes, ...], size: int) -> None:
        self._number, self._begin, self._said, self._room = number_of(payload), begin, said, size
        self._tag, self._write = _tag(self._number), VARIANTS[self._number].write
        before, self._after = before_deps_around(begin)
        self._before, self._id_begins = _FACT_CONTEXT + before, make_ulid(begin.wall, bytes(10))[:6]
        self._content, self._deps, self._next, self._size = bytearray(), b"", b"", 0
        # The members of the last payload after its first one, the job, and their bytes: many that are written together
        # differ only in the job.
        self._is_about_job = payload in (ClaimWork, CompleteJob)
        self._others: list[Any] = []
        self._after_job = b""
        self.count = 0
        """How many facts it has."""
        self.at = Hlc(begin.wall, begin.logical + 1, begin.node)
        """The time of the next fact."""

    @property
    def end(self) -> Hlc:
        """The time of the last fact that the bundle can have."""
        return self._begin._replace(logical=self._begin.logical + FACTS_MAX)

    def name(self, cited: tuple[bytes, ...], payload: Payload, at: Hlc) -> bytes | None:
        """The id of the next fact, which the bundle does not have until it is kept; None if there is no room for it.
        The fact itself is `fact`, for those who need more than its id.
        """
        self._next = encoded = self._encoded(payload)
        self._deps = deps_bytes(cited)
        deps = deps_bytes((*cited, *self._said)) if self._said else self._deps
        content = b"".join((self._before, logical_bytes(at.logical), self._after, deps, self._tag, encoded))
        self._size = len(content) + _AROUND_BYTES
        is_full = self._size > self._room or self.count == FACTS_MAX
        return None if is_full else self._id_begins + digest(content, 10)

    def _encoded(self, payload: Payload) -> bytes:
        if self._is_about_job:
            job_id, *others = astuple(payload)
            if others == self._others:
                return job_id + self._after_job  # type: ignore[no-any-return]
        encoded = bytearray()
        self._write(encoded, payload)
        if self._is_about_job:
            self._others, self._after_job = others, bytes(encoded[16:])
        return bytes(encoded)

    def fact(self, cited: tuple[bytes, ...], payload: Payload, at: Hlc) -> Fact:
        """The fact that was named last."""
        return fact(at, (*cited, *self._said), payload, self._tag + self._next)

    def keep(self) -> None:
        """Keeps the fact that was named last."""
        self._content += self._deps
        self._content += self._next
        self._room -= self._size
        self.count += 1
        wall, logical, node = self.at
        self.at = Hlc(wall, logical + 1, node)

    def closed(self, link: bytes) -> tuple[Op, bytes]:
        """The bundle and its unsigned bytes."""
        return bound(self._begin, (*self._said, link), Bundle(self._number, bytes(self._content)))


def _tag(number: int) -> bytes:
    return encode(U64, number)


def facts_of(bundle: Op) -> Iterator[Fact]:
    """Takes a bundle apart. Raises Malformed."""
    payload, said = bundle.payload, _said(bundle)
    assert isinstance(payload, Bundle)
    if payload.variant not in BUNDLED:
        raise Malformed(f"payloads with the number {payload.variant} do not come in bundles")
    if bundle.cited or bundle.link is None:
        raise Malformed("a bundle has a link, and depends on nothing itself")
    (wall, begin, node), data = bundle.timestamp, payload.facts
    r, read = Reader(data), _reader(VARIANTS[payload.variant])
    (before, after), tag, logical = before_deps_around(bundle.timestamp), _tag(payload.variant), begin
    field = SELF_NAMED.get(VARIANTS[payload.variant].cls)
    while r.pos < len(data) or logical == begin:
        logical += 1
        if logical > min(U32_MAX, begin + FACTS_MAX):
            raise Malformed(f"a bundle has at most {FACTS_MAX} facts, and each has a time")
        start = r.pos
        deps, at = read_deps(r), r.pos
        value = read(r)
        stamp = Hlc(wall, logical, node)
        # Each value has one spelling, so that these bytes are those that its writer hashed.
        if field is not None:
            yield fact(stamp, (*deps, *said), value, tag + data[at : r.pos])
            continue
        written = data[start:at] if not said else deps_bytes((*deps, *said))
        rest = b"".join((before, logical_bytes(logical), after, written, tag, data[at : r.pos]))
        identity = make_ulid(wall, digest(_FACT_CONTEXT + rest, 10))
        yield Fact(Op(identity, stamp, node, (*deps, *said), value), identity + rest + _UNSIGNED)


def _reader(codec: StructCodec[Payload]) -> Callable[[Reader], Payload]:
    """Reads payloads one after the other. Many of those that differ only in their job are not read again."""
    if codec.cls not in (ClaimWork, CompleteJob):
        return codec.read
    make: Callable[..., Payload] = codec.cls
    others, after_job = (), b""

    def read(r: Reader) -> Payload:
        nonlocal others, after_job
        at = r.pos + 16
        if after_job and r.data.startswith(after_job, at):
            job_id = r.data[r.pos : at]
            r.pos = at + len(after_job)
            return make(job_id, *others)
        payload = codec.read(r)
        others, after_job = astuple(payload)[1:], r.data[at : r.pos]
        return payload

    return read


def _said(bundle: Op) -> tuple[bytes, ...]:
    """What a bundle says for each of its facts."""
    return bundle.causal_deps[len(bundle.cited) : -1]


def count_of(raw: bytes, op: Op) -> int:
    """How many facts a bundle has that came as these bytes; any other op is one."""
    if not isinstance(op.payload, Bundle):
        return 1
    try:
        return len(read_facts(raw))
    except Malformed:
        return 1


def last_time(op: Op) -> Hlc:
    """The time of an op, and of a bundle that of its last fact. Raises Malformed."""
    return max(each.op.timestamp for each in facts_of(op)) if isinstance(op.payload, Bundle) else op.timestamp


class _FactCache:
    """Bundles that were taken apart, the least recently read first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._facts: OrderedDict[bytes, tuple[Fact, ...]] = OrderedDict()
        self.count = self.bytes = 0

    def get(self, bundle: bytes) -> tuple[Fact, ...] | None:
        with self._lock:
            facts = self._facts.get(bundle)
            if facts is not None:
                self._facts.move_to_end(bundle)
            return facts

    def put(self, bundle: bytes, facts: tuple[Fact, ...]) -> None:
        with self._lock:
            if self._facts.setdefault(bundle, facts) is facts:
                self.count += len(facts)
                self.bytes += len(bundle)
            while self.count > FACTS_KEPT or self.bytes > BYTES_KEPT:
                oldest, gone = self._facts.popitem(last=False)
                self.count -= len(gone)
                self.bytes -= len(oldest)


kept = _FactCache()


def read_facts(bundle: bytes) -> tuple[Fact, ...]:
    """The facts of the bundle that these bytes are. Raises Malformed."""
    facts = kept.get(bundle)
    if facts is None:
        facts = tuple(facts_of(decode(bundle)))
        kept.put(bundle, facts)
    return facts


def schedule_body(bundle: bytes, place: int, job_op: bytes) -> bytes:
    """The bytes of a ScheduleJob in a bundle, whose id the caller knows. They are put together without a hash, so
    whoever does not believe the id takes `read_facts`. Raises Malformed and IndexError.
    """
    (before, begin, after), said, facts = _schedules(bundle)
    deps, job_id, payload = facts[place]
    number, name = logical_bytes(begin + 1 + place), job_op if job_id == NO_ID else job_id
    return b"".join((job_op, before, number, after, deps_bytes((*deps, *said)), _SCHEDULE, name, payload, _UNSIGNED))


def with_bundle_signature(fact: bytes, bundle: bytes) -> bytes:
    """The bytes of a fact with its bundle's signature in the place of its own, for whoever needs the seed of its job.
    They never leave the node, and nobody takes them for a signed op. A bundle that only has a mark adds nothing.
    """
    if not fact or bundle[-SIGNATURE_END_CHARS:-SIGNATURE_CHARS] != b"..":
        return fact
    return fact[: -len(_UNSIGNED)] + BUNDLE_SIGNED + bundle[-SIGNATURE_CHARS:]


@lru_cache(maxsize=_SCHEDULES_KEPT)
def _schedules(bundle: bytes) -> tuple[tuple[bytes, int, bytes], tuple[bytes, ...], list[_Schedule]]:
    """The time of a bundle of ScheduleJobs as bytes around its logical part, what the bundle says for all of them, and
    each of them.
    """
    op, found = decode(bundle), list[_Schedule]()
    if not isinstance(op.payload, Bundle) or op.payload.variant != number_of(ScheduleJob):
        raise Malformed("the bundle schedules no jobs")
    data = op.payload.facts
    r = Reader(data)
    while r.pos < len(data):
        deps = read_deps(r)
        at = place = r.pos + 16
        for _ in range(3):  # kind, payload and policy
            if data[place] <= 0x7F:
                place += data[place] + 1
            else:
                r.pos = place
                place = r.varint() + r.pos
        r.pos = place
        found.append((deps, data[at - 16 : at], data[at:place]))
    before, after = before_deps_around(op.timestamp)
    return (before, op.timestamp.logical, after), _said(op), found
