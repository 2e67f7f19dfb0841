"""The envelope of an op: who says it, when, after what, and the signature over it. Here it is decided which
bytes an op is and which of them are signed. Whether the author is known, allowed, or in time is decided by
authority and the roster; keeping the bytes is the store's work.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from hocket.kernel.clock import Hlc
from hocket.kernel.jws import detached, open_detached
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.postcard import BYTES, NODE, STR, U32, U64, Malformed, Reader, fixed, option, seq, write_varint
from hocket.kernel.postcard import encode as encode_value
from hocket.kernel.vocabulary import PAYLOAD, Payload, ScheduleJob, number_of

MAX_OP_BYTES = 4 * 1024 * 1024
MAX_DEPS = 1024
MAX_SIGNATURE_BYTES = 256
SCHEMA_VERSION = 1

_DEPS = seq(fixed(16), limit=MAX_DEPS)
_SIGNATURE = option(BYTES)
_read_u32, _read_u64, _read_node = U32.read, U64.read, NODE.read
_read_deps, _write_deps = _DEPS.read, _DEPS.write
_read_payload, _write_payload = PAYLOAD.read, PAYLOAD.write
_read_signature = _SIGNATURE.read
_ONE_BYTE = [bytes([n]) for n in range(0x80)]
_NO_DEPS_SCHEDULE = b"\x00" + encode_value(U64, number_of(ScheduleJob))


class Op(msgspec.Struct, frozen=True):
    """One signed record of the log. `signature` holds the bytes of the field, which is a detached JWS."""

    id: bytes
    timestamp: Hlc
    node_id: int
    causal_deps: tuple[bytes, ...]
    payload: Payload
    signature: bytes | None = None
    schema_version: int = SCHEMA_VERSION


def _check(op: Op) -> None:
    # Another schema version may have other shapes under the same numbers, so it is refused and not guessed at.
    if op.schema_version != SCHEMA_VERSION:
        raise Malformed(f"schema version {op.schema_version} is not known here")
    if op.timestamp.node != op.node_id:
        raise Malformed("the timestamp's node is not the op's node")
    if op.signature is not None and len(op.signature) > MAX_SIGNATURE_BYTES:
        raise Malformed(f"a signature field has at most {MAX_SIGNATURE_BYTES} bytes")


def unsigned(op: Op) -> bytes:
    """The envelope up to the signature field. These bytes and a zero, for "no signature", are what is signed."""
    _check(op)
    if len(op.id) != 16:
        raise Malformed(f"an op id has 16 bytes, not {len(op.id)}")
    wall, logical, node = op.timestamp
    out = bytearray(op.id)
    out += _version_and_wall(wall)
    if 0 <= logical <= 0x7F:
        out.append(logical)
    else:
        U32.write(out, logical)
    out += _node_twice(node)
    if op.causal_deps:
        _write_deps(out, op.causal_deps)
    else:
        out.append(0)
    _write_payload(out, op.payload)
    return bytes(out)


def plain_schedule(job_id: bytes, stamp: Hlc, kind: str, payload: bytes) -> bytes:
    """What `unsigned` gives for the op that schedules a job of its own id and asks for nothing special, made in one go:
    it is the commonest op and the only one that is written alone.
    """
    wall, logical, node = stamp
    return b"".join(
        (
            job_id,
            _version_and_wall(wall),
            encode_value(U32, logical) if logical > 0x7F else _ONE_BYTE[logical],
            _node_twice(node),
            _NO_DEPS_SCHEDULE,
            job_id,
            _text(kind),
            encode_value(BYTES, payload),
            b"\x00",
        )
    )


# A node writes many ops in a millisecond and always under one id, so these bytes are worth remembering.


@lru_cache(maxsize=64)
def _version_and_wall(wall: int) -> bytes:
    return bytes([SCHEMA_VERSION]) + encode_value(U64, wall)


@lru_cache(maxsize=4096)
def _node_twice(node: int) -> bytes:
    return encode_value(NODE, node) * 2


@lru_cache(maxsize=4096)
def _text(value: str) -> bytes:
    return encode_value(STR, value)


@lru_cache(maxsize=64)
def _signature_head(size: int) -> bytes:
    return b"\x01" + encode_value(U64, size)


def sealed(body: bytes, signature: bytes) -> bytes:
    """The complete op from its unsigned bytes and the bytes of its signature field."""
    data = body + _signature_head(len(signature)) + signature
    if len(signature) > MAX_SIGNATURE_BYTES or len(data) > MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes, {MAX_SIGNATURE_BYTES} of them signature")
    return data


def encode(op: Op) -> bytes:
    body = unsigned(op)
    if op.signature is not None:
        return sealed(body, op.signature)
    if len(body) >= MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes")
    return body + b"\x00"


def _read_envelope(r: Reader) -> Op:
    op_id = r.take(16)
    version = _read_u32(r)
    if version != SCHEMA_VERSION:
        raise Malformed(f"schema version {version} is not known here")
    timestamp = Hlc(_read_u64(r), _read_u32(r), _read_node(r))
    node = _read_node(r)
    return Op(op_id, timestamp, node, _read_deps(r), _read_payload(r), _read_signature(r), version)


def read_op(r: Reader) -> Op:
    """The op at the reader's position."""
    start = r.pos
    op = _read_envelope(r)
    if r.pos - start > MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes")
    _check(op)
    return op


def read_stamp(data: bytes) -> Hlc | None:
    """The time of an op whose payload cannot be read; None when not even that can be."""
    r = Reader(data)
    try:
        r.take(16)
        if _read_u32(r) != SCHEMA_VERSION:
            return None
        timestamp = Hlc(_read_u64(r), _read_u32(r), _read_node(r))
        return timestamp if _read_node(r) == timestamp.node else None
    except Malformed:
        return None


def decode(data: bytes) -> Op:
    """The op that the whole of data is."""
    if len(data) > MAX_OP_BYTES:
        raise Malformed(f"an op has at most {MAX_OP_BYTES} bytes, not {len(data)}")
    r = Reader(data)
    op = read_op(r)
    if r.remaining():
        raise Malformed(f"{r.remaining()} bytes follow the op")
    return op


def sign(op: Op, key: SigningKey) -> Op:
    signature = detached(key.sign(unsigned(op) + b"\x00"), op.node_id)
    return msgspec.structs.replace(op, signature=signature)


def verify_op(data: bytes, op: Op, public: bytes) -> bool:
    """Whether the holder of this key signed these received bytes, of which op is the decoding. The signing form is
    cut out of the bytes and never encoded anew, so what is verified is what was sent."""
    if op.signature is None:
        return False
    try:
        signature = open_detached(op.signature, op.node_id)
        body = data[: len(data) - len(sealed(b"", op.signature))]
        if sealed(body, op.signature) != data:
            return False
    except Malformed:
        return False
    return verify(public, signature, body + b"\x00")


def encode_sequence(ops: Sequence[bytes]) -> bytes:
    """A batch of ops that are already encoded."""
    count = bytearray()
    write_varint(count, len(ops))
    return b"".join((count, *ops))


def read_sequence(data: bytes) -> Iterator[tuple[bytes, Op | Malformed]]:
    """Each op of a batch with its own bytes, or the reason why it is none.

    Postcard puts no length before a payload. An op whose bytes cannot be followed to their end (a variant or a
    schema version that is not known here, input that stops early) therefore hides where the next one begins: it
    is given as a Malformed together with all the bytes that are left, of which the first 16 are its id, and the
    reading stops. Whoever sent the batch must be asked again from there, in smaller batches, to get at what
    lies behind. An op that can be followed but breaks a rule is given as a Malformed with its own bytes, and
    the reading goes on.
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
