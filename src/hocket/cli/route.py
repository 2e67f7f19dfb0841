"""`hocket route`: sends the jobs of a kind to one node."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, say, table
from hocket.cli.settings import open_service
from hocket.errors import Usage

app = new_app()


@app.command()
def route(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="KIND", help="The full kind, or a prefix with its dot, like acme.", show_default=False),
    ] = None,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the route; any authorised node may run them.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the routes in force.")] = False,
) -> None:
    """Send all jobs of a kind to one node: from now on, claims of other nodes on them do not count. Only the owner may.

    A prefix with its dot routes every kind below it that has no route of its own.

    \b
      hocket route acme.render gpu-box
      hocket route acme. gpu-box
      hocket route acme.render --clear
      hocket route --list
    """
    if list_them:
        _list()
        return
    if kind is None or (node is None) == (not clear):
        raise Usage("give a kind and a node, like `hocket route acme.render gpu-box`, a kind and --clear, or --list")
    from hocket.service import nodes

    with open_service() as service:
        done = nodes.route(service, kind, node)
        shown = None if node is None else nodes.find(service, node)
    emit(done)
    say(f"{kind} goes to {'any node that may claim it' if shown is None else shown.called}")
    if not done.able:
        say("but that node may not claim jobs of this kind, so none will run", "warn")


def _list() -> None:
    from hocket.service import nodes

    with open_service() as service:
        routes = nodes.routes(service)
    emit(routes)
    table(("kind", "node", "id"), [(each.kind, each.name or "-", each.node) for each in routes], "no routes")
