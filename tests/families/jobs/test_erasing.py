"""Content of jobs beside the log, and its erasure: what a worker gets, who may erase, what remains, and what a late
copy or a late worker gets.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing
from hocket.errors import Conflict, Failed, Unreachable, Usage
from hocket.families import artifacts, erasing
from hocket.families.jobs import apart, view
from hocket.families.jobs.drafts import draft
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash, parse_ulid, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import JOB, EraseContent, ScheduleJob, Subject
from hocket.node.node import Node
from hocket.testing import MemorySyncNode
from hocket.work.run_outputs import contain
from tests.log.roster import world
from tests.log.roster.world import job_id
from tests.log.test_eviction import PHONE, PHONE_NODE, Two
from tests.log.test_permissions import WORKER, WORKER_NODE, token
from tests.mesh.world import WORKER as MESH_WORKER
from tests.mesh.world import enrolled
from tests.mesh.world import world as mesh_world
from tests.work.test_containment import kept_up, until

WHY = "asked for by the person it is about"
ANN = {"who": "ann", "story": "x" * 100}


@pytest.fixture
def node() -> Iterator[MemorySyncNode]:
    with hocket.testing.node() as made:
        yield made


@hocket.job("acme.scan", content_apart=0)
def scan(ctx: hocket.Context, **payload: object) -> dict[str, object]:
    return payload


def blobs(node: MemorySyncNode) -> int:
    return sum(1 for _ in node.runtime.blobs.all())


def shown(node: MemorySyncNode, id: str) -> dict[str, Any]:
    return node.runtime.show(id)


def test_the_log_has_a_salted_hash_and_the_handler_the_payload(node: MemorySyncNode) -> None:
    one, other = node.submit(scan, **ANN), node.submit(scan, **ANN)
    node.work([scan], until_idle=True)
    hashes = set()
    with node.runtime.read() as session:
        for handle in (one, other):
            entry = view.find(session, handle.job_id)
            (row,) = (
                row
                for row in session.ops_about(Subject(JOB, parse_ulid(handle.job_id)))
                if row.id == entry.job.schedule_op
            )
            assert b"ann" not in row.signed_body
            schedule = decode(row.body).payload
            assert isinstance(schedule, ScheduleJob) and schedule.payload == b"" and entry.job.policy.content
            hashes.add(entry.job.policy.content.hash)
        assert not any(b"ann" in row.body for row in session.stored_entries(0, 1_000))
    assert len(hashes) == 2 and blobs(node) == 4
    assert shown(node, one.job_id)["payload"] == shown(node, one.job_id)["result"] == ANN
    assert shown(node, one.job_id)["erased"] is None
    assert one.result() == ANN
    assert node.gather(one, other) == [ANN, ANN]


def test_a_job_gets_the_results_that_are_apart(node: MemorySyncNode) -> None:
    seen: list[object] = []

    @hocket.job("acme.read")
    def read(ctx: hocket.Context) -> None:
        seen.extend([*ctx.results, *ctx.results_of(scan)])

    node.submit(scan, **ANN).then(read)
    node.work([scan, read], until_idle=True)
    assert seen == [ANN, ANN]


def test_the_result_of_an_erased_job_is_gone(node: MemorySyncNode) -> None:
    handle = node.submit(scan, **ANN)
    node.work([scan], until_idle=True)
    handle.erase(WHY)
    with pytest.raises(Failed, match=WHY):
        handle.result()


@pytest.mark.parametrize(("size", "is_apart"), [(99, False), (100, True)])
def test_small_content_stays_in_its_op(node: MemorySyncNode, size: int, is_apart: bool) -> None:
    text = "y" * (size - len('{"t":""}'))
    handle = node.submit(hocket.kind("a", content_apart=100), t=text)
    assert blobs(node) == is_apart
    assert shown(node, handle.job_id)["payload"] == {"t": text}


def test_erased_content_is_gone_and_the_log_says_why(node: MemorySyncNode) -> None:
    handle, kept = node.submit(scan, **ANN), node.submit(scan, **ANN)
    node.work([scan], until_idle=True)
    copies = [node.runtime.blobs.read(hash) for hash, _ in node.runtime.blobs.all()]
    cleared = handle.erase(WHY)
    assert cleared.blobs == 2 and blobs(node) == 2
    details = shown(node, handle.job_id)
    assert (details["payload"], details["result"], details["state"]) == (None, None, "succeeded")
    erased = details["erased"]
    assert isinstance(erased, dict) and erased["reason"] == WHY
    with pytest.raises(Conflict, match=WHY):
        handle.erase("again")
    with pytest.raises(Failed, match="was erased by node"):
        handle.result()
    assert shown(node, kept.job_id)["payload"] == ANN
    assert node.runtime.verify().findings == [] and node.runtime.rebuild().unchanged
    assert shown(node, handle.job_id)["erased"] == erased
    # A copy that someone kept does not come back.
    refused = 0
    for copy in copies:
        assert copy is not None
        content = contain(node.runtime.blobs, copy, 0)
        try:
            node.runtime.log.run(lambda tx, content=content: artifacts.put(tx, node.runtime.blobs, "x", content, None))  # type: ignore[misc]
        except apart.Erased:
            refused += 1
    assert refused == 2


def test_a_job_that_has_not_ended_is_cancelled(node: MemorySyncNode) -> None:
    handle = node.submit(scan, **ANN)
    handle.erase(WHY)
    assert (handle.status()["state"], blobs(node)) == ("cancelled", 0)


def test_a_worker_that_claims_an_erased_job_fails_it_clearly(node: MemorySyncNode) -> None:
    handle = node.submit(scan, **ANN)
    # The erasure comes from another node; that it was cancelled, too, is not known here yet.
    node.runtime.log.run(lambda tx: erasing.erase(tx, parse_ulid(handle.job_id), WHY))
    node.work([scan], until_idle=True)
    status = handle.status()
    assert (status["state"], status["failures"]) == ("failed", 1)
    assert "was erased by node" in str(status["error"]) and WHY in str(status["error"])


def test_the_maintenance_deletes_what_was_erased_elsewhere(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        handle = await node.submit(hocket.kind("acme.scan", content_apart=0), **ANN)
        # The op of another node comes in the same way: nobody has deleted anything here.
        await node.run(lambda tx: erasing.erase(tx, parse_ulid(handle.job_id), WHY))
        await until(lambda: node.call(lambda: not list(node.runtime.blobs.all())))

    assert kept_up(tmp_path / "home", test) == []


def test_what_is_in_ops_cannot_be_erased(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a"), who="ann")
    with pytest.raises(Conflict, match="what is in its signed ops cannot be erased"):
        handle.erase(WHY)
    assert handle.status()["state"] == "pending"


@pytest.mark.parametrize(
    ("options", "says"), [({"claim": "sticky", "sticky": "who"}, "it is sticky"), ({"content_apart": "much"}, "much")]
)
def test_jobs_that_cannot_be_apart(node: MemorySyncNode, options: dict[str, object], says: str) -> None:
    with pytest.raises(Usage, match=says):
        node.submit(hocket.kind("a", **{"content_apart": 0} | options), who="ann")  # type: ignore[arg-type]


J = job_id(1)
MAY = (Capability("Job", "Schedule", {}), Capability("Job", "Erase", {"kind_prefix": ["acme."]}))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> "Erasers":
    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)
    monkeypatch.setitem(world.KEY_OF, PHONE_NODE, PHONE)
    return Erasers()


class Erasers(Two):
    """The worker may submit, and erase jobs of acme; the phone may only submit."""

    def __init__(self) -> None:
        super().__init__()
        self.owner(2, self.delegation(token(MAY)))


@pytest.mark.parametrize(
    ("submitter", "eraser", "kind", "named", "reason"),
    [
        ("worker", "worker", "acme.scan", "acme.scan", 0),
        ("worker", "owner", "acme.scan", "acme.scan", 0),
        ("owner", "worker", "acme.scan", "acme.scan", Reason.OTHERS_JOB),
        ("phone", "phone", "acme.scan", "acme.scan", Reason.UNAUTHORISED),
        ("worker", "worker", "other.scan", "other.scan", Reason.UNAUTHORISED),
        ("worker", "worker", "other.scan", "acme.scan", Reason.OTHERS_JOB),
    ],
)
def test_who_may_erase_in_every_order_of_arrival(
    two: Erasers, submitter: str, eraser: str, kind: str, named: str, reason: int
) -> None:
    getattr(two, submitter)(10, ScheduleJob(J, kind, b"", b""))
    op = getattr(two, eraser)(20, EraseContent(J, named, WHY))
    assert two.judged(op) == [reason]


def test_an_erasure_that_comes_before_its_job_waits(two: Erasers) -> None:
    op = two.worker(20, EraseContent(J, "acme.scan", WHY))
    assert two.judged(op) == [Reason.WAITING]


def test_a_worker_elsewhere_fetches_the_payload_and_forgets_it_when_it_is_erased(tmp_path: Path) -> None:
    async def test() -> None:
        async with mesh_world(tmp_path, "owner") as (owner,):
            place = await enrolled(tmp_path / "worker", owner, MESH_WORKER)
            try:
                place.befriend(owner.address, owner.id)
                made = owner.runtime.submit([draft("acme.scan", ANN, {"content_apart": 0})])
                await place.exchanges.visit(owner.address)
                apart_of = owner.runtime.show(ulid_text(made[0].job_id))["options"]["content"]
                blob = await place.exchanges.fetch(bytes.fromhex(apart_of["hash"]), apart_of["size"])
                assert blob is not None and content_hash(blob).hex() == apart_of["hash"] and b"ann" in blob
                place.runtime.blobs.keep(place.runtime.blobs.stage(blob))
                owner.log.run(lambda tx: erasing.erase(tx, made[0].job_id, WHY))
                owner.log.run(lambda tx: erasing.remove_content(tx, owner.runtime.blobs, made[0].job_id))
                await place.exchanges.visit(owner.address)
                with place.runtime.read() as session:
                    assert erasing.erased_jobs(session) == [made[0].job_id]
                assert erasing.has_content(place.runtime.store, place.runtime.blobs, [made[0].job_id])
                place.log.run(lambda tx: erasing.remove_content(tx, place.runtime.blobs, made[0].job_id))
                assert not place.runtime.blobs.has(bytes.fromhex(apart_of["hash"]))
                shown = place.runtime.show(ulid_text(made[0].job_id))
                assert shown["payload"] is None and shown["erased"]["reason"] == WHY
            finally:
                await place.close()

    asyncio.run(test())


def test_a_result_that_is_apart_on_another_node_is_fetched_or_the_node_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with mesh_world(tmp_path, "owner") as (owner,):
            place = await enrolled(tmp_path / "worker", owner, MESH_WORKER)
            try:
                made = owner.runtime.submit([draft("acme.scan", ANN, {"content_apart": 0})])
                await owner.node.work([scan], until_idle=True)
                place.befriend(owner.address, owner.id)
                await place.exchanges.visit(owner.address)
                handle = place.node.job(ulid_text(made[0].job_id))
                assert await handle.result() == ANN
                assert not list(place.runtime.blobs.all()), "what was fetched is not kept"
                await owner.stop_serving()
                with pytest.raises(Unreachable, match="no reachable node has"):
                    await handle.result()
            finally:
                await place.close()

    asyncio.run(test())
