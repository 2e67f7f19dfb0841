"""The server side to the letter, over real sockets: what is asked, and what comes back."""

import json
from pathlib import Path

import pytest

from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, parse_frontier
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import STRICT, rules_hash
from hocket.kernel.ops import NO_ID, decode, encode_sequence, read_sequence
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import (
    DelegateUcan,
    ScheduleJob,
)
from hocket.mesh import gate as gates
from hocket.mesh import wire
from hocket.mesh.gate import BURST
from hocket.mesh.gate_requests import PAGE_OPS_DEFAULT
from hocket.mesh.outgoing import PAGE_OPS_MAX, own_frontier, page, reader
from tests.mesh.world import WORKER, Guest, Place, artifact, ask, delegation, introduced, joined, received, run, since

# Pulling.


@pytest.mark.req("LW-28")
def test_a_pull_gives_the_ops_in_hlc_order_with_the_headers_of_the_protocol(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        a.submit(5)
        await b.exchanges.exchange(a.address)
        b.submit(5)
        await b.exchanges.exchange(a.address)
        reply = await b.ask(a)
        ops = received(reply)
        assert [op.timestamp for op in ops] == sorted(op.timestamp for op in ops)
        assert {op.id for op in ops} == a.ids()
        assert reply.headers["content-type"] == "application/octet-stream"
        assert reply.headers["x-likewise-mesh-rules-hash"] == rules_hash(a.log.rules).hex()
        frontier = parse_frontier(reply.headers["x-likewise-next-frontier"])
        assert frontier == parse_frontier(reply.headers[wire.FRONTIER])
        assert frontier == {n: max(op.timestamp for op in ops if op.node_id == n) for n in (a.id, b.id)}
        # Ops go out as their authors signed them.
        with a.runtime.store.read() as session:
            assert {raw for raw, _ in read_sequence(reply.body)} == {
                a.log.signed(row.body) for row in session.entries_after(0, 100)
            }

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_pages_follow_each_other_and_a_pull_can_be_repeated(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        a.submit(23)
        await b.exchanges.exchange(a.address)
        seen: list[bytes] = []
        frontier: Frontier = {}
        while True:
            reply = await b.ask(a, query=since(frontier, 7))
            again = await b.ask(a, query=since(frontier, 7))
            assert (reply.body, reply.headers[wire.NEXT_FRONTIER]) == (again.body, again.headers[wire.NEXT_FRONTIER])
            ops = received(reply)
            assert len(ops) <= 7
            seen += [op.id for op in ops]
            frontier = parse_frontier(reply.headers[wire.NEXT_FRONTIER])
            if wire.FRONTIER in reply.headers:
                break
        assert len(seen) == len(set(seen))
        assert set(seen) == a.ids()
        last = await b.ask(a, query=since(frontier))
        assert (last.body, parse_frontier(last.headers[wire.NEXT_FRONTIER])) == (b"\0", frontier)

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_a_page_counts_the_bytes_of_ops_as_they_leave_the_node(tmp_path: Path):
    """On its own log an op has a short mark in the place of its signature."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        with a.runtime.store.read() as session:
            known = own_frontier(session)
        a.submit(40)
        for size in range(1_000, 4_000, 50):
            bodies = page(a.log, reader(a.log, b.id), known, limit=100, size=size).bodies
            assert bodies and sum(map(len, bodies)) <= size

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_an_answer_stays_within_the_bound(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        for n in range(12):
            blob = bytes([n]) * 1_000_000
            a.log.run(lambda tx, blob=blob: tx.author(artifact(a.log.new_id(tx.now), blob)))
        got: set[bytes] = set()
        frontier: Frontier = {}
        pages = 0
        while True:
            reply = await b.ask(a, query=since(frontier))
            assert len(reply.body) <= wire.BODY_BYTES_MAX
            got |= {op.id for op in received(reply)}
            frontier = parse_frontier(reply.headers[wire.NEXT_FRONTIER])
            pages += 1
            if wire.FRONTIER in reply.headers:
                break
        assert got == a.ids()
        assert pages == 2

    run(tmp_path, test)


@pytest.mark.req("LW-28")
@pytest.mark.parametrize(
    "query",
    [
        "",
        "limit=5",
        "since=",
        "since=!!!",
        "since=AA&limit=-1",
        "since=AA&limit=ten",
        "since=AA&limit=",
        "since=AA&limit=1.5",
        "since=AA&limit=%D9%A3",
        "since=AA&since=AA",
        "since=AA&other=1",
        "since=A",
        "since=AA==",
        "since=AAA",
        "since=AQ",
        "since=_____w8",
        "since=" + "A" * 5000,
        "&&&",
        "since",
    ],
)
def test_a_query_that_makes_no_sense_is_refused(tmp_path: Path, query: str):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        reply = await b.ask(a, query=query)
        assert (reply.status, reply.body) == (400, b"")
        assert reply.headers[wire.RULES_HASH] == rules_hash(a.log.rules).hex()

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_a_limit_is_kept_and_clamped(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        a.submit(PAGE_OPS_MAX + 10)
        nothing = await b.ask(a, query="since=AA&limit=0")
        assert (nothing.status, nothing.body, nothing.headers[wire.NEXT_FRONTIER]) == (200, b"\0", "AA")
        assert wire.FRONTIER not in nothing.headers
        assert len(received(await b.ask(a, query="since=AA&limit=3"))) == 3
        assert len(received(await b.ask(a, query="since=AA"))) == PAGE_OPS_DEFAULT
        for huge in (PAGE_OPS_MAX + 1, 10**9, 10**40):
            assert len(received(await b.ask(a, query=f"since=AA&limit={huge}"))) == PAGE_OPS_MAX

    run(tmp_path, test)


def test_a_frontier_ahead_of_the_server_is_no_trouble(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        future: Frontier = {a.id: Hlc(2**60, 0, a.id), 7: Hlc(5, 0, 7)}
        reply = await b.ask(a, query=since(future))
        assert received(reply) == [op for op in received(await b.ask(a)) if op.node_id == b.id]
        told = parse_frontier(reply.headers[wire.NEXT_FRONTIER])
        assert (told[a.id], told[7]) == (future[a.id], future[7])

    run(tmp_path, test)


# Pushing.


@pytest.mark.req("LW-28")
def test_a_push_is_counted_and_can_be_repeated(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        b.submit(10)
        with b.runtime.store.read() as session:
            body = encode_sequence(
                [b.log.signed(row.body) for row in session.entries_of_author(b.id.to_bytes(8, "big"), bytes(20), 99)]
            )
        first = await b.ask(a, "POST", query="", body=body)
        assert first.headers["content-type"] == "application/json"
        assert first.headers[wire.RULES_HASH] == rules_hash(a.log.rules).hex()
        assert json.loads(first.body) == {"appended": 10, "duplicated": 1, "rejected": 0, "held": 0, "unlinked": 0}
        count, digest = a.count(), a.digest()
        again = await b.ask(a, "POST", query="", body=body)
        assert json.loads(again.body) == {"appended": 0, "duplicated": 11, "rejected": 0, "held": 0, "unlinked": 0}
        assert (a.count(), a.digest()) == (count, digest)

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_what_is_refused_is_counted_without_a_reason(tmp_path: Path):
    async def test(a: Place) -> None:
        guest, stranger = Guest(7), Guest(8)
        joined(a, guest, (Capability("Ops", "Read", {}), Capability("Job", "Schedule", {"kind_prefix": ["acme."]})))
        now = a.log.physical()
        good = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), now)
        unauthorised = guest.op(ScheduleJob(NO_ID, "other.kind", b"{}", b""), now)
        unknown = stranger.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), now)
        forged = bytearray(guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), now))
        forged[-3] ^= 1
        body = encode_sequence([good, unauthorised, unknown, bytes(forged)])
        reply = await ask(a, guest, method="POST", query="", body=body)
        assert json.loads(reply.body) == {"appended": 1, "duplicated": 0, "rejected": 3, "held": 0, "unlinked": 0}
        with a.runtime.read() as session:
            jobs = [entry.job.kind for entry in session.each_job()]
            assert jobs == ["acme.render"]
            assert len(session.refusals(10)) == 2

    run(tmp_path, test, "a")


@pytest.mark.req("LW-28", "LW-34")
@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_a_truncated_body_is_taken_as_far_as_it_goes(tmp_path: Path, cut: int):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        b.submit(4)
        with b.runtime.store.read() as session:
            ops = [b.log.signed(row.body) for row in session.entries_of_author(b.id.to_bytes(8, "big"), bytes(20), 99)]
        body = encode_sequence(ops)[:-cut]
        reply = await b.ask(a, "POST", query="", body=body)
        counts = json.loads(reply.body)
        assert counts["rejected"] == 1
        assert counts["appended"] in (2, 3)
        assert (await b.exchanges.exchange(a.address)).pushed == 4 - counts["appended"]
        assert a.ids() == b.ids()

    run(tmp_path, test)


@pytest.mark.req("LW-28")
@pytest.mark.parametrize(
    "body",
    [
        b"\xff" * 40,
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x01",
        b"\x05" + b"\0" * 500,
        b"\x01" + bytes(16) + b"\x01" * 60,
        b"\x01" + bytes(16) + b"\x01\x01\x01\x01\x01" + b"\xff\xff\xff\x7f",
        b"not postcard at all",
        b"\0" + b"trailing",
    ],
    ids=range(8),
)
def test_a_hostile_body_changes_nothing(tmp_path: Path, body: bytes):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        ids, digest = a.ids(), a.digest()
        reply = await b.ask(a, "POST", query="", body=body)
        assert reply.status == 200
        counts = json.loads(reply.body)
        assert (counts["appended"], counts["duplicated"]) == (0, 0)
        assert counts["rejected"] >= 1
        assert (a.ids(), a.digest()) == (ids, digest)

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_a_body_of_eight_mebibytes_is_taken_and_one_byte_more_is_not(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        body = b"\0" + bytes(wire.BODY_BYTES_MAX - 1)
        assert (await b.ask(a, "POST", query="", body=body)).status == 200
        for path in (wire.OPS, wire.EXCHANGE, wire.INTRODUCE):
            reply = await b.ask(a, "POST", path, query="since=AA", body=body + b"\0")
            assert (reply.status, reply.body) == (413, b"")
            assert reply.headers[wire.RULES_HASH] == rules_hash(a.log.rules).hex()

    run(tmp_path, test)


def test_a_body_of_another_type_or_none_is_refused(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        for content_type in ("text/plain", "application/json", ""):
            headers = b.headers(a.id) | {"content-type": content_type}
            assert (await b.ask(a, "POST", query="", body=b"\0", headers=headers)).status == 415
        headers = b.headers(a.id) | {"content-type": wire.OCTETS}
        assert (await b.ask(a, "POST", query="", headers=headers)).status == 400

    run(tmp_path, test)


def test_an_exchange_pushes_and_pulls_at_once(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        b.submit(3)
        a.submit(2)
        with b.runtime.store.read() as session:
            mine = [b.log.signed(row.body) for row in session.entries_of_author(b.id.to_bytes(8, "big"), bytes(20), 99)]
        known = parse_frontier((await b.ask(a)).headers[wire.NEXT_FRONTIER])
        a.submit(1)
        reply = await b.ask(a, "POST", wire.EXCHANGE, since(known), encode_sequence(mine))
        counted = [reply.headers[name] for name in (wire.APPENDED, wire.DUPLICATED, wire.REJECTED)]
        assert counted == ["3", "1", "0"]
        assert len(received(reply)) == 4
        assert {decode(raw).id for raw in mine[1:]} < {op.id for op in received(reply)} < a.ids()
        assert (await b.ask(a, "POST", wire.EXCHANGE, "limit=3", b"\0")).status == 400

    run(tmp_path, test)


# Rules and limits.


@pytest.mark.req("LW-30")
def test_other_rules_are_a_conflict_and_the_operator_is_told(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        other = rules_hash(STRICT).hex()
        for told in (other, None, "", rules_hash(a.log.rules).hex()[:-1]):
            headers = b.headers(a.id)
            if told is None:
                del headers[wire.RULES_HASH]
            else:
                headers[wire.RULES_HASH] = told
            reply = await b.ask(a, headers=headers)
            assert (reply.status, reply.body) == (409, b"")
            assert reply.headers[wire.RULES_HASH] == rules_hash(a.log.rules).hex()
        assert any(other in notice and "409" in notice for notice in a.notices)
        assert (await b.ask(a)).status == 200
        assert a.gate.drift == {}
        # A hash is a number: its digits have no case.
        capitals = b.headers(a.id) | {wire.RULES_HASH: rules_hash(a.log.rules).hex().upper()}
        assert (await b.ask(a, headers=capitals)).status == 200

    run(tmp_path, test)


def test_whoever_asks_too_often_is_told_when_to_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # So slowly does the bucket fill up again that a busy machine cannot be slower.
    monkeypatch.setattr(gates, "RATE_PER_S", 0.1)

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        replies = []
        for _ in range(int(BURST) * 4):
            replies.append(await b.ask(a, query="since=AA&limit=0"))
            if replies[-1].status != 200:
                break
        assert replies[-1].status == 429
        assert int(replies[-1].headers["retry-after"]) >= 1
        # Another node has a bucket of its own.
        guest = Guest(7)
        introduced(a, guest)
        assert (await ask(a, guest)).status == 200

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/ops/", 404),
        ("GET", "/OPS", 404),
        ("GET", "/nothing", 404),
        ("PUT", "/ops", 405),
        ("DELETE", "/ops", 405),
        ("PATCH", "/hints", 405),
        ("GET", "/exchange", 405),
        ("POST", "/healthz", 405),
    ],
)
def test_other_paths_and_methods_are_not_there(tmp_path: Path, method: str, path: str, status: int):
    async def test(a: Place) -> None:
        reply = await a.ask(a, method, path, "")
        assert (reply.status, reply.body) == (status, b"")
        if status == 405:
            assert reply.headers["allow"]

    run(tmp_path, test, "a")


def test_health_tells_the_node_and_the_protocol_to_anybody(tmp_path: Path):
    async def test(a: Place) -> None:
        reply = await a.ask(a, "GET", wire.HEALTH, "", headers={})
        assert reply.status == 200
        assert json.loads(reply.body) == {"node": f"{a.id:016x}", "protocol": 1}

    run(tmp_path, test, "a")


def test_an_introduction_is_the_only_thing_that_a_stranger_can_bring(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        now = a.log.physical()
        proper = guest.op(delegation(a, guest.key.public, WORKER), now)
        job = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), now)
        of_another = guest.op(delegation(a, Guest(8).key.public, WORKER), now)
        foreign_user = SigningKey(b"u" * 32)
        headers = {wire.RULES_HASH: rules_hash(a.log.rules).hex(), "content-type": wire.OCTETS}
        for ops in ([job], [proper, job], [of_another], []):
            reply = await a.ask(a, "POST", wire.INTRODUCE, "", encode_sequence(ops) or b"\0", headers)
            assert reply.status == 400
        from hocket.kernel.ucan import issue

        token = issue(foreign_user, guest.key.public, WORKER, now // 1000 - 60, None)
        strange = guest.op(DelegateUcan(content_hash(token), token), now)
        count = a.count()
        # Whether it was believed is not told.
        assert (await a.ask(a, "POST", wire.INTRODUCE, "", encode_sequence([strange]), headers)).status == 204
        assert a.count() == count
        assert (await ask(a, guest)).status == 401
        assert (await a.ask(a, "POST", wire.INTRODUCE, "", encode_sequence([proper]), headers)).status == 204
        assert (await ask(a, guest)).status == 200

    run(tmp_path, test, "a")
