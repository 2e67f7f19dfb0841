"""The bus of a simulated mesh: lost, repeated and cut off as its network says, and the same for the same seed."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from hocket.extensions.sim.loop import Life
from hocket.extensions.sim.loop import run as run_virtually
from hocket.extensions.sim.network import Network, SimMessageServer

pytestmark = pytest.mark.touches("GR-05")

T = TypeVar("T")
SECOND = 1.0


def virtually(work: Coroutine[Any, Any, T]) -> T:
    return run_virtually(work)


async def heard(seed: int, loss: float = 0.0, duplicate: float = 0.0, jitter_s: float = 0.0) -> list[int]:
    chance = random.Random(seed)
    network = Network(chance, lambda node: Life())
    network.weather.loss, network.weather.duplicate, network.weather.jitter_s = loss, duplicate, jitter_s
    server = SimMessageServer(network, honest=2)
    here, there = (server.open(node, chance.randbytes) for node in range(2))
    queue = await there.subscribe("t.*")
    for number in range(200):
        await here.publish("t.k", b"%d" % number)
        await asyncio.sleep(0.001)
    got = []
    while (message := await queue.get(SECOND)) is not None:
        got.append(int(message.data))
    return got


def test_a_calm_network_loses_nothing_and_a_bad_one_does_all_three() -> None:
    assert sorted(virtually(heard(1))) == list(range(200))
    got = virtually(heard(1, loss=0.5, duplicate=0.3, jitter_s=0.2))
    assert 60 < len(set(got)) < 140 and len(got) > len(set(got)) and got != sorted(got)
    assert got == virtually(heard(1, loss=0.5, duplicate=0.3, jitter_s=0.2)) != virtually(heard(2, 0.5, 0.3, 0.2))


def test_halves_that_are_cut_off_hear_each_other_again_and_a_node_that_is_down_hears_nothing() -> None:
    async def test() -> None:
        down: set[int] = set()
        network = Network(random.Random(1), lambda node: None if node in down else Life())
        server = SimMessageServer(network, honest=3)
        buses = [server.open(node, random.Random(node).randbytes) for node in range(3)]
        queues = [await bus.subscribe("t.k") for bus in buses]

        async def heard_by() -> list[bool]:
            await buses[0].publish("t.k", b"x")
            return [await queue.get(SECOND) is not None for queue in queues]

        assert await heard_by() == [True, True, True]
        network.weather.groups = {2: 1}
        assert await heard_by() == [True, True, False]
        network.weather.groups = {}
        down.add(1)
        assert await heard_by() == [True, False, True]
        await buses[2].close()
        assert await heard_by() == [True, False, False]

    virtually(test())
