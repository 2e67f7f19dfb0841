"""Delegation tokens in the form of UCAN v0.10: writing one, and parsing a token after checking its signature, its
subject and its spelling. `authority` judges chains, attenuation, caveats, time limits and revocation, starting from the
Delegation that is read here. The issuer can write a quota into the facts of a token, which readers that do not know it
ignore.

We write one form and read what v0.10 allows: `ucv` in the payload or, as we once wrote it, in the header; a nonce, any
facts, no `nbf`, no `prf`, no `sub` (the key is in `aud`, and the node's id follows from it); JSON with any white space
and order. A delegation is identified by the hash of the token's bytes, and only the issuer can sign other bytes, so a
second spelling is a second delegation. The parts that must be unique are those that no signature covers, the base64url
of the signature, and those that two JSON readers could read differently: a repeated member, or a number that is not
exact everywhere.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import NoneType
from typing import Annotated

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.jws import NESTING_MAX, canonical_json, compact, from_base64url, is_too_deep, open_compact
from hocket.kernel.keys import SigningKey, did_key, key_text, parse_did_key, verify
from hocket.kernel.postcard import Malformed

_HEADER = {"alg": "EdDSA", "typ": "JWT"}
_VERSION = "0.10.0"
_PROOF = "[0-9a-fA-F]{64}"
CAPABILITIES_MAX = 64
PROOFS_MAX = 16
NAME_CHARS_MAX = 64
# The largest number that every JSON reader reads exactly.
_NUMBER_MAX = 2**53 - 1


class Capability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    resource: str
    action: str
    caveats: dict[str, object]


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much a node may store. A field that is None sets no limit."""

    ops_per_s: int | None = None
    bytes_per_s: int | None = None
    ops: int | None = None
    bytes: int | None = None


NO_QUOTA = Quota()


class Delegation(msgspec.Struct, frozen=True):
    """What a token grants, to which node, and by whom. `cid` is the hash of the token's bytes; `name` is the node's
    name, if the issuer gives one, and `quota` how much the node may store.
    """

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
    quota: Quota = NO_QUOTA


ROOT = (Capability("Ops", "*", {}),)


# The structs below, and Capability, are the JSON of a token. An unknown field is refused: it may be a restriction.


class _Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    key: str


class _UcanClaims(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    iss: str
    aud: str
    att: Annotated[tuple[Capability, ...], msgspec.Meta(max_length=CAPABILITIES_MAX)]
    exp: int | None
    nbf: int = 0
    prf: Annotated[tuple[str, ...], msgspec.Meta(max_length=PROOFS_MAX)] = ()
    sub: _Subject | msgspec.UnsetType = msgspec.UNSET
    ucv: str | msgspec.UnsetType = msgspec.UNSET
    nnc: str | msgspec.UnsetType = msgspec.UNSET
    fct: object = msgspec.UNSET


def issue(
    issuer: SigningKey,
    node_public: bytes,
    capabilities: Iterable[Capability],
    not_before: int,
    expires: int | None,
    proofs: Iterable[bytes] = (),
    name: str | None = None,
    quota: Quota = NO_QUOTA,
) -> bytes:
    """A token by which the holder of a key, the user's or an inviting node's, grants capabilities to a node, and states
    that node's key and name. It is read once before it is returned, so that an unreadable token is found in time.
    """
    if name is not None and _name({"name": name}) is None:
        raise Malformed(f"a node's name has 1 to {NAME_CHARS_MAX} printable characters")
    claims: dict[str, object] = {
        "ucv": _VERSION,
        "iss": did_key(issuer.public),
        "aud": did_key(node_public),
        "sub": {"node": str(node_id(node_public)), "key": key_text(node_public)},
        "att": [{"resource": c.resource, "action": c.action, "caveats": c.caveats} for c in capabilities],
        "nbf": not_before,
        "exp": expires,
        "prf": [proof.hex() for proof in proofs],
    }
    facts: dict[str, object] = {} if name is None else {"name": name}
    if quota != NO_QUOTA:
        facts["quota"] = msgspec.to_builtins(quota)
    if facts:
        claims["fct"] = facts
    token = compact(_HEADER, canonical_json(claims), issuer).encode("ascii")
    read(token)
    return token


@lru_cache(maxsize=256)  # a log reads the few delegations of its mesh again and again
def read(token: bytes) -> Delegation:
    """The delegation in a token, or Malformed. The issuer's signature is valid when this returns."""
    try:
        _, payload, signature, signing_input = open_compact(token.decode("ascii"))
        header = _unambiguous(from_base64url(token.partition(b".")[0]))
        members = _unambiguous(payload)
        claims = decode_json(payload, _UcanClaims)
        version = {each for each in (header.pop("ucv", None), members.get("ucv")) if each is not None}
        if header != _HEADER or version != {_VERSION}:
            raise Malformed("a token's header and version are not those of a UCAN v0.10 signed with EdDSA")
        if not all(type(members.get(each, 0)) in (int, NoneType) for each in ("nbf", "exp")):
            raise Malformed("a token's time bounds are not whole seconds")
        issuer = parse_did_key(claims.iss)
        public = parse_did_key(claims.aud)
        proofs = tuple(map(_proof, claims.prf))
    except Malformed:
        raise
    except (ValueError, msgspec.MsgspecError) as error:
        raise Malformed(f"not a delegation token: {error}") from None
    node = node_id(public)
    if claims.sub is not msgspec.UNSET and claims.sub != _Subject(str(node), key_text(public)):
        raise Malformed("a token's subject, key and audience are not one node")
    if claims.nbf < 0 or (claims.exp is not None and claims.exp < 0):
        raise Malformed("a token's time bounds lie before the epoch")
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
        name=_name(claims.fct),
        quota=read_quota(claims.fct),
    )


def _unambiguous(text: bytes) -> dict[str, object]:
    """The members of a JSON object that every reader reads alike: none is repeated, at any depth, and the whole has a
    canonical form, so that it holds no NaN, no half characters and no integer beyond 2^53. It is not nested deeper than
    every interpreter reads.
    """

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise Malformed("a token has a repeated member")
        return found

    if is_too_deep(text):
        raise Malformed(f"a token is nested deeper than {NESTING_MAX}")
    value = json.loads(text.decode(), object_pairs_hook=members)
    if not isinstance(value, dict):
        raise Malformed("a token's parts are JSON objects")
    canonical_json(value)
    return value


def _name(facts: object) -> str | None:
    """The node's name, if the facts give a printable one."""
    name = facts.get("name") if isinstance(facts, dict) else None
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARS_MAX and name.isprintable():
        return name
    return None


def _proof(text: str) -> bytes:
    if not re.fullmatch(_PROOF, text):
        raise Malformed("a token names a proof that is not a hash")
    return bytes.fromhex(text)


def strictest(quotas: Iterable[Quota]) -> Quota:
    """The smallest limit of each field."""
    return _combined(quotas, lambda bounds: min((each for each in bounds if each is not None), default=None))


def widest(quotas: Iterable[Quota]) -> Quota:
    """The largest limit of each field."""
    return _combined(quotas, lambda bounds: None if None in bounds else max(filter(None, bounds), default=0))


def filled(quota: Quota, default: Quota) -> Quota:
    """The quota, with the default for each field that sets no limit."""
    return _combined((quota, default), lambda bounds: bounds[1] if bounds[0] is None else bounds[0])


def read_quota(facts: object) -> Quota:
    """The quota in the facts of a token. An unreadable number counts as none."""
    found = facts.get("quota") if isinstance(facts, dict) else None
    if not isinstance(found, dict):
        return NO_QUOTA
    return Quota(**{name: _number(found.get(name)) for name in Quota.__struct_fields__})


def _number(value: object) -> int | None:
    # The type is compared, because isinstance accepts True as an int.
    return value if type(value) is int and 0 <= value <= _NUMBER_MAX else None


def _combined(quotas: Iterable[Quota], choose: Callable[[list[int | None]], int | None]) -> Quota:
    found = list(quotas)
    return Quota(*(choose([getattr(each, name) for each in found]) for name in Quota.__struct_fields__))
