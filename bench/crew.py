"""Worker processes as the harness sees them: started, gated, stopped, and their reports read."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import meter
from bench.subject import Result


class Crew:
    def __init__(self, home: Path, command: list[str], processes: int, stop_signal: int) -> None:
        for stale in [*home.glob("ready-*"), *home.glob("report-*"), *home.glob("gate"), *home.glob("starts")]:
            stale.unlink()
        self.home = home
        self._signal = stop_signal
        environment = {**os.environ, "BENCH_HOME": str(home)}
        self.processes = [
            subprocess.Popen(command, env={**environment, "BENCH_NUMBER": str(number)}) for number in range(processes)
        ]

    def open_gate(self, timeout_s: float = 60) -> float:
        """Wait until all are ready, let them go, and say when that was."""
        deadline = time.monotonic() + timeout_s
        while len(list(self.home.glob("ready-*"))) < len(self.processes):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                raise RuntimeError("a worker did not become ready")
            time.sleep(0.005)
        start = time.monotonic()
        (self.home / "gate").touch()
        return start

    def stop(self) -> list[Result]:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(self._signal)
        for process in self.processes:
            process.wait(timeout=60)
        return [json.loads(path.read_text()) for path in self.home.glob("report-*.json")]

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()


@contextmanager
def crew(home: Path, command: list[str], processes: int = 1, stop_signal: int = signal.SIGTERM) -> Iterator[Crew]:
    team = Crew(home, command, processes, stop_signal)
    try:
        yield team
    finally:
        team.kill()


def drain(
    home: Path,
    command: list[str],
    count: int,
    processes: int,
    is_empty: Callable[[], bool],
    stop_signal: int = signal.SIGTERM,
) -> Result:
    """Time a queue that holds `count` jobs until the last is done, by the workers' own clocks."""
    with crew(home, command, processes, stop_signal) as team:
        start = team.open_gate()
        while not is_empty():
            if all(process.poll() is not None for process in team.processes):
                break
            time.sleep(0.02)
        reports = team.stop()
    done = sum(report["done"] for report in reports)
    if done != count:
        raise RuntimeError(f"{done} jobs done of {count}")
    return {
        "seconds": max(report["last"] for report in reports) - start,
        "peak_kib": [report["peak_kib"] for report in reports],
        "cpu_s": sum(report["cpu_s"] for report in reports),
    }


def latency(
    home: Path,
    command: list[str],
    samples: int,
    submit: Callable[[int], object],
    stop_signal: int = signal.SIGTERM,
    seed: int = 1,
) -> Result:
    """From just before the submit to the handler's first line, with pauses of 5 to 30 ms between jobs."""
    rng = random.Random(seed)
    latencies = []
    with crew(home, command, 1, stop_signal) as team:
        starts = meter.Starts(home)
        team.open_gate()
        for number in range(samples + 5):
            time.sleep(rng.uniform(0.005, 0.030))
            before = time.monotonic()
            submit(number)
            elapsed_ms = (starts.wait(number) - before) * 1000
            if number >= 5:  # the first few pay for imports and cold caches on both sides
                latencies.append(elapsed_ms)
        reports = team.stop()
    return {"latencies_ms": latencies, "peak_kib": [report["peak_kib"] for report in reports]}
