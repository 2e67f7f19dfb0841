"""JSON that is signed: its one spelling, how deep it may be nested, and JSON web signatures in the two forms that the
protocol uses: detached, for the signature field of an op, and compact, for delegations and bearer tokens. This module
writes and parses tokens strictly, so that one signature has one spelling; the caller checks the signature and
interprets the payload.
"""

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from functools import lru_cache

import msgspec
import rfc8785

from hocket.kernel.decoding import decode_json
from hocket.kernel.keys import SIGNATURE_BYTES, SigningKey
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
