"""`hocket coordinator`: which node decides claims, and whose derivations count."""

from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import Conflict, Usage

app = new_app()


@app.command()
def coordinator(
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Say who it is.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Designate the coordinator: from now on it decides which claims hold. The owner alone may, and nothing happens by
    itself when a coordinator falls silent.

    \b
      hocket coordinator --show
      hocket coordinator rack-1
    """
    if (node is None) == (not show):
        raise Usage("say a node, like `hocket coordinator rack-1`, or --show")
    from hocket.kernel.ids import node_text
    from hocket.mesh import membership

    with open_desk() as runtime:
        with runtime.read() as session:
            members = membership.members(runtime.log, session)
            names = {each.node: each.shown for each in members}
            current = membership.coordinator(runtime.log, session)
        if node is None:
            emit({"node": None if current is None else node_text(current), "name": names.get(current or 0)})
            say("no node is the coordinator" if current is None else f"{names.get(current, '-')} {node_text(current)}")
            return
        member = membership.find(members, node)
        if member.standing in ("revoked", "suspended"):
            raise Conflict(f"{member.shown} is {member.standing}; choose a node in force")
        done = membership.designate(runtime.log, member.node)
    previous = None if done.previous is None else node_text(done.previous)
    emit({"node": member.id, "name": member.name, "previous": previous, "previous_hears": done.hears})
    say(f"{member.shown} is the coordinator")
    if not done.hears and done.previous is not None:
        say(
            f"the coordinator before, {names.get(done.previous, previous)}, cannot confirm: it was not met lately;"
            " until it hears of this it goes on deciding claims, and what it decides from now on will not count",
            "warn",
        )
