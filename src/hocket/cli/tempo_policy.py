"""The tempo policy that a command goes by: `--policy`, else `tempo.yaml` in the home, else the default."""

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.files import read_file
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.kernel.beats.policy import TempoPolicy
    from hocket.node.home import Home

PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE", help="The cluster's tempo policy; default tempo.yaml in the home."),
]


def tempo_policy(home: "Home", file: str | None) -> "TempoPolicy":
    """Raises Usage with what is wrong in the file."""
    from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
    from hocket.kernel.beats.policy import make_policy, read_policy
    from hocket.node.tempo_policy import CLUSTER_DEFAULT, home_policy

    if file is None:
        return home_policy(home) or make_policy(CLUSTER_DEFAULT)
    try:
        return read_policy(read_file(file, FILE_BYTES_MAX))
    except BadField as error:
        raise Usage(f"{'standard input' if file == '-' else file}: {error}") from None
