"""`hocket peers`: the nodes that this node syncs with, and the state of each."""

import asyncio
import time
from pathlib import Path
from typing import Annotated

from hocket.api.views import ago
from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.nodes import warn_of_namesakes
from hocket.cli.output import emit, say, table
from hocket.cli.settings import open_runtime, open_service
from hocket.errors import Failed, Unreachable, Usage

peers_app = new_app()

Address = Annotated[str, Argument(metavar="ADDRESS", help="Like http://192.168.1.7:7315.")]


@peers_app.callback()
def peers_group() -> None:
    """Nodes that this node syncs with. While `hocket serve` or a worker runs, it syncs automatically.

    \b
      hocket peers add http://192.168.1.7:7315
      hocket peers list
    """


@peers_app.command()
def add(
    address: Address,
    ca: Annotated[Path | None, Option("--ca", metavar="FILE", help="The CA of its certificate.")] = None,
    pin: Annotated[
        str | None, Option("--pin", metavar="SHA256", help="The fingerprint of the one certificate to trust.")
    ] = None,
) -> None:
    """Add a peer. `hocket sync` then syncs with it at once.

    \b
      hocket peers add 192.168.1.7:7315
      hocket peers add https://mesh.example.org:7315 --ca ca.pem
    """
    from hocket.api import peers
    from hocket.mesh.peers import Trust, check_pin

    trust = Trust(_file(ca), check_pin(pin))
    with open_service() as service:
        where = peers.add(service, address, trust)
    emit({"address": where, "added": True})
    say(f"peer {where} added; run `hocket sync` to sync with it now")


@peers_app.command("list")
def list_peers() -> None:
    """List the peers with the state of each, and whether the coordinator has fallen silent.

    \b
      hocket peers list
      hocket peers list --json | jq '.peers[] | select(.state != "ok")'
    """
    from hocket.api import peers

    with open_service() as service:
        shown = peers.listing(service)
    emit(shown)
    now = int(time.time() * 1000)
    table(
        ("address", "node", "state", "last exchange", "detail"),
        [
            (
                each.address,
                each.node or "",
                each.state,
                ago(each.seen_ms, now) if each.seen_ms else "never",
                each.detail,
            )
            for each in shown.peers
        ],
        "no peers; add one with `hocket peers add ADDRESS`",
    )
    silent = shown.silent_coordinator
    if silent is not None:
        last = "yet" if silent.last_ms is None else f"since {ago(silent.last_ms, now)}"
        say(f"the coordinator {silent.node} was not heard from {last}; `hocket coordinator` designates another")


@peers_app.command()
def remove(address: Address) -> None:
    """Remove a peer. Ops received from it stay.

    \b
      hocket peers remove http://192.168.1.7:7315
    """
    from hocket.api import peers

    with open_service() as service:
        where = peers.remove(service, address)
    emit({"address": where, "removed": True})
    say(f"peer {where} removed")


@peers_app.command()
def resume(address: Address) -> None:
    """Try a paused peer again, after both nodes were given the same rules.

    \b
      hocket peers resume http://192.168.1.7:7315
    """
    from hocket.api import peers

    with open_service() as service:
        where = peers.resume(service, address)
    emit({"address": where, "resumed": True})
    say(f"peer {where} resumed; run `hocket sync` to sync with it now")


@peers_app.command()
def find(
    seconds: Annotated[float, Option("--seconds", metavar="N", min=0.1, max=60.0, help="How long to search.")] = 3.0,
) -> None:
    """Find servers on the local network that were started with `hocket serve --announce`.

    A result is only an address: a node is trusted for its delegation, not for being near.

    \b
      hocket peers find
    """
    try:
        from hocket.mesh import lan
    except ImportError as error:
        raise Usage(f"finding peers needs {error.name}; install hocket[server]") from None
    with open_runtime() as runtime:
        found = asyncio.run(lan.find(runtime.log.user, seconds))
        shown = [each._asdict() for each in found if each.node != f"{runtime.log.node:016x}"]
    emit(shown)
    table(
        ("address", "node", "mesh"),
        [(each["address"], each["node"], "this one" if each["is_ours"] else "another") for each in shown],
        "no server answered on the local network",
    )


def _file(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.is_file():
        raise Usage(f"no file at {path}")
    return str(path.absolute())


def sync(
    peer: Annotated[
        str | None, Option("--peer", metavar="ADDRESS", help="Sync only with this peer, even if it is paused.")
    ] = None,
) -> None:
    """Sync with the peers once, now: pull the ops that they have, push the ops that they lack.

    The server at $HOCKET_MESH_CONTROL_ADDR is a peer, too. Prints a line for each peer. Exit code 1 if a peer is paused
    or refuses this node, 5 if none could be reached.

    \b
      hocket sync
      hocket sync --peer http://192.168.1.7:7315
    """
    from hocket.api import peers
    from hocket.mesh.peers import PAUSED, REFUSED, UNREACHABLE

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
