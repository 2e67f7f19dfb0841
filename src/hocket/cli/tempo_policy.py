"""`--policy`: the tempo policy that a command goes by."""

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.kernel.beats.policy import TempoPolicy
    from hocket.node.home import Home

PolicyOption = Annotated[
    str | None,
    typer.Option("--policy", metavar="FILE", help="The cluster's tempo policy. Default: tempo.yaml in the home."),
]


def needed_policy(home: "Home", file: str | None) -> "TempoPolicy":
    """The policy of the file, or of the home. Raises Usage if there is none."""
    from hocket.node.tempo_policy import tempo_policy

    found = tempo_policy(home, file)
    if found is None:
        raise Usage(
            f"there is no tempo policy at {home.tempo}; write `cluster_id: NAME` into it, or give --policy FILE"
        )
    return found


def assumed_policy(home: "Home", file: str | None) -> "TempoPolicy":
    """The policy of the file, or of the home, for commands that only read; if there is none, that of a cluster of one
    machine.
    """
    from hocket.kernel.beats.policy import make_policy
    from hocket.node.tempo_policy import CLUSTER_DEFAULT, tempo_policy

    return tempo_policy(home, file) or make_policy(CLUSTER_DEFAULT)
