"""How many ops wait for the coordinator, and the bound on them; real nodes and servers."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from hocket.errors import OutboxFull
from hocket.families.jobs import requests as jobs
from hocket.log import limits
from hocket.mesh import peers
from hocket.mesh.peers import WaitingOps
from hocket.node.runtime import Runtime
from hocket.work.handlers import kind
from tests.mesh.world import Place, run


def waiting(place: Place) -> WaitingOps:
    with place.runtime.read() as session:
        return peers.outbox(place.log, session)


@pytest.mark.req("VX-16")
def test_ops_wait_until_the_coordinator_has_them(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        address, port = a.address, int(a.address.rpartition(":")[2])
        b.befriend(address)
        await b.exchanges.visit(address)
        assert waiting(b) == WaitingOps(a.id, 0, None, False)
        assert waiting(a).ops == 0, "the coordinator waits for nobody"
        await a.stop_serving()
        before = b.log.physical()
        b.submit(3)
        b.submit(2)
        await b.exchanges.visit(address)
        found = waiting(b)
        assert (found.ops, found.is_away) == (5, True)
        assert found.since_ms is not None and found.since_ms >= before
        with Runtime.open(b.runtime.home.path) as other, other.read() as session:
            assert peers.outbox(other.log, session) == found, "every process sees the same"
        await a.serve(port=port)
        await b.exchanges.transport.hasten(address)
        await b.exchanges.visit(address)
        assert waiting(b) == WaitingOps(a.id, 0, None, False)
        b.submit(1)
        assert waiting(b).ops == 1
        await b.exchanges.visit(address)
        assert waiting(b).ops == 0, "also where the exchange pulled nothing"

    run(tmp_path, test)


@pytest.mark.req("VX-16")
def test_what_is_new_is_refused_when_the_outbox_is_full_and_what_ends_a_job_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(limits, "OUTBOX_OPS_MAX", 4)

    async def test(a: Place, b: Place) -> None:
        a.submit(10)  # a coordinator has no outbox
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        b.submit(3)
        count = b.count()
        with pytest.raises(OutboxFull, match=r"3 ops wait here for the coordinator .* at most 4 may; nothing was"):
            b.submit(2)
        assert b.count() == count
        plain = b.log.append_plain("test.kind", b"{}")
        assert plain is not None
        with pytest.raises(OutboxFull, match="4 ops wait here"):
            b.log.append_plain("test.kind", b"{}")
        b.log.run(lambda tx: jobs.cancel(tx, plain, "no longer wanted"))
        assert b.count() == count + 2
        await b.exchanges.visit(a.address)
        b.runtime.submit([kind("test.kind").draft({"n": n}) for n in range(4)])

    run(tmp_path, test)


@pytest.mark.req("GR-12")
def test_where_ranked_jobs_are_open_ops_wait_only_until_another_node_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A grid whose coordinator never comes back does not fill up."""
    monkeypatch.setattr(limits, "OUTBOX_OPS_MAX", 4)

    async def test(a: Place, b: Place, c: Place) -> None:
        address = a.address
        for place in (a, b, c):
            place.runtime.set_rules(replace(place.log.rules, ranked_open=True))
        b.befriend(address, a.id)
        await b.exchanges.visit(address)
        c.befriend(b.address, b.id)
        await c.exchanges.visit(b.address)
        b.befriend(c.address, c.id)
        await a.stop_serving()
        await b.exchanges.visit(address)
        for _ in range(3):
            b.submit(3)
            found = waiting(b)
            assert (found.coordinator, found.ops, found.is_away) == (None, 3, False)
            with pytest.raises(OutboxFull, match="3 ops wait here for other nodes"):
                b.submit(2)
            await b.exchanges.visit(c.address)
        assert waiting(b).ops == 0

    run(tmp_path, test, "a", "b", "c")
