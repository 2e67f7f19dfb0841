"""A second proof on the requests between the nodes of a cluster, if its operator has switched it on: beside its bearer
token, a request has a token made of it with the key of this window. The keys change on each downbeat and are derived
from a secret that all nodes of the cluster have. So a node's key alone, if it is stolen, opens no gate, and a request
that was recorded is void some bars later. `extensions.tempo.beats.window_keys` has the rules.
"""

from hocket.extensions.tempo.beats.tempo import Timeline
from hocket.extensions.tempo.beats.window_keys import (
    SecretScope,
    is_valid_token,
    keys_in_force,
    stamp_token,
    window_key,
)
from hocket.kernel.bearer import LEEWAY_S
from hocket.mesh import wire
from hocket.mesh.wire import Request

# The bars in which a token is valid, that of its making included.
TOKEN_BARS = 4
# What the tokens of requests between nodes are for.
ROLE = "node"
WINDOW_HELP = "compare window.secret and tempo.yaml of both homes"


class WindowTokens:
    """`project` is the mesh. Clocks may differ as for bearer tokens."""

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


def is_of_window(tokens: WindowTokens | None, request: Request, bearer: str, now_ms: int) -> bool:
    """Whether a request has what this node asks for: nothing, unless window tokens are switched on."""
    return tokens is None or tokens.is_valid(request.headers.get(wire.WINDOW, ""), bearer, now_ms)
