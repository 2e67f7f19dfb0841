"""The requests for output, over real sockets: who gets it, who may push it, and what is refused."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from hocket.bus.hints import OUTPUT, about
from hocket.families.jobs import claiming
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ucan import Capability
from hocket.mesh import wire
from hocket.mesh.output import (
    WANTED_MAX,
    WANTED_S,
    AskedOutput,
    OutputWishes,
    PushedOutput,
    decode_part,
    encode_part,
    read_query,
)
from hocket.work.output_files import HANDLER, OutputPart
from tests.mesh.world import WORKER, Place, enrolled, world

JOB = parse_ulid("01J9ZC3VJ5W6QX8Y2N4M7K9TAB")


def claimed(place: Place, kind: str = "test.kind") -> str:
    """A job that the place holds."""
    place.submit(1, kind)
    (claim,) = place.log.run(lambda tx: claiming.claim(tx, 0, 1, lambda kind: 60_000)).taken
    return ulid_text(claim.job.id)


def query(job_id: str, **changes: object) -> str:
    values = {"job": job_id, "stream": HANDLER, "fence": 0, "from": 0} | changes
    return "&".join(f"{name}={value}" for name, value in values.items())


def write(place: Place, job_id: str, data: bytes) -> None:
    file = place.runtime.output.file(job_id, 1, HANDLER)
    file.write(data)
    file.close()


def test_output_is_for_those_who_may_read_the_jobs_artifacts(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "owner") as (owner,):
            job_id = claimed(owner)
            write(owner, job_id, b"said\n")
            narrow = tuple(each for each in WORKER if each != Capability("Artifact", "Read", {}))
            for name, grants, may in (
                ("worker", WORKER, True),
                ("narrow", narrow, False),
                ("by-kind", (*narrow, Capability("Artifact", "Read", {"kind_prefix": ["test."]})), True),
                ("by-other-kind", (*narrow, Capability("Artifact", "Read", {"kind_prefix": ["acme."]})), False),
                ("cut", (*narrow, Capability("Artifact", "Read", {"sanitize": ["StripGeo"]})), False),
            ):
                place = await enrolled(tmp_path / name, owner, grants)
                try:
                    reply = await place.ask(owner, path=wire.OUTPUT, query=query(job_id))
                    assert (name, reply.status) == (name, 200 if may else 404)
                    if may:
                        assert decode_part(reply.body).part == OutputPart(1, 0, b"said\n", 5, True)
                finally:
                    await place.close()

    asyncio.run(test())


def test_what_is_not_there_or_not_asked_for_properly(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            job_id = claimed(a)
            b.befriend(a.address, a.id)
            assert (await b.exchanges.visit(a.address)).state == "ok"
            for asked, status in (
                (query(job_id), 200),
                (query(ulid_text(JOB)), 404),
                ("", 400),
                (query("xyz"), 400),
                (query(job_id, stream="../../etc"), 400),
                (query(job_id, fence=-1), 400),
                (query(job_id, **{"from": "9" * 40}), 400),
                (query(job_id, fence="x"), 400),
            ):
                assert (await b.ask(a, path=wire.OUTPUT, query=asked)).status == status, asked
            assert (await b.ask(a, path=wire.OUTPUT, query=query(job_id), headers={})).status == 401

    asyncio.run(test())


async def push(sender: Place, to: Place, job_id: str, part: OutputPart, **changes: object) -> tuple[int, bytes]:
    asked = query(job_id, **({"fence": part.fence, "from": part.start} | changes))
    reply = await sender.ask(to, "POST", wire.OUTPUT, asked, encode_part(part, False))
    return reply.status, reply.body


def test_only_the_holder_pushes_and_only_what_is_wanted(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b") as (a, b):
            a.submit(1)
            b.befriend(a.address, a.id)
            assert (await b.exchanges.visit(a.address)).state == "ok"
            (offer,) = b.log.run(lambda tx: claiming.claim(tx, 0, 1, lambda kind: 60_000, True)).wanted
            assert (await b.exchanges.visit(a.address)).state == "ok"
            job_id = ulid_text(offer.offer.job_id)
            part = OutputPart(1, 0, b"said\n", 5, False)
            status, body = await push(b, a, job_id, part)
            assert (status, msgspec.json.decode(body, type=PushedOutput).wanted) == (200, False)
            assert a.runtime.output.read(job_id, HANDLER, 0, 0, 100) is None

            a.gate._hint_streams.wishes.note([parse_ulid(job_id)])
            assert (await push(b, a, job_id, part._replace(fence=2)))[0] == 404
            assert (await push(b, a, job_id, part, fence=0))[0] == 404
            assert (await push(b, a, job_id, part, stream="other"))[0] == 400
            assert (await b.ask(a, "POST", wire.OUTPUT, query(job_id), b"short")).status == 400
            assert a.runtime.output.read(job_id, HANDLER, 0, 0, 100) is None

            status, body = await push(b, a, job_id, part)
            assert (status, msgspec.json.decode(body)) == (200, {"have": 5, "wanted": True})
            assert a.runtime.output.read(job_id, HANDLER, 0, 0, 100) == part

            mine = claimed(a)
            a.gate._hint_streams.wishes.note([parse_ulid(mine)])
            assert (await push(b, a, mine, part))[0] == 404, "another node holds this one"

    asyncio.run(test())


def test_a_wish_ends_by_itself_and_there_are_not_too_many() -> None:
    now = 100.0
    wishes = OutputWishes(lambda: now)
    wishes.note([JOB])
    assert wishes.has(JOB) and not wishes.has(bytes(16))
    now += WANTED_S
    assert not wishes.has(JOB)
    wishes.note([number.to_bytes(16, "big") for number in range(WANTED_MAX + 1)])
    assert not wishes.has(bytes(16)) and wishes.has((1).to_bytes(16, "big"))


def test_a_wish_goes_only_to_the_node_that_has_the_job(tmp_path: Path) -> None:
    async def test() -> None:
        async with world(tmp_path, "a", "b", "c") as (a, b, c):
            a.submit(1)
            for place in (b, c):
                place.befriend(a.address, a.id)
                assert (await place.exchanges.visit(a.address)).state == "ok"
            (offer,) = b.log.run(lambda tx: claiming.claim(tx, 0, 1, lambda kind: 60_000, True)).wanted
            job_id = offer.offer.job_id
            assert (await b.exchanges.visit(a.address)).state == "ok"
            heard: dict[str, set[tuple[str, bytes]]] = {"b": set(), "c": set()}
            is_up = {"b": asyncio.Event(), "c": asyncio.Event()}
            asked = asyncio.Event()

            async def listen(name: str, place: Place) -> None:
                headers = await place.exchanges.hint_headers(a.address)
                async for changes in place.transport.hints(a.address, headers):
                    is_up[name].set()
                    heard[name] |= changes.subjects
                    if (OUTPUT, job_id) in changes.subjects:
                        asked.set()

            listeners = [asyncio.create_task(listen(name, place)) for name, place in (("b", b), ("c", c))]
            async with asyncio.timeout(20):
                for up in is_up.values():
                    await up.wait()
                while not asked.is_set():
                    # A hint can be lost before the watch has begun.
                    a.runtime.bus.publish(about(OUTPUT, job_id))
                    await asyncio.sleep(0.05)
            assert (OUTPUT, job_id) not in heard["c"]
            for listener in listeners:
                listener.cancel()
            await asyncio.wait(listeners)

    asyncio.run(test())


@pytest.mark.parametrize("start", [0, 7, 2**40])
def test_a_query_is_read_as_it_was_written(start: int) -> None:
    asked = AskedOutput(JOB, HANDLER, 3, start)
    assert read_query(asked.query()) == asked
