"""Who may evict an artifact: its author, the node whose job made it, and the owner; when its time to live is over,
anyone who may write artifacts. The answer is the same in every order of arrival, and a blob goes only when it counts.
"""

from pathlib import Path

import pytest

from hocket.families import artifacts
from hocket.families.blobs import HomeBlobs
from hocket.families.jobs.rules import tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, encode_policy
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import CreateArtifact, EvictArtifact, ScheduleJob, SetSchedule
from tests.log.roster import world
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, START, USER, job_id
from tests.log.test_permissions import WORKER, WORKER_NODE, Mesh, admitted, token

PHONE = SigningKey(b"fone" * 8)
PHONE_NODE = node_id(PHONE.public)
ARTIFACT = job_id(40)
J = job_id(1)
CONTENT = b"much too large to be inline"
WRITING = (Capability("Artifact", "Write", {}), Capability("Job", "Schedule", {}))


@pytest.fixture(autouse=True)
def all_can_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)
    monkeypatch.setitem(world.KEY_OF, PHONE_NODE, PHONE)


class Two(Mesh):
    """The worker and a phone may both write artifacts and schedule jobs."""

    def __init__(self) -> None:
        super().__init__(token(WRITING))
        self.phone(1, self.delegation(token(WRITING, audience=PHONE)))

    def phone(self, wall: int, payload: object, deps: tuple[bytes, ...] = ()) -> Op:
        return self._say(PHONE_NODE, wall, payload, deps)  # type: ignore[arg-type]

    def judged(self, *ops: Op) -> list[int]:
        log = everywhere_the_same(self.ops[2:], (*INTRODUCTIONS, *self.ops[:2]))
        return [reason(log, op) for op in ops]


def creation(ttl_ms: int | None = None, source: bytes | None = None) -> CreateArtifact:
    digest = content_hash(CONTENT)
    return CreateArtifact(ARTIFACT, "note", source, (), digest, None, None, None, len(CONTENT), ttl_ms)


@pytest.mark.req("LW-24")
def test_a_member_that_may_write_artifacts_does_not_evict_anothers() -> None:
    mesh = Two()
    mesh.owner(10, creation())
    by_worker, by_phone = mesh.worker(20, EvictArtifact(ARTIFACT)), mesh.phone(21, EvictArtifact(ARTIFACT))
    assert mesh.judged(by_worker, by_phone) == [Reason.OTHERS_ARTIFACT] * 2


@pytest.mark.req("LW-24")
def test_the_author_and_the_owner_evict() -> None:
    mesh = Two()
    mesh.worker(10, creation())
    by_phone = mesh.phone(20, EvictArtifact(ARTIFACT))
    by_author = mesh.worker(30, EvictArtifact(ARTIFACT))
    by_owner = mesh.owner(40, EvictArtifact(ARTIFACT))
    assert mesh.judged(by_phone, by_author, by_owner) == [Reason.OTHERS_ARTIFACT, 0, 0]


@pytest.mark.req("LW-24")
def test_the_node_whose_job_made_it_evicts() -> None:
    mesh = Two()
    mesh.phone(5, ScheduleJob(J, "acme.x", b"", b""))
    mesh.owner(10, creation(source=J))
    by_worker, by_phone = mesh.worker(20, EvictArtifact(ARTIFACT)), mesh.phone(21, EvictArtifact(ARTIFACT))
    assert mesh.judged(by_worker, by_phone) == [Reason.OTHERS_ARTIFACT, 0]


@pytest.mark.req("LW-24")
def test_what_a_tick_made_is_evicted_by_the_schedules_author_and_not_by_the_node_that_ticked() -> None:
    mesh = Two()
    asked = mesh.phone(5, SetSchedule("n", "* * * * * *", "UTC", "acme.x", b"", b""))
    policy = encode_policy(tick_policy(DEFAULT, "n", asked.id))
    tick = ScheduleJob(tick_id(asked.id, START + 1_000), "acme.x", b"", policy)
    mesh.worker(1_000, tick, (asked.id,))
    mesh.owner(1_010, creation(source=tick.job_id))
    by_worker, by_phone = mesh.worker(1_020, EvictArtifact(ARTIFACT)), mesh.phone(1_021, EvictArtifact(ARTIFACT))
    assert mesh.judged(by_worker, by_phone) == [Reason.OTHERS_ARTIFACT, 0]


@pytest.mark.req("LW-24")
def test_anyone_who_may_write_artifacts_evicts_after_the_time_to_live() -> None:
    mesh = Two()
    mesh.owner(10, creation(ttl_ms=100))
    early, late = mesh.worker(109, EvictArtifact(ARTIFACT)), mesh.worker(110, EvictArtifact(ARTIFACT))
    assert mesh.judged(early, late) == [Reason.OTHERS_ARTIFACT, 0]


@pytest.mark.req("LW-24")
def test_a_node_that_is_heard_of_late_to_be_the_owners_evicts() -> None:
    mesh = Two()
    mesh.owner(10, creation())
    mesh.worker(15, mesh.delegation(issue(USER, WORKER.public, ROOT, 0, None)))
    assert mesh.judged(mesh.worker(20, EvictArtifact(ARTIFACT))) == [0]


@pytest.mark.req("LW-24")
def test_an_eviction_of_what_is_not_there_yet_waits() -> None:
    mesh = Two()
    before = mesh.worker(10, EvictArtifact(ARTIFACT))
    made = mesh.worker(20, creation())
    after = mesh.worker(30, EvictArtifact(ARTIFACT))
    assert mesh.judged(before, made, after) == [Reason.WAITING, 0, 0]


@pytest.mark.req("LW-24")
def test_a_blob_stays_while_no_eviction_of_it_counts(tmp_path: Path) -> None:
    mesh = Two()
    mesh.owner(10, creation())
    mesh.worker(20, EvictArtifact(ARTIFACT))
    log = admitted(mesh.ops)
    blobs = HomeBlobs(tmp_path)
    blobs.keep(blobs.stage(CONTENT))
    assert artifacts.clear(log.store, blobs).blobs == 0 and blobs.has(content_hash(CONTENT))
    mesh.owner(30, EvictArtifact(ARTIFACT))
    log.admit(world.sent(mesh.ops))
    assert artifacts.clear(log.store, blobs).blobs == 1 and not blobs.has(content_hash(CONTENT))
