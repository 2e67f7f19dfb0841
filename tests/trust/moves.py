"""A mesh with rogues in it, driven by a list of moves. Three honest members hold real logs and read everything; one or
two rogues hold a member's key and a narrow grant, and sign what they like under any id and any date, show one op to one
node and another op to another, or keep an op back and show it later.

The moves are drawn in tests/trust/random_histories.py. The judge (tests/trust/judge.py) looks on and says whether
anything happened that no grant allows.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

import msgspec

from hocket.errors import HocketError
from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import cron
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import State, tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import revoke_root
from hocket.kernel.clock import just_before, pack, unpack
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, Op, encode, sign
from hocket.kernel.policy import Policy, decode_policy, encode_policy
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import (
    AcceptWork,
    ApproveJob,
    CancelJob,
    ClaimWork,
    ClearSchedule,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    EvictArtifact,
    ExpireWork,
    FailWork,
    Payload,
    PostponeJob,
    ReportFork,
    ReportProgress,
    RetryJob,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    SetSchedule,
    Telemetry,
    YieldWork,
)
from hocket.log import Admission, Transaction
from hocket.store import JobEntry
from tests.trust.judge import Judge, Violation
from tests.trust.members import DAY_MS, START, USER, Forger, Member, decode, key, remembering
from tests.trust.random_histories import HONEST_GRANTS, ROGUE_GRANTS, Move, Setup

KINDS = ("pay.x", "acme.x", "acme.y")
SCHEDULES = ("nightly", "weekly")
# Names that a member would like to have, and one that is nobody's.
NAMES = ("here", "boss", "one", "gpu")


class Rogue(Forger):
    """A forger with its grant, what it has said, and what it has not shown yet."""

    def __init__(self, name: str, token: bytes) -> None:
        super().__init__(name)
        self.token = token
        self.said: list[tuple[bytes, Op]] = []

    def tell(self, payload: Payload, wall: int, **how: object) -> tuple[bytes, Op]:
        sent = self.say(payload, wall, **how)  # type: ignore[arg-type]
        self.said.append(sent)
        return sent


class Mesh:
    """Raises Violation as soon as the judge sees one."""

    def __init__(self, setup: Setup) -> None:
        self.now = self.tenure = START
        self.owner = Member("boss").enter(issue(USER, key("boss").public, ROOT, START // 1000 - 10, None, (), "boss"))
        self.owner.say(DesignateCoordinator(self.owner.node))
        self.honest = [self.owner]
        self.judge = Judge(self.owner.node)
        self.judge.name(self.owner.node, "boss")
        for name, granted in zip(("one", "two"), setup.honest, strict=True):
            member = Member(name)
            member.enter(self._invitation(member, HONEST_GRANTS[granted], None), self.owner.token)
            self.honest.append(member)
        self.rogues: list[Rogue] = []
        for number, granted in enumerate(setup.rogues):
            ends = START // 1000 + 3_600 if setup.ends and not number else None
            rogue = Rogue(f"rogue-{number}", b"")
            rogue.token = self._invitation(rogue, ROGUE_GRANTS[granted], ends)
            rogue.said += rogue.enter(rogue.token, self.owner.token, wall=START)
            self.rogues.append(rogue)
        self.judge.rogues = {rogue.node for rogue in self.rogues}
        self.cids = [content_hash(each.token) for each in (*self.honest, *self.rogues)]
        for _ in range(2):
            for one in self.honest:
                for other in self.honest:
                    self._pull(one, other)
        for rogue in self.rogues:
            for member in self.honest:
                self._show(member, rogue.said)
        self._pass(1_000)
        self._prologue(setup)
        self._newcomer = Member("newcomer")

    def _prologue(self, setup: Setup) -> None:
        """Something to be covetous of: a completed job with its result, an open one that is held, a schedule. The
        rogues have said something by then, and one of them has perhaps been the coordinator for a while. If it still
        is, it covets another job. One whose grant ends has set a schedule.
        """
        paid, loose = (self.owner.submit(*each) for each in (("pay.x",), ("acme.x",)))
        self._pass(10)
        held = self._author(self.owner, ClaimWork(paid, self.owner.node, 60_000))
        assert held is not None
        self.owner.log.run(lambda tx: jobs.complete(tx, jobs.Held(paid, held.id), b'"good"', 1))
        self.owner.submit("acme.x", open=True)
        self._author(self.owner, SetSchedule("nightly", "* * * * *", "UTC", "pay.x", b"{}", b""))
        for rogue in self.rogues:
            for n in range(2):
                rogue.tell(ScheduleJob(NO_ID, "acme.x", b"{}", encode_policy(Policy(open=bool(n)))), self.now + n * 100)
            self._pass(200)
            if setup.ends and rogue is self.rogues[0]:
                rogue.tell(SetSchedule("weekly", "* * * * *", "UTC", "acme.x", b"{}", b""), self.now)
            self._show(self.owner, rogue.said)
        if setup.tenure:
            self._designate(self.rogues[0].node)
            self.tenure = self.now
            self._pass(1_000)
        if setup.tenure == 1:
            self._designate(self.owner.node)
        if setup.tenure == 2:
            self.rogues[0].tell(ClaimWork(self.owner.submit("pay.x"), self.rogues[0].node, 60_000), self.now)
            self._show(self.owner, self.rogues[0].said)
        for member in self.honest[1:]:
            self._pull(member, self.owner)
        self._author(self.honest[1], ClaimWork(loose, self.honest[1].node, 60_000))
        self._pull(self.owner, self.honest[1])
        self._pass(1_000)

    def _invitation(self, other: Member | Forger, granted: Sequence[Capability], ends: int | None) -> bytes:
        starts = START // 1000 - 10
        proofs = [content_hash(self.owner.token)]
        token = issue(self.owner.key, other.key.public, granted, starts, ends, proofs, other.name)
        self.judge.name(other.node, other.name)
        return token

    # Time, and talking to each other.

    def _pass(self, ms: int) -> None:
        self.now += ms
        for member in self.honest:
            member.clock.now = self.now

    def _pull(self, one: Member, other: Member, is_recheck: bool = False) -> None:
        """As nodes do it: what lies beyond the receiver's frontier, then all of the authors whose ops did not follow.
        Now and then they recheck the last op of every author.
        """
        if one is other:
            return
        with one.log.store.read() as session:
            frontier = session.frontier()
        if is_recheck:
            frontier = {node: pack(just_before(unpack(at))) for node, at in frontier.items()}
        with other.log.store.read() as session:
            rows = session.entries_since(frontier, 100_000)
            sent = [(raw, decode(raw)) for raw in (other.log.signed(row.body) for row in rows)]
        if not sent:
            return
        admission = self._show(one, sent, other.node)
        if admission.unlinked:
            with other.log.store.read() as session:
                bodies = [
                    other.log.signed(row.body)
                    for author in admission.unlinked
                    for row in session.entries_of_author(author.to_bytes(8, "big"), bytes(20), 100_000)
                ]
            self._show(one, [(body, decode(body)) for body in bodies], other.node)

    def _show(self, member: Member, sent: Sequence[tuple[bytes, Op]], sender: int = 0) -> Admission:
        before = self.judge.sight(member)
        admission = member.receive(sent, sender)
        self.judge.shown(member, before, sent, self.now, sender)
        return admission

    # What honest members do.

    def _entries(self, member: Member) -> list[JobEntry]:
        member.log.settle()
        with member.log.store.read() as session:
            return list(session.each_job())

    def _jobs(self) -> list[JobEntry]:
        """Every job that an honest member shows, each once."""
        found: dict[bytes, JobEntry] = {}
        for member in self.honest:
            for entry in self._entries(member):
                found.setdefault(entry.job.id, entry)
        return sorted(found.values(), key=lambda entry: entry.job.id)

    def _known(self, *payloads: type) -> list[Op]:
        """Every op with such a payload that an honest member has."""
        found = {op.id: op for member in self.honest for _, op in member.ops() if isinstance(op.payload, payloads)}
        return sorted(found.values(), key=lambda op: op.timestamp)

    def _author(
        self, member: Member, payload: Payload, deps: tuple[bytes, ...] = (), about: int | None = None
    ) -> Op | None:
        """An honest node writes only what counts."""
        self._pass(1)
        op = member.log.run(lambda tx: tx.author(payload, deps, about))
        return None if isinstance(op, Reason) else op

    def honest_move(self, member: Member, move: Move) -> None:
        verbs: list[Callable[[Member, Move], None]] = [
            *[self._submit] * 3,
            *[self._claim] * 3,
            *[self._end] * 4,
            *[self._sync] * 4,
            *[self._wait] * 2,
            self._cancel,
            self._schedule,
            self._schedule,
            self._tick,
            self._tick,
            self._owner_acts,
            self._owner_acts,
            self._evict,
        ]
        verbs[move.verb % len(verbs)](member, move)
        self.judge.look(member)

    def _submit(self, member: Member, move: Move) -> None:
        self._pass(1)
        kind = KINDS[move.target % 3]
        draft = jobs.Draft(kind, b"{}", Policy(open=bool(move.way % 2), retries=1))
        with suppress(HocketError):
            member.log.run(lambda tx: jobs.submit(tx, [draft]))

    def _chosen(self, member: Member, move: Move) -> JobEntry | None:
        entries = self._entries(member)
        return entries[move.target % len(entries)] if entries else None

    def _claim(self, member: Member, move: Move) -> None:
        entry = self._chosen(member, move)
        if entry is not None:
            self._author(member, ClaimWork(entry.job.id, member.node, 60_000))

    def _end(self, member: Member, move: Move) -> None:
        held = [each for each in self._entries(member) if each.job.claimer == member.node and each.job.claim_op]
        held = [each for each in held if each.job.state is State.CLAIMED]
        if not held:
            return
        entry = held[move.target % len(held)]
        job_id, claim = entry.job.id, entry.job.claim_op
        assert claim is not None
        self._pass(1)

        def request(tx: Transaction) -> None:
            if move.way < 8:
                jobs.complete(tx, jobs.Held(job_id, claim), b'"good"', 1)
            elif move.way < 10:
                jobs.fail(tx, jobs.Held(job_id, claim), "no", "", retry=False)
            else:
                jobs.hand_back(tx, jobs.Held(job_id, claim), "")

        member.log.run(request)

    def _sync(self, member: Member, move: Move) -> None:
        self._pull(member, self.honest[move.target % 3])

    def _wait(self, member: Member, move: Move) -> None:
        self._pass((1, 50, 1_000, 30_000, 120_000, 4_000_000, DAY_MS + 4_000_000, 2_000)[move.date % 8])

    def _cancel(self, member: Member, move: Move) -> None:
        entry = self._chosen(member, move)
        if entry is not None:
            later = PostponeJob(entry.job.id, self.now + (0, 2_000)[move.date % 2], "")
            self._author(member, (CancelJob(entry.job.id, ""), RetryJob(entry.job.id, ""), later)[move.way % 3])

    def _schedule(self, member: Member, move: Move) -> None:
        name, kind = SCHEDULES[move.target % 2], KINDS[move.way % 3]
        if move.date < 10:
            self._author(member, SetSchedule(name, "* * * * *", "UTC", kind, b"{}", b""))
        else:
            self._author(member, ClearSchedule(name))

    def _tick(self, member: Member, move: Move) -> None:
        self._pass(60_000 - self.now % 60_000 + move.date)
        member.log.run(cron.make_due)

    def _owner_acts(self, member: Member, move: Move) -> None:
        """Only the owner designates, routes and revokes; it hears first what the coordinator has decided."""
        if member is not self.owner:
            return
        node = (*(each.node for each in self.honest), *(each.node for each in self.rogues))[
            move.target % (3 + len(self.rogues))
        ]
        if move.way < 6:
            self._designate(node)
        elif move.way < 8:
            self._author(self.owner, RouteKind(KINDS[move.date % 3], node if move.way == 6 else None))
        elif node in self.judge.rogues:
            rogue = next(each for each in self.rogues if each.node == node)
            if node != self.judge.coordinator:
                self._author(self.owner, RevokeUcan(content_hash(rogue.token)), about=node)

    def _designate(self, node: int) -> None:
        for each in self.honest:
            if each.node == self.judge.coordinator:
                self._pull(self.owner, each)
        before = self.judge.coordinator
        op = self._author(self.owner, DesignateCoordinator(node), about=before)
        if op is not None:
            self.judge.designated(self.owner, op, before)

    def _evict(self, member: Member, move: Move) -> None:
        made = self._known(CreateArtifact)
        if made:
            self._author(member, EvictArtifact(made[move.target % len(made)].payload.artifact_id))  # type: ignore[union-attr]

    # What rogues do.

    def rogue_move(self, rogue: Rogue, move: Move) -> None:
        before = len(rogue.said)
        verbs: list[Callable[[Rogue, Move], None]] = [
            *[self._speak] * 8,
            *[self._steal] * 3,
            *[self._squat] * 3,
            *[self._decide] * 3,
            *[self._forge_tick] * 3,
            *[self._widen] * 3,
            self._replay,
            self._accuse,
            *[self._fork] * 3,
            *[self._reveal] * 3,
        ]
        verbs[move.verb % len(verbs)](rogue, move)
        for bit, member in enumerate(self.honest):
            if move.seen_by >> bit & 1:
                self._show(member, rogue.said[before:])

    def _date(self, rogue: Rogue, move: Move, about: Op | None = None) -> int:
        """Some time between the rogue's last op and now, usually; its own history goes forward, if nothing else."""
        last = rogue.said[-1][1].timestamp.wall
        near = about.timestamp.wall if about is not None else self.now
        wanted = (
            *(self.now, self.now, self.tenure + 5, self.tenure + 500, last + 1, last + 10),
            *(near - 1, near + 1, near, self.now + 60_000, self.now + 400_000, last - 5),
        )[move.date]
        return max(START, wanted if move.date == 11 else max(wanted, last + 1))

    def _speak(self, rogue: Rogue, move: Move) -> None:
        """About a job, or about the mesh: anything at all."""
        found = self._jobs()
        entry = found[move.target % len(found)] if found else None
        payloads: list[Payload] = [
            ScheduleJob(NO_ID, KINDS[move.target % 3], b"{}", encode_policy(Policy(open=bool(move.seen_by % 2)))),
            SetSchedule(SCHEDULES[move.target % 2], "* * * * *", "UTC", KINDS[move.seen_by % 3], b'"evil"', b""),
            ClearSchedule(SCHEDULES[move.target % 2]),
            DesignateCoordinator(rogue.node),
            RouteKind(KINDS[move.target % 3], rogue.node),
            RevokeUcan(self.cids[move.target % len(self.cids)]),
        ]
        artifacts = self._known(CreateArtifact)
        if artifacts:
            payloads.append(EvictArtifact(artifacts[move.target % len(artifacts)].payload.artifact_id))  # type: ignore[union-attr]
        about = None
        if entry is not None:
            about = self._newest(entry)
            holder = entry.job.claimer or rogue.node
            payloads += [
                CancelJob(entry.job.id, ""),
                RetryJob(entry.job.id, ""),
                PostponeJob(entry.job.id, 2**53, ""),
                ApproveJob(entry.job.id, "alice", ""),
                ExpireWork(entry.job.id, holder, ""),
                FailWork(entry.job.id, holder, "", "", False),
                YieldWork(entry.job.id, holder, ""),
                ReportProgress(entry.job.id, holder, b""),
                ClaimWork(entry.job.id, rogue.node, 60_000),
                CompleteJob(entry.job.id, (), (), Telemetry(1)),
            ]
        payload = payloads[move.way % len(payloads)]
        rogue.tell(payload, self._date(rogue, move, about))

    def _newest(self, entry: JobEntry) -> Op:
        about = [op for op in self._known(AcceptWork, ClaimWork, CompleteJob, ScheduleJob)]
        return [op for op in about if op.payload.job_id == entry.job.id][-1]  # type: ignore[union-attr]

    def _steal(self, rogue: Rogue, move: Move) -> None:
        """Claims a job and ends it, as if before others came to it."""
        found = self._jobs()
        if found:
            entry = found[move.target % len(found)]
            wall = self._date(rogue, move, self._newest(entry))
            _, claim = rogue.tell(ClaimWork(entry.job.id, rogue.node, 60_000), wall)
            content = b'"evil"'
            made = CreateArtifact(
                NO_ID, "hocket.result", entry.job.id, (), content_hash(content), content, None, None, len(content)
            )
            _, result = rogue.tell(made, wall + 1)
            ends = (CompleteJob(entry.job.id, (), (result.id,), Telemetry(1)), CancelJob(entry.job.id, ""))
            rogue.tell(ends[move.way % 4 == 3], wall + 2, deps=(claim.id,))

    def _squat(self, rogue: Rogue, move: Move) -> None:
        """Takes another's id: that of an op, of a job or of an artifact."""
        targets = [op for member in self.honest for _, op in member.ops() if op.node_id != rogue.node]
        jobs_made = [op for op in targets if isinstance(op.payload, ScheduleJob)]
        artifacts = [op for op in targets if isinstance(op.payload, CreateArtifact)]
        last = rogue.last
        if move.way % 3 == 0 and jobs_made:
            victim = jobs_made[move.target % len(jobs_made)]
            evil: Payload = ScheduleJob(victim.payload.job_id, KINDS[move.way % 2 + 1], b'"evil"', b"")  # type: ignore[union-attr]
            rogue.tell(evil, max(START + 1, victim.timestamp.wall - move.date % 3))
        elif move.way % 3 == 1 and artifacts:
            victim = artifacts[move.target % len(artifacts)]
            evil = msgspec.structs.replace(
                victim.payload, content_inline=b'"evil"', content_hash=content_hash(b'"evil"')
            )
            rogue.tell(evil, max(START + 1, victim.timestamp.wall - move.date % 3))
        else:
            victim = targets[-1 - move.target % min(6, len(targets))]
            rogue.tell(ReportProgress(NO_ID, rogue.node, b""), self._date(rogue, move), op_id=victim.id)
        # Nobody takes it in, so its own history goes on without it.
        if move.seen_by % 2:
            rogue.last = last

    def _decide(self, rogue: Rogue, move: Move) -> None:
        """Accepts an offer, often one of its own, or acts as the arbiter, which another node may be."""
        offers = [op for _, op in rogue.said if isinstance(op.payload, ClaimWork | CompleteJob | CancelJob)]
        if not offers or move.way < 4:
            others = [op for op in self._known(ClaimWork, CompleteJob, CancelJob, FailWork) if op.node_id != rogue.node]
            offers = others + offers
        if offers:
            offer = offers[move.target % len(offers)]
            job_id: bytes = offer.payload.job_id  # type: ignore[union-attr]
            words: tuple[Payload, ...] = (
                AcceptWork(job_id, offer.id),
                AcceptWork(job_id, offer.id),
                CancelJob(job_id, ""),
                ClaimWork(job_id, rogue.node, 60_000),
            )
            rogue.tell(words[move.way % 4], self._date(rogue, move, offer))

    def _forge_tick(self, rogue: Rogue, move: Move) -> None:
        """A job that says it is a schedule's: its own or another's, as it was asked for or otherwise."""
        schedules = self._known(SetSchedule)
        if not schedules:
            return
        schedule = schedules[move.target % len(schedules)]
        asked = schedule.payload
        assert isinstance(asked, SetSchedule)
        tick = (schedule.timestamp.wall // 60_000 + 1 + move.date % 3) * 60_000
        policy = tick_policy(decode_policy(asked.policy_envelope), asked.name, schedule.id)
        if move.way % 4 == 1:
            policy = msgspec.structs.replace(policy, open=True)
        kind = KINDS[move.seen_by % 3] if move.way % 4 == 2 else asked.kind
        payload = b'"evil"' if move.way % 4 == 3 else asked.payload
        tick_job = ScheduleJob(tick_id(schedule.id, tick), kind, payload, encode_policy(policy))
        wall = max(tick + move.date, rogue.said[-1][1].timestamp.wall + 1)
        rogue.tell(tick_job, wall, deps=(schedule.id,))

    def _widen(self, rogue: Rogue, move: Move) -> None:
        """Delegates more than it has, to itself under another name or to a puppet; or revokes what others hold."""
        proofs = [content_hash((rogue.token, self.owner.token)[move.way % 4 == 1])]
        to = (rogue, self.owner, self.honest[1], Forger("puppet"))[move.target % 4]
        if move.way < 8:
            granted = ROGUE_GRANTS[move.date % len(ROGUE_GRANTS)]
            starts = START // 1000 - (10 if move.date % 2 else 9)
            token = issue(rogue.key, to.key.public, granted, starts, None, proofs, NAMES[move.seen_by % 4])
            rogue.tell(DelegateUcan(content_hash(token), token), self._date(rogue, move))
            self.cids.append(content_hash(token))
        elif move.way < 10:
            rogue.tell(RevokeUcan(self.cids[move.target % len(self.cids)]), self._date(rogue, move))
        else:
            rogue.tell(revoke_root(rogue.key, self.cids[move.target % len(self.cids)]), self._date(rogue, move))

    def _replay(self, rogue: Rogue, move: Move) -> None:
        """Others' ops once more: as they are, in any order; signed anew by the rogue; with a changed byte."""
        sent = self.honest[move.target % 3].ops()
        Random(move.date).shuffle(sent)
        body, op = sent[0]
        stolen = sign(op, rogue.key)
        sent += [(encode(stolen), stolen), (body[:-1] + bytes([body[-1] ^ 1]), op)]
        self._show(self.honest[move.way % 3], sent)

    def _accuse(self, rogue: Rogue, move: Move) -> None:
        victim = (*self.honest, *self.rogues)[move.target % (3 + len(self.rogues))]
        ops = [(body, op) for body, op in self.owner.ops() if op.node_id == victim.node]
        if isinstance(victim, Rogue):
            ops = victim.said  # there may be something in it
        if len(ops) > 1:
            left, right = ops[move.date % len(ops)], ops[move.way % len(ops)]
            if move.seen_by % 2:
                forged = rogue.say(ReportProgress(NO_ID, 1, b""), left[1].timestamp.wall, after=rogue.last)[1]
                forged = msgspec.structs.replace(left[1], payload=forged.payload)
                right = encode(forged), forged
            rogue.tell(ReportFork(victim.key.public, left[0], right[0]), self._date(rogue, move))

    def _fork(self, rogue: Rogue, move: Move) -> None:
        """Goes on from an earlier op of its own, as if it had said nothing since."""
        point = rogue.said[-1 - move.target % len(rogue.said)][1]
        rogue.last = point.id
        found = self._jobs()
        payload: Payload = ScheduleJob(NO_ID, KINDS[1 + move.way % 2], b"{}", encode_policy(Policy(open=True)))
        if found and move.way % 3:
            payload = ClaimWork(found[move.target % len(found)].job.id, rogue.node, 60_000)
        rogue.tell(payload, point.timestamp.wall + 1 + move.date % 3)

    def _reveal(self, rogue: Rogue, move: Move) -> None:
        """Shows what was kept back."""
        said = rogue.said[::-1] if move.way == 11 else rogue.said
        for bit, member in enumerate(self.honest):
            if move.seen_by >> bit & 1:
                self._show(member, said)

    # A whole history.

    def _recheck(self) -> None:
        """Finds out about histories that end at the same time, and what is missing of those that are known."""
        has_forks = any(member.log.permissions().forks for member in self.honest)
        for one in self.honest if has_forks else [self.owner]:
            for other in self.honest:
                self._pull(one, other, is_recheck=True)

    def _amount(self) -> int:
        """Grows when an honest member gets an op, and when one that has waited for the owner's decision is let in."""
        amount = 0
        for member in self.honest:
            with member.log.store.read() as session:
                amount += 2 * len(member.ops()) + len(session.late_ops())
        return amount

    def play(self, moves: Sequence[Move]) -> None:
        for move in moves:
            if move.who < 3:
                self.honest_move(self.honest[move.who], move)
            else:
                self.rogue_move(self.rogues[move.who % len(self.rogues)], move)
        self.finish()

    def finish(self) -> None:
        """The clocks catch up, the owner lets in what was late, and everybody hears of everything."""
        self._pass(500_000)
        for _ in range(12):
            before = self._amount()
            for one in self.honest:
                one.log.release(accepting.accept)
                for other in self.honest:
                    self._pull(one, other)
            for rogue in self.rogues:
                self.owner.log.decide_late(rogue.node, accept=True)
            if self._amount() == before:
                self._recheck()
                if self._amount() == before:
                    break
        # One who comes last hears everything at once.
        newcomer = self._newcomer
        newcomer.clock.now = self.now
        newcomer.enter(self._invitation(newcomer, ROOT, None), self.owner.token)
        for member in self.honest:
            self._pull(member, newcomer)
        self.honest.append(newcomer)
        for _ in range(3):
            for member in self.honest[:3]:
                self._pull(newcomer, member)
                self._pull(member, newcomer)
        self.judge.agree(self.honest)


def play(setup: Setup, moves: Sequence[Move]) -> None:
    """Raises Violation when something happens that no grant allows, or when an honest node fails."""
    try:
        with remembering():
            Mesh(setup).play(moves)
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"no honest node fails: {error!r}") from error
