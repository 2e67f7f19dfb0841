"""Nodes that may not read everything, the coordinator and its silence, and how addresses are written."""

import asyncio
from pathlib import Path

import pytest

from hocket.bus.hints import PEER, about
from hocket.errors import Unreachable
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import DesignateCoordinator
from hocket.mesh import peers
from tests.mesh.world import WORKER, Place, delegation, enrolled, run, until

# Restricted nodes.


@pytest.mark.req("LW-29")
def test_a_restricted_node_gets_its_part_and_more_when_it_may(tmp_path: Path):
    async def test(a: Place) -> None:
        grants = (
            Capability("Job", "Read", {"kind_prefix": ["acme."]}),
            *(Capability(resource, "Read", {}) for resource in ("Registration", "Mesh")),
        )
        w = await enrolled(tmp_path / "w", a, grants)
        try:
            a.submit(4, "acme.render")
            a.submit(4, "secret.kind")
            assert (await w.exchanges.visit(a.address)).state == peers.OK
            assert (await w.exchanges.visit(a.address)).state == peers.OK
            assert len(a.ids() - w.ids()) == 4
            assert w.ids() <= a.ids()
            wider = delegation(a, w.key.public, (Capability("Job", "Read", {}),))
            a.log.run(lambda tx: tx.author(wider))
            await w.exchanges.visit(a.address)
            await w.exchanges.visit(a.address)
            assert a.ids() == w.ids()
        finally:
            await w.close()

    run(tmp_path, test, "a")


def test_a_restricted_node_is_asked_only_for_what_it_wrote(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        w = await enrolled(tmp_path / "w", a, WORKER)
        try:
            await w.serve()
            await b.exchanges.exchange(a.address)
            await w.exchanges.exchange(a.address)
            await b.exchanges.exchange(a.address)
            a.submit(5)
            await w.exchanges.exchange(a.address)
            w.submit(2)
            # b has not seen a's new ops, and does not get them from w.
            missing = a.ids() - b.ids()
            done = await b.exchanges.exchange(w.address)
            assert done.pulled == 2
            assert not missing & b.ids()
            await b.exchanges.exchange(a.address)
            assert missing <= b.ids()
        finally:
            await w.close()

    run(tmp_path, test)


# The coordinator.


@pytest.mark.req("LW-39")
def test_consulting_needs_a_coordinator_that_answers(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        await a.exchanges.consult()
        with pytest.raises(Unreachable, match="no address"):
            await b.exchanges.consult()
        b.befriend(a.address)
        with pytest.raises(Unreachable, match="no address"):
            await b.exchanges.consult()
        await b.exchanges.visit(a.address)
        await b.exchanges.consult()
        await a.stop_serving()
        with pytest.raises(Unreachable):
            await b.exchanges.consult()

    run(tmp_path, test)


@pytest.mark.req("LW-14")
def test_a_quiet_coordinator_is_noticed_and_nobody_takes_its_place(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        with b.runtime.store.read() as session:
            assert peers.coordinator(b.log, session) == a.id
            assert peers.silence(b.log, session) is None
            real = b.log.physical
            b.log.physical = lambda: real() + peers.QUIET_MS + 60_000
            silence = peers.silence(b.log, session)
            assert silence is not None
            assert silence.node == a.id
            assert silence.last_ms is not None
            with a.runtime.store.read() as own:
                assert peers.silence(a.log, own) is None
        await a.stop_serving()
        b.keep_in_touch()
        async with asyncio.timeout(20):
            while not any("coordinator" in notice for notice in b.notices):
                await asyncio.sleep(0.02)
        with b.runtime.store.read() as session:
            assert peers.coordinator(b.log, session) == a.id
            assert [op for op in session.ops_after(0, 99) if op.variant == _designations()] != []

    run(tmp_path, test)


def test_a_peer_that_the_operator_adds_is_visited_without_waiting_for_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hocket.mesh.loop.ROUND_S", 3_600.0)

    async def test(a: Place, b: Place) -> None:
        loop = b.keep_in_touch()
        await until(lambda: loop._next_round, "the first round")
        b.befriend(a.address)
        b.runtime.bus.publish(about(PEER, a.address.encode()))
        await until(lambda: a.ids() <= b.ids(), "the visit")

    run(tmp_path, test)


def _designations() -> int:
    from hocket.kernel.vocabulary import number_of

    return number_of(DesignateCoordinator)


# Addresses.


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:7315", "http://host:7315"),
        ("http://host:7315/", "http://host:7315"),
        ("https://Host.example", "https://host.example"),
        ("http://[::1]:80", "http://[::1]:80"),
        ("http://host/behind/proxy/", "http://host/behind/proxy"),
    ],
)
def test_an_address_has_one_spelling(text: str, address: str):
    assert peers.check_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["", "ftp://host", "http://", "http://user:pass@host", "http://host?x=1", "http://host:port", "a b", "http://h#f"],
)
def test_what_is_no_address_is_refused(text: str):
    from hocket.errors import Usage

    with pytest.raises(Usage):
        peers.check_address(text)
