"""The link from an audited output to the model call that made it. A node under audit may not state a model's answer
without naming the record of that call. The record must be a real one: on the log before the output, readable, made for
the output's job, and made by the output's author or by the node that completed that job.

The verdict depends on ops alone, never on blobs, so that every node reaches the same one. A record that is too large
for its op is therefore judged by what the op says; `hocket why` reads the blob and reports what does not fit.
"""

from collections.abc import Callable
from typing import NamedTuple

from hocket.kernel.authority import Authority
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.snapshot import SNAPSHOT_TYPE, is_record
from hocket.kernel.vocabulary import (
    AcceptWork,
    ClaimType,
    CompleteJob,
    CreateArtifact,
    CreateClaim,
    CreateEpisode,
    CreateSuggestedAction,
    Ids,
    UpdateEpisode,
)
from hocket.store import Artifact

Cite = Callable[[bytes, bytes], None]
Known = Callable[[bytes], Op | None]
Made = Callable[[bytes], Artifact | None]
_OUTPUTS = (CreateClaim, CreateSuggestedAction, CreateEpisode, UpdateEpisode)


class _Output(NamedTuple):
    """What an op says about the model calls behind it. `jobs` are the jobs that it names as its source; None means that
    its payload cannot name any. A claim lists only records, so all of them must be good; an episode or an action cites
    records among other ops, so one good record is enough.
    """

    named: Ids
    jobs: Ids | None
    all_of_them: bool


def unlinked(op: Op, authority: Authority, made: Made, known: Known, cite: Cite) -> Reason | None:
    """NO_SNAPSHOT if the op is an audited output without a good record. `made` returns an artifact by its id, `known`
    an op.
    """
    output = _output(op) if type(op.payload) in _OUTPUTS else None
    if output is None or not authority.audited(op.node_id, op.timestamp.wall, None):
        return None
    for name in output.named:
        # If the record arrives later, the op that names it is judged again.
        cite(name, op.id)
    good = [_is_good(name, op, output.jobs, made, known) for name in output.named]
    return None if good and (all(good) if output.all_of_them else any(good)) else Reason.NO_SNAPSHOT


def _output(op: Op) -> _Output | None:
    match op.payload:
        case CreateClaim(claim_type=claim_type, provenance=source):
            if claim_type is ClaimType.DERIVED or source.jobs or source.snapshots:
                return _Output(source.snapshots, source.jobs or None, True)
        case CreateSuggestedAction(derivation_job=job):
            return _Output(op.cited, () if job is None else (job,), False)
        case CreateEpisode():
            return _Output(op.cited, None, False)
        case UpdateEpisode(title=title, summary=summary, confidence=confidence) as update:
            # A mere change of status comes from the user or a cascade: no model said it.
            told = title is not None or summary is not None or confidence is not None
            if told or update.claim_ids_add or update.evidence_ids_add:
                return _Output(op.cited, None, False)
    return None


def _is_good(name: bytes, op: Op, jobs: Ids | None, made: Made, known: Known) -> bool:
    """Whether this is the name of a record that vouches for the op. Records are named by artifact id or op id."""
    named = known(name)
    if named is not None and isinstance(named.payload, CreateArtifact):
        name = named.payload.artifact_id
    artifact = made(name)
    creation = None if artifact is None else known(artifact.op_id)
    if creation is None or not isinstance(record := creation.payload, CreateArtifact):
        return False
    return (
        record.artifact_type == SNAPSHOT_TYPE
        and creation.timestamp < op.timestamp
        and record.source_job is not None
        and (jobs is None or record.source_job in jobs)
        and is_record(record)
        and (creation.node_id == op.node_id or _is_vouched_for(creation, record, op, known))
    )


def _is_vouched_for(creation: Op, record: CreateArtifact, op: Op, known: Known) -> bool:
    """Whether the op cites the completion by which another node, the job's claimer, delivered its record. Only a
    claimer's completion counts, and an op counts only if what it cites does.
    """
    for dep in op.cited:
        end = known(dep)
        if end is not None and isinstance(end.payload, AcceptWork):
            end = known(end.payload.offer)
        if end is None or not isinstance(end.payload, CompleteJob) or end.node_id != creation.node_id:
            continue
        if end.payload.job_id == record.source_job and record.artifact_id in end.payload.output_artifacts:
            return True
    return False
