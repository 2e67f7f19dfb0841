"""`hocket route`: which node does the jobs of a kind."""

from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import Usage

app = new_app()


@app.command()
def route(
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help="The whole kind.", show_default=False)] = None,
    node: Annotated[
        str | None, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Whoever may do them, does them again.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="List the routes in force.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send all jobs of a kind to one node: from now on no other node's claims on them count. The owner alone may.

    \b
      hocket route acme.render gpu-box
      hocket route acme.render --clear
      hocket route --list
    """
    if list_them:
        _list()
        return
    if kind is None or (node is None) == (not clear):
        raise Usage("say a kind and a node, like `hocket route acme.render gpu-box`, or a kind and --clear, or --list")
    from hocket.mesh import membership

    with open_desk() as runtime:
        with runtime.read() as session:
            member = None if node is None else membership.find(membership.members(runtime.log, session), node)
            able = (
                member is None
                or membership.may(runtime.log, session, member.node, "Job", "Claim", kind).chain is not None
            )
        membership.route(runtime.log, kind, None if member is None else member.node)
    emit({"kind": kind, "node": None if member is None else member.id, "able": able})
    say(f"{kind} goes to {'whoever may do it' if member is None else member.shown}")
    if not able:
        say("but that node may not claim jobs of this kind, so nobody will do them", "warn")


def _list() -> None:
    from hocket.kernel.ids import node_text
    from hocket.mesh import membership

    with open_desk() as runtime, runtime.read() as session:
        names = {each.node: each.shown for each in membership.members(runtime.log, session)}
        routes = [(kind, int.from_bytes(node, "big")) for kind, _, node in session.routes() if node is not None]
    emit([{"kind": kind, "node": node_text(node), "name": names.get(node)} for kind, node in routes])
    table(("kind", "node", "id"), [(kind, names.get(node, "-"), node_text(node)) for kind, node in routes], "no routes")
