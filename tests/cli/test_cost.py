"""Costs and budgets: real commands, real workers, the program as people use it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket as library
from hocket.errors import OverBudget
from hocket.events import Event
from hocket.events.jobs import RunFailed, RunFinished
from hocket.work.handlers import JobType
from tests.cli.conftest import Program, until
from tests.mesh.test_commands import program as program
from tests.mesh.test_run_elsewhere import joined
from tests.scenarios.machines import machines

BEAT_MS = 100
RATES = {
    "currency": "EUR",
    "beat_ms": BEAT_MS,
    "role_rate_bu": {"default": 0.25, "test.": 0.5},
    "rate_gpu_sec": {},
    "rate_cpu_sec": 2.0,
    "rate_mem_gbs": 0.5,
    "rate_io_mb": 0.125,
    "rate_egress_mb": 1.0,
    "rate_storage_gbh": 1.0,
}
BUSY = ("--", "sh", "-c", "while :; do :; done")


def price(home: Path, **changed: Any) -> None:
    (home / "rates.yaml").write_text(json.dumps(RATES | changed))


def proven(hocket: Program, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = hocket("proof", "show", job_id, "--json", code=0).json
    assert shown["signatures_good"]
    return shown


def by_hand(used: dict[str, Any], rate_bu: float = 0.25) -> float:
    """The formula, written down a second time."""
    beats = -(-used["wall_s"] * 1000 // BEAT_MS)
    disk_mb = (used["disk_read_bytes"] + used["disk_written_bytes"]) / 1e6
    return float(
        beats * rate_bu
        + used["cpu_s"] * 2.0
        + used["memory_gb_s"] * 0.5
        + disk_mb * 0.125
        + (used["network_bytes"] or 0) / 1e6
    )


def run(hocket: Program, *words: object, code: int | None = 0) -> str:
    """Runs a command and returns its job."""
    told = hocket("run", "--json", *words, code=code).json
    return str(told["job_id"])


@pytest.mark.touches("BB-14")
def test_a_command_that_passes_its_cap_ends_soon_after_it_and_its_proof_says_what_it_cost(hocket: Program):
    price(hocket.home)
    ended = hocket("run", "--max-cost", 1.5, "--timeout", "60s", *BUSY, code=None)
    assert ended.code == 143 and ended.sentence.startswith("sh: over its budget max_cost: it has cost")
    (row,) = hocket("jobs", "--json", code=0).json
    assert row["outcome"] == "failed"
    proof = proven(hocket, row["job_id"])
    charge = proof["charge"]
    assert charge["over"].startswith("over its budget max_cost: it has cost") and charge["currency"] == "EUR"
    assert charge["cost"] == pytest.approx(by_hand(proof["resources"]))
    # It was told to stop when it had passed its cap; the rest is what it used until it was gone.
    assert 1.5 < charge["cost"] < 15
    assert hocket("cost", row["job_id"], "--json", code=0).json["cost"] == pytest.approx(charge["cost"])
    hocket("proof", "verify", row["job_id"], code=0)


@pytest.mark.touches("BB-14")
def test_a_cap_for_one_beat_stops_a_command(hocket: Program):
    price(hocket.home, beat_ms=60_000)
    ended = hocket("run", "--per-beat", "cpu_sec=0.2", "--timeout", "60s", *BUSY, code=None)
    assert "over its budget per_beat.cpu_sec: it has used 0." in ended.sentence
    ended = hocket("run", "--max-bu", 1, "--", "sh", "-c", "exit 0", code=0)
    assert ended.err == ""


@pytest.mark.touches("BB-14")
def test_the_cap_holds_for_all_runs_of_a_job(hocket: Program):
    price(hocket.home)
    # A run is stopped at the cap, or ends just beyond it and there is no other.
    told = run(hocket, "--max-bu", 4, "--retries", 9, "--", "sh", "-c", "sleep 0.25; exit 1", code=None)
    shown = hocket.show(told)
    assert shown["outcome"] == "failed" and shown["attempts"] <= 3
    assert "over its budget max_bu: it has used" in shown["error"]


@pytest.mark.touches("BB-14")
def test_sums_by_kind_node_and_account_agree_with_the_metering(program: Callable[[str], Program]):
    first, second = joined(program, "second")
    price(first.home)
    jobs = [
        run(first, "--charge-to", "acme", "--on", "first", "--", "sh", "-c", "head -c 3000000 /dev/zero | wc -c"),
        run(first, "--charge-to", "acme", "--on", "first", "--", "sh", "-c", "exit 3", code=3),
        run(first, "--charge-to", "beta", "--on", "second", "--", "sh", "-c", "sleep 0.2"),
        run(first, "--on", "second", "--", "sh", "-c", "true"),
    ]
    proofs = [proven(first, each) for each in jobs]
    expected = [by_hand(each["resources"]) for each in proofs]
    here = first("whoami", "--json", code=0).json["node"]
    there = second("whoami", "--json", code=0).json["node"]
    assert [each["node"] for each in proofs] == [here, here, there, there]

    def sums(by: str) -> dict[str | None, float]:
        shown = first("cost", "--by", by, "--json", code=0).json
        assert shown["total"]["cost"] == pytest.approx(sum(expected)) and shown["total"]["runs"] == 4
        cpu_s = sum(each["resources"]["cpu_s"] for each in proofs)
        assert sum(row["usage"]["cpu_sec"] for row in shown["rows"]) == pytest.approx(cpu_s)
        return {row["name"]: row["cost"] for row in shown["rows"]}

    assert sums("kind") == pytest.approx({"hocket.run": sum(expected)})
    assert sums("node") == pytest.approx({here: sum(expected[:2]), there: sum(expected[2:])})
    found = sums("account")
    assert found.pop(None) == pytest.approx(expected[3])
    assert found == pytest.approx({"acme": sum(expected[:2]), "beta": expected[2]})


@pytest.mark.touches("BB-14")
def test_a_handler_is_charged_for_its_beats_and_stopped_at_its_cap(hocket: Program, tmp_path: Path):
    price(hocket.home)
    good = hocket.submit("test.echo", '{"n": 1}', "--charge-to", "acme")
    began = tmp_path / "began"
    slow = hocket.submit("test.slow", json.dumps({"began": str(began)}), "--max-cost", 2, "--retries", 5)
    hocket("work", "tasks.py", "--until-idle", code=0)
    shown = hocket.show(slow)
    assert (shown["outcome"], shown["attempts"]) == ("failed", 1)
    assert shown["error"].startswith("over its budget max_cost: it ")
    for job, beats in ((good, 1), (slow, 4)):
        row = hocket("cost", job, "--json", code=0).json
        used = row["usage"]
        assert used["beats"] >= beats
        by_hand = used["beats"] * 0.5 + used["cpu_sec"] * 2 + used["mem_gbs"] * 0.5 + used["disk_io_mb"] * 0.125
        assert row["cost"] == pytest.approx(by_hand + used["storage_gbh"])


def test_a_worker_without_a_rate_card_leaves_jobs_that_are_capped_by_price(hocket: Program):
    job = hocket.submit("test.echo", '{"n": 1}', "--max-cost", 2)
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job)["state"] == "pending" and hocket.show(job)["options"]["needs"] == ["rates"]
    price(hocket.home)
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job)["outcome"] == "succeeded"


@pytest.mark.touches("BB-14")
def test_a_job_that_history_says_is_too_dear_is_refused(hocket: Program):
    price(hocket.home)
    hocket("run", "--max-cost", 0.001, "--", "sh", "-c", "exit 0", code=None)  # no history, so it may try
    for _ in range(3):
        run(hocket, "--", "sh", "-c", "sleep 0.15")
    expected = hocket("cost", "--estimate", "hocket.run sh", "--json", code=0).json
    assert expected["jobs"] >= 3 and 0.5 <= expected["median"] <= expected["p90"]
    count = len(hocket("jobs", "--json", code=0).json)
    refused = hocket("run", "--max-cost", 0.4, "--", "sh", "-c", "true", code=1).sentence
    assert refused.startswith("a job of hocket.run is expected to cost") and refused.endswith("nothing was submitted")
    hocket("run", "--max-cost", 0.4, "--", "true", code=0)  # another program
    assert len(hocket("jobs", "--json", code=0).json) == count + 1
    # A worker's local server refuses it, too.
    hocket.start("work")
    until(lambda: hocket("status", "--json", code=0).json["workers"], "the worker")
    assert hocket("run", "--max-cost", 0.4, "--", "sh", "-c", "true", code=1).sentence == refused
    with library.open(hocket.home) as node:
        with pytest.raises(OverBudget):
            node.submit(library.command("sh", "-c", "true", budget={"max_cost": 0.4}))
        assert node.estimate("hocket.run") is not None
        assert node.costs("account").rows[0].name is None
        assert node.cost(hocket("jobs", "--json", code=0).json[0]["job_id"]).runs == 1


def test_the_events_of_a_worker_say_what_its_runs_cost(hocket: Program):
    price(hocket.home)
    told: list[Event] = []
    with library.open(hocket.home) as node:
        plain = node.submit("test.plain").job_id
        command = node.submit(library.command("sh", "-c", "exit 0")).job_id
        failed = node.submit(library.command("sh", "-c", "exit 3")).job_id
        handler = JobType("test.plain", function=lambda: 1)
        node.work([handler], allow_any=True, until_idle=True, events=told.append)
        expected = {each: node.cost(each).cost for each in (plain, command, failed)}
    found = {each.job_id: each.cost for each in told if isinstance(each, RunFinished | RunFailed)}
    assert found == pytest.approx(expected, abs=1e-6) and found[plain] >= 0.5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("cost",), "this node has no rate card; write"),
        (("cost", "--by", "moon"), "bad --by 'moon'; it is kind, node or account"),
        (("cost", "01J", "--by", "kind"), "give a job, --by or --estimate"),
        (("cost", "--rates", "none.yaml"), "no rate card at none.yaml"),
        (("submit", "test.echo", "--max-cost", "0"), "bad budget"),
        (("submit", "test.echo", "--max-bu", "-3"), "bad budget"),
        (("run", "--per-beat", "cpu_sec", "--", "true"), "bad --per-beat 'cpu_sec'; write it like cpu_sec=8"),
        (("run", "--per-beat", "fun=3", "--", "true"), "bad budget"),
    ],
)
def test_what_is_wrong_is_named(hocket: Program, words: tuple[str, ...], says: str):
    assert hocket(*words, code=2).sentence.startswith(says)


@pytest.mark.touches("BB-14")
def test_a_rate_card_may_name_some_rates_and_what_it_does_not_price_is_told(hocket: Program):
    card = {name: RATES[name] for name in ("currency", "beat_ms", "rate_cpu_sec")}
    (hocket.home / "rates.yaml").write_text(json.dumps(card))
    job_id = hocket("submit", "test.echo", "--json", code=0).json["job_id"]
    hocket("work", "tasks.py", "--until-idle", code=0)
    shown = hocket("cost", job_id, "--json", code=0).json
    amounts = {"role_rate_bu": "beats", "rate_mem_gbs": "mem_gbs", "rate_io_mb": "disk_io_mb"}
    amounts |= {"rate_egress_mb": "net_egress_mb", "rate_storage_gbh": "storage_gbh"}
    skipped = [rate for rate, amount in amounts.items() if shown["usage"][amount]]
    assert shown["skipped_rates"] == skipped and {"role_rate_bu", "rate_mem_gbs"} <= set(skipped)
    assert shown["cost"] == pytest.approx(shown["usage"]["cpu_sec"] * RATES["rate_cpu_sec"])
    told = f"not in the cost, because the rate card does not name it: {', '.join(skipped)}\n"
    assert told in hocket("cost", job_id, code=0).err
    (hocket.home / "rates.yaml").write_text(json.dumps({"currency": "EUR"}))
    assert "rates.yaml: it names no rate; there are role_rate_bu," in hocket("cost", code=2).sentence


@pytest.mark.touches("BB-14")
def test_a_machine_with_a_gpu_that_the_card_does_not_price_runs_commands_and_says_so(hocket: Program, tmp_path: Path):
    """The library of the driver is a module that every process imports."""
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "nvmlInit = lambda: None\n"
        "nvmlDeviceGetCount = lambda: 1\n"
        "nvmlDeviceGetHandleByIndex = lambda index: index\n"
        "nvmlDeviceGetName = lambda handle: 'NVIDIA H200'\n"
        "nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses = lambda handle: []\n"
    )
    price(hocket.home)
    told = hocket.environment().get("PYTHONPATH", "")
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(driver), told]))}
    assert hocket("run", "--", "true", environment=environment).code == 0
    worked = hocket("work", "tasks.py", "--until-idle", environment=environment, code=0)
    assert "the rate card has no rate_gpu_sec for this machine's NVIDIA H200" in worked.err
    assert hocket("cost", "--by", "kind", "--json", code=0).json["total"]["unpriced"] == 0


@pytest.mark.req("LW-49")
@pytest.mark.touches("BB-14")
def test_a_node_charges_only_accounts_that_it_was_granted_and_its_own(tmp_path: Path):
    with machines(tmp_path, "owner", "member") as (owner, member):
        owner("init")
        owner.serve()
        member("join", owner.invite("member", "job:schedule", "account:charge:team-a/"))
        submit = ("submit", "acme.draw", "{}", "--charge-to")
        refused = member(*submit, "team-b", code=4)
        assert "may not charge the account 'team-b'" in refused.err and "--may account:charge:team-b" in refused.err
        assert member(*submit, "team-a/", code=0).out and member("jobs", "--json").json
        own = member("whoami", "--json").json["node"]
        member(*submit, own, code=0)
        owner(*submit, "team-b", code=0)
