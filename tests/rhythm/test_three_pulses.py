"""Three pulses whose leader is killed and paused again and again: over NATS, over a coordinator and over the store of
one machine.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import hocket
from hocket.kernel.beats.frame_judge import FrameRefusal
from hocket.node.variables import BUS
from tests.bus.nats_server import NatsServer
from tests.rhythm.pulses import Agent, Pulses, three_pulses
from tests.scenarios.machines import Machine, machines

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


def check(agent: Agent, pulses: Pulses) -> None:
    agent.check()
    assert pulses.kills and pulses.pauses
    assert agent.accepted[-1].fence > agent.accepted[0].fence
    assert {*agent.refused} <= {FrameRefusal.DEPOSED, FrameRefusal.FROM_THE_PAST, FrameRefusal.LEADERLESS}


@pytest.mark.req("BB-03")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("beats", BEATS)
def test_over_one_machines_store(one: Machine, policy: Path, beats: int) -> None:
    check(*listen(one, [one] * 3, policy, beats))


@pytest.mark.req("BB-03")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("beats", BEATS)
def test_over_nats(one: Machine, policy: Path, beats: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NatsServer(tmp_path) as server:
        one.environment[BUS] = server.url
        monkeypatch.setenv(BUS, server.url)
        check(*listen(one, [one] * 3, policy, beats))


@pytest.mark.req("BB-03")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("beats", BEATS)
def test_over_a_coordinator(policy: Path, beats: int, tmp_path: Path) -> None:
    with machines(tmp_path / "mesh", "owner", "a", "b", "c") as (owner, *homes):
        owner("init")
        owner.serve()
        for each in homes:
            each("join", owner.invite(each.name, "lock:acquire:pulse:"))
        check(*listen(owner, homes, policy, beats))
