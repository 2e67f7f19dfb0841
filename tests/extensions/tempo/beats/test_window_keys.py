"""Secrets that rotate on downbeats: HKDF as published, one key for each window and scope, and tokens that end."""

import hmac
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats.tempo import changed, make_tempo, timeline
from hocket.extensions.tempo.window_secret import (
    BARS_MAX,
    SecretScope,
    is_valid_token,
    keys_in_force,
    stamp_token,
    window_key,
)
from hocket.kernel.postcard import STR, U64, encode, tuple_of

ROOT = bytes(range(32))
SCOPE = SecretScope("one", "acme", "worker")
LINE = timeline(make_tempo(60, 4)).with_change(changed(make_tempo(60, 4), 30, 1_000_001))
NOW = 1_000_000


def hkdf(root: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, written again."""
    secret, made, block = hmac.new(salt, root, sha256).digest(), b"", b""
    for number in range(1, length // 32 + 2):
        block = hmac.new(secret, block + info + bytes([number]), sha256).digest()
        made += block
    return made[:length]


@pytest.mark.touches("BB-12")
def test_hkdf_is_the_published_one() -> None:
    # Test case 1 of RFC 5869.
    root, salt, info = b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA))
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert hkdf(root, salt, info, 42).hex() == HKDF(SHA256(), 42, salt, info).derive(root).hex() == expected
    info = encode(tuple_of(STR, STR, STR, U64), (*SCOPE, NOW))
    assert window_key(ROOT, SCOPE, NOW) == hkdf(ROOT, b"hocket window key 1", info, 32)


@pytest.mark.touches("BB-12")
def test_each_window_project_role_and_cluster_has_its_own_key() -> None:
    scopes = [SCOPE, *(SCOPE._replace(**{field: "x"}) for field in SCOPE._fields)]
    # A letter that moves from one name to the next is another scope.
    scopes += [SecretScope("one", "acm", "eworker"), SecretScope("onea", "cme", "worker")]
    keys = {window_key(ROOT, scope, at) for scope in scopes for at in (0, 4000, 8000)}
    keys |= {window_key(bytes(32), SCOPE, 0)}
    assert len(keys) == 3 * len(scopes) + 1
    with pytest.raises(ValueError, match="at least 32 bytes"):
        window_key(bytes(31), SCOPE, 0)


@pytest.mark.touches("BB-12")
@given(st.integers(500_000, 1_500_000), st.integers(1, BARS_MAX), st.integers(0, 10**6))
def test_a_token_is_good_for_so_many_bars_and_then_void(made_ms: int, bars: int, later_ms: int) -> None:
    window_ms = LINE.window_at(made_ms).start_ms
    token = stamp_token(window_key(ROOT, SCOPE, window_ms), window_ms, b"GET /ops")
    keys = keys_in_force(ROOT, SCOPE, LINE, made_ms + later_ms, bars)
    is_live = LINE.windows_between(window_ms, made_ms + later_ms) < bars
    assert is_valid_token(token, b"GET /ops", keys) == is_live
    assert len(keys) == bars and all(LINE.window_at(start).start_ms == start for start in keys)


@pytest.mark.touches("BB-12")
def test_keys_rotate_on_the_downbeat() -> None:
    before, after = (keys_in_force(ROOT, SCOPE, LINE, at, 2) for at in (NOW - 1, NOW))
    assert [*before] == [NOW - 4000, NOW - 8000] and [*after] == [NOW, NOW - 4000]
    # A node whose clock is ahead stamps the next window a little too early.
    assert [*keys_in_force(ROOT, SCOPE, LINE, NOW - 100, 1, skew_ms=100)] == [NOW, NOW - 4000]
    assert [*keys_in_force(ROOT, SCOPE, LINE, NOW - 101, 1, skew_ms=100)] == [NOW - 4000]
    for bars in (0, BARS_MAX + 1):
        with pytest.raises(ValueError, match="1 to 64 bars"):
            keys_in_force(ROOT, SCOPE, LINE, NOW, bars)


@pytest.mark.touches("BB-12")
def test_a_token_is_good_for_its_scope_and_message_only() -> None:
    keys = keys_in_force(ROOT, SCOPE, LINE, NOW, 2)
    token = stamp_token(keys[NOW], NOW, b"m")
    assert is_valid_token(token, b"m", keys)
    assert not is_valid_token(token, b"n", keys)
    assert not is_valid_token(token, b"m", keys_in_force(ROOT, SCOPE._replace(role="owner"), LINE, NOW, 2))
    assert not is_valid_token(token, b"m", keys_in_force(bytes(32), SCOPE, LINE, NOW, 2))
    # The stamp cannot be moved to another window.
    assert not is_valid_token(token.replace(str(NOW), str(NOW - 4000)), b"m", keys)
    for bad in ("", "hwt1", f"{token}0", token.upper(), token.replace("hwt1.", "hwt1.0"), "hwt1.-1." + "0" * 64):
        assert not is_valid_token(bad, b"m", keys)
