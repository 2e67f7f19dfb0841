"""Three pulses whose leader is killed and paused again and again: over NATS, over a coordinator and over the store of
one machine. And a reverb that hears other nodes over NATS.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.extensions.tempo.frame_judge import FrameRefusal
from hocket.node.variables import BUS
from tests.bus.nats_server import NatsServer
from tests.extensions.tempo.pulses import Agent, Pulses, three_pulses
from tests.scenarios.machines import Machine, machines, until

PULSE = ("lock:acquire:pulse:",)
BEATS = [15, pytest.param(200, marks=pytest.mark.soak)]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "tempo.yaml"
    path.write_text("cluster_id: one\ninitial_bpm: 75\nbar_len_beats: 4\n")
    return path


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Machine]:
    with machines(tmp_path, "one") as (machine,):
        machine("init")
        yield machine


def listen(machine: Machine, homes: list[Machine], policy: Path, beats: int) -> tuple[Agent, Pulses]:
    async def run() -> tuple[Agent, Pulses]:
        async with hocket.open(machine.home) as node:
            return await three_pulses(node, homes, policy, beats)

    return asyncio.run(run())


@contextmanager
def nodes_on_nats(
    directory: Path, monkeypatch: pytest.MonkeyPatch, grants: dict[str, tuple[str, ...]]
) -> Iterator[list[Machine]]:
    """The owner's machine and machines that have joined it, each with a home of its own, whose bus is a NATS server."""
    with NatsServer(directory) as server, machines(directory / "mesh", "owner", *grants) as found:
        monkeypatch.setenv(BUS, server.url)
        owner, *others = found
        for each in found:
            each.environment[BUS] = server.url
        owner("init")
        owner.serve()
        for each in others:
            each("join", owner.invite(each.name, *grants[each.name]))
        for each in others:
            each("sync")
        yield found


def check(agent: Agent, pulses: Pulses) -> None:
    agent.check()
    assert pulses.kills and pulses.pauses
    assert agent.accepted[-1].fence > agent.accepted[0].fence
    late = {FrameRefusal.DEPOSED, FrameRefusal.FROM_THE_PAST, FrameRefusal.UNCONFIRMED}
    assert {*agent.refused} <= late | {FrameRefusal.LEADERLESS}


@pytest.mark.slow
@pytest.mark.req("BB-03")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("beats", BEATS)
def test_over_one_machines_store(one: Machine, policy: Path, beats: int) -> None:
    check(*listen(one, [one] * 3, policy, beats))


@pytest.mark.slow
@pytest.mark.req("BB-03")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("beats", BEATS)
def test_over_nats(policy: Path, beats: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with nodes_on_nats(tmp_path, monkeypatch, dict.fromkeys("abc", PULSE)) as (owner, *homes):
        check(*listen(owner, homes, policy, beats))


@pytest.mark.req("BB-06", "BB-15")
def test_a_reverb_reports_what_other_nodes_say_on_nats(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = ("job:claim:acme.", "job:complete:acme.")
    with nodes_on_nats(tmp_path, monkeypatch, {"a": ("artifact:write",), "b": worker}) as (owner, a, b):
        for each in (owner, a, b):
            (each.home / "tempo.yaml").write_text(policy.read_text())
        owner.start("pulse").says("this pulse leads one")
        a.start("reverb", "-v").says("reports the bars of cluster one")
        b.work()
        job_id = owner.submit("acme.draw", "{}")
        until(lambda: owner.is_done(job_id), "the job")

        def reported() -> list[dict[str, Any]]:
            shown = a("report", "--json", code=None)
            windows: list[dict[str, Any]] = shown.json["windows"] if shown.code == 0 else []
            return [each for each in windows if each["states"]["done"]]

        (window,) = until(reported, "a report of the job")
        assert (window["tempo_bpm"], window["bar_len_beats"]) == (75, 4)
        assert (window["tasks"], window["agents"]) == (1, 1)
        until(lambda: any(each["nodes"] == 1 for each in a("report", "--json").json["windows"]), "the node's load")


@pytest.mark.slow
@pytest.mark.req("BB-03")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("beats", BEATS)
def test_over_a_coordinator(policy: Path, beats: int, tmp_path: Path) -> None:
    with machines(tmp_path / "mesh", "owner", "a", "b", "c") as (owner, *homes):
        owner("init")
        owner.serve()
        for each in homes:
            each("join", owner.invite(each.name, *PULSE))
        check(*listen(owner, homes, policy, beats))
