"""The HTTP API of a node that is not the coordinator: what the coordinator decides, and what happens without it."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from hocket.api import Service, contents, programs
from hocket.server.api import Api
from tests.mesh.test_blobs import put
from tests.mesh.test_output import claimed, write
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


def test_a_program_reads_what_another_node_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Content and output are fetched over the connections of the server that is asked, on its own loop."""
    data = bytes(range(256)) * 1_000

    async def test(a: Place, b: Place) -> None:
        hash = put(a, data)
        job_id = claimed(a)
        write(a, job_id, "gedruckt: ä\n".encode())
        b.befriend(a.address, a.id)
        assert (await b.exchanges.visit(a.address)).state == "ok"
        api = Api(b.node)
        assert b.server is not None
        port = b.server.port
        await b.stop_serving()
        await b.serve(port=port, api=api)
        head = {"Authorization": f"Bearer {programs.create(Service(b.runtime), 'reader', ['all']).token}"}
        path = f"{b.address}/v1/contents/blake3:{hash.hex()}"
        async with aiohttp.ClientSession(headers=head) as session:
            logs = f"{b.address}/v1/jobs/{job_id}/logs"
            async with session.get(logs) as reply:
                pieces = [json.loads(line) for line in (await reply.text()).splitlines() if line]
                assert [(each["text"], each["fence"]) for each in pieces] == [("gedruckt: ä\n", 1)]
            assert not b.runtime.blobs.has(hash)
            with monkeypatch.context() as patch:
                for name, value, why in (("FETCHED_BYTES_MAX", 1_000, "too large"), ("FETCHES_MAX", 0, "come back")):
                    with patch.context() as narrow:
                        narrow.setattr(contents, name, value)
                        async with session.get(path) as reply:
                            assert reply.status == 503 and why in (await reply.json())["message"]
            async with session.get(path, headers={"Range": "bytes=255-256"}) as reply:
                assert (reply.status, await reply.read()) == (206, b"\xff\x00")
            assert b.runtime.blobs.has(hash), "it is kept here"
            await a.stop_serving()
            async with session.get(path) as reply:
                assert (reply.status, await reply.read()) == (200, data)
        await asyncio.to_thread(api.close)

    run(tmp_path, test)
