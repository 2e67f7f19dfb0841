"""Schedules and artifacts belong to a node, and not every other node may undo them. A capability lets a node write such
ops at all; this module decides whether it may write this one about that schedule or artifact. The answer depends on
earlier ops alone. Those dependencies are stored, so that the op is judged again when one changes.

`founder` and `writers` say which nodes write a log: its founder, whose delegation is the first op, and those that share
the founder's store.
"""

from collections.abc import Callable

from hocket.families.jobs import rules as schedules
from hocket.kernel.clock import pack
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.reasons import Reason
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import ClearSchedule, CreateArtifact, DelegateUcan, EvictArtifact, SetSchedule
from hocket.log.permissions import Permissions
from hocket.store import Artifact, JobEntry, Session

_SCHEDULES = (SetSchedule, ClearSchedule)
Cite = Callable[[bytes, bytes], None]


class Ownership:
    """`known` returns an op, `entry` a job, `artifact` an artifact; `cite` records that an op depends on another op, a
    job or an artifact.
    """

    def __init__(
        self,
        session: Session,
        known: Callable[[bytes], Op | None],
        entry: Callable[[bytes], JobEntry | None],
        artifact: Callable[[bytes], Artifact | None],
        cite: Cite,
    ) -> None:
        self._session, self._known, self._entry, self._artifact, self._cite = session, known, entry, artifact, cite

    def fault(self, op: Op, permissions: Permissions) -> Reason | None:
        if isinstance(op.payload, _SCHEDULES):
            return self._schedule_fault(op, op.payload.name, permissions)
        if isinstance(op.payload, EvictArtifact) and permissions.delegations:
            return self._eviction_fault(op, op.payload.artifact_id, permissions)
        return None

    def _schedule_fault(self, op: Op, name: str, permissions: Permissions) -> Reason | None:
        before = self._session.schedule_before(name, pack(op.timestamp))
        return schedules.change_fault(
            op,
            None if before is None else self._known(before.op),
            lambda kind: permissions.may_schedule(op.node_id, kind, op.timestamp.wall),
        )

    def _eviction_fault(self, op: Op, artifact_id: bytes, permissions: Permissions) -> Reason | None:
        """An artifact's time to live is in its own op. After it, any node that may write artifacts may evict the
        artifact. Before that, only the node that wrote it, the node whose job made it, and the owner may.
        """
        self._cite(artifact_id, op.id)
        artifact = self._artifact(artifact_id)
        creation = None if artifact is None else self._known(artifact.op_id)
        if creation is None or creation.timestamp > op.timestamp:
            return Reason.WAITING
        assert artifact is not None
        wall = op.timestamp.wall
        if op.node_id == creation.node_id or (artifact.expires is not None and wall >= artifact.expires):
            return None
        assert isinstance(creation.payload, CreateArtifact)
        job_id = creation.payload.source_job
        if job_id is not None and self._submitter(op, job_id) == op.node_id:
            return None
        return None if permissions.authority.is_owner(op.node_id, wall) else Reason.OTHERS_ARTIFACT

    def _submitter(self, op: Op, job_id: bytes) -> int | None:
        """The node that submitted the job; for a tick, the node that set the schedule."""
        self._cite(job_id, op.id)
        entry = self._entry(job_id)
        if entry is None or entry.job.scheduled > op.timestamp:
            return None
        asked = self._known(entry.job.policy.set_by() or entry.job.schedule_op)
        return None if asked is None else asked.node_id


def founder(session: Session) -> int | None:
    """The node with which the log begins, which may be one of another user's mesh; None if the log is empty."""
    first = session.stored_entries(0, 1)
    if not first or first[0].seq != 1:
        return None
    payload = decode(first[0].body).payload
    return read_ucan(payload.ucan_bytes).node if isinstance(payload, DelegateUcan) else 0


def writers(session: Session, permissions: Permissions) -> set[int]:
    """The founder, and every node that was ever told to share its store."""
    began = founder(session)
    if began is None:
        return set()
    shares = permissions.authority.shares.items()
    return {began} | {node for node, each in shares if node_text(began) in {share.store for share in each}}
