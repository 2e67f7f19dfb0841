"""The derivation pass from the command line: the coordinator runs it, and any node repeats it."""

from pathlib import Path

import pytest

from .conftest import Program
from .test_mesh_commands import served

__all__ = ["served"]

DERIVES = [part for action in ("schedule", "claim", "complete") for part in ("--may", f"job:{action}:likewise.derive.")]

RHYTHM = """
import hocket

@hocket.derivation("rhythm", initial={"jobs": 0})
def rhythm(state, op):
    if op.type != "ScheduleJob":
        return state, None
    return {"jobs": state["jobs"] + 1}, {"kind": op.payload["kind"], "number": state["jobs"] + 1}
"""


@pytest.fixture
def rhythm(tmp_path: Path) -> Path:
    path = tmp_path / "rhythm.py"
    path.write_text(RHYTHM)
    return path


def derived(program: Program) -> list[dict[str, object]]:
    """The values of all passes, by the results of their jobs."""
    passes = program("jobs", "--kind", "likewise.derive.rhythm", "--json", code=0).json
    shown = [program("show", each["job_id"], "--json", code=0).json for each in reversed(passes)]
    return [value["value"] for each in shown for value in each["result"]["derived"]]


@pytest.mark.req("LW-47")
def test_passes_go_on_where_the_last_one_ended_and_can_be_repeated(hocket: Program, rhythm: Path):
    for kind in ("acme.a", "acme.b"):
        hocket("submit", kind, code=0)
    done = hocket("derive", rhythm, "--json", code=0).json
    assert [(each["name"], each["passes"], each["values"]) for each in done] == [("rhythm", 1, 2)]
    assert hocket("derive", rhythm, "--json", code=0).json[0]["passes"] == 0
    hocket("submit", "acme.c", code=0)
    assert "1 value from" in hocket("derive", rhythm, code=0).out
    assert derived(hocket) == [{"kind": f"acme.{name}", "number": n} for n, name in enumerate("abc", 1)]
    assert hocket("derive", rhythm, "--check", "--json", code=0).json == [
        {"name": "rhythm", "passes": 2, "other_ops": [], "other_results": []}
    ]
    hocket("log", "rebuild", code=0)
    hocket("derive", rhythm, "--check", code=0)
    rhythm.write_text(RHYTHM.replace('state["jobs"] + 1}\n', 'state["jobs"] + 2}\n'))
    assert "gives another result" in hocket("derive", rhythm, "--check", code=1).out


@pytest.mark.req("LW-47", "LW-13")
def test_another_node_repeats_the_passes_and_may_not_write_any(served: Program, rhythm: Path, tmp_path: Path):
    gpu = Program(tmp_path / "gpu")
    gpu("join", served("invite", "gpu", *DERIVES, "--json", code=0).json["token"], code=0)
    for _ in range(3):
        served("submit", "acme.x", code=0)
    served("derive", rhythm, code=0)
    gpu("sync", code=0)
    assert derived(gpu) == derived(served) and len(derived(gpu)) == 3
    checked = gpu("derive", rhythm, "--check", "--json", code=0).json
    assert checked == served("derive", rhythm, "--check", "--json", code=0).json
    assert checked[0]["passes"] == 1
    served("submit", "acme.x", code=0)
    gpu("sync", code=0)
    assert "only the coordinator derives" in gpu("derive", rhythm, code=4).sentence
    # A later coordinator goes on where the last one ended.
    served("coordinator", "gpu", code=0)
    gpu("sync", code=0)
    assert gpu("derive", rhythm, "--json", code=0).json[0]["values"] == 1
    assert derived(gpu)[-1] == {"kind": "acme.x", "number": 4}
    gpu("derive", rhythm, "--check", code=0)


@pytest.mark.req("LW-47")
def test_what_is_wrong_is_told(hocket: Program, tmp_path: Path, rhythm: Path):
    bad = tmp_path / "bad.py"
    bad.write_text("import hocket\n\n@hocket.derivation('bad')\ndef bad(state, op):\n    raise ValueError('no')\n")
    assert "the derivation bad failed at op" in hocket("derive", bad, code=1).sentence
    assert "no derivation 'other'" in hocket("derive", rhythm, "--name", "other", code=2).sentence
    bad.write_text("import hocket\n\n@hocket.derivation('Bad Name')\ndef bad(state, op):\n    pass\n")
    assert "bad name of a derivation" in hocket("derive", bad, code=2).sentence
