"""The outputs of a job count against the quota of the node that submitted it, wherever it runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hocket.errors import Failed
from hocket.extensions.command.execution import Stream
from hocket.extensions.command.job import LeftOut, _left_out, _outputs, _stream
from hocket.extensions.command.outputs import Kept
from hocket.extensions.command.proofs import NOTHING, OUTPUT_TYPE
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Held
from hocket.families.jobs.rules import Job
from hocket.kernel.ucan import Quota
from hocket.kernel.vocabulary import CreateArtifact
from hocket.log.limits import output_key
from hocket.mesh import membership
from hocket.mesh.quotas import FULL_RETRY_S
from hocket.node.local_node import run_services
from hocket.store import WrittenTotals
from hocket.work.run_outputs import MEMBER_INLINE_BYTES_MAX, RunOutputs
from tests.mesh.world import WORKER, Place, enrolled, run

KIND, PIECE = "acme.render", 60_000
ROOM = 25 * PIECE


def claimed(place: Place) -> Job:
    taken = place.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    return taken[0].job


def outputs_of(place: Place, job: Job) -> RunOutputs:
    return RunOutputs(run_services(place.runtime, KIND, place.node.environment.monotonic), job)


def inline_bytes(products: RunOutputs) -> int:
    payloads = [each.payload for each in products._made]
    return sum(len(each.content_inline or b"") for each in payloads if isinstance(each, CreateArtifact))


def end(place: Place, job: Job, products: RunOutputs) -> None:
    def request(tx: Any) -> None:
        made = products.write(tx, whole=True)
        assert job.claim_op is not None
        jobs.complete(tx, Held(job.id, job.claim_op), b"null", 1, cast(Any, made))

    place.log.run(request)


def charged(place: Place, node: int) -> WrittenTotals:
    key = output_key(node)
    with place.runtime.store.read() as session:
        return session.written((key,)).get(key, WrittenTotals())


@pytest.mark.req("LW-45", "LW-49")
def test_outputs_count_against_the_quota_of_the_submitter(tmp_path: Path) -> None:
    """One small op of a member once put 33 MB on the owner's log."""

    async def test(a: Place) -> None:
        b = await enrolled(tmp_path / "b", a, WORKER, Quota(bytes=ROOM))
        b.submit(2, KIND)
        assert (await b.exchanges.exchange(a.address)).retry_s == 0
        job = claimed(a)
        products = outputs_of(a, job)
        for number in range(20):
            products.artifact(bytes([number]) * PIECE, "acme.image", None, ())
        assert 0 < inline_bytes(products) <= MEMBER_INLINE_BYTES_MAX, "the others are blobs, not on the log"
        with pytest.raises(Failed, match=r"more than its submitter may store here: \d+ bytes are left"):
            for number in range(20, 40):
                products.artifact(bytes([number]) * PIECE, "acme.image", None, ())
        end(a, job, products)
        stored = charged(a, b.id)
        assert 20 * PIECE < stored.bytes <= ROOM
        with a.runtime.read() as session:
            member = membership.find(membership.members(a.log, session), "b")
        assert member.written.bytes > stored.bytes, "`hocket mesh nodes` shows it"
        # The next job has no room for outputs, and what the member itself sends waits.
        rest = outputs_of(a, claimed(a))
        assert not rest.has_room(PIECE * 5)
        b.submit(1, KIND, size=ROOM - 20 * PIECE)
        assert (await b.exchanges.visit(a.address)).retry_s == FULL_RETRY_S
        assert a.runtime.rebuild().unchanged and charged(a, b.id) == stored
        await b.close()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-49")
def test_outputs_of_a_nodes_own_jobs_have_no_quota(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        a.submit(1, KIND)
        job = claimed(a)
        products = outputs_of(a, job)
        for number in range(20):
            products.artifact(bytes([number]) * PIECE, "acme.image", None, ())
        assert inline_bytes(products) == 20 * PIECE
        end(a, job, products)
        assert charged(a, a.id) == WrittenTotals()

    run(tmp_path, test, "a")


@pytest.mark.req("LW-49")
def test_a_command_leaves_out_what_its_submitter_may_not_store_and_its_result_says_so(tmp_path: Path) -> None:
    files = {f"out/{number}": tmp_path / f"file-{number}" for number in range(4)}
    for file in files.values():
        file.write_bytes(b"x" * PIECE)
    kit: Any = SimpleNamespace(room=lambda job: 2 * PIECE + 10, blobs=None)
    products = RunOutputs(kit, cast(Any, SimpleNamespace(id=bytes(16))))
    kept: list[str] = []

    def keep(content: Path, type: str) -> Any:
        assert type == OUTPUT_TYPE
        kept.append(content.name)
        products._kept_bytes += PIECE
        return SimpleNamespace(hash=bytes(32), size=PIECE)

    products.evidence = keep  # type: ignore[assignment, method-assign]
    workdir: Any = SimpleNamespace(collect=lambda patterns: files)
    outputs, left_out = _outputs(products, workdir, cast(Any, SimpleNamespace(output_patterns=())))
    assert [each.path for each in outputs] == ["out/0", "out/1"] and left_out == ("out/2", "out/3")
    assert _stream(products, "stdout", Kept(files["out/0"], PIECE, PIECE)) == Stream(NOTHING, 0, PIECE)
    shown = _left_out(LeftOut(left_out, ("stdout",)))["left_out"]
    assert shown["outputs"] == ["out/2", "out/3"] and shown["streams"] == ["stdout"] and "quota" in shown["why"]
    assert _left_out(LeftOut()) == {}
