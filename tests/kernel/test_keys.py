"""Keys: the published vectors, what is refused, and the text forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.keys import SigningKey, did_key, key_text, parse_did_key, parse_key, verify

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
