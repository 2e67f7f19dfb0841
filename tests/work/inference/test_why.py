"""From an output back to model, prompt, context and evidence; what is missing is named."""

import pytest

import hocket
import hocket.testing
from hocket.families import artifacts
from hocket.families.jobs.why import explain
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, encode_snapshot
from hocket.kernel.vocabulary import (
    ClaimStatus,
    ClaimType,
    CreateArtifact,
    CreateClaim,
    CreateEntity,
    IngestEvidence,
    Provenance,
    Telemetry,
    TextObject,
    TombstoneEvidence,
)
from hocket.testing import MemorySyncNode
from tests.work.artifacts.handlers import content, of_job, ops, run

pytestmark = pytest.mark.touches("LW-35")

PROMPT = "Who likes tea? " * 100


def why(node: MemorySyncNode, id: str, whole: bool = False) -> dict:
    with node.runtime.read() as session:
        return explain(session, node.runtime.blobs, id, whole)


def write(node: MemorySyncNode, payload: object) -> None:
    node.runtime.log.run(lambda tx: tx.author(payload))


@pytest.fixture
def scene():
    """A job that asked a model about two pieces of evidence and an entity, and made a claim and an artifact of it."""
    with hocket.testing.node() as node:
        new = lambda: node.runtime.log.new_id(1_750_000_000_000)  # noqa: E731
        here, gone, person = new(), new(), new()
        for evidence in (here, gone):
            write(node, IngestEvidence(evidence, content_hash(evidence), "note", "file:1"))
        write(node, CreateEntity(person, "person", "Ada"))
        write(node, TombstoneEvidence(gone, "deleted"))

        def handler(ctx: hocket.Context) -> str:
            context = [here, f"evidence:{ulid_text(gone)}", f"entity:{ulid_text(person)}"]
            said = ctx.infer(model="m", version="1", prompt=PROMPT, call=lambda _: "Ada", context=context, backend="b")
            ctx.artifact(b"x" * 100_000, type="t.report", inputs=[here])
            source = Provenance(evidence=(here,))
            claim = CreateClaim(
                new(), ClaimType.DERIVED, person, "likes", TextObject("tea"), ClaimStatus.CLAIM, (), source
            )
            ctx.emit(claim)
            return said

        handle = run(node, handler)
        [claim] = [op.payload for op in ops(node) if isinstance(op.payload, CreateClaim)]
        yield node, handle, ulid_text(claim.claim_id), ulid_text(here), ulid_text(gone), ulid_text(person)


def check_record(told: dict, here: str, gone: str, person: str) -> None:
    [record] = told["snapshots"]
    assert (record["model_id"], record["model_version"], record["backend"]) == ("m", "1", "b")
    assert record["evidence"] == [{"id": here, "is": "here"}, {"id": gone, "is": "tombstoned"}]
    assert record["entities"] == [{"id": person, "is": "here"}] and record["claims"] == []
    assert record["prompt"] == {"bytes": 1500, "text": PROMPT[:400], "cut": True}
    assert record["output"] == {"bytes": 3, "text": "Ada", "cut": False}
    assert record["started"] <= record["completed"] <= record["created"]


def test_from_a_job(scene: tuple):
    node, handle, claim, here, gone, person = scene
    told = why(node, handle.job_id)
    assert told["of"] == "job" and told["missing"] == []
    check_record(told, here, gone, person)
    assert told["snapshots"][0]["named"] is True
    assert [each["type"] for each in told["artifacts"]] == ["t.report", "hocket.result"]
    assert told["claims"] == [claim]
    assert why(node, handle.job_id, whole=True)["snapshots"][0]["prompt"]["text"] == PROMPT


def test_from_a_claim(scene: tuple):
    node, handle, claim, here, gone, person = scene
    told = why(node, claim)
    check_record(told, here, gone, person)
    assert told["of"] == "claim" and told["missing"] == []
    assert told["claim"]["jobs"] == [handle.job_id] and told["claim"]["evidence"] == [{"id": here, "is": "here"}]


def test_from_an_artifact_and_from_the_record_itself(scene: tuple):
    node, handle, _, here, gone, person = scene
    [report] = of_job(node, handle, "t.report")
    told = why(node, ulid_text(report.id))
    check_record(told, here, gone, person)
    assert told["inputs"] == [{"id": here, "is": "here"}] and told["missing"] == []
    told = why(node, told["snapshots"][0]["artifact_id"])
    check_record(told, here, gone, person)
    assert {each["type"] for each in told["cited_by"]} == {"CreateArtifact", "CreateClaim", "CompleteJob"}


def test_what_was_evicted_is_said_to_be(scene: tuple):
    node, handle, claim, here, gone, _ = scene
    [snapshot] = of_job(node, handle, SNAPSHOT_TYPE)
    node.runtime.log.run(lambda tx: artifacts.evict(tx, snapshot))
    for id in (handle.job_id, claim, ulid_text(snapshot.id)):
        told = why(node, id)
        [record] = told["snapshots"]
        assert record["content"] == "evicted" and "prompt" not in record and record["model_id"] == "m"
        assert [each["id"] for each in record["evidence"]] == [here, gone]
        assert any("was evicted" in sentence for sentence in told["missing"])


def test_damage_and_absence_are_said():
    with hocket.testing.node() as node:
        handle = run(
            node, lambda ctx: ctx.infer(model="m", version="1", prompt="p" * 100_000, call=lambda _: "x", backend="b")
        )
        [snapshot] = of_job(node, handle, SNAPSHOT_TYPE)
        assert len(content(node, snapshot)) > 100_000
        place = node.runtime.blobs._place(snapshot.hash)
        place.write_bytes(b"p")
        told = why(node, handle.job_id)
        assert told["snapshots"][0]["content"] == "damaged" and "is damaged" in told["missing"][0]
        place.unlink()
        told = why(node, handle.job_id)
        assert told["snapshots"][0]["content"] == "elsewhere" and "on another node" in told["missing"][0]


def test_links_that_are_missing_are_named():
    with hocket.testing.node() as node:
        log = node.runtime.log
        nowhere = "01J00000000000000000000000"
        handle = run(node, lambda ctx: ctx.infer(model="m", version="1", prompt="", call=str, context=[nowhere]))
        assert why(node, handle.job_id)["missing"] == [f"evidence {nowhere} is not on this log"]
        silent = run(node, lambda ctx: None)
        assert why(node, silent.job_id)["missing"] == ["no model call is recorded for this job"]
        unlinked, junk, claim = (log.new_id(1_750_000_000_000) for _ in range(3))
        write(node, CreateArtifact(unlinked, "t.x", None, (), content_hash(b""), b"", None, None, 0))
        assert why(node, ulid_text(unlinked))["missing"] == ["this artifact cites no record of a model call"]
        write(node, CreateArtifact(junk, SNAPSHOT_TYPE, None, (), content_hash(b"\xff"), b"\xff", "m", "1", 1))
        assert "its content is not a record" in why(node, ulid_text(junk))["missing"][0]
        write(
            node,
            CreateClaim(claim, ClaimType.ATTRIBUTE, junk, "is", TextObject("x"), ClaimStatus.HINT, (), Provenance()),
        )
        assert why(node, ulid_text(claim))["missing"] == ["this claim names no record of a model call"]


def test_a_record_that_contradicts_its_op_is_named():
    with hocket.testing.node() as node:
        log = node.runtime.log
        at = log.reading()
        record = Snapshot("m", "1", "b", (), (), (), "p", "o", Telemetry(1), at, at)
        data = encode_snapshot(record)
        other = log.new_id(at.wall)
        write(node, CreateArtifact(other, SNAPSHOT_TYPE, None, (), content_hash(data), data, "n", "1", len(data)))
        sentences = why(node, ulid_text(other))["missing"]
        assert sentences == [f"the record {ulid_text(other)} names another model than its op"]


def test_an_artifact_that_forgot_its_record_is_led_to_those_of_its_job(scene: tuple):
    node, handle, *_ = scene
    forgetful = node.runtime.log.new_id(1_750_000_000_000)
    job_id = node.runtime.find(handle.job_id)
    write(node, CreateArtifact(forgetful, "t.x", job_id, (), content_hash(b""), b"", None, None, 0))
    told = why(node, ulid_text(forgetful))
    assert len(told["snapshots"]) == 1 and told["missing"] == ["this artifact cites no record of a model call"]


def test_ids_that_are_none_or_several(scene: tuple):
    node, handle, *_ = scene
    for wrong, sentence in (("", "no job, artifact or claim"), ("7ZZZ", "no job"), ("!", "not the id")):
        with pytest.raises(hocket.Usage, match=sentence):
            why(node, wrong)
    with pytest.raises(hocket.Usage, match=r"beginning of several ids: job .*artifact "):
        why(node, handle.job_id[:4])
    assert why(node, handle.job_id.lower())["id"] == handle.job_id
