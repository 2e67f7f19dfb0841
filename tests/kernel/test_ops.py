"""Ops: the envelope, the signing form, batches, and vectors that a second encoder reproduces."""

import base64
import json
import re

import msgspec
import nacl.signing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.families.inbox.facts import SendMessage
from hocket.kernel import ops
from hocket.kernel import vocabulary as v
from hocket.kernel.clock import Hlc
from hocket.kernel.jws import detached
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import MAX_DEPS, MAX_OP_BYTES, Op
from hocket.kernel.postcard import Malformed, Reader, UnknownVariant
from tests.kernel import second
from tests.vectors import make_ops

pytestmark = pytest.mark.touches("LW-20")

VECTORS = json.loads(make_ops.PATH.read_text(encoding="utf-8"))
KEY = SigningKey(bytes(range(32)))
ID, JOB, DEP = bytes(16), bytes([1] * 16), bytes([2] * 16)


def make(payload: v.Payload | None = None, node: int = 5, deps: tuple[bytes, ...] = ()) -> Op:
    return Op(ID, Hlc(1000, 2, node), node, deps, payload or v.ClaimWork(JOB, node, 300))


@st.composite
def some_ops(draw: st.DrawFn) -> Op:
    node = draw(second.U64S)
    stamp = Hlc(draw(second.U64S), draw(st.integers(0, 2**32 - 1)), node)
    deps = tuple(draw(st.lists(second.ULIDS, max_size=3)))
    signature = draw(st.none() | st.binary(max_size=256))
    return Op(draw(second.ULIDS), stamp, node, deps, draw(second.PAYLOADS), signature)


@given(
    second.ULIDS, second.U64S, st.integers(0, 2**32 - 1), second.U64S, st.text(max_size=200), st.binary(max_size=300)
)
def test_the_short_way_to_a_plain_schedule_gives_the_same_bytes(
    job: bytes, wall: int, logical: int, node: int, kind: str, payload: bytes
) -> None:
    stamp = Hlc(wall, logical, node)
    op = Op(job, stamp, node, (), v.ScheduleJob(job, kind, payload, b""))
    assert ops.plain_schedule(job, stamp, None, kind, payload) == (job, ops.unsigned(op))
    stamp, link = Hlc(wall >> 16, logical, node), ops.link_to(job)
    bound, body = ops.bind(Op(ops.NO_ID, stamp, node, (link,), v.ScheduleJob(ops.NO_ID, kind, payload, b"")))
    assert ops.plain_schedule(None, stamp, link, kind, payload) == (bound.id, body)


@pytest.mark.req("LW-20")
@given(some_ops())
def test_an_op_comes_back_and_two_encoders_agree(op: Op) -> None:
    data = ops.encode(op)
    body = second.put_unsigned(second.plain(op))
    tail = b"\0" if op.signature is None else b"\1" + second.varint(len(op.signature)) + op.signature
    assert data == body + tail
    assert ops.unsigned(op) == body
    assert ops.decode(data) == op
    r = Reader(b"x" + data + b"y", 1)
    assert ops.read_op(r) == op and r.remaining() == 1


@pytest.mark.req("LW-42")
def test_a_name_of_zeros_is_not_sought_among_the_dependencies() -> None:
    payload = v.ScheduleJob(ops.NO_ID, "k", bytes(40), b"")
    bound, body = ops.bind(make(payload, deps=(ops.NO_ID, ops.link_to(JOB))))
    assert ops.unsigned(bound) == body and bound.payload == msgspec.structs.replace(payload, job_id=bound.id)


@pytest.mark.req("LW-42")
@given(some_ops(), st.binary(min_size=16, max_size=16), st.booleans(), st.data())
def test_ids_follow_from_everything_that_an_op_says(op: Op, before: bytes, names: bool, data: st.DataObject) -> None:
    stamp = op.timestamp._replace(wall=op.timestamp.wall >> 16)
    op = msgspec.structs.replace(op, timestamp=stamp, causal_deps=(*op.cited, ops.link_to(before)), signature=b"s" * 64)
    payload = op.payload
    if isinstance(payload, v.ScheduleJob):
        payload = msgspec.structs.replace(payload, job_id=ops.NO_ID)
    elif isinstance(payload, v.CreateArtifact):
        named = msgspec.structs.replace(payload, artifact_id=ops.artifact_id(op.node_id, payload))
        payload = named if names else msgspec.structs.replace(payload, artifact_id=ops.NO_ID)
    elif isinstance(payload, SendMessage):
        payload = msgspec.structs.replace(payload, message_id=ops.NO_ID)
    bound, body = ops.bind(msgspec.structs.replace(op, payload=payload))
    assert ops.unsigned(bound) == body
    whole = ops.encode(bound)
    assert ops.is_bound(whole, bound) and bound.link == ops.link_to(before)
    assert (int.from_bytes(bound.id[:6], "big"), bound.cited) == (stamp.wall, op.cited)
    # Any other content under the same id is found out.
    place = data.draw(st.integers(16, len(body) - 1))
    flipped = bytearray(whole)
    flipped[place] ^= data.draw(st.integers(1, 255))
    try:
        other = ops.decode(bytes(flipped))
    except Malformed:
        return
    assert not ops.is_bound(bytes(flipped), other)


@pytest.mark.req("LW-42")
@given(second.U64S, second.U64S, st.data())
def test_nobody_makes_an_artifact_of_another_nodes_id(node: int, other: int, data: st.DataObject) -> None:
    kinds = [p for p in make_ops.PAYLOADS if isinstance(p, v.CreateArtifact)]
    payload = data.draw(st.sampled_from(kinds))
    named = msgspec.structs.replace(payload, artifact_id=ops.artifact_id(node, payload))
    op, _ = ops.bind(Op(ops.NO_ID, Hlc(5, 0, other), other, (ops.link_to(ID),), named))
    assert ops.is_bound(ops.encode(op), op) == (node == other)


@pytest.mark.req("LW-20")
@given(some_ops(), st.data())
def test_damaged_ops_are_malformed_or_the_only_spelling(op: Op, data: st.DataObject) -> None:
    good = ops.encode(op)
    place = data.draw(st.integers(0, len(good) - 1))
    for bad in (good[:place], good + b"\0"):
        with pytest.raises(Malformed):
            ops.decode(bad)
    flipped = bytearray(good)
    flipped[place] ^= data.draw(st.integers(1, 255))
    try:
        assert ops.encode(ops.decode(bytes(flipped))) == flipped
    except Malformed:
        pass


@given(st.binary(max_size=200))
def test_random_bytes_are_malformed_or_the_only_spelling(data: bytes) -> None:
    try:
        assert ops.encode(ops.decode(data)) == data
    except Malformed:
        pass


@pytest.mark.parametrize("entry", VECTORS["ops"], ids=lambda entry: entry["op"]["payload"]["type"])
@pytest.mark.req("LW-21", "LW-20")
def test_vectors_by_the_second_encoder(entry: dict) -> None:  # type: ignore[type-arg]
    body = second.put_unsigned(entry["op"])
    signature = nacl.signing.SigningKey(bytes.fromhex(VECTORS["seed"])).sign(body + b"\0").signature
    header = json.dumps({"alg": "EdDSA", "kid": f"node-{VECTORS['node']}"}, separators=(",", ":"))
    parts = [base64.urlsafe_b64encode(part).rstrip(b"=") for part in (header.encode(), signature)]
    field = b"..".join(parts)
    whole = body + b"\1" + second.varint(len(field)) + field
    assert whole.hex() == entry["hex"]
    op = ops.decode(whole)
    assert second.plain(msgspec.structs.replace(op, signature=None)) == entry["op"]
    assert ops.encode(op) == whole
    assert ops.verify_op(whole, op, bytes.fromhex(VECTORS["public"]))


def test_vectors_are_what_the_script_writes_and_name_every_variant() -> None:
    assert make_ops.vectors() == VECTORS
    assert {entry["op"]["payload"]["type"] for entry in VECTORS["ops"]} == set(v.NAMES.values())


@pytest.mark.req("LW-20")
def test_the_example_on_the_page() -> None:
    block = second.PAGE.split("## An op by hand")[1].split("```")[1]
    hexes = [re.match(r"(?:[0-9a-f]{2} )+", line)[0] for line in block.strip().splitlines()]  # type: ignore[index]
    data = bytes.fromhex("".join(hexes))
    ids = [bytes.fromhex(f"0000000003e{n}0000000000000000000{m}") for n, m in ((8, 1), (7, 2), (6, 3))]
    op = Op(ids[0], Hlc(1000, 2, 5), 5, (ids[1],), v.ClaimWork(ids[2], 5, 300))
    assert ops.encode(op) == data and ops.decode(data) == op


@given(some_ops(), st.data())
@pytest.mark.req("LW-21")
def test_a_signature_covers_every_byte(op: Op, data: st.DataObject) -> None:
    signed = ops.sign(op, KEY)
    raw = ops.encode(signed)
    assert raw == ops.with_signature(ops.unsigned(op), signed.signature or b"")
    assert signed.signature == detached(KEY.sign(ops.unsigned(op) + b"\0"), op.node_id)
    assert ops.verify_op(raw, signed, KEY.public)
    assert not ops.verify_op(raw, signed, SigningKey(bytes(32)).public)
    flipped = bytearray(raw)
    place = data.draw(st.integers(0, len(raw) - 1))
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    assert not ops.verify_op(bytes(flipped), signed, KEY.public)
    try:
        assert not ops.verify_op(bytes(flipped), ops.decode(bytes(flipped)), KEY.public)
    except Malformed:
        pass


@pytest.mark.req("LW-21")
def test_what_does_not_verify() -> None:
    op = make()
    raw = ops.encode(op)
    assert not ops.verify_op(raw, op, KEY.public)
    body = ops.unsigned(op)
    for signature in (
        detached(KEY.sign(body), 5),
        detached(KEY.sign(body + b"\0"), 6),
        KEY.sign(body + b"\0"),
        b"",
        bytes(256),
    ):
        forged = ops.with_signature(body, signature)
        assert not ops.verify_op(forged, ops.decode(forged), KEY.public)
    signed = ops.sign(op, KEY)
    assert not ops.verify_op(b"", signed, KEY.public)
    assert not ops.verify_op(ops.encode(signed), signed, b"")


@given(st.lists(some_ops(), max_size=4))
def test_a_batch_gives_each_op_with_its_own_bytes(batch: list[Op]) -> None:
    raws = [ops.encode(op) for op in batch]
    assert list(ops.read_sequence(ops.encode_sequence(raws))) == list(zip(raws, batch, strict=True))


@given(st.binary(max_size=200))
def test_a_random_batch_never_raises(data: bytes) -> None:
    got = list(ops.read_sequence(data))
    assert all(isinstance(one, Op | Malformed) for _, one in got)
    assert sum(len(raw) for raw, _ in got) <= len(data)


NEWER = st.integers(27, 2**32 - 1).filter(lambda number: number not in v.VARIANTS)


def newer_op(number: int, content: bytes) -> Op:
    """An op whose payload only a newer program knows, under the id that its content gives it."""
    node = 5
    bound, _ = ops.bind(Op(ops.NO_ID, Hlc(1000, 2, node), node, (ops.link_to(JOB),), v.Unknown(number, content)))
    return ops.sign(bound, KEY)


@pytest.mark.req("LW-34")
@given(NEWER, st.binary(max_size=300))
def test_an_op_of_a_newer_program_is_read_as_far_as_can_be_and_hides_nothing(number: int, content: bytes) -> None:
    op, good = newer_op(number, content), make()
    data = ops.encode(op)
    assert ops.decode(data) == op and ops.is_bound(data, op) and ops.verify_op(data, op, KEY.public)
    batch = ops.encode_sequence([ops.encode(good), data, ops.encode(good)])
    assert [one for _, one in ops.read_sequence(batch)] == [good, op, good]


@pytest.mark.req("LW-34")
@pytest.mark.parametrize("number", [2**32, 2**63, 2**64 - 1])
def test_a_variant_that_no_program_can_have_is_not_read(number: int) -> None:
    """A discriminant has 32 bits; what is larger fits no store."""
    ((_, found),) = ops.read_sequence(ops.encode_sequence([ops.encode(newer_op(number, b""))]))
    assert isinstance(found, UnknownVariant)


@pytest.mark.req("LW-34")
@pytest.mark.parametrize(("copies", "is_read"), [(1, True), (3, True), (4, False), (10_000, False)])
def test_what_looks_like_a_signature_costs_a_few_tries_and_no_more(copies: int, is_read: bool) -> None:
    """Inside a payload that is not known here."""
    field = detached(bytes(64), 5)
    data = ops.encode(newer_op(2_000, (b"\x01" + bytes([len(field)]) + field) * copies))
    ((raw, found),) = ops.read_sequence(ops.encode_sequence([data]))
    assert raw == data and isinstance(found, Op if is_read else UnknownVariant)


@pytest.mark.req("LW-34")
@given(NEWER, st.binary(max_size=100), st.data())
def test_a_damaged_op_of_a_newer_program_is_not_taken_for_another(
    number: int, content: bytes, data: st.DataObject
) -> None:
    whole = ops.encode(newer_op(number, content))
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    for _, found in ops.read_sequence(ops.encode_sequence([damaged])):
        assert not isinstance(found, Op) or not ops.verify_op(damaged, found, KEY.public)


@pytest.mark.req("LW-34")
def test_an_unknown_variant_under_any_id_ends_a_batch_and_says_whose_it_was() -> None:
    good = ops.encode(make())
    other = bytes([9] * 16)
    unknown = other + good[16:].replace(b"\x0b" + JOB, second.varint(999) + JOB)
    got = list(ops.read_sequence(ops.encode_sequence([good, unknown, good])))
    assert got[0] == (good, make())
    raw, fault = got[1]
    assert isinstance(fault, UnknownVariant) and fault.discriminant == 999
    assert raw == unknown + good and raw[:16] == other
    assert len(got) == 2


def test_an_op_that_breaks_a_rule_does_not_end_a_batch() -> None:
    good = ops.encode(make())
    liar = good[:20] + b"\x06" + good[21:]
    long = good[:-1] + b"\1" + second.varint(257) + bytes(257)
    got = list(ops.read_sequence(ops.encode_sequence([liar, long, good])))
    assert [raw for raw, _ in got] == [liar, long, good]
    assert [type(one) for _, one in got] == [Malformed, Malformed, Op]
    for bad in (liar, long):
        with pytest.raises(Malformed):
            ops.decode(bad)


@pytest.mark.parametrize("tail", [b"", b"\0", b"garbage"])
def test_a_batch_must_end_where_it_says(tail: bytes) -> None:
    good = ops.encode(make())
    claimed_two = b"\2" + good + tail
    assert isinstance(list(ops.read_sequence(claimed_two))[-1][1], Malformed)
    if tail:
        raw, fault = list(ops.read_sequence(b"\1" + good + tail))[-1]
        assert raw == tail and isinstance(fault, Malformed)


def test_an_absurd_count_costs_nothing() -> None:
    [(raw, fault)] = ops.read_sequence(second.varint(2**64 - 1))
    assert raw == b"" and isinstance(fault, Malformed)


@pytest.mark.parametrize(
    "op",
    [
        msgspec.structs.replace(make(), id=bytes(15)),
        msgspec.structs.replace(make(), node_id=6),
        msgspec.structs.replace(make(), schema_version=2),
        msgspec.structs.replace(make(), timestamp=Hlc(-1, 0, 5)),
        msgspec.structs.replace(make(), timestamp=Hlc(2**64, 0, 5)),
        msgspec.structs.replace(make(), timestamp=Hlc(0, 2**32, 5)),
        msgspec.structs.replace(make(), signature=bytes(257)),
        make(deps=(DEP,) * (MAX_DEPS + 1)),
        make(deps=(DEP[:15],)),
        make(v.ScheduleJob(JOB, "k", bytes(MAX_OP_BYTES), b"")),
    ],
)
def test_what_is_not_written(op: Op) -> None:
    with pytest.raises(Malformed):
        ops.encode(op)


def test_bounds_are_reached_and_not_passed() -> None:
    most = make(deps=(DEP,) * MAX_DEPS)
    assert ops.decode(ops.encode(most)) == most
    more = ops.encode(most).replace(second.varint(MAX_DEPS) + DEP, second.varint(MAX_DEPS + 1) + DEP * 2, 1)
    with pytest.raises(Malformed, match="bound"):
        ops.decode(more)
    spare = (
        MAX_OP_BYTES
        - len(ops.encode(make(v.ScheduleJob(JOB, "k", bytes(MAX_OP_BYTES - 100), b""))))
        + MAX_OP_BYTES
        - 100
    )
    full = make(v.ScheduleJob(JOB, "k", bytes(spare), b""))
    assert len(ops.encode(full)) == MAX_OP_BYTES and ops.decode(ops.encode(full)) == full
    beyond = make(v.ScheduleJob(JOB, "k", bytes(spare + 1), b""))
    with pytest.raises(Malformed):
        ops.encode(beyond)
    with pytest.raises(Malformed, match=f"not {MAX_OP_BYTES + 1}"):
        ops.decode(ops.unsigned(beyond) + b"\0")
    with pytest.raises(Malformed):
        ops.read_op(Reader(ops.unsigned(beyond) + b"\0"))
    [(_, fault)] = ops.read_sequence(ops.encode_sequence([ops.unsigned(beyond) + b"\0"]))
    assert isinstance(fault, Malformed)


@pytest.mark.req("LW-34")
def test_another_schema_version_is_refused() -> None:
    good = ops.encode(make())
    newer = good[:16] + b"\2" + good[17:]
    with pytest.raises(Malformed, match="schema version 2"):
        ops.decode(newer)
    # In a batch its end cannot be known either, so nothing behind it is believed.
    [(raw, fault)] = ops.read_sequence(ops.encode_sequence([newer, good]))
    assert raw == newer + good and isinstance(fault, Malformed)


@pytest.mark.req("LW-50", "LW-46")
def test_a_deadline_stands_where_a_pin_would_and_is_neither_a_pin_nor_a_citation() -> None:
    link, pin = ops.link_to(DEP), ops.pin_to(Hlc(7, 2, 5), DEP)
    asked, bare = make(deps=(DEP, ops.deadline_at(1_234), link)), make(deps=(ops.deadline_at(2**48 - 1), link))
    for op, cited, deadline in ((asked, (DEP,), 1_234), (bare, (), 2**48 - 1)):
        known = ops.decode(ops.encode(op))
        assert (known.cited, known.deadline, known.pin, known.link) == (cited, deadline, None, link)
    pinned = make(deps=(DEP, pin, link))
    assert pinned.deadline is None and pinned.pin is not None and ops.pinned_time(pinned.pin, 5) == Hlc(7, 2, 5)
    assert make(deps=(DEP, link)).deadline is None and make(deps=()).deadline is None
