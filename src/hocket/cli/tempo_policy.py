"""The tempo policy that a command goes by: `--policy`, else `tempo.yaml` in the home, else the default."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.files import read_file
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.kernel.beats.policy import TempoPolicy
    from hocket.node.home import Home

FILE = "tempo.yaml"
CLUSTER_DEFAULT = "local"

PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE", help="The cluster's tempo policy; default tempo.yaml in the home."),
]


def tempo_policy(home: "Home", file: str | None) -> "TempoPolicy":
    """Raises Usage with what is wrong in the file."""
    from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
    from hocket.kernel.beats.policy import make_policy, read_policy

    path = file or str(home.path / FILE)
    if file is None and not Path(path).exists():
        return make_policy(CLUSTER_DEFAULT)
    try:
        return read_policy(read_file(path, FILE_BYTES_MAX))
    except BadField as error:
        raise Usage(f"{'standard input' if path == '-' else path}: {error}") from None
