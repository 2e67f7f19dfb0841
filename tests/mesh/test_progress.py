"""The progress of a job on other nodes: it comes with the heartbeats of the node that runs the job, not with ops."""

import math
from pathlib import Path
from typing import Any

import pytest

from hocket.families.jobs import claiming, view
from hocket.families.jobs.progress import SHARED_BYTES_MAX, ProgressNote, own_notes
from hocket.families.liveness import BEAT_S
from hocket.kernel.ids import ulid_text
from hocket.mesh.grants import parse_grants
from hocket.mesh.presence import PresenceSharing
from hocket.store import ProgressRow
from hocket.work.presence import TEXT_CHARS_MAX, NodePresence, NodeSaid, Serving, said_text
from tests.mesh.test_presence import beats, employ
from tests.mesh.world import Place, enrolled, run, until

KIND = "acme.render"


async def claimed(at: Place, by: Place) -> bytes:
    """A job of the coordinator that another node runs."""
    at.submit(1, KIND)
    await by.exchanges.visit(at.address)
    by.log.run(lambda tx: claiming.claim(tx, 1, 1, {KIND: 3_600_000}.get, offering=True))
    await by.exchanges.visit(at.address)
    await by.exchanges.visit(at.address)
    with by.runtime.read() as session:
        (entry,) = session.claimed()
    assert entry.job.claimer == by.id
    return entry.job.id


def note(place: Place, job_id: bytes, text: bytes) -> None:
    with place.runtime.store.write() as session:
        session.put_progress([ProgressRow(job_id, place.id.to_bytes(8, "big"), 1, text)])


def shown(place: Place, job_id: bytes) -> Any:
    with place.runtime.read() as session:
        return view.brief(session, view.find(session, ulid_text(job_id)))["progress"]


@pytest.mark.touches("VX-11")
def test_other_nodes_see_the_progress_with_the_heartbeats(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
        employ(b, Serving((KIND,)))
        job_id = await claimed(a, b)
        await c.exchanges.visit(a.address)
        before = a.ids(), b.ids()
        for text in (b'{"done":1}', b'{"done":2}'):
            note(b, job_id, text)
            await beats(b, a)
            await beats(c, a)
            expected = {"done": int(text[-2:-1])}
            assert [shown(place, job_id) for place in (b, c)] == [expected] * 2

            async def is_stored(expected: object = expected) -> bool:
                await beats(b, a)
                return bool(shown(a, job_id) == expected)

            await until(is_stored)  # a server stores what it hears once a second
        assert (a.ids(), b.ids()) == before

    run(tmp_path, test, "a", "b", "c")


def test_a_node_sends_progress_as_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no heartbeat and no visit is ever due, so nothing but the change makes it send."""
    due_s = PresenceSharing.due_s

    def due_without_heartbeats(sharing: PresenceSharing, address: str, every_s: float = BEAT_S) -> float:
        return due_s(sharing, address, math.inf if every_s == BEAT_S else every_s)

    monkeypatch.setattr(PresenceSharing, "due_s", due_without_heartbeats)
    monkeypatch.setattr("hocket.mesh.loop.CADENCE_S", 1e6)

    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        employ(b, Serving((KIND,)))
        job_id = await claimed(a, b)
        b.keep_in_touch()
        for text in (b"1", b"2", b"3"):
            note(b, job_id, text)
            await until(lambda text=text: shown(a, job_id) == int(text), "the progress")

    run(tmp_path, test)


def test_a_reader_hears_only_of_jobs_that_it_may_read(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        employ(b, Serving((KIND,)))
        job_id = await claimed(a, b)
        note(b, job_id, b'"at 52.5, 13.4"')
        await beats(b, a)
        for name, grants, is_shown in (
            ("reads", parse_grants(["job:read:acme."]), True),
            ("cut", parse_grants(["job:read:acme."], sanitize=["TruncateContent(4)"]), False),
            ("other", parse_grants(["job:read:other."]), False),
        ):
            leaf = await enrolled(tmp_path / name, a, grants)
            try:
                await leaf.exchanges.visit(a.address)
                answer = await beats(leaf, a)
                notes = [each for node in answer["nodes"] for each in node.get("progress", ())]
                assert [each["note"] for each in notes] == (['"at 52.5, 13.4"'] if is_shown else []), name
            finally:
                await leaf.close()

    run(tmp_path, test)


def test_a_note_of_an_earlier_claim_or_of_another_node_does_not_count(tmp_path: Path) -> None:
    async def test(a: Place, b: Place, c: Place) -> None:
        for each in (b, c):
            each.befriend(a.address)
        job_id = await claimed(a, b)
        await c.exchanges.visit(a.address)
        for node, fence, expected in ((b, 2, None), (c, 1, None), (b, 1, "mine")):
            said = NodeSaid(progress=(ProgressNote(ulid_text(job_id), KIND, fence, '"mine"'),))
            with a.runtime.store.write() as session:
                session.drop_presence(2**60, 0)
                session.put_presence(NodePresence(node.id, said, a.log.physical()).row)
            assert shown(a, job_id) == expected

    run(tmp_path, test, "a", "b", "c")


def test_many_and_long_notes_are_left_to_the_log(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        b.befriend(a.address)
        job_id = await claimed(a, b)
        for size, is_told in ((SHARED_BYTES_MAX - 2, True), (SHARED_BYTES_MAX, False)):
            note(b, job_id, b'"%s"' % (b"x" * size))
            with b.runtime.read() as session:
                assert bool(own_notes(session, b.id)) is is_told
        long = tuple(ProgressNote(ulid_text(job_id), KIND, 1, "x" * 3_000) for _ in range(10))
        assert len(said_text(NodeSaid((Serving((KIND,)),), progress=long))) <= TEXT_CHARS_MAX

    run(tmp_path, test)
