"""The secret of a cluster in a home, `window.secret`: if the file is there, requests to and from this node carry window
tokens. Every node of the cluster has the same file and the same tempo policy.
"""

from hocket.errors import Usage
from hocket.kernel.beats.policy import make_policy
from hocket.kernel.beats.tempo import timeline
from hocket.kernel.beats.window_keys import ROOT_BYTES_MIN
from hocket.mesh.window_tokens import WindowTokens
from hocket.node.home import Home, exposure
from hocket.node.tempo_policy import CLUSTER_DEFAULT, tempo_policy

FILE = "window.secret"
SECRET_BYTES_MAX = 4_096


def window_tokens(home: Home, mesh: str) -> WindowTokens | None:
    """None if the home has no such secret. Raises Usage, without the secret."""
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
    policy = tempo_policy(home) or make_policy(CLUSTER_DEFAULT)
    return WindowTokens(root, policy.cluster_id, mesh, timeline(policy.initial_tempo))
