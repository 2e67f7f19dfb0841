"""Keys: the published vectors, what is refused, and the text forms."""

from hashlib import sha512

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]
from nacl.bindings import crypto_core_ed25519_add, crypto_scalarmult_ed25519_base_noclamp

from hocket.kernel import keys
from hocket.kernel.keys import FIRST_SIGNATURES, SigningKey, did_key, key_text, parse_did_key, parse_key, verify
from hocket.kernel.signing import OpSigner, is_end_of

pytestmark = pytest.mark.touches("LW-21")

KEYS = st.binary(min_size=32, max_size=32)

# RFC 8032, section 7.1: seed, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.mark.req("LW-21")
@pytest.mark.parametrize(("seed", "public", "message", "signature"), RFC_8032)
def test_rfc_8032(seed: str, public: str, message: str, signature: str) -> None:
    key = SigningKey(bytes.fromhex(seed))
    assert key.seed.hex() == seed
    assert key.public.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature
    assert verify(key.public, bytes.fromhex(signature), bytes.fromhex(message))


@given(KEYS, st.binary())
def test_openssl_and_libsodium_make_one_signature(seed: bytes, message: bytes) -> None:
    key, openssl = SigningKey(seed), Ed25519PrivateKey.from_private_bytes(seed)
    assert key.sign_with_sodium(message) == openssl.sign(message)


@pytest.mark.parametrize("is_arm", [True, False])
def test_openssl_is_loaded_only_on_arm_and_not_for_the_end_of_the_log(
    is_arm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_OPENSSL_IS_QUICKER", is_arm)
    loads: list[bytes] = []

    def counted(seed: bytes) -> Ed25519PrivateKey:
        loads.append(seed)
        return original(seed)

    original = Ed25519PrivateKey.from_private_bytes
    monkeypatch.setattr(Ed25519PrivateKey, "from_private_bytes", counted)
    key = SigningKey(b"k" * 32)
    signer = OpSigner(key, 1)
    for seq in range(FIRST_SIGNATURES + 1):
        signature = signer.end_signature(seq, bytes(32))
        assert is_end_of(key.public, 1, seq, bytes(32), signature)
    assert loads == []
    signatures = {key.sign(b"message") for _ in range(FIRST_SIGNATURES + 2)}
    assert len(signatures) == 1
    assert len(loads) == is_arm


@given(KEYS, st.binary(), st.integers(0, 511), st.integers(0, 255))
def test_a_changed_bit_anywhere_is_noticed(seed: bytes, message: bytes, bit: int, key_bit: int) -> None:
    key = SigningKey(seed)
    signature = key.sign(message)
    assert verify(key.public, signature, message)
    assert not verify(key.public, flip(signature, bit), message)
    assert not verify(flip(key.public, key_bit), signature, message)
    assert not verify(key.public, signature, message + b"\0")


def test_lengths_are_looked_at() -> None:
    key = SigningKey(bytes(32))
    signature = key.sign(b"message")
    assert verify(key.public, signature, b"message")
    assert not verify(key.public + b"x", signature, b"message")
    assert not verify(key.public[:31], signature, b"message")
    assert not verify(key.public, signature + b"m", b"essage")
    assert not verify(key.public, signature[:63], signature[63:] + b"message")


def flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# The encodings of points of small order: all eight, and those that are not canonical.
SMALL_ORDER = [
    flip(bytes.fromhex(y), 255) if sign else bytes.fromhex(y)
    for y in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
    for sign in (False, True)
]


def libsodium_accepts(public: bytes, signature: bytes, message: bytes) -> bool:
    signed = signature + message
    opened = ffi.new("unsigned char[]", len(signed))
    return bool(lib.crypto_sign_open(opened, ffi.NULL, signed, len(signed), public) == 0)


def crafted(key: SigningKey, message: bytes, first_half: bytes, nonce: int, more: int = 0) -> bytes:
    """A signature by the holder of the key that begins as it likes."""
    digest = bytearray(sha512(key.seed).digest()[:32])
    digest[0], digest[31] = digest[0] & 248, (digest[31] & 127) | 64
    challenge = int.from_bytes(sha512(first_half + key.public + message).digest(), "little")
    scalar = (nonce + challenge * int.from_bytes(digest, "little")) % ORDER + more
    return first_half + scalar.to_bytes(32, "little")


def test_openssl_changes_no_verdict_of_libsodium() -> None:
    key, other = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
    messages = [bytes([number]) * 40 for number in range(FIRST_SIGNATURES + 2)]
    for message in messages:
        assert verify(key.public, key.sign(message), message)
    nonce = 7
    begin = crypto_scalarmult_ed25519_base_noclamp(nonce.to_bytes(32, "little"))
    verdicts: dict[bool, int] = {True: 0, False: 0}
    for message in messages:
        tried = [
            key.sign(message),
            other.sign(message),
            crafted(key, message, begin, nonce),
            crafted(key, message, begin, nonce, more=ORDER),
            *(crafted(key, message, point, 0) for point in SMALL_ORDER),
            *(crafted(key, message, crypto_core_ed25519_add(begin, point), nonce) for point in SMALL_ORDER[:10]),
        ]
        for signature in tried:
            verdict = verify(key.public, signature, message)
            assert verdict is libsodium_accepts(key.public, signature, message), signature.hex()
            verdicts[verdict] += 1
    assert all(verdicts.values())


@given(st.binary(max_size=70), st.binary(max_size=70), st.binary(max_size=10))
def test_nonsense_is_false_and_not_an_error(public: bytes, signature: bytes, message: bytes) -> None:
    assert not verify(public, signature, message)


@pytest.mark.parametrize(
    "point",
    [
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    ],
)
def test_a_key_of_small_order_signs_nothing(point: str) -> None:
    # With such a key, R equal to the identity and S equal to zero would pass the equation for many messages.
    identity = bytes.fromhex("01" + "00" * 31)
    for message in (bytes([n]) for n in range(16)):
        assert not verify(bytes.fromhex(point), identity + bytes(32), message)


def test_a_second_spelling_of_the_same_signature_is_refused() -> None:
    key = SigningKey(bytes(32))
    signature = key.sign(b"message")
    s = int.from_bytes(signature[32:], "little") + ORDER
    assert not verify(key.public, signature[:32] + s.to_bytes(32, "little"), b"message")


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_seed_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SigningKey(bytes(size))


def test_a_key_does_not_print_its_seed() -> None:
    key = SigningKey(b"\xabseed" + bytes(27))
    assert key.seed.hex() not in repr(key) and key_text(key.public) in repr(key)


@given(KEYS)
def test_texts_come_back(public: bytes) -> None:
    assert parse_key(key_text(public)) == public
    assert parse_key(key_text(public * 2), 64) == public * 2
    assert parse_did_key(did_key(public)) == public


@pytest.mark.req("LW-23")
def test_did_key_by_example() -> None:
    # The first Ed25519 example of the did:key method.
    public = bytes.fromhex("2e6fcce36701dc791488e0d0b1745cc1e33a4c1c9fcc41c63bd343dbbe0970e6")
    did = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    assert did_key(public) == did
    assert parse_did_key(did) == public


GOOD = did_key(bytes(range(32)))


@pytest.mark.req("LW-23")
@pytest.mark.parametrize(
    "did",
    [
        "",
        "did:key:z",
        "did:key:" + GOOD[9:],
        "did:web:example.org",
        GOOD + "1",
        GOOD[:-1],
        GOOD.replace("z", "z1", 1),
        GOOD[:-1] + "0",
        GOOD[:-1] + "ü",
        "did:key:z6LSbysY2xFMRpGMhb7tFTLMpeuPRaqaWM1yECx2AtzE3KCc",
        "did:key:z" + "z" * 5000,
        " " + GOOD,
    ],
)
def test_what_is_no_did_key_of_ours_is_refused(did: str) -> None:
    with pytest.raises(ValueError, match="did:key"):
        parse_did_key(did)


@pytest.mark.parametrize(
    "text", ["", "ed25519:", "ed25519:" + "0" * 63, "ed25519:" + "A" * 64, "ed25519:" + "0" * 128, "x:" + "0" * 64]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="ed25519"):
        parse_key(text)


def test_a_did_is_made_of_a_key() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        did_key(bytes(31))
