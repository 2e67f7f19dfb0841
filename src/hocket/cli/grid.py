"""`hocket grid`: how the jobs that go by rank spread over the workers, as a table that can be watched."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.options import seconds
from hocket.cli.output import console, emit, on_terminal, say, table
from hocket.cli.settings import open_service, settings
from hocket.kernel.plurals import counted

if TYPE_CHECKING:
    from hocket.service.grid import GridKind, GridShare

# How often a watched table is drawn again.
DRAW_S = 2.0

app = new_app()


@app.command()
def grid(
    kind: Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only this kind; `acme.` for all.")] = None,
    window: Annotated[
        str, typer.Option("--window", metavar="DURATION", help="Count the claims of this last time.")
    ] = "10m",
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every 2 seconds until Ctrl-C.")] = False,
) -> None:
    """Show how the jobs that go by rank spread over the nodes and their workers: for each kind the weights, each
    share of the claims against the share that weights and the time in the ranking promise, takeovers, refused claims
    and double starts. A deviation that chance does not explain is marked. The counts of nodes are of the newest 2,000
    jobs, within the window; those of workers are what they tell, by the minute.

    \b
      hocket grid --watch
      hocket grid --kind acme. --window 1h --json
    """
    from hocket.service.grid import grid

    window_s = seconds(window, "--window")
    assert window_s is not None
    with open_service() as service:
        while True:
            shown = grid(service, kind, round(window_s * 1000))
            if watch and on_terminal() and not settings.as_json:
                console().clear()
            emit(shown)
            _show(shown)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(DRAW_S)


def _show(shown: "list[GridKind]") -> None:
    for each in shown:
        say(
            f"{each.kind}: epoch {each.epoch} ({each.candidates}), {counted(each.claims, 'claim')},"
            f" {counted(each.takeovers, 'takeover')}, {each.refused} refused,"
            f" {counted(each.double_starts, 'double start')}",
            "bold",
        )
        rows = []
        for node in each.nodes:
            rows.append((node.name or node.node, f"{node.weight:g}", *_columns(node)))
            rows += [(f"  {worker.worker}", f"{worker.weight:g}", *_columns(worker)) for worker in node.workers]
        table(("node, workers", "weight", "claims", "share", "expected", "beyond chance"), rows, "no workers")
    if not shown:
        say("no jobs that go by rank", "dim")


def _columns(shared: "GridShare") -> tuple[object, ...]:
    marked = "yes" if shared.is_beyond_chance else "-"
    return shared.claims, _percent(shared.share), _percent(shared.expected), marked


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
