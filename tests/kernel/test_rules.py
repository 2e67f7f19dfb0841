"""The mesh-rules document: the bytes that every node of a mesh must agree on."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.ids import content_hash
from hocket.kernel.mesh_rules import (
    HOCKET,
    STRICT,
    UNBOUND,
    Bounds,
    Extensions,
    Rules,
    decode_kept_rules,
    decode_rules,
    encode_rules,
    rules_hash,
)
from hocket.kernel.postcard import U64, Malformed, encode
from hocket.kernel.ucan import Quota
from hocket.kernel.vocabulary import EXTENSIONS, NAMES

pytestmark = pytest.mark.touches("LW-30")

WORDS = st.lists(st.text(max_size=8), max_size=4).map(tuple)
VARIANTS = st.dictionaries(st.integers(1024, 2**32 - 1), st.text(max_size=8), max_size=4).map(
    lambda found: tuple(sorted(found.items()))
)
NUMBERS = st.integers(0, 2**64 - 1)
RULES = st.builds(
    Rules,
    st.text(max_size=5),
    WORDS,
    WORDS,
    st.none() | st.builds(Extensions, VARIANTS, st.booleans(), st.integers(0, 2**64 - 1), WORDS, WORDS),
) | st.builds(
    Rules,
    st.text(max_size=5),
    WORDS,
    WORDS,
    st.builds(Extensions, VARIANTS, st.booleans(), st.integers(0, 2**64 - 1), WORDS, WORDS),
    st.builds(Bounds, NUMBERS, st.builds(Quota, *[NUMBERS] * 4), st.builds(Quota, *[NUMBERS] * 4), NUMBERS),
    st.booleans(),
)


# A mesh in which every fact is an op of its own.
SINGLE = msgspec.structs.replace(HOCKET, bundles=False)


def words(*texts: str) -> bytes:
    return bytes([len(texts)]) + b"".join(bytes([len(text)]) + text.encode() for text in texts)


def test_the_strict_document_by_exact_bytes() -> None:
    strict = (
        b"\x030.1"
        + words("source_types", "predicates", "kind_prefix", "time_range", "sanitize", "audit_inference")
        + words("StripGeo", "RedactParticipants", "TruncateContent", "StripCustomMetadata")
    )
    assert encode_rules(STRICT) == strict
    assert rules_hash(STRICT) == content_hash(strict)
    assert encode_rules(msgspec.structs.replace(UNBOUND, extensions=None)) == strict
    with pytest.raises(Malformed):
        encode_rules(msgspec.structs.replace(HOCKET, extensions=None))


def test_extensions_come_behind_a_strict_document() -> None:
    data = encode_rules(UNBOUND)
    assert data.startswith(encode_rules(STRICT))
    numbers = (86_400_000, 20, 65_536, 20_000, 2**25, 2_000, 2**23, 100_000_000, 2**36, 2_000)
    assert encode_rules(SINGLE) == data + b"".join(encode(U64, number) for number in numbers)
    assert rules_hash(HOCKET) != rules_hash(STRICT)
    assert HOCKET.extensions is not None
    # Later payloads are known, not agreed on.
    agreed = sorted(number for number in EXTENSIONS if number <= 1033)
    assert dict(HOCKET.extensions.variants) == {number: NAMES[number] for number in agreed}
    assert (HOCKET.extensions.arbiter, HOCKET.extensions.skew_ms) == (True, 300_000)
    derivation = words("CascadeTombstone") + words("likewise.derive.")
    block = data[len(encode_rules(STRICT)) :]
    count = bytes([len(agreed)])
    assert block.startswith(count + b"\x80\x08" + words("FailWork")[1:])
    assert block.endswith(words(NAMES[agreed[-1]])[1:] + b"\x01" + b"\xe0\xa7\x12" + derivation)


@pytest.mark.req("GR-12")
def test_open_ranked_jobs_are_one_byte_behind_the_bounds() -> None:
    is_open = msgspec.structs.replace(SINGLE, ranked_open=True)
    assert encode_rules(is_open) == encode_rules(SINGLE) + b"\x01"
    assert decode_kept_rules(encode_rules(is_open)) == is_open
    for without in (UNBOUND, STRICT):
        with pytest.raises(Malformed):
            encode_rules(msgspec.structs.replace(without, ranked_open=True))


@pytest.mark.req("LW-51")
def test_bundles_are_one_byte_more() -> None:
    replace, plain = msgspec.structs.replace, encode_rules(SINGLE)
    for said, more in ((HOCKET, b"\x00\x01"), (replace(HOCKET, ranked_open=True), b"\x01\x01")):
        assert encode_rules(said) == plain + more
        assert decode_kept_rules(plain + more) == said
    for wrong in (b"\x00", b"\x00\x00", b"\x01\x00", b"\x01\x01\x01"):
        with pytest.raises(Malformed):
            decode_rules(plain + wrong)
    for without in (UNBOUND, STRICT):
        with pytest.raises(Malformed):
            encode_rules(replace(without, bundles=True))


@given(RULES)
def test_rules_come_back(rules: Rules) -> None:
    assert decode_rules(encode_rules(rules)) == rules


@pytest.mark.req("LW-30")
@given(RULES, RULES)
def test_other_rules_have_another_hash(a: Rules, b: Rules) -> None:
    assert (rules_hash(a) == rules_hash(b)) == (a == b)


@given(st.binary(max_size=60))
def test_what_is_read_has_no_second_spelling(data: bytes) -> None:
    try:
        rules = decode_rules(data)
    except Malformed:
        return
    assert encode_rules(rules) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x030.1",
        encode_rules(STRICT)[:-1],
        encode_rules(STRICT) + b"\x00",
        encode_rules(SINGLE)[:-1],
        encode_rules(SINGLE) + b"\x00",
        encode_rules(SINGLE) + b"\x02",
        encode_rules(SINGLE) + b"\x01\x00",
        b"\x030.1\x00\x00" + b"\x01\xff\x07\x01x" + b"\x01\x00\x00\x00",
        b"\x030.1\x00\x00" + b"\x02\x81\x08\x01x\x80\x08\x01y" + b"\x01\x00\x00\x00",
        b"\x030.1\x00\x00" + b"\x02\x80\x08\x01x\x80\x08\x01y" + b"\x01\x00\x00\x00",
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_rules(data)


def test_rules_are_bounded_both_ways() -> None:
    big = Rules(caveats=tuple("x" * 1000 for _ in range(100)))
    with pytest.raises(Malformed):
        encode_rules(big)
    with pytest.raises(Malformed):
        decode_rules(b"\x00\x64" + (b"\xe8\x07" + b"x" * 1000) * 100 + b"\x00")
    with pytest.raises(Malformed):
        encode_rules(Rules(extensions=Extensions(((7, "x"),), True, 0)))
    with pytest.raises(Malformed):
        encode_rules(msgspec.structs.replace(HOCKET, bounds=Bounds(writers=Quota(ops=7))))


def test_a_mesh_that_bounds_late_ops_alone_has_the_default_quotas() -> None:
    unbounded = encode_rules(msgspec.structs.replace(SINGLE, bounds=None))
    assert decode_kept_rules(unbounded + b"\x07").bounds == Bounds(7)
    assert decode_kept_rules(encode_rules(SINGLE)) == SINGLE
    for data in (b"", unbounded + b"\x07\x07", encode_rules(SINGLE)[:-1]):
        with pytest.raises(Malformed):
            decode_kept_rules(data)
