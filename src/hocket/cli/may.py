"""`hocket may`: whether a node may do something, and the chain of delegations that grants it."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.nodes import NodeArgument
from hocket.cli.output import emit, say, table
from hocket.cli.settings import open_service
from hocket.service.views import moment

_NO = 4

app = new_app()


@app.command()
def may(
    node: NodeArgument,
    action: Annotated[
        str, typer.Argument(metavar="ACTION", help="claim, complete, schedule, or resource:action like artifact:write.")
    ],
    kind: Annotated[str | None, typer.Argument(metavar="[KIND]", help="The kind of job, for job actions.")] = None,
) -> None:
    """Check whether a node may do something now. If yes, print the delegations that grant it, the user's first (exit
    code 0); if no, exit code 4.

    \b
      hocket may gpu-box claim acme.render.frame
      hocket may phone artifact:write
    """
    from hocket.service import nodes

    with open_service() as service:
        answer = nodes.may(service, node, action, kind)
    emit(answer)
    if answer.may:
        say("yes")
    elif answer.chain:
        say(f"no: a delegation grants it, but the kind is routed to {answer.routed_to}")
    else:
        say("no: no delegation in force grants it")
    table(
        ("to", "by", "delegation", "until", "may"),
        [
            (each.to, each.by, each.delegation, moment(each.expires_ms) or "-", "; ".join(each.may))
            for each in answer.chain
        ],
        "",
    )
    if not answer.may:
        raise typer.Exit(_NO)
