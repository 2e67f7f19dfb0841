"""`hocket revoke`: revokes all rights of a node."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.nodes import NodeArgument
from hocket.cli.output import emit, on_terminal, say
from hocket.cli.passphrases import PassphraseFile, known
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict
from hocket.kernel.plurals import counted

if TYPE_CHECKING:
    from hocket.service.nodes import Revoking

app = new_app()


@app.command()
def revoke(
    node: NodeArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Revoke all rights of a node, and all rights that other nodes hold through it. This cannot be undone, but you can
    invite the machine again.

    Revoking is retroactive: ops of the node no longer count, including jobs that it submitted. What the coordinator
    accepted from the node stands. If the node was the coordinator, or shared its store, its decisions are
    undone, and jobs that it completed run again.

    The node that invited a node may revoke it, and so may any node above that. A node that the user's own key admitted,
    such as the owner's second node, is revoked with that key, from a home that has it.

    \b
      hocket revoke gpu-box
      hocket revoke 3f9a01 --yes
    """
    from hocket.service import nodes

    with open_service() as service:
        planned = nodes.revocable(service, node)
        if not yes and on_terminal(sys.stdin) and not settings.as_json:
            _explain(planned)
            if not typer.confirm("revoke it?"):
                raise Conflict("nothing was revoked")
        done = nodes.revoke(service, planned.node, known(passphrase_file))
    emit({"node": done.node, "name": done.name, "delegations": done.delegations, "cascade": done.cascade})
    say(f"{done.called} is revoked ({counted(done.delegations, 'delegation')})")
    for each in done.cascade:
        say(f"{each.called} has lost the rights that it held through this node")
    if "sharer" in done.roles:
        say(
            "it shared the coordinator's store, so its decisions are undone, and jobs that it completed run again",
            "warn",
        )
    if "coordinator" in done.roles:
        say("it was the coordinator, so no node decides claims now; `hocket coordinator` designates another", "warn")
    say("its ops no longer count, including jobs that it submitted; what the coordinator accepted from it stands")
    say("other nodes learn of this at their next sync", "dim")


def _explain(planned: "Revoking") -> None:
    say(f"{planned.called} ({planned.node}) loses {counted(planned.delegations, 'delegation')}")
    if "sharer" in planned.roles:
        say(
            "it shares the coordinator's store: jobs that it completed will run again; `hocket drain` retires a node",
            "warn",
        )
    for each in planned.cascade:
        say(f"{each.called} ({each.node}) loses the rights that it holds through this node")
