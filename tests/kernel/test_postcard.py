"""Postcard: every codec gives back what it took, takes only its own spelling, and refuses the rest as Malformed."""

import struct as packed
from enum import IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.postcard import (
    BOOL,
    BYTES,
    F64,
    NODE,
    STR,
    U32,
    U64,
    Codec,
    Malformed,
    Reader,
    UnknownVariant,
    decode,
    encode,
    enum,
    fixed,
    option,
    pair,
    seq,
    struct,
    tuple_of,
    union,
    write_varint,
)

pytestmark = pytest.mark.touches("LW-20")


class Colour(IntEnum):
    RED = 0
    BLUE = 200


class One(msgspec.Struct, frozen=True):
    name: str


class Two(msgspec.Struct, frozen=True):
    count: int
    one: One | None


ONE = struct(One, STR)
TWO = struct(Two, U64, option(ONE))
EITHER = union({0: ONE, 300: TWO})

U32S = st.integers(0, 2**32 - 1)
U64S = st.integers(0, 2**64 - 1) | st.integers(0, 300)
ONES = st.builds(One, st.text())
TWOS = st.builds(Two, U64S, st.none() | ONES)
CASES: list[tuple[Codec[Any], st.SearchStrategy[Any]]] = [
    (U32, U32S),
    (U64, U64S),
    (NODE, U64S),
    (BOOL, st.booleans()),
    (F64, st.floats(allow_nan=False)),
    (STR, st.text()),
    (BYTES, st.binary()),
    (fixed(4), st.binary(min_size=4, max_size=4)),
    (option(U64), st.none() | U64S),
    (option(option(BOOL)), st.none() | st.booleans()),
    (seq(STR, limit=4), st.lists(st.text(), max_size=4).map(tuple)),
    (pair(STR, F64), st.tuples(st.text(), st.floats(allow_nan=False))),
    (tuple_of(U32, STR, BOOL), st.tuples(U32S, st.text(), st.booleans())),
    (enum(Colour), st.sampled_from(Colour)),
    (ONE, ONES),
    (TWO, TWOS),
    (EITHER, ONES | TWOS),
    (seq(EITHER), st.lists(ONES | TWOS, max_size=5).map(tuple)),
]
CODECS = st.sampled_from([codec for codec, _ in CASES])
VALUES = st.sampled_from(CASES).flatmap(lambda case: st.tuples(st.just(case[0]), case[1]))


@given(VALUES)
def test_a_value_comes_back(case: tuple[Codec[Any], Any]) -> None:
    codec, value = case
    assert decode(codec, encode(codec, value)) == value


@pytest.mark.req("LW-20")
@given(CODECS, st.binary(max_size=40))
def test_bytes_are_refused_or_are_the_only_spelling(codec: Codec[Any], data: bytes) -> None:
    try:
        value = decode(codec, data)
    except Malformed:
        return
    assert encode(codec, value) == data


@pytest.mark.req("LW-20")
@given(VALUES, st.data())
def test_damaged_bytes_are_refused_or_are_the_only_spelling(case: tuple[Codec[Any], Any], data: st.DataObject) -> None:
    codec, value = case
    good = encode(codec, value)
    with pytest.raises(Malformed):
        decode(codec, good + b"\0")
    if not good:
        return
    cut = data.draw(st.integers(0, len(good) - 1))
    with pytest.raises(Malformed):
        decode(codec, good[:cut])
    bad = bytearray(good)
    bad[cut] ^= data.draw(st.integers(1, 255))
    try:
        assert encode(codec, decode(codec, bytes(bad))) == bad
    except Malformed:
        pass


@pytest.mark.req("LW-20")
@pytest.mark.parametrize(
    ("codec", "value", "expected"),
    [
        (U64, 0, "00"),
        (U64, 127, "7f"),
        (U64, 128, "8001"),
        (U64, 300, "ac02"),
        (U64, 2**64 - 1, "ffffffffffffffffff01"),
        (NODE, 2**64 - 1, "ffffffffffffffffff01"),
        (U32, 2**32 - 1, "ffffffff0f"),
        (BOOL, True, "01"),
        (F64, -32.005859375, "00000000c00040c0"),
        (STR, "hü", "0368c3bc"),
        (BYTES, b"\x01\x02", "020102"),
        (fixed(2), b"\x01\x02", "0102"),
        (option(U64), None, "00"),
        (option(U64), 0, "0100"),
        (seq(U64), (1, 128), "02018001"),
        (enum(Colour), Colour.BLUE, "c801"),
        (TWO, Two(5, One("a")), "05010161"),
        (EITHER, Two(5, None), "ac020500"),
    ],
)
def test_by_hand(codec: Codec[Any], value: object, expected: str) -> None:
    assert encode(codec, value).hex() == expected
    assert decode(codec, bytes.fromhex(expected)) == value


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (U64, "8000"),
        (U64, "ff00"),
        (U64, "ffffffffffffffffff02"),
        (U64, "ffffffffffffffffff7f"),
        (U64, "80808080808080808080"),
        (U64, "8080808080808080808001"),
        (U64, "80" * 1000),
        (NODE, "8000"),
        (NODE, "ffffffffffffffffff02"),
        (NODE, "80" * 1000),
        (NODE, ""),
        (U32, "ffffffff10"),
        (U32, "8080808010"),
        (U32, ""),
        (BOOL, "02"),
        (BOOL, "ff"),
        (BOOL, ""),
        (option(U64), "0200"),
        (STR, "01ff"),
        (STR, "03eda080"),
        (STR, "02c080"),
        (BYTES, "05aabb"),
        (BYTES, "ffffffffffffffffff01"),
        (seq(BOOL, limit=2), "03000000"),
        (seq(U64), "ffffffffffffffffff01"),
        (seq(U64), "04000000"),
        (enum(Colour), "01"),
        (enum(Colour), "c901"),
    ],
)
def test_what_is_refused(codec: Codec[Any], data: str) -> None:
    with pytest.raises(Malformed):
        decode(codec, bytes.fromhex(data))


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (U64, -1),
        (U64, 2**64),
        (NODE, 2**64),
        (U32, -1),
        (U32, 2**32),
        (BOOL, 1),
        (STR, "\ud800"),
        (fixed(4), b"abc"),
        (seq(U64, limit=2), (1, 2, 3)),
        (tuple_of(U64, U64), (1,)),
        (enum(Colour), 7),
        (EITHER, "neither"),
    ],
)
def test_what_is_not_written(codec: Codec[Any], value: object) -> None:
    with pytest.raises(Malformed):
        encode(codec, value)


@pytest.mark.req("LW-34")
@given(st.integers(0, 2**64 - 1).filter(lambda n: n not in (0, 300)))
def test_an_unknown_variant_says_which(number: int) -> None:
    with pytest.raises(UnknownVariant) as caught:
        decode(EITHER, encode(U64, number) + b"\0")
    assert caught.value.discriminant == number


@given(st.binary(min_size=8, max_size=8))
def test_every_bit_of_a_float_is_kept(data: bytes) -> None:
    assert encode(F64, decode(F64, data)) == data == packed.pack("<d", decode(F64, data))


def test_codecs_that_cannot_work_are_not_built() -> None:
    for broken in (lambda: struct(Two, U64), lambda: tuple_of(), lambda: union({0: ONE, 1: ONE})):
        with pytest.raises(TypeError):
            broken()


def test_a_reader_stands_still_when_it_refuses() -> None:
    r = Reader(b"\x05abc")
    assert U64.read(r) == 5
    with pytest.raises(Malformed):
        r.take(5)
    assert r.pos == 1 and r.take(3) == b"abc" and r.remaining() == 0


def test_a_varint_is_appended_to_what_is_there() -> None:
    out = bytearray(b"x")
    write_varint(out, 300)
    assert out == b"x\xac\x02"
