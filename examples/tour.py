"""The tour, which `make run` starts. First one machine: a home, three worker processes, a few hundred jobs of every
sort, one worker killed in the middle of a job, a table of what happened and a verified log. Then a mesh of three nodes,
in `tour_mesh`, and two agents, in `tour_agents`. Exits with 1 if a check fails.

    python examples/tour.py [--base DIR]
"""

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import tour_agents
import tour_jobs as jobs
import tour_mesh
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import hocket

HERE = Path(__file__).resolve().parent
WORKERS = 3
SUMS, URGENT, FRAMES, STREAMS, FLAKY = 240, 20, 40, 6, 5
PATIENCE_S = 60.0

console = Console()


class Crew:
    """The worker processes. Whatever happens to the tour, none of them outlives it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.killed: list[int] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    @property
    def pids(self) -> list[int]:
        return list(self._processes)

    def start(self) -> None:
        number = len(self._processes) + 1
        with (self._home.parent / f"worker-{number}.log").open("wb") as output:
            process = subprocess.Popen(
                hocket_command(self._home, "work", str(HERE / "tour_jobs.py")), stdout=output, stderr=output
            )
        self._processes[process.pid] = process

    def kill(self, pid: int) -> None:
        self._processes[pid].kill()
        self._processes[pid].wait()
        self.killed.append(pid)

    def stop(self) -> list[int]:
        """Stops them, as `kill` or Ctrl-C would, and returns their exit codes."""
        alive = [process for pid, process in self._processes.items() if pid not in self.killed]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        return [process.wait(timeout=20) for process in alive]


def hocket_command(home: Path, *words: str) -> list[str]:
    """The same as `hocket --home HOME …` in a shell, whether or not the shell would find it."""
    return [sys.executable, "-m", "hocket.cli", "--home", str(home), *words]


class Watch:
    """Shows progress: a bar on a terminal, a line now and then in a pipe."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._next = 0
        columns = (
            TextColumn("jobs"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task("jobs", total=total, note="")

    def __enter__(self) -> "Watch":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, done: int, running: int) -> None:
        if console.is_terminal:
            self._bar.update(self._task, completed=done, note=f"{running} held")
        elif done >= self._next:
            console.print(f"{done} of {self._total} jobs ended, {running} held")
            self._next = min(self._total, done + self._total // 5)


async def submit(node: hocket.Node) -> dict[str, list[hocket.Handle]]:
    """Everything is on the log before the first worker starts."""
    sums = await node.submit_many([(jobs.add, {"numbers": list(range(n))}) for n in range(SUMS)])
    urgent = await node.submit_many([(jobs.add.using(priority=10), {"numbers": [n]}) for n in range(URGENT)])
    frames = await node.submit_many([(jobs.frame, {"number": n}) for n in range(FRAMES)])
    film = await node.submit(jobs.film.using(after=frames), frames=[each.job_id for each in frames])
    streams = await node.submit_many([(jobs.stream, {"steps": 5})] * STREAMS)
    flaky = await node.submit_many([(jobs.flaky, {})] * FLAKY)
    hopeless = await node.submit(jobs.hopeless)
    orphan = await node.submit(jobs.add.using(after=[hopeless]), numbers=[1])
    slow = await node.submit(jobs.slow.using(priority=10))
    return {
        "sum": sums,
        "urgent sum": urgent,
        "frame": frames,
        "film": [film],
        "stream": streams,
        "flaky": flaky,
        "hopeless": [hopeless],
        "orphan": [orphan],
        "slow": [slow],
    }


async def kill_holder(node: hocket.Node, crew: Crew, slow: hocket.Handle) -> float:
    """Waits until the slow job runs, kills the process that runs it, and starts another one."""

    async def look() -> tuple[bool, Any]:
        progress = (await slow.status())["progress"]
        return progress is not None, progress

    pid = (await node.until(look, PATIENCE_S))["pid"]
    await asyncio.to_thread(crew.kill, pid)
    killed_at = time.time()
    console.print(f"worker {pid} is killed with SIGKILL while it runs the slow job")
    crew.start()
    return killed_at


async def all_started(node: hocket.Node, crew: Crew) -> None:
    """Waits until every worker is at work: a process that still starts does not stop as a worker does."""
    alive = {*crew.pids} - {*crew.killed}

    async def look() -> tuple[bool, None]:
        return alive <= {row.pid for row in await node.read(lambda session: session.workers())}, None

    await node.until(look, PATIENCE_S)


async def follow(node: hocket.Node, total: int) -> None:
    with Watch(total) as watch:

        async def look() -> tuple[bool, None]:
            counts: Counter[str] = Counter()
            for (stage, _), count in (await node.read(lambda session: session.counts())).items():
                counts[stage.name] += count
            watch.show(counts["DONE"], counts["CLAIMED"])
            return counts["DONE"] == total, None

        await node.until(look, PATIENCE_S)


def first(job: dict[str, Any], type_: str) -> int:
    """Where the job's first op of that type is on the log."""
    return next((op["seq"] for op in job["ops"] if op["type"] == type_), sys.maxsize)


def check(done: dict[str, list[dict[str, Any]]], killed: int) -> list[str]:
    """The failed checks."""
    wrong = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            wrong.append(what)

    for group, group_jobs in done.items():
        wanted = {"hopeless": "failed", "orphan": "cancelled"}.get(group, "succeeded")
        for job in group_jobs:
            types = [op["type"] for op in job["ops"]]
            must(
                job["outcome"] == wanted, f"{group} job {job['job_id']}: {job['outcome']}, not {wanted}: {job['error']}"
            )
            must(types.count("CompleteJob") == (wanted == "succeeded"), f"{group} job {job['job_id']}: ops {types}")
            must(all(op["counts"] for op in job["ops"]), f"{group} job {job['job_id']}: an op of it was refused")
    slow, film = done["slow"][0], done["film"][0]
    must(
        slow["fence"] >= 2 and slow["result"] and slow["result"]["pid"] != killed,
        "the slow job did not move to another worker",
    )
    must(
        any(op["detail"] == "its worker process died" for op in slow["ops"]),
        "the killed worker's job was not handed back",
    )
    must(film["result"] and film["result"]["frames"] == list(range(FRAMES)), "the film lacks a frame")
    last_frame = max(first(job, "CompleteJob") for job in done["frame"])
    must(last_frame < first(film, "ClaimWork"), "the film began before its frames had ended")
    must(all(job["fence"] >= 3 and job["failures"] for job in done["flaky"]), "a flaky job was not tried again")
    must(done["hopeless"][0]["failures"] == 2, "the hopeless job was not tried exactly twice")
    last_urgent = max(first(job, "ClaimWork") for job in done["urgent sum"])
    must(
        last_urgent < min(first(job, "ClaimWork") for job in done["sum"]), "an urgent job waited behind an ordinary one"
    )
    must(
        all(job["result"] and job["result"]["sum"] == sum(range(n)) for n, job in enumerate(done["sum"])),
        "a sum is wrong",
    )
    return wrong


def tables(done: dict[str, list[dict[str, Any]]], crew: Crew) -> None:
    table = Table(title="jobs", title_justify="left")
    table.add_column("what")
    for name in ("jobs", "succeeded", "failed", "cancelled", "attempts", "top fence"):
        table.add_column(name, justify="right")
    ran: Counter[int] = Counter()
    for group, group_jobs in done.items():
        outcomes = Counter(job["outcome"] for job in group_jobs)
        counts = [str(outcomes[name]) for name in ("succeeded", "failed", "cancelled")]
        attempts, fence = sum(job["attempts"] for job in group_jobs), max(job["fence"] for job in group_jobs)
        table.add_row(group, str(len(group_jobs)), *counts, str(attempts), str(fence))
        ran.update(job["result"]["pid"] for job in group_jobs if job["result"])
    console.print(table)
    workers = Table(title="who ran what", title_justify="left")
    workers.add_column("worker process")
    workers.add_column("jobs completed", justify="right")
    workers.add_column("end")
    for pid in crew.pids:
        workers.add_row(str(pid), str(ran[pid]), "killed" if pid in crew.killed else "stopped when asked")
    console.print(workers)


async def tour(home: Path) -> list[str]:
    with Crew(home) as crew:
        async with hocket.open(home) as node:
            handles = await submit(node)
            total = sum(len(group) for group in handles.values())
            console.print(f"{total} jobs are submitted; {WORKERS} workers start")
            for _ in range(WORKERS):
                crew.start()
            following = asyncio.create_task(follow(node, total))
            killed_at = await kill_holder(node, crew, handles["slow"][0])
            await following
            await all_started(node, crew)
            codes = await asyncio.to_thread(crew.stop)
            done = {group: [await each.status() for each in of_group] for group, of_group in handles.items()}
            wrong = check(done, crew.killed[0])
            tables(done, crew)
            back = next(op["hlc"] for op in done["slow"][0]["ops"] if op["type"] == "YieldWork")
            console.print(
                f"killed worker's job handed back at {back[11:23]}, {since(back, killed_at):.2f} s after the kill"
            )
            audit = await asyncio.to_thread(node.runtime.verify)
    wrong += [f"a worker left with {code}" for code in codes if code != 0]
    wrong += [f"log: {finding.what}" for finding in audit.findings]
    if not audit.findings:
        console.print(f"log verified: {audit.ops} ops, chain head {audit.head[1].hex()}", soft_wrap=True)
    return wrong


def say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def since(hlc: str, moment: float) -> float:
    """Seconds from a moment to an op's time as `show` writes it."""
    return datetime.fromisoformat(hlc.partition("+")[0].replace("Z", "+00:00")).timestamp() - moment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=HERE.parent / ".run", help="directory to work in")
    base: Path = parser.parse_args().base.absolute()
    # Removes only what an earlier tour has left.
    if base.exists() and not (base / ".gitignore").exists() and any(base.iterdir()):
        parser.error(f"{base} is not empty and not from an earlier tour")
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    (base / ".gitignore").write_text("*\n")
    home = base / "home"
    # Handlers open the same node by this name, and so can you, afterwards: hocket --home .run/home jobs
    os.environ["HOCKET_HOME"] = str(home)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        subprocess.run(hocket_command(home, "init"), check=True)
        wrong = asyncio.run(tour(home))
        if not wrong:
            say("\nThat was one machine. Now a mesh: three nodes, each with a home of its own, over HTTP.")
            wrong = tour_mesh.tour(base, say)
        if not wrong:
            say("\nNow two agents on one machine: locks and mail, jobs by rank, a beat, a proof and a bill.")
            wrong = tour_agents.tour(base, say)
    except (KeyboardInterrupt, RuntimeError) as error:
        # Python's own locks can fail on an interrupt, and then raise another error.
        if not isinstance(error.__context__ if isinstance(error, RuntimeError) else error, KeyboardInterrupt):
            raise
        console.print("interrupted; all processes are stopped")
        return 130
    except (hocket.HocketError, TimeoutError, subprocess.SubprocessError) as error:
        wrong = [f"{type(error).__name__}: {error}"]
    for line in wrong:
        console.print(f"check failed: {line}", markup=False, soft_wrap=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
