"""Budgets as an outsider would try them: YAML, options and batches in, sums of one's own out."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Program

BEAT_S = 0.25
TEMPO = "cluster_id: acme\ninitial_bpm: 240\nbar_len_beats: 8\n"
RATES = {
    "currency": "EUR",
    "beat_ms": 60_000,
    "role_rate_bu": {"default": 1.0},
    "rate_gpu_sec": {"H200": 100.0, "TPU v5e": 10.0},
    "rate_cpu_sec": 2.0,
    "rate_mem_gbs": 0.5,
    "rate_io_mb": 0.125,
    "rate_egress_mb": 4.0,
    "rate_storage_gbh": 1e6,
}
HANDLERS = """
import asyncio
import os
import time

import hocket


@hocket.job("test.wait")
def wait(ctx, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


@hocket.job("test.deaf")
def deaf(ctx, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            time.sleep(0.01)
        except BaseException:
            pass


@hocket.job("test.burn")
def burn(ctx, seconds):
    while time.thread_time() < seconds:
        pass


@hocket.job("test.steps")
async def steps(ctx, seconds):
    begun, spent = time.thread_time(), 0.0
    while spent < seconds:
        before = time.thread_time()
        while time.thread_time() - before < 0.02:
            pass
        spent += time.thread_time() - before
        await asyncio.sleep(0)


@hocket.job("test.uses")
def uses(ctx):
    ctx.used(gpu_sec={"H200": 0.5}, accel_sec={"TPU v5e": 1.5}, net_egress_mb=2)
    ctx.used(accel_sec={"TPU v5e": 0.5})
    ctx.artifact(bytes(100_000), type="acme.blob")


@hocket.job("test.help")
async def help(ctx):
    await ctx.wait_for(asyncio.sleep(600), budget="help")


@hocket.job("test.fails")
def fails(ctx):
    raise ValueError("again")
"""
DOCUMENTED = """
budget:
  max_bu: 12
  phase_caps: { plan: 2, work: 4, review: 1 }
  wait_caps: { help: 2, io: 1 }
  hard_end: bar+3
  charge_to: acme
"""
CAPS = {
    "max_bu": 12,
    "phase_caps": {"plan": 2, "work": 4, "review": 1},
    "wait_caps": {"help": 2, "io": 1},
    "hard_end": 3,
    "charge_to": "acme",
}


@pytest.fixture
def home(hocket: Program, tmp_path: Path) -> Program:
    (tmp_path / "budgeted.py").write_text(HANDLERS)
    return hocket


def conduct(home: Program, tempo: str = TEMPO, **rates: Any) -> None:
    (home.home / "tempo.yaml").write_text(tempo)
    (home.home / "rates.yaml").write_text(json.dumps(RATES | rates))


def work(home: Program, *options: object) -> None:
    home("work", "budgeted.py", "--until-idle", *options, code=0)


def failed(home: Program, job_id: str) -> str:
    shown = home.show(job_id)
    assert shown["outcome"] == "failed"
    return str(shown["error"])


def used(home: Program, job_id: str) -> dict[str, Any]:
    """What a job used, after its cost was computed a second time."""
    row = home("cost", job_id, "--json", code=0).json
    usage: dict[str, Any] = row["usage"]
    by_hand = usage["beats"] * 1.0 + usage["cpu_sec"] * 2 + usage["mem_gbs"] * 0.5 + usage["disk_io_mb"] * 0.125
    by_hand += usage["net_egress_mb"] * 4 + usage["storage_gbh"] * 1e6
    by_hand += sum(RATES["rate_gpu_sec"][name] * s for name, s in usage["gpu_sec"].items())  # type: ignore[index]
    by_hand += sum(RATES["rate_gpu_sec"][name] * s for name, s in usage["accel_sec"].items())  # type: ignore[index]
    assert row["cost"] == pytest.approx(by_hand)
    return usage


@pytest.mark.req("BB-14", "BB-20")
def test_one_bu_is_one_beat_of_the_cluster(home: Program) -> None:
    conduct(home)
    handler = home.submit("test.wait", '{"seconds": 0.6}')
    work(home)
    command = home("run", "--json", "--", "sleep", "0.6", code=0).json["job_id"]
    home("work", "--until-idle", code=0)
    for job_id in (handler, command):
        assert used(home, job_id)["beats"] >= 3, "of the cluster, not of the rate card"
    (home.home / "tempo.yaml").unlink()
    assert used(home, handler)["beats"] >= 3, "it stays what it was"
    alone = home.submit("test.wait", '{"seconds": 0.6}')
    work(home)
    assert used(home, alone)["beats"] == 1, "without a tempo the rate card's"


@pytest.mark.req("BB-14", "BB-20")
@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_a_cap_is_passed_by_one_beat_at_most(home: Program, options: tuple[str, ...]) -> None:
    conduct(home, TEMPO.replace("240", "20"))
    jobs = [home.submit(kind, '{"seconds": 60}', "--max-bu", 1) for kind in ("test.wait", "test.deaf")]
    work(home, *options)
    for job_id in jobs:
        assert failed(home, job_id).startswith("over its budget max_bu: ")
        assert used(home, job_id)["beats"] <= 2


@pytest.mark.req("BB-14", "BB-20")
def test_a_command_that_ignores_sigterm_passes_its_cap_by_one_beat_at_most(home: Program) -> None:
    conduct(home, TEMPO.replace("240", "20"))
    deaf = "trap '' TERM; while :; do sleep 0.1; done"
    job_id = home("run", "--detach", "--json", "--max-bu", 1, "--", "sh", "-c", deaf, code=0).json["job_id"]
    work(home)
    assert "over its budget max_bu: " in failed(home, job_id)
    assert used(home, job_id)["beats"] <= 2


@pytest.mark.req("BB-14", "BB-20")
def test_the_beats_of_all_tries_count(home: Program) -> None:
    conduct(home, TEMPO.replace("240", "20"))
    job_id = home.submit("test.fails", "--max-bu", 3, "--retries", 20, "--backoff", "10ms")
    work(home)
    assert failed(home, job_id).startswith("over its budget max_bu: ")
    assert used(home, job_id)["beats"] in (3, 4)


@pytest.mark.req("BB-14", "BB-20")
@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_what_handlers_use_is_metered(home: Program, options: tuple[str, ...]) -> None:
    conduct(home)
    burnt, stepped = (home.submit(kind, '{"seconds": 0.3}') for kind in ("test.burn", "test.steps"))
    using = home.submit("test.uses")
    work(home, *options)
    for job_id in (burnt, stepped):
        usage = used(home, job_id)
        assert 0.25 < usage["cpu_sec"] < 2 and usage["mem_gbs"] > 0
    usage = used(home, using)
    assert usage["gpu_sec"] == {"H200": 0.5} and usage["accel_sec"] == {"TPU v5e": 2.0}
    assert usage["net_egress_mb"] == 2 and usage["storage_gbh"] > 0
    later = used(home, using)["storage_gbh"]
    assert later > usage["storage_gbh"], "what is stored costs for as long as it is there"


@pytest.mark.req("BB-14", "BB-20")
@pytest.mark.parametrize("options", [(), ("--processes", "1")], ids=["threads", "processes"])
def test_a_handler_is_stopped_by_what_it_uses(home: Program, options: tuple[str, ...]) -> None:
    conduct(home, TEMPO.replace("240", "20"))
    long = '{"seconds": 60}'
    caps = {"per_beat.cpu_sec": ("--per-beat", "cpu_sec=0.1"), "max_cost": ("--max-cost", 1.5)}
    jobs = {name: home.submit("test.burn", long, *words) for name, words in caps.items()}
    work(home, *options)
    for name, job_id in jobs.items():
        assert failed(home, job_id).startswith(f"over its budget {name}: ")
    # A busy machine gives a handler little of its processor, but its second beat is not paid for.
    assert used(home, jobs["max_cost"])["beats"] <= 2


@pytest.mark.req("BB-14", "BB-21")
def test_a_budget_comes_from_options_a_batch_and_a_file(home: Program, tmp_path: Path) -> None:
    (tmp_path / "budget.yaml").write_text(DOCUMENTED)
    options = ("--max-bu", 12, "--phase-cap", "plan=2", "--phase-cap", "work=4", "--phase-cap", "review=1")
    options += ("--wait-cap", "help=2", "--wait-cap", "io=1", "--hard-end", "bar+3", "--charge-to", "acme")
    jobs = [home.submit("test.wait", *options), home.submit("test.wait", "--budget", "budget.yaml")]
    lines = [CAPS, CAPS | {"hard_end": "bar+3"}, {"budget": CAPS | {"hard_end": "bar+3"}}]
    batch = "\n".join(json.dumps({"kind": "test.wait", "payload": {}, "budget": each}) for each in lines)
    (tmp_path / "jobs.jsonl").write_text(batch)
    told = home("submit", "--batch", "jobs.jsonl", "--json", code=0).json
    jobs += [each["job_id"] for each in told["jobs"]] if isinstance(told, dict) else [each["job_id"] for each in told]
    assert [home.show(each)["options"]["budget"] for each in jobs] == [CAPS] * 5
    more = home.submit("test.wait", "--budget", "budget.yaml", "--max-bu", 99)
    assert home.show(more)["options"]["budget"] == CAPS | {"max_bu": 99}, "an option goes first"
    run = home("run", "--detach", "--json", "--budget", "budget.yaml", "--", "true", code=0).json["job_id"]
    assert home.show(run)["options"]["budget"] == CAPS
    for bad in (("--hard-end", "3"), ("--phase-cap", "lunch=2"), ("--wait-cap", "help=x"), ("--budget", "none.yaml")):
        assert home("submit", "test.wait", *bad, code=2).err
    (tmp_path / "bad.yaml").write_text("budget: {max_bu: 0}\n")
    assert "bad budget in bad.yaml" in home("submit", "test.wait", "--budget", "bad.yaml", code=2).sentence


@pytest.mark.req("BB-14", "BB-21")
def test_the_error_names_the_cap(home: Program) -> None:
    conduct(home)
    seconds = '{"seconds": 60}'
    jobs = {
        "phase_caps": home.submit("test.wait", seconds, "--phase-cap", "work=2"),
        "hard_end": home.submit("test.wait", seconds, "--hard-end", "bar+1"),
        "wait_caps.help": home.submit("test.help", "--phase-cap", "work=6", "--wait-cap", "help=1"),
        "max_bu": home.submit("test.wait", seconds, "--max-bu", 2),
    }
    work(home)
    for name, job_id in jobs.items():
        assert failed(home, job_id).startswith(f"over its budget {name}: ")
