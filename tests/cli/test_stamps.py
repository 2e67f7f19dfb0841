"""Ops, messages and artifacts that are made under a tempo bear the stamp of their beat, as an outsider reads it: with
the addendum's formula and a few bytes of the log.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Program
from tests.scenarios.machines import HANDLERS, Machine, machines, until

BEAT_MS, BAR = 2_000, 5
TEMPO = {"cluster_id": "acme", "initial_bpm": 30, "bar_len_beats": BAR}


def unix_ms(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1000)


def is_right(stamp: dict[str, Any]) -> bool:
    at_ms = unix_ms(stamp["hlc"].partition("+")[0])
    window_ms = at_ms // (BEAT_MS * BAR) * BEAT_MS * BAR
    return stamp["beat_index"] == 1 + at_ms // BEAT_MS % BAR and unix_ms(stamp["window"]) == window_ms


def ops(hocket: Program) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hocket("log", "--json", "--limit", 1000, code=0).json
    return found


@pytest.mark.req("BB-16")
def test_what_is_made_under_a_tempo_bears_its_stamp(hocket: Program) -> None:
    before = hocket.submit("test.echo", '{"n": 1}')
    (hocket.home / "tempo.yaml").write_text(json.dumps(TEMPO))
    job_id = hocket.submit("test.echo", '{"n": 1}')
    hocket("work", "tasks.py", "--until-idle", code=0)
    hocket("send", "someone", "hello", code=0)
    hocket("lock", "acquire", "k", "--agent", "a", code=0)
    hocket("artifacts", "put", "tasks.py", "--type", "note", code=0)
    (hocket.home / "tempo.yaml").unlink()
    (first,) = (each for each in ops(hocket) if each["job_id"] == before and each["type"] == "ScheduleJob")
    assert first["stamp"] is None, "it was made without a tempo"
    later = [each for each in ops(hocket) if each["seq"] > first["seq"]]
    assert {"ScheduleJob", "ClaimWork", "CompleteJob", "SendMessage", "AcquireLocks", "CreateArtifact"} <= {
        each["type"] for each in later
    }
    assert all(is_right(each["stamp"]) and each["stamp"]["hlc"] == each["hlc"] for each in later)
    (message,) = hocket("inbox", "--agent", "someone", "--json", code=0).json
    artifacts = hocket("artifacts", "list", "--json", code=0).json
    assert is_right(message["stamp"]) and all(is_right(each["stamp"]) for each in artifacts) and artifacts
    assert hocket.show(job_id)["outcome"] == "succeeded"
    hocket("log", "verify", code=0)


@pytest.mark.req("BB-16")
def test_the_stamp_is_in_the_signed_bytes(hocket: Program, tmp_path: Path) -> None:
    (hocket.home / "tempo.yaml").write_text(json.dumps(TEMPO))
    hocket.submit("test.echo", '{"n": 1}')
    hocket("log", "export", "log.bin", code=0)
    data = (tmp_path / "log.bin").read_bytes()
    stamps = [each["stamp"] for each in ops(hocket) if each["type"] == "ScheduleJob"]
    assert stamps
    for stamp in stamps:
        mark = unix_ms(stamp["window"]).to_bytes(6, "big") + stamp["beat_index"].to_bytes(2, "big") + b"\xff\xff"
        assert b"\xfe" + mark in data


@pytest.mark.slow
@pytest.mark.req("BB-16")
def test_two_reverbs_write_a_window_once(tmp_path: Path) -> None:
    quick = json.dumps({"cluster_id": "acme", "initial_bpm": 120, "bar_len_beats": 4})
    with machines(tmp_path, "owner", "member") as (owner, member):
        owner("init")
        owner.serve()
        member("join", owner.invite("member", "artifact:write"))
        for machine in (owner, member):
            (machine.home / "tempo.yaml").write_text(quick)
            machine.start("reverb")
        member.start("serve", "--port", "0")
        owner.start("work", HANDLERS)

        def reports(machine: Machine) -> list[tuple[str, str]]:
            """By window, which is the time in the id, and content."""
            found = machine("artifacts", "list", "--json", "--limit", 1000).json
            return [(each["artifact_id"][:10], each["hash"]) for each in found if each["type"] == "hocket.bar-report"]

        until(lambda: len({window for window, _ in reports(owner)}) >= 6, "six windows")
        # In the first bars each of them may not have heard of the other.
        begun = sorted({window for window, _ in reports(owner)})[2]
        seen = [(window, hash) for window, hash in reports(owner) if window >= begun]
        assert len(seen) == len(set(seen)), "no report of a window is there twice"
