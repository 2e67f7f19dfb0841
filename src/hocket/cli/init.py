"""`hocket init`: creates a node's home."""

from pathlib import Path
from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, fields, say
from hocket.cli.passphrases import PassphraseFile, known, new
from hocket.cli.settings import HomeOption, JsonOption, settings

app = new_app()


@app.command()
def init(
    user_key: Annotated[
        Path | None,
        typer.Option("--user-key", metavar="FILE", help="The user.key of another home; adds a node for that user."),
    ] = None,
    passphrase: Annotated[
        bool, typer.Option("--passphrase", help="Lock the user's key; the node runs without it.")
    ] = False,
    passphrase_file: PassphraseFile = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Keep to Likewise v0.1: no Hocket extension ops in this mesh.")
    ] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a home: the user's key, the node's key, the database, and the root delegation as the first op.

    The user's first node is also the coordinator until you designate another. This command finishes a half-created
    home. It does not touch a complete one (exit code 3).

    A strict mesh works with other Likewise v0.1 software. It has no arbiter, a failure is a yield, and jobs cannot be
    cancelled, retried or scheduled by cron. Every node of the mesh must be strict; `join` takes care of that.

    \b
      hocket init
      hocket --home /srv/render init --passphrase
      hocket --home /srv/second init --user-key /srv/render/user.key
      hocket --home /srv/plain init --strict
    """
    from hocket.kernel.ids import node_text
    from hocket.node.runtime import Runtime

    chosen = new(passphrase_file) if passphrase else None
    with Runtime.init(settings.home, user_key, passphrase=chosen, ask=known(passphrase_file), strict=strict) as runtime:
        made = {"node": node_text(runtime.log.node), "user": runtime.log.user, "home": str(runtime.home.path)}
    emit(made)
    say("created")
    fields(list(made.items()))
