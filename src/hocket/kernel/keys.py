"""Ed25519 keys: signing, verifying, and the two text forms of a key. Libsodium decides which signatures are good,
because it refuses keys and signatures of small order and unreduced scalars. On ARM, OpenSSL takes half of libsodium's
time to sign and two thirds to verify. There it makes a key's signatures after the first few, since a signature has only
one right value, and it is asked first whether a signature is good: its yes counts where it implies libsodium's.
Elsewhere libsodium is at least as fast, and OpenSSL, which takes 6 to 9 MiB, is never loaded. Other modules decide
where a seed comes from, where it is kept, and which node a key belongs to.

Rows that a node keeps beside the log have a MAC under a key that only the node has, which shows it that it wrote the
row itself. A store that nodes share can be written and read by all of them: secrets that admit a caller are encrypted
there.

A private key can be locked with a passphrase: one line of text that gives the key back only with the passphrase, and
that names the key's owner without it. Argon2id stretches the passphrase, XSalsa20-Poly1305 encrypts and authenticates
the key; both are libsodium's. Other modules ask for the passphrase and store the line.
"""

import re
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec
from blake3 import blake3

# PyNaCl's compiled part. Its `bindings` load 19 modules first, which takes as long as a short command takes to read.
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]

from hocket.kernel.ids import node_id
from hocket.kernel.postcard import Malformed

if lib.sodium_init() < 0:
    raise RuntimeError("libsodium cannot start")

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_OPENSSL_IS_QUICKER = getattr(sys.implementation, "_multiarch", "").startswith("aarch64")
# Loading OpenSSL takes as long as 200 signatures, and a short command signs or verifies one or two.
FIRST_SIGNATURES = 16
# The most keys whose signatures OpenSSL verifies.
QUICK_KEYS_MAX = 4_096
# The points of small order, by their encodings without the sign. Libsodium accepts no signature that begins with one.
_SMALL_ORDER = frozenset(
    bytes.fromhex(y)
    for y in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
    )
)
_PREFIX = "ed25519:"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUES = {digit: value for value, digit in enumerate(_BASE58)}
_DID_PREFIX = "did:key:z"
_MULTICODEC = b"\xed\x01"
_DID_CHARS_MAX = 64


class SigningKey:
    """A private key, made from its 32-byte seed."""

    __slots__ = ("_pair", "_sign", "_signatures", "public", "seed")

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise ValueError(f"a seed has {KEY_BYTES} bytes, not {len(seed)}")
        self.seed = bytes(seed)
        public, pair = ffi.new("unsigned char[]", KEY_BYTES), ffi.new("unsigned char[]", KEY_BYTES * 2)
        if lib.crypto_sign_seed_keypair(public, pair, self.seed) != 0:
            raise ValueError("libsodium made no key from the seed")
        self.public, self._pair = ffi.buffer(public)[:], pair
        self._sign: Callable[[bytes], bytes] = self._sign_first if _OPENSSL_IS_QUICKER else self.sign_with_sodium
        self._signatures = 0

    def sign(self, message: bytes) -> bytes:
        """Signs with the library that is quicker for many signatures."""
        return self._sign(message)

    def sign_with_sodium(self, message: bytes) -> bytes:
        """Signs without loading OpenSSL, which takes too much memory for some signatures a second."""
        signed = ffi.new("unsigned char[]", SIGNATURE_BYTES + len(message))
        if lib.crypto_sign(signed, ffi.NULL, message, len(message), self._pair) != 0:
            raise ValueError("libsodium made no signature")
        signature: bytes = ffi.buffer(signed, SIGNATURE_BYTES)[:]
        return signature

    def _sign_first(self, message: bytes) -> bytes:
        self._signatures += 1
        if self._signatures > FIRST_SIGNATURES:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

            self._sign = Ed25519PrivateKey.from_private_bytes(self.seed).sign
            return self._sign(message)
        return self.sign_with_sodium(message)

    def __repr__(self) -> str:
        return f"SigningKey({key_text(self.public)})"


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether this key made this signature over this message. Input of any form gives an answer, never an error."""
    # C gets the key without its length.
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    quick = _quick_keys.get(public)
    if quick is not None and quick(signature, message):
        return True
    signed = signature + message
    opened = ffi.new("unsigned char[]", len(signed))
    is_right: bool = lib.crypto_sign_open(opened, ffi.NULL, signed, len(signed), public) == 0
    if is_right and quick is None and _OPENSSL_IS_QUICKER:
        _note_good(public)
    return is_right


_quick_keys: dict[bytes, Callable[[bytes, bytes], bool]] = {}
_good_signatures: dict[bytes, int] = {}


def _note_good(public: bytes) -> None:
    """Counts a signature that libsodium has accepted, which proves that the key is not of small order. OpenSSL tries
    the later ones first. It accepts a signature only if the equation holds exactly, as libsodium does, and then
    differs only in what `_SMALL_ORDER` covers. What it refuses, libsodium looks at again.
    """
    count = _good_signatures[public] = _good_signatures.get(public, 0) + 1
    if count >= FIRST_SIGNATURES:
        if len(_quick_keys) >= QUICK_KEYS_MAX:
            _quick_keys.clear()
        _quick_keys[public] = _quick_check(public)
    if len(_good_signatures) > QUICK_KEYS_MAX:
        _good_signatures.clear()


def _quick_check(public: bytes) -> Callable[[bytes, bytes], bool]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    verify = Ed25519PublicKey.from_public_bytes(public).verify

    def is_certainly_right(signature: bytes, message: bytes) -> bool:
        if signature[:31] + bytes((signature[31] & 0x7F,)) in _SMALL_ORDER:
            return False
        try:
            verify(signature, message)
        except InvalidSignature:
            return False
        return True

    return is_certainly_right


def key_text(b: bytes) -> str:
    """The text form of a key or a signature."""
    return f"{_PREFIX}{b.hex()}"


def parse_key(text: str, size: int = KEY_BYTES) -> bytes:
    """The bytes of a key in its text form; with size 64, those of a signature."""
    try:
        found = bytes.fromhex(text.removeprefix(_PREFIX))
    except ValueError:
        found = b""
    if len(found) != size or key_text(found) != text:
        raise ValueError(f"not an ed25519 text of {size} bytes: {text!r}")
    return found


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


MAC_BYTES = 32
_CONTEXT = "hocket 2026-11 rows beside the log"
_CONCEALED_CONTEXT = "hocket 2026-11 concealed values beside the log"
_NONCE_BYTES = 16
_encode = msgspec.msgpack.Encoder().encode

MacValue = bytes | str | int | None


class RowMac:
    """Gives the rows of one node their MACs."""

    __slots__ = ("_concealing", "_key", "node")

    def __init__(self, key: SigningKey) -> None:
        self.node = node_id(key.public).to_bytes(8, "big")
        self._key: bytes = blake3(key.seed, derive_key_context=_CONTEXT).digest()
        self._concealing: bytes = blake3(key.seed, derive_key_context=_CONCEALED_CONTEXT).digest()

    def of(self, table: str, values: Sequence[MacValue]) -> bytes:
        """The MAC of a row of this node."""
        return blake3(_encode((table, self.node, *values)), key=self._key).digest()

    def is_right(self, table: str, values: Sequence[MacValue], mac: bytes) -> bool:
        from hmac import compare_digest  # loads OpenSSL's hashes, which reading jobs does not need

        return compare_digest(self.of(table, values), mac)

    def conceal(self, value: bytes) -> bytes:
        """Encrypts a value, always to the same bytes. The nonce is a MAC of the value, so no two values share one."""
        nonce = blake3(b"nonce" + value, key=self._concealing).digest(_NONCE_BYTES)
        return nonce + self._masked(nonce, value)

    def reveal(self, concealed: bytes) -> bytes:
        """What was concealed. Of anything else it gives some bytes."""
        return self._masked(concealed[:_NONCE_BYTES], concealed[_NONCE_BYTES:])

    def _masked(self, nonce: bytes, value: bytes) -> bytes:
        mask = blake3(b"mask" + nonce, key=self._concealing).digest(len(value))
        return bytes(one ^ other for one, other in zip(value, mask, strict=True))


# The cost of a guess at the passphrase. A file states the cost of its own guesses, within the limits.
PASSES, MEMORY_KIB = 3, 64 * 1024
PASSES_MAX, MEMORY_KIB_MAX = 16, 1024 * 1024
_SALT_BYTES, _BOX_NONCE_BYTES = 16, 24
RANDOM_BYTES = _SALT_BYTES + _BOX_NONCE_BYTES

_LOCKED = r"hocket-key-1 (did:key:z[0-9A-Za-z]+) argon2id ([0-9]{1,4}) ([0-9]{1,9}) ([0-9a-f]{80}) ([0-9a-f]{96})"


class WrongPassphrase(Exception):
    pass


def is_locked(text: str) -> bool:
    return text.startswith("hocket-key-")


def lock(key: SigningKey, passphrase: str, randomness: bytes) -> str:
    """Locks the key with a passphrase. The random bytes must be fresh."""
    from nacl.bindings import crypto_secretbox

    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"locking a key takes {RANDOM_BYTES} random bytes, not {len(randomness)}")
    salt, nonce = randomness[:_SALT_BYTES], randomness[_SALT_BYTES:]
    box = crypto_secretbox(key.seed, nonce, _stretch(passphrase, salt, PASSES, MEMORY_KIB))
    return f"hocket-key-1 {did_key(key.public)} argon2id {PASSES} {MEMORY_KIB} {randomness.hex()} {box.hex()}"


def owner(text: str) -> str:
    """The did:key of the key in a locked text. It is unproven until the key is unlocked."""
    did = _parts(text)[0]
    try:
        parse_did_key(did)
    except ValueError as error:
        raise Malformed(str(error)) from None
    return did


def unlock(text: str, passphrase: str) -> SigningKey:
    """The key, or WrongPassphrase. Malformed if this program cannot read the text."""
    from nacl.bindings import crypto_secretbox_open
    from nacl.exceptions import CryptoError

    did, passes, memory_kib, randomness, box = _parts(text)
    stretched = _stretch(passphrase, randomness[:_SALT_BYTES], passes, memory_kib)
    try:
        seed = crypto_secretbox_open(box, randomness[_SALT_BYTES:], stretched)
    except CryptoError:
        raise WrongPassphrase from None
    key = SigningKey(seed)
    if did_key(key.public) != did:
        raise Malformed("the locked key is not the one that its text names")
    return key


def _parts(text: str) -> tuple[str, int, int, bytes, bytes]:
    found = re.fullmatch(_LOCKED, text)
    if found is None:
        raise Malformed("not a locked key, or one that a newer program has written")
    did, passes, memory_kib = found[1], int(found[2]), int(found[3])
    # Libsodium refuses less than 8 KiB and one pass; beyond the limits a file could keep a machine busy for ever.
    if not (1 <= passes <= PASSES_MAX and 8 <= memory_kib <= MEMORY_KIB_MAX):
        raise Malformed("a locked key asks for more work than this program is willing to do")
    return did, passes, memory_kib, bytes.fromhex(found[4]), bytes.fromhex(found[5])


def _stretch(passphrase: str, salt: bytes, passes: int, memory_kib: int) -> bytes:
    # Every command reads keys, but hardly any has to stretch a passphrase.
    from nacl.pwhash import argon2id

    return argon2id.kdf(
        KEY_BYTES, passphrase.encode(errors="surrogateescape"), salt, opslimit=passes, memlimit=memory_kib * 1024
    )
