"""`hocket init`: creates a node's home."""

from pathlib import Path
from typing import Annotated

from hocket.cli.declarations import Option, new_app
from hocket.cli.output import emit, fields, notice, say
from hocket.cli.passphrases import PassphraseFile, known, new
from hocket.cli.settings import settings
from hocket.store.blobs import BlobPlace

app = new_app()


@app.command()
def init(
    user_key: Annotated[
        Path | None,
        Option("--user-key", metavar="FILE", help="The user.key of another home; adds a node for that user."),
    ] = None,
    name: Annotated[
        str | None,
        Option("--name", metavar="NAME", help="The node's name; default: $HOCKET_MESH_NODE_ID, else the machine's."),
    ] = None,
    passphrase: Annotated[bool, Option("--passphrase", help="Lock the user's key; the node runs without it.")] = False,
    passphrase_file: PassphraseFile = None,
    strict: Annotated[
        bool, Option("--strict", help="Keep to Likewise v0.1: no Hocket extension ops in this mesh.")
    ] = False,
    ranked_open: Annotated[
        bool, Option("--ranked-open", help="Jobs that workers claim by rank are open: they need no coordinator.")
    ] = False,
    store: Annotated[
        str | None,
        Option("--store", metavar="ADDRESS", help="Keep the log in a database server; default: $HOCKET_STORE."),
    ] = None,
    blobs: Annotated[
        BlobPlace | None,
        Option("--blobs", help="Where all nodes of a new store keep large content; default: each in its home."),
    ] = None,
) -> None:
    """Create a home: the user's key, the node's key, the database, and the root delegation as the first op.

    The user's first node is also the coordinator until you designate another. This command finishes a half-created
    home. It does not touch a complete one (exit code 3).

    A strict mesh works with other Likewise v0.1 software. No coordinator decides claims there, a failure is a yield,
    and jobs cannot be cancelled, retried or scheduled by cron. Every node of the mesh must be strict; `join` takes
    care of that.

    In a mesh with --ranked-open, a job of claim "rendezvous" or "sticky" is open unless its submitter or its kind says
    otherwise (--no-open). Like every rule of the mesh, `join` hands it on, and `hocket rules set` changes it.

    \b
      hocket init
      hocket --home /srv/render init --passphrase
      hocket --home /srv/second init --user-key /srv/render/user.key --name second
      hocket --home /srv/plain init --strict
      hocket --home /srv/grid init --ranked-open
      hocket --home /srv/large init --store postgresql://hocket@db.example/hocket --blobs store
    """
    from hocket.api import Service, nodes
    from hocket.node.runtime import Runtime
    from hocket.node.variables import checked_server

    chosen = new(passphrase_file) if passphrase else None
    ask = known(passphrase_file)
    with Runtime.init(
        settings.home,
        user_key,
        passphrase=chosen,
        ask=ask,
        strict=strict,
        ranked_open=ranked_open,
        name=name,
        server=None if store is None else checked_server(store),
        blobs=blobs,
    ) as runtime:
        here = nodes.identity(Service(runtime))
    emit({"node": here.node, "name": here.name, "user": here.user, "home": here.home})
    say("created")
    fields([("node", here.node), ("name", here.name or "-"), ("user", here.user), ("home", here.home)])
    if user_key is not None and name is None and here.name is not None:
        notice(
            f"this node is called {here.name}, as its machine; if another node is called so too, rename this one with"
            " `hocket keys reissue --name NAME`"
        )
