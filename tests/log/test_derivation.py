"""What a new mesh holds for derivation, without anybody having set it: the op and the kinds that count from the
coordinator alone.
"""

import pytest

from hocket.kernel.arbitration import Reason
from hocket.kernel.vocabulary import (
    CascadeTombstone,
    ClaimWork,
    CompleteJob,
    DesignateCoordinator,
    ScheduleJob,
    Telemetry,
)
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, NODES, job_id
from tests.log.test_permissions import OTHER, OWNER, J, Mesh, worker_can_sign

__all__ = ["worker_can_sign"]

OPEN = b'{"open":true}'


@pytest.mark.req("LW-13")
def test_a_cascade_counts_from_the_coordinator_alone() -> None:
    mesh = Mesh()
    named = mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    cascade = CascadeTombstone(job_id(9))
    before = mesh.owner(2, cascade)
    foreign = mesh.other(3, cascade)
    handed_over = mesh.owner(4, DesignateCoordinator(NODES[OTHER]))
    after = mesh.other(5, cascade)
    log = everywhere_the_same([named, before, foreign, handed_over, after])
    assert [reason(log, op) for op in (before, foreign, after)] == [0, Reason.NOT_COORDINATOR, 0]


@pytest.mark.req("LW-13")
@pytest.mark.parametrize(("kind", "expected"), [("likewise.derive.rhythm", Reason.NOT_COORDINATOR), ("acme.derive", 0)])
def test_a_derivation_job_is_the_coordinators(kind: str, expected: Reason | int) -> None:
    mesh = Mesh()
    named = mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    job = mesh.other(2, ScheduleJob(J, kind, b"", OPEN))
    held = mesh.other(3, ClaimWork(J, NODES[OTHER], 1_000))
    log = everywhere_the_same([job, held], [*INTRODUCTIONS, named])
    assert (reason(log, job), reason(log, held)) == (0, expected)


@pytest.mark.req("LW-13")
def test_the_coordinator_does_derivation_jobs() -> None:
    mesh = Mesh()
    named = mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    job = mesh.other(2, ScheduleJob(J, "likewise.derive.rhythm", b"", b""))
    held = mesh.owner(3, ClaimWork(J, NODES[OWNER], 1_000))
    done = mesh.owner(4, CompleteJob(J, (), (), Telemetry(1)), (held.id,))
    log = everywhere_the_same([job, held, done], [*INTRODUCTIONS, named])
    assert reason(log, held) == reason(log, done) == 0


@pytest.mark.req("LW-13", "LW-32")
def test_a_designation_that_comes_late_makes_a_derivation_count() -> None:
    mesh = Mesh()
    named = mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    job = mesh.other(2, ScheduleJob(J, "likewise.derive.rhythm", b"", OPEN))
    handed_over = mesh.owner(3, DesignateCoordinator(NODES[OTHER]))
    held = mesh.other(4, ClaimWork(J, NODES[OTHER], 1_000))
    log = everywhere_the_same([named, job, handed_over, held])
    assert reason(log, held) == 0
