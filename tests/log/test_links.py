"""An audited output counts only with a good record of the model call behind it. Every case is judged in every order of
arrival and again by a rebuild.
"""

from typing import Any

import msgspec
import pytest

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import Op
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, encode_snapshot
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import (
    ClaimStatus,
    ClaimType,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    CreateClaim,
    CreateEpisode,
    CreateSuggestedAction,
    EpisodeStatus,
    Ids,
    Payload,
    Provenance,
    ScheduleJob,
    Telemetry,
    TextObject,
    UpdateEpisode,
)
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, START, job_id
from tests.log.test_permissions import WORKER_NODE, J, Mesh, admitted, token, worker_can_sign

__all__ = ["worker_can_sign"]

ANOTHER = job_id(2)
EVIDENCE = job_id(3)
RECORD = Snapshot(
    *("small", "2025-01", "openai", (EVIDENCE,), (), (), "Who likes tea?", "Ada"),
    *(Telemetry(7, 1, 1), Hlc(START, 0, 1), Hlc(START + 7, 0, 1)),
)


def made(record: bytes | Snapshot = RECORD, number: int = 40, **changes: Any) -> CreateArtifact:
    """The op of a good record, but for the changes."""
    data = record if isinstance(record, bytes) else encode_snapshot(record)
    creation = CreateArtifact(
        *(job_id(number), SNAPSHOT_TYPE, J, (EVIDENCE,), content_hash(data), data),
        *("small", "2025-01", len(data), None),
    )
    return msgspec.structs.replace(creation, **changes)


def claim(snapshots: Ids = (), jobs: Ids = (J,), kind: ClaimType = ClaimType.DERIVED) -> CreateClaim:
    source = Provenance(jobs=jobs, snapshots=snapshots)
    return CreateClaim(job_id(8), kind, job_id(7), "likes", TextObject("tea"), ClaimStatus.HINT, (), source)


def action(job: bytes | None = J) -> CreateSuggestedAction:
    return CreateSuggestedAction(job_id(6), "t", "d", "a", job_id(5), (), (), job, 0.5)


EPISODE = CreateEpisode(job_id(5), "Tea", None, START, None, (EVIDENCE,), (), (), 0.5)


def artifact_of(op: Op) -> bytes:
    assert isinstance(op.payload, CreateArtifact)
    return op.payload.artifact_id


def judged(creation: CreateArtifact, output: Payload | None = None) -> Reason | int:
    """What becomes of an output of the owner's that names the record which this op makes, and of nothing else."""
    mesh = Mesh()
    snapshot = mesh.owner(1, creation)
    deps = () if output is None or isinstance(output, CreateClaim) else (snapshot.id,)
    said = mesh.owner(2, output or claim((artifact_of(snapshot),)), deps)
    log = everywhere_the_same([snapshot, said])
    assert reason(log, snapshot) == 0
    return reason(log, said)


@pytest.mark.req("LW-35")
def test_a_good_record_lets_every_sort_of_output_count() -> None:
    assert judged(made()) == judged(made(), action()) == judged(made(), EPISODE) == 0
    assert judged(made(), UpdateEpisode(job_id(5), summary="Ada drinks it")) == 0
    # One that is too large for its op is judged by what the op says.
    assert judged(made(content_inline=None)) == 0


@pytest.mark.req("LW-35")
@pytest.mark.parametrize(
    "output",
    [
        claim(),
        claim(jobs=()),
        claim(kind=ClaimType.ATTRIBUTE),
        action(),
        action(None),
        EPISODE,
        UpdateEpisode(job_id(5), title="Tea"),
        UpdateEpisode(job_id(5), confidence=0.9),
        UpdateEpisode(job_id(5), claim_ids_add=(job_id(8),)),
        UpdateEpisode(job_id(5), evidence_ids_add=(EVIDENCE,)),
    ],
)
def test_an_output_without_a_record_is_refused(output: Payload) -> None:
    mesh = Mesh()
    said = mesh.owner(1, output)
    assert reason(everywhere_the_same([said]), said) == Reason.NO_SNAPSHOT


@pytest.mark.req("LW-35")
@pytest.mark.parametrize(
    "stated",
    [
        claim(jobs=(), kind=ClaimType.ATTRIBUTE),
        UpdateEpisode(job_id(5), status=EpisodeStatus.ARCHIVED),
    ],
)
def test_what_the_user_states_needs_no_record(stated: Payload) -> None:
    mesh = Mesh()
    said = mesh.owner(1, stated)
    assert reason(everywhere_the_same([said]), said) == 0


@pytest.mark.req("LW-35")
@pytest.mark.parametrize(
    "creation",
    [
        pytest.param(made(artifact_type="t.report"), id="another type"),
        pytest.param(made(source_job=None), id="no job"),
        pytest.param(made(source_job=ANOTHER), id="another job"),
        pytest.param(made(model_id=None), id="no model"),
        pytest.param(made(model_id=""), id="an empty model"),
        pytest.param(made(model_version=None), id="no version"),
        pytest.param(made(model_id="large"), id="another model than the record's"),
        pytest.param(made(model_version="2024-01"), id="another version than the record's"),
        pytest.param(made(inputs_used=()), id="evidence that the op does not list"),
        pytest.param(made(b""), id="no content"),
        pytest.param(made(b"\xff" * 40), id="content that is no record"),
        pytest.param(made(content_hash=bytes(32)), id="another hash"),
        pytest.param(made(size_bytes=3), id="another size"),
        pytest.param(made(msgspec.structs.replace(RECORD, completed_at=Hlc(1, 0, 1))), id="an end before the start"),
    ],
)
def test_a_record_that_does_not_fit_does_not_help(creation: CreateArtifact) -> None:
    assert judged(creation) == judged(creation, action()) == Reason.NO_SNAPSHOT


@pytest.mark.req("LW-35")
def test_an_action_names_its_job_and_the_record_is_that_jobs() -> None:
    assert judged(made(), action(None)) == judged(made(), action(ANOTHER)) == Reason.NO_SNAPSHOT


@pytest.mark.req("LW-35", "LW-33")
def test_the_record_is_earlier_than_the_output() -> None:
    mesh = Mesh()
    creation = made()
    said = mesh.owner(1, claim((creation.artifact_id,)))
    snapshot = mesh.owner(2, creation)
    log = everywhere_the_same([said, snapshot])
    assert reason(log, said) == Reason.NO_SNAPSHOT


@pytest.mark.req("LW-35")
def test_every_record_that_a_claim_names_is_good() -> None:
    mesh = Mesh()
    one, two = mesh.owner(1, made()), mesh.owner(2, made(number=41, source_job=ANOTHER))
    both = (artifact_of(one), artifact_of(two))
    half, whole = mesh.owner(3, claim(both)), mesh.owner(4, claim(both, (J, ANOTHER)))
    log = everywhere_the_same([one, two, half, whole])
    assert (reason(log, half), reason(log, whole)) == (Reason.NO_SNAPSHOT, 0)


@pytest.mark.req("LW-35", "LW-15")
def test_an_output_cites_a_record_by_its_op_or_by_its_artifact() -> None:
    """The chapter has the artifact's id in causal_deps, which otherwise hold the ids of ops."""
    mesh = Mesh()
    snapshot = mesh.owner(1, made())
    by_op, by_artifact = mesh.owner(2, EPISODE, (snapshot.id,)), mesh.owner(3, EPISODE, (artifact_of(snapshot),))
    nothing = mesh.owner(4, EPISODE, (job_id(99),))
    log = everywhere_the_same([snapshot, by_op, by_artifact, nothing])
    assert reason(log, by_op) == reason(log, by_artifact) == 0
    assert reason(log, nothing) == Reason.WAITING
    late = Mesh()
    before = late.owner(1, EPISODE, (job_id(40),))
    after = late.owner(2, made())
    assert reason(everywhere_the_same([before, after]), before) == Reason.WAITING


@pytest.mark.slow
@pytest.mark.req("LW-35")
@pytest.mark.parametrize("delivered", [True, False])
def test_another_nodes_record_helps_once_that_node_has_completed_the_job_with_it(delivered: bool) -> None:
    mesh = Mesh(token((Capability("Job", "*", {}), Capability("Artifact", "Write", {}))))
    job = mesh.owner(1, ScheduleJob(J, "acme.render.x", b"", b'{"open":true}'))
    held = mesh.worker(2, ClaimWork(J, WORKER_NODE, 60_000))
    snapshot = mesh.worker(3, made())
    record = artifact_of(snapshot)
    done = mesh.worker(4, CompleteJob(J, (), (record,) if delivered else (), Telemetry(1)), (held.id,))
    citing, bare = mesh.owner(5, claim((record,)), (done.id,)), mesh.owner(6, claim((record,)))
    log = everywhere_the_same([held, snapshot, done, citing, bare], [*INTRODUCTIONS, mesh.joined, job])
    assert reason(log, bare) == Reason.NO_SNAPSHOT
    assert reason(log, citing) == (0 if delivered else Reason.NO_SNAPSHOT)


@pytest.mark.req("LW-35")
def test_another_nodes_record_needs_a_completion_that_counts() -> None:
    """The node wrote a completion of a job that it never held."""
    mesh = Mesh(token((Capability("Job", "*", {}), Capability("Artifact", "Write", {}))))
    job = mesh.owner(1, ScheduleJob(J, "acme.render.x", b"", b'{"open":true}'))
    snapshot = mesh.worker(3, made())
    done = mesh.worker(4, CompleteJob(J, (), (artifact_of(snapshot),), Telemetry(1)))
    said = mesh.owner(5, claim((artifact_of(snapshot),)), (done.id,))
    log = everywhere_the_same([snapshot, done, said], [*INTRODUCTIONS, mesh.joined, job])
    assert reason(log, said) == Reason.DEPENDENCY_REJECTED


@pytest.mark.req("LW-35", "LW-25")
@pytest.mark.parametrize("audit", [True, False])
def test_an_invited_node_owes_records_when_its_delegation_says_so(audit: bool) -> None:
    caveats = {"audit_inference": True} if audit else {}
    mesh = Mesh(token((Capability("Claim", "Write", caveats), Capability("Episode", "Write", caveats))))
    said, episode = mesh.worker(1, claim()), mesh.worker(2, EPISODE)
    log = everywhere_the_same([said, episode], [*INTRODUCTIONS, mesh.joined])
    assert reason(log, said) == reason(log, episode) == (Reason.NO_SNAPSHOT if audit else 0)


@pytest.mark.req("LW-35", "LW-25")
@pytest.mark.parametrize(("resource", "output"), [("Episode", EPISODE), ("Action", action())])
def test_a_node_that_may_write_nothing_but_one_sort_of_output_owes_records(resource: str, output: Payload) -> None:
    mesh = Mesh(token((Capability(resource, "Write", {"audit_inference": True}),)))
    said = mesh.worker(1, output)
    assert reason(everywhere_the_same([said], [*INTRODUCTIONS, mesh.joined]), said) == Reason.NO_SNAPSHOT


@pytest.mark.req("LW-35")
def test_an_output_whose_record_is_not_here_waits_for_it() -> None:
    mesh = Mesh()
    snapshot = mesh.owner(1, made())
    said = mesh.owner(2, claim((artifact_of(snapshot),)))
    log = admitted([said])
    assert reason(log, said) == Reason.NO_SNAPSHOT
    assert reason(admitted([said], [snapshot]), said) == 0
