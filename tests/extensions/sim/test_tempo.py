"""The adaptive tempo under load: it follows the load within its guardrails, and the plots in the docs are current."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from hocket.extensions.sim.tempo import LOADS, MINUTE_MS, POLICY, SimulatedBar, TempoLoad, simulate_tempo, tempo_plot
from hocket.extensions.tempo.policy import CHANGE_MS

PLOTS = Path(__file__).parents[3] / "docs" / "plots"
NAMED = {load.name: load for load in LOADS}
FIXED = msgspec.structs.replace(POLICY, is_adaptive=False)


def at(bars: list[SimulatedBar], minute: float) -> SimulatedBar:
    return max((bar for bar in bars if bar.minute <= minute), key=lambda bar: bar.minute)


@pytest.mark.req("BB-11")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_every_change_keeps_to_the_guardrails(load: TempoLoad, seed: int) -> None:
    bars = simulate_tempo(load, seed)
    changes = [later for earlier, later in pairwise(bars) if later.bpm != earlier.bpm]
    assert changes, "the tempo never changed"
    assert all(abs(later.bpm - earlier.bpm) <= 1 for earlier, later in pairwise(bars))
    assert all(POLICY.min_bpm <= bar.bpm <= POLICY.max_bpm for bar in bars)
    assert all((later.minute - earlier.minute) * MINUTE_MS >= CHANGE_MS - 1 for earlier, later in pairwise(changes))


@pytest.mark.req("BB-11")
@pytest.mark.parametrize("name", ["step", "burst"])
def test_more_load_makes_the_beat_faster_and_the_queue_shorter(name: str) -> None:
    adaptive, fixed = simulate_tempo(NAMED[name]), simulate_tempo(NAMED[name], policy=FIXED)
    assert max(bar.bpm for bar in adaptive) > POLICY.initial_bpm == max(bar.bpm for bar in fixed)
    assert adaptive[-1].queue < fixed[-1].queue / 10


@pytest.mark.req("BB-11")
def test_after_a_burst_and_in_starvation_the_beat_slows_down() -> None:
    burst = simulate_tempo(NAMED["burst"])
    assert burst[-1].bpm < max(bar.bpm for bar in burst) / 2
    assert simulate_tempo(NAMED["starvation"])[-1].bpm == POLICY.min_bpm


@pytest.mark.req("BB-11")
def test_an_incident_freezes_the_tempo() -> None:
    frozen, free = simulate_tempo(NAMED["incident"]), simulate_tempo(NAMED["step"])
    during = {bar.bpm for bar in frozen if bar.is_incident}
    assert len(during) == 1 and at(free, 60).bpm > at(frozen, 60).bpm
    assert frozen[-1].bpm > during.pop()


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_plots_in_the_docs_are_current(load: TempoLoad) -> None:
    drawn = tempo_plot(f"Adaptive tempo: {load.name}", simulate_tempo(load))
    assert (PLOTS / f"tempo-{load.name}.svg").read_text("utf-8") == drawn, "run `hocket sim --tempo --plots docs/plots`"
