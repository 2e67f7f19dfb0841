"""`hocket coordinator`: which node decides claims and may write derivations."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service
from hocket.errors import Usage

app = new_app()


@app.command()
def coordinator(
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Show the current coordinator.")] = False,
) -> None:
    """Designate the coordinator: from now on it decides which claims hold. Only the owner may. There is no automatic
    failover when a coordinator falls silent.

    \b
      hocket coordinator --show
      hocket coordinator rack-1
    """
    if (node is None) == (not show):
        raise Usage("name a node, like `hocket coordinator rack-1`, or give --show")
    from hocket.service import nodes

    with open_service() as service:
        if node is None:
            current = nodes.coordinator(service)
            emit(current)
            found = current.node is not None
            say(f"{current.name or '-'} {current.node}" if found else "there is no coordinator")
            return
        names = {each.node: each.called for each in nodes.listing(service)}
        done = nodes.designate(service, node)
    emit(done)
    say(f"{done.name or done.node} is the coordinator")
    if not done.reads_every_kind:
        say(
            f"{done.name or done.node} may not read the jobs of every kind, and cannot decide about those that it does"
            " not see: their claims wait; designate another node, or invite this one again with `--may all`",
            "warn",
        )
    if not done.previous_hears and done.previous is not None:
        say(
            f"the previous coordinator, {names.get(done.previous, done.previous)}, was not seen lately and cannot"
            " confirm; until it learns of this change it keeps deciding claims, and those decisions will not count",
            "warn",
        )
