"""What an op depends on: whether every op that it cites is on the log, is earlier, and counts. Citations that lead out
of a job are stored by id, so that a change of the cited op reaches the citing one.

Which op an id means: where ids are bound, an id means one op. In a strict mesh any node can use any id, so an op is
known by its author and its id: the first op to arrive is stored under its id, and another author's op with the same id
under a longer key, the id and the author. A key has 16 or 24 bytes; the first 16 are always the id. The order of
arrival decides only the key. If several ops have a cited id, the citation means the citing author's own op, or the
earliest by HLC if the author has none. So no other node can come between an author and its own ops. `Citations` takes
ops that name what they cite by key.

A link leads from an audited output to the model call that made it. A node under audit may not state a model's answer
without naming the record of that call. The record must be a real one: on the log before the output, readable, made for
the output's job, and made by the output's author or by the node that completed that job.

The verdict depends on ops alone, never on blobs, so that every node reaches the same one. A record that is too large
for its op is therefore judged by what the op says; `hocket artifacts why` reads the blob and reports what does not fit.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from hocket.kernel.arbitration import Reason, Standings
from hocket.kernel.authority import Authority
from hocket.kernel.bundles import facts_of, read_facts
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import dependencies
from hocket.kernel.snapshot import SNAPSHOT_TYPE, is_record
from hocket.kernel.vocabulary import (
    ACCEPTANCES,
    JOB,
    AcceptWork,
    ClaimType,
    CompleteJob,
    CreateArtifact,
    CreateClaim,
    CreateEpisode,
    CreateSuggestedAction,
    Ids,
    Payload,
    ScheduleJob,
    Subject,
    UpdateEpisode,
    number_of,
    subject_of,
)
from hocket.store import Artifact, JobEntry, OpRow, Session

_COUNTS = 0
_ACCEPTANCES = tuple(number_of(each) for each in ACCEPTANCES)


ID_BYTES = 16


def long_key(op: Op) -> bytes:
    return op.id + op.node_id.to_bytes(8, "big")


def keyed(row: OpRow) -> Op:
    """The op of a row, under its key."""
    if row.bundle is not None and row.place is not None and row.body:
        return read_facts(row.bundle)[row.place].op
    op = decode(row.body)
    return op if len(row.id) == ID_BYTES else replace(op, id=row.id)


def is_taken(session: Session, op_id: bytes) -> bool:
    """Whether an op on the log has this id, or is about a job that has it."""
    return bool(session.ops_named(op_id) or session.jobs_written_of((op_id,)))


class Namesake(NamedTuple):
    """One of several ops with the same id."""

    at: Hlc
    key: bytes
    subject: Subject | None
    reason: int


# The most answers of a sort that are kept from one transaction to the next.
LASTING_MAX = 256
Clearable = dict[Any, Any] | set[Any] | list[Any]


class Memory(NamedTuple):
    """What a part of a projection knows of one transaction, and what stays true until the log changes. If the first of
    `passing` is empty after a transaction that was stored, then so are the others.
    """

    passing: tuple[Clearable, ...]
    lasting: tuple[Clearable, ...] = ()


class UnstoredOps:
    """The ops of one transaction that are not stored yet: each by its key, with its reason, 0 if it counts; and its
    subject. The facts of a set are taken out of their bundle when somebody asks for them, which is rare.
    """

    def __init__(self) -> None:
        self._ops: dict[bytes, tuple[Op, int]] = {}
        self._subjects: dict[bytes, Subject | None] = {}
        self._about: dict[Subject, list[bytes]] = {}
        # The longer keys of ops that share their id with another author's op.
        self._long: dict[bytes, list[bytes]] = {}
        # The facts of sets that are still in their bundles, and those that are ops and have no entry in `_about` yet.
        self._bundled: dict[bytes, tuple[Op, int]] = {}
        self._unlisted: list[bytes] = []
        self.changed: dict[bytes, int] = {}
        """The new reasons of ops that had another one before."""
        known = self._ops, self._subjects, self._about, self._long, self._unlisted, self.changed
        self.memories = Memory(known), Memory((self._bundled,))

    @property
    def ops(self) -> dict[bytes, tuple[Op, int]]:
        self._take_out()
        return self._ops

    def get(self, op_id: bytes) -> tuple[Op, int] | None:
        if op_id in self._bundled:
            self._take_out()
        return self._ops.get(op_id)

    def reason(self, op_id: bytes) -> int | None:
        """The reason of one of these ops."""
        found = self._ops.get(op_id) or self._bundled.get(op_id)
        return None if found is None else found[1]

    def subject(self, op_id: bytes) -> Subject | None:
        """What one of these ops is about."""
        self._take_out()
        if op_id not in self._subjects:
            self._list()
        return self._subjects[op_id]

    def put(self, op: Op, reason: int, subject: Subject | None = None) -> None:
        """`subject` is what the op is about, if the caller knows."""
        before = self.reason(op.id)
        if before is None:
            self._enter(op, subject or subject_of(op.payload))
        elif before != reason:
            self.changed[op.id] = reason
        self._ops[op.id] = (op, reason)

    def _enter(self, op: Op, subject: Subject | None) -> None:
        self._subjects[op.id] = subject
        if subject is not None:
            self._about.setdefault(subject, []).append(op.id)
        if len(op.id) > 16:
            self._long.setdefault(op.id[:16], []).append(op.id)

    def put_set(self, bundle: Op, fact_ids: list[bytes], reason: int) -> None:
        """Facts of a bundle."""
        self._bundled.update(dict.fromkeys(fact_ids, (bundle, reason)))

    def put_fact(self, op: Op, reason: int) -> None:
        """A fact of a set that is an op already."""
        self._ops[op.id] = (op, reason)
        self._unlisted.append(op.id)

    def _take_out(self) -> None:
        if self._bundled:
            bundled = self._bundled.copy()
            self._bundled.clear()
            for bundle in {id(each): each for each, _ in bundled.values()}.values():
                for op, _ in facts_of(bundle):
                    if op.id in bundled:
                        self.put_fact(op, bundled[op.id][1])

    def _list(self) -> None:
        for op_id in self._unlisted:
            op, _ = self._ops[op_id]
            self._enter(op, subject_of(op.payload))
        self._unlisted.clear()

    def about(self, subject: Subject) -> list[tuple[Op, int]]:
        self._take_out()
        self._list()
        return [self._ops[op_id] for op_id in self._about.get(subject, ())]

    def named(self, op_id: bytes) -> list[tuple[Op, int]]:
        """The ops with this id."""
        return [found for key in (op_id, *self._long.get(op_id, ())) if (found := self.get(key)) is not None]


class Naming:
    """`fresh` are the ops of the transaction that are not stored yet."""

    def __init__(self, session: Session, fresh: UnstoredOps, is_strict: bool) -> None:
        self._session, self._fresh, self._is_strict = session, fresh, is_strict

    def namesakes(self, op_id: bytes) -> list[Namesake]:
        """The ops with this id."""
        found = {
            row.id: Namesake(unpack(row.hlc), row.id, row.subject, row.reason) for row in self._session.ops_named(op_id)
        }
        for op, reason in self._fresh.named(op_id):
            found[op.id] = Namesake(op.timestamp, op.id, subject_of(op.payload), reason)
        return list(found.values())

    def key(self, name: bytes, citing: Op) -> bytes:
        """The key of the op that `citing` means by a name; the name itself if no op has it."""
        if not self._is_strict:
            return name
        name = name[:ID_BYTES]
        found = self.namesakes(name)
        earlier = [each for each in found if each.at < citing.timestamp and each.reason != Reason.INTEGRITY] or found
        own = [each for each in earlier if each.at.node == citing.node_id]
        meant = min(own or earlier, default=None)
        return name if meant is None else meant.key

    def resolved(self, op: Op) -> Op:
        """The op with the keys of the ops that it cites."""
        if not self._is_strict or not op.causal_deps:
            return op
        return replace(op, causal_deps=tuple(self.key(dep, op) for dep in op.causal_deps))


def names_others(payload: Payload) -> bool:
    """Whether the payload itself names ops or jobs that it depends on."""
    kind = type(payload)
    return kind in ACCEPTANCES or (kind is ScheduleJob and bool(payload.policy_envelope))  # type: ignore[union-attr]


class Citations:
    """`entry` and `artifact` return what the transaction knows; `arbiter` returns who decides at a time; `settle` folds
    the ops that are not in the projections yet, and returns False if there are none. `is_gone` says whether what has a
    name, and is not here, can no longer come.
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
        is_gone: Callable[[bytes], bool] = lambda name: False,
    ) -> None:
        self._arbiter, self._is_strict, self._is_gone = arbiter, is_strict, is_gone
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
        for name, standing in self._cited(op, verdicts, newest_claim):
            if standing is None:
                if self._is_gone(name):
                    return Reason.DEPENDENCY_REJECTED
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
    ) -> Iterator[tuple[bytes, tuple[Hlc, int] | None]]:
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
                yield dep, standing or self._artifact_standing(dep, op)
        if type(payload) is ScheduleJob and payload.policy_envelope and not self._is_strict:
            for earlier in dependencies(payload.policy_envelope):
                yield earlier, self._schedule_standing(earlier, op)
        elif type(payload) in ACCEPTANCES:
            name = payload.offer  # type: ignore[union-attr]
            offer = (verdicts and verdicts.get(name)) or self._standing(name, op.id, subject)
            yield name, None if offer is None else (offer[0], _COUNTS)

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
