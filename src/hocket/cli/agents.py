"""`hocket agents`: who works on the nodes of the mesh, and what they do."""

import time
from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.nodes import StaleOption, stale_ms
from hocket.cli.output import ago, emit, say, table
from hocket.cli.settings import HomeOption, JsonOption, open_service
from hocket.errors import Usage
from hocket.kernel.durations import duration_ms

app = new_app()


@app.callback(invoke_without_command=True)
def agents(
    context: typer.Context, stale: StaleOption = None, home: HomeOption = None, as_json: JsonOption = False
) -> None:
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
    from hocket.service import agents

    with open_service() as service:
        shown = agents.listing(service, stale_ms(stale))
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


@app.command()
def beat(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name, without spaces and @.")],
    doing: Annotated[str, typer.Option("--doing", metavar="TEXT", help="What it does, in one line.")] = "",
    every: Annotated[
        str, typer.Option("--every", metavar="DURATION", help="How often the agent will say so: 1s to 1d.")
    ] = "1m",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say what an agent of this node does. Other nodes hear of it with this node's next heartbeat. What an agent does
    is never written on the log, and a week after its last word the agent is forgotten.

    \b
      hocket agents beat editor --doing "reviews src/lib.rs" --every 5m
    """
    from hocket.service import agents

    try:
        every_ms = duration_ms(every)
    except ValueError as error:
        raise Usage(f"--every: {error}") from None
    with open_service() as service:
        shown = agents.beat(service, name, doing, every_ms)
        service.wrote()
    emit(shown)
    say(f"{shown.name}: {shown.doing or 'is there'}")
