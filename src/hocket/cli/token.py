"""`hocket token`: the tokens of programs that use this node over HTTP."""

import time
from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.options import seconds
from hocket.cli.output import emit, fields, say, table
from hocket.cli.settings import open_service
from hocket.service.views import ago, moment

app = new_app()

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.")]


@app.callback()
def token_group() -> None:
    """Tokens of programs that use this node over HTTP, while `hocket serve` runs.

    \b
      hocket token create ci --may lock:acquire:file:src/ --expires 30d
      hocket token list
      hocket token revoke ci
    """


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The token's name, and its agent's.")],
    may: Annotated[
        list[str] | None,
        typer.Option("--may", metavar="GRANT", help="resource:action[:prefix], or `all`; may be repeated."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="How long it is valid, like 30d; default: ever.")
    ] = None,
) -> None:
    """Create a token and print it. Nothing prints it again: the node keeps only its hash.

    A grant is written as for `hocket invite`, such as lock:acquire:file:src/, inbox:write:team/, row:write:memories/,
    mesh:read. A token grants only what --may names, and never more than this node may do itself. The program speaks as
    the agent NAME, or as NAME/anything. It sends the token in the header `Authorization: Bearer TOKEN`.

    \b
      hocket token create ci --may lock:acquire:file:src/ --expires 30d
      hocket token create planner --may inbox:write --may inbox:claim:planner --may mesh:read
    """
    from hocket.service import tokens

    lifetime = seconds(expires, "--expires")
    with open_service() as service:
        made = tokens.create(service, name, may or (), None if lifetime is None else round(lifetime * 1000))
    emit(made)
    say(made.token)
    fields([("name", made.name), ("may", "; ".join(made.may)), ("expires", moment(made.expires_ms) or "never")])


@app.command("list")
def list_tokens() -> None:
    """List the tokens: what each may do, until when, and when it was last used.

    \b
      hocket token list
      hocket token list --json | jq '.[] | select(.state == "active").name'
    """
    from hocket.service import tokens

    with open_service() as service:
        shown = tokens.listing(service)
    emit(shown)
    now = int(time.time() * 1000)
    rows = [
        (
            *(each.name, each.state, each.id, moment(each.expires_ms) or "never"),
            *("never" if each.used_ms is None else ago(each.used_ms, now), "; ".join(each.may)),
        )
        for each in shown
    ]
    table(("name", "state", "id", "expires", "last used", "may"), rows, "no tokens")


@app.command()
def revoke(name: NameArgument) -> None:
    """Revoke a token. The server refuses it from the next request on.

    \b
      hocket token revoke ci
    """
    from hocket.service import tokens

    with open_service() as service:
        shown = tokens.revoke(service, name)
    emit(shown)
    say(f"the token {name} is revoked")
