"""`hocket revoke`: takes from a node all that it may do."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.nodes import NodeArgument
from hocket.cli.output import emit, on_terminal, say
from hocket.cli.passphrases import PassphraseFile, known
from hocket.cli.settings import HomeOption, JsonOption, open_desk, settings
from hocket.errors import Conflict

if TYPE_CHECKING:
    from hocket.mesh.membership import Revocation

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
    from hocket.mesh import membership

    with open_desk() as runtime:
        has_user_key = runtime.home.holds_user_key()
        planned = membership.revocable(runtime.log, node, has_user_key)
        if not yes and on_terminal(sys.stdin) and not settings.as_json:
            _explain(planned)
            if not typer.confirm("revoke it?"):
                raise Conflict("nothing was revoked")
        ask = known(passphrase_file)
        done = membership.revoke(
            runtime.log, planned.member.id, (lambda: runtime.home.user_key(ask)) if has_user_key else None
        )
    emit(
        {
            "node": done.member.id,
            "name": done.member.name,
            "delegations": done.delegations,
            "cascade": [{"node": each.id, "name": each.name} for each in done.cascade],
        }
    )
    say(f"{done.member.shown} is revoked ({done.delegations} delegation{'s' if done.delegations > 1 else ''})")
    for each in done.cascade:
        say(f"{each.shown} has lost what it held through it")
    if "coordinator" in done.member.roles:
        say("it was the coordinator, and nobody decides claims now; `hocket coordinator` designates another", "warn")
    say("what it wrote no longer counts, jobs that it submitted included; what the coordinator accepted from it stands")
    say("other nodes hear of it with their next exchange", "dim")


def _explain(planned: "Revocation") -> None:
    say(f"{planned.member.shown} ({planned.member.id}) loses {planned.delegations} delegation(s)")
    for each in planned.cascade:
        say(f"{each.shown} ({each.id}) loses what it holds through it")
