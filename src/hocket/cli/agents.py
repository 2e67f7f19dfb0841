"""`hocket agents`: who works on the nodes of the mesh, and what they do."""

import time

import typer

from hocket.cli.declarations import new_app
from hocket.cli.derived import add_operations
from hocket.cli.nodes import StaleOption, stale_ms
from hocket.cli.output import ago, emit, table
from hocket.cli.settings import open_service
from hocket.service import agents as operations

app = new_app()


@app.callback(invoke_without_command=True)
def agents(context: typer.Context, stale: StaleOption = None) -> None:
    """List the agents of the mesh: name, node, how alive, when last seen, and what each does. Workers are agents, too,
    and so is who holds a lock, waits for one, or has claimed messages. An agent that has missed 3, 5, 7 or 9 times to
    say what it does is graded warn, alert, critical or dead.

    \b
      hocket agents
      hocket agents --stale 5m --json | jq '.[] | .name'
      hocket agents beat editor --doing "reviews src/lib.rs"
    """
    if context.invoked_subcommand is not None:
        return
    with open_service() as service:
        shown = operations.listing(service, stale_ms(stale))
    emit(shown)
    now = int(time.time() * 1000)
    table(
        ("name", "node", "grade", "seen", "doing"),
        [
            (each.name, each.node_name or each.node, each.grade, ago(min(now, each.last_seen_ms), now), each.doing)
            for each in shown
        ],
        "no agents; `hocket agents beat NAME` tells of one",
    )


add_operations(app, operations.beat)
