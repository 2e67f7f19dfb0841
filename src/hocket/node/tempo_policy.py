"""The tempo policy of a home: the file `tempo.yaml` in it."""

from hocket.errors import Usage
from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
from hocket.kernel.beats.policy import TempoPolicy, read_policy
from hocket.node.home import Home

FILE = "tempo.yaml"
CLUSTER_DEFAULT = "local"


def home_policy(home: Home) -> TempoPolicy | None:
    """None if the home has no policy. Raises Usage with what is wrong in the file."""
    path = home.path / FILE
    try:
        with path.open("rb") as file:
            return read_policy(file.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    except BadField as error:
        raise Usage(f"{path}: {error}") from None
