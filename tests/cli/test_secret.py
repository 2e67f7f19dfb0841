"""Secrets of projects and roles, checked with an HKDF and a MAC of one's own."""

import hashlib
import hmac
import json
from datetime import datetime
from pathlib import Path

import pytest

import hocket as library
from hocket.extensions.tempo.beats import changed
from hocket.extensions.tempo.policy import read_policy
from hocket.extensions.tempo.policy_file import keep_change
from hocket.node.home import Home
from tests.cli.conftest import Program

ROOT = bytes(range(32))
TEMPO = {"cluster_id": "acme", "initial_bpm": 1, "bar_len_beats": 8}
BAR_MS = 8 * 60_000


def hkdf(root: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block."""
    inner = hmac.new(salt, root, hashlib.sha256).digest()
    return hmac.new(inner, info + b"\x01", hashlib.sha256).digest()


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def key_of(project: str, role: str, window_ms: int) -> bytes:
    texts = b"".join(varint(len(each)) + each.encode() for each in ("acme", project, role))
    return hkdf(ROOT, b"hocket window key 1", texts + varint(window_ms))


def unix_ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


@pytest.fixture
def home(hocket: Program) -> Program:
    (hocket.home / "tempo.yaml").write_text(json.dumps(TEMPO))
    secret = hocket.home / "window.secret"
    secret.touch(0o600)
    secret.write_bytes(ROOT)
    return hocket


@pytest.mark.req("BB-12", "BB-22")
def test_users_have_secrets_of_their_projects_and_roles(home: Program) -> None:
    shown = home("secret", "key", "web/shop", "deploy", "--json", code=0).json
    window_ms = unix_ms(shown["window"])
    assert window_ms % BAR_MS == 0 and unix_ms(shown["until"]) == window_ms + BAR_MS, "from downbeat to downbeat"
    assert shown["key"] == key_of("web/shop", "deploy", window_ms).hex()
    token = home("secret", "token", "web/shop", "deploy", "release 7", code=0).out.strip()
    form, stamp, mac = token.split(".")
    expected = hmac.new(key_of("web/shop", "deploy", int(stamp)), b"release 7", hashlib.sha256).hexdigest()
    assert form == "hwt1" and int(stamp) % BAR_MS == 0 and mac == expected
    check = ("secret", "check", "web/shop", "deploy")
    home(*check, "release 7", token, code=0)
    for words in (
        (*check, "release 8", token),
        ("secret", "check", "web/shop", "reader", "release 7", token),
        ("secret", "check", "web/forum", "deploy", "release 7", token),
    ):
        assert home(*words, code=4).sentence.startswith("this token is void")
    # One that is three bars old is good, and void with the fourth bar.
    now_ms = int(stamp)
    for bars, code in ((0, 0), (3, 0), (5, 4)):
        old_ms = now_ms - bars * BAR_MS
        old = hmac.new(key_of("web/shop", "deploy", old_ms), b"m", hashlib.sha256).hexdigest()
        home(*check, "m", f"hwt1.{old_ms}.{old}", code=code)
    with library.open(home.home) as node:
        secret = node.secret("web/shop", "deploy")
        assert secret.is_valid(token, "release 7") and not secret.is_valid(token, "release 8")
        assert secret.is_valid(secret.token(b"m"), b"m")


@pytest.mark.req("BB-12", "BB-22")
def test_they_rotate_on_the_downbeats_of_the_tempo_in_force(home: Program) -> None:
    policy = read_policy(json.dumps(TEMPO).encode())
    before = home("secret", "token", "web", "deploy", "m", code=0).out.strip()
    change = changed(policy.initial_tempo, 2, unix_ms("2026-01-01T00:00:00.000Z"))
    keep_change(Home(home.home), policy, change)
    shown = home("secret", "key", "web", "deploy", "--json", code=0).json
    assert unix_ms(shown["until"]) - unix_ms(shown["window"]) == BAR_MS // 2
    assert (unix_ms(shown["window"]) - change.since_ms) % (BAR_MS // 2) == 0
    stamp = int(before.split(".")[1])
    if (stamp - change.since_ms) % (BAR_MS // 2):
        home("secret", "check", "web", "deploy", "m", before, code=4)


def test_what_is_wrong_is_named(hocket: Program, tmp_path: Path) -> None:
    said = hocket("secret", "key", "web", "deploy", code=2).sentence
    assert said.startswith("this node has no secret; write 32 random bytes or more into ")
    assert hocket("secret", "key", "did:key:x", "node", code=2).sentence.startswith("bad project 'did:key:x'")
    assert hocket("secret", "key", "web", "", code=2).sentence.startswith("bad role ''")
    secret = hocket.home / "window.secret"
    secret.touch(0o600)
    secret.write_bytes(ROOT)
    checked = hocket("secret", "check", "web", "deploy", "m", "t", "--bars", 0, code=2)
    assert "1 to 64 bars, not 0" in checked.sentence
