"""What a handler makes besides its result, and what becomes of it."""

import asyncio
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing
from hocket.errors import Conflict, NotAuthorised, Unreachable
from hocket.families import artifacts
from hocket.families.blobs import Damaged
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.vocabulary import (
    ClaimStatus,
    ClaimType,
    CreateArtifact,
    CreateClaim,
    EvictArtifact,
    Payload,
    Provenance,
    ScheduleJob,
    TextObject,
)
from hocket.log import Transaction
from hocket.testing import MemorySyncNode
from hocket.work import run_outputs
from tests.work.artifacts.handlers import completion, content, creation, of_job, ops, run, succeeded

LARGE = b"large" * 20_000
EVIDENCE = "01J00000000000000000000000"


def blob_count(node: MemorySyncNode) -> int:
    return sum(1 for _ in node.runtime.blobs.all())


@pytest.mark.parametrize("data", [b"", b"small", bytes(run_outputs.INLINE_BYTES_MAX), LARGE])
def test_an_artifact_goes_on_the_log_with_the_completion(data: bytes):
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: ctx.artifact(data, type="t.bytes", inputs=[EVIDENCE]))
        [artifact] = of_job(node, handle, "t.bytes")
        assert handle.result() == ulid_text(artifact.id)
        op, payload = creation(node, artifact)
        assert (op.id, payload.artifact_id) == (artifact.op_id, artifact.id)
        assert payload.source_job == node.runtime.find(handle.job_id)
        assert payload.content_hash == content_hash(data) and payload.size_bytes == len(data)
        assert (payload.content_inline is None) == (data == LARGE) == (blob_count(node) == 1)
        assert [ulid_text(each) for each in payload.inputs_used] == [EVIDENCE]
        assert content(node, artifact) == data
        ended, completed = completion(node, handle)
        assert artifact.id in completed.output_artifacts and artifact.id not in ended.causal_deps
        assert handle.status()["artifacts"][0]["artifact_id"] == ulid_text(artifact.id)
        assert node.runtime.verify().findings == [] and node.runtime.rebuild().unchanged


def test_a_file_is_kept_as_it_was(tmp_path: Path):
    path = tmp_path / "file"

    def make(ctx: hocket.Context) -> None:
        for data in (LARGE, b"small"):
            path.write_bytes(data)
            ctx.artifact(path, type="t.file")
            path.write_bytes(b"changed")

    with hocket.testing.node() as node:
        large, small = of_job(node, run(node, make), "t.file")
        assert content(node, large) == LARGE and content(node, small) == b"small"
        assert blob_count(node) == 1


def test_what_a_failed_run_made_comes_to_nothing():
    def fail(ctx: hocket.Context) -> None:
        ctx.artifact(LARGE, type="t.bytes")
        raise ValueError("no")

    with hocket.testing.node() as node:
        handle = run(node, fail)
        assert handle.status()["outcome"] == "failed"
        assert of_job(node, handle) == [] and blob_count(node) == 0
        assert not [path for path in node.runtime.home.blobs.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_what_a_run_made_whose_claim_is_lost_comes_to_nothing():
    with hocket.testing.node() as node:

        def lose(ctx: hocket.Context) -> None:
            ctx.artifact(LARGE, type="t.bytes")
            job_id = node.runtime.find(ctx.job_id)
            node.runtime.log.run(lambda tx: jobs.cancel(tx, job_id, "called off meanwhile"))

        handle = run(node, lose)
        assert handle.status()["outcome"] == "cancelled"
        assert of_job(node, handle) == [] and blob_count(node) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"content": "text"}, "bytes or a Path"),
        ({"content": 7}, "bytes or a Path"),
        ({"content": Path("/nowhere/at/all")}, "No such file"),
        ({"type": ""}, "illegal artifact type"),
        ({"type": "a\nb"}, "illegal artifact type"),
        ({"type": "x" * 256}, "illegal artifact type"),
        ({"type": "hocket.result"}, "illegal artifact type"),
        ({"type": "likewise.inference.snapshot"}, "illegal artifact type"),
        ({"ttl": 0}, "bad ttl"),
        ({"ttl": "0s"}, "bad ttl"),
        ({"ttl": -1}, "bad ttl"),
        ({"ttl": "soon"}, "bad ttl"),
        ({"ttl": "99999999d"}, "bad ttl"),
        ({"inputs": ["x"]}, "not an id"),
        ({"inputs": [b"short"]}, "not an id"),
        ({"inputs": [7]}, "not an id"),
    ],
)
def test_what_cannot_be_an_artifact_is_told_in_a_sentence(arguments: dict, why: str):
    def make(ctx: hocket.Context) -> None:
        with pytest.raises(hocket.Usage, match=why):
            ctx.artifact(**({"content": LARGE, "type": "t.bytes"} | arguments))

    with hocket.testing.node() as node:
        handle = run(node, make)
        assert succeeded(node, handle) and of_job(node, handle) == []


def test_a_run_makes_no_more_than_its_completion_can_cite(monkeypatch: pytest.MonkeyPatch):
    def make(ctx: hocket.Context) -> str:
        for number in range(run_outputs.PRODUCTS_MAX):
            ctx.artifact(b"%d" % number, type="t.bytes")
        with pytest.raises(hocket.Usage, match="at most 1000"):
            ctx.artifact(b"", type="t.bytes")
        return "done"

    with hocket.testing.node() as node:
        handle = run(node, make)
        assert handle.result() == "done"
        assert len(of_job(node, handle)) == run_outputs.PRODUCTS_MAX + 1


def test_a_full_disk_is_told_to_the_handler(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def make(ctx: hocket.Context) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            ctx.artifact(LARGE, type="t.bytes")

    with hocket.testing.node() as node:
        handle = run(node, make)
        assert handle.status()["error"] == "cannot write a blob: No space left on device"
        assert of_job(node, handle) == [] and blob_count(node) == 0


def test_after_the_end_nothing_is_taken():
    kept: list[hocket.Context] = []
    with hocket.testing.node() as node:
        handle = run(node, kept.append)
        with pytest.raises(hocket.Usage, match="the run has ended"):
            kept[0].artifact(b"late", type="t.bytes")
        assert of_job(node, handle) == []


# Content.


def test_damage_and_absence_are_said():
    with hocket.testing.node() as node:
        [artifact] = of_job(node, run(node, lambda ctx: ctx.artifact(LARGE, type="t.bytes") and None))
        place = node.runtime.blobs._place(artifact.hash)
        place.write_bytes(LARGE[:-1] + b"!")
        with pytest.raises(Damaged):
            content(node, artifact)
        place.unlink()
        with pytest.raises(Unreachable, match="on another node"):
            content(node, artifact)


@pytest.mark.parametrize("given", [LARGE, LARGE[:-1] + b"!", b"", None])
def test_content_is_fetched_and_believed_by_its_hash_alone(given: bytes | None):
    with hocket.testing.node() as node:
        [artifact] = of_job(node, run(node, lambda ctx: ctx.artifact(LARGE, type="t.bytes") and None))
        node.runtime.blobs.remove(artifact.hash)
        asked: list[tuple[bytes, int]] = []

        def fetch(hash: bytes, size: int) -> bytes | None:
            asked.append((hash, size))
            return given

        with node.runtime.read() as session:
            if given == LARGE:
                assert artifacts.content(session, node.runtime.blobs, artifact, fetch) == LARGE
            else:
                with pytest.raises(Unreachable):
                    artifacts.content(session, node.runtime.blobs, artifact, fetch)
        assert asked == [(artifact.hash, len(LARGE))]
        assert node.runtime.blobs.has(artifact.hash) == (given == LARGE)


def test_other_nodes_get_what_they_may_read_and_no_more():
    with hocket.testing.node() as node:
        runtime = node.runtime
        [artifact] = of_job(node, run(node, lambda ctx: ctx.artifact(LARGE, type="t.bytes") and None))
        asked: list[bytes] = []

        def answer(may: bool, hash: bytes = artifact.hash) -> bool:
            with runtime.read() as session:
                return artifacts.is_readable(session, hash, lambda op: asked.append(op.id) or may)

        assert answer(True) and not answer(False) and asked == [artifact.op_id] * 2
        orphan = runtime.blobs.stage(b"orphan")
        runtime.blobs.keep(orphan)
        assert not answer(True, orphan.hash) and not answer(True, bytes(32))
        runtime.log.run(lambda tx: artifacts.evict(tx, artifact))
        assert not answer(True)


# Eviction.


def evictions(node: MemorySyncNode) -> int:
    return sum(isinstance(op.payload, EvictArtifact) for op in ops(node))


def test_an_evicted_artifact_is_gone_for_good():
    with hocket.testing.node() as node:
        [artifact] = of_job(node, run(node, lambda ctx: ctx.artifact(LARGE, type="t.bytes") and None))
        node.runtime.log.run(lambda tx: artifacts.evict(tx, artifact))
        with pytest.raises(Conflict, match="was evicted"):
            content(node, artifact)
        with pytest.raises(Conflict, match="already evicted"):
            node.runtime.log.run(lambda tx: artifacts.evict(tx, artifact))
        assert evictions(node) == 1
        with node.runtime.read() as session:
            assert artifacts.brief(session, node.runtime.blobs, artifact)["content"] == "evicted"
        assert node.runtime.rebuild().unchanged
        with node.runtime.read() as session:
            assert session.is_evicted(artifact.id)


def test_a_blob_stays_while_an_artifact_needs_it():
    def twice(ctx: hocket.Context) -> None:
        ctx.artifact(LARGE, type="t.one")
        ctx.artifact(LARGE, type="t.two")

    with hocket.testing.node() as node:
        runtime = node.runtime
        one, two = of_job(node, run(node, twice))
        for artifact, left in ((one, 1), (two, 0)):
            runtime.log.run(lambda tx, artifact=artifact: artifacts.evict(tx, artifact))
            with runtime.store.write() as session:
                artifacts.collect(session, runtime.blobs, [artifact.hash])
            assert blob_count(node) == left


def test_the_time_to_live_is_kept_and_no_more():
    def make(ctx: hocket.Context) -> None:
        ctx.artifact(LARGE, type="t.day", ttl="1d")
        ctx.artifact(b"x", type="t.ever")

    with hocket.testing.node() as node:
        runtime = node.runtime
        day, _ = of_job(node, run(node, make))
        assert runtime.log.run(artifacts.evict_due) == []
        node.clock.advance(86_399)
        assert runtime.log.run(artifacts.evict_due) == []
        node.clock.advance(2)
        assert runtime.log.run(artifacts.evict_due) == [day.hash]
        assert runtime.log.run(artifacts.evict_due) == [] and evictions(node) == 1


def test_an_artifact_of_others_with_no_time_to_live_goes_at_once():
    with hocket.testing.node() as node:
        id = node.runtime.log.new_id(1)
        node.runtime.log.run(
            lambda tx: tx.author(CreateArtifact(id, "t.x", None, (), content_hash(b""), b"", None, None, 0, 0))
        )
        node.clock.advance(0.001)
        assert len(node.runtime.log.run(artifacts.evict_due)) == 1


def test_many_are_evicted_in_steps():
    with hocket.testing.node() as node:
        run(node, lambda ctx: [ctx.artifact(b"%d" % n, type="t.x", ttl="1s") for n in range(7)] and None)
        node.clock.advance(10)
        counts = [len(node.runtime.log.run(lambda tx: artifacts.evict_due(tx, 3))) for _ in range(4)]
        assert counts == [3, 3, 1, 0]


def test_records_of_model_calls_that_something_leans_on_stay():
    def fields(id: bytes, type: str) -> CreateArtifact:
        return CreateArtifact(id, type, None, (), content_hash(b""), b"", "m", "1", 0, 1)

    with hocket.testing.node() as node:
        log = node.runtime.log
        snapshot = artifacts.SNAPSHOT_TYPE
        leaned, alone, plain = (
            log.run(lambda tx, type=type: tx.author(fields(NO_ID, type))).id for type in (snapshot, snapshot, "t.x")
        )
        for id in (leaned, plain):
            log.run(lambda tx, id=id: tx.author(ScheduleJob(NO_ID, "t.x", b"", b""), (id,)))
        node.clock.advance(1)
        log.run(lambda tx: artifacts.evict_due(tx, 1))
        log.run(artifacts.evict_due)
        with node.runtime.read() as session:
            gone = [session.is_evicted(each) for each in (leaned, alone, plain)]
            assert gone == [False, True, True]
            log_of_leaned = session.artifact(leaned)
        assert log_of_leaned is not None
        log.run(lambda tx: artifacts.evict(tx, log_of_leaned))
        assert evictions(node) == 3


def test_upkeep_evicts_and_deletes():
    async def scene() -> None:
        async with hocket.testing.node() as node:
            job_type = hocket.JobType("t.made", function=lambda ctx: ctx.artifact(LARGE, type="t.x", ttl="1s") and None)
            await node.submit(job_type)
            await node.drain([job_type])
            assert await artifacts.maintenance(node, node.runtime.blobs) == 0
            node.clock.advance(2)
            assert await artifacts.maintenance(node, node.runtime.blobs) == 1
            assert list(node.runtime.blobs.all()) == []

    asyncio.run(scene())


def test_an_evicted_result_is_not_taken_for_none():
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: "result")
        [artifact] = of_job(node, handle)
        node.runtime.log.run(lambda tx: artifacts.evict(tx, artifact))
        assert handle.status()["result"] is None and handle.status()["artifacts"][0]["evicted"]
        with pytest.raises(hocket.HocketError, match="was evicted"):
            handle.result()


# Garbage.


def test_garbage_is_cleared_and_nothing_else():
    with hocket.testing.node() as node:
        runtime = node.runtime
        kept, evicted = of_job(
            node,
            run(node, lambda ctx: [ctx.artifact(LARGE + each, type="t.x") for each in (b"1", b"2")] and None),
        )
        runtime.log.run(lambda tx: artifacts.evict(tx, evicted))
        staged = runtime.blobs.stage(b"orphan")
        runtime.blobs.keep(staged)
        waiting = runtime.blobs.stage(b"of a run that goes on")
        now = time.time()
        assert artifacts.clear(runtime.store, runtime.blobs, lambda: now) == (1, len(LARGE) + 1)
        assert runtime.blobs.has(staged.hash) and waiting.path.exists()
        assert artifacts.clear(runtime.store, runtime.blobs, lambda: now + 3700) == (1, len(b"orphan"))
        assert [hash for hash, _ in runtime.blobs.all()] == [kept.hash] and waiting.path.exists()
        assert artifacts.clear(runtime.store, runtime.blobs, lambda: now + 3700) == (0, 0)


# Ops about a knowledge graph.


def claim(ctx: hocket.Context, type: ClaimType = ClaimType.ATTRIBUTE) -> CreateClaim:
    id, subject = ctx.new_id(), ctx.new_id()
    return CreateClaim(id, type, subject, "likes", TextObject("tea"), ClaimStatus.HINT, (), Provenance())


def test_claims_go_on_the_log_with_the_completion():
    made: list[CreateClaim] = []

    def emit(ctx: hocket.Context) -> None:
        made.append(claim(ctx))
        ctx.emit(made[0])

    with hocket.testing.node() as node:
        handle = run(node, emit)
        ended, completed = completion(node, handle)
        [op] = [op for op in ops(node) if isinstance(op.payload, CreateClaim)]
        assert op.payload == made[0]
        assert completed.output_claims == (made[0].claim_id,) and op.timestamp < ended.timestamp


def test_other_ops_are_not_the_handlers_to_write():
    def emit(ctx: hocket.Context) -> None:
        for wrong in (EvictArtifact(bytes(16)), ScheduleJob(bytes(16), "x", b"", b""), "claim", None):
            with pytest.raises(hocket.Usage, match="may not emit"):
                ctx.emit(wrong)
        bad = claim(ctx)
        for change in ({"claim_id": b"short"}, {"predicate": 7}, {"predicate": "x" * (run_outputs.EMIT_BYTES_MAX + 1)}):
            with pytest.raises(hocket.Usage):
                ctx.emit(CreateClaim(**({name: getattr(bad, name) for name in bad.__struct_fields__} | change)))

    with hocket.testing.node() as node:
        assert succeeded(node, run(node, emit))


@pytest.mark.req("LW-35")
def test_a_derived_claim_without_a_model_call_fails_the_job_and_nothing_counts():
    with hocket.testing.node() as node:
        handle = run(node, lambda ctx: ctx.emit(claim(ctx, ClaimType.DERIVED)))
        status = handle.status()
        assert status["outcome"] == Outcome.FAILED.name.lower() and "would not count" in status["error"]
        assert not [op for op in ops(node) if isinstance(op.payload, CreateClaim)]


def test_ids_are_found_by_a_beginning():
    with hocket.testing.node() as node:
        made = of_job(node, run(node, lambda ctx: [ctx.artifact(b"%d" % n, type="t.x") for n in range(3)] and None))
        with node.runtime.read() as session:
            for each in made:
                assert artifacts.find(session, ulid_text(each.id)).id == each.id
                assert artifacts.find(session, ulid_text(each.id).lower()).id == each.id
            for wrong, why in (("", "no artifact"), ("7ZZZ", "no artifact"), ("!", "not an artifact id")):
                with pytest.raises(hocket.Usage, match=why):
                    artifacts.find(session, wrong)
            with pytest.raises(hocket.Usage, match="beginning of several"):
                artifacts.find(session, ulid_text(made[0].id)[:4])


def test_an_eviction_that_would_not_count_is_refused(monkeypatch: pytest.MonkeyPatch):
    with hocket.testing.node() as node:
        [artifact] = of_job(node, run(node, lambda ctx: ctx.artifact(b"", type="t.x", ttl="1s") and None))
        node.clock.advance(2)
        monkeypatch.setattr(Transaction, "author", lambda *_: Reason.UNAUTHORISED)
        with pytest.raises(NotAuthorised):
            node.runtime.log.run(lambda tx: artifacts.evict(tx, artifact))
        assert node.runtime.log.run(artifacts.evict_due) == []


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (lambda ctx: "result", "its result would not count"),
        (lambda ctx: ctx.artifact(LARGE, type="t.x") and None, "the handler's outputs would not count"),
    ],
)
def test_a_node_that_may_not_write_artifacts_fails_the_job_and_says_why(
    monkeypatch: pytest.MonkeyPatch, handler: Callable[[hocket.Context], str | None], why: str
):
    author = Transaction.author

    def refusing(tx: Transaction, payload: Payload, *more: Any, **how: Any) -> Op | Reason:
        return Reason.UNAUTHORISED if isinstance(payload, CreateArtifact) else author(tx, payload, *more, **how)

    with hocket.testing.node() as node:
        monkeypatch.setattr(Transaction, "author", refusing)
        handle = run(node, handler)
        status = handle.status()
        assert status["outcome"] == "failed" and status["error"].startswith(f"{why}: ")
        assert of_job(node, handle) == []
        artifacts.clear(node.runtime.store, node.runtime.blobs, lambda: time.time() + 4000)
        assert blob_count(node) == 0
