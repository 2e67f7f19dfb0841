"""Where the tempo policy of a node is: `tempo.yaml` in its home, or a file that the caller names."""

from os import PathLike
from pathlib import Path

from hocket.errors import Usage
from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
from hocket.kernel.beats.policy import TempoPolicy, read_policy
from hocket.node.home import Home

# The cluster of nodes without a policy.
CLUSTER_DEFAULT = "local"


def readable_policy(home: Home) -> TempoPolicy | None:
    """The home's own policy; None if it has none that can be read. Who needs one says what is wrong with it."""
    try:
        return tempo_policy(home)
    except Usage:
        return None


def tempo_policy(home: Home, file: PathLike[str] | str | None = None) -> TempoPolicy | None:
    """The policy of the file, or the home's own; None if the home has none. Raises Usage with what is wrong."""
    path = home.tempo if file is None else Path(file).expanduser()
    try:
        with path.open("rb") as opened:
            return read_policy(opened.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        if file is None:
            return None
        raise Usage(f"there is no tempo policy at {path}") from None
    except OSError as error:
        raise Usage(f"cannot read the tempo policy {path}: {error.strerror}") from None
    except BadField as error:
        raise Usage(f"bad tempo policy {path}: {error}") from None
