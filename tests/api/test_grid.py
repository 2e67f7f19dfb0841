"""`hocket claims grid`: what the log tells about ranked jobs."""

import asyncio
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import hocket
from hocket.api import Service
from hocket.api.claims import _Counts, grid
from hocket.families.jobs import claiming
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.rendezvous import EXPECTED_MIN
from hocket.families.jobs.requests import Held, hand_back
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import ClaimWork, ScheduleJob
from hocket.node.runtime import Runtime
from hocket.store import OpRow
from hocket.work.handlers import JobType
from hocket.work.presence import (
    MINUTE_MS,
    TOLD_MAX,
    NodePresence,
    NodeSaid,
    Serving,
    read_serving,
    said_text,
    serving_text,
)
from tests.mesh.world import Guest
from tests.work.test_claim_order import FRIEND, KIND, TIMEOUT_MS, Fleet, fleet

assert fleet

OTHER = Guest(8)


def claim(fleet: Fleet, limit: int = 1) -> list[claiming.Claim]:
    return fleet.log.run(lambda tx: claiming.claim(tx, 1, limit, lambda kind: 60_000)).taken


def test_shares_takeovers_and_members_are_counted(fleet: Fleet) -> None:
    service = Service(fleet.runtime)
    assert grid(service) == []
    one, two = fleet.worker("one", 2.0), fleet.worker("two", 1.0)
    (other,) = fleet.elsewhere(FRIEND.id, "w")
    fleet.submit(3)
    fleet.submit(1, claim="first")
    claim(fleet, 2)
    fleet.later_ms += TIMEOUT_MS + 1
    taken = claim(fleet, 1)
    (shown,) = grid(service)
    assert (shown.kind, shown.claims, shown.takeovers) == (KIND, 3, 1)
    assert (shown.refused, shown.double_starts) == (0, 0)
    nodes = {each.node: each for each in shown.nodes}
    here, there = nodes[node_text(fleet.log.node)], nodes[node_text(FRIEND.id)]
    assert ({each.worker for each in here.workers}, here.weight) == ({one, two}, 3.0)
    assert (here.claims, here.share) == (3, 1.0)
    assert [each.worker for each in there.workers] == [other]
    assert (there.claims, there.share, there.expected) == (0, 0.0, 0.25)

    claim_op = taken[0].job.claim_op
    assert claim_op is not None
    fleet.log.run(lambda tx: hand_back(tx, Held(taken[0].job.id, claim_op), "a test"))
    claim(fleet, 1)
    assert (grid(service)[0].claims, grid(service)[0].takeovers) == (4, 1)  # at once after it came back
    fleet.later_ms += 3_600_000
    assert [each.claims for each in grid(service)] == [0]
    assert grid(service, "other.") == []


def test_claims_that_did_not_count_are_refused_or_double_starts(fleet: Fleet) -> None:
    job = fleet.submit()[0]

    def row(wall: int, node: int, payload: object, reason: int = 0) -> tuple[OpRow, Op]:
        op = Op(wall.to_bytes(16, "big"), Hlc(wall, 0, node), node, (), payload)  # type: ignore[arg-type]
        from hocket.kernel.clock import pack

        return OpRow(wall, op.id, pack(op.timestamp), 0, "job", job.id, reason, 1, b"", b""), op

    ops = [
        row(1, 1, ScheduleJob(job.id, KIND, b"", b"")),
        row(2, 1, ClaimWork(job.id, 1, 1_000)),
        row(3, 2, ClaimWork(job.id, 2, 1_000), int(Reason.ALREADY_CLAIMED)),
        row(4, 1, ClaimWork(job.id, 1, 1_000)),
    ]
    closed, open_ = _Counts(), _Counts()
    closed.add(job, ops, 0)
    open_.add(msgspec.structs.replace(job, policy=msgspec.structs.replace(job.policy, open=True)), ops, 0)
    assert (closed.claims, closed.refused, closed.double_starts) == ({1: 1}, 1, 0)
    assert (open_.claims, open_.refused, open_.double_starts) == ({1: 1}, 0, 1)


def tell(fleet: Fleet, node: int, **workers: tuple[int, int, float]) -> None:
    """Workers of another node: how many jobs each has claimed in this minute, since when it is there, its weight."""
    now_ms = fleet.log.physical()
    told = tuple(
        Serving(
            (KIND,),
            id=worker_id(node, name),
            weight=weight,
            since_ms=now_ms - ago_ms,
            claimed=((KIND, now_ms // MINUTE_MS, claims), ("other.kind", now_ms // MINUTE_MS, 1_000)),
        )
        for name, (claims, ago_ms, weight) in workers.items()
    )
    with fleet.log.store.write() as session:
        session.put_presence(NodePresence(node, NodeSaid(told), now_ms).row)


@pytest.mark.touches("GR-04", "GR-09")
def test_shares_of_workers_are_compared_with_what_weights_and_time_promise(fleet: Fleet) -> None:
    fleet.submit()
    hour = 3_600_000
    fleet.invite(OTHER)
    tell(fleet, FRIEND.id, fair=(210, hour, 1.0), heavy=(395, hour, 2.0))
    tell(fleet, OTHER.id, idle=(2, hour, 1.0), greedy=(193, hour, 0.01), new=(0, -hour, 4.0))
    (shown,) = grid(Service(fleet.runtime))
    workers = {each.worker.partition("/")[2]: each for node in shown.nodes for each in node.workers}
    total = 210 + 395 + 2 + 193
    for name, weight in (("fair", 1.0), ("heavy", 2.0), ("idle", 1.0), ("greedy", 0.01)):
        expected = workers[name].expected
        assert expected == pytest.approx(weight / 4.01), name
        assert workers[name].expected_claims == pytest.approx(total * weight / 4.01, abs=0.01)
    marks = {name: each.is_beyond_chance for name, each in workers.items()}
    assert marks == {"fair": False, "heavy": False, "idle": True, "greedy": False, "new": False}
    assert workers["new"].expected == 0, "it was not ranked yet"
    assert workers["greedy"].expected_claims < EXPECTED_MIN  # too few to tell


@pytest.mark.touches("GR-04")
def test_a_node_that_claims_what_it_was_not_promised_is_marked(fleet: Fleet) -> None:
    fleet.worker("here")
    fleet.invite(OTHER)
    tell(fleet, FRIEND.id, quick=(0, 3_600_000, 1.0))
    tell(fleet, OTHER.id, slow=(0, 3_600_000, 1.0))
    fleet.submit(60)
    claim(fleet, 60)
    (shown,) = grid(Service(fleet.runtime))
    nodes = {each.node: each for each in shown.nodes}
    here, there = nodes[node_text(fleet.log.node)], nodes[node_text(FRIEND.id)]
    assert (here.claims, here.share, here.is_beyond_chance) == (60, 1.0, True)
    assert here.expected == pytest.approx(1 / 3) and there.expected_claims == pytest.approx(20)
    assert (there.claims, there.is_beyond_chance) == (0, True)


def test_a_worker_tells_how_many_jobs_it_has_claimed_by_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.work.worker.BEAT_S", 0.05)

    async def work() -> None:
        pass

    async def test() -> None:
        with closing(Runtime.init(tmp_path / "home")):
            pass
        async with hocket.open(tmp_path / "home") as node, node.working([JobType(KIND, function=work)]):
            for how in ("rendezvous", "rendezvous", "first"):
                await (await node.submit(hocket.kind(KIND, claim=how))).result(20)
            async with asyncio.timeout(20):
                while True:
                    (shown,) = await node.call(lambda: grid(Service(node.runtime)))
                    (there,) = shown.nodes
                    if [each.claims for each in there.workers] == [2]:
                        return
                    await asyncio.sleep(0.05)

    asyncio.run(test())


def test_counts_are_left_out_before_workers_are() -> None:
    many = tuple((f"acme.{number}", number, 1) for number in range(TOLD_MAX))
    workers = [Serving((KIND,), id=f"{number:016x}/worker", claimed=many) for number in range(64)]
    assert len(read_serving(serving_text(workers))) == 64
    assert len(msgspec.json.decode(said_text(NodeSaid(tuple(workers))))["workers"]) == 64
    assert read_serving(serving_text(workers[:2])) == workers[:2]
