"""Secrets that rotate on downbeats. Each window has a key for each project and role, derived from the cluster's root
secret with HKDF (RFC 5869, SHA-256). A key tells nothing about the root, another window or another scope. A token is
stamped with its window and is void so many bars later, when no node has its key in force any more.
"""

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple

from hocket.extensions.tempo.beats.tempo import Timeline
from hocket.kernel.postcard import STR, U64, encode, tuple_of

ROOT_BYTES_MIN = 32
BARS_MAX = 64
_SALT = b"hocket window key 1"
_INFO = tuple_of(STR, STR, STR, U64)
_TOKEN = re.compile("hwt1[.](0|[1-9][0-9]{0,15})[.]([0-9a-f]{64})")


class SecretScope(NamedTuple):
    cluster_id: str
    project: str
    role: str


def window_key(root: bytes, scope: SecretScope, window_ms: int) -> bytes:
    """The key of one window, which is named by its downbeat. It is as long as a hash, so HKDF makes one block."""
    if len(root) < ROOT_BYTES_MIN:
        raise ValueError(f"a root secret has at least {ROOT_BYTES_MIN} bytes, not {len(root)}")
    secret = hmac.digest(_SALT, root, sha256)
    return hmac.digest(secret, encode(_INFO, (*scope, window_ms)) + b"\x01", sha256)


def keys_in_force(
    root: bytes, scope: SecretScope, timeline: Timeline, now_ms: int, bars: int, skew_ms: int = 0
) -> dict[int, bytes]:
    """The keys of this window and of those before it whose tokens are not void: `bars` in all. If the next downbeat is
    no further away than clocks may differ, also the key of that window.
    """
    if not 1 <= bars <= BARS_MAX:
        raise ValueError(f"a token lives for 1 to {BARS_MAX} bars, not {bars}")
    window = timeline.window_at(now_ms)
    starts = [window.end_ms] if window.end_ms <= now_ms + skew_ms else []
    for _ in range(bars):
        starts.append(window.start_ms)
        window = timeline.window_at(window.start_ms - 1)
    return {start_ms: window_key(root, scope, start_ms) for start_ms in starts if start_ms >= 0}


def stamp_token(key: bytes, window_ms: int, message: bytes) -> str:
    return f"hwt1.{window_ms}.{_mac(key, message)}"


def is_valid_token(token: str, message: bytes, keys: Mapping[int, bytes]) -> bool:
    """Whether this token was made for this message, with one of the keys in force."""
    found = _TOKEN.fullmatch(token)
    key = keys.get(int(found[1])) if found else None
    return key is not None and found is not None and hmac.compare_digest(_mac(key, message), found[2])


def _mac(key: bytes, message: bytes) -> str:
    return hmac.new(key, message, sha256).hexdigest()
