"""`hocket nodes`: lists the nodes of the mesh. Also defines how the command line names a node."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import ago, emit, notice, table
from hocket.cli.settings import open_service
from hocket.errors import Usage
from hocket.kernel.durations import duration_ms
from hocket.kernel.plurals import counted

if TYPE_CHECKING:
    from hocket.service import Service
    from hocket.service.nodes import NodeShown

app = new_app()

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="A node's name, the beginning of its id, or `here`.")]


StaleOption = Annotated[
    str | None,
    typer.Option("--stale", metavar="DURATION", help="Only those that were heard within this time, like 1m."),
]


def stale_ms(text: str | None) -> int | None:
    try:
        return None if text is None else duration_ms(text)
    except ValueError as error:
        raise Usage(f"--stale: {error}") from None


@app.command()
def nodes(
    live: Annotated[
        bool, typer.Option("--live", help="How alive each node is, by its heartbeats, and what its machine has.")
    ] = False,
    stale: StaleOption = None,
) -> None:
    """List the nodes of the mesh: name, id, standing, whether it takes new work, roles, when last seen, when its stay
    ends, what it may do, and how much of its quota it has used here. A pending node was admitted, but nothing from it
    has arrived yet.

    With --live: how alive each node is. A node that runs a server or a worker says every 10 seconds that it is there;
    one that has missed 3, 5, 7 or 9 heartbeats is graded warn, alert, critical or dead.

    \b
      hocket nodes
      hocket nodes --json | jq '.[] | select(.standing == "active") | .name'
      hocket nodes --live --stale 1m
    """
    from hocket.service import nodes

    if live or stale is not None:
        _show_live(stale_ms(stale))
        return
    with open_service() as service:
        shown = nodes.listing(service)
        warn_of_namesakes(service)
    emit(shown)
    now = int(time.time() * 1000)
    table(
        ("name", "id", "standing", "roles", "seen", "expires", "may", "stored"),
        [
            (
                (each.name or "-") + (" (here)" if each.here else ""),
                each.node,
                each.standing + (f" ({each.availability})" if each.availability.state != "active" else ""),
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


def _show_live(within_ms: int | None) -> None:
    from hocket.mesh.quota_text import size_words
    from hocket.service import nodes

    with open_service() as service:
        shown = nodes.live(service, within_ms)
    emit(shown)
    now = int(time.time() * 1000)
    table(
        ("name", "id", "grade", "heard", "work", "runs", "cpus", "memory", "gpus", "models", "labels"),
        [
            (
                (each.name or "-") + (" (here)" if each.here else ""),
                each.node,
                each.grade,
                ago(min(now, each.last_seen_ms), now) if each.last_seen_ms else "never",
                "-" if each.availability.state == "active" else each.availability,
                counted(each.running, "job") if each.running else "-",
                each.capabilities.cpus or "-",
                size_words(each.capabilities.memory_bytes) if each.capabilities.memory_bytes else "-",
                ", ".join(each.capabilities.gpus),
                ", ".join(each.capabilities.models),
                ", ".join(each.labels),
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
