"""The HTTP API of a node that is not the coordinator: what the coordinator decides, and what happens without it."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from hocket.api import Service, programs
from hocket.server.api import Api
from tests.mesh.world import Place, run


@pytest.mark.touches("VX-03", "VX-10", "VX-12")
def test_a_program_uses_either_node_of_a_mesh_and_is_told_when_the_coordinator_is_away(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address, a.id)
        assert (await b.exchanges.visit(a.address)).state == "ok"
        apis = [Api(place.node) for place in (a, b)]
        for place, api in zip((a, b), apis, strict=True):
            assert place.server is not None
            port = place.server.port
            await place.stop_serving()
            await place.serve(port=port, api=api)
        heads = [
            {"Authorization": f"Bearer {programs.create(Service(place.runtime), name, ['all']).token}"}
            for place, name in ((a, "editor"), (b, "tester"))
        ]
        async with aiohttp.ClientSession() as session:

            async def ask(index: int, method: str, path: str, body: object = None) -> tuple[int, dict[str, object]]:
                address = (a, b)[index].address
                async with session.request(method, address + path, json=body, headers=heads[index]) as reply:
                    return reply.status, await reply.json() if reply.status != 204 else {}

            status, lock = await ask(1, "POST", "/v1/locks", {"keys": ["shared"], "ttl_ms": 60_000})
            assert status == 201 and lock["agent"] == "tester", lock
            status, refused = await ask(0, "POST", "/v1/locks", {"keys": ["shared"]})
            assert status == 409 and "held by tester" in str(refused["message"])
            assert (await ask(1, "POST", "/v1/locks/shared/release", {"fence": lock["fence"]}))[0] == 204
            assert (await ask(0, "POST", "/v1/locks", {"keys": ["shared"]}))[0] == 201
            assert (await ask(1, "PUT", "/v1/rows/memories/x", {"value": 1}))[0] == 200
            assert (await ask(0, "GET", "/v1/rows/memories/x"))[1]["value"] == 1

            await a.stop_serving()
            status, away = await ask(1, "POST", "/v1/locks", {"keys": ["other"]})
            assert (status, away["error"]) == (503, "unreachable") and "no lock was taken" in str(away["message"])
            assert (await ask(1, "GET", "/v1/rows/memories/x"))[1]["value"] == 1
        for api in apis:
            await asyncio.to_thread(api.close)

    run(tmp_path, test)
