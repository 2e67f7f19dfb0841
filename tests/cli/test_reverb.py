"""`hocket tempo reverb` as a process, what it serves, and `hocket tempo report` about what it kept."""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket as library
from hocket.extensions.tempo.messages import ClaimState, NodeLoad, PromiseOutcome, PromiseResult, StatusClaim
from hocket.extensions.tempo.tempo_messages import TempoMessages
from hocket.kernel.clock import Hlc, hlc_text, parse_hlc
from hocket.kernel.ids import node_text
from tests.cli.conftest import Program, until
from tests.cli.test_cost import price
from tests.server.served import Served
from tests.server.test_metrics import samples

POLICY = {"cluster_id": "one", "initial_bpm": 240, "bar_len_beats": 4}
# One bar of an hour, which has begun a minute ago.
LONG = {"cluster_id": "one", "initial_bpm": 1, "bar_len_beats": 60, "anchor_ms": time.time_ns() // 10**6 - 60_000}


def say(home: Path, make: Callable[[str, str], list[Any]]) -> None:
    """Publishes messages of this home's node. `make` gets the node and the time as text."""

    async def publish() -> None:
        async with library.open(home) as node:
            messages = TempoMessages(await node.message_bus(), node.log.user)
            for message in make(node_text(node.log.node), hlc_text(Hlc(node.log.physical(), 0, 0))):
                await messages.publish(message, "acme")

    asyncio.run(publish())


def a_bar(node: str, now: str) -> list[Any]:
    return [
        StatusClaim("a", "t1", 1, ClaimState.DONE, 1, 1.0, "", now),
        StatusClaim("a", "t2", 1, ClaimState.WAITING, -1, 0.5, "", now),
        PromiseResult("thread", "b", PromiseOutcome.BROKEN, now),
        NodeLoad(node, 3, 1, 2, now),
    ]


@pytest.mark.req("BB-15", "BB-17")
def test_a_reverb_serves_its_metrics_and_keeps_its_reports(hocket: Program) -> None:
    (hocket.home / "tempo.yaml").write_text(json.dumps(POLICY))
    price(hocket.home)
    assert "`hocket tempo reverb` makes them" in hocket("report", code=2).sentence
    process = hocket.start("reverb", "--metrics", "0", "--json")
    assert process.stderr is not None
    lines = map(json.loads, iter(process.stderr.readline, ""))
    served = Served(hocket.home, next(each["address"] for each in lines if each["type"] == "MetricsServed"))
    assert next(each["cluster_id"] for each in lines if each["type"] == "ReverbStarted") == "one"
    until(lambda: served.ask("GET", "/readyz").status == 200)
    assert served.ask("GET", "/healthz").status == 200
    # A window in which nobody says anything raises an alarm.
    until(lambda: samples(served).value("hocket_alarm", alarm="no_status_claims") == 1)
    hocket("run", "true", code=0)
    say(hocket.home, a_bar)
    reports = until(lambda: (found := hocket("report", "--json")).code == 0 and found.json)
    (window,) = reports["windows"]
    assert (window["tasks"], window["states"]["done"], window["overruns"]) == (2, 1, 1)
    assert (window["queue_depth"], window["utilisation"], window["nodes"]) == (3, 0.5, 1)
    assert reports["currency"] == "EUR"
    figures = reports["kpis"]
    assert (figures["deliverables"], figures["tnt"], figures["bpd"]) == (1, 0.25, 2)
    assert (figures["wr"], figures["efficiency"], figures["pmr"]) == (0.5, 0.5, 1)
    raised = {each["alarm"] for each in reports["alarms"]}
    assert raised == {"promise_miss_rate", "overrun_rate"}
    shown = hocket("report", "--window", "3", code=0).out
    assert "waiting\t50 %" in shown and "alarm overrun_rate in window" in shown
    until(lambda: (samples(served).value("hocket_bar_reports_total") or 0) >= 2)
    process.send_signal(signal.SIGTERM)
    hocket.finished(process)


@pytest.mark.req("BB-15")
def test_costs_and_times_are_those_of_the_jobs_that_ended_in_the_window(hocket: Program) -> None:
    (hocket.home / "tempo.yaml").write_text(json.dumps(LONG))
    price(hocket.home)
    hocket("run", "true", code=0)
    cost = hocket("cost", "--by", "kind", "--json", code=0).json["total"]["cost"]
    keep_window(hocket.home)
    figures = hocket("report", "--json", code=0).json["kpis"]
    assert figures["cpd"] == pytest.approx(cost) and cost > 0
    assert figures["ttfu_ms"] >= 0


def keep_window(home: Path) -> None:
    """Puts a window with one task that is done on the log, as a reverb with the home's policy would."""
    from hocket.extensions.tempo.beats import timeline
    from hocket.extensions.tempo.policy import read_policy
    from hocket.extensions.tempo.reports import keep, packed_window
    from hocket.extensions.tempo.windows import BarWindows
    from hocket.node.runtime import Runtime

    policy = read_policy((home / "tempo.yaml").read_bytes())
    with Runtime.open(home) as runtime:
        now_ms = runtime.log.physical()
        windows = BarWindows(policy, timeline(policy.initial_tempo))
        windows.add(StatusClaim("a", "t", 1, ClaimState.DONE, 1, 1.0, "", hlc_text(Hlc(now_ms, 0, 0))), now_ms)
        (content,), (report,) = windows.contents(), windows.reports()
        packed = packed_window(runtime.blobs, report, content)
        assert runtime.log.run(lambda tx: keep(tx, runtime.blobs, packed))
        assert not runtime.log.run(lambda tx: keep(tx, runtime.blobs, packed)), "it is on the log already"


@pytest.mark.req("BB-16")
def test_a_window_is_played_again_by_the_beat(hocket: Program) -> None:
    (hocket.home / "tempo.yaml").write_text(json.dumps(LONG))
    job_id = hocket.submit("test.echo", "{}")
    hocket("send", "someone", "hello", code=0)
    hocket("artifacts", "put", "tasks.py", "--type", "note", code=0)
    keep_window(hocket.home)
    played = hocket("replay", "--json", code=0).json
    assert played["is_same"] and not played["is_cut"]
    report, lines = played["report"], played["lines"]
    assert all(each["window"] == report["window"] and 1 <= each["beat_index"] <= 60 for each in lines)
    stamps = [parse_hlc(each["hlc"], 0) for each in lines]
    assert stamps == sorted(stamps)
    types = {each["type"]: each for each in lines}
    assert types["ScheduleJob"]["about"] == job_id
    assert {"SendMessage", "CreateArtifact"} <= types.keys()
    assert (types["StatusClaim"]["who"], types["StatusClaim"]["about"]) == ("a", "t")
    within = report["window"].replace(".000Z", ".999Z")
    assert hocket("replay", "--window", within, "--json", code=0).json["report"] == report
    shown = hocket("replay", "--window", report["window"], code=0).out
    assert "what was kept of the window gives the report that is on the log" in shown
    (hocket.home / "tempo.yaml").write_text(json.dumps(POLICY | {"cluster_id": "two"}))
    assert not hocket("replay", "--json", code=0).json["is_same"]
    assert "bad --window 'yesterday'" in hocket("replay", "--window", "yesterday", code=2).sentence
    assert "there is no window at 2020" in hocket("replay", "--window", "2020-01-01T00:00:00.000Z", code=2).sentence
