"""`hocket top`: a live view of the mesh in a terminal, for 80 columns and more."""

import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from hocket.cli.declarations import Option
from hocket.cli.output import Row, console, emit, lines_drawn, on_terminal
from hocket.cli.settings import open_service, settings
from hocket.errors import Usage
from hocket.extensions.tempo.beat_commands import PolicyOption, assumed_policy
from hocket.kernel.texts import counted, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from hocket.api.top import BeatOnTop, HoldOnTop, Top

# It is drawn on each beat, and this often if beats are slower.
DRAW_S = 1.0
DRAW_S_MIN = 0.2
# Lines that a frame needs beside its lists, and that a list has at least.
FRAME_LINES = 12
LIST_LINES_MIN = 3


def top(
    once: Annotated[bool, Option("--once", help="Print one frame and end; also into a pipe.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Show the mesh, live: the beat and its phase, the nodes, who holds which job or lock until when, the queue, the
    alarms of the newest window, and what the jobs of the last hour cost. Ctrl-C ends it.

    The beat is that of the policy by this machine's clock.

    \b
      hocket top
      hocket top --once
      hocket top --once --json | jq .queue
    """
    from hocket.api.top import TopView

    once = once or settings.as_json
    if not once and not on_terminal():
        raise Usage("hocket top needs a terminal; `hocket top --once` prints one frame")
    with open_service() as service:
        service.refresh()
        view = TopView(service, assumed_policy(service.runtime.home, policy))
        if not once:
            _live(view.look)
            return
        shown = view.look()
    emit(shown)
    if not settings.as_json:
        shell = console()
        shell.print(frame(shown, shell.width, None), soft_wrap=False)


def _live(look: "Callable[[], Top]") -> None:
    from rich.live import Live

    shell = console()
    try:
        with Live(console=shell, screen=True, auto_refresh=False) as live:
            while True:
                shown = look()
                live.update(frame(shown, shell.width, shell.height), refresh=True)
                left_s = (shown.beat.next_ms - shown.now_ms) / 1000
                time.sleep(min(max(left_s, DRAW_S_MIN), DRAW_S))
    except KeyboardInterrupt:
        return


def frame(shown: "Top", width: int, height: int | None) -> "RenderableType":
    """One picture. With a height, lists are cut so that it fits."""
    from rich.console import Group
    from rich.text import Text

    room = None if height is None else max(2 * LIST_LINES_MIN, height - FRAME_LINES)
    nodes_room = None if room is None else max(LIST_LINES_MIN, min(len(shown.nodes), room // 3))
    holds_room = None if room is None or nodes_room is None else room - nodes_room
    nodes = [
        (each.name or each.node, each.grade, each.availability.state, each.running, ", ".join(each.labels) or "-")
        for each in shown.nodes
    ]
    holds = [(each.type, each.what, each.holder, _until(each, shown.now_ms), _progress(each)) for each in shown.holds]
    queue = "  ".join(f"{name} {count:,}" for name, count in shown.queue.items())
    return Group(
        Text(_beat(shown.beat), "bold", no_wrap=True, overflow="ellipsis"),
        Text(f"queue   {queue}", no_wrap=True, overflow="ellipsis"),
        Text.assemble("alarms  ", _alarms(shown), no_wrap=True, overflow="ellipsis"),
        Text(f"cost    {_cost(shown)}", no_wrap=True, overflow="ellipsis"),
        Text(),
        *_list(("node", "state", "takes jobs", "running", "labels"), nodes, width, nodes_room, "node"),
        Text(),
        *_list(("held", "what", "by", "until", "progress"), holds, width, holds_room, "hold"),
    )


def _beat(beat: "BeatOnTop") -> str:
    bar = "".join("●" if number == beat.beat_index else "·" for number in range(1, min(beat.bar_len_beats, 16) + 1))
    return f"{beat.cluster_id}  {bar}  beat {beat.beat_index}/{beat.bar_len_beats}  {beat.phase}  {beat.tempo_bpm} bpm"


def _alarms(shown: "Top") -> tuple[str, str]:
    if shown.window is None:
        return "no reports on the log: run `hocket reverb`", "dim"
    return (", ".join(shown.alarms), "bold red") if shown.alarms else (f"none in window {shown.window}", "green")


def _cost(shown: "Top") -> str:
    if shown.cost is None:
        return "no rate card"
    left_out = f", without {counted(shown.unpriced, 'run')} that have no price" if shown.unpriced else ""
    return f"{shown.cost:.6g} {shown.currency} in the last hour{left_out}"


def _until(hold: "HoldOnTop", now_ms: int) -> str:
    if hold.until_ms is None:
        return "-"
    left_ms = hold.until_ms - now_ms
    return f"{span(left_ms)} left" if left_ms > 0 else f"over for {span(-left_ms)}"


def _progress(hold: "HoldOnTop") -> str:
    if hold.progress is None:
        return ""
    return hold.progress if isinstance(hold.progress, str) else msgspec.json.encode(hold.progress).decode()


def _list(
    columns: tuple[str, ...], rows: "Sequence[Row]", width: int, room: int | None, noun: str
) -> "list[RenderableType]":
    from rich.text import Text

    if not rows:
        return [Text(f"no {noun}s", "dim")]
    shown = rows if room is None else rows[:room]
    more = [] if len(shown) == len(rows) else [Text(f"and {counted(len(rows) - len(shown), noun)} more", "dim")]
    return [lines_drawn(columns, shown, width, ("what",)), *more]
