"""Introductions: the one way to write without a token. Nothing is written but for a node that is not known yet, and
that a delegation in force lets in.
"""

from pathlib import Path
from typing import Any

import pytest

from hocket.kernel import frontier as frontiers
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import encode_sequence
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.mesh import incoming, peers, wire
from tests.mesh.world import WORKER, Guest, Place, ask, delegation, introduced, revoke, run, since

READ = (Capability("Job", "Read", {}),)
INVITER = (*WORKER, Capability("Registration", "Write", {}))


def handed_on(a: Place, by: Guest, to: Guest, proof: bytes, expires: int | None = None) -> bytes:
    """The op by which a node introduces itself whom another has let in."""
    token = issue(by.key, to.key.public, READ, a.log.physical() // 1000 - 30, expires, [proof])
    return to.op(DelegateUcan(content_hash(token), token), a.log.physical())


async def introduce(a: Place, op: bytes) -> int:
    sent = {"content-type": wire.OCTETS, wire.RULES_HASH: a.headers(1)[wire.RULES_HASH]}
    return (await a.ask(a, "POST", wire.INTRODUCE, "", encode_sequence([op]), sent)).status


@pytest.mark.req("LW-23")
def test_a_node_that_was_let_in_elsewhere_introduces_itself(tmp_path: Path):
    async def test(a: Place) -> None:
        inviter, new = Guest(7), Guest(8)
        cid = introduced(a, inviter, INVITER)
        assert (await ask(a, new)).status == 401
        assert await introduce(a, handed_on(a, inviter, new, cid)) == 204
        assert (await ask(a, new)).status == 200

    run(tmp_path, test, "a")


@pytest.mark.req("LW-26", "LW-27")
@pytest.mark.parametrize("case", ["revoked", "expired", "a chain that is expired", "revoked beforehand", "not yet"])
def test_a_delegation_that_is_not_in_force_introduces_nobody(tmp_path: Path, case: str):
    """A node that had been revoked went on writing delegations, megabytes of them."""

    async def test(a: Place) -> None:
        inviter, new = Guest(7), Guest(8)
        now_s = a.log.physical() // 1000
        bounds: dict[str, Any] = {"expires": now_s - 5} if case == "a chain that is expired" else {}
        cid = introduced(a, inviter, INVITER, **bounds)
        expires = now_s - 5 if case.endswith("expired") else None
        op = handed_on(a, inviter, new, cid, expires)
        if case == "not yet":
            token = issue(inviter.key, new.key.public, READ, now_s + 600, None, [cid])
            op = new.op(DelegateUcan(content_hash(token), token), a.log.physical())
        if case == "revoked":
            revoke(a, cid)
        if case == "revoked beforehand":
            from hocket.kernel.ops import decode

            payload = decode(op).payload
            assert isinstance(payload, DelegateUcan)
            revoke(a, payload.ucan_cid)
        before = a.count()
        # It does not learn what became of it, and the operator does.
        assert await introduce(a, op) == 204
        assert a.count() == before
        assert any("introduction" in notice for notice in a.notices)
        assert (await ask(a, new)).status == 401

    run(tmp_path, test, "a")


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_known_node_needs_no_introduction(tmp_path: Path, is_revoked: bool):
    async def test(a: Place) -> None:
        guest = Guest(7)
        cid = introduced(a, guest)
        if is_revoked:
            revoke(a, cid)
        before = a.count()
        for n in range(5):
            token = issue(guest.key, guest.key.public, READ, a.log.physical() // 1000 - 30 - n, None, [cid])
            assert await introduce(a, guest.op(DelegateUcan(content_hash(token), token), a.log.physical())) == 204
        assert a.count() == before

    run(tmp_path, test, "a")


def test_one_issuer_brings_in_only_so_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(incoming, "DELEGATIONS_PER_ISSUER_MAX", 5)

    async def test(a: Place) -> None:
        inviter, other = Guest(7), Guest(6)
        cid, another = introduced(a, inviter, INVITER), introduced(a, other, INVITER)
        before = a.count()
        for n in range(12):
            await introduce(a, handed_on(a, inviter, Guest(20 + n), cid))
        assert a.count() == before + 5
        assert any("an issuer that has 5 delegations" in notice for notice in a.notices)
        await introduce(a, handed_on(a, other, Guest(50), another))
        assert a.count() == before + 6

    run(tmp_path, test, "a")


def test_a_log_that_is_full_of_authors_goes_on_with_those_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Past the number of authors that a frontier holds every request for ops failed."""
    for module in (frontiers, incoming):
        monkeypatch.setattr(module, "AUTHORS_MAX", 4)

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        guests = [Guest(10 + n) for n in range(8)]
        for guest in guests:
            introduced(a, guest)
        replies = []
        for guest in guests:
            op = guest.op(delegation(a, guest.key.public, WORKER), a.log.physical())
            replies.append(await ask(a, guest, method="POST", query="", body=encode_sequence([op])))
        assert [reply.status for reply in replies] == [200] * 8
        assert [b'"appended":1' in reply.body for reply in replies] == [True] * 2 + [False] * 6
        for guest in guests:
            assert (await ask(a, guest)).status == 200
        assert (await b.exchanges.visit(a.address)).state == peers.OK

    run(tmp_path, test)


def test_a_log_of_too_many_authors_is_a_status_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        guests = [Guest(10 + n) for n in range(4)]
        for guest in guests:
            introduced(a, guest)
            op = guest.op(delegation(a, guest.key.public, WORKER), a.log.physical())
            await ask(a, guest, method="POST", query="", body=encode_sequence([op]))
        monkeypatch.setattr(frontiers, "AUTHORS_MAX", 3)
        assert (await b.ask(a)).status == 507
        assert any("more authors" in notice for notice in a.notices)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.UNREACHABLE

    run(tmp_path, test)


# What a reader says of itself.


def test_made_up_authors_in_a_frontier_are_not_remembered(tmp_path: Path):
    """Each request with other ones would add to what is kept for its sender."""
    from hocket.kernel.clock import Hlc

    async def test(a: Place) -> None:
        reader = Guest(7)
        introduced(a, reader, WORKER)
        hints = a.transport.hints(a.address, a.headers(a.id, key=reader.key))
        await anext(hints)
        a.submit(3)
        for n in range(40):
            made_up = {author: Hlc(5, 0, author) for author in range(1_000 * n, 1_000 * n + 500)}
            assert (await ask(a, reader, query=since(made_up))).status == 200
        (listener,) = a.gate._hint_streams._listeners
        assert len(listener.given) <= 2
        kept = a.gate._pages._scanned[reader.id]
        assert len(kept) <= 16
        assert all(len(frontier) <= 2 for frontier in kept.values())
        await hints.aclose()  # type: ignore[attr-defined]

    run(tmp_path, test, "a")


def test_a_long_query_counts_as_many_requests(tmp_path: Path):
    from hocket.kernel.clock import Hlc
    from hocket.mesh.quotas import Buckets

    async def test(a: Place) -> None:
        reader = Guest(7)
        introduced(a, reader)
        a.gate._callers = Buckets(0.001, 50.0, a.node.environment.monotonic)
        made_up = {author: Hlc(2**41, 0, author) for author in range(2**62, 2**62 + 3_000)}
        statuses = [(await ask(a, reader, query=since(made_up))).status for _ in range(5)]
        assert statuses[0] == 200
        assert 429 in statuses

    run(tmp_path, test, "a")
