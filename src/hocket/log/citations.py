"""What an op depends on: whether every op that it cites is on the log, is earlier, and counts. Citations that lead out
of a job are stored by id, so that a change of the cited op reaches the citing one. Ops here name what they cite by key:
see `naming`.
"""

from collections.abc import Callable, Iterator, Sequence

from hocket.kernel.arbitration import Standings
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import dependencies
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import ACCEPTANCES, JOB, Payload, ScheduleJob, Subject, number_of, subject_of
from hocket.log.memory import Memory
from hocket.log.naming import ID_BYTES
from hocket.log.unstored_ops import UnstoredOps
from hocket.store import Artifact, JobEntry, OpRow, Session

_COUNTS = 0
_ACCEPTANCES = tuple(number_of(each) for each in ACCEPTANCES)


def names_others(payload: Payload) -> bool:
    """Whether the payload itself names ops or jobs that it depends on."""
    kind = type(payload)
    return kind in ACCEPTANCES or (kind is ScheduleJob and bool(payload.policy_envelope))  # type: ignore[union-attr]


class Citations:
    """`entry` and `artifact` return what the transaction knows; `arbiter` returns who decides at a time; `settle` folds
    the ops that are not in the projections yet, and returns False if there are none.
    """

    def __init__(
        self,
        session: Session,
        fresh: UnstoredOps,
        entry: Callable[[bytes], JobEntry | None],
        artifact: Callable[[bytes], Artifact | None],
        arbiter: Callable[[Hlc], int | None],
        settle: Callable[[], bool],
        is_strict: bool,
    ) -> None:
        self._arbiter, self._is_strict = arbiter, is_strict
        self._session = session
        self._fresh = fresh
        self._entry, self._artifact = entry, artifact
        self._settle_log = settle
        # Of the expected names, only those that an op cites are worth a query.
        self._expected: set[bytes] = set()
        self._cited_ones: set[bytes] = set()
        self._rows: dict[bytes, OpRow] = {}
        self.memory = Memory((self._expected, self._cited_ones, self._rows))

    def expect(self, names: Sequence[bytes]) -> None:
        """Reads with one query which of these names any op cites."""
        self._expected.update(names)
        self._cited_ones |= self._session.cited_among(names)

    def expect_none(self, op_id: bytes) -> None:
        """No op can cite this one, which this transaction has just written."""
        self._expected.add(op_id)

    def expect_ops(self, op_ids: Sequence[bytes]) -> None:
        """Reads with one query those of these ops that are stored."""
        if op_ids:
            self._rows.update((row.id, row) for row in self._session.ops_by_id(op_ids))

    def row(self, op_id: bytes) -> OpRow | None:
        """A stored op."""
        return self._rows.get(op_id) or self._session.op(op_id)

    def changed(self, op_id: bytes) -> None:
        """A stored op is no longer as it was read."""
        self._rows.pop(op_id, None)

    def citing(self, name: bytes) -> list[bytes]:
        """The ops that cite this op, job or artifact."""
        name = name[:ID_BYTES]
        return [] if name in self._expected and name not in self._cited_ones else self._session.citing(name)

    def cite(self, name: bytes, op_id: bytes) -> None:
        name = name[:ID_BYTES]
        if name in self._expected:
            self._cited_ones.add(name)
        self._session.cite(name, op_id)

    def fault(self, op: Op, verdicts: Standings | None = None, newest_claim: bytes | None = None) -> Reason | None:
        """Why the op does not count because of what it cites, if so. `verdicts` are those of the job's earlier ops
        during a refold; without them the op is its job's newest, and `newest_claim` is known to count.
        """
        payload = op.payload
        if not op.cited and not names_others(payload):
            return None
        reason: Reason | None = None
        for standing in self._cited(op, verdicts, newest_claim):
            if standing is None:
                reason = reason or Reason.WAITING
                continue
            at, why = standing
            if at >= op.timestamp:
                return Reason.DEPENDENCY_CYCLE
            if why in (Reason.WAITING, Reason.OFFERED):
                # An offer counts once the arbiter has accepted it.
                reason = reason or Reason.WAITING
            elif why != _COUNTS:
                reason = Reason.DEPENDENCY_REJECTED
        return reason

    def are_here(self, op: Op) -> bool:
        """Whether every op that this one cites is on the log, whether or not it counts."""
        return all(self._standing(dep, op.id, None) is not None for dep in op.cited)

    def _cited(
        self, op: Op, verdicts: Standings | None, newest_claim: bytes | None
    ) -> Iterator[tuple[Hlc, int] | None]:
        """When each cited op was written and whether it counts; None for one that is not here. A ScheduleJob also cites
        the schedules of the jobs that it comes after: so no job can come after one that is scheduled later, and there
        are no cycles. (To a strict mesh an envelope names nothing.) An acceptance only needs its offer to be here: the
        acceptance decides what the offer is worth.
        """
        payload = op.payload
        subject = subject_of(payload)
        for dep in op.cited:
            if newest_claim is None or dep != newest_claim:
                standing = (verdicts and verdicts.get(dep)) or self._standing(dep, op.id, subject)
                if standing is not None and standing[1] == Reason.OFFERED:
                    self.cite(dep, op.id)
                    if self._is_accepted(dep, op):
                        standing = standing[0], _COUNTS
                yield standing or self._artifact_standing(dep, op)
        if type(payload) is ScheduleJob and payload.policy_envelope and not self._is_strict:
            for earlier in dependencies(payload.policy_envelope):
                yield self._schedule_standing(earlier, op)
        elif type(payload) in ACCEPTANCES:
            name = payload.offer  # type: ignore[union-attr]
            offer = (verdicts and verdicts.get(name)) or self._standing(name, op.id, subject)
            yield None if offer is None else (offer[0], _COUNTS)

    def _is_accepted(self, offer: bytes, op: Op) -> bool:
        """Whether the arbiter has accepted an offer that the op cites: the arbiter at the acceptance's time or, if the
        acceptance is later than the op, at the op's time, so that no verdict depends on a later op.
        """
        fresh = self._fresh.get(offer)
        row = None if fresh is not None else self._session.op(offer)
        subject = subject_of(fresh[0].payload) if fresh is not None else row and row.subject
        if not subject:
            return False
        rows = [row for row in self._session.ops_about(subject) if row.variant in _ACCEPTANCES]
        stored = [(decode(row.body), row.reason) for row in rows]
        return any(
            type(each.payload) in ACCEPTANCES
            and each.payload.offer == offer  # type: ignore[union-attr]
            and reason != Reason.INTEGRITY
            and each.node_id == self._arbiter(min(each.timestamp, op.timestamp)._replace(node=each.node_id))
            for each, reason in stored + self._fresh.about(subject)
        )

    def _schedule_standing(self, job_id: bytes, op: Op) -> tuple[Hlc, int] | None:
        """The time and reason of the schedule of a job that the op's job comes after. If the job has several, the best
        of the earlier ones counts.
        """
        self.cite(job_id, op.id)
        entry = self._entry(job_id)
        if entry is not None and entry.job.scheduled < op.timestamp:
            return entry.job.scheduled, _COUNTS
        subject = Subject(JOB, job_id)
        known = [(decode(row.body), row.reason) for row in self._session.ops_about(subject)]
        known += self._fresh.about(subject)
        schedules = [
            (each.timestamp, reason)
            for each, reason in known
            if type(each.payload) is ScheduleJob and reason != Reason.INTEGRITY
        ]
        earlier = [standing for standing in schedules if standing[0] < op.timestamp]
        return min(earlier, key=lambda standing: standing[1], default=None) or min(schedules, default=None)

    def _artifact_standing(self, artifact_id: bytes, op: Op) -> tuple[Hlc, int] | None:
        """The time and reason of an artifact that an op cites: in the Likewise chapter on audit, outputs cite a
        snapshot by its artifact id. An artifact that is later than the op counts as absent, so that a rebuild, which
        has not reached it yet, gives the same verdict.
        """
        artifact = self._artifact(artifact_id)
        if artifact is None or artifact.op_id == artifact_id:
            return None
        standing = self._standing(artifact.op_id, op.id, subject_of(op.payload))
        return standing if standing is not None and standing[0] < op.timestamp else None

    def _standing(self, dep: bytes, op_id: bytes, subject: Subject | None) -> tuple[Hlc, int] | None:
        """When a cited op was written and whether it counts."""
        if (fresh := self._fresh.get(dep)) is not None:
            op, reason = fresh
            at, cited = op.timestamp, subject_of(op.payload)
        else:
            row = self.row(dep)
            if row is None and self._settle_log():
                row = self._session.op(dep)
            if row is None:
                self.cite(dep, op_id)
                return None
            at, cited, reason = unpack(row.hlc), row.subject, row.reason
        if cited is None or cited != subject:
            self.cite(dep, op_id)
        return at, reason
