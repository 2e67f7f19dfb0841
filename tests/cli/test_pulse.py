"""`hocket tempo pulse` and `hocket mesh serve --pulse` as programs: their policy, their signals and their metrics."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.scenarios.machines import Machine, machines, until


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Machine]:
    with machines(tmp_path, "one") as (machine,):
        machine("init")
        yield machine


def test_a_pulse_needs_a_policy(one: Machine) -> None:
    result = one("pulse", code=2)
    assert str(one.home / "tempo.yaml") in result.err and "--policy FILE" in result.err
    assert one("serve", "--policy", "x.yaml", code=2).err == "hocket: --policy is for --pulse; give both, or neither\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "cluster_id: one\ninitial_bpm: 0\n",
            "line 2: initial_bpm: 0 is not allowed; write a whole number from 1 to 1200",
        ),
        ("cluster_id: one\ninitial_bpm: 1000000\n", "line 2: initial_bpm: 1000000 is not allowed"),
        ("initial_bpm: 12\n", "cluster_id: the field is missing"),
        ("a: &a [*a, *a]\n", "cannot be read"),
        ("cluster_id: one\n" + 70_000 * "#", "longer than"),
    ],
)
def test_a_bad_policy_is_refused_with_its_line(one: Machine, text: str, told: str) -> None:
    (one.home / "tempo.yaml").write_text(text)
    result = one("pulse", code=2)
    assert str(one.home / "tempo.yaml") in result.err and told in result.err


@pytest.mark.req("BB-17")
def test_a_pulse_leads_shows_its_metrics_and_ends_with_a_signal(one: Machine) -> None:
    (one.home / "tempo.yaml").write_text("cluster_id: one\ninitial_bpm: 600\n")
    pulse = one.start("pulse", "--metrics", "0")
    address = re.search(r"http://\S+", pulse.says("metrics are at"))
    assert address is not None
    pulse.says("this pulse leads one")

    def metrics() -> dict[str, float]:
        with urlopen(address[0], timeout=10) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("hocket_")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    shown: dict[str, float] = {}

    def leads() -> bool:
        """A pulse on a busy machine may lose the lead for a while."""
        shown.update(metrics())
        return shown.get('hocket_beats_sent_total{state="led"}', 0) >= 3 and shown["hocket_pulse_leads"] == 1

    until(leads, "three beats as the leader")
    assert shown["hocket_tempo_bpm"] == 600
    assert shown["hocket_beat_lateness_seconds_count"] >= 3 and "hocket_pulse_drift_seconds" in shown
    assert pulse.stop().code == 0
    assert one("lock", "list", "--scope", "tempo", "--json").json == []


@pytest.mark.req("BB-03")
def test_a_server_can_be_a_pulse(one: Machine, tmp_path: Path) -> None:
    policy = tmp_path / "other.yaml"
    policy.write_text("cluster_id: two\ninitial_bpm: 600\n")
    server = one.start("serve", "--port", "0", "--pulse", "--policy", policy)
    server.says("this pulse leads two")
    assert server.stop().code == 0
