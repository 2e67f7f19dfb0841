"""What a reader may not have never reaches it, in answers and in hints, and nothing tells."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from hocket.bus.hints import ANYTHING, LOG, about
from hocket.families.jobs import claiming
from hocket.families.jobs.requests import cancel
from hocket.kernel.frontier import Frontier, parse_frontier
from hocket.kernel.ops import NO_ID, decode, encode_sequence
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import (
    JOB,
    CancelJob,
    CreateArtifact,
    EvictArtifact,
    Sanitised,
    ScheduleJob,
)
from hocket.log import Transaction
from hocket.mesh import wire
from hocket.mesh.grants import parse_grants
from hocket.mesh.hint_stream import _Listener
from hocket.work.handlers import kind
from tests.mesh.world import (
    Guest,
    Place,
    artifact,
    ask,
    enrolled,
    introduced,
    joined,
    received,
    revoke,
    run,
    since,
    until,
)

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
        with a.runtime.read() as session:
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
            a.log.run(lambda tx, content=content: tx.author(artifact(a.log.new_id(tx.now), content)))
        first, second = received(await ask(a, guest))
        assert isinstance(first.payload, Sanitised)
        assert first.payload.rules == ("TruncateContent(10)",)
        assert first.signature is None
        assert first.payload.payload.content_inline == b"x" * 10  # type: ignore[union-attr]
        # Nothing had to be taken out of this one, so it is the author's own word.
        assert isinstance(second.payload, CreateArtifact)
        assert second.signature is not None

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29", "LW-25")
def test_artifacts_go_to_whoever_may_read_the_kind_of_the_job_that_they_came_from(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, parse_grants([], worker=["acme."]))
        a.submit(1, "acme.render")
        a.submit(1, "secret.kind")
        with a.runtime.read() as session:
            ids = {entry.job.kind: entry.job.id for entry in session.each_job()}
        made: dict[str, bytes] = {}

        def make(tx: Transaction) -> None:
            for source, content in ((ids["acme.render"], b"ours"), (ids["secret.kind"], b"theirs"), (None, b"loose")):
                made[content.decode()] = a.log.new_id(tx.now)
                tx.author(replace(artifact(made[content.decode()], content), source_job=source))

        a.log.run(make)
        a.log.run(lambda tx: [tx.author(EvictArtifact(made[name])) for name in ("theirs", "ours")])
        ops = [op.payload for op in received(await ask(a, guest))]
        assert {each.kind for each in ops if isinstance(each, ScheduleJob)} == {"acme.render"}
        assert [each.content_inline for each in ops if isinstance(each, CreateArtifact)] == [b"ours"]
        assert [each.artifact_id for each in ops if isinstance(each, EvictArtifact)] == [made["ours"]]

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29")
def test_a_worker_does_not_run_a_job_on_a_payload_that_was_sanitised(tmp_path: Path):
    """It gets the op, and the job is not on its roster: there is nothing that it could claim."""

    async def test(a: Place) -> None:
        draft = kind("acme.render").draft
        (whole,) = a.runtime.submit([draft({"frame": 1})])
        (cut,) = a.runtime.submit([draft({"frame": 2, "position": [48.2, 16.4]})])
        a.submit(1, "secret.kind")
        gpu = await enrolled(tmp_path / "gpu", a, parse_grants([], worker=["acme."], sanitize=["StripGeo"]))
        try:
            assert (await gpu.exchanges.visit(a.address)).state == "ok"
            with gpu.runtime.read() as session:
                ops = [decode(row.body).payload for row in session.ops_after(0, 100)]
                (sent,) = [each.payload for each in ops if isinstance(each, Sanitised)]
                assert isinstance(sent, ScheduleJob) and (sent.job_id, sent.payload) == (cut.job_id, b'{"frame":2}')
                assert {each.job.id for each in session.each_job()} == {whole.job_id}
            claims = gpu.log.run(lambda tx: claiming.claim(tx, 1, 9, lambda kind: 10_000, offering=True))
            assert claims.taken == [] and [decode(each.schedule).payload for each in claims.wanted] == [
                ScheduleJob(whole.job_id, "acme.render", b'{"frame":1}', b"")
            ]
        finally:
            await gpu.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-29")
def test_a_job_that_comes_late_brings_what_was_said_about_it(tmp_path: Path):
    """An op about a job that is not here yet cannot be judged for a reader; it must not be lost for it."""

    async def test(a: Place, b: Place) -> None:
        reader, speaker = Guest(7), Guest(8)
        introduced(a, reader, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        joined(a, speaker, (Capability("Ops", "*", {}),))
        schedule = speaker.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical() - 2000, 0)
        job_id = decode(schedule).id
        cancelled = b.log.physical() - 1000
        other = Guest(9)
        joined(a, other, (Capability("Ops", "*", {}),))
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
        joined(a, guest)
        mine = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical())
        third = Guest(8)
        joined(a, third, (Capability("Ops", "*", {}),))
        others = third.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical())
        reply = await ask(a, guest, method="POST", query="", body=encode_sequence([mine, others]))
        assert json.loads(reply.body) == {"appended": 1, "duplicated": 0, "rejected": 1, "held": 0, "unlinked": 0}
        assert decode(others).id not in a.ids()

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
        await until(lambda: heard == 2, "the hint about the job that it may read")
        a.submit(1, "secret.kind")
        mine = guest.op(ScheduleJob(NO_ID, "acme.render", b"{}", b""), a.log.physical())
        await ask(a, guest, method="POST", query="", body=encode_sequence([mine]))
        a.submit(1, "acme.render")
        await until(lambda: heard == 3)
        listening.cancel()
        await asyncio.wait([listening])
        await until(lambda: not a.gate._hint_streams._listeners, "the end of the stream")

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
        async with asyncio.timeout(20):
            await anext(hints)
        await hints.aclose()  # type: ignore[attr-defined]

    run(tmp_path, test, "a")


@pytest.mark.req("LW-40")
def test_what_a_listener_was_given_is_not_hinted_at(tmp_path: Path):
    async def test(a: Place) -> None:
        guest, hint_streams = Guest(7), a.gate._hint_streams
        introduced(a, guest)
        listener = _Listener(guest.id, a.count())
        hint_streams._listeners[listener] = None
        a.submit(1)
        assert (await ask(a, guest)).status == 200
        assert hint_streams._with_news([listener]) == {}
        a.submit(1)
        assert list(hint_streams._with_news([listener])) == [listener]

    run(tmp_path, test, "a")


def test_a_listener_that_loses_its_standing_is_sent_away(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        cid = introduced(a, guest)
        hints = a.transport.hints(a.address, a.headers(a.id, key=guest.key))
        await anext(hints)
        revoke(a, cid)
        with pytest.raises(StopAsyncIteration):
            async with asyncio.timeout(20):
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


@pytest.mark.req("LW-40")
def test_a_hint_names_the_jobs_that_the_listener_may_read_and_no_others(tmp_path: Path):
    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest, (Capability("Job", "Read", {"kind_prefix": ["acme."]}),))
        hints = a.transport.hints(a.address, a.headers(a.id, key=guest.key))
        assert await anext(hints) == ANYTHING, "the first one says that anything may have happened before"
        drafts = [kind(name).draft({}) for name in ("secret.kind", "acme.render")]
        secret, render = (made.job_id for made in a.runtime.submit(drafts))
        async with asyncio.timeout(20):
            heard = await anext(hints)
        assert heard == about(LOG) | about(JOB, render)
        assert not heard.matches(about(JOB, secret))
        await hints.aclose()  # type: ignore[attr-defined]

    run(tmp_path, test, "a")
