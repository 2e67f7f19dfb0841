"""Scenarios on one machine: work without any mesh, and a machine that loses its power in the middle of work."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.scenarios.machines import HANDLERS, journal, machines, until, verify

GRAPH = str(Path(__file__).with_name("graph.py"))


@pytest.mark.req("LW-36", "LW-01", "LW-02")
def test_solo(tmp_path: Path):
    """One home is a whole mesh: its node is owner, coordinator and worker."""
    with machines(tmp_path, "solo") as [solo]:
        solo("init")
        job = solo.submit("acme.greet", '{"name": "world"}')
        assert solo.state(job) == "pending"
        worker = solo.start("work", HANDLERS, "--until-idle")
        assert worker.ended().out == "done: 1 succeeded, 0 failed, 0 handed back\n"
        shown = solo.show(job)
        assert (shown["state"], shown["outcome"], shown["result"]) == ("succeeded", "succeeded", {"name": "world"})
        assert solo.ops_of(job) == ["ScheduleJob", "ClaimWork", "CompleteJob"]
        assert [line["event"] for line in journal(tmp_path)] == ["start", "end"]
        verify(solo)


@pytest.mark.req("LW-36", "LW-13", "LW-33", "LW-35")
def test_solo_ingest_derivation_and_rebuild(tmp_path: Path):
    """A note becomes evidence, and the coordinator derives a claim from it. Everything that is derived is dropped and
    comes back from the log alone.
    """
    with machines(tmp_path, "solo") as [solo]:
        solo("init")
        ingested = solo.submit("graph.ingest", '{"text": "Ada drinks tea"}')
        derived = solo.submit("likewise.derive.people", json.dumps({"after": [ingested]}), "--after", ingested)
        worker = solo.start("work", GRAPH, "--until-idle")
        assert worker.ended().out == "done: 2 succeeded, 0 failed, 0 handed back\n"
        evidence, claim = solo.show(ingested)["result"]["evidence"], solo.show(derived)["result"]["claim"]
        counts = Counter(line.type for line in solo.ops() if line.reason == 0)
        assert (counts["IngestEvidence"], counts["CreateEntity"], counts["CreateClaim"]) == (1, 1, 1)
        why = solo("why", claim, "--json").json
        [call] = why["snapshots"]
        assert why["missing"] == [] and call["model_id"] == "first-word" and call["output"]["text"] == "Ada"
        assert call["evidence"] == [{"id": evidence, "is": "here"}] == why["claim"]["evidence"]
        assert why["claim"]["jobs"] == [derived]

        before, shown = solo.digest(), solo.show(derived)
        with solo.runtime.store.write() as session:
            session.drop_projections()
        assert not solo.has(derived) and solo("why", claim, "--json").json["snapshots"] == []
        assert "refolded: changed: job" in solo("log", "rebuild").out
        assert (solo.digest(), solo.show(derived), solo("why", claim, "--json").json) == (before, shown, why)
        assert "nothing changed" in solo("log", "rebuild").out
        verify(solo)


@pytest.mark.req("LW-36", "LW-02", "LW-33", "LW-37")
def test_warm_restart(tmp_path: Path):
    """Two power cuts in the middle of work. Whatever was acknowledged is there afterwards, and gets done."""
    with machines(tmp_path, "box") as [box]:
        box("init")
        ids: list[str] = []
        held: list[str] = []
        for _ in range(2):
            jobs = [{"kind": "acme.step", "payload": {"ms": 5, "n": n}} for n in range(30)]
            made = box.submit_all(jobs + [{"kind": "hold.step", "payload": {"gate": "gate"}}] * 2)
            ids, held = ids + made, held + made[-2:]
            box.serve()
            box.work("--concurrency", "6")
            until(lambda new=set(made[-2:]): new <= {line["job"] for line in journal(tmp_path)}, "runs to be under way")
            box.cut_power()
            assert all(box.has(job) for job in ids)
        (tmp_path / "gate").touch()
        box.serve()
        box.work("--concurrency", "6")
        until(lambda: box.done() == len(ids), "all jobs to be done")
        box.stop()
        runs: dict[str, list[int]] = {job: [] for job in ids}
        for line in journal(tmp_path):
            if line["event"] == "start":
                runs[line["job"]].append(line["fence"])
        # A run that was cut off was done again under a new fence, and every job was completed once.
        assert all(len(runs[job]) > 1 for job in held)
        assert all(fences == sorted(set(fences)) for fences in runs.values())
        completed = sorted(line.job or "" for line in box.ops() if line.type == "CompleteJob" and line.reason == 0)
        assert completed == sorted(ids)
        verify(box)
        assert "nothing changed" in box("log", "rebuild").out
