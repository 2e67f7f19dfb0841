"""`hocket revoke`: takes from a node all that it may do."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.nodes import NodeArgument
from hocket.cli.output import emit, on_terminal, say
from hocket.cli.passphrases import PassphraseFile, known
from hocket.cli.settings import HomeOption, JsonOption, open_service, settings
from hocket.errors import Conflict

if TYPE_CHECKING:
    from hocket.service.nodes import Revoking

app = new_app()


@app.command()
def revoke(
    node: NodeArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    passphrase_file: PassphraseFile = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Revoke every delegation by which a node holds anything, and with them all that lean on those. It cannot be
    undone; the machine can be invited anew.

    It reaches back: what the node wrote no longer counts, jobs that it submitted included. What the coordinator
    accepted from it stands. What the node decided as the coordinator is undone.

    A node is revoked by the node that invited it or by one above that. A node that the user's own key let in, like a
    second node of the owner's, is revoked with that key, where the home has it.

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
    say(f"{done.called} is revoked ({done.delegations} delegation{'s' if done.delegations > 1 else ''})")
    for each in done.cascade:
        say(f"{each.called} has lost what it held through it")
    if "coordinator" in done.roles:
        say("it was the coordinator, and nobody decides claims now; `hocket coordinator` designates another", "warn")
    say("what it wrote no longer counts, jobs that it submitted included; what the coordinator accepted from it stands")
    say("other nodes hear of it with their next exchange", "dim")


def _explain(planned: "Revoking") -> None:
    say(f"{planned.called} ({planned.node}) loses {planned.delegations} delegation(s)")
    for each in planned.cascade:
        say(f"{each.called} ({each.node}) loses what it holds through it")
