"""`hocket coordinator`: which node decides claims, and whose derivations count."""

from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, say
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.errors import Usage

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
    from hocket.service import nodes

    with open_service() as service:
        if node is None:
            current = nodes.coordinator(service)
            emit(current)
            found = current.node is not None
            say(f"{current.name or '-'} {current.node}" if found else "no node is the coordinator")
            return
        names = {each.node: each.called for each in nodes.listing(service)}
        done = nodes.designate(service, node)
    emit(done)
    say(f"{done.name or done.node} is the coordinator")
    if not done.previous_hears and done.previous is not None:
        say(
            f"the coordinator before, {names.get(done.previous, done.previous)}, cannot confirm: it was not met lately;"
            " until it hears of this it goes on deciding claims, and what it decides from now on will not count",
            "warn",
        )
