"""The server side to the letter, over real sockets: what is asked, what comes back, and what never does."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hocket.kernel.bearer import make_bearer
from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, frontier_text, parse_frontier
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, encode_sequence, read_sequence
from hocket.kernel.rules import STRICT, rules_hash
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import (
    CancelJob,
    CreateArtifact,
    DelegateUcan,
    IngestEvidence,
    RevokeUcan,
    Sanitised,
    ScheduleJob,
)
from hocket.mesh import gate as gates
from hocket.mesh import wire
from hocket.mesh.gate import BURST
from hocket.mesh.outgoing import PAGE_OPS_MAX
from hocket.mesh.wire import Reply
from hocket.work.jobs import cancel
from tests.mesh.world import WORKER, Guest, Place, delegation, since, until, world


def run(directory: Path, test: Callable[..., Awaitable[None]], *names: str) -> None:
    async def inside() -> None:
        async with world(directory, *(names or ("a", "b"))) as places:
            await test(*places)

    asyncio.run(inside())


def introduced(a: Place, guest: Guest, grants: tuple[Capability, ...] = WORKER, **bounds: Any) -> bytes:
    """Lets a guest in: its delegation is on the log, and so its key is known. Gives the token's hash."""
    payload = delegation(a, guest.key.public, grants, **bounds)
    a.log.run(lambda tx: tx.author(payload))
    return payload.ucan_cid


def received(reply: Reply) -> list[Op]:
    assert reply.status == 200
    return [op for _, op in read_sequence(reply.body) if isinstance(op, Op)]


async def ask(a: Place, guest: Guest, **request: Any) -> Reply:
    changes = request.pop("changes", {})
    headers = a.headers(a.id, key=guest.key, **changes) | request.pop("headers", {})
    if request.get("body"):
        headers.setdefault("content-type", wire.OCTETS)
    return await a.ask(a, headers={k: v for k, v in headers.items() if v is not None}, **request)


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
        # The stored bytes go out as they are.
        with a.desk.store.read() as session:
            assert {raw for raw, _ in read_sequence(reply.body)} == {row.body for row in session.ops_after(0, 100)}

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
def test_an_answer_stays_within_the_bound(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        for n in range(12):
            blob = bytes([n]) * 1_000_000
            a.log.run(lambda tx, blob=blob: tx.author(_artifact(tx.new_id(tx.now), blob)))
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


def _artifact(artifact_id: bytes, content: bytes) -> CreateArtifact:
    return CreateArtifact(artifact_id, "test.blob", None, (), content_hash(content), content, None, None, len(content))


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
        assert len(received(await b.ask(a, query="since=AA"))) == gates.PAGE_OPS_DEFAULT
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


# What a reader may not have.


@pytest.mark.req("LW-29")
def test_what_a_reader_may_not_have_is_left_out_and_nothing_tells(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        kinds = Capability("Job", "Read", {"kind_prefix": ["acme."]})
        introduced(a, guest, (kinds, Capability("Registration", "Read", {})))
        before = await ask(a, guest)
        frontier = parse_frontier(before.headers[wire.NEXT_FRONTIER])
        a.submit(3, "secret.kind")
        cursor = since(frontier)
        hidden = await ask(a, guest, query=cursor)
        quiet = {wire.NODE, "date"}
        # An answer that hides something is the answer of a log in which it is not.
        assert (hidden.status, hidden.body) == (200, b"\0")
        assert parse_frontier(hidden.headers[wire.NEXT_FRONTIER]) == frontier
        assert {k: v for k, v in hidden.headers.items() if k not in quiet} == {
            k: v for k, v in (await ask(a, guest, query=cursor)).headers.items() if k not in quiet
        }
        assert parse_frontier(hidden.headers[wire.FRONTIER]) == {}
        a.submit(2, "acme.render")
        a.submit(2, "secret.kind")
        shown = await ask(a, guest, query=cursor)
        ops = received(shown)
        assert [op.payload.kind for op in ops] == ["acme.render", "acme.render"]  # type: ignore[union-attr]
        assert parse_frontier(shown.headers[wire.NEXT_FRONTIER])[a.id] == ops[-1].timestamp

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29")
def test_pages_of_what_a_reader_may_have_are_as_full_as_others(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        for _ in range(6):
            a.submit(40, "secret.kind")
            a.submit(1, "acme.render")
        frontier: Frontier = {}
        sizes = []
        while True:
            reply = await ask(a, guest, query=since(frontier, 4))
            sizes.append(len(received(reply)))
            frontier = parse_frontier(reply.headers[wire.NEXT_FRONTIER])
            if wire.FRONTIER in reply.headers:
                break
        assert sizes == [4, 2]

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29")
def test_ops_about_a_job_go_to_whoever_may_read_its_kind(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        a.submit(1, "acme.render")
        a.submit(1, "secret.kind")
        with a.desk.read() as session:
            jobs = {entry.job.kind: entry.job.id for entry in session.each_job()}
        for job_id in jobs.values():
            a.log.run(partial(cancel, job_id=job_id, reason="for a test"))
        ops = received(await ask(a, guest))
        assert {op.payload.job_id for op in ops} == {jobs["acme.render"]}  # type: ignore[union-attr]
        assert sum(isinstance(op.payload, CancelJob) for op in ops) == 1

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29")
def test_what_a_reader_may_have_in_part_is_sanitised_and_unsigned(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Artifact", "Read", {"sanitize": ["TruncateContent(10)"]}),))
        long, short = b"x" * 50, b"short"
        for content in (long, short):
            a.log.run(lambda tx, content=content: tx.author(_artifact(tx.new_id(tx.now), content)))
        first, second = received(await ask(a, guest))
        assert isinstance(first.payload, Sanitised)
        assert first.payload.rules == ("TruncateContent(10)",)
        assert first.signature is None
        assert first.payload.payload.content_inline == b"x" * 10  # type: ignore[union-attr]
        # Nothing had to be taken out of this one, so it is the author's own word.
        assert isinstance(second.payload, CreateArtifact)
        assert second.signature is not None

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29")
def test_a_job_that_comes_late_brings_what_was_said_about_it(tmp_path: Path):
    """An op about a job that is not here yet cannot be judged for a reader; it must not be lost for it."""

    async def test(a: Place, b: Place) -> None:
        reader, speaker = Guest(7), Guest(8)
        introduced(a, reader, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        introduced(a, speaker, (Capability("Ops", "*", {}),))
        job_id, now = bytes(15) + b"\1", a.log.physical()
        schedule = speaker.op(ScheduleJob(job_id, "acme.render", b"{}", b""), now - 2000, 0)
        cancelled = b.log.physical() - 1000
        other = Guest(9)
        introduced(a, other, (Capability("Ops", "*", {}),))
        cancel = other.op(CancelJob(job_id, "late"), cancelled)
        assert (await ask(a, other, method="POST", query="", body=encode_sequence([cancel]))).status == 200
        early = await ask(a, reader)
        assert decode(cancel).id not in {op.id for op in received(early)}
        await ask(a, speaker, method="POST", query="", body=encode_sequence([schedule]))
        cursor = parse_frontier(early.headers[wire.NEXT_FRONTIER])
        late = received(await ask(a, reader, query=since(cursor)))
        assert [op.id for op in late] == [decode(schedule).id, decode(cancel).id]

    run(tmp_path, test)


def test_a_node_with_gaps_passes_on_only_what_it_wrote(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest)
        mine = guest.op(ScheduleJob(bytes(15) + b"\2", "acme.render", b"{}", b""), a.log.physical())
        third = Guest(8)
        introduced(a, third, (Capability("Ops", "*", {}),))
        others = third.op(ScheduleJob(bytes(15) + b"\3", "acme.render", b"{}", b""), a.log.physical())
        reply = await ask(a, guest, method="POST", query="", body=encode_sequence([mine, others]))
        assert json.loads(reply.body) == {"appended": 1, "duplicated": 0, "rejected": 1}
        assert decode(others).id not in a.ids()

    run(tmp_path, test, "a")


# Pushing.


@pytest.mark.req("LW-28")
def test_a_push_is_counted_and_can_be_repeated(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        b.submit(10)
        with b.desk.store.read() as session:
            body = encode_sequence([row.body for row in session.ops_of_author(b.id.to_bytes(8, "big"), bytes(20), 99)])
        first = await b.ask(a, "POST", query="", body=body)
        assert first.headers["content-type"] == "application/json"
        assert first.headers[wire.RULES_HASH] == rules_hash(a.log.rules).hex()
        assert json.loads(first.body) == {"appended": 10, "duplicated": 1, "rejected": 0}
        count, digest = a.count(), a.digest()
        again = await b.ask(a, "POST", query="", body=body)
        assert json.loads(again.body) == {"appended": 0, "duplicated": 11, "rejected": 0}
        assert (a.count(), a.digest()) == (count, digest)

    run(tmp_path, test)


@pytest.mark.req("LW-28")
def test_what_is_refused_is_counted_without_a_reason(tmp_path: Path):
    async def test(a: Place) -> None:
        guest, stranger = Guest(7), Guest(8)
        introduced(a, guest, (Capability("Ops", "Read", {}), Capability("Job", "Schedule", {"kind_prefix": ["acme."]})))
        now = a.log.physical()
        good = guest.op(ScheduleJob(bytes(15) + b"\1", "acme.render", b"{}", b""), now)
        unauthorised = guest.op(ScheduleJob(bytes(15) + b"\2", "other.kind", b"{}", b""), now)
        unknown = stranger.op(ScheduleJob(bytes(15) + b"\3", "acme.render", b"{}", b""), now)
        forged = bytearray(guest.op(ScheduleJob(bytes(15) + b"\4", "acme.render", b"{}", b""), now))
        forged[-3] ^= 1
        body = encode_sequence([good, unauthorised, unknown, bytes(forged)])
        reply = await ask(a, guest, method="POST", query="", body=body)
        assert json.loads(reply.body) == {"appended": 1, "duplicated": 0, "rejected": 3}
        with a.desk.read() as session:
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
        with b.desk.store.read() as session:
            ops = [row.body for row in session.ops_of_author(b.id.to_bytes(8, "big"), bytes(20), 99)]
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
        with b.desk.store.read() as session:
            mine = [row.body for row in session.ops_of_author(b.id.to_bytes(8, "big"), bytes(20), 99)]
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
        for told in (other, None, "", rules_hash(a.log.rules).hex().upper()):
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

    run(tmp_path, test)


def test_whoever_asks_too_often_is_told_when_to_come_back(tmp_path: Path):
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
        job = guest.op(ScheduleJob(bytes(15) + b"\1", "acme.render", b"{}", b""), now)
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


# Hints.


@pytest.mark.req("LW-40")
def test_a_hint_comes_with_what_the_listener_may_have_and_with_nothing_else(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        heard = 0

        async def listen() -> None:
            nonlocal heard
            async for _ in a.transport.hints(a.address, a.headers(a.id, key=guest.key)):
                heard += 1

        listening = asyncio.create_task(listen())
        await until(lambda: heard == 1, "the first hint")
        a.submit(1, "secret.kind")
        a.submit(1, "acme.render")
        async with asyncio.timeout(1.0):
            await until(lambda: heard == 2)
        a.submit(1, "secret.kind")
        mine = guest.op(ScheduleJob(bytes(15) + b"\2", "acme.render", b"{}", b""), a.log.physical())
        await ask(a, guest, method="POST", query="", body=encode_sequence([mine]))
        a.submit(1, "acme.render")
        await until(lambda: heard == 3)
        listening.cancel()
        await asyncio.wait([listening])
        await until(lambda: not a.gate._hub._listeners, "the end of the stream")

    run(tmp_path, test, "a")


@pytest.mark.req("LW-40")
def test_a_job_that_came_the_short_way_in_is_hinted_at(tmp_path: Path):
    """Such a job is not in the roster yet when the log grows."""

    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        hints = a.transport.hints(a.address, a.headers(a.id, key=guest.key))
        await anext(hints)
        a.log.append_plain("acme.render", b"{}")
        async with asyncio.timeout(5):
            await anext(hints)
        await hints.aclose()  # type: ignore[attr-defined]

    run(tmp_path, test, "a")


def test_a_listener_that_loses_its_standing_is_sent_away(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        cid = introduced(a, guest)
        hints = a.transport.hints(a.address, a.headers(a.id, key=guest.key))
        await anext(hints)
        a.log.run(lambda tx: tx.author(RevokeUcan(cid)))
        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(5):
                while True:
                    await anext(hints)

    run(tmp_path, test, "a")


def test_only_so_many_listeners_of_one_node(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest)
        streams = []
        for _ in range(8):
            reply = await a.gate.answer(wire.Request("GET", wire.HINTS, "", a.headers(a.id, key=guest.key)))
            assert reply.stream is not None
            await anext(reply.stream)
            streams.append(reply.stream)
        assert (await ask(a, guest, path=wire.HINTS, query="")).status == 429
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]

    run(tmp_path, test, "a")


# Who is asking.


@pytest.mark.req("LW-31")
def test_a_token_works_once(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        headers = b.headers(a.id)
        assert (await b.ask(a, headers=headers)).status == 200
        replayed = await b.ask(a, headers=headers)
        assert (replayed.status, replayed.body) == (401, b"")
        same_nonce = [b.headers(a.id, nonce="again") for _ in range(2)]
        assert [(await b.ask(a, headers=each)).status for each in same_nonce] == [200, 401]
        # A nonce is one node's own.
        guest = Guest(7)
        introduced(a, guest)
        assert (await ask(a, guest, changes={"nonce": "again"})).status == 200

    run(tmp_path, test)


@pytest.mark.req("LW-31")
@pytest.mark.parametrize(
    "case",
    [
        "none",
        "basic",
        "garbage",
        "two parts",
        "expired",
        "future",
        "too long",
        "another audience",
        "another key",
        "unsigned",
        "another user",
    ],
)
def test_a_bad_token_gets_nobody_in(tmp_path: Path, case: str):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        now = a.log.physical() // 1000
        good = make_bearer(b.key, str(a.id), now, "n")
        header, payload, signature = good.split(".")
        token = {
            "garbage": "Bearer garbage",
            "two parts": f"Bearer {header}.{payload}",
            "expired": f"Bearer {make_bearer(b.key, str(a.id), now - 1000, 'n', 300)}",
            "future": f"Bearer {make_bearer(b.key, str(a.id), now + 1000, 'n', 300)}",
            "too long": f"Bearer {make_bearer(b.key, str(a.id), now, 'n', 3601)}",
            "another audience": f"Bearer {make_bearer(b.key, str(b.id), now, 'n')}",
            "another key": f"Bearer {header}.{payload}.{make_bearer(a.key, str(a.id), now, 'n').split('.')[2]}",
            "unsigned": f"Bearer {header}.{payload}.",
            "another user": f"Bearer {make_bearer(SigningKey(b'z' * 32), str(a.id), now, 'n')}",
            "basic": "Basic dXNlcjpwYXNz",
        }.get(case)
        headers = b.headers(a.id)
        if token is None:
            del headers["authorization"]
        else:
            headers["authorization"] = token
        before = dict(a.gate.refusals)
        reply = await b.ask(a, headers=headers)
        assert (reply.status, reply.body) == (401, b"")
        assert sum(a.gate.refusals.values()) == sum(before.values()) + 1
        assert any("401" in notice for notice in a.notices)
        # All that can be learnt is the same, whatever was wrong.
        assert reply.headers.keys() - {"date", "content-length"} == {wire.RULES_HASH, wire.TIME, "www-authenticate"}
        assert signature

    run(tmp_path, test)


@pytest.mark.req("LW-31")
def test_a_token_from_before_the_server_started_is_no_good(tmp_path: Path):
    """What was used is forgotten with the process, so a token could be used again."""

    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        old = b.headers(a.id, now=a.log.physical() // 1000 - 5)
        assert (await b.ask(a, headers=old)).status == 401

    run(tmp_path, test)


@pytest.mark.req("LW-27")
def test_a_revoked_node_is_sent_away(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        cid = introduced(a, guest)
        assert (await ask(a, guest)).status == 200
        a.log.run(lambda tx: tx.author(RevokeUcan(cid)))
        for method, path in (("GET", wire.OPS), ("POST", wire.OPS), ("POST", wire.EXCHANGE), ("GET", wire.HINTS)):
            reply = await ask(a, guest, method=method, path=path, body=b"" if method == "GET" else b"\0")
            assert (reply.status, reply.body) == (403, b"")

    run(tmp_path, test, "a")


def test_a_node_whose_delegation_has_ended_is_sent_away(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, expires=a.log.physical() // 1000 - 1)
        assert (await ask(a, guest)).status == 403

    run(tmp_path, test, "a")


def test_the_answer_says_which_node_gave_it(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        from hocket.kernel.bearer import check_bearer, read_bearer

        await b.exchanges.exchange(a.address)
        reply = await b.ask(a, headers=b.headers(a.id, nonce="mine"))
        token = reply.headers[wire.NODE]
        said = read_bearer(token)
        assert (said.node, said.nonce) == (a.id, "mine")
        assert check_bearer(token, said, a.key.public, (str(b.id),), a.log.physical() // 1000) is None

    run(tmp_path, test)


def test_a_refusal_is_told_once_a_minute_and_counted_each_time(tmp_path: Path):
    async def test(a: Place) -> None:
        for _ in range(5):
            assert (await a.ask(a, "GET", "/nothing", "")).status == 404
        assert a.gate.refusals["a path that is not there"] == 5
        assert len(a.notices) == 1

    run(tmp_path, test, "a")


def test_frontiers_of_many_authors_fit_the_wire(tmp_path: Path):
    async def test(a: Place, b: Place) -> None:
        await b.exchanges.exchange(a.address)
        many: Frontier = {n: Hlc(2**41, 3, n) for n in range(2**63, 2**63 + 1000)}
        reply = await b.ask(a, query=since(many))
        assert reply.status == 200
        assert parse_frontier(reply.headers[wire.NEXT_FRONTIER]).keys() >= many.keys()
        assert len(frontier_text(many)) > 30_000

    run(tmp_path, test)


def test_evidence_goes_only_to_readers_of_evidence(tmp_path: Path):
    assert IngestEvidence.__struct_fields__  # ops of other Likewise software are filtered like our own

    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Evidence", "Read", {}),))
        a.submit(1)
        assert received(await ask(a, guest)) == []

    run(tmp_path, test, "a")
