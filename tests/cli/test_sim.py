"""`hocket sim`: what it prints, and how it ends."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Program

LOADS = ["step", "burst", "starvation", "incident"]
pytestmark = pytest.mark.touches("LW-40")


def test_a_run_is_reported(hocket: Program) -> None:
    done = hocket("sim", "--seed", "3", "--nodes", "2", "--minutes", "0.3", "--jobs", "3")
    assert done.code == 0
    assert done.out.startswith("seed 3: 2 nodes")
    assert "0 with violations" in done.out


def test_several_seeds_as_json(hocket: Program) -> None:
    options = ("--nodes", "2", "--minutes", "0.2", "--jobs", "2", "--faults", "loss,crash")
    done = hocket("sim", "--seeds", "0..2", *options, "--json")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [record["seed"] for record in records] == [0, 1, 2]
    assert all(record["violations"] == [] and record["faults"] == ["loss", "crash"] for record in records)


@pytest.mark.parametrize(
    "wrong", [("--seeds", "3"), ("--seeds", "5..2"), ("--faults", "rain"), ("--nodes", "0"), ("--minutes", "0")]
)
def test_what_cannot_be_simulated_is_told(hocket: Program, wrong: tuple[str, str]) -> None:
    assert hocket("sim", *wrong).code == 2


def test_the_command_reports_each_load_and_draws_it(hocket: Program, tmp_path: Path) -> None:
    done = hocket("sim", "--tempo", "--plots", str(tmp_path), "--json")
    assert [json.loads(line)["load"] for line in done.out.splitlines()] == LOADS
    assert {file.name for file in tmp_path.glob("*.svg")} == {f"tempo-{load}.svg" for load in LOADS}
    assert hocket("sim", "--plots", str(tmp_path)).code == 2
    assert hocket("sim", "--tempo", "--plots", str(tmp_path / "none")).code == 2
