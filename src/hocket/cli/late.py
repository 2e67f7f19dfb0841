"""`hocket log late`: ops that came long after what allowed them had ended. They may have been dated back, so they wait,
on no log, for the word of the owner or the coordinator.
"""

from typing import Annotated

import typer

from hocket.cli.output import ago, emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import Usage


def late(
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Whose ops to decide on: a name or an id.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Put them on the log.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Forget them. The node then has to join anew.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the ops that came long after the delegation that they lean on had ended, or decide on those of a node.

    Such an op may be honest, from a machine that was away, or dated back by someone whose time is over. Accept what
    you can explain. The bound is in the mesh rules, a day by default.

    \b
      hocket log late
      hocket log late gpu-box --accept
      hocket log late gpu-box --drop
    """
    from hocket.mesh import membership

    if accept == drop and (accept or node is not None):
        raise Usage("say either --accept or --drop, and of which node")
    if (accept or drop) and node is None:
        raise Usage("say of which node, as `hocket log late` lists them")
    with open_desk() as runtime:
        with runtime.read() as session:
            members = membership.members(runtime.log, session)
            waiting = session.late_ops()
            now = runtime.log.physical()
        if node is not None:
            member = membership.find(members, node)
            count = runtime.log.decide_late(member.node, accept)
            emit({"node": member.id, "ops": count, "accepted": accept})
            say(f"{count} ops of {member.shown} {'are on the log' if accept else 'are dropped'}")
            return
    names = {each.node: each.shown for each in members}
    lines = []
    for author in dict.fromkeys(each.author for each in waiting):
        held = [each for each in waiting if each.author == author]
        shown = names.get(int.from_bytes(author, "big"), author.hex())
        lines.append({"node": author.hex(), "name": shown, "ops": len(held), "received_ms": held[0].received})
    emit(lines)
    rows = [(str(line["name"]), str(line["ops"]), ago(int(str(line["received_ms"])), now)) for line in lines]
    table(("node", "ops", "came"), rows, "nothing waits for your word")
