"""`hocket log late`: ops that arrived long after the delegation they rely on had ended. They may be backdated, so they
stay off the log until the owner or the coordinator decides.
"""

import time
from typing import Annotated

import typer

from hocket.cli.output import ago, emit, say, table
from hocket.cli.settings import open_service
from hocket.errors import Usage
from hocket.kernel.plurals import counted


def late(
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="The node whose ops to decide on: a name or an id.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Put them on the log.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Delete them. The node must then join again.")] = False,
) -> None:
    """List ops that arrived long after the delegation they rely on had ended, or decide on those of one node.

    Such an op may be honest, from a machine that was offline, or backdated by a node whose delegation has ended. Accept
    only what you can explain. The mesh rules set the limit, a day by default.

    \b
      hocket log late
      hocket log late gpu-box --accept
      hocket log late gpu-box --drop
    """
    from hocket.service import nodes

    if accept == drop and (accept or node is not None):
        raise Usage("give a node and either --accept or --drop")
    if (accept or drop) and node is None:
        raise Usage("name a node; `hocket log late` lists them")
    with open_service() as service:
        if node is not None:
            done = nodes.decide_late(service, node, accept)
            emit(done)
            whose = nodes.find(service, node).called
            say(f"{counted(done.ops, 'op')} of {whose} {'put on the log' if accept else 'dropped'}")
            return
        lines = nodes.late(service)
    emit(lines)
    now = int(time.time() * 1000)
    rows = [(each.name, each.ops, ago(each.received_ms, now)) for each in lines]
    table(("node", "ops", "came"), rows, "no ops wait for a decision")
