"""The client side: what it asks, what it makes of every answer, and how it stands with its peers."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hocket.errors import Unreachable
from hocket.events import sentences
from hocket.kernel.arbitration import Reason
from hocket.kernel.frontier import decode_frontier, parse_frontier
from hocket.kernel.mesh_rules import STRICT, rules_hash
from hocket.kernel.ops import NO_ID, decode, encode_sequence, read_sequence
from hocket.kernel.ucan import ROOT, Capability
from hocket.kernel.vocabulary import DesignateCoordinator, ScheduleJob
from hocket.mesh import peer_exchange, peers, wire
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import Reply, Request
from hocket.store import OpRow
from tests.mesh.world import Guest, Place, delegation, joined, resigned, revoke, run


class Between:
    """Stands between a node and the network: remembers what was asked, and may answer itself."""

    def __init__(self, place: Place) -> None:
        self._real = place.transport
        self.asked: list[Request] = []
        self.answers: list[Callable[[Request], Reply | None]] = []
        place.exchanges = Exchanges(
            place.node, place.key, self, place.node.environment, emit=sentences(place.notices.append)
        )

    async def send(self, address: str, request: Request) -> Reply:
        self.asked.append(request)
        for answer in self.answers:
            reply = answer(request)
            if reply is not None:
                return reply
        return await self._real.send(address, request)

    def hints(self, address: str, headers: Mapping[str, str]):  # type: ignore[no-untyped-def]
        return self._real.hints(address, headers)

    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.asked]


@pytest.mark.slow
@pytest.mark.req("LW-40")
def test_a_first_sync_streams_and_the_next_batch_is_fetched_while_one_is_verified(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        a.submit(12_000)
        b.befriend(a.address)
        between = Between(b)
        overlapped = 0
        admitting = False
        call = b.node.call

        async def watched(work):  # type: ignore[no-untyped-def]
            nonlocal admitting
            admitting = "PeerExchange._admit" in work.__qualname__
            try:
                return await call(work)
            finally:
                admitting = False

        def watch(request: Request) -> Reply | None:
            nonlocal overlapped
            overlapped += admitting and request.method == "GET"
            return None

        b.node.call = watched  # type: ignore[method-assign]
        between.answers.append(watch)
        done = await b.exchanges.visit(a.address)
        assert done.pulled == 12_000 + 2
        assert between.paths().count("GET /ops") >= 3
        assert overlapped >= 1
        kept = decode_frontier(b.peer(a.address).pulled)
        assert kept[a.id].wall > 0
        assert a.digest() == b.digest()

    run(tmp_path, test)


@pytest.mark.req("LW-51")
def test_bundles_go_both_ways_with_ops_between_them(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        for place in (a, b):
            place.submit_bundle(1_500, "test.many")
            place.submit(3, "test.single")
            place.submit_bundle(2, "test.few")
        await b.exchanges.visit(a.address)
        assert a.ids() == b.ids() and a.digest() == b.digest()
        for place in (a, b):
            with place.runtime.read() as session:
                assert session.op_count() > session.entry_count() > 10
            assert place.runtime.verify().findings == []

    run(tmp_path, test)


def test_a_sync_that_was_cut_off_goes_on_where_it_was(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        a.submit(11_000)
        b.befriend(a.address)
        between = Between(b)
        count = 0

        def cut(request: Request) -> Reply | None:
            nonlocal count
            count += request.path == wire.OPS
            if request.path == wire.OPS and count == 3:
                raise Unreachable("the line is cut")
            return None

        between.answers.append(cut)
        assert (await b.exchanges.visit(a.address)).state == peers.UNREACHABLE
        assert b.count() > 5_000
        between.asked.clear()
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.OK, done
        assert done.pulled < 7_000
        assert a.digest() == b.digest()

    run(tmp_path, test)


def test_those_who_ask_during_an_exchange_share_the_next(tmp_path: Path):
    """The next one begins after all of them have asked, so it brings what each of them waits for."""

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        between = Between(b)
        await b.exchanges.visit(a.address)
        between.asked.clear()
        first = asyncio.create_task(b.exchanges.visit(a.address))
        others: list[asyncio.Task[peer_exchange.Exchanged]] = []

        def ask(request: Request) -> Reply | None:
            if not others:
                b.submit(1)
                others.extend(asyncio.create_task(b.exchanges.visit(a.address)) for _ in range(5))
            return None

        between.answers.append(ask)
        await first
        assert {(done.state, done.pushed) for done in await asyncio.gather(*others)} == {(peers.OK, 1)}
        assert between.paths() == ["GET /ops", "POST /exchange"]
        assert a.digest() == b.digest()

    run(tmp_path, test)


def test_an_exchange_that_fails_is_shared_by_nobody(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        between = Between(b)
        await b.exchanges.visit(a.address)
        exchange = await b.exchanges._exchange_with(a.address)
        between.asked.clear()
        others: list[asyncio.Task[peer_exchange.Exchanged]] = []

        def cut(request: Request) -> Reply | None:
            if len(between.asked) == 1:
                others.extend(asyncio.create_task(exchange.exchange()) for _ in range(3))
            if len(between.asked) == 2:
                raise Unreachable("the line is cut")
            return None

        between.answers.append(cut)
        await exchange.exchange()
        done = await asyncio.gather(*others, return_exceptions=True)
        assert [type(each) for each in done] == [Unreachable, peer_exchange.Exchanged, peer_exchange.Exchanged]
        assert len(between.asked) == 3

    run(tmp_path, test)


def test_the_second_exchange_is_one_round_trip(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        between = Between(b)
        await b.exchanges.visit(a.address)
        between.asked.clear()
        b.submit(1)
        a.submit(1)
        done = await b.exchanges.visit(a.address)
        assert (done.pulled, done.pushed) == (1, 1)
        assert between.paths() == ["POST /exchange"]
        between.asked.clear()
        assert (await b.exchanges.visit(a.address, unless_idle=True)).state == peers.OK
        assert between.asked == []
        await b.exchanges.visit(a.address)
        assert between.paths() == ["GET /ops"]

    run(tmp_path, test)


def test_nothing_is_sent_twice_to_whoever_has_it(tmp_path: Path):
    async def test(a: Place, b: Place, c: Place) -> None:
        for place in (a, b, c):
            place.submit(5)
        for place, other in ((b, a), (c, a), (c, b), (b, c)):
            place.befriend(other.address)
        await b.exchanges.visit(a.address)
        await c.exchanges.visit(a.address)
        between = Between(c)
        done = await c.exchanges.visit(b.address)
        # Of b's ops c knows all from a; b lacks those of c.
        assert done.pulled == 0
        replies = [request for request in between.asked if request.method == "GET" and request.path == wire.OPS]
        assert between.paths() == ["GET /healthz", "POST /introduce", "GET /ops", "POST /ops"]
        assert parse_frontier(replies[0].query.split("=")[1].split("&")[0]).keys() >= {a.id, b.id, c.id}
        assert a.ids() == c.ids() == b.ids()

    run(tmp_path, test, "a", "b", "c")


@pytest.mark.req("LW-28")
def test_a_server_that_knows_only_the_protocol_is_asked_to_the_letter(tmp_path: Path):
    """Its cursors are only ever repeated, and it is asked until an answer brings nothing new."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        a.submit(6_000)
        b.submit(3)
        b.befriend(a.address)
        between = Between(b)
        given: set[str] = {"AA"}

        def foreign(request: Request) -> Reply | None:
            if request.path != wire.OPS:
                return Reply(404)
            return None

        real = between._real.send

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            kept = {k: v for k, v in reply.headers.items() if not k.startswith("x-hocket")}
            if wire.NEXT_FRONTIER in kept:
                given.add(kept[wire.NEXT_FRONTIER])
            return reply._replace(headers=kept)

        b.transport.send = send  # type: ignore[method-assign]
        a.gate._origins = lambda: {a.address}
        between.answers.append(foreign)
        done = await b.exchanges.visit(a.address)
        assert (done.state, done.pulled) == (peers.OK, 6_000)
        assert "nothing was pushed" in done.detail
        cursors = [
            request.query.split("since=")[1].split("&")[0] for request in between.asked if request.path == "/ops"
        ]
        assert cursors[0] == "AA"
        assert set(cursors) <= given
        # Nobody has signed them, so they are not written down.
        assert decode_frontier(b.peer(a.address).pulled) == {}
        between.asked.clear()
        await b.exchanges.visit(a.address)
        assert f"since={cursors[-1]}&" in between.asked[-1].query

    run(tmp_path, test)


@pytest.mark.req("LW-30")
def test_other_rules_pause_a_peer_until_somebody_says_otherwise(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        a.submit(1)
        a.log.permissions_reader.rules = STRICT
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.PAUSED
        for rules in (STRICT, b.log.rules):
            assert rules_hash(rules).hex() in done.detail
        assert "resume" in done.detail
        assert b.peer(a.address).state == peers.PAUSED
        assert any("paused" in notice for notice in b.notices)
        between = Between(b)
        b.keep_in_touch()
        await asyncio.sleep(0.3)
        assert between.asked == []
        a.log.permissions_reader.rules = b.log.rules
        with b.runtime.store.write() as session:
            peers.resume(session, a.address)
        async with asyncio.timeout(20):
            while b.peer(a.address).state != peers.OK:
                await asyncio.sleep(0.02)
        assert a.ids() == b.ids()

    run(tmp_path, test)


@pytest.mark.req("LW-30")
def test_a_paused_peer_that_comes_by_itself_under_the_same_rules_is_tried_again(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        a.log.permissions_reader.rules = STRICT
        assert (await b.exchanges.visit(a.address)).state == peers.PAUSED
        a.befriend(b.address)
        assert (await a.exchanges.visit(b.address)).state == peers.PAUSED
        assert b.peer(a.address).state == peers.PAUSED
        a.log.permissions_reader.rules = b.log.rules
        assert (await a.exchanges.visit(b.address)).state == peers.OK
        assert b.peer(a.address).state == peers.NEW

    run(tmp_path, test)


def test_two_nodes_with_one_key_are_noticed(tmp_path: Path):
    """A home that was copied: each copy that exchanges takes up the history of the other, and says so."""

    async def test(a: Place) -> None:
        import shutil

        from hocket.node.runtime import Runtime

        first = Place(await asyncio.to_thread(Runtime.init, tmp_path / "first", tmp_path / "a" / "user.key"))
        first.runtime.close()
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        copies = [Place(Runtime.open(tmp_path / name)) for name in ("first", "second")]
        try:
            for copy in copies:
                copy.submit(2)
            await copies[0].exchanges.exchange(a.address)
            await copies[1].exchanges.exchange(a.address)
            assert any("another copy of this home" in notice for notice in copies[1].notices)
            await copies[0].exchanges.exchange(a.address)
            with copies[0].runtime.store.read() as session:
                assert session.refusal_counts()[Reason.TWIN] == 2
            assert a.digest() == copies[0].digest() == copies[1].digest()
            # A copy that does not ask first is found out by the first node that hears both.
            for number, copy in enumerate(copies):
                copy.submit(1, f"test.{number}")
            received = [copy.log.signed(row.body) for copy in copies for row in rows_of(copy)]
            a.log.admit([(raw, decode(raw)) for raw in received])
            assert a.log.permissions().forks.keys() == {copies[0].id}
        finally:
            for copy in copies:
                await copy.close()

    run(tmp_path, test, "a")


def rows_of(place: Place) -> list[OpRow]:
    with place.runtime.store.read() as session:
        return session.entries_of_author(place.id.to_bytes(8, "big"), bytes(20), 1_000)


@pytest.mark.req("LW-43")
@pytest.mark.parametrize("is_asked", [True, False])
def test_the_pinned_history_reaches_those_who_heard_the_other(tmp_path: Path, is_asked: bool):
    """Be it the node that asks, or the one that is asked."""

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        old = Guest(7)
        joined(a, old, ROOT)
        await b.exchanges.visit(a.address)
        owner, other = (a, b) if is_asked else (b, a)
        owner.log.run(lambda tx: tx.author(DesignateCoordinator(old.id)))
        await b.exchanges.visit(a.address)
        await b.exchanges.visit(a.address)
        fork_point, now = old.last, a.log.physical()
        pinned, later = (
            old.op(ScheduleJob(NO_ID, name, b"", b""), now + n, after=fork_point) for n, name in enumerate("xy")
        )
        owner.log.admit([(pinned, decode(pinned))])
        owner.log.run(lambda tx: tx.author(DesignateCoordinator(owner.id), (), old.id))
        other.log.admit([(later, decode(later))])
        Between(b)  # a new process, which has to ask what the other has
        for _ in range(4):
            await b.exchanges.visit(a.address)
        for place in (a, b):
            assert place.log.permissions().forks.keys() == {old.id}
            assert place.log.permissions().pinned == {decode(pinned).id}
        assert a.digest() == b.digest()

    run(tmp_path, test)


@pytest.mark.req("LW-43")
def test_two_histories_that_end_at_the_same_time_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Both nodes have the author up to the same time, so neither sends the other anything of it."""

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        guest = Guest(7)
        joined(a, guest, ROOT)
        await b.exchanges.visit(a.address)
        last, now = guest.last, a.log.physical()
        for place, name in ((a, "x"), (b, "y")):
            raw = guest.op(ScheduleJob(NO_ID, name, b"", b""), now, logical=9, after=last)
            assert place.log.admit([(raw, decode(raw))]).appended == 1
        Between(b)  # a new process, which has to ask what the other has
        await b.exchanges.visit(a.address)
        assert not b.log.permissions().forks
        monkeypatch.setattr(peer_exchange, "RECHECK_S", 0.0)
        await b.exchanges.visit(a.address)
        await b.exchanges.visit(a.address)
        for place in (a, b):
            assert place.log.permissions().forks.keys() == {guest.id}
        assert a.digest() == b.digest()

    run(tmp_path, test)


@pytest.mark.req("LW-30")
def test_an_answer_under_other_rules_is_not_taken_in(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        a.submit(1)
        between = Between(b)
        real = between._real.send

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            return reply._replace(headers={**reply.headers, wire.RULES_HASH: "00" * 32})

        b.transport.send = send  # type: ignore[method-assign]
        before = b.ids()
        assert (await b.exchanges.visit(a.address)).state == peers.PAUSED
        assert b.ids() == before

    run(tmp_path, test)


def test_a_node_of_another_user_is_refused_on_both_sides(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        from hocket.node.runtime import Runtime

        stranger = Place(await asyncio.to_thread(Runtime.init, tmp_path / "stranger"))
        try:
            await stranger.serve()
            stranger.submit(3)
            before = a.ids()
            a.befriend(stranger.address)
            stranger.befriend(a.address)
            for place, other in ((a, stranger), (stranger, a)):
                done = await place.exchanges.visit(other.address)
                assert done.state == peers.REFUSED
                assert place.peer(other.address).state == peers.REFUSED
            assert a.ids() == before
            assert not a.ids() & stranger.ids()
        finally:
            await stranger.close()

    run(tmp_path, test)


@pytest.mark.req("LW-27")
def test_a_revoked_node_is_refused_and_says_so(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        with a.runtime.store.read() as session:
            cid = next(each.cid for each in session.delegations() if each.hlc[12:] == b.id.to_bytes(8, "big"))
        revoke(a, cid)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.REFUSED
        assert "403" in done.detail

    run(tmp_path, test)


def test_another_node_at_the_address_of_a_known_one_is_not_believed(tmp_path: Path):
    async def test(a: Place, b: Place, c: Place) -> None:
        b.befriend(a.address, node=c.id)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.REFUSED
        assert "answers at" in done.detail

    run(tmp_path, test, "a", "b", "c")


def test_an_impostor_gets_nothing(tmp_path: Path):
    """It says that it is the owner's node, and lets everybody in, but cannot sign what the owner would."""

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        b.submit(5)
        fresh = Between(b)
        posted: list[Request] = []
        rules = rules_hash(b.log.rules).hex()

        def impostor(request: Request) -> Reply:
            if request.path == wire.HEALTH:
                return Reply(200, {}, b'{"node":"%016x","protocol":1}' % a.id)
            if request.method == "POST":
                posted.append(request)
            headers = {wire.RULES_HASH: rules, wire.NEXT_FRONTIER: "AA", wire.FRONTIER: "AA"}
            return Reply(200, headers, b"\0")

        fresh.answers.append(impostor)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.REFUSED
        assert "not signed by" in done.detail
        assert posted == []

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("status", "headers", "state", "retry_s"),
    [
        (429, {"retry-after": "7"}, peers.OK, 7.0),
        (503, {}, peers.OK, 5.0),
        (429, {"retry-after": "99999999"}, peers.OK, 3600.0),
        (500, {}, peers.UNREACHABLE, 0.0),
        (404, {}, peers.UNREACHABLE, 0.0),
        (302, {"location": "http://elsewhere"}, peers.UNREACHABLE, 0.0),
        (200, {}, peers.PAUSED, 0.0),
    ],
)
def test_every_status_has_its_meaning(tmp_path: Path, status: int, headers: dict[str, str], state: str, retry_s: float):
    async def test(a: Place) -> None:
        a.befriend("http://peer")
        between = Between(a)
        between.answers.append(lambda request: Reply(status, headers))
        done = await a.exchanges.visit("http://peer")
        assert (done.state, done.retry_s) == (state, retry_s)

    run(tmp_path, test, "a")


@pytest.mark.parametrize("frontier", [None, "", "!!!", "AAA"])
def test_an_answer_without_a_frontier_is_no_answer(tmp_path: Path, frontier: str | None):
    async def test(a: Place) -> None:
        a.befriend("http://peer")
        between = Between(a)
        headers = {wire.RULES_HASH: rules_hash(a.log.rules).hex()}
        if frontier is not None:
            headers[wire.NEXT_FRONTIER] = frontier
        between.answers.append(lambda request: Reply(200, headers, b"\0"))
        assert (await a.exchanges.visit("http://peer")).state == peers.UNREACHABLE

    run(tmp_path, test, "a")


def test_a_peer_that_takes_only_small_bodies_gets_small_ones(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        b.submit(400, size=5_000)
        fresh = Between(b)

        def small(request: Request) -> Reply | None:
            large = request.method == "POST" and len(request.body) > 300_000
            return Reply(413, {wire.RULES_HASH: rules_hash(b.log.rules).hex()}) if large else None

        fresh.answers.append(small)
        done = await b.exchanges.visit(a.address)
        assert (done.state, done.pushed) == (peers.OK, 400)
        assert a.ids() == b.ids()

    run(tmp_path, test)


@pytest.mark.req("LW-34")
def test_an_op_that_cannot_be_read_does_not_hide_those_behind_it(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        a.submit(40)
        with a.runtime.store.read() as session:
            bad = session.ops_after(0, 100)[-1].id
        # A schema version of the future: nobody here can tell where such an op ends. It is the last of its author's, so
        # that nothing follows it.
        with a.runtime.store.read() as session:
            body = a.log.signed(session.ops_after(0, 100)[-1].body)
        strange = body[:16] + b"\x7f" + body[17:]
        between = Between(b)
        real = between._real.send

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            if request.path != wire.OPS or reply.status != 200:
                return reply
            ops = []
            for raw, op in read_sequence(reply.body):
                ops.append(strange if op.id == bad else raw)  # type: ignore[union-attr]
            return resigned(a, b.id, request, reply._replace(body=encode_sequence(ops)))

        b.transport.send = send  # type: ignore[method-assign]
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.OK
        assert a.ids() - b.ids() == {bad}

    run(tmp_path, test)


def test_ops_whose_author_is_not_known_yet_are_asked_for_again(tmp_path: Path):
    """A peer's answer leaves out an introduction; the ops that hang on it are not lost, and nothing else waits."""

    async def test(a: Place, b: Place) -> None:
        guest = Guest(7)
        introduction = guest.op(delegation(a, guest.key.public, (Capability("Ops", "*", {}),)), a.log.physical() - 50)
        job = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical() - 40)
        a.log.admit(read_sequence(encode_sequence([introduction, job])))
        a.submit(3)
        b.befriend(a.address)
        between = Between(b)
        hides = True
        real = between._real.send

        async def send(address: str, request: Request) -> Reply:
            reply = await real(address, request)
            if not hides or request.path != wire.OPS:
                return reply
            kept = [raw for raw, _ in read_sequence(reply.body) if raw != introduction]
            return resigned(a, b.id, request, reply._replace(body=encode_sequence(kept)))

        b.transport.send = send  # type: ignore[method-assign]
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.OK
        assert len(a.ids() - b.ids()) == 2
        assert guest.id not in decode_frontier(b.peer(a.address).pulled)
        hides = False
        await b.exchanges.visit(a.address)
        assert a.ids() == b.ids()

    run(tmp_path, test)


def test_a_wrong_clock_is_put_right_for_the_tokens(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        environment = b.node.environment
        real = environment.physical_ms

        class Slow:
            chance, monotonic = environment.chance, environment.monotonic

            def physical_ms(self) -> int:
                return real() - 500_000

        b.exchanges = Exchanges(b.node, b.key, b.transport, Slow())  # type: ignore[arg-type]
        b.befriend(a.address)
        assert (await b.exchanges.visit(a.address)).state == peers.OK

    run(tmp_path, test)


class OtherTime:
    """A machine whose clock is off by so many milliseconds."""

    def __init__(self, place: Place, off_ms: int) -> None:
        self._environment, self._off_ms = place.node.environment, off_ms
        self.chance, self.monotonic = self._environment.chance, self._environment.monotonic

    def physical_ms(self) -> int:
        return self._environment.physical_ms() + self._off_ms


@pytest.mark.parametrize(("off_ms", "said"), [(-7_200_000, "2 h behind"), (7_200_000, "2 h ahead of")])
def test_a_clock_that_is_far_off_is_named(tmp_path: Path, off_ms: int, said: str):
    async def test(a: Place, b: Place) -> None:
        b.exchanges = Exchanges(b.node, b.key, b.transport, OtherTime(b, off_ms))  # type: ignore[arg-type]
        b.befriend(a.address)
        done = await b.exchanges.visit(a.address)
        assert done.state == peers.REFUSED
        assert f"the clock here is {said} the clock there" in done.detail

    run(tmp_path, test)


def test_a_node_whose_ops_are_held_back_for_their_time_is_told(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        await b.exchanges.visit(a.address)
        b.log.wall = lambda floor=0: max(floor, b.log.physical() + 3_600_000)
        b.submit(2)
        done = await b.exchanges.visit(a.address)
        assert "holds 2 ops of this node back" in done.detail and "clock here is ahead" in done.detail
        assert "clock here is ahead" in b.peer(a.address).detail

    run(tmp_path, test)
