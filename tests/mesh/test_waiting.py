"""What a job waits for, in a sentence, by what this node knows. The nodes are real, and so are their stores; what other
nodes say about their workers is put there as it comes over the wire.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.extensions.command import request
from hocket.extensions.command.request import command
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.liveness import BEAT_S, MISSES, Grade
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import RouteKind
from hocket.mesh import peers
from hocket.mesh.grants import parse_grants
from hocket.mesh.waiting import Waiting, WaitReason
from hocket.node.runtime import Runtime
from hocket.work import handlers as kinds
from hocket.work.handlers import Handlers, JobType, kind
from hocket.work.presence import NodePresence, NodeSaid, Serving
from tests.mesh.test_presence import employ
from tests.mesh.world import Place, enrolled, run

AWAY_MS = round(MISSES[Grade.DEAD] * BEAT_S * 1000)


def submit(place: Place, name: str = "acme.render", **options: Any) -> bytes:
    return place.runtime.submit([kind(name, **options).draft({})])[0].job_id


def submit_command(place: Place, *argv: str, network: bool = False) -> bytes:
    runtime = place.runtime
    packed = request.pack(command(*argv, network=network), runtime.blobs)
    return place.log.run(lambda tx: packed.submit(tx, runtime))


def waiting(place: Place, job_id: bytes, *, is_connected: bool = False) -> Waiting:
    found = place.runtime.waiting_of(job_id, is_connected=is_connected)
    assert found is not None
    return found


def heard(place: Place, other: Place, *workers: Serving, ago_ms: int = 0) -> None:
    """As if the other node had told this one, so long ago."""
    with place.runtime.store.write() as session:
        at = place.log.physical() - ago_ms
        session.drop_presence(0, 0)
        session.put_presence(NodePresence(other.id, NodeSaid(workers), at).row)


def claim(place: Place, lease_ms: int = 60_000) -> None:
    place.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda name: lease_ms))


def alone(directory: Path, test: Callable[[Place], None]) -> None:
    async def inside() -> None:
        place = Place(await asyncio.to_thread(Runtime.init, directory / "home"))
        try:
            test(place)
        finally:
            await place.close()

    asyncio.run(inside())


def with_leaf(directory: Path, grants: tuple[str, ...], test: Callable[[Place, Place], Any]) -> None:
    """A hub that decides, and an invited leaf that has synced with it once."""

    async def inside(hub: Place) -> None:
        leaf = await enrolled(directory / "leaf", hub, parse_grants(list(grants)))
        try:
            await leaf.exchanges.visit(hub.address)
            test(hub, leaf)
        finally:
            await leaf.close()

    run(directory, inside, "hub")


def test_a_lone_node(tmp_path: Path) -> None:
    def test(here: Place) -> None:
        job = submit(here)
        assert waiting(here, job) == (
            WaitReason.NO_WORKER,
            "no worker that this node knows of serves acme.render",
            "acme.render ",
        )
        employ(here, Serving(("acme.",)))
        assert waiting(here, job).sentence == "ready; the worker on this node takes it when a slot is free"
        claim(here)
        held = waiting(here, job)
        deadline = time.strftime("%H:%M:%S", time.localtime(here.runtime.show(ulid_text(job))["deadline_ms"] / 1000))
        assert (held.reason, held.sentence) == (WaitReason.HELD, f"held by this node until {deadline}")
        here.log.run(lambda tx: jobs.cancel(tx, job, "enough"))
        assert here.runtime.waiting_of(job) is None and here.runtime.waiting_of(bytes(16)) is None

    alone(tmp_path, test)


def test_a_time_another_job_and_limits(tmp_path: Path) -> None:
    def test(here: Place) -> None:
        employ(here, Serving(("acme.",)))
        later = submit(here, not_before="+1h")
        assert waiting(here, later).sentence.startswith("not before ")
        first = submit(here, "acme.first")
        second = submit(here, after=[ulid_text(first)])
        assert waiting(here, second).sentence == f"comes after job {ulid_text(first)}, which is pending"
        claim(here)
        assert waiting(here, second).sentence == f"comes after job {ulid_text(first)}, which is running"
        submit(here, "acme.sole", concurrency=1)
        claim(here)
        sole = submit(here, "acme.sole", concurrency=1)
        limited = waiting(here, sole)
        assert (limited.reason, limited.sentence) == (
            WaitReason.LIMIT,
            "1 of at most 1 acme.sole jobs run (--concurrency)",
        )
        submit(here, "acme.paced", rate="1/1h")
        claim(here)
        paced = waiting(here, submit(here, "acme.paced", rate="1/1h"))
        assert paced.reason is WaitReason.LIMIT and paced.sentence.startswith("the rate of acme.paced is 1 in 60 min; ")

    alone(tmp_path, test)


def test_limits_of_a_kind_that_the_job_does_not_state(tmp_path: Path) -> None:
    def test(here: Place) -> None:
        employ(here, Serving(("acme.",)))
        sole = JobType("acme.sole", function=lambda ctx: None).using(concurrency=1)
        here.log.run(lambda tx: kinds.define_kinds(tx, Handlers([sole])))
        submit(here, "acme.sole")
        claim(here)
        assert waiting(here, submit(here, "acme.sole")).sentence == "1 of at most 1 acme.sole jobs run (--concurrency)"

    alone(tmp_path, test)


def test_a_label_that_no_worker_has(tmp_path: Path) -> None:
    def test(here: Place) -> None:
        job = submit(here, needs=["gpu", "ssd"])
        nobody = "no worker that this node knows of serves acme.render with the label gpu and ssd"
        assert waiting(here, job).sentence == nobody
        lacking = Serving(("acme.",)), Serving(("acme.",), labels=("ssd",)), Serving(("other.",), labels=("gpu",))
        employ(here, *lacking)
        lacks = waiting(here, job)
        assert (lacks.reason, lacks.sentence) == (
            WaitReason.NO_WORKER,
            "no worker of acme.render on this node has the label gpu",
        )
        employ(here, *lacking, Serving(("acme.",), labels=("gpu=a100", "ssd")))
        assert waiting(here, job).reason is WaitReason.BUSY

    alone(tmp_path, test)


def test_a_look_at_a_rate_takes_no_turn(tmp_path: Path) -> None:
    def test(here: Place) -> None:
        employ(here, Serving(("acme.",)))
        paced = submit(here, rate="1/1h")
        assert waiting(here, paced).reason is WaitReason.BUSY and waiting(here, paced).reason is WaitReason.BUSY
        claim(here)
        assert waiting(here, paced).reason is WaitReason.HELD

    alone(tmp_path, test)


def test_a_route_to_a_node_that_is_away(tmp_path: Path) -> None:
    def test(hub: Place, leaf: Place) -> None:
        hub.log.run(lambda tx: tx.author(RouteKind("acme.render", leaf.id)))
        employ(hub, Serving(("acme.",)))
        job = submit(hub)
        assert waiting(hub, job).sentence == "routed to leaf, which is away"
        heard(hub, leaf, Serving(("acme.",)), ago_ms=AWAY_MS + 31_000)
        away = waiting(hub, job)
        assert (away.reason, away.sentence) == (WaitReason.AWAY, "routed to leaf, which is away, last heard 2 min ago")
        heard(hub, leaf, Serving(("other.",)))
        assert waiting(hub, job).sentence == "routed to leaf, where no worker serves acme.render"
        heard(hub, leaf, Serving(("acme.",)))
        assert waiting(hub, job).reason is WaitReason.BUSY

    with_leaf(tmp_path, ("job:claim:acme.", "job:complete:acme."), test)


def test_a_worker_that_may_not_claim_and_one_that_is_gone(tmp_path: Path) -> None:
    def test(hub: Place, leaf: Place) -> None:
        job = submit(hub)
        heard(hub, leaf, Serving(("acme.render",)))
        denied = waiting(hub, job)
        assert (denied.reason, denied.sentence) == (
            WaitReason.NOT_ALLOWED,
            "leaf may not claim acme.render jobs; grant it job:claim:acme.render",
        )
        heard(hub, leaf, Serving(("acme.render",)), ago_ms=AWAY_MS + 31_000)
        gone = waiting(hub, job)
        assert gone.sentence == "no worker that this node knows of serves acme.render (leaf did, 2 min ago)"

    with_leaf(tmp_path, ("job:schedule:acme.",), test)


def test_a_worker_that_does_not_allow_the_command(tmp_path: Path) -> None:
    def test(hub: Place, leaf: Place) -> None:
        job = submit_command(hub, "ffmpeg", "-i", "x")
        heard(hub, leaf, Serving(("hocket.run",)))
        denied = waiting(hub, job)
        assert (denied.reason, denied.sentence) == (
            WaitReason.NOT_ALLOWED,
            "the worker on leaf does not allow this command; start it there with --allow",
        )
        heard(hub, leaf, Serving(("hocket.run",), allow=("ffmpeg -i *",)))
        assert waiting(hub, job).reason is WaitReason.BUSY
        heard(hub, leaf, Serving(("hocket.run",), refuses="root"))
        assert waiting(hub, job).sentence == (
            "the worker on leaf runs no commands of other nodes: the worker runs as root; run it as a user of its own"
        )
        heard(hub, leaf, Serving(("hocket.run",), refuses="\x1b[2J"))
        assert waiting(hub, job).sentence.startswith("the worker on leaf does not allow this command")
        online = submit_command(hub, "ffmpeg", "-i", "x", network=True)
        heard(hub, leaf, Serving(("hocket.run",), allow=("ffmpeg -i *",)))
        assert waiting(hub, online).sentence == "the worker on leaf gives commands of other nodes no network"
        heard(hub, leaf, Serving(("hocket.run",), allow=("ffmpeg -i *",), network=True))
        assert waiting(hub, online).reason is WaitReason.BUSY
        # A node runs its own commands without asking anyone.
        heard(hub, leaf)
        employ(hub, Serving(("hocket.run",)))
        assert waiting(hub, job).reason is WaitReason.BUSY

    with_leaf(tmp_path, ("job:claim:hocket.run", "job:complete:hocket.run"), test)


def test_a_coordinator_that_is_out_of_reach(tmp_path: Path) -> None:
    def test(hub: Place, leaf: Place) -> None:
        job, own = submit(leaf), submit(leaf, open=True)
        employ(leaf, Serving(("acme.",)))
        # It was reached, but nobody on this machine is connected now.
        known = waiting(leaf, job)
        assert known.reason is WaitReason.BUSY and known.sentence.endswith("; `hocket mesh sync` asks the others")
        assert "as of" not in waiting(leaf, job, is_connected=True).sentence

        def lose(state: str) -> None:
            with leaf.runtime.store.write() as session:
                detail = f"{hub.address} cannot be reached: No route to host"
                peers.change(session, hub.address, lambda peer: peer._replace(state=state, detail=detail))

        lose(peers.UNREACHABLE)
        lost = waiting(leaf, job, is_connected=True)
        assert lost.reason is WaitReason.COORDINATOR
        assert lost.sentence.startswith("the coordinator ")
        assert lost.sentence.endswith(" No route to host; the job waits here, and it is sent when it answers")
        assert waiting(leaf, job).sentence.endswith(
            "the next `hocket mesh sync`, `hocket work` or `hocket mesh serve` here sends it"
        )
        # An open job needs no decision, if it can run here.
        assert waiting(leaf, own, is_connected=True).reason is WaitReason.BUSY
        with leaf.runtime.store.write() as session:
            peers.remove(session, hub.address)
        assert "no address of the coordinator" in waiting(leaf, job).sentence

    grants = [f"job:{action}:acme." for action in ("schedule", "claim", "complete")]
    with_leaf(tmp_path, tuple(grants), test)


@pytest.mark.req("GR-12")
def test_where_ranked_jobs_are_open_they_wait_for_no_coordinator(tmp_path: Path) -> None:
    def test(hub: Place, leaf: Place) -> None:
        heard(leaf, hub, Serving(("acme.",)))

        def reasons() -> list[WaitReason]:
            ranked = {"claim": "rendezvous"}
            return [
                waiting(leaf, each, is_connected=True).reason
                for each in (submit(leaf, **ranked), submit(leaf, open=False, **ranked), submit(leaf))
            ]

        def peer(address: str, state: str) -> None:
            with leaf.runtime.store.write() as session:
                peers.add(session, address, 0)
                peers.change(session, address, lambda peer: peer._replace(state=state, detail="it is switched off"))

        peer(hub.address, peers.UNREACHABLE)
        assert reasons() == [WaitReason.COORDINATOR] * 3
        leaf.runtime.set_rules(replace(leaf.log.rules, ranked_open=True))
        assert reasons() == [WaitReason.COORDINATOR] * 3, "nobody can be reached"
        peer("http://127.0.0.1:9", peers.OK)
        assert reasons() == [WaitReason.BUSY, WaitReason.COORDINATOR, WaitReason.COORDINATOR]

    with_leaf(tmp_path, ("job:schedule",), test)


def test_only_a_time_that_changes_is_no_news() -> None:
    held = Waiting(WaitReason.HELD, "held by leaf until 12:00:01", "leaf")
    assert held.key == Waiting(WaitReason.HELD, "held by leaf until 12:00:00", "leaf").key
    assert held.key != Waiting(WaitReason.HELD, "held by hub until 12:00:00", "hub").key
    assert Waiting(WaitReason.JOB, "a").key != Waiting(WaitReason.JOB, "b").key
