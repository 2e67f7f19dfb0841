"""The envelope of an op: its author, its time, what it follows, and the signature over it. This module decides which
bytes an op is, which of them are signed, and what its id and its link commit to. `authority` and the roster decide
whether the author is known, allowed, and in time; the store keeps the bytes.

Under bound rules an op's id is the milliseconds of its time and a hash over the rest of its envelope, so a citation
commits to the whole op and no op can take another's id. The id of a job, a message or an artifact is that of the op
that makes it, or a hash over its author and its content. Two further commitments follow the ops that an op depends on,
in the same field. The last is its link, a hash of the author's previous op: an author's ops form one chain, and two ops
with the same link prove that their author has two histories. Before the link there may be a pin, the time and a hash of
the last op that the author knew of another node: an op that this node shows later under an earlier time was not known
then. A request that another node decides has a deadline in the place of the pin, and any other op of a node with a
tempo has its beat there.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from hocket.kernel.clock import U32_MAX, Hlc, hlc_text, wall_text
from hocket.kernel.ids import digest, make_ulid
from hocket.kernel.jws import SIGNATURE_BEGINS, SIGNATURE_END_CHARS, detached, detached_prefix, open_detached
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.postcard import (
    BYTES,
    NODE,
    STR,
    U32,
    U64,
    Malformed,
    Reader,
    UnknownVariant,
    fixed,
    option,
    seq,
    varint_bytes,
    write_varint,
)
from hocket.kernel.postcard import encode as encode_value
from hocket.kernel.vocabulary import (
    PAYLOAD,
    VARIANTS,
    CreateArtifact,
    Payload,
    ScheduleJob,
    Unknown,
    by_payload,
    number_of,
)

MAX_OP_BYTES = 4 * 1024 * 1024
MAX_DEPS = 1024
MAX_SIGNATURE_BYTES = 256
SCHEMA_VERSION = 1
_VERSION = bytes((SCHEMA_VERSION,))

_DEPS = seq(fixed(16), limit=MAX_DEPS)
_SIGNATURE = option(BYTES)
_read_u32, _read_u64, _read_node = U32.read, U64.read, NODE.read
read_deps = _DEPS.read
_read_payload, _write_payload = PAYLOAD.read, PAYLOAD.write
_read_signature = _SIGNATURE.read
_SCHEDULE_NUMBER = number_of(ScheduleJob)
_SCHEDULE = encode_value(U64, _SCHEDULE_NUMBER)
# Version, wall, logical, and the node twice.
_NUMBERS_BEFORE_DEPS = 5
# No op id begins like this: its milliseconds would lie beyond the year 10800.
_LINK_MARK, _PIN_MARK = 0xFF, 0xFE
NO_ID = bytes(16)
# An unknown payload may contain bytes that look like a signature, and each try costs a hash.
_SIGNATURES_TRIED = 4


# The payloads that make something, and the field with its id, which may be that of the op.
SELF_NAMED = by_payload(lambda each: each.made or None)
_FORESEEN = by_payload(lambda each: each.foreseen)
_OP_CONTEXT = b"hocket op\0"
# No pin ends like this. Programs that know no deadlines take one for a pin, which has no meaning in a request.
_DEADLINE_END = b"\xff\xff\xff\xff" + digest(b"hocket deadline\0", 5)
_BEAT_END = b"\xff\xff" + digest(b"hocket tempo beat\0", 5)


class Op(msgspec.Struct, frozen=True):
    """One signed record of the log. `signature` holds the bytes of the field, which is a detached JWS."""

    id: bytes
    timestamp: Hlc
    node_id: int
    causal_deps: tuple[bytes, ...]
    payload: Payload
    signature: bytes | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def cited(self) -> tuple[bytes, ...]:
        """The ops that it depends on: its causal dependencies without pin and link."""
        deps = self.causal_deps
        if not deps or deps[-1][0] < _PIN_MARK:
            return deps
        return deps[:-1] if len(deps) == 1 or deps[-2][0] < _PIN_MARK else deps[:-2]

    @property
    def link(self) -> bytes | None:
        deps = self.causal_deps
        return deps[-1] if deps and deps[-1][0] == _LINK_MARK else None

    @property
    def pin(self) -> bytes | None:
        """What commits to the last op that the author knew of another node."""
        pins = [dep for dep in self.causal_deps[-2:] if dep[0] == _PIN_MARK and dep[7:] != _DEADLINE_END]
        return next((dep for dep in pins if not dep.endswith(_BEAT_END)), None)

    @property
    def deadline(self) -> int | None:
        """The time, by the arbiter's own clock, until which the author waits for the decision on this request. After it
        the arbiter does not accept the request.
        """
        for dep in self.causal_deps[-2:]:
            if dep[0] == _PIN_MARK and dep[7:] == _DEADLINE_END:
                return int.from_bytes(dep[1:7], "big")
        return None

    @property
    def beat(self) -> "BeatMark | None":
        """The beat in which its author wrote it, if the author has a tempo."""
        for dep in self.causal_deps[-2:]:
            if dep[0] == _PIN_MARK and dep.endswith(_BEAT_END):
                return BeatMark(int.from_bytes(dep[1:7], "big"), int.from_bytes(dep[7:9], "big"))
        return None


class BeatMark(NamedTuple):
    """A beat of the window that began at that time."""

    window_ms: int
    beat_index: int


class Beat(msgspec.Struct, frozen=True):
    """`index` counts from 1 within the bar. `window_ms` is the time of the bar's downbeat."""

    index: int
    epoch_ms: int
    window_ms: int

    @property
    def is_downbeat(self) -> bool:
        return self.index == 1


class BeatPlace(msgspec.Struct, frozen=True):
    """A beat and its window, as people and programs read them, with a time in it."""

    beat_index: int
    window: str
    hlc: str


def stamp_of(op: Op) -> BeatPlace | None:
    """The stamp that an op bears, and so the message or the artifact that it makes."""
    mark = op.beat
    return None if mark is None else BeatPlace(mark.beat_index, wall_text(mark.window_ms), hlc_text(op.timestamp))


def stamp_json(op: Op) -> dict[str, Any] | None:
    stamp = stamp_of(op)
    return None if stamp is None else msgspec.structs.asdict(stamp)


def link_to(previous: bytes) -> bytes:
    """What an op carries of its author's previous op; `NO_ID` stands for "none before". It is a hash, so that a reader
    that may not have that op does not learn its id.
    """
    return b"\xff" + digest(b"hocket link\0" + previous, 15)


def pin_to(stamp: Hlc, op_id: bytes) -> bytes:
    """What commits an op to the last op that its author knows of another node."""
    time = stamp.wall.to_bytes(6, "big") + stamp.logical.to_bytes(4, "big")
    return b"\xfe" + time + digest(b"hocket pin\0" + op_id, 5)


def pinned_time(pin: bytes, node: int) -> Hlc:
    """The time of the pinned op, which is the node's."""
    return Hlc(int.from_bytes(pin[1:7], "big"), int.from_bytes(pin[7:11], "big"), node)


def deadline_at(wall: int) -> bytes:
    """What a request carries of the time until which its author waits."""
    return b"\xfe" + wall.to_bytes(6, "big") + _DEADLINE_END


def beat_at(mark: BeatMark) -> bytes:
    """What an op carries of the beat in which it was written."""
    return b"\xfe" + mark.window_ms.to_bytes(6, "big") + mark.beat_index.to_bytes(2, "big") + _BEAT_END


def bind(op: Op) -> tuple[Op, bytes]:
    """The op under the id that its envelope gives it, and its unsigned bytes. A job or an artifact without an id gets
    that of the op.
    """
    return bound(op.timestamp, op.causal_deps, op.payload)


def bound(
    stamp: Hlc,
    deps: tuple[bytes, ...],
    payload: Payload,
    context: bytes = _OP_CONTEXT,
    encoded: bytes | None = None,
) -> tuple[Op, bytes]:
    """The op with this content, under the id that its content gives it in that context, and its unsigned bytes.
    `encoded` is the payload, if the caller has its bytes.
    """
    rest, at = _rest(stamp, deps, payload, encoded)
    identity = make_ulid(stamp.wall, digest(context + rest, 10))
    field = SELF_NAMED.get(type(payload))
    if field is not None and getattr(payload, field) == NO_ID:
        # The bytes between the payload's beginning and the name never contain that many zeros.
        place = rest.index(NO_ID, at)
        rest = rest[:place] + identity + rest[place + 16 :]
        payload = msgspec.structs.replace(payload, **{field: identity})
    return Op(identity, stamp, stamp.node, deps, payload), identity + rest


def is_bound(data: bytes, op: Op) -> bool:
    """Whether the ids in these received bytes match their content. A job's id may also be derived from something else,
    which the fold knows.
    """
    payload = op.payload
    body = data[: len(data) - _tail_bytes(op.signature)]
    field = SELF_NAMED.get(type(payload))
    if field is not None:
        named = getattr(payload, field)
        if named == op.id:
            # An op cannot contain its own id by chance, so its first occurrence is the name.
            place = body.index(op.id, 16)
            body = body[:place] + NO_ID + body[place + 16 :]
        elif is_misnamed(op):
            return False
    return op.timestamp.wall >> 48 == 0 and _bound_id(op.timestamp.wall, body) == op.id


def is_misnamed(op: Op) -> bool:
    """Whether an op makes an artifact or a message that has neither its id nor one that its author could foresee."""
    payload = op.payload
    if isinstance(payload, ScheduleJob) or (field := SELF_NAMED.get(type(payload))) is None:
        return False
    return getattr(payload, field) not in (op.id, _other_name(op))


def _other_name(op: Op) -> bytes | None:
    """The id that something made by this op may have besides the op's own."""
    if isinstance(op.payload, CreateArtifact):
        return artifact_id(op.node_id, op.payload)
    return foreseen_id(op.node_id, op.payload) if type(op.payload) in _FORESEEN else None


def _bound_id(wall: int, body: bytes) -> bytes:
    return make_ulid(wall, digest(_OP_CONTEXT + body[16:], 10))


def artifact_id(node: int, payload: CreateArtifact) -> bytes:
    """The id of an artifact that this node creates, if it is needed before the op is written. Its milliseconds are
    those of the id in the payload; the rest is a hash over author and content.
    """
    unnamed = encode_value(PAYLOAD, msgspec.structs.replace(payload, artifact_id=NO_ID))
    made = payload.artifact_id[:6]
    return made + digest(b"hocket artifact\0" + made + node.to_bytes(8, "big") + unnamed, 10)


def foreseen_id(node: int, payload: Payload) -> bytes:
    """The id of a job or a message of this node, if it is needed before the op is written. Its milliseconds are those
    of the id in the payload; the rest is a hash over the author and the content. The policy of the job and the receiver
    of the message are left out: the log decides about both when the op is written.
    """
    context, content = _FORESEEN[type(payload)]
    made: bytes = getattr(payload, SELF_NAMED[type(payload)])[:6]
    return made + digest(b"".join((context, made, node.to_bytes(8, "big"), content(payload))), 10)


def _check(op: Op) -> None:
    # Another schema version may have other shapes under the same numbers, so it is refused and not guessed at.
    if op.schema_version != SCHEMA_VERSION:
        raise Malformed(f"schema version {op.schema_version} is not known here")
    if op.timestamp.node != op.node_id:
        raise Malformed("the timestamp's node is not the op's node")
    if op.signature is not None and len(op.signature) > MAX_SIGNATURE_BYTES:
        raise Malformed(f"a signature field has at most {MAX_SIGNATURE_BYTES} bytes")


def unsigned(op: Op) -> bytes:
    """The envelope up to the signature field. These bytes and a zero, for "no signature", are signed."""
    _check(op)
    if len(op.id) != 16:
        raise Malformed(f"an op id has 16 bytes, not {len(op.id)}")
    return op.id + _rest(op.timestamp, op.causal_deps, op.payload)[0]


def _rest(stamp: Hlc, deps: tuple[bytes, ...], payload: Payload, encoded: bytes | None = None) -> tuple[bytes, int]:
    """The bytes between the id and the signature field, and where the payload begins in them."""
    out = bytearray(before_deps(stamp))
    out += deps_bytes(deps)
    at = len(out)
    if encoded is not None:
        out += encoded
    elif type(payload) is Unknown:
        write_varint(out, payload.number)
        out += payload.content
    else:
        _write_payload(out, payload)
    return bytes(out), at


def before_deps(stamp: Hlc) -> bytes:
    """The bytes between the id of an op and what it depends on."""
    return _version_and_wall(stamp.wall) + logical_bytes(stamp.logical) + _node_twice(stamp.node)


def before_deps_around(stamp: Hlc) -> tuple[bytes, bytes]:
    """The bytes between the id of an op and what it depends on, before and after the logical part of its time."""
    return _version_and_wall(stamp.wall), _node_twice(stamp.node)


@lru_cache(maxsize=2048)
def logical_bytes(logical: int) -> bytes:
    return encode_value(U32, logical)


def deps_bytes(deps: tuple[bytes, ...]) -> bytes:
    """What an op depends on, as it is written."""
    if not deps:
        return b"\x00"
    if len(deps) == 1 and len(deps[0]) == 16:
        return b"\x01" + deps[0]
    return encode_value(_DEPS, deps)


def plain_schedule(
    job_id: bytes | None, stamp: Hlc, link: bytes | None, kind: str, payload: bytes
) -> tuple[bytes, bytes]:
    """The id and the unsigned bytes of the op that schedules a job of its own id without special options, built in one
    step: it is the most common op and the only one that is written alone. Without a `job_id` the id is bound.
    """
    head = before_deps(stamp) + (b"\x00" if link is None else b"\x01" + link) + _SCHEDULE
    rest = b"".join((_text(kind), varint_bytes(len(payload)), payload, b"\x00"))
    if job_id is None:
        job_id = stamp.wall.to_bytes(6, "big") + digest(_OP_CONTEXT + head + NO_ID + rest, 10)
    return job_id, job_id + head + job_id + rest


def plain_schedule_link(data: bytes, job_id: bytes, stamp: Hlc, kind: str) -> bytes | None:
    """The link of the op that schedules this job of its own id without special options, if these bytes are one and its
    id follows from its content; else None. This is much faster than to read the op. It does not look at the signature.
    """
    head = job_id + before_deps(stamp) + b"\x01"
    at = len(head) + 16
    place = at + len(_SCHEDULE)
    kind_text = _text(kind)
    if not (data.startswith(head) and data.startswith(_SCHEDULE + job_id + kind_text, at)):
        return None
    try:
        r = Reader(data, place + 16 + len(kind_text))
        size = r.varint()
    except Malformed:
        return None
    end = r.pos + size + 1
    if data[end - 1 : end] != b"\x00":
        return None
    content = b"".join((_OP_CONTEXT, data[16:place], NO_ID, data[place + 16 : end]))
    return data[at - 16 : at] if stamp.wall.to_bytes(6, "big") + digest(content, 10) == job_id else None


# A node writes many ops in a millisecond and always under one id, so these bytes are worth caching.


@lru_cache(maxsize=64)
def _version_and_wall(wall: int) -> bytes:
    return _VERSION + varint_bytes(wall)


@lru_cache(maxsize=4096)
def _node_twice(node: int) -> bytes:
    return encode_value(NODE, node) * 2


@lru_cache(maxsize=4096)
def _text(value: str) -> bytes:
    return encode_value(STR, value)


@lru_cache(maxsize=64)
def _signature_head(size: int) -> bytes:
    return b"\x01" + encode_value(U64, size)


def _tail_bytes(signature: bytes | None) -> int:
    """The size of the signature field."""
    return 1 if signature is None else len(_signature_head(len(signature))) + len(signature)


def with_signature(body: bytes, signature: bytes) -> bytes:
    """The complete op from its unsigned bytes and the bytes of its signature field."""
    data = body + _signature_head(len(signature)) + signature
    if len(signature) > MAX_SIGNATURE_BYTES or len(data) > MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes, {MAX_SIGNATURE_BYTES} of them signature")
    return data


def encode(op: Op) -> bytes:
    body = unsigned(op)
    if op.signature is not None:
        return with_signature(body, op.signature)
    if len(body) >= MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes")
    return body + b"\x00"


def _read_envelope(r: Reader) -> Op:
    start = r.pos
    op_id = r.take(16)
    version = _read_u32(r)
    if version != SCHEMA_VERSION:
        raise Malformed(f"schema version {version} is not known here")
    timestamp = Hlc(_read_u64(r), _read_u32(r), _read_node(r))
    node, deps, at = _read_node(r), read_deps(r), r.pos
    try:
        payload = _read_payload(r)
    except UnknownVariant as error:
        payload = _read_unknown(r, start, at, op_id, timestamp, error)
    return Op(op_id, timestamp, node, deps, payload, _read_signature(r), version)


def _read_unknown(r: Reader, start: int, at: int, op_id: bytes, timestamp: Hlc, error: UnknownVariant) -> Unknown:
    """A payload that this program does not know. Nothing marks its end; but a signature follows it. If ids are bound,
    the right signature is the one before which the bytes give the op's id. Else it is the first of the op's author;
    should that be a part of the payload, it will not verify.
    """
    r.pos = at
    number, begins = _read_u64(r), r.pos
    if number in VARIANTS or number > U32_MAX or timestamp.wall >> 48:
        raise error
    data, place, first = r.data, begins, 0
    for _ in range(_SIGNATURES_TRIED):
        place = data.find(SIGNATURE_BEGINS, place + 1, start + MAX_OP_BYTES)
        if place < 0:
            break
        dots = data.find(b"..", place, place + MAX_SIGNATURE_BYTES)
        head = _signature_head(max(dots - place, 0) + SIGNATURE_END_CHARS)
        ends = place - len(head)
        if ends < begins or data[ends:place] != head:
            continue
        if _bound_id(timestamp.wall, data[start:ends]) == op_id:
            first = ends
            break
        if not first and data.startswith(detached_prefix(timestamp.node), place):
            first = ends
    if not first:
        raise error
    r.pos = first
    return Unknown(number, data[begins:first])


def read_op(r: Reader) -> Op:
    """The op at the reader's position."""
    start = r.pos
    op = _read_envelope(r)
    if r.pos - start > MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes")
    _check(op)
    return op


def decode(data: bytes) -> Op:
    """Decodes all of data as one op."""
    if len(data) > MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes, not {len(data)}")
    r = Reader(data)
    op = read_op(r)
    if r.remaining():
        raise Malformed(f"{r.remaining()} bytes follow the op")
    return op


def schedule_payload(data: bytes) -> bytes:
    """The payload of the job that this op schedules, without reading the rest of the op."""
    r = Reader(data)
    place = 16
    for _ in range(_NUMBERS_BEFORE_DEPS):
        while data[place] > 0x7F:
            place += 1
        place += 1
    r.pos = place
    r.take(16 * r.varint())
    if r.varint() != _SCHEDULE_NUMBER:
        raise Malformed("the op schedules no job")
    r.take(16)
    r.take(r.varint())
    return r.take(r.varint())


def sign(op: Op, key: SigningKey) -> Op:
    signature = detached(key.sign(unsigned(op) + b"\x00"), op.node_id)
    return msgspec.structs.replace(op, signature=signature)


def verify_op(data: bytes, op: Op, public: bytes) -> bool:
    """Whether the holder of this key signed these received bytes, of which op is the decoding."""
    parts = _signature_and_message(data, op)
    return parts is not None and verify(public, *parts)


def is_signed_by(data: bytes, op: Op, key: SigningKey) -> bool:
    """The answer of `verify_op` for an op of the node that has this key. It signs again and compares, since a key gives
    the same message the same signature; that takes a quarter of the time.
    """
    parts = _signature_and_message(data, op)
    return parts is not None and key.sign(parts[1]) == parts[0]


def _signature_and_message(data: bytes, op: Op) -> tuple[bytes, bytes] | None:
    """The signing form is cut out of the bytes and never encoded again, so what is verified is what was sent."""
    if op.signature is None:
        return None
    try:
        signature = open_detached(op.signature, op.node_id)
        body = data[: len(data) - _tail_bytes(op.signature)]
        return (signature, body + b"\x00") if with_signature(body, op.signature) == data else None
    except Malformed:
        return None


def encode_sequence(ops: Sequence[bytes]) -> bytes:
    """A batch of ops that are already encoded."""
    count = bytearray()
    write_varint(count, len(ops))
    return b"".join((count, *ops))


def read_sequence(data: bytes) -> Iterator[tuple[bytes, Op | Malformed]]:
    """Each op of a batch with its own bytes, or the reason why it is not an op.

    Postcard puts no length before a payload. An op whose end cannot be found (another schema version, truncated input,
    an unknown variant without a signature) therefore hides where the next one begins: it is yielded as a Malformed
    together with all the remaining bytes, of which the first 16 are its id, and reading stops. To get the ops after it,
    the sender of the batch must be asked again from there, in smaller batches. An op that can be read to its end but
    breaks a rule is yielded as a Malformed with its own bytes, and reading continues.
    """
    r = Reader(data)
    start = 0
    try:
        count = r.varint()
        for _ in range(count):
            start = r.pos
            op = _read_envelope(r)
            raw = r.data[start : r.pos]
            yield raw, _fault(op, len(raw)) or op
        start = r.pos
        if r.remaining():
            raise Malformed(f"{r.remaining()} bytes follow the last op")
    except Malformed as error:
        yield r.data[start:], error


def _fault(op: Op, size: int) -> Malformed | None:
    if size > MAX_OP_BYTES:
        return Malformed(f"an op has at most {MAX_OP_BYTES} bytes, not {size}")
    try:
        _check(op)
    except Malformed as error:
        return error
    return None
