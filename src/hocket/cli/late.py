"""`hocket log late`: ops that came long after what allowed them had ended. They may have been dated back, so they wait,
on no log, for the word of the owner or the coordinator.
"""

import time
from typing import Annotated

import typer

from hocket.cli.output import ago, emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service
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
    from hocket.service import nodes

    if accept == drop and (accept or node is not None):
        raise Usage("say either --accept or --drop, and of which node")
    if (accept or drop) and node is None:
        raise Usage("say of which node, as `hocket log late` lists them")
    with open_service() as service:
        if node is not None:
            done = nodes.decide_late(service, node, accept)
            emit(done)
            whose = nodes.find(service, node).called
            say(f"{done.ops} ops of {whose} {'are on the log' if accept else 'are dropped'}")
            return
        lines = nodes.late(service)
    emit(lines)
    now = int(time.time() * 1000)
    rows = [(each.name, each.ops, ago(each.received_ms, now)) for each in lines]
    table(("node", "ops", "came"), rows, "nothing waits for your word")
