"""Checks what a store that nodes share gives, before this node acts on it: each of these nodes can change any row with
SQL. An op must be the one that its author signed, and its columns must fit it. The authors' keys come from delegations
that lead back to the user. A derived row that gives a privilege must say what the op says that it comes from. A row
that does not is left out and reported; the rest goes on. An op is verified once in a process, and not at all if the
process has written it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from hocket.kernel.authority import Authority
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, is_signed_by, link_to, plain_schedule_link
from hocket.kernel.policy import DEFAULT, Policy, job_policy
from hocket.kernel.postcard import Malformed
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job
from hocket.kernel.schedules import tick_fault
from hocket.kernel.subjects import JOB, Subject, subject_of
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    AcceptWork,
    ClaimWork,
    DelegateUcan,
    RouteKind,
    Sanitised,
    ScheduleJob,
    discriminant,
    number_of,
)
from hocket.log.author_check import binding_fault, op_fault
from hocket.log.naming import ID_BYTES, long_key
from hocket.log.parallel import in_parallel
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.log.state_check import CheckedStates, SessionStates, StateCheck
from hocket.log.ticks import could_be_newest
from hocket.store import JobEntry, NewOp, OpRow, Session
from hocket.store.row_check import NodeKeys, ReadyJob

# How many ops, jobs and claims are remembered as good.
REMEMBERED_MAX = 16_384
FINDINGS_MAX = 1_000
UNREADABLE = "its bytes cannot be read"
_CLAIM, _SCHEDULE = number_of(ClaimWork), number_of(ScheduleJob)
K = TypeVar("K")
V = TypeVar("V")


class RowFinding(NamedTuple):
    """A row that is not as its op says, or whose op is not its author's."""

    table: str
    row: str
    what: str


class _GoodOp(NamedTuple):
    """An op that was verified: a hash of its bytes, and what its columns must say."""

    digest: bytes
    hlc: bytes
    variant: int
    subject: Subject | None


class _NewOp(NamedTuple):
    """An op that is to be verified, with its number among those that were read."""

    number: int
    key: bytes
    body: bytes
    op: Op


class _GoodJob(NamedTuple):
    """What a job has from its ScheduleJob op. If the op was verified for a run: the hash of its bytes, and the
    permissions under which its author may submit it.
    """

    schedule_op: bytes
    kind: str
    scheduled: Hlc
    policy: Policy
    digest: bytes = b""
    permissions: Permissions | None = None


class StoreCheck:
    """The checks of one process. `key` is this node's own, and the home keeps checked states in `kept`. It calls
    `report` once for each bad row, inside the transaction that has read the row.
    """

    def __init__(
        self,
        user: str,
        node: int,
        key: SigningKey,
        permissions_reader: Callable[[], PermissionsReader],
        helpers: Executor | None,
        kept: CheckedStates | None = None,
    ) -> None:
        self._user, self._node, self._key, self._helpers = user, node, key, helpers
        self._reader = permissions_reader
        self._keys: dict[int, bytes] = {node: key.public}
        self._ops: dict[bytes, _GoodOp] = {}
        self._jobs: dict[bytes, _GoodJob] = {}
        # The claims of this process: each with its job and its author.
        self._claims: dict[bytes, tuple[bytes | None, bytes]] = {}
        self._entries: dict[tuple[str, bytes, bytes | None], None] = {}
        self.findings: dict[tuple[str, str], RowFinding] = {}
        self.report: Callable[[RowFinding], None] = lambda finding: None
        self.states = StateCheck(permissions_reader, self.refuse, kept)

    def within(self, session: Session) -> "SessionCheck":
        return SessionCheck(self, session)

    def wrote(self, ops: Sequence[NewOp]) -> None:
        """This process has signed these ops, or has verified them before it stores them. It remembers those that a
        worker reads again.
        """
        for op in ops:
            if op.variant == _SCHEDULE and op.key is not None:
                good = _GoodOp(_digest(op.body), op.hlc, op.variant, Subject(op.family, op.key))
                _remember(self._ops, op.id, good)
            elif op.variant == _CLAIM and not op.reason:
                _remember(self._claims, op.id, (op.key, op.hlc[12:]))

    def refuse(self, table: str, row: str, what: str) -> None:
        if (table, row) not in self.findings:
            finding = RowFinding(table, row, what)
            _remember(self.findings, (table, row), finding, FINDINGS_MAX)
            self.report(finding)

    # Ops.

    def ops(self, session: Session, rows: list[OpRow]) -> list[OpRow]:
        verdicts = self._judged(session, [(row.id, row.body) for row in rows])
        return [row for row, verdict in zip(rows, verdicts, strict=True) if self._is_good(row, verdict)]

    def _is_good(self, row: OpRow, verdict: _GoodOp | str) -> bool:
        if not isinstance(verdict, str) and verdict[1:] != (row.hlc, row.variant, row.subject):
            verdict = "its index columns differ from its bytes"
        if isinstance(verdict, str):
            self.refuse("ops", _shown(row.id), verdict)
            return False
        return True

    def bodies(self, session: Session, bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        found = dict(bodies)
        for key, verdict in zip(bodies, self._judged(session, list(bodies.items())), strict=True):
            if isinstance(verdict, str):
                self.refuse("ops", _shown(key), verdict)
                found[key] = b""
        return found

    def _judged(self, session: Session, bodies: Sequence[tuple[bytes, bytes]]) -> list[_GoodOp | str]:
        """Verifies the ops that are not known yet, on all cores if there are many. Returns what is wrong with bad
        ones.
        """
        verdicts: list[_GoodOp | str] = []
        new: list[_NewOp] = []
        for number, (key, body) in enumerate(bodies):
            digest = _digest(body)
            known = self._ops.get(key)
            if known is not None and known.digest == digest:
                verdicts.append(known)
                continue
            try:
                op = decode(body)
            except Malformed:
                verdicts.append(UNREADABLE)
                continue
            verdicts.append(_GoodOp(digest, pack(op.timestamp), discriminant(op.payload), subject_of(op.payload)))
            new.append(_NewOp(number, key, body, op))
        for each, fault in zip(new, self._faults(session, new), strict=True):
            verdict = verdicts[each.number]
            if fault is not None:
                verdicts[each.number] = fault
            elif not isinstance(verdict, str):
                _remember(self._ops, each.key, verdict)
        return verdicts

    def _faults(self, session: Session, new: Sequence[_NewOp]) -> list[str | None]:
        if not new:
            return []
        self._introduce(session, [each.op for each in new])
        reads_everything = self._reads_everything(session, [each.op for each in new])

        def check(part: Sequence[_NewOp]) -> list[str | None]:
            return [self._fault(each, reads_everything) for each in part]

        return in_parallel(self._helpers, check, new)

    @property
    def _is_bound(self) -> bool:
        return self._reader().rules.bounds is not None

    def _reads_everything(self, session: Session, ops: Iterable[Op]) -> bool:
        """Whether this node receives all ops whole, as all nodes that share a store do. Asked for sanitised ops."""
        if not any(isinstance(op.payload, Sanitised) for op in ops):
            return True
        reader = self._reader()
        if reader.latest is None and reader.is_reading:
            return True  # no sanitised op changes the permissions
        latest = reader.latest or self._permissions(session)
        return latest.authority.reads_everything(self._node, max(op.timestamp.wall for op in ops))

    def _fault(self, new: _NewOp, reads_everything: bool) -> str | None:
        op, body = new.op, new.body
        if new.key not in (op.id, long_key(op)):
            return "its index columns differ from its bytes"
        public = self._keys.get(op.node_id)
        if isinstance(op.payload, Sanitised):
            return "it has no signature" if public is None or reads_everything else None
        if op.node_id == self._node and is_signed_by(body, op, self._key):
            return self._binding_fault(new) if self._is_bound else None
        refused = op_fault(self._user, body, op, public, self._is_bound)
        return None if refused is None else refused.sentence

    def _binding_fault(self, new: _NewOp) -> str | None:
        if new.key != new.op.id:
            return "its index columns differ from its bytes"
        refused = binding_fault(self._user, new.body, new.op)
        return None if refused is None else refused.sentence

    # The authors' keys.

    def _introduce(self, session: Session, ops: Iterable[Op]) -> None:
        """Learns the keys of authors that are not known yet. The first op of every node states its key."""
        unknown = {op.node_id for op in ops} - self._keys.keys()
        if not unknown:
            return
        own = [op.payload.ucan_bytes for op in ops if isinstance(op.payload, DelegateUcan)]
        self._learn([each.token for each in session.delegations()] + own)
        for node in unknown - self._keys.keys():
            first = session.first_stored(node.to_bytes(8, "big"))
            with suppress(Malformed):
                payload = None if first is None else decode(first).payload
                if isinstance(payload, DelegateUcan):
                    self._learn([payload.ucan_bytes])

    def _learn(self, tokens: Iterable[bytes]) -> None:
        delegations: dict[bytes, Delegation] = {}
        for token in tokens:
            with suppress(Malformed):
                delegations[content_hash(token)] = read_ucan(token)
        authority = Authority(self._user, delegations.values(), ())
        for is_sure in (True, False):
            for each in delegations.values():
                if authority.fault(each) is (None if is_sure else Reason.UNRESOLVED):
                    self._keys.setdefault(each.node, each.public)

    def nodes(self, session: Session, keys: NodeKeys) -> NodeKeys:
        numbers = {int.from_bytes(node, "big") for node in keys}
        if numbers - self._keys.keys():
            self._learn([each.token for each in session.delegations()])
        good: NodeKeys = {}
        for node, (public, issuer) in keys.items():
            if self._keys.get(int.from_bytes(node, "big")) == public:
                good[node] = public, issuer
            else:
                self.refuse("nodes", node.hex(), "no delegation of the user's names this key")
        return good

    # Jobs.

    def ready(self, session: Session, jobs: list[ReadyJob]) -> list[ReadyJob]:
        permissions = self._permissions(session)
        unknown = [
            (entry.job, body)
            for entry, body in jobs
            if body is not None and not self._is_good_job(entry.job, body, permissions)
        ]
        if not unknown:
            return jobs
        bad: set[bytes] = set()
        for job, body, verdict in self._scheduling_ops(session, unknown):
            fault: str | None
            if isinstance(verdict, str):
                table, fault = "ops", verdict
            else:
                table, fault = "jobs", self._schedule_fault(job, verdict)
                fault = fault or self._unauthorised(session, job, verdict, permissions)
            if fault is None:
                _remember(self._jobs, job.id, _GoodJob(*_scheduled(job), _digest(body), permissions))
            else:
                bad.add(job.id)
                self.refuse(table, _shown(job.schedule_op if table == "ops" else job.id), fault)
        return [each for each in jobs if each[0].job.id not in bad] if bad else jobs

    def _scheduling_ops(
        self, session: Session, jobs: Sequence[tuple[Job, bytes]]
    ) -> Iterator[tuple[Job, bytes, Op | str]]:
        """The ops of these jobs, or what is wrong with them. Nobody needs the signature of each: the signature of an op
        vouches for its author's op right before it, since its link commits to that op's id, and the id to the content.
        """
        plain: dict[bytes, tuple[Job, bytes, Op]] = {}
        others: list[tuple[Job, bytes]] = []
        followers: dict[tuple[int, bytes | None], bytes] = {}
        for job, body in jobs:
            link = plain_schedule_link(body, job.id, job.scheduled, job.kind) if self._is_plain(job) else None
            if link is None:
                others.append((job, body))
            else:
                op = Op(job.id, job.scheduled, job.scheduled.node, (link,), ScheduleJob(job.id, job.kind, b"", b""))
                plain[job.id] = job, body, op
                followers[op.node_id, link] = op.id
        good: set[bytes] = set()
        # The latest first: each op is vouched for by a later one.
        for job, body, op in sorted(plain.values(), key=lambda each: each[2].timestamp, reverse=True):
            follower = followers.get((op.node_id, link_to(op.id)))
            if follower in good:
                good.add(op.id)
                yield job, body, op
            else:
                verdict = self._read(session, job.schedule_op, body)
                if not isinstance(verdict, str):
                    good.add(op.id)
                yield job, body, verdict
        for job, body in others:
            yield job, body, self._read(session, job.schedule_op, body)

    def _is_plain(self, job: Job) -> bool:
        return self._is_bound and job.policy == DEFAULT and job.id == job.schedule_op

    def _read(self, session: Session, key: bytes, body: bytes) -> Op | str:
        (verdict,) = self._judged(session, [(key, body)])
        return verdict if isinstance(verdict, str) else decode(body)

    def _schedule_fault(self, job: Job, op: Op) -> str | None:
        payload = op.payload.payload if isinstance(op.payload, Sanitised) else op.payload
        if not isinstance(payload, ScheduleJob) or payload.job_id != job.id:
            return "its ScheduleJob op schedules no such job"
        says = payload.kind, op.timestamp, job_policy(payload.policy_envelope, self._reader().rules.is_strict)
        return None if says == (job.kind, job.scheduled, job.policy) else "its row differs from its ScheduleJob op"

    def _is_good_job(self, job: Job, body: bytes, permissions: Permissions) -> bool:
        known = self._jobs.get(job.id)
        return known is not None and known == (*_scheduled(job), _digest(body), permissions)

    def _unauthorised(self, session: Session, job: Job, op: Op, permissions: Permissions) -> str | None:
        set_by = job.policy.set_by()
        if job.policy.schedule_op is None or set_by is None:
            refused = permissions.refusal(op, job.kind)
        else:
            row = session.op(set_by)
            schedule = None if row is None else decode(row.body)
            refused = tick_fault(op, schedule, None, could_be_newest)
            if refused is None and schedule is not None:
                refused = permissions.tick_refusal(op, schedule.node_id)
        return None if refused is None else f"its author may not submit it: {refused.sentence}"

    def jobs(self, session: Session, entries: Sequence[JobEntry]) -> list[JobEntry]:
        unknown = [each.job.schedule_op for each in entries if not self._is_known_job(each.job)]
        claims = [
            claim
            for each in entries
            if (claim := each.job.claim_op) is not None and each.job.claimer is not None and claim not in self._claims
        ]
        wanted = [*unknown, *claims]
        rows = {row.id: row for row in session.ops_by_id(wanted)} if wanted else {}
        good: list[JobEntry] = []
        for entry in entries:
            job = entry.job
            row = rows.get(job.schedule_op)
            fault = None
            if not self._is_known_job(job):
                op = None if row is None else decode(row.body)
                fault = "its ScheduleJob op is not there" if op is None else self._schedule_fault(job, op)
                if fault is None:
                    _remember(self._jobs, job.id, _GoodJob(*_scheduled(job)))
            fault = fault or self._claim_fault(session, job, rows)
            if fault is None:
                good.append(entry)
            else:
                self.refuse("jobs", _shown(job.id), fault)
        return good

    def _is_known_job(self, job: Job) -> bool:
        known = self._jobs.get(job.id)
        return known is not None and known[:4] == _scheduled(job)

    def _claim_fault(self, session: Session, job: Job, rows: Mapping[bytes, OpRow]) -> str | None:
        if job.claimer is None or job.claim_op is None:
            return None
        known = self._claims.get(job.claim_op)
        if known is None and (row := rows.get(job.claim_op)) is not None:
            op = decode(row.body)
            offer = session.op(op.payload.offer) if isinstance(op.payload, AcceptWork) else row
            claim = op if offer is row else None if offer is None else decode(offer.body)
            if offer is not None and claim is not None and self._is_claim(job, op, claim, self._permissions(session)):
                known = offer.key, offer.hlc[12:]
                _remember(self._claims, job.claim_op, known)
        is_held = known == (job.id, job.claimer.to_bytes(8, "big"))
        return None if is_held else "no claim of its claimer is there, or none that it may make"

    def _is_claim(self, job: Job, op: Op, claim: Op, permissions: Permissions) -> bool:
        """Whether the op decides that this claim holds the job: it is that claim, or the arbiter's word on it."""
        is_decided = permissions.arbiter(op.timestamp) in (None, op.node_id)
        return (
            isinstance(claim.payload, ClaimWork)
            and subject_of(op.payload) == subject_of(claim.payload) == Subject(JOB, job.id)
            and (is_decided or (op is claim and job.policy.open))
            and permissions.refusal(claim, job.kind) is None
        )

    # Other derived rows.

    def route(self, session: Session, kind: str, hlc: bytes, node: bytes | None) -> bool:
        entry = kind, hlc, node
        if entry in self._entries:
            return True
        permissions = self._permissions(session)
        for op in _ops_at(session, hlc):
            payload = op.payload
            if isinstance(payload, RouteKind) and payload.kind == kind and permissions.refusal(op) is None:
                routed = None if payload.route is None else payload.route.to_bytes(8, "big")
                if routed == node:
                    self.enter_route(kind, hlc, node)
                    return True
        self.refuse("routes", kind, "no op of an owner's node routes this kind so")
        return False

    def enter_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        _remember(self._entries, (kind, hlc, node), None)

    def _permissions(self, session: Session) -> Permissions:
        return self._reader().read(session, session.head().permissions_state)


def sound_job(session: Session, job_id: bytes) -> JobEntry | None:
    """The job, if its row is as its ops say."""
    entry = session.job(job_id)
    check = session.row_check
    return entry if entry is None or check is None else next(iter(check.jobs((entry,))), None)


class SessionCheck(SessionStates):
    """The checks within one session: see `RowCheck`."""

    def __init__(self, check: StoreCheck, session: Session) -> None:
        super().__init__(check.states, session)
        self._check, self._session = check, session

    def ops(self, rows: list[OpRow]) -> list[OpRow]:
        return self._check.ops(self._session, rows)

    def bodies(self, bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return self._check.bodies(self._session, bodies)

    def ready(self, jobs: list[ReadyJob]) -> list[ReadyJob]:
        return self._check.ready(self._session, jobs)

    def jobs(self, entries: Sequence[JobEntry]) -> list[JobEntry]:
        return self._check.jobs(self._session, entries)

    def nodes(self, keys: NodeKeys) -> NodeKeys:
        return self._check.nodes(self._session, keys)

    def route(self, kind: str, hlc: bytes, node: bytes | None) -> bool:
        return self._check.route(self._session, kind, hlc, node)

    def enter_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        self._check.enter_route(kind, hlc, node)

    def refuse(self, table: str, row: str, what: str) -> None:
        self._check.refuse(table, row, what)


def _scheduled(job: Job) -> tuple[bytes, str, Hlc, Policy]:
    return job.schedule_op, job.kind, job.scheduled, job.policy


def _ops_at(session: Session, hlc: bytes) -> list[Op]:
    return [decode(row.body) for row in session.ops_at(hlc)]


def _digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()


def _shown(key: bytes) -> str:
    return ulid_text(key[:ID_BYTES]) if len(key) >= ID_BYTES else key.hex()


def _remember(known: dict[K, V], key: K, value: V, limit: int = REMEMBERED_MAX) -> None:
    while len(known) >= limit:
        known.pop(next(iter(known)), None)
    known[key] = value
