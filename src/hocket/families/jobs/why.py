"""Traces an output: the chain from a job, an artifact or a claim to the records of the model calls behind it, and from
those to the prompt, its context and the evidence. A missing link is reported, not skipped.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from hocket.errors import Conflict, HocketError, Unreachable, Usage
from hocket.families import artifacts
from hocket.families.blobs import Blobs, Damaged
from hocket.families.jobs import view
from hocket.families.jobs.apart import erasure_of
from hocket.families.jobs.parts import PAYLOAD_TYPE
from hocket.families.jobs.rules import State
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import hlc_text
from hocket.kernel.ids import node_text, ulid_prefix_range, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, contradictions, decode_snapshot
from hocket.kernel.vocabulary import (
    JOB,
    CompleteJob,
    CreateArtifact,
    CreateClaim,
    CreateEntity,
    Ids,
    IngestEvidence,
    Payload,
    Subject,
    TombstoneEvidence,
    number_of,
)
from hocket.store import Artifact, JobEntry, Session

EXCERPT_CHARS = 400
SHOWN_MAX = 5
_COMPLETES = (0, int(Reason.OFFERED))


def explain(session: Session, blobs: Blobs, text: str, whole: bool = False) -> dict[str, Any]:
    """The chain behind the one job, artifact or claim whose id starts with this text. Prompts and outputs are shortened
    unless `whole`. Raises Usage if there is none, or more than one.
    """
    trace = _Trace(session, blobs, whole)
    match _find(session, text):
        case JobEntry() as entry:
            trace.job(entry)
        case Artifact() as artifact:
            trace.artifact(artifact)
        case Op() as op:
            trace.claim(op)
    return trace.told


def _find(session: Session, text: str) -> JobEntry | Artifact | Op:
    try:
        low, high = ulid_prefix_range(text)
    except ValueError:
        raise Usage(f"{text!r} is not the id of a job, an artifact or a claim") from None
    found: list[tuple[str, bytes]] = []
    claims: dict[bytes, Op] = {}
    if text:
        found += [("job", each) for each in session.job_ids(low, high, SHOWN_MAX + 1)]
        found += [("artifact", each.id) for each in artifacts.between(session, low, high, SHOWN_MAX + 1)]
    if text and not (found and low == high):
        # No register has the claims, so all of them are searched, unless nothing is left to find.
        claims = {claim.claim_id: op for op, claim in _claims(session) if low <= claim.claim_id <= high}
    found += [("claim", each) for each in list(claims)[: SHOWN_MAX + 1]]
    if not found:
        raise Usage(f"no job, artifact or claim {text!r}")
    if len(found) > 1:
        shown = ", ".join(f"{kind} {ulid_text(each)}" for kind, each in found[:SHOWN_MAX])
        raise Usage(
            f"{text!r} is the beginning of several ids: {shown}{', …' * (len(found) > SHOWN_MAX)}; give more of it"
        )
    kind, id = found[0]
    one = session.job(id) if kind == "job" else session.artifact(id) if kind == "artifact" else claims[id]
    assert one is not None
    return one


def _claims(session: Session) -> Iterator[tuple[Op, CreateClaim]]:
    for row in session.ops_of_variants((number_of(CreateClaim),)):
        op = decode(row.body)
        if row.reason == 0 and isinstance(op.payload, CreateClaim):
            yield op, op.payload


class _Trace:
    def __init__(self, session: Session, blobs: Blobs, whole: bool) -> None:
        self._session = session
        self._blobs = blobs
        self._whole = whole
        self._known: dict[bytes, str] | None = None
        self.told: dict[str, Any] = {"of": "", "id": "", "snapshots": [], "missing": []}

    # Where a chain begins.

    def job(self, entry: JobEntry) -> None:
        job = entry.job
        own = self._session.artifacts_of_job(job.id)
        records = [each for each in own if each.type == SNAPSHOT_TYPE]
        self.told |= {"of": "job", "id": ulid_text(job.id), "job": view.brief(self._session, entry)}
        if job.state is State.PENDING and job.policy.needs:
            self.told["needs"] = list(job.policy.needs)
        self.told["artifacts"] = [self._brief(each) for each in own if each.type not in (SNAPSHOT_TYPE, PAYLOAD_TYPE)]
        self.told["claims"] = [ulid_text(each) for each in self._output_claims(job.id)]
        self._snapshots(each.id for each in records)
        for named in job.artifacts:
            if self._session.artifact(named) is None:
                self._miss(f"artifact {ulid_text(named)}, which the completion names, is not on this log")
        for told in self.told["snapshots"]:
            told["named"] = any(ulid_text(each) == told["artifact_id"] for each in job.artifacts)
        if (erasure := erasure_of(self._session, job.id)) is not None:
            self._miss(erasure.sentence(job.id))
        if not records:
            self._miss("no model call is recorded for this job")

    def artifact(self, artifact: Artifact) -> None:
        op, payload = artifacts.creation_of(self._session, artifact)
        self.told |= {"of": "artifact", "id": ulid_text(artifact.id), "artifact": self._brief(artifact)}
        self.told["inputs"] = self._ids(payload.inputs_used, "evidence")
        if artifact.type == SNAPSHOT_TYPE:
            self._snapshots((artifact.id,))
            cited = {each for dep in {artifact.id, artifact.op_id[:16]} for each in self._session.citing(dep)}
            self.told["cited_by"] = [line for each in sorted(cited) if (line := self._op_line(each))]
            return
        self._snapshots(self._records(op.cited))
        if not self.told["snapshots"]:
            self._miss("this artifact cites no record of a model call")
            if artifact.source_job is not None:
                self._snapshots(
                    each.id
                    for each in self._session.artifacts_of_job(artifact.source_job)
                    if each.type == SNAPSHOT_TYPE
                )

    def claim(self, op: Op) -> None:
        payload = op.payload
        assert isinstance(payload, CreateClaim)
        source = payload.provenance
        self.told |= {"of": "claim", "id": ulid_text(payload.claim_id)}
        self.told["claim"] = {
            "type": payload.claim_type.name.lower(),
            "predicate": payload.predicate,
            "subject": ulid_text(payload.subject),
            "author": node_text(op.node_id),
            "created": hlc_text(op.timestamp),
            "evidence": self._ids(source.evidence, "evidence"),
            "claims": self._ids(source.claims, "claim"),
            "jobs": [ulid_text(each) for each in source.jobs],
        }
        self._snapshots(source.snapshots)
        if not source.snapshots:
            self._miss("this claim names no record of a model call")

    # The links of the chain.

    def _output_claims(self, job_id: bytes) -> Ids:
        rows = [row for row in self._session.ops_about(Subject(JOB, job_id)) if row.variant == number_of(CompleteJob)]
        ended = [decode(row.body).payload for row in rows if row.reason in _COMPLETES]
        last = ended[-1] if ended else None
        return last.output_claims if isinstance(last, CompleteJob) else ()

    def _records(self, deps: Ids) -> Iterator[bytes]:
        """Which of the cited ops are records of model calls. Missing ones are reported."""
        for dep in deps:
            if self._session.artifact(dep) is not None:
                yield dep
                continue
            row = self._session.op(dep)
            if row is None:
                self._miss(f"{ulid_text(dep)}, which it cites, is not on this log")
                continue
            payload = decode(row.body).payload
            if isinstance(payload, CreateArtifact) and payload.artifact_type == SNAPSHOT_TYPE:
                yield payload.artifact_id

    def _snapshots(self, ids: Iterable[bytes]) -> None:
        for id in ids:
            artifact = self._session.artifact(id)
            if artifact is None:
                self._miss(f"the record {ulid_text(id)} is not on this log")
            elif artifact.type == SNAPSHOT_TYPE:
                self.told["snapshots"].append(self._snapshot(artifact))

    def _snapshot(self, artifact: Artifact) -> dict[str, Any]:
        op, payload = artifacts.creation_of(self._session, artifact)
        told = self._brief(artifact) | {
            "author": node_text(op.node_id),
            "created": hlc_text(op.timestamp),
            "model_id": payload.model_id,
            "model_version": payload.model_version,
            "evidence": self._ids(payload.inputs_used, "evidence"),
        }
        try:
            record = decode_snapshot(artifacts.content(self._session, self._blobs, artifact))
        except (Conflict, Unreachable, Malformed) as error:
            # Only what the op itself says remains.
            if isinstance(error, Damaged):
                told["content"] = "damaged"
            why = str(error) if isinstance(error, HocketError) else f"its content is not a record: {error}"
            self._miss(f"the record {ulid_text(artifact.id)} cannot be read: {why}")
            return told
        for sentence in contradictions(record, payload):
            self._miss(f"the record {ulid_text(artifact.id)} {sentence}")
        return told | self._record(record)

    def _record(self, record: Snapshot) -> dict[str, Any]:
        return {
            "backend": record.backend,
            "started": hlc_text(record.started_at),
            "completed": hlc_text(record.completed_at),
            "duration_ms": record.telemetry.duration_ms,
            "prompt_tokens": record.telemetry.prompt_tokens,
            "completion_tokens": record.telemetry.completion_tokens,
            "prompt": self._text(record.prompt),
            "output": self._text(record.output),
            "evidence": self._ids(record.evidence, "evidence"),
            "claims": self._ids(record.claims, "claim"),
            "entities": self._ids(record.entities, "entity"),
        }

    def _text(self, text: str) -> dict[str, Any]:
        shown = text if self._whole else text[:EXCERPT_CHARS]
        return {"bytes": len(text.encode()), "text": shown, "cut": len(shown) < len(text)}

    def _ids(self, ids: Ids, what: str) -> list[dict[str, Any]]:
        """What each id means on this log: here, tombstoned, or missing."""
        told = []
        for each in ids:
            state = self._what_is_known().get(each, "missing")
            if state == "missing":
                self._miss(f"{what} {ulid_text(each)} is not on this log")
            told.append({"id": ulid_text(each), "is": state})
        return told

    def _what_is_known(self) -> dict[bytes, str]:
        if self._known is None:
            kinds: tuple[type[Payload], ...] = (IngestEvidence, CreateClaim, CreateEntity, TombstoneEvidence)
            rows = self._session.ops_of_variants(tuple(map(number_of, kinds)))
            self._known = {}
            for payload in (decode(row.body).payload for row in rows if row.reason == 0):
                if isinstance(payload, TombstoneEvidence):
                    self._known[payload.evidence_id] = "tombstoned"
                elif isinstance(payload, IngestEvidence):
                    self._known.setdefault(payload.evidence_id, "here")
                elif isinstance(payload, CreateClaim):
                    self._known.setdefault(payload.claim_id, "here")
                elif isinstance(payload, CreateEntity):
                    self._known.setdefault(payload.entity_id, "here")
        return self._known

    def _brief(self, artifact: Artifact) -> dict[str, Any]:
        return artifacts.brief(self._session, self._blobs, artifact)

    def _op_line(self, op_id: bytes) -> dict[str, Any] | None:
        row = self._session.op(op_id)
        if row is None:
            return None
        line = view.op_line(row)
        return {name: line[name] for name in ("id", "type", "job_id", "detail")}

    def _miss(self, sentence: str) -> None:
        if sentence not in self.told["missing"]:
            self.told["missing"].append(sentence)
