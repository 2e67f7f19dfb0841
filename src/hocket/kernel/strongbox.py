"""A private key locked with a passphrase: one line of text that gives the key back only with the passphrase, and that
names the key's owner without it. Argon2id stretches the passphrase, XSalsa20-Poly1305 encrypts and authenticates the
key; both are libsodium's. Other modules ask for the passphrase and store the line.
"""

import re

from hocket.kernel.keys import KEY_BYTES, SigningKey, did_key, parse_did_key
from hocket.kernel.postcard import Malformed

# The cost of a guess at the passphrase. A file states the cost of its own guesses, within the limits.
PASSES, MEMORY_KIB = 3, 64 * 1024
PASSES_MAX, MEMORY_KIB_MAX = 16, 1024 * 1024
_SALT_BYTES, _NONCE_BYTES = 16, 24
RANDOM_BYTES = _SALT_BYTES + _NONCE_BYTES

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
