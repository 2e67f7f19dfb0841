"""Blobs across the mesh, over real sockets: whoever may read an artifact gets its content, whole and right, or not at
all; whoever may not is told nothing.
"""

import asyncio
from pathlib import Path

import pytest

from hocket.errors import Unreachable
from hocket.families import artifacts
from hocket.kernel.ids import content_hash
from hocket.kernel.ucan import Capability
from hocket.mesh import output, wire
from hocket.work.run_outputs import contain
from tests.mesh.world import WORKER, Place, enrolled, world

LARGE = bytes(range(256)) * 1_000


def put(place: Place, data: bytes = LARGE) -> bytes:
    content = contain(place.runtime.blobs, data)
    place.log.run(lambda tx: artifacts.put(tx, place.runtime.blobs, "acme.bytes", content, None))
    return content_hash(data)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "BLOB_PART_BYTES", 100_000)


@pytest.mark.req("LW-29")
def test_a_blob_comes_part_by_part_to_who_may_read_it_and_to_nobody_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "owner") as (owner,):
            hash = put(owner)
            narrow = tuple(each for each in WORKER if each != Capability("Artifact", "Read", {}))
            for name, grants, may in (
                ("worker", WORKER, True),
                ("narrow", narrow, False),
                ("by-kind", (*narrow, Capability("Artifact", "Read", {"kind_prefix": ["acme."]})), False),
                ("cut", (*narrow, Capability("Artifact", "Read", {"sanitize": ["StripGeo"]})), False),
            ):
                place = await enrolled(tmp_path / name, owner, grants)
                try:
                    place.befriend(owner.address, owner.id)
                    if may:
                        assert await place.exchanges.fetch(hash, len(LARGE)) == LARGE
                    else:
                        with pytest.raises(Unreachable):
                            await place.exchanges.fetch(hash, len(LARGE))
                finally:
                    await place.close()

    asyncio.run(test())


def test_what_is_not_there_or_not_asked_for_properly(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            hash = put(a)
            b.befriend(a.address, a.id)
            assert (await b.exchanges.visit(a.address)).state == "ok"
            for query, status in (
                (f"hash={hash.hex()}", 200),
                (f"hash={hash.hex()}&from=999999999", 200),
                (f"hash={'00' * 32}", 404),
                ("", 400),
                ("hash=xyz", 400),
                (f"hash={hash.hex()}&from=-1", 400),
                (f"hash={hash.hex()}&from={'9' * 40}", 400),
            ):
                assert (await b.ask(a, path=wire.BLOBS, query=query)).status == status, query
            assert (await b.ask(a, path=wire.BLOBS, query=f"hash={hash.hex()}", headers={})).status == 401

    asyncio.run(test())


def test_what_is_damaged_on_the_way_is_not_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            hash = put(a)
            b.befriend(a.address, a.id)
            next((a.runtime.home.path / "blobs").rglob(hash.hex())).write_bytes(LARGE[:-1] + b"!")
            with pytest.raises(Unreachable):
                await b.exchanges.fetch(hash, len(LARGE))

    asyncio.run(test())
