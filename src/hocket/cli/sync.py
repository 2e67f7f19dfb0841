"""`hocket sync`: one exchange now with every peer, or with one."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.app import new_app
from hocket.cli.output import emit, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.errors import Failed, Unreachable, Usage

if TYPE_CHECKING:
    from hocket.mesh.sync import Exchanged
    from hocket.node.runtime import Runtime

app = new_app()


@app.command()
def sync(
    peer: Annotated[
        str | None, typer.Option("--peer", metavar="ADDRESS", help="Only with this peer, even if it is paused.")
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Exchange ops with the peers, once and now: take what they have, give what they lack.

    A line for each peer. Exit code 1 when one is paused or refuses this node, 5 when none could be reached.

    \b
      hocket sync
      hocket sync --peer http://192.168.1.7:7315
    """
    from hocket.mesh.peers import PAUSED, REFUSED, UNREACHABLE, check_address, find

    with open_desk() as runtime:
        with runtime.read() as session:
            known = [each.address for each in session.peers()]
            if peer is not None:
                address = check_address(peer)
                if find(session, address) is None:
                    raise Usage(f"no peer at {address}; add it with `hocket peers add {address}`")
                known = [address]
        if not known:
            raise Usage("this node has no peers; add one with `hocket peers add ADDRESS`")
        done = asyncio.run(_sync(runtime, known))
    emit([_shown(each) for each in done])
    table(
        ("peer", "state", "new here", "new there", "refused", "detail"),
        [(each.address, each.state, each.pulled, each.pushed, each.refused, each.detail) for each in done],
        "no peers",
    )
    stopped = [each for each in done if each.state in (PAUSED, REFUSED)]
    if all(each.state == UNREACHABLE for each in done):
        raise Unreachable(f"no peer could be reached: {done[0].detail}")
    if stopped:
        raise Failed(f"{len(stopped)} of {len(done)} peers took no part; see `hocket peers list`")


async def _sync(runtime: "Runtime", addresses: list[str]) -> "list[Exchanged]":
    from hocket.node.node import Node

    node = Node(runtime)
    try:
        exchanges = node.services().exchanges
        return list(await asyncio.gather(*(exchanges.visit(address) for address in addresses)))
    finally:
        await node.finish()


def _shown(done: "Exchanged") -> dict[str, Any]:
    from hocket.kernel.ids import node_text

    return {
        "address": done.address,
        "node": None if done.node is None else node_text(done.node),
        "state": done.state,
        "detail": done.detail,
        "pulled": done.pulled,
        "pushed": done.pushed,
        "refused": done.refused,
    }
