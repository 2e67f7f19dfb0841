"""Nodes and agents as programs and people ask for them: how alive they are, what they do, whether they take work."""

import asyncio
import threading
from pathlib import Path

import pytest

import hocket
import hocket.testing
from hocket.api import Program, Service, agents, inbox, locks, nodes, rights, status
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.families.liveness import BEAT_S, MISSES, Grade
from hocket.families.locks.requests import moment
from hocket.mesh.grants import parse_grants
from hocket.node.runtime import Runtime
from hocket.work.handlers import kind
from hocket.work.presence import AgentSaid, Hardware, NodePresence, NodeSaid, Serving
from tests.mesh.test_presence import employ
from tests.mesh.world import Place, enrolled, run
from tests.scenarios.machines import until

BEAT_MS = round(BEAT_S * 1000)
RENDER = Serving(("acme.render",), labels=("gpu=a100", "model=llama-3-8b"))


def heard(place: Place, other: Place, said: NodeSaid, ago_ms: int, *seen_ago_ms: int) -> None:
    """As if the other node had told this one, so long ago."""
    now_ms = place.log.physical()
    with place.runtime.store.write() as session:
        seen = tuple(now_ms - each for each in seen_ago_ms)
        session.put_presence(NodePresence(other.id, said, now_ms - ago_ms, seen).row)


@pytest.mark.req("VX-11")
def test_the_live_nodes_and_what_their_machines_have(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
            await each.exchanges.visit(a.address)
        service = Service(a.runtime)
        silent_ms = MISSES[Grade.WARN] * BEAT_MS
        heard(a, b, NodeSaid((RENDER,), hardware=Hardware(8, 2**34, ("NVIDIA H200",))), silent_ms)
        here, one, two = nodes.live(service)
        assert (here.here, here.grade) == (True, "live") and here.capabilities.cpus >= 1
        assert (one.node, one.grade, one.labels) == (f"{b.id:016x}", "warn", ["gpu=a100", "model=llama-3-8b"])
        has = one.capabilities
        assert (has.cpus, has.memory_bytes, has.gpus, has.models) == (8, 2**34, ["NVIDIA H200"], ["llama-3-8b"])
        assert (two.grade, two.last_seen_ms) == ("unknown", None)
        # The membership by a threshold of one's own.
        assert [each.node for each in nodes.live(service, silent_ms // 2)] == [here.node]
        assert [each.node for each in nodes.live(service, 2 * silent_ms)] == [here.node, one.node]

    run(tmp_path, test, "a", "b", "c")


def test_agents_are_listed_with_their_own_grades_and_workers_are_agents(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        service = Service(a.runtime)
        employ(a, Serving(("acme.render",)))
        assert agents.beat(service, "editor", "reviews").grade == "live"
        said = NodeSaid((RENDER,), (AgentSaid("quick", "counts", 1_000), AgentSaid("slow", "", 60_000)))
        heard(a, b, said, 5_000, 5_000, 5_000)
        (job,) = a.runtime.submit([kind("acme.render").draft({})])
        shown = [(each.name, each.node, each.doing, each.grade) for each in agents.listing(service)]
        here, there = f"{a.id:016x}", f"{b.id:016x}"
        assert shown == [
            ("editor", here, "reviews", "live"),
            ("worker", here, "idle; serves acme.render", "live"),
            ("quick", there, "counts", "alert"),
            ("slow", there, "", "live"),
            ("worker", there, "idle; serves acme.render", "live"),
        ]
        assert {each.node for each in agents.listing(service, 2_000)} == {here}
        assert job.created

    run(tmp_path, test)


def test_agents_with_locks_and_messages_are_listed_without_a_word_of_theirs(tmp_path: Path) -> None:
    with Service(Runtime.init(tmp_path / "home")) as service:

        def shown() -> dict[str, agents.AgentShown]:
            return {each.name: each for each in agents.listing(service)}

        def count() -> int:
            with service.read() as session:
                return session.head().seq

        held = locks.acquire(service, ["file:src/a.rs"], "editor", 600_000)
        keys = [f"build:{number}" for number in range(4)]
        locks.acquire(service, keys, "builder", 600_000, shared=True, scope="acme")
        waiting = threading.Thread(
            target=lambda: locks.acquire(service, ["file:src/**"], "tester", 600_000, wait_ms=600_000)
        )
        waiting.start()
        try:
            until(lambda: "tester" in shown(), "the tester to wait")
            for body in (b"one", b"two", b"three"):
                inbox.send(service, "team/reader", body)
            written, told = count(), shown()
            assert count() == written
            assert told["editor"].doing == f"holds file:src/a.rs until {moment(held.expires_ms)}"
            assert told["builder"].doing.startswith("holds build:0, build:1, build:2, … in acme until 2")
            assert told["tester"].doing == "waits for file:src/**"
            assert "team/reader" not in told
            assert {each.grade for each in told.values()} == {"live"}
            assert {each.node for each in told.values()} == {f"{service.runtime.log.node:016x}"}

            # Who asks again was seen again; what an agent says comes first.
            renewed = locks.renew(service, "file:src/a.rs", held.fence, "editor", 600_000)
            assert len(inbox.claim(service, "team/reader", 2)) == 2
            agents.beat(service, "team/reader", "thinks")
            agents.beat(service, "silent", "thinks")
            told = shown()
            assert told["editor"].last_seen_ms > held.since_ms
            assert told["editor"].doing.endswith(moment(renewed.expires_ms))
            assert told["team/reader"].doing == "thinks; reads 2 messages"
            assert told["silent"].doing == "thinks"
        finally:
            locks.release(service, "file:src/a.rs", held.fence, "editor")
            waiting.join()
        told = shown()
        assert "editor" not in told and told["tester"].doing.startswith("holds file:src/**")
        nobody = service.acting_as(service.principal, Program("nobody", "nobody", ()))
        unseen = {each.name for each in agents.listing(nobody)}
        assert unseen == {"team/reader", "silent"}


def test_draining_is_shown_everywhere(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        service = Service(a.runtime)
        employ(a, Serving(("acme.render",)))
        (job,) = a.runtime.submit([kind("acme.render").draft({})])
        done = nodes.drain(service, "here", "new disk")
        assert done.changed and done.is_coordinator and str(done.availability) == "draining: new disk"
        assert not nodes.drain(service, "here").changed
        assert str(nodes.find(service, "here").availability) == "draining: new disk"
        assert str(nodes.live(service)[0].availability) == "draining: new disk"
        assert status.status(service).availability == done.availability
        waiting = a.runtime.waiting_of(job.job_id)
        assert waiting is not None and waiting.reason == "unavailable"
        assert waiting.sentence == (
            "this node is draining (new disk); `hocket node resume here` lets it take jobs again"
        )
        assert nodes.quarantine(service, "here", "odd").availability.state == "quarantined"
        assert nodes.resume(service, "here").changed
        assert status.status(service).availability.state == "active"
        waiting = a.runtime.waiting_of(job.job_id)
        assert waiting is not None and waiting.reason == "busy"

    run(tmp_path, test, "a")


def test_a_job_waits_for_a_draining_node_only_if_no_other_would_take_it(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        service, (job,) = Service(a.runtime), a.runtime.submit([kind("acme.render", needs=["gpu"]).draft({})])
        heard(a, b, NodeSaid((RENDER,)), 0)
        nodes.drain(service, f"{b.id:016x}")

        def reason() -> str:
            waiting = a.runtime.waiting_of(job.job_id)
            assert waiting is not None
            return waiting.reason

        assert reason() == "unavailable"
        employ(a, Serving(("acme.render",)))
        assert reason() == "unavailable"  # the worker here lacks the label
        employ(a, Serving(), RENDER)
        assert reason() == "busy"

    run(tmp_path, test)


def test_bad_input_changes_nothing(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        leaf = await enrolled(tmp_path / "leaf", a, parse_grants(["job:claim:acme.", "job:complete:acme."]))
        try:
            await leaf.exchanges.visit(a.address)
            service, theirs = Service(a.runtime), Service(leaf.runtime)
            with pytest.raises(Usage, match="no node 'nobody'"):
                nodes.drain(service, "nobody")
            with pytest.raises(Usage, match="printable"):
                nodes.drain(service, "leaf", "x" * 501)
            with pytest.raises(Usage, match="printable"):
                nodes.drain(service, "leaf", "two\nlines")
            with pytest.raises(NotAuthorised):
                nodes.drain(theirs, f"{a.id:016x}")
            with pytest.raises(NotAuthorised):
                nodes.quarantine(theirs, "here")
            before = a.count(), leaf.count()
            assert not nodes.resume(service, "leaf").changed
            assert (a.count(), leaf.count()) == before

            # A node may drain itself, and undo that; what the owner has said it cannot undo.
            assert nodes.drain(theirs, "here").changed and nodes.resume(theirs, "here").changed
            nodes.quarantine(service, "leaf", "odd results")
            await leaf.exchanges.visit(a.address)
            with pytest.raises(NotAuthorised, match="cannot resume itself"):
                nodes.resume(theirs, "here")
        finally:
            await leaf.close()

    run(tmp_path, test, "a")


def test_a_strict_mesh_has_no_op_for_it(tmp_path: Path) -> None:
    with Service(Runtime.init(tmp_path / "home", strict=True)) as service:
        with pytest.raises(Usage, match="Likewise"):
            nodes.drain(service, "here")


def test_a_revoked_node_cannot_be_drained(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        leaf = await enrolled(tmp_path / "leaf", a, parse_grants(["job:claim:acme."]))
        try:
            await leaf.exchanges.visit(a.address)
            rights.revoke(Service(a.runtime), "leaf", None)
            with pytest.raises(Conflict, match="revoked"):
                nodes.drain(Service(a.runtime), "leaf")
            assert [each.here for each in nodes.live(Service(a.runtime))] == [True]
        finally:
            await leaf.close()

    run(tmp_path, test, "a")


def test_the_same_from_python(tmp_path: Path) -> None:
    with hocket.testing.node() as node:
        admin = hocket.admin(node)
        assert admin.beat("editor", "reviews", every="5m").doing == "reviews"
        assert [each.name for each in admin.agents(stale="1m")] == ["editor"]
        assert admin.drain("here", "new disk").availability.state == "draining"
        assert [each.availability.state for each in admin.live_nodes()] == ["draining"]
        assert admin.quarantine("here").changed and admin.resume("here").changed
        with pytest.raises(hocket.Usage, match="not a duration"):
            admin.live_nodes(stale="soon")

    async def async_way() -> None:
        async with hocket.testing.node() as node:
            admin = hocket.admin(node)
            await admin.beat("editor")
            assert [each.name for each in await admin.agents()] == ["editor"]
            assert (await admin.drain("here")).changed
            assert [each.availability.state for each in await admin.live_nodes()] == ["draining"]
            assert (await admin.quarantine("here")).changed and (await admin.resume("here")).changed

    asyncio.run(async_way())
