"""Bearer tokens: good for one node, one audience, one hour at most, and once."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.ids import node_id
from hocket.kernel.jws import (
    LEEWAY_S,
    LIFETIME_S_MAX,
    Bearer,
    Nonces,
    canonical_json,
    check_bearer,
    compact,
    make_bearer,
    read_bearer,
)
from hocket.kernel.keys import SigningKey
from hocket.kernel.postcard import Malformed

pytestmark = pytest.mark.touches("LW-31")

KEY = SigningKey(b"n" * 32)
OTHER = SigningKey(b"o" * 32)
NODE = node_id(KEY.public)
HEADER = {"alg": "EdDSA", "kid": f"node-{NODE}"}
NOW = 1_750_000_000
HERE = ("4711", "https://box.example")


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def claims(**changes: object) -> dict[str, Any]:
    return {"iss": str(NODE), "aud": "4711", "iat": NOW, "exp": NOW + 300, "nonce": "n1"} | changes


def token(payload: object, header: dict[str, str] = HEADER, key: SigningKey = KEY) -> str:
    return compact(header, canonical_json(payload), key)


def verdict(text: str, now_s: int = NOW, public: bytes = KEY.public) -> str | None:
    return check_bearer(text, read_bearer(text), public, HERE, now_s)


@pytest.mark.req("LW-31")
def test_a_token_by_its_json() -> None:
    made = make_bearer(KEY, "4711", NOW, "n1")
    assert made == token(claims())
    head, body, _ = made.split(".")
    assert base64.urlsafe_b64decode(head + "==") == b'{"alg":"EdDSA","kid":"node-%d"}' % NODE
    assert json.loads(base64.urlsafe_b64decode(body + "==")) == claims()
    assert read_bearer(made) == Bearer(NODE, "4711", NOW, NOW + 300, "n1")
    assert verdict(made) is None


def test_the_payload_may_be_spelled_in_the_documents_order() -> None:
    assert verdict(compact(HEADER, json.dumps(claims()).encode(), KEY)) is None


@given(
    st.binary(min_size=32, max_size=32),
    st.text(min_size=1, max_size=20),
    st.integers(0, 2**40),
    st.text(min_size=1, max_size=20),
    st.integers(1, LIFETIME_S_MAX),
)
def test_what_is_made_is_good(seed: bytes, audience: str, now_s: int, nonce: str, lifetime_s: int) -> None:
    key = SigningKey(seed)
    made = make_bearer(key, audience, now_s, nonce, lifetime_s)
    bearer = read_bearer(made)
    assert bearer == (node_id(key.public), audience, now_s, now_s + lifetime_s, nonce, None)
    assert check_bearer(made, bearer, key.public, [audience], now_s) is None
    assert check_bearer(made, bearer, OTHER.public, [audience], now_s) is not None


@pytest.mark.req("LW-31")
@pytest.mark.parametrize(
    ("change", "now_s", "why"),
    [
        ({}, NOW - LEEWAY_S, None),
        ({}, NOW - LEEWAY_S - 1, "future"),
        ({}, NOW + 300 + LEEWAY_S - 1, None),
        ({}, NOW + 300 + LEEWAY_S, "expired"),
        ({"aud": "https://box.example"}, NOW, None),
        ({"aud": "https://box.example/"}, NOW, "made for"),
        ({"aud": "4712"}, NOW, "made for"),
        ({"exp": NOW + LIFETIME_S_MAX}, NOW, None),
        ({"exp": NOW + LIFETIME_S_MAX + 1}, NOW, "at most"),
        ({"exp": NOW}, NOW, "at most"),
        ({"exp": NOW - 1}, NOW, "at most"),
    ],
)
def test_when_and_where_a_token_is_good(change: dict[str, object], now_s: int, why: str | None) -> None:
    said = verdict(token(claims(**change)), now_s)
    assert said is None if why is None else said is not None and why in said


@pytest.mark.parametrize("more", [{"more": 1}, {"nbf": NOW, "jti": "x", "ucv": "0.10"}, {"hocket_answer": [7]}])
def test_members_that_are_not_known_are_ignored(more: dict[str, object]) -> None:
    made = token(claims(**more))
    assert read_bearer(made) == Bearer(NODE, "4711", NOW, NOW + 300, "n1")
    assert verdict(made) is None


def test_a_server_signs_for_its_answer() -> None:
    made = make_bearer(KEY, "4711", NOW, "n1", answer="ab" * 32)
    assert read_bearer(made).answer == "ab" * 32
    assert verdict(made) is None


@pytest.mark.req("LW-31")
def test_only_the_node_itself_can_sign() -> None:
    assert verdict(token(claims(), key=OTHER)) is not None
    assert verdict(token(claims()), public=OTHER.public) is not None


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"alg": "EdDSA"},
        {"alg": "none", "kid": f"node-{NODE}"},
        {"alg": "EdDSA", "kid": f"node-{NODE ^ 1}"},
        {"alg": "EdDSA", "kid": f"node-0{NODE}"},
        {"alg": "EdDSA", "kid": str(NODE)},
        HEADER | {"typ": "JWT"},
        HEADER | {"zip": "DEF"},
    ],
)
def test_another_header_is_refused(header: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        read_bearer(token(claims(), header))


@pytest.mark.parametrize(
    "header",
    [
        b'{"kid":"node-%d","alg":"EdDSA"}' % NODE,
        b'{"alg": "EdDSA", "kid": "node-%d"}' % NODE,
        b'{"alg":"none","alg":"EdDSA","kid":"node-%d"}' % NODE,
    ],
)
def test_the_header_has_one_spelling(header: bytes) -> None:
    signing_input = f"{b64(header)}.{b64(canonical_json(claims()))}"
    with pytest.raises(Malformed):
        read_bearer(f"{signing_input}.{b64(KEY.sign(signing_input.encode()))}")


@pytest.mark.parametrize(
    "payload",
    [
        *({name: value for name, value in claims().items() if name != left_out} for left_out in claims()),
        claims(iss=NODE % 1000),
        claims(iss="0" + str(NODE)),
        claims(iss=str(2**64)),
        claims(iss="-1"),
        claims(iss=""),
        claims(iss="node"),
        claims(iss="١"),
        claims(iss="1" * 5000),
        claims(aud=7),
        claims(aud=""),
        claims(aud=["4711"]),
        claims(aud="x" * 513),
        claims(iat=str(NOW)),
        claims(iat=True),
        claims(iat=-1),
        claims(iat=NOW + 0.5),
        claims(exp=None),
        claims(exp=str(NOW)),
        claims(nonce=1),
        claims(nonce=""),
        claims(nonce="x" * 513),
        [],
        None,
    ],
)
def test_a_token_that_says_anything_else_is_refused(payload: Any) -> None:
    issuer = payload.get("iss") if isinstance(payload, dict) else None
    for kid in (NODE, issuer):
        with pytest.raises(Malformed):
            read_bearer(token(payload, {"alg": "EdDSA", "kid": f"node-{kid}"}))


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[" * 5000 + b"]" * 5000, b'{"iss":' * 2000, b"{} "])
def test_a_payload_that_is_no_json_object_is_refused(payload: bytes) -> None:
    with pytest.raises(Malformed):
        read_bearer(compact(HEADER, payload, KEY))


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t + "=",
        lambda t: t + "\n",
        lambda t: t[:-1],
        lambda t: t[:-1] + chr(ord(t[-1]) + 1),
        lambda t: t.replace(".", "=.", 1),
        lambda t: t.replace(".", "..", 1),
        lambda t: t.replace(".", "", 1),
        lambda t: "Bearer " + t,
        lambda t: "",
    ],
)
def test_another_spelling_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Malformed):
        read_bearer(change(make_bearer(KEY, "4711", NOW, "n1")))


@given(st.data())
def test_a_changed_character_is_noticed(data: st.DataObject) -> None:
    made = make_bearer(KEY, "4711", NOW, "n1")
    place = data.draw(st.integers(0, len(made) - 1))
    other = data.draw(st.sampled_from("ABab01-_.=é").filter(lambda c: c != made[place]))
    changed = made[:place] + other + made[place + 1 :]
    try:
        assert verdict(changed) is not None
    except Malformed:
        pass


@given(st.text(max_size=80) | st.text(alphabet="ABQgey.-_=", max_size=80))
def test_nothing_random_is_a_token(text: str) -> None:
    with pytest.raises(Malformed):
        read_bearer(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["iss", "aud", "iat", "exp", "nonce", "x"]), inner, max_size=6)
        ),
    )
)
def test_no_random_payload_is_good_whoever_signs_it(payload: object) -> None:
    try:
        assert verdict(token(payload)) is not None
    except Malformed:
        pass


@pytest.mark.req("LW-31")
def test_a_nonce_is_good_once_for_a_node() -> None:
    nonces = Nonces()
    assert nonces.use(1, "a", NOW + 300, NOW)
    assert not nonces.use(1, "a", NOW + 300, NOW)
    assert not nonces.use(1, "a", NOW + 900, NOW + 1)
    assert nonces.use(2, "a", NOW + 300, NOW)
    assert nonces.use(1, "b", NOW + 300, NOW)
    assert len(nonces) == 3


@pytest.mark.req("LW-31")
def test_a_nonce_is_remembered_for_as_long_as_its_token_is_good() -> None:
    nonces = Nonces()
    made = make_bearer(KEY, "4711", NOW, "n1")
    bearer = read_bearer(made)
    assert nonces.use(bearer.node, bearer.nonce, bearer.expires, NOW)
    last = NOW + 300 + LEEWAY_S - 1
    assert verdict(made, last) is None
    assert not nonces.use(bearer.node, bearer.nonce, bearer.expires, last)
    assert verdict(made, last + 1) is not None
    assert nonces.use(9, "x", last + 300, last + 1)
    assert len(nonces) == 1
    assert nonces.use(bearer.node, bearer.nonce, last + 300, last + 1)


def test_a_clock_set_back_brings_no_token_back() -> None:
    nonces = Nonces()
    assert nonces.use(1, "a", NOW + 300, NOW)
    assert nonces.use(1, "b", NOW + 9000, NOW + 8700)
    assert not nonces.use(1, "a", NOW + 300, NOW)


def test_one_node_cannot_shut_out_another() -> None:
    nonces = Nonces(limit=10)
    assert all(nonces.use(1, str(n), NOW + 300, NOW) for n in range(10))
    assert not nonces.use(1, "more", NOW + 300, NOW)
    assert nonces.use(2, "a", NOW + 300, NOW)
    taken = sum(nonces.use(node, str(n), NOW + 300, NOW) for node in range(2, 500) for n in range(20))
    assert taken < 40
    later = NOW + 300 + LEEWAY_S
    assert nonces.use(1, "more", later + 300, later)
    assert len(nonces) == 1
    # What was forgotten counts in nobody's share.
    assert all(nonces.use(1, str(n), later + 300, later) for n in range(9))
    assert nonces.use(2, "b", later + 300, later)


@pytest.mark.req("LW-31")
@given(st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(0, 900), st.integers(-50, 300))))
def test_no_nonce_is_taken_twice_while_its_token_is_good(steps: list[tuple[int, int, int, int]]) -> None:
    nonces = Nonces()
    now_s = latest = NOW
    ends: dict[tuple[int, int], int] = {}
    used: set[tuple[int, int, int]] = set()
    for node, nonce, life, step in steps:
        now_s += step
        latest = max(latest, now_s)
        if nonces.use(node, str(nonce), now_s + life, now_s):
            assert ends.get((node, nonce), 0) <= latest
            ends[node, nonce] = now_s + life + LEEWAY_S
            assert (node, nonce, now_s + life) not in used
            used.add((node, nonce, now_s + life))
