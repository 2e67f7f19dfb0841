"""JSON that is signed: its one spelling, how deep it may be nested, and JSON web signatures in the two forms that the
protocol uses: detached, for the signature field of an op, and compact, for delegations and bearer tokens. This module
writes and parses tokens strictly, so that one signature has one spelling; the caller checks the signature and
interprets the payload.

By a bearer token a node identifies itself over HTTP for one request. A token is a compact JWS that the node signs
itself; this module decides how one is spelled, when it is valid, and that it is valid only once. The caller knows which
key a node has, what that node may read or write, and the time.
"""

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections import Counter
from collections.abc import Collection
from functools import lru_cache
from heapq import heappop, heappush
from typing import Annotated, Any, NamedTuple

import msgspec
import rfc8785

from hocket.kernel.clock import U64_MAX
from hocket.kernel.decoding import convert, decode_json
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SIGNATURE_BYTES, SigningKey, verify
from hocket.kernel.postcard import Malformed

TOKEN_BYTES_MAX = 16 * 1024
# Interpreters differ in the depth that they can read, and nodes must not differ about what a text from another node
# means: so what is signed, and what is redacted, has a bound of our own.
NESTING_MAX = 64
SIGNATURE_CHARS = 86
# What follows the header in a signature field: two dots and the signature.
SIGNATURE_END_CHARS = 2 + SIGNATURE_CHARS

_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_", b"+/")
_encoder = msgspec.json.Encoder(order="sorted")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def base64url(data: bytes) -> bytes:
    """The URL-safe alphabet without padding."""
    return b2a_base64(data, newline=False).translate(_URL_SAFE).rstrip(b"=")


def from_base64url(text: bytes) -> bytes:
    """Decodes base64url; accepts only the canonical spelling."""
    try:
        data = a2b_base64(text.translate(_STANDARD) + b"=" * (-len(text) % 4))
    except Base64Error as error:
        raise Malformed(f"not base64url: {error}") from None
    # The library skips foreign characters and ignores spare bits; encoding again finds both.
    if base64url(data) != text:
        raise Malformed("not canonical base64url")
    return data


# How every signature field begins; the node's id follows.
SIGNATURE_BEGINS = base64url(b'{"alg":"EdDSA","kid":"node-')


@lru_cache(maxsize=4096)
def detached_prefix(node: int) -> bytes:
    """What every signature field of this node begins with; the signature follows."""
    return base64url(b'{"alg":"EdDSA","kid":"node-%d"}' % node) + b".."


def detached(signature: bytes, node: int) -> bytes:
    """The signature field of an op by this node: header and signature, with nothing between the two dots."""
    if len(signature) != SIGNATURE_BYTES:
        raise Malformed(f"a signature has {SIGNATURE_BYTES} bytes, not {len(signature)}")
    return detached_prefix(node) + base64url(signature)


def open_detached(token: bytes, node: int) -> bytes:
    """The raw signature in a signature field, if it is spelled exactly as this node must spell it."""
    prefix = detached_prefix(node)
    if len(token) != len(prefix) + SIGNATURE_CHARS or not token.startswith(prefix):
        raise Malformed(f"not a detached signature of node {node}")
    return from_base64url(token[len(prefix) :])


def compact(header: dict[str, str], payload: bytes, key: SigningKey) -> str:
    signing_input = base64url(canonical_json(header)) + b"." + base64url(payload)
    token = signing_input + b"." + base64url(key.sign(signing_input))
    if len(token) > TOKEN_BYTES_MAX:
        raise Malformed(f"a token of {len(token)} bytes is longer than {TOKEN_BYTES_MAX}")
    return token.decode("ascii")


def open_compact(token: str) -> tuple[dict[str, object], bytes, bytes, bytes]:
    """Header, payload, signature and signing input of a compact token. Nothing is verified yet."""
    if len(token) > TOKEN_BYTES_MAX or not token.isascii():
        raise Malformed(f"a token is at most {TOKEN_BYTES_MAX} ASCII characters")
    signing_input, _, signature = token.encode("ascii").rpartition(b".")
    parts = signing_input.split(b".")
    if len(parts) != 2:
        raise Malformed("a compact token has three parts")
    raw = from_base64url(parts[0])
    if is_too_deep(raw):
        raise Malformed(f"a token's header is nested deeper than {NESTING_MAX}")
    try:
        header = decode_json(raw, dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Malformed(f"a token's header is not a JSON object: {error}") from None
    return header, from_base64url(parts[1]), from_base64url(signature), signing_input


def canonical_json(value: object) -> bytes:
    """The RFC 8785 form of a value. Everything of ours that is hashed or signed as JSON uses this, because key order,
    number spelling and escapes must be the same in every language that checks it. Raises ValueError for a value without
    such a form (an integer beyond 2^53, a NaN).
    """
    return rfc8785.dumps(value)  # type: ignore[arg-type]


def canonical_plain(value: object) -> bytes:
    """Builds the RFC 8785 form several times faster. The caller must ensure that the value has no floats, that its
    integers lie within 2^53 and that its keys are ASCII.
    """
    return _encoder.encode(value)


def is_too_deep(text: bytes) -> bool:
    """Whether arrays and objects in a JSON text are nested deeper than NESTING_MAX. Bytes that begin with neither are
    not: a reader of JSON refuses them at once.
    """
    if not text.lstrip(b" \t\n\r").startswith((b"[", b"{")):
        return False
    depth = 0
    for bracket in _BRACKET.findall(_TEXT.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > NESTING_MAX:
            return True
    return False


LIFETIME_S_DEFAULT = 300
LIFETIME_S_MAX = 3600
LEEWAY_S = 60
NONCES_MAX = 100_000

Number = Annotated[str, msgspec.Meta(min_length=1, max_length=20)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Seconds = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]


class Bearer(NamedTuple):
    """The content of a token; believe nothing of it before check_bearer has accepted it. Only a server's token has
    `answer`: the hash of the answer that it came with.
    """

    node: int
    audience: str
    issued: int
    expires: int
    nonce: str
    answer: str | None = None


class _BearerClaims(msgspec.Struct, frozen=True):
    """Unknown members are ignored."""

    iss: Number
    aud: Text
    iat: Seconds
    exp: Seconds
    nonce: Text
    hocket_answer: Any = None


def _header(node: int) -> dict[str, str]:
    return {"alg": "EdDSA", "kid": f"node-{node}"}


def make_bearer(
    key: SigningKey,
    audience: str,
    now_s: int,
    nonce: str,
    lifetime_s: int = LIFETIME_S_DEFAULT,
    *,
    answer: str | None = None,
) -> str:
    """A token of the node that holds this key, for one request to the audience: a node id in decimal, or an origin.
    With an `answer` it is the token of a server, for the answer that has this hash.
    """
    node = node_id(key.public)
    claims = {"iss": str(node), "aud": audience, "iat": now_s, "exp": now_s + lifetime_s, "nonce": nonce}
    if answer is not None:
        claims["hocket_answer"] = answer
    return compact(_header(node), canonical_json(claims), key)


def read_bearer(token: str) -> Bearer:
    """Parses a token, or raises Malformed. Checks only the form: the signature is not verified yet."""
    _, payload, _, signing_input = open_compact(token)
    if is_too_deep(payload):
        raise Malformed(f"a bearer token is nested deeper than {NESTING_MAX}")
    try:
        # Read as a whole first: ignored members must still be JSON.
        claims = convert(decode_json(payload, dict[str, Any]), _BearerClaims)
        node = int(claims.iss)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Malformed(f"not a bearer token: {error}") from None
    if not 0 <= node <= U64_MAX or str(node) != claims.iss:
        raise Malformed("a bearer token's issuer is not a node id in decimal")
    # The header has one spelling, so a second algorithm, a repeated field or another node's name cannot hide in it.
    if not signing_input.startswith(base64url(canonical_json(_header(node))) + b"."):
        raise Malformed("a bearer token's header is not that of its issuer")
    answer = claims.hocket_answer if isinstance(claims.hocket_answer, str) else None
    return Bearer(node, claims.aud, claims.iat, claims.exp, claims.nonce, answer)


def check_bearer(token: str, bearer: Bearer, public: bytes, audiences: Collection[str], now_s: int) -> str | None:
    """Why this token, parsed as `bearer`, is not valid here and now, in words for the operator; None if it is valid.
    Clocks may differ by LEEWAY_S. Nonces checks that it is used only once.
    """
    if not 0 < bearer.expires - bearer.issued <= LIFETIME_S_MAX:
        return f"the token is made for {bearer.expires - bearer.issued} seconds; at most {LIFETIME_S_MAX}"
    if bearer.issued > now_s + LEEWAY_S:
        return f"the token was issued {bearer.issued - now_s} seconds in the future; compare the clocks"
    if bearer.expires + LEEWAY_S <= now_s:
        return f"the token expired {now_s - bearer.expires} seconds ago; compare the clocks"
    if bearer.audience not in audiences:
        return f"the token is made for {bearer.audience!r}"
    _, _, signature, signing_input = open_compact(token)
    if not verify(public, signature, signing_input):
        return "the token is not signed by the node that it names"
    return None


class Nonces:
    """The used nonces, kept for as long as their tokens could be valid. There is room for `limit` of them; when it is
    full, only nodes with less than their even share get in, so that no node can shut out the others.
    """

    def __init__(self, limit: int = NONCES_MAX) -> None:
        self._limit = limit
        self._seen: set[tuple[int, str]] = set()
        self._by_end: list[tuple[int, int, str]] = []
        self._of_node: Counter[int] = Counter()
        self._latest = 0

    def use(self, node: int, nonce: str, expires: int, now_s: int) -> bool:
        """Whether this nonce of this node is new; from now on it is not. Call this after the token was accepted."""
        # A clock that is set back does not bring back dropped nonces.
        self._latest = max(self._latest, now_s)
        while self._by_end and self._by_end[0][0] <= self._latest:
            _, past_node, past_nonce = heappop(self._by_end)
            self._seen.remove((past_node, past_nonce))
            self._of_node[past_node] -= 1
            if not self._of_node[past_node]:
                del self._of_node[past_node]
        end = expires + LEEWAY_S
        if end <= self._latest or (node, nonce) in self._seen:
            return False
        if len(self._seen) >= self._limit and self._of_node[node] >= self._limit // max(1, len(self._of_node)):
            return False
        self._seen.add((node, nonce))
        self._of_node[node] += 1
        heappush(self._by_end, (end, node, nonce))
        return True

    def __len__(self) -> int:
        return len(self._seen)
