"""`hocket sync`: syncs once with every peer, or with one."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.nodes import warn_of_namesakes
from hocket.cli.output import emit, table
from hocket.cli.settings import open_service
from hocket.errors import Failed, Unreachable

app = new_app()


@app.command()
def sync(
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="ADDRESS", help="Sync only with this peer, even if it is paused.")
    ] = None,
) -> None:
    """Sync with the peers once, now: pull the ops that they have, push the ops that they lack.

    The server at $HOCKET_MESH_CONTROL_ADDR is a peer, too. Prints a line for each peer. Exit code 1 if a peer is paused
    or refuses this node, 5 if none could be reached.

    \b
      hocket sync
      hocket sync --peer http://192.168.1.7:7315
    """
    from hocket.mesh.peers import PAUSED, REFUSED, UNREACHABLE
    from hocket.service import peers

    with open_service() as service:
        done = peers.visit(service, peer)
        warn_of_namesakes(service)
    emit(done)
    table(
        ("peer", "state", "new here", "new there", "refused", "detail"),
        [(each.address, each.state, each.pulled, each.pushed, each.refused, each.detail) for each in done],
        "no peers",
    )
    stopped = [each for each in done if each.state in (PAUSED, REFUSED)]
    if all(each.state == UNREACHABLE for each in done):
        raise Unreachable(f"no peer could be reached: {done[0].detail}")
    if stopped:
        raise Failed(f"{len(stopped)} of {len(done)} peers did not sync; see `hocket peers list`")
