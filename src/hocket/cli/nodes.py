"""`hocket nodes`: lists the nodes of the mesh. Also defines how the command line names a node."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import ago, emit, notice, table
from hocket.cli.settings import HomeOption, JsonOption, open_service

if TYPE_CHECKING:
    from hocket.service import Service
    from hocket.service.nodes import NodeShown

app = new_app()

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")]


@app.command()
def nodes(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """List the nodes of the mesh: name, id, standing, roles, when last seen, when its stay ends, what it may do, and
    how much of its quota it has used here. A pending node was admitted, but nothing from it has arrived yet.

    \b
      hocket nodes
      hocket nodes --json | jq '.[] | select(.standing == "active") | .name'
    """
    from hocket.service import nodes

    with open_service() as service:
        shown = nodes.listing(service)
        warn_of_namesakes(service)
    emit(shown)
    now = int(time.time() * 1000)
    table(
        ("name", "id", "standing", "work", "roles", "seen", "expires", "may", "stored"),
        [
            (
                (each.name or "-") + (" (here)" if each.here else ""),
                each.node,
                each.standing,
                "-" if each.availability.state == "active" else each.availability,
                ", ".join(each.roles),
                ago(each.seen_ms, now) if each.seen_ms else "never",
                ago(each.expires_ms, now) if each.expires_ms else "-",
                "; ".join(each.may),
                _stored(each, now),
            )
            for each in shown
        ],
        "no nodes",
    )


def warn_of_namesakes(service: "Service") -> None:
    """Says which nodes cannot be told apart by their names."""
    from hocket.service import nodes

    for group in nodes.namesakes(service):
        ids = " and ".join(f"{each.name} ({each.node})" for each in group)
        notice(f"these nodes are called alike: {ids}; `hocket keys reissue --name NAME` renames an owner's node")


def _stored(shown: "NodeShown", now: int) -> str:
    from hocket.mesh.quota_text import quota_words, size_words

    if shown.here:
        return "-"
    stored = f"{shown.stored.ops:,} ops and {size_words(shown.stored.bytes)}"
    if words := quota_words(shown.quota):
        stored += f" (may: {words})"
    over = shown.over_quota
    return stored + (f"; over its quota {ago(over.last_ms, now)}, {over.ops:,} ops refused" if over else "")
