"""Delegation tokens, in the shape of UCAN v0.10: how one is written, and what a token says once its signature, its
subject and its spelling have been found good. Chains, attenuation, caveats, time bounds and revocation are judged
by authority, which starts from the Delegation that is read here."""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec

from hocket.kernel.canonical import canonical_json
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.jws import compact, open_compact
from hocket.kernel.keys import SigningKey, did_key, key_text, parse_did_key, parse_key, verify
from hocket.kernel.postcard import Malformed

_HEADER = {"alg": "EdDSA", "typ": "JWT", "ucv": "0.10.0"}
_PROOF = re.compile("[0-9a-f]{64}")
CAPABILITIES_MAX = 64
PROOFS_MAX = 16
NAME_CHARS_MAX = 64


class Capability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    resource: str
    action: str
    caveats: dict[str, object]


class Delegation(msgspec.Struct, frozen=True):
    """What a token grants, to which node, and by whom. `cid` is the hash of the token's bytes; `name` is what the
    issuer calls the node, if it says so."""

    cid: bytes
    issuer: str
    audience: str
    capabilities: tuple[Capability, ...]
    not_before: int
    expires: int | None
    proofs: tuple[bytes, ...]
    node: int
    public: bytes
    name: str | None = None


ROOT = (Capability("Ops", "*", {}),)


# The structs below, and Capability, are the JSON of a token; a field that is missing, unknown or of another type is
# refused.


class _Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    key: str


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class _Claims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    iss: str
    aud: str
    sub: _Subject
    att: Annotated[tuple[Capability, ...], msgspec.Meta(max_length=CAPABILITIES_MAX)]
    nbf: int
    exp: int | None
    prf: Annotated[tuple[str, ...], msgspec.Meta(max_length=PROOFS_MAX)]
    fct: _Facts | msgspec.UnsetType = msgspec.UNSET


def issue(
    issuer: SigningKey,
    node_public: bytes,
    capabilities: Iterable[Capability],
    not_before: int,
    expires: int | None,
    proofs: Iterable[bytes] = (),
    name: str | None = None,
) -> bytes:
    """A token by which the holder of a key, the user's or an inviting node's, grants capabilities to a node, and says
    which key that node has and what it is called. It is read once before it is handed out, because a token that
    nobody can read is found too late."""
    claims: dict[str, object] = {
        "iss": did_key(issuer.public),
        "aud": did_key(node_public),
        "sub": {"node": str(node_id(node_public)), "key": key_text(node_public)},
        "att": [{"resource": c.resource, "action": c.action, "caveats": c.caveats} for c in capabilities],
        "nbf": not_before,
        "exp": expires,
        "prf": [proof.hex() for proof in proofs],
    }
    if name is not None:
        claims["fct"] = {"name": name}
    token = compact(_HEADER, canonical_json(claims), issuer).encode("ascii")
    read(token)
    return token


def read(token: bytes) -> Delegation:
    """The delegation in a token, or Malformed. The issuer's signature is good when this returns."""
    try:
        header, payload, signature, signing_input = open_compact(token.decode("ascii"))
        if header != _HEADER:
            raise Malformed("a token's header is not that of a UCAN v0.10 signed with EdDSA")
        claims = msgspec.json.decode(payload, type=_Claims)
        # A repeated key or a second spelling could be read differently by two readers, so there is only one spelling.
        if canonical_json(msgspec.json.decode(payload)) != payload:
            raise Malformed("a token's payload is not canonical JSON")
        issuer = parse_did_key(claims.iss)
        public = parse_key(claims.sub.key)
        proofs = tuple(map(_proof, claims.prf))
    except Malformed:
        raise
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(f"not a delegation token: {error}") from None
    node = node_id(public)
    if claims.sub.node != str(node) or claims.aud != did_key(public):
        raise Malformed("a token's subject, key and audience are not one node")
    if claims.nbf < 0 or (claims.exp is not None and claims.exp < 0):
        raise Malformed("a token's time bounds lie before the epoch")
    name = None if claims.fct is msgspec.UNSET else claims.fct.name
    if name is not None and not name.isprintable():
        raise Malformed("a token gives its node a name that cannot be shown")
    if not verify(issuer, signature, signing_input):
        raise Malformed("a token is not signed by its issuer")
    return Delegation(
        cid=content_hash(token),
        issuer=claims.iss,
        audience=claims.aud,
        capabilities=claims.att,
        not_before=claims.nbf,
        expires=claims.exp,
        proofs=proofs,
        node=node,
        public=public,
        name=name,
    )


def _proof(text: str) -> bytes:
    if _PROOF.fullmatch(text) is None:
        raise Malformed(f"not a proof hash: {text!r}")
    return bytes.fromhex(text)
