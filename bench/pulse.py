"""Beats: how late they come, how long a cluster is without a leader, how far a pulse's clock drifts, and what a tempo
costs a worker. Pulses are real processes; what is measured is what another process hears on the bus. `python -m
bench.pulse --minutes 10` measures only the lateness, for longer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import hocket
from bench import ours
from bench.subject import Result
from hocket.extensions.tempo.beats import next_beat
from hocket.extensions.tempo.heard_beats import TempoClock
from hocket.extensions.tempo.messages import PulseMessage
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.tempo_messages import TempoMessages, TempoQueue

WAIT_S = 60.0
FAILOVER_BPM = 60
HOUR_S = 3_600
# How fast a bad quartz runs, and by how much the time of day is corrected now and then.
RATE = 1.0002
CORRECTION_S, CORRECTED_S = 0.05, 600
LEADS = "this pulse leads"
_BUSY = "while True: pass"


class _Command:
    """`hocket tempo pulse` or `hocket tempo reverb`, in a process of its own."""

    def __init__(self, home: Path, *words: str) -> None:
        self._said = home.parent / f"{words[0]}-{os.urandom(4).hex()}"
        with self._said.open("wb") as said:
            command = [sys.executable, "-m", "hocket.cli", "--home", str(home), *words, "-v"]
            self.popen = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)

    def said(self, text: str) -> bool:
        assert self.popen.poll() is None, self._said.read_text()
        return text in self._said.read_text()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


@contextmanager
def _pulses(home: Path, bpm: int, count: int) -> Iterator[tuple[Path, Path, list[_Command]]]:
    node_home, policy = home / "home", home / "tempo.yaml"
    hocket.init(node_home)
    policy.write_text(f"cluster_id: bench\ninitial_bpm: {bpm}\n")
    pulses = [_Command(node_home, "pulse", "--policy", str(policy)) for _ in range(count)]
    try:
        yield node_home, policy, pulses
    finally:
        for each in pulses:
            each.kill()


@asynccontextmanager
async def _heard(home: Path) -> AsyncIterator[TempoQueue[PulseMessage]]:
    async with hocket.open(home) as node:
        messages = TempoMessages(await node.message_bus(), node.log.user)
        yield await messages.subscribe(PulseMessage)


async def _next(queue: TempoQueue[PulseMessage]) -> PulseMessage:
    heard = await queue.get(WAIT_S)
    assert heard is not None, "no beat was heard"
    return heard.message


def lateness(home: Path, seconds: float, bpm: int, is_loaded: bool) -> Result:
    """How long after the start of each beat its frame is heard. If loaded, another process keeps a core busy."""
    busy = subprocess.Popen([sys.executable, "-c", _BUSY]) if is_loaded else None
    try:
        with _pulses(home, bpm, 1) as (node_home, _, _):
            return asyncio.run(_lateness(node_home, seconds))
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()


async def _lateness(home: Path, seconds: float) -> Result:
    late_ms: list[float] = []
    async with _heard(home) as queue:
        for _ in range(3):
            await _next(queue)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            message = await _next(queue)
            late_ms.append(time.time() * 1000 - message.frame.epoch_ms)
    return {"late_ms": late_ms, "late_max_ms": max(late_ms)}


def failover(home: Path, times: int) -> Result:
    """Kills the leading one of two pulses, again and again: how many beats until a frame of the other is heard."""
    with _pulses(home, FAILOVER_BPM, 2) as (node_home, policy, pulses):
        return asyncio.run(_failover(node_home, policy, pulses, times))


async def _failover(home: Path, policy: Path, pulses: list[_Command], times: int) -> Result:
    beats = []
    async with _heard(home) as queue:
        for _ in range(times):
            fence = (await _next(queue)).fence
            while not all(each.said("this pulse listens") for each in pulses):
                fence = (await _next(queue)).fence
            await _next(queue)
            place = next(place for place, each in enumerate(pulses) if each.said(LEADS))
            pulses[place].kill()
            began = time.monotonic()
            while (message := await _next(queue)).degraded or message.fence <= fence:
                pass
            beats.append((time.monotonic() - began) / (message.frame.beat_ms / 1000))
            pulses[place] = _Command(home, "pulse", "--policy", str(policy))
    return {"beats": beats, "beats_max": max(beats)}


def drift(home: Path) -> Result:
    """An hour of beats in a moment, on a machine whose clock runs 200 parts in a million fast and is corrected by 50 ms
    every ten minutes: how far a beat was from its length at most, and the hour from its own.
    """
    tempo = make_policy("bench", 60).initial_tempo
    monotonic, wall, corrections = [0.0], [1_756_865_520.0], 1
    clock = TempoClock(lambda: monotonic[0], lambda: wall[0])
    begin_ms = now_ms = clock.now_ms()
    begin_s, longest, last_s = wall[0], 0.0, 0.0
    while monotonic[0] < HOUR_S:
        beat_ms = next_beat(tempo, now_ms + 1)
        while (now_ms := clock.now_ms()) < beat_ms:  # a pulse sleeps, and looks again if its clock was slewed
            monotonic[0] += (beat_ms - now_ms) / 1000
            wall[0] += (beat_ms - now_ms) / 1000 * RATE
            if monotonic[0] >= corrections * CORRECTED_S:
                wall[0], corrections = wall[0] - CORRECTION_S, corrections + 1
        if last_s:
            longest = max(longest, abs(monotonic[0] - last_s - tempo.beat_ms / 1000))
        last_s = monotonic[0]
    passed_s = (clock.now_ms() - begin_ms) / 1000
    return {
        "hour_pct": 100 * abs(passed_s - (wall[0] - begin_s)) / HOUR_S,
        "beat_pct": 100 * longest / (tempo.beat_ms / 1000),
    }


def drain(home: Path, count: int, rounds: int) -> Result:
    """Drains without a tempo, with a pulse, and with a pulse and a reverb, in rounds whose order rotates. With a pulse
    the worker has a tempo and tells what it runs. The ratios are the medians of each round's.
    """
    sides: dict[str, tuple[str, ...]] = {"plain": (), "pulse": ("pulse",), "reverb": ("pulse", "reverb")}
    drained: dict[str, list[Result]] = {side: [] for side in sides}
    for side, commands in sides.items():
        hocket.init(home / side / "node")
        if commands:
            (home / side / "node" / "tempo.yaml").write_text(f"cluster_id: bench\ninitial_bpm: {FAILOVER_BPM}\n")
    for number in range(rounds):
        turn = number % len(sides)
        for side in [*sides][turn:] + [*sides][:turn]:
            with _running(home / side / "node", sides[side]):
                drained[side].append(ours.drain(home / side, count, processes=1))

    def ratio(side: str, name: str) -> float:
        both = zip(drained["plain"], drained[side], strict=True)
        return statistics.median(plain[name] / other[name] for plain, other in both)

    rates = {f"{side}_rate": statistics.median(count / each["seconds"] for each in drained[side]) for side in sides}
    cpu = {"cpu_us": statistics.median(each["cpu_s"] for each in drained["plain"]) / count * 1_000_000}
    ratios = {f"{side}_ratio": ratio(side, "seconds") for side in ("pulse", "reverb")}
    return rates | ratios | cpu | {f"{side}_cpu_ratio": ratio(side, "cpu_s") for side in ("pulse", "reverb")}


@contextmanager
def _running(node_home: Path, commands: Sequence[str]) -> Iterator[None]:
    """A pulse that leads, a reverb that listens."""
    says = {"pulse": LEADS, "reverb": "reports the bars"}
    with ExitStack() as stack:
        for command in commands:
            process = _Command(node_home, command)
            stack.callback(process.kill)
            deadline = time.monotonic() + WAIT_S
            while not process.said(says[command]):
                assert time.monotonic() < deadline, f"{command} did not start"
                time.sleep(0.02)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures how late beats come.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--bpm", type=int, default=60)
    minutes, bpm = (getattr(parser.parse_args(), name) for name in ("minutes", "bpm"))
    for is_loaded in (False, True):
        with tempfile.TemporaryDirectory() as directory:
            found = sorted(lateness(Path(directory), 60 * minutes, bpm, is_loaded)["late_ms"])
        p50, p99 = (found[int(share * (len(found) - 1))] for share in (0.5, 0.99))
        name = "a core is busy" if is_loaded else "idle"
        print(f"{name}: {len(found)} beats, p50 {p50:.1f} ms, p99 {p99:.1f} ms, at most {found[-1]:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
