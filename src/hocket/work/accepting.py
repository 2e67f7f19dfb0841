"""The arbiter's part: it decides on the offers of other nodes."""

from collections.abc import Sequence

from hocket.families.availability.facts import Availability
from hocket.families.availability.rules import allows
from hocket.families.jobs.rules import Job, State
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.vocabulary import (
    JOB,
    AcceptOffer,
    AcceptWork,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    Subject,
    by_payload,
    subject_of,
)
from hocket.log import Transaction
from hocket.log.request_deadlines import is_given_up
from hocket.work.claiming import NO_LIMITS, limits_of, turn
from hocket.work.jobs import call_off_dependents, stamp

# The payloads that withdraw an offer of their author's, and the field that names it.
_WITHDRAWING = by_payload(lambda each: each.withdraws or None)


def accept(tx: Transaction, offers: Sequence[Op]) -> int:
    """The arbiter's part: decides on other nodes' offers, in the order of the offers' own times. It decides here and
    now what spans jobs and what depends on the rest of the log; the fold does not check that again. It also accepts
    completions of open jobs, which need no acceptance: then they stand, whatever arrives later. Returns how many it
    accepted.
    """
    if tx.projection.arbiter(tx.latest) != tx.node:
        return 0
    withdrawals = ((op, _WITHDRAWING[type(op.payload)]) for op in offers if type(op.payload) in _WITHDRAWING)
    withdrawn = {(op.node_id, getattr(op.payload, field)) for op, field in withdrawals}
    deciding = _Deciding(tx)
    for op in sorted(offers, key=lambda op: op.timestamp):
        if (op.node_id, op.id) not in withdrawn:
            deciding.take(op)
    deciding.write()
    return deciding.accepted


class _Deciding:
    """Decisions on offers, one after the other. The acceptances of offers that do not bear on each other are written
    together.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._asked: dict[bytes, bytes] = {}
        self._availabilities: dict[int, Availability] = {}
        self._routes: dict[str, int | None] = {}
        self.accepted = 0

    def take(self, op: Op) -> None:
        subject = subject_of(op.payload)
        if subject is None or subject.family != JOB or subject.key in self._asked:
            self.write()
        if not self._tx.is_offer(op):
            if isinstance(op.payload, CompleteJob):
                self.accepted += stamp(self._tx, op.payload.job_id, op.id)
        elif subject is not None and self._is_good(op, subject):
            if subject.family == JOB:
                self._asked[subject.key] = op.id
            else:
                written = self._tx.author(AcceptOffer(subject.family, subject.key, op.id))
                self.accepted += not isinstance(written, Reason)

    def write(self) -> None:
        """Writes the acceptances so far."""
        tx, asked = self._tx, self._asked
        written = tx.author_all([(AcceptWork(job_id, offer), ()) for job_id, offer in asked.items()])
        for job_id, op in zip(asked, written, strict=True):
            if not isinstance(op, Reason):
                self.accepted += 1
                call_off_dependents(tx, job_id)
        asked.clear()

    def _is_good(self, op: Op, subject: Subject) -> bool:
        tx, payload = self._tx, op.payload
        if isinstance(payload, ExpireWork):
            return False  # the arbiter expires by its own clock
        availability = self._availability(op.node_id)
        if subject.family != JOB:
            return allows(availability, payload, is_held=False)
        entry = tx.projection.jobs.entry(subject.key)
        if entry is None:
            return False
        job = entry.job
        if not allows(availability, payload, is_held=job.claimer == op.node_id):
            return False
        if not isinstance(payload, ClaimWork):
            return True
        if self._route(job.kind) not in (None, op.node_id):
            return False  # a first claim as well as a renewal
        return job.state is not State.PENDING or self._may_start(op, payload, job)

    def _availability(self, node: int) -> Availability:
        """No acceptance changes it."""
        if node not in self._availabilities:
            self._availabilities[node] = self._tx.projection.availability(node)
        return self._availabilities[node]

    def _route(self, kind: str) -> int | None:
        """No acceptance changes it."""
        if kind not in self._routes:
            self._routes[kind] = self._tx.projection.jobs.route(kind, self._tx.latest)
        return self._routes[kind]

    def _may_start(self, op: Op, payload: ClaimWork, job: Job) -> bool:
        """Whether a claim from another node would be useful if accepted, and would break no limit."""
        tx = self._tx
        if is_given_up(op, payload.lease_duration_ms, tx.physical, tx.now):
            return False
        limits, dependencies = limits_of(tx, job.kind, job.policy), job.policy.dependencies()
        if dependencies or limits != NO_LIMITS:
            self.write()
        if any(tx.projection.jobs.succeeded(dependency) is None for dependency in dependencies):
            return False
        return turn(tx, job.kind, limits) <= tx.now
