"""Keys under a passphrase: the right one opens them, nothing else does, and no file can keep a machine busy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.pwhash import argon2id

from hocket.kernel import keys
from hocket.kernel.keys import RANDOM_BYTES, SigningKey, WrongPassphrase, did_key, lock, owner, unlock
from hocket.kernel.postcard import Malformed

KEY = SigningKey(b"k" * 32)
RANDOMNESS = bytes(range(RANDOM_BYTES))


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guessing is made cheap here, but for the test of the real cost."""
    monkeypatch.setattr(keys, "PASSES", 1)
    monkeypatch.setattr(keys, "MEMORY_KIB", 8)


@pytest.mark.parametrize("passphrase", ["x", "correct horse", "Zoë 🐎", "\udcff", " " * 1000])
def test_the_passphrase_gives_the_key_back(passphrase: str) -> None:
    text = lock(KEY, passphrase, RANDOMNESS)
    assert unlock(text, passphrase).seed == KEY.seed
    assert keys.is_locked(text) and owner(text) == did_key(KEY.public)
    assert KEY.seed.hex() not in text and "\n" not in text
    for other in (passphrase + " ", passphrase[:-1], passphrase.upper() + "!"):
        with pytest.raises(WrongPassphrase):
            unlock(text, other)


def test_the_same_key_is_never_locked_twice_alike() -> None:
    assert lock(KEY, "x", bytes(RANDOM_BYTES)) != lock(KEY, "x", RANDOMNESS)
    with pytest.raises(ValueError):
        lock(KEY, "x", b"short")


def test_what_a_guess_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert keys.PASSES >= argon2id.OPSLIMIT_INTERACTIVE
    assert keys.MEMORY_KIB * 1024 >= argon2id.MEMLIMIT_INTERACTIVE
    assert unlock(lock(KEY, "x", RANDOMNESS), "x").seed == KEY.seed


@given(st.integers(0, 10_000), st.sampled_from("0123456789abcdefz "))
def test_a_damaged_file_is_noticed(at: int, char: str) -> None:
    keys.PASSES, keys.MEMORY_KIB = 1, 8
    text = lock(KEY, "x", RANDOMNESS)
    place = at % len(text)
    damaged = text[:place] + char + text[place + 1 :]
    if damaged == text or " argon2id 1 8 " not in damaged:
        return
    with pytest.raises((Malformed, WrongPassphrase)):
        unlock(damaged, "x")


@pytest.mark.parametrize(("passes", "memory"), [(0, 8), (17, 8), (1, 7), (1, 2**20 + 1), (9999, 999_999_999)])
def test_a_file_cannot_ask_for_any_amount_of_work(passes: int, memory: int) -> None:
    text = lock(KEY, "x", RANDOMNESS).replace(" argon2id 1 8 ", f" argon2id {passes} {memory} ")
    with pytest.raises(Malformed, match="more work"):
        unlock(text, "x")


def test_a_file_that_names_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    other = did_key(SigningKey(b"o" * 32).public)
    text = lock(KEY, "x", RANDOMNESS).replace(did_key(KEY.public), other)
    with pytest.raises(Malformed, match="not the one that its text names"):
        unlock(text, "x")


@given(st.text(max_size=200) | st.text(max_size=200).map(lambda text: "hocket-key-1 " + text))
def test_other_texts_are_no_keys(text: str) -> None:
    for read in (owner, lambda text: unlock(text, "x")):
        with pytest.raises(Malformed):
            read(text)
