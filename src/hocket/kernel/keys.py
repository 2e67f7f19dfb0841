"""Ed25519 keys: signing, verifying, and the two text forms of a key. Libsodium verifies, because it refuses keys and
signatures of small order and unreduced scalars; OpenSSL signs, because it is faster and a signature has only one right
value, whichever of the two makes it. Other modules decide where a seed comes from, where it is kept, and which node a
key belongs to.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import CryptoError

KEY_BYTES = 32
SIGNATURE_BYTES = 64
# Loading OpenSSL takes as long as 200 signatures, and a short command signs one or two.
FIRST_SIGNATURES = 16
_TEXT = "ed25519:((?:[0-9a-f]{2})+)"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUES = {digit: value for value, digit in enumerate(_BASE58)}
_DID_PREFIX = "did:key:z"
_MULTICODEC = b"\xed\x01"
_DID_CHARS_MAX = 64


class SigningKey:
    """A private key, made from its 32-byte seed. Libsodium makes its first signatures, OpenSSL all others."""

    __slots__ = ("_pair", "_sign", "_signatures", "public", "seed")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise ValueError(f"a seed has {KEY_BYTES} bytes, not {len(seed)}")
        self.seed = bytes(seed)
        pair: tuple[bytes, bytes] = crypto_sign_seed_keypair(self.seed)
        self.public, self._pair = pair
        self._sign: Callable[[bytes], bytes] = self._sign_first
        self._signatures = 0

    def sign(self, message: bytes) -> bytes:
        return self._sign(message)

    def _sign_first(self, message: bytes) -> bytes:
        self._signatures += 1
        if self._signatures > FIRST_SIGNATURES:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

            self._sign = Ed25519PrivateKey.from_private_bytes(self.seed).sign
            return self._sign(message)
        signed: bytes = crypto_sign(message, self._pair)
        return signed[:SIGNATURE_BYTES]

    def __repr__(self) -> str:
        return f"SigningKey({key_text(self.public)})"


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether this key made this signature over this message. Input of any form gives an answer, never an error."""
    # The binding passes the key to C without checking its length, so it is checked here.
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True


def key_text(b: bytes) -> str:
    """The text form of a key or a signature."""
    return f"ed25519:{b.hex()}"


def parse_key(text: str, size: int = KEY_BYTES) -> bytes:
    """The bytes of a key in its text form; with size 64, those of a signature."""
    found = re.fullmatch(_TEXT, text)
    if found is None or len(found[1]) != 2 * size:
        raise ValueError(f"not an ed25519 text of {size} bytes: {text!r}")
    return bytes.fromhex(found[1])


@lru_cache(maxsize=4_096)
def did_key(public: bytes) -> str:
    if len(public) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(public)}")
    n = int.from_bytes(_MULTICODEC + public, "big")
    digits = []
    while n:
        n, digit = divmod(n, 58)
        digits.append(_BASE58[digit])
    return _DID_PREFIX + "".join(reversed(digits))


def parse_did_key(did: str) -> bytes:
    """The Ed25519 key that a did:key names. Refuses other methods, other kinds of key and other spellings."""
    body = did.removeprefix(_DID_PREFIX)
    if len(did) > _DID_CHARS_MAX or body == did or not all(digit in _BASE58_VALUES for digit in body):
        raise ValueError(f"not a did:key: {did[:_DID_CHARS_MAX]!r}")
    n = 0
    for digit in body:
        n = n * 58 + _BASE58_VALUES[digit]
    data = n.to_bytes(_DID_CHARS_MAX, "big")[-(len(_MULTICODEC) + KEY_BYTES) :]
    public = data[len(_MULTICODEC) :]
    if did_key(public) != did:
        raise ValueError(f"not a did:key of an Ed25519 key: {did!r}")
    return public
