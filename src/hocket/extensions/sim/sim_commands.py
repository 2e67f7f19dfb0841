"""`hocket sim`: runs a whole mesh in this process, on virtual time, with faults chosen by a seed. At the end it checks
that nothing was lost, that all nodes agree and that no job was held twice. It touches no home and no network.
"""

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import App, Option
from hocket.cli.printing import emit, progress, say
from hocket.errors import Failed, Usage
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from hocket.extensions.sim import Report

NODES_MAX = 1_000
MINUTES_MAX = 10_000.0

app = App()


@app.command()
def sim(
    seed: Annotated[int, Option("--seed", metavar="N", min=0, help="The seed of the run.")] = 0,
    seeds: Annotated[
        str | None, Option("--seeds", metavar="A..B", help="Run every seed from A to B, on all cores.")
    ] = None,
    nodes: Annotated[int, Option("--nodes", metavar="N", min=1, max=NODES_MAX, help="How many nodes.")] = 5,
    minutes: Annotated[
        float, Option("--minutes", metavar="M", min=0.1, max=MINUTES_MAX, help="Virtual minutes of faults.")
    ] = 2.0,
    faults: Annotated[
        str | None,
        Option(
            "--faults",
            metavar="NAME,...",
            help="Only these faults, or `none`; `hostile` adds a hostile node, `costly` nodes whose ops take long,"
            " `hiding` prunes the log beside a node with something to hide.",
        ),
    ] = None,
    jobs: Annotated[int | None, Option("--jobs", metavar="N", min=1, help="How many jobs to submit.")] = None,
    coordination: Annotated[
        int | None,
        Option("--coordination", metavar="N", min=0, help="How many locks, messages and rows; as many as jobs."),
    ] = None,
    ranked: Annotated[bool, Option("--ranked", help="Short jobs that succeed and all go by rank.")] = False,
    tempo: Annotated[bool, Option("--tempo", help="Simulate an adaptive tempo under four loads instead.")] = False,
    plots: Annotated[
        Path | None, Option("--plots", metavar="DIR", help="With --tempo: draw each load as an SVG file there.")
    ] = None,
) -> None:
    """Simulate a mesh: real nodes on virtual time, over a network and disks that fail.

    The same seed gives the same run, byte for byte, so that a failure can be replayed.

    \b
      hocket sim --seed 7 --nodes 20 --minutes 30 --faults partition,loss,crash
      hocket sim --seeds 0..999
      hocket sim --tempo --plots .
    """
    if tempo:
        _simulate_tempo(seed, plots)
        return
    if plots is not None:
        raise Usage("--plots is for --tempo; give both, or neither")
    from hocket.extensions.sim import FAULTS, HONEST_FAULTS, run

    named = () if faults is None else tuple(name.strip() for name in faults.split(",") if name.strip() != "none")
    chosen = HONEST_FAULTS if faults is None else named
    unknown = [name for name in chosen if name not in FAULTS]
    if unknown:
        raise Usage(f"unknown fault {unknown[0]!r}; known are {', '.join(FAULTS)}")
    wanted = range(seed, seed + 1) if seeds is None else _range(seeds)
    bad, node_minutes, seconds = 0, 0.0, 0.0
    with progress("simulating") as bar:
        one = functools.partial(
            run, nodes=nodes, minutes=minutes, faults=chosen, jobs=jobs, coordination=coordination, ranked=ranked
        )
        for done, report in enumerate(_runs(wanted, one), 1):
            bar(done, len(wanted))
            bad += bool(report.violations)
            node_minutes += report.nodes * report.virtual_s / 60
            seconds += report.seconds
            emit(_record(report))
            if report.violations or len(wanted) == 1:
                say(report, lines=True)
    runs = counted(len(wanted), "run")
    say(f"{runs}, {bad} with violations; {node_minutes / seconds:.1f} node-minutes for each second of a core")
    if bad:
        raise Failed(f"{bad} of {len(wanted)} runs broke a rule")


def _simulate_tempo(seed: int, plots: Path | None) -> None:
    from hocket.extensions.sim.tempo import LOADS, simulate_tempo, tempo_plot

    for load in LOADS:
        bars = simulate_tempo(load, seed)
        tempi = [bar.bpm for bar in bars]
        queue = max(bar.queue for bar in bars)
        emit({"load": load.name, "bars": [bar._asdict() for bar in bars]})
        say(
            f"{load.name}: {min(tempi)} to {max(tempi)} beats a minute, {tempi[-1]} at the end; at most"
            f" {counted(queue, 'job')} waiting, {bars[-1].queue} at the end"
        )
        if plots is not None:
            file = plots / f"tempo-{load.name}.svg"
            try:
                file.write_text(tempo_plot(f"Adaptive tempo: {load.name}", bars), "utf-8")
            except OSError as error:
                raise Usage(f"cannot write {file}: {error.strerror}") from None


def _range(text: str) -> range:
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise Usage(f"bad --seeds {text!r}; write a range like 0..999")
    return range(int(first), int(last) + 1)


def _runs(seeds: range, run: Callable[[int], "Report"]) -> Iterator["Report"]:
    if len(seeds) == 1:
        yield run(seeds[0])
        return
    with ProcessPoolExecutor(min(len(seeds), os.cpu_count() or 1)) as pool:
        yield from pool.map(run, seeds)


def _record(report: "Report") -> dict[str, object]:
    return {
        "seed": report.seed,
        "nodes": report.nodes,
        "faults": list(report.faults),
        "virtual_s": report.virtual_s,
        "seconds": report.seconds,
        "settled_s": report.settled_s,
        "jobs": report.jobs,
        "ops": report.ops,
        "runs": report.runs,
        "takeovers": report.takeovers,
        "overlaps": report.overlaps,
        "locks": report.locks,
        "messages": report.messages,
        "rows": report.rows,
        "bus": report.bus,
        "requests": report.requests,
        "memory_bytes": report.memory_bytes,
        "trace": report.digest,
        "violations": [{"rule": each.rule, "sentence": each.sentence} for each in report.violations],
    }
