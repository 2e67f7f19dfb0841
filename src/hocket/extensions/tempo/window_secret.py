"""The secret of a cluster in a home, `window.secret`. If the file is there, requests to and from this node carry window
tokens, and users have secrets for their own projects and roles, which change on each downbeat. Every node of the
cluster has the same file and the same tempo policy.

Each window has a key for each project and role, derived from the secret with HKDF (RFC 5869, SHA-256). A key tells
nothing about the secret, another window or another scope. A token is stamped with its window and is void so many bars
later, when no node has its key in force any more.
"""

import hmac
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

from hocket.errors import Usage
from hocket.extensions.tempo.beats.tempo import Timeline, timeline
from hocket.extensions.tempo.policy_file import assumed_policy, home_timeline
from hocket.kernel.clock import wall_text
from hocket.kernel.jws import LEEWAY_S
from hocket.kernel.postcard import STR, U64, encode, tuple_of
from hocket.node.home import Home, exposure
from hocket.node.runtime import Runtime

FILE = "window.secret"
SECRET_BYTES_MAX = 4_096
# A project has no colon, so no user's secret is the one of the nodes, whose project is a DID.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
# The bars in which a token is valid, that of its making included.
TOKEN_BARS = 4
# What the tokens of requests between nodes are for.
ROLE = "node"
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


class WindowTokens:
    """Makes and checks the second proofs of requests between nodes. A bearer token is stamped with the key of this
    window, so a stolen node key alone opens no gate, and a recorded request is void some bars later. `project` is the
    mesh. Clocks may differ as for bearer tokens.
    """

    hint = "compare window.secret and tempo.yaml of both homes"

    def __init__(self, root: bytes, cluster_id: str, project: str, timeline: Timeline) -> None:
        self._root, self._timeline = root, timeline
        self._scope = SecretScope(cluster_id, project, ROLE)
        self._in_force: tuple[tuple[int, bool], dict[int, bytes]] = ((-1, False), {})

    def stamp(self, bearer: str, now_ms: int) -> str:
        """The token for a request with this bearer token."""
        window_ms = self._timeline.window_at(now_ms).start_ms
        return stamp_token(window_key(self._root, self._scope, window_ms), window_ms, bearer.encode())

    def is_valid(self, token: str, bearer: str, now_ms: int) -> bool:
        return is_valid_token(token, bearer.encode(), self._keys(now_ms))

    def _keys(self, now_ms: int) -> dict[int, bytes]:
        """Derived once a window, and again when the next one is near."""
        window, skew_ms = self._timeline.window_at(now_ms), LEEWAY_S * 1000
        at = window.start_ms, window.end_ms <= now_ms + skew_ms
        if self._in_force[0] != at:
            keys = keys_in_force(self._root, self._scope, self._timeline, now_ms, TOKEN_BARS, skew_ms)
            self._in_force = at, keys
        return self._in_force[1]


class WindowKey(msgspec.Struct, frozen=True):
    """The key of a project and a role from one downbeat to the next, in hexadecimal digits."""

    window: str
    until: str
    key: str


class ProjectSecret:
    """The secret of a project and a role. It changes on the downbeats of the tempo in force, as this home has heard it.
    A token is void `bars` bars after that of its making has begun.
    """

    def __init__(
        self, root: bytes, scope: SecretScope, tempi: Callable[[], Timeline], now_ms: Callable[[], int], bars: int
    ) -> None:
        self._root, self._scope, self._tempi, self._now_ms, self._bars = root, scope, tempi, now_ms, bars

    def key(self) -> WindowKey:
        """The key in force."""
        window = self._tempi().window_at(self._now_ms())
        key = window_key(self._root, self._scope, window.start_ms)
        return WindowKey(wall_text(window.start_ms), wall_text(window.end_ms), key.hex())

    def token(self, message: bytes | str) -> str:
        """A token for this message, stamped with the window."""
        window_ms = self._tempi().window_at(self._now_ms()).start_ms
        return stamp_token(window_key(self._root, self._scope, window_ms), window_ms, _bytes(message))

    def is_valid(self, token: str, message: bytes | str) -> bool:
        """Whether the token was made for this message with a key in force."""
        now_ms, skew_ms = self._now_ms(), LEEWAY_S * 1000
        keys = keys_in_force(self._root, self._scope, self._tempi(), now_ms, self._bars, skew_ms)
        return is_valid_token(token, _bytes(message), keys)


def window_tokens(home: Home, mesh: str) -> WindowTokens | None:
    """None if the home has no such secret. Raises Usage, without the secret."""
    root, policy = _root(home), assumed_policy(home)
    return None if root is None else WindowTokens(root, policy.cluster_id, mesh, timeline(policy.initial_tempo))


def project_secret(
    home: Home, project: str, role: str, now_ms: Callable[[], int], bars: int = TOKEN_BARS
) -> ProjectSecret:
    """Raises Usage if the home has no secret, or a name is bad."""
    for what, name in (("project", project), ("role", role)):
        if not _NAME.fullmatch(name):
            raise Usage(f"bad {what} {name!r}; write 1 to 128 letters, digits and . _ / -")
    if not 1 <= bars <= BARS_MAX:
        raise Usage(f"a token lives for 1 to {BARS_MAX} bars, not {bars}")
    root, policy = _root(home), assumed_policy(home)
    if root is None:
        raise Usage(f"this node has no secret; write {ROOT_BYTES_MIN} random bytes or more into {home.path / FILE}")
    return ProjectSecret(
        root, SecretScope(policy.cluster_id, project, role), lambda: home_timeline(home, policy), now_ms, bars
    )


def node_secret(runtime: Runtime, project: str, role: str, bars: int = TOKEN_BARS) -> ProjectSecret:
    """What a node offers."""
    return project_secret(runtime.home, project, role, runtime.log.physical, bars)


def _bytes(message: bytes | str) -> bytes:
    return message.encode() if isinstance(message, str) else message


def _root(home: Home) -> bytes | None:
    path = home.path / FILE
    try:
        with path.open("rb") as file:
            root = file.read(SECRET_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    if exposed := exposure(path):
        raise Usage(exposed)
    if not ROOT_BYTES_MIN <= len(root) <= SECRET_BYTES_MAX:
        raise Usage(f"{path} has {len(root)} bytes; write {ROOT_BYTES_MIN} to {SECRET_BYTES_MAX} random ones")
    return root
