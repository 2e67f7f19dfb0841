"""What a job waits for, in one sentence: a time, another job, a worker, a limit, a node that is away, the coordinator.
It is judged by what this node knows: its log, its workers, the state of its peers, and what other nodes have said about
their workers. Nothing here changes anything.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from hocket.families.availability.requests import unavailable
from hocket.families.jobs.authorship import is_own
from hocket.families.jobs.claiming import turn_at
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.jobs.view import WaitReason, state_of
from hocket.families.liveness import Liveness
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc, unpack
from hocket.kernel.extension import extension_kind, loaded
from hocket.kernel.ids import node_text, parse_node, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.policy import lacking
from hocket.kernel.texts import span
from hocket.kernel.vocabulary import JOB, RetryJob, ScheduleJob, Subject, number_of
from hocket.log import Log
from hocket.log.projectors import defaults_of
from hocket.mesh import peers
from hocket.mesh.membership import route_of
from hocket.mesh.names import names
from hocket.store import JobEntry, Session, Stage
from hocket.work.presence import NodePresence, Serving, is_away, known_nodes

HERE = "this node"
# What makes a job wait for its approval.
_ASKS = tuple(number_of(each) for each in (ScheduleJob, RetryJob))
_MAY_COUNT = (0, Reason.OFFERED)
DELIVERS = "the next `hocket mesh sync`, `hocket work` or `hocket mesh serve` here sends it"


class Waiting(NamedTuple):
    """`about` stays the same while only a time in the sentence changes; empty if that has none."""

    reason: WaitReason
    sentence: str
    about: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for states that a reader sees as one."""
        return self.reason, self.about or self.sentence


class WaitReader:
    """What this node knows at one moment. `is_in_touch` is whether a process of this node syncs with others; `here` are
    workers of this process that others are not told about.
    """

    def __init__(
        self, log: Log, session: Session, liveness: Liveness, is_in_touch: bool, here: Sequence[Serving] = ()
    ) -> None:
        self._log, self._session, self._is_in_touch = log, session, is_in_touch
        self._permissions = log.permissions(session)
        self._now = max(log.physical(), session.head().wall)
        self._names = names(self._permissions)
        coordinator = self._permissions.leader(Hlc(self._now, U32_MAX, log.node))
        self._coordinator = None if coordinator == log.node else coordinator
        address = None if self._coordinator is None else peers.address_of(session, self._coordinator)
        self._coordinator_peer = None if address is None else peers.find(session, address)
        # Whether open jobs get to other nodes without the coordinator, as far as is known.
        self._has_peers = log.rules.ranked_open and peers.has_peers(session)
        self._known = known_nodes(session, liveness, log)
        self._known[0] = self._known[0].with_workers(here)
        self._unavailable = unavailable(session)

    def __call__(self, entry: JobEntry) -> Waiting | None:
        """What the job waits for; None if it has ended."""
        match entry.stage:
            case Stage.DONE:
                return None
            case Stage.CLAIMED:
                return self._held(entry.job)
            case Stage.BLOCKED:
                return self._after(entry.job)
            case Stage.DELAYED if entry.job.waits_for_approval:
                return self._approval(entry.job)
            case Stage.DELAYED if (entry.job.ready_at or 0) > self._now:
                return self._later(entry.job)
        return self._out_of_reach(entry.job) or self._dated(self._no_worker(entry.job) or self._limit(entry.job))

    def _held(self, job: Job) -> Waiting:
        from hocket.families.inbox.questions import open_question

        question = open_question(self._session, job, self._now)
        if question is not None:
            until = _time(question.until_ms, self._now)
            return Waiting(WaitReason.ANSWER, f"waits for an answer by {self._agent(question.to)}, until {until}")
        holder = HERE if job.claimer is None else self._name(job.claimer)
        if job.deadline is None or job.deadline > self._now:
            until = "" if job.deadline is None else f" until {_time(job.deadline)}"
            return Waiting(WaitReason.HELD, f"held by {holder}{until}", holder)
        return Waiting(WaitReason.HELD, f"held by {holder}, whose lease ended at {_time(job.deadline)}", "ended")

    def _after(self, job: Job) -> Waiting:
        before = [(each, self._session.job(each)) for each in job.policy.dependencies()]
        left = [(each, found) for each, found in before if found is None or found.job.outcome is not Outcome.SUCCEEDED]
        if not left:
            return Waiting(WaitReason.JOB, "comes after a job that has just ended")
        first, found = left[0]
        state = "not known here" if found is None else state_of(found.job)
        more = f", and {len(left) - 1} more" if len(left) > 1 else ""
        return Waiting(WaitReason.JOB, f"comes after job {ulid_text(first)}, which is {state}{more}")

    def _approval(self, job: Job) -> Waiting:
        approver = self._agent(job.policy.approval_by or "")
        until = "" if job.begin_by is None else f", until {_time(job.begin_by, self._now)}"
        begun = [row for row in self._session.ops_about(Subject(JOB, job.id)) if row.variant in _ASKS]
        since = _time(max(unpack(row.hlc).wall for row in begun if row.reason in _MAY_COUNT), self._now)
        return Waiting(WaitReason.APPROVAL, f"waits for approval by {approver} since {since}{until}", approver)

    def _later(self, job: Job) -> Waiting:
        at = _time(job.ready_at or 0, self._now)
        return Waiting(WaitReason.TIME, f"the next try is at {at}" if job.failures else f"not before {at}")

    def _out_of_reach(self, job: Job) -> Waiting | None:
        """Whether another node must decide about the job, and cannot be asked."""
        coordinator, peer = self._coordinator, self._coordinator_peer
        if coordinator is None or (job.policy.open and (self._has_peers or self._labelled(job, [self._known[0]]))):
            return None
        who = f"the coordinator {self._name(coordinator)}"
        if peer is None:
            return Waiting(WaitReason.COORDINATOR, f"no address of {who} is known; add it with `hocket mesh peers add`")
        if peer.state not in (peers.OK, peers.NEW):
            how = "it is sent when it answers" if self._is_in_touch else DELIVERS
            return Waiting(
                WaitReason.COORDINATOR, f"{who} is out of reach: {peer.detail}; the job waits here, and {how}"
            )
        return None

    def _dated(self, waiting: Waiting) -> Waiting:
        """Where another node decides and no process of this node is connected, this node knows only the past."""
        if self._coordinator is None or self._is_in_touch:
            return waiting
        seen = 0 if self._coordinator_peer is None else self._coordinator_peer.seen
        known = f"as of {_time(seen, self._now)}" if seen else "as far as is known here"
        return waiting._replace(sentence=f"{waiting.sentence}, {known}; `hocket mesh sync` asks the others")

    def _no_worker(self, job: Job) -> Waiting | None:
        """Whether no worker that this node knows of would take the job."""
        near = [each for each in self._known if not is_away(each, self._now)]
        found = self._lack(job, [each for each in near if each.node not in self._unavailable])
        resting = [each for each in near if each.node in self._unavailable and self._lack(job, [each]) is None]
        if found is None or not resting:
            return found
        state, name = self._unavailable[resting[0].node], self._name(resting[0].node)
        how = state.availability.name.lower() + (f" ({state.reason})" if state.reason else "")
        to = "here" if name == HERE else name
        more = f", and so {'is' if len(resting) == 2 else 'are'} {self._list(resting[1:])}" if resting[1:] else ""
        return Waiting(
            WaitReason.UNAVAILABLE, f"{name} is {how}{more}; `hocket node resume {to}` lets it take jobs again"
        )

    def _lack(self, job: Job, near: list[NodePresence]) -> Waiting | None:
        """Whether none of these nodes would take the job."""
        routed = route_of(self._session, job.kind)
        if routed is not None:
            to = self._name(routed)
            if not (near := [each for each in near if each.node == routed]):
                heard = next((f", last heard {self._ago(each)}" for each in self._known if each.node == routed), "")
                return Waiting(WaitReason.AWAY, f"routed to {to}, which is away{heard}", to)
            if not self._serving(job, near):
                return Waiting(WaitReason.NO_WORKER, f"routed to {to}, where no worker serves {job.kind}")
        serving = self._serving(job, near)
        if not serving:
            gone = self._serving(job, self._known)
            past = ", ".join(f"{self._name(each.node)} did, {self._ago(each)}" for each in gone)
            sentence = f"no worker that {HERE} knows of serves {job.kind}{_with(job)}{f' ({past})' if past else ''}"
            return Waiting(WaitReason.NO_WORKER, sentence, f"{job.kind} {self._list(gone)}")
        able = [each for each in serving if self._may_claim(each.node, job.kind)]
        if not able:
            sentence = f"{self._list(serving)} may not claim {job.kind} jobs; grant it job:claim:{job.kind}"
            return Waiting(WaitReason.NOT_ALLOWED, sentence)
        if not self._labelled(job, able):
            missing = min((lacking(job.policy.needs, each.labels) for each in self._workers(job, able)), key=len)
            sentence = f"no worker of {job.kind} on {self._list(able)} has the label {' and '.join(missing)}"
            return Waiting(WaitReason.NO_WORKER, sentence)
        refusal = self._refusal(job, able)
        return None if refusal is None else Waiting(WaitReason.NOT_ALLOWED, refusal)

    def _limit(self, job: Job) -> Waiting:
        """A limit of the kind, or no free slot."""
        defaults, running = defaults_of(self._session, job.kind), self._session.claimed_count(job.kind)
        concurrency, rate = job.policy.concurrency or defaults.concurrency, job.policy.rate or defaults.rate
        if concurrency is not None and running >= concurrency:
            return Waiting(WaitReason.LIMIT, f"{running} of at most {concurrency} {job.kind} jobs run (--concurrency)")
        if rate is not None:
            turn, _ = turn_at(self._session.rate(job.kind), self._now, rate)
            if turn > self._now:
                said = f"{rate.count} in {span(rate.per_ms)}"
                sentence = f"the rate of {job.kind} is {said}; its turn is at {_time(turn)}"
                return Waiting(WaitReason.LIMIT, sentence, said)
        near = [each for each in self._known if not is_away(each, self._now)]
        able = self._labelled(job, [each for each in near if each.node not in self._unavailable])
        return Waiting(WaitReason.BUSY, f"ready; the worker on {self._list(able)} takes it when a slot is free")

    def _workers(self, job: Job, nodes: Iterable[NodePresence]) -> list[Serving]:
        return [worker for each in nodes for worker in each.workers if worker.covers(job.kind)]

    def _serving(self, job: Job, nodes: Iterable[NodePresence]) -> list[NodePresence]:
        return [each for each in nodes if self._workers(job, [each])]

    def _labelled(self, job: Job, nodes: Iterable[NodePresence]) -> list[NodePresence]:
        """The nodes with a worker of the kind that has the labels which the job needs."""
        return [
            each
            for each in nodes
            if any(not lacking(job.policy.needs, worker.labels) for worker in self._workers(job, [each]))
        ]

    def _may_claim(self, node: int, kind: str) -> bool:
        permissions = self._permissions
        return (
            not permissions.delegations or permissions.authority.may(node, "Job", "Claim", kind, self._now) is not None
        )

    def _refusal(self, job: Job, nodes: Sequence[NodePresence]) -> str | None:
        """Why the workers of these nodes do not run a job of an extension's kind; None if one does, or has submitted
        the job itself.
        """
        kind, row = extension_kind(job.kind), self._session.op(job.schedule_op)
        payload = None if row is None else decode(row.body).payload
        if kind is None or not kind.refusal or row is None or not isinstance(payload, ScheduleJob):
            return None
        if any(is_own(self._session, each.node, row.body) for each in nodes):
            return None
        refusal: str | None = loaded(kind.refusal)(payload.payload, self._workers(job, nodes), self._list(nodes))
        return refusal

    def _agent(self, address: str) -> str:
        agent, _, node = address.partition("@")
        return f"{agent} on {self._name(parse_node(node))}" if node else agent

    def _name(self, node: int) -> str:
        return HERE if node == self._log.node else self._names.get(node) or node_text(node)

    def _list(self, nodes: Iterable[NodePresence]) -> str:
        return ", ".join(self._name(each.node) for each in nodes)

    def _ago(self, known: NodePresence) -> str:
        return f"{span(max(0, self._now - known.heard_ms))} ago"


def _with(job: Job) -> str:
    return f" with the label {' and '.join(job.policy.needs)}" if job.policy.needs else ""


def _time(ms: int, now_ms: int | None = None) -> str:
    """A time of day here, with the date if it is not today's."""
    try:
        at = datetime.fromtimestamp(ms / 1000)
        is_today = now_ms is None or datetime.fromtimestamp(now_ms / 1000).date() == at.date()
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms after 1970"
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")
