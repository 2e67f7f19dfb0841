"""The secret of a cluster in a home, `window.secret`. If the file is there, requests to and from this node carry window
tokens, and users have secrets for their own projects and roles, which change on each downbeat. Every node of the
cluster has the same file and the same tempo policy.
"""

import re
from collections.abc import Callable

import msgspec

from hocket.errors import Usage
from hocket.extensions.tempo.beats.policy import TempoPolicy, make_policy
from hocket.extensions.tempo.beats.tempo import Timeline, timeline
from hocket.extensions.tempo.beats.window_keys import (
    BARS_MAX,
    ROOT_BYTES_MIN,
    SecretScope,
    is_valid_token,
    keys_in_force,
    stamp_token,
    window_key,
)
from hocket.extensions.tempo.policy_file import CLUSTER_DEFAULT, home_timeline, tempo_policy
from hocket.kernel.bearer import LEEWAY_S
from hocket.kernel.clock import wall_text
from hocket.mesh.window_tokens import TOKEN_BARS, WindowTokens
from hocket.node.home import Home, exposure
from hocket.node.runtime import Runtime

FILE = "window.secret"
SECRET_BYTES_MAX = 4_096
# A project has no colon, so no user's secret is the one of the nodes, whose project is a DID.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")


def window_tokens(home: Home, mesh: str) -> WindowTokens | None:
    """None if the home has no such secret. Raises Usage, without the secret."""
    root, policy = _root(home), _policy(home)
    return None if root is None else WindowTokens(root, policy.cluster_id, mesh, timeline(policy.initial_tempo))


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


def project_secret(
    home: Home, project: str, role: str, now_ms: Callable[[], int], bars: int = TOKEN_BARS
) -> ProjectSecret:
    """Raises Usage if the home has no secret, or a name is bad."""
    for what, name in (("project", project), ("role", role)):
        if not _NAME.fullmatch(name):
            raise Usage(f"bad {what} {name!r}; write 1 to 128 letters, digits and . _ / -")
    if not 1 <= bars <= BARS_MAX:
        raise Usage(f"a token lives for 1 to {BARS_MAX} bars, not {bars}")
    root, policy = _root(home), _policy(home)
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


def _policy(home: Home) -> TempoPolicy:
    return tempo_policy(home) or make_policy(CLUSTER_DEFAULT)


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
