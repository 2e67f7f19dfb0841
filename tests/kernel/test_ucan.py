"""Delegation tokens: what is issued can be read, and what can be read is exactly what was signed."""

import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.jws import base64url, canonical_json, compact
from hocket.kernel.keys import SigningKey, did_key, key_text
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import CAPABILITIES_MAX, PROOFS_MAX, ROOT, Capability, issue, read

pytestmark = pytest.mark.touches("LW-23", "LW-24")

USER = SigningKey(b"u" * 32)
NODE = SigningKey(b"n" * 32)
OTHER = SigningKey(b"o" * 32)
HEADER = {"alg": "EdDSA", "typ": "JWT"}
TIMES = st.integers(0, 2**53 - 1)
CAVEATS = st.dictionaries(
    st.text(max_size=8),
    st.booleans() | TIMES | st.lists(st.text(max_size=5), max_size=3),
    max_size=3,
)
CAPABILITIES = st.builds(Capability, st.text(max_size=8), st.text(max_size=8), CAVEATS)
HASHES = st.binary(min_size=32, max_size=32)


def claims() -> dict[str, Any]:
    return {
        "ucv": "0.10.0",
        "iss": did_key(USER.public),
        "aud": did_key(NODE.public),
        "sub": {"node": str(node_id(NODE.public)), "key": key_text(NODE.public)},
        "att": [{"resource": "Ops", "action": "*", "caveats": {}}],
        "nbf": 10,
        "exp": None,
        "prf": [],
    }


def token(payload: object, key: SigningKey = USER, header: dict[str, str] = HEADER) -> bytes:
    return compact(header, canonical_json(payload), key).encode()


@given(HASHES, HASHES, st.lists(CAPABILITIES, max_size=3), TIMES, st.none() | TIMES, st.lists(HASHES, max_size=3))
def test_what_is_issued_is_read(
    user: bytes, node: bytes, capabilities: list[Capability], nbf: int, exp: int | None, proofs: list[bytes]
) -> None:
    issuer, holder = SigningKey(user), SigningKey(node)
    made = issue(issuer, holder.public, capabilities, nbf, exp, proofs)
    got = read(made)
    assert got.cid == content_hash(made)
    assert (got.issuer, got.audience) == (did_key(issuer.public), did_key(holder.public))
    assert got.capabilities == tuple(capabilities)
    assert (got.not_before, got.expires, got.proofs) == (nbf, exp, tuple(proofs))
    assert (got.node, got.public) == (node_id(holder.public), holder.public)


@pytest.mark.req("LW-24")
def test_a_root_token_by_its_json() -> None:
    made = issue(USER, NODE.public, ROOT, 10, None)
    assert made == token(claims())
    head, body, _ = made.split(b".")
    assert base64.urlsafe_b64decode(head + b"==") == b'{"alg":"EdDSA","typ":"JWT"}'
    assert json.loads(base64.urlsafe_b64decode(body + b"==")) == claims()
    assert read(made).capabilities == ROOT


def test_a_name_is_the_issuers_word() -> None:
    made = issue(USER, NODE.public, ROOT, 10, None, name="the box in the cellar")
    assert made == token(claims() | {"fct": {"name": "the box in the cellar"}})
    assert read(made).name == "the box in the cellar"
    assert read(issue(USER, NODE.public, ROOT, 10, None)).name is None
    for name in ("", "x" * 65, "two\nlines"):
        with pytest.raises(Malformed):
            issue(USER, NODE.public, ROOT, 10, None, name=name)


def test_as_much_as_a_token_may_hold() -> None:
    capabilities = [Capability("Job", "Claim", {}) for _ in range(CAPABILITIES_MAX)]
    made = read(issue(USER, NODE.public, capabilities, 10, None, [bytes(32)] * PROOFS_MAX))
    assert (len(made.capabilities), len(made.proofs)) == (CAPABILITIES_MAX, PROOFS_MAX)


def without(field: str) -> Callable[[dict[str, Any]], Any]:
    return lambda c: {name: value for name, value in c.items() if name != field}


def changed(**fields: object) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c | fields


GRANT = {"resource": "Ops", "action": "*", "caveats": {}}
SUBJECT = {"node": str(node_id(NODE.public)), "key": key_text(NODE.public)}


@pytest.mark.parametrize(
    "change",
    [
        *(without(field) for field in ("ucv", "iss", "aud", "att", "exp")),
        changed(ucv="0.9.1"),
        changed(ucv="1.0.0"),
        changed(ucv=None),
        changed(nnc=7),
        changed(cap={}),
        changed(more="a restriction that we do not know"),
        changed(iss="did:web:example.org"),
        changed(iss=did_key(OTHER.public)),
        changed(aud=did_key(OTHER.public)),
        changed(sub=SUBJECT | {"node": str(node_id(OTHER.public))}),
        changed(sub=SUBJECT | {"node": node_id(NODE.public) % 1000}),
        changed(sub=SUBJECT | {"node": "0" + SUBJECT["node"]}),
        changed(sub=SUBJECT | {"key": key_text(OTHER.public)}),
        changed(sub=SUBJECT | {"key": NODE.public.hex()}),
        changed(sub=SUBJECT | {"more": "x"}),
        changed(sub="node"),
        changed(att={}),
        changed(att=["Ops"]),
        changed(att=[GRANT | {"caveats": []}]),
        changed(att=[GRANT | {"nb": {}}]),
        changed(att=[{"resource": "Ops", "action": "*"}]),
        changed(nbf="10"),
        changed(nbf=True),
        changed(nbf=10.5),
        changed(nbf=None),
        changed(nbf=-1),
        changed(exp=-1),
        changed(exp="never"),
        changed(prf=["00"]),
        changed(prf=["blake3:" + "aa" * 32]),
        changed(prf=[7]),
        changed(prf=["00" * 32] * (PROOFS_MAX + 1)),
        changed(att=[{"resource": "Ops", "action": "*", "caveats": {}}] * (CAPABILITIES_MAX + 1)),
        lambda c: [],
        lambda c: None,
        lambda c: "text",
    ],
)
def test_a_token_that_says_anything_else_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    assert read(token(claims())).node == node_id(NODE.public)
    with pytest.raises(Malformed):
        read(token(change(claims())))


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"alg": "none", "typ": "JWT"},
        {"alg": "EdDSA", "typ": "JWT", "ucv": "1.0.0"},
        {"alg": "EdDSA", "ucv": "0.10.0"},
        HEADER | {"kid": "x"},
        HEADER | {"crit": ["x"]},
    ],
)
def test_another_header_is_refused(header: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        read(token(claims(), header=header))


@pytest.mark.parametrize(
    "change",
    [
        *(without(field) for field in ("sub", "nbf", "prf")),
        changed(nnc="1b2c3d"),
        changed(nnc=""),
        changed(prf=["AA" * 32]),
        *(changed(fct=facts) for facts in ({}, [], None, "x", 7, {"any": [{"thing": None}]}, [{"name": "box"}])),
    ],
)
def test_what_v0_10_leaves_open_is_accepted(change: Callable[[dict[str, Any]], Any]) -> None:
    said = change(claims())
    got = read(token(said))
    assert (got.node, got.public, got.audience) == (node_id(NODE.public), NODE.public, did_key(NODE.public))
    assert got.capabilities == ROOT and got.name is None
    assert got.not_before == said.get("nbf", 0)
    assert got.proofs == tuple(bytes.fromhex(each) for each in said.get("prf", []))


def test_the_version_may_stand_in_the_header_as_we_once_wrote_it() -> None:
    old = HEADER | {"ucv": "0.10.0"}
    assert read(token(without("ucv")(claims()), header=old)).node == node_id(NODE.public)
    assert read(token(claims(), header=old)).node == node_id(NODE.public)
    for header, version in ((old, "0.9.1"), (HEADER | {"ucv": "0.9.1"}, "0.10.0")):
        with pytest.raises(Malformed):
            read(token(changed(ucv=version)(claims()), header=header))


@pytest.mark.parametrize("name", [7, None, "", "x" * 65, "a\nb", "a\u202eb", ["box"]])
def test_a_name_that_cannot_be_shown_is_none(name: object) -> None:
    assert read(token(claims() | {"fct": {"name": name, "more": 1}})).name is None
    assert read(token(claims() | {"fct": {"name": "box", "more": 1}})).name == "box"


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | TIMES | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.permutations(list(claims())),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
    st.dictionaries(st.sampled_from(["nnc", "fct"]), JSON_VALUES, max_size=2),
    st.lists(CAPABILITIES, max_size=3),
)
def test_however_anothers_json_is_spelled_it_says_the_same(
    order: list[str], indent: str | int | None, escaped: bool, more: dict[str, Any], capabilities: list[Capability]
) -> None:
    att = [{"resource": c.resource, "action": c.action, "caveats": c.caveats} for c in capabilities]
    if not isinstance(more.get("nnc", ""), str):
        del more["nnc"]
    said = {name: (claims() | {"att": att})[name] for name in order} | more
    spelled = compact(HEADER, json.dumps(said, indent=indent, ensure_ascii=escaped).encode(), USER).encode()
    got, plain = read(spelled), read(token(said))
    assert got.cid == content_hash(spelled)
    assert got == msgspec.structs.replace(plain, cid=got.cid)
    assert got.capabilities == tuple(capabilities)


@pytest.mark.req("LW-24")
def test_only_the_issuer_can_sign() -> None:
    for key in (OTHER, NODE):
        with pytest.raises(Malformed, match="not signed by its issuer"):
            read(token(claims(), key))


@pytest.mark.parametrize(
    "payload",
    [
        canonical_json(claims()).replace(b'"nbf":10', b'"nbf":9,"nbf":10'),
        canonical_json(claims()).replace(b'"nbf":10', b'"nbf":9,"n\\u0062f":10'),
        canonical_json(claims()).replace(b'"nbf":10', b'"nbf":10.0'),
        canonical_json(claims()).replace(b'"nbf":10', b'"nbf":1e1'),
        canonical_json(claims()).replace(b'"nbf":10', b'"nbf":%d' % 2**60),
        canonical_json(claims()).replace(b'"caveats":{}', b'"caveats":{"a":1,"a":2}'),
        canonical_json(claims()).replace(b'"caveats":{}', b'"caveats":{"a":NaN}'),
        canonical_json(claims()).replace(b'"caveats":{}', b'"caveats":{"a":%d}' % 2**60),
        canonical_json(claims()).replace(b'"caveats":{}', b'"caveats":{"a":"\\ud800"}'),
        canonical_json(claims()).replace(b'"caveats":{}', b'"caveats":{"a":%s}' % (b"[" * 5000 + b"]" * 5000)),
        canonical_json(claims()) + b"{}",
        b"\xff",
        b"\xef\xbb\xbf" + canonical_json(claims()),
        b"",
    ],
)
def test_what_two_readers_could_read_differently_is_refused(payload: bytes) -> None:
    with pytest.raises(Malformed):
        read(compact(HEADER, payload, USER).encode())


def test_a_header_that_says_something_twice_is_refused() -> None:
    _, payload, _ = issue(USER, NODE.public, ROOT, 10, None).split(b".")
    for header in (b'{"alg":"none","alg":"EdDSA","typ":"JWT"}', b'{"alg":"EdDSA","typ":"JWT","typ":"JWT"}'):
        signing_input = base64url(header) + b"." + payload
        with pytest.raises(Malformed):
            read(signing_input + b"." + base64url(USER.sign(signing_input)))
    spaced = base64url(b'{ "typ" : "JWT", "alg" : "EdDSA" }') + b"." + payload
    assert read(spaced + b"." + base64url(USER.sign(spaced))).node == node_id(NODE.public)


@pytest.mark.req("LW-24")
@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    made = bytearray(issue(USER, NODE.public, ROOT, 10, 20))
    place = data.draw(st.integers(0, len(made) - 1))
    made[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Malformed):
        read(bytes(made))


@given(st.binary(max_size=100))
def test_random_bytes_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read(data)


def test_what_nobody_could_read_is_not_issued() -> None:
    for capabilities, nbf in (
        ((Capability("Ops", "*", {"x": float(2**60)}),), 10),
        ((Capability("Ops", "*", {"x": 2**60}),), 10),
        ((Capability("Ops", "*", {"x": "y" * 20_000}),), 10),
        (ROOT, -1),
    ):
        with pytest.raises(ValueError):
            issue(USER, NODE.public, capabilities, nbf, None)
    with pytest.raises(ValueError):
        issue(USER, bytes(31), ROOT, 10, None)
