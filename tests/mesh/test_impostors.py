"""What a node believes of an answer: nothing that the node which should have given it has not signed, and never more
than what came with it. An impostor stands at the address of a peer, without its key; a liar has one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.families.locks.requests import wanted
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import decode_frontier, frontier_text
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import STRICT, rules_hash
from hocket.kernel.ops import NO_ID, decode, encode_sequence, read_sequence
from hocket.kernel.retrying import RetryPolicy
from hocket.kernel.vocabulary import ClaimWork, DesignateCoordinator, ScheduleJob
from hocket.mesh import peer_exchange, peers, wire
from hocket.mesh.client import Client
from hocket.mesh.wire import Reply, Request
from hocket.node.locks import lock_client
from tests.mesh.test_sync import Between
from tests.mesh.world import Guest, Place, ask, introduced, joined, resigned, revoke, run, until

FAR_MS = 2**45


def ahead(*nodes: int) -> str:
    """A frontier far beyond everything that these nodes have written."""
    return frontier_text({node: Hlc(FAR_MS, 0, node) for node in nodes})


def impostor(a: Place, b: Place, **headers: str) -> Callable[[Request], Reply]:
    """Answers in the place of a, with nothing, and as if that were all that there will ever be."""

    def answer(request: Request) -> Reply:
        if request.path == wire.HEALTH:
            return Reply(200, {}, b'{"node":"%s","protocol":1}' % node_text(a.id).encode())
        far = ahead(a.id, b.id)
        said = {wire.RULES_HASH: rules_hash(b.log.rules).hex(), wire.NEXT_FRONTIER: far, wire.FRONTIER: far, **headers}
        counts = dict.fromkeys(wire.COUNTS, "0")
        if request.method == "POST" and request.path == wire.OPS:
            return Reply(200, said, b'{"appended":9,"duplicated":0,"rejected":0}')
        return Reply(200, said | counts, b"\0")

    return answer


@pytest.mark.parametrize("is_known", [True, False], ids=["a peer that was met", "a new peer whose key is known"])
def test_an_impostor_at_a_peers_address_deafens_nobody(tmp_path: Path, is_known: bool):
    """One answer without a key moved the cursor far ahead, and the node never heard its peer again."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        b.befriend(a.address)
        if is_known:
            await b.exchanges.visit(a.address)
        before = b.peer(a.address).pulled
        b.submit(1)
        between = Between(b)
        between.answers.append(impostor(a, b))
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.REFUSED
        assert "not signed by" in done.detail
        assert b.peer(a.address).pulled == before
        between.answers.clear()
        a.submit(3)
        assert (await b.exchanges.visit(a.address)).state == peers.OK
        assert a.ids() == b.ids()

    run(tmp_path, test)


def test_an_impostor_that_knows_nothing_of_hocket_is_no_way_round(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        plain = impostor(a, b)
        between = Between(b)
        between.answers.append(lambda request: Reply(404) if request.path == wire.HEALTH else plain(request))
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.UNREACHABLE
        assert node_text(a.id) in done.detail
        between.answers.clear()
        a.submit(1)
        await b.exchanges.visit(a.address)
        assert a.ids() == b.ids()

    run(tmp_path, test)


@pytest.mark.parametrize("changed", [wire.NEXT_FRONTIER, wire.FRONTIER, *wire.COUNTS, "body", "token"])
def test_an_answer_that_was_changed_on_its_way_is_not_believed(tmp_path: Path, changed: str):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        between = Between(b)
        await b.exchanges.visit(a.address)
        a.submit(2)
        b.submit(2)
        real = between._real.send
        far = {wire.NEXT_FRONTIER: ahead(a.id), wire.FRONTIER: ahead(a.id, b.id)}
        far |= dict.fromkeys(wire.COUNTS, "7")

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            # A push and a pull in one: its answer has all of these headers.
            assert request.path == wire.EXCHANGE
            if changed == "body":
                kept = [raw for raw, _ in read_sequence(reply.body)][:-1]
                return reply._replace(body=encode_sequence(kept))
            if changed == "token":
                other = impostor(a, b)(request)
                return other._replace(headers={**other.headers, wire.NODE: reply.headers[wire.NODE]})
            assert changed in reply.headers
            return reply._replace(headers={**reply.headers, changed: far[changed]})

        b.transport.send = send  # type: ignore[method-assign]
        before, pulled = b.ids(), b.peer(a.address).pulled
        assert (await b.exchanges.visit(a.address)).state == peers.REFUSED
        assert (b.ids(), b.peer(a.address).pulled) == (before, pulled)

    run(tmp_path, test)


def test_the_counts_of_a_push_are_not_believed_without_a_signature(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        b.submit(3)
        between = Between(b)
        fake = impostor(a, b)
        between.answers.append(lambda request: fake(request) if request.method == "POST" else None)
        done = await b.exchanges.visit(a.address)
        assert (done.state, done.pushed) == (peers.REFUSED, 0)
        between.answers.clear()
        assert (await b.exchanges.visit(a.address)).pushed == 3
        assert a.ids() == b.ids()

    run(tmp_path, test)


def test_a_replayed_answer_is_not_believed(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        between = Between(b)
        real = between._real.send
        recorded: list[Reply] = []

        async def record(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            recorded.append(reply)
            return reply

        b.transport.send = record  # type: ignore[method-assign]
        await b.exchanges.visit(a.address)
        old = recorded[-1]
        between.answers.append(lambda request: old if request.path == wire.OPS else None)
        assert (await b.exchanges.visit(a.address)).state == peers.REFUSED

    run(tmp_path, test)


def test_a_liar_with_a_key_moves_no_cursor_beyond_what_it_sends(tmp_path: Path):
    """A peer that says that it has sent everything up to next year has sent what it has sent."""

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        a.submit(2)
        between = Between(b)
        real = between._real.send
        lies = True

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            if not lies or request.path not in (wire.OPS, wire.EXCHANGE):
                return reply
            changed = reply._replace(headers={**reply.headers, wire.NEXT_FRONTIER: ahead(a.id, b.id, 4711)})
            return resigned(a, b.id, request, changed)

        b.transport.send = send  # type: ignore[method-assign]
        assert (await b.exchanges.visit(a.address)).state == peers.OK
        kept = decode_frontier(b.peer(a.address).pulled)
        assert kept.keys() <= {a.id, b.id}
        with b.runtime.store.read() as session:
            have = session.frontier()
        assert all(stamp.wall < FAR_MS for stamp in kept.values())
        assert have[a.id.to_bytes(8, "big")]
        lies = False
        a.submit(2)
        await b.exchanges.visit(a.address)
        assert a.ids() == b.ids()

    run(tmp_path, test)


def test_a_forged_op_from_the_future_moves_no_cursor(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        forger = Guest(9)
        forger.id = a.id
        forged = forger.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical() + 200_000)
        between = Between(b)
        real = between._real.send

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            if request.path != wire.OPS:
                return reply
            stamp = Hlc(a.log.physical() + 200_000, 1, a.id)
            headers = {**reply.headers, wire.NEXT_FRONTIER: frontier_text({a.id: stamp})}
            return resigned(a, b.id, request, reply._replace(headers=headers, body=encode_sequence([forged])))

        b.transport.send = send  # type: ignore[method-assign]
        await b.exchanges.visit(a.address)
        b.transport.send = real  # type: ignore[method-assign]
        a.submit(2)
        await b.exchanges.visit(a.address)
        assert a.ids() == b.ids()

    run(tmp_path, test)


@pytest.mark.req("LW-38")
def test_ops_that_are_held_are_not_sent_again_and_again(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        guest = Guest(7)
        joined(a, guest)
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        fast = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical() + 400_000)
        # a's clock is right by this op's.
        physical, a.log.physical = a.log.physical, lambda: physical() + 400_000
        a.log.admit(read_sequence(encode_sequence([fast])))
        a.log.physical = physical
        await b.exchanges.visit(a.address)
        with b.runtime.store.read() as session:
            assert session.held()[0] == 1
        between = Between(b)
        await b.exchanges.visit(a.address)
        await b.exchanges.visit(a.address)
        assert decode_frontier(b.peer(a.address).pulled)[guest.id].wall > a.log.physical()
        assert between.asked

    run(tmp_path, test)


def test_an_old_cursor_of_a_peer_that_signs_nothing_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A plain v0.1 server proves nothing, so an impostor there can deafen this node, but not for long."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        b.befriend(a.address)
        a.gate._origins = lambda: {a.address}
        between = Between(b)
        real = between._real.send
        fake = impostor(a, b)
        is_there = True

        def plain(request: Request) -> Reply | None:
            if request.path != wire.OPS:
                return Reply(404)
            if is_there:
                said = fake(request)
                return said._replace(headers={k: v for k, v in said.headers.items() if not k.startswith("x-hocket")})
            return None

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            return reply._replace(headers={k: v for k, v in reply.headers.items() if not k.startswith("x-hocket")})

        b.transport.send = send  # type: ignore[method-assign]
        between.answers.append(plain)
        a.submit(3)
        assert (await b.exchanges.visit(a.address)).state == peers.OK
        assert decode_frontier(b.peer(a.address).pulled) == {}
        is_there = False
        monkeypatch.setattr(peer_exchange, "ANEW_S", 0.0)
        assert (await b.exchanges.visit(a.address)).pulled == 3

    run(tmp_path, test)


@pytest.mark.req("LW-30")
def test_a_pause_that_nobody_signed_is_not_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from hocket.mesh import loop

    monkeypatch.setattr(loop, "PEER_RETRIES", RetryPolicy(0.025))

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        between = Between(b)
        between.answers.append(lambda request: Reply(409, {wire.RULES_HASH: rules_hash(STRICT).hex()}))
        exchanges = b.exchanges
        client = Client(b.node, b.key, between, b.node.environment, a.address, a.id)  # type: ignore[arg-type]
        client.claims, client._has_met = a.id, True
        exchanges._peers[a.address] = peer_exchange.PeerExchange(
            client, b.node, b.node.environment, exchanges._quotas, exchanges._emit
        )
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.PAUSED
        assert "did not prove" in done.detail
        between.answers.clear()
        a.submit(1)
        b.keep_in_touch()
        await until(lambda: a.ids() == b.ids(), "the exchange to go on")

    run(tmp_path, test)


@pytest.mark.req("LW-27")
def test_nothing_is_pulled_from_a_revoked_peer(tmp_path: Path):
    async def test(a: Place, b: Place, c: Place) -> None:
        for place in (b, c):
            await place.exchanges.exchange(a.address)
        c.befriend(b.address)
        await c.exchanges.visit(b.address)
        with a.runtime.store.read() as session:
            cid = next(each.cid for each in session.delegations() if each.hlc[12:] == b.id.to_bytes(8, "big"))
        revoke(a, cid)
        await c.exchanges.exchange(a.address)
        b.submit(5)
        before = c.ids()
        between = Between(c)
        done = await c.exchanges.visit(b.address)
        assert done.state == peers.REFUSED
        assert "was revoked" in done.detail
        assert c.ids() == before
        assert between.paths() == ["GET /healthz"]
        with pytest.raises(Exception, match="no reachable node"):
            await c.exchanges.fetch(bytes(32), 10)
        assert between.paths() == ["GET /healthz"]

    run(tmp_path, test, "a", "b", "c")


@pytest.mark.req("LW-28")
def test_held_ops_are_counted_in_the_answer(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        joined(a, guest)
        fast = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical() + 400_000)
        reply = await ask(a, guest, method="POST", query="", body=encode_sequence([fast]))
        assert reply.body == b'{"appended":0,"duplicated":0,"rejected":0,"held":1,"unlinked":0}'
        reply = await ask(a, guest, method="POST", path=wire.EXCHANGE, body=encode_sequence([fast]))
        assert reply.headers[wire.HELD] == "1"

    run(tmp_path, test, "a")


@pytest.mark.req("LW-22", "LW-49")
@pytest.mark.parametrize("case", ["relayed", "unknown variant", "bad signature", "not granted", "no such job"])
def test_a_refused_op_from_ahead_does_not_move_the_clock_that_ends_locks(tmp_path: Path, case: str):
    """A refused op dated 290 seconds ahead kept the locks of dead holders alive for that long."""

    async def test(a: Place) -> None:
        guest, third = Guest(7), Guest(8)
        joined(a, guest)
        introduced(a, third)
        wall = a.log.physical() + 290_000
        payload: Any = ScheduleJob(NO_ID, "acme.render", b"{}", b"")
        if case == "no such job":
            payload = ClaimWork(NO_ID, guest.id, 60_000)
        if case == "not granted":
            payload = DesignateCoordinator(guest.id)
        op = (third if case == "relayed" else guest).op(payload, wall, 0)
        if case == "bad signature":
            op = op[:-1] + b"x"
        if case == "unknown variant":
            at = op.index(decode(op).id, 16) - 1
            op = op[:at] + b"\x7f" + op[at + 1 :]
        reply = await ask(a, guest, method="POST", query="", body=encode_sequence([op]))
        is_held = case in ("not granted", "no such job")
        assert (b'"held":1' if is_held else b'"rejected":1') in reply.body
        granted = await lock_client(a.node, a.node.lock_processes).acquire(
            wanted(["k"], "dead", 10_000), is_bound=False
        )
        assert granted.hold.deadline <= a.log.physical() + 10_000

    run(tmp_path, test, "a")


@pytest.mark.req("LW-22")
def test_an_op_that_counts_moves_the_clock_and_one_that_does_not_waits_for_its_time(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        guest, later, now = Guest(7), 5_000, a.log.physical
        joined(a, guest)
        counts = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), wall := now() + later)
        await ask(a, guest, method="POST", query="", body=encode_sequence([counts]))
        with a.runtime.store.read() as session:
            assert session.head().wall >= wall
        refused = guest.op(DesignateCoordinator(guest.id), wall + later)
        follows = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), wall + later + 1)
        reply = await ask(a, guest, method="POST", query="", body=encode_sequence([refused, follows]))
        assert b'"held":2' in reply.body
        with a.runtime.store.read() as session:
            assert session.head().wall < wall + later
        a.log.physical = lambda: wall + later + 1
        last = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), wall + later + 2)
        reply = await ask(a, guest, method="POST", query="", body=encode_sequence([last]))
        assert b'"appended":1,"duplicated":0,"rejected":0' in reply.body, "of the push; the released ones do not count"
        with a.runtime.store.read() as session:
            assert session.held() == (0, None) and session.head().wall >= wall + later + 1

    run(tmp_path, test, "a")


@pytest.mark.req("LW-22", "LW-38")
def test_the_clock_does_not_hear_a_refused_op_from_too_far_ahead(tmp_path: Path):
    async def test(a: Place) -> None:
        guest, third = Guest(7), Guest(8)
        introduced(a, guest)
        introduced(a, third)
        wall = a.log.physical() + 900_000
        op = third.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), wall)
        await ask(a, guest, method="POST", query="", body=encode_sequence([op]))
        with a.runtime.store.read() as session:
            assert session.head().wall < wall

    run(tmp_path, test, "a")
