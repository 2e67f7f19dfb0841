"""Tokens: the exact spelling, and nothing but it."""

import base64
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.jws import TOKEN_BYTES_MAX, canonical_json, compact, detached, open_compact, open_detached
from hocket.kernel.keys import SigningKey, verify
from hocket.kernel.postcard import Malformed

pytestmark = pytest.mark.touches("LW-21")

NODES = st.integers(0, 2**64 - 1)
SIGNATURES = st.binary(min_size=64, max_size=64)
KEY = SigningKey(bytes(range(32)))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@pytest.mark.req("LW-21")
def test_the_detached_form_by_exact_string() -> None:
    token = detached(bytes(64), 42)
    assert token == b"eyJhbGciOiJFZERTQSIsImtpZCI6Im5vZGUtNDIifQ.." + b"A" * 86
    header = base64.urlsafe_b64decode(token.split(b"..")[0] + b"==")
    assert header == b'{"alg":"EdDSA","kid":"node-42"}'
    assert detached(b"\xff" * 64, 42).endswith(b".." + b"_" * 85 + b"w")


@given(SIGNATURES, NODES)
def test_a_detached_signature_comes_back(signature: bytes, node: int) -> None:
    token = detached(signature, node)
    assert token.decode() == b64(b'{"alg":"EdDSA","kid":"node-%d"}' % node) + ".." + b64(signature)
    assert open_detached(token, node) == signature
    with pytest.raises(Malformed):
        open_detached(token, node ^ 1)


@given(SIGNATURES, NODES, st.data())
def test_no_other_token_opens_as_the_same_signature(signature: bytes, node: int, data: st.DataObject) -> None:
    token = bytearray(detached(signature, node))
    place = data.draw(st.integers(0, len(token) - 1))
    token[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != token[place]))
    try:
        assert open_detached(bytes(token), node) != signature
    except Malformed:
        pass


def test_the_last_character_has_four_spare_bits_that_must_be_zero() -> None:
    token = detached(bytes(64), 1)
    opened = 0
    for last in string.ascii_letters + string.digits + "-_":
        try:
            open_detached(token[:-1] + last.encode(), 1)
            opened += 1
        except Malformed:
            pass
    assert opened == 4


@pytest.mark.req("LW-21")
@pytest.mark.parametrize(
    "change",
    [
        lambda t: t + b"==",
        lambda t: t + b"\n",
        lambda t: t + b"AAAA",
        lambda t: t[:-4],
        lambda t: t[:-1],
        lambda t: b"",
        lambda t: t.replace(b"..", b"."),
        lambda t: t.replace(b"..", b".e30."),
        lambda t: b64(b'{"kid":"node-1","alg":"EdDSA"}').encode() + b".." + t.split(b"..")[1],
        lambda t: b64(b'{"alg": "EdDSA", "kid": "node-1"}').encode() + b".." + t.split(b"..")[1],
        lambda t: b64(b'{"alg":"EdDSA","kid":"node-01"}').encode() + b".." + t.split(b"..")[1],
        lambda t: b64(b'{"alg":"none","kid":"node-1"}').encode() + b".." + t.split(b"..")[1],
        lambda t: t[:-10] + b"+" + t[-9:],
        lambda t: t[:-10] + b"/" + t[-9:],
    ],
)
def test_other_spellings_are_refused(change) -> None:  # type: ignore[no-untyped-def]
    token = detached(bytes(64), 1)
    assert open_detached(token, 1) == bytes(64)
    with pytest.raises(Malformed):
        open_detached(change(token), 1)


def test_a_signature_has_64_bytes() -> None:
    with pytest.raises(Malformed):
        detached(bytes(63), 1)


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4), st.binary(max_size=100))
def test_a_compact_token_comes_back(header: dict[str, str], payload: bytes) -> None:
    token = compact(header, payload, KEY)
    opened, got, signature, signing_input = open_compact(token)
    assert (opened, got) == (header, payload)
    assert verify(KEY.public, signature, signing_input)
    assert token == f"{signing_input.decode()}.{b64(signature)}"


@pytest.mark.req("LW-21")
def test_rfc_8037_example() -> None:
    # Appendix A.4 signs "Example of Ed25519 signing" with the first key of RFC 8032.
    key = SigningKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert compact({"alg": "EdDSA"}, b"Example of Ed25519 signing", key) == (
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4"
        "iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
    )


@given(st.text(alphabet=string.ascii_letters + string.digits + "-_.=", max_size=60) | st.text(max_size=30))
def test_nonsense_is_malformed(token: str) -> None:
    try:
        open_compact(token)
    except Malformed:
        pass


@pytest.mark.parametrize(
    "token",
    [
        "",
        "..",
        "e30.e30",
        "e30.e30.e30.e30",
        "e30=.e30.",
        b64(b"[]") + "..",
        b64(b"{} ") + "x..",
        b64(b'{"a":') + "..",
        b64(b'{"a":"\xff"}') + "..",
        b64(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}") + "..",
        "é..",
        b64(b"{}") + "." + "A" * TOKEN_BYTES_MAX + ".",
    ],
)
def test_what_is_no_compact_token_is_refused(token: str) -> None:
    with pytest.raises(Malformed):
        open_compact(token)


def test_a_token_beyond_the_bound_is_not_made() -> None:
    with pytest.raises(Malformed, match="longer"):
        compact({}, bytes(TOKEN_BYTES_MAX), KEY)


# Integers beyond 2^53 have no canonical form, so they are left out.
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53) + 1, 2**53 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_canonical_json_has_one_spelling_per_value(value: object) -> None:
    data = canonical_json(value)
    again = json.loads(data, parse_int=number)
    assert again == value
    assert canonical_json(again) == data


def number(digits: str) -> int | float:
    # Great floats are spelled without a point, so only the size tells them from integers.
    return int(digits) if abs(int(digits)) < 2**53 else float(digits)


def test_canonical_json_by_example() -> None:
    # Keys are sorted by UTF-16 units, numbers are spelled as ECMAScript does.
    value = {"\U00010000": 1, "\uffff": 2, "b": 1e21, "a": [1.0, -0.0, 1e-7], "c": "\u20ac\n"}
    assert canonical_json(value).decode() == '{"a":[1,0,1e-7],"b":1e+21,"c":"€\\n","\U00010000":1,"\uffff":2}'
    for refused in (2**53, float("nan"), float("inf"), {1: 2}, b"x"):
        with pytest.raises(ValueError):
            canonical_json(refused)
