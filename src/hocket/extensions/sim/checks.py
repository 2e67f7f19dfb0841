"""The invariants of every run, whatever went wrong in it. Some are watched during the run; the others are checked at
its end, when the network is whole again and all nodes have had time to catch up.

Also what happened in a run, in order: one line for each event, and one hash over all of them. Two runs from the same
seed have the same hash, in any process and on any day.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from blake3 import blake3
from msgspec.structs import replace

from hocket.extensions.sim.hostile import ROGUE
from hocket.extensions.sim.load import OPEN, SOLE, Journal, SimRun
from hocket.extensions.sim.node import SimNode, Up
from hocket.families.jobs import view
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.ids import node_id, ulid_text
from hocket.log.rebuild import without_keys
from hocket.log.succession.leading import read_lead
from hocket.store import JobEntry, JobSession, Stage

_LARGE = frozenset(("crash", "restart", "cut", "heal", "slow disk", "good disk", "clock", "quiet"))


class SimEvent(NamedTuple):
    """`node` is its number, or -1 for all nodes; `about` is the job or op, if there is one."""

    at: float
    node: int
    what: str
    about: bytes
    detail: str

    def __str__(self) -> str:
        who = f"node {self.node}" if self.node >= 0 else "mesh"
        about = f" {ulid_text(self.about)}" if self.about else ""
        return f"{self.at:10.3f}  {who:8} {self.what}{about}{' ' if self.detail else ''}{self.detail}"


class Trace:
    def __init__(self) -> None:
        self.events: list[SimEvent] = []
        self.now = 0.0

    def add(self, at: float, node: int, what: str, about: bytes = b"", detail: str = "") -> None:
        self.events.append(SimEvent(at, node, what, about, detail))

    def digest(self) -> str:
        hasher = blake3()
        for event in self.events:
            hasher.update(f"{event.at:.9f}|{event.node}|{event.what}|{event.about.hex()}|{event.detail}\n".encode())
        return hasher.hexdigest()

    def around(self, about: bytes | None, last: int) -> list[SimEvent]:
        """The last events about one thing, with what happened to whole nodes meanwhile."""
        if about is None:
            return self.events[-last:]
        chosen = [event for event in self.events if event.about == about or (not event.about and event.what in _LARGE)]
        return chosen[-last:]


class Violation(NamedTuple):
    """`about` is the job or op that shows it, if there is one."""

    rule: str
    about: bytes | None
    sentence: str


class Shown(NamedTuple):
    """What a replica has shown of a job that an arbiter decides."""

    artifacts: tuple[bytes, ...]
    node: int


class InvariantWatch:
    """Watches the replicas during the run: a decision of the arbiter never looks different later, or elsewhere."""

    def __init__(self, found: Callable[[Violation], None]) -> None:
        self._found = found
        self._holders: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        self._done: dict[bytes, Shown] = {}
        self._done_at: dict[int, set[bytes]] = {}

    def look(self, node: SimNode) -> None:
        done_here = self._done_at.setdefault(node.number, set())
        with node.store.read() as session:
            jobs = [entry.job for entry in session.each_job() if entry.job.kind == SOLE]
        for job in jobs:
            if job.claim_op is not None:
                self._holder(node.number, job.id, job.fence, job.claim_op)
            if job.outcome is Outcome.SUCCEEDED:
                self._final(node.number, job.id, job.artifacts)
                done_here.add(job.id)
            elif job.id in done_here:
                self._say("completed is final", job.id, f"node {node.number} has taken its completion back")

    def _holder(self, node: int, job_id: bytes, fence: int, claim: bytes) -> None:
        known = self._holders.setdefault((job_id, fence), (claim, node))
        if known[0] != claim:
            self._say(
                "one holder per fence",
                job_id,
                f"fence {fence} is held by {ulid_text(known[0])} at node {known[1]}"
                f" and by {ulid_text(claim)} at node {node}",
            )

    def _final(self, node: int, job_id: bytes, artifacts: tuple[bytes, ...]) -> None:
        known = self._done.setdefault(job_id, Shown(artifacts, node))
        if known.artifacts != artifacts:
            self._say("completed is final", job_id, f"nodes {known.node} and {node} show different results")

    def _say(self, rule: str, about: bytes, sentence: str) -> None:
        self._found(Violation(rule, about, f"job {ulid_text(about)}: {sentence}"))


def is_untold(node: SimNode) -> bool:
    """Whether the replica shows what a coordinator with successors has decided and told nobody yet."""
    with node.store.read() as session:
        if read_lead(session) is None:
            return False
        if node.up is None:
            return True
        log = node.up.log
        until = log.lead.served_to(session, log.permissions(session))
        return until is not None and session.latest_of(log.author)[0] > until


def settled(nodes: Sequence[SimNode], hostile: Collection[int] = ()) -> bool:
    """Whether every replica has the same ops and every job has ended, except those of hostile nodes."""
    rogues = {node.to_bytes(8, "big") for node in hostile}
    seen: object = None
    for node in nodes:
        with node.store.read() as session:
            if session.head().unsettled or any(_is_stuck(entry) for entry in _unended(session)):
                return False
            known = {author: at for author, at in session.frontier().items() if author not in rogues}
            here = known, 0 if hostile else session.head().seq
        if seen is not None and here != seen:
            return False
        seen = here
    return True


def _unended(session: JobSession) -> list[JobEntry]:
    if all(stage is Stage.DONE for stage, _ in session.counts()):
        return []
    return [entry for entry in session.each_job() if entry.stage is not Stage.DONE]


def _is_stuck(entry: JobEntry) -> bool:
    """No node does what a hostile node asks for."""
    return entry.stage is not Stage.DONE and entry.job.kind != ROGUE


def at_the_end(
    nodes: Sequence[SimNode], journal: Journal, acknowledged: dict[bytes, int], hostile: Collection[int] = ()
) -> Iterator[Violation]:
    yield from _lost(nodes, acknowledged)
    yield from _differ(nodes, hostile)
    if hostile:
        yield from _trespasses(nodes, hostile)
    yield from _unfinished(nodes)
    yield from _stale_results(nodes)
    for node in nodes:
        yield from _unaware(node)
    yield from overlaps(journal.runs)


def _ops(node: SimNode, but: Collection[int] = ()) -> dict[bytes, bytes | None]:
    """Every op of a node's log, except those of some authors."""
    authors = {each.to_bytes(8, "big") for each in but}
    with node.store.read() as session:
        return {row.id: row.job for row in session.ops_after(0, 10_000_000) if row.hlc[12:] not in authors}


def _trespasses(nodes: Sequence[SimNode], hostile: Collection[int]) -> Iterator[Violation]:
    """What a hostile node may not do has no effect anywhere."""
    for node in nodes:
        with node.store.read() as session:
            for job in [entry.job for entry in session.each_job()]:
                is_its_own = job.scheduled.node in hostile
                if is_its_own and job.schedule_op != job.id:
                    yield Violation("no node takes a job's id", job.id, f"node {node.number} shows it as {job.kind}")
                if is_its_own != (job.kind == ROGUE) or (not is_its_own and job.claimer in hostile):
                    sentence = f"node {node.number} shows {job.kind} job {ulid_text(job.id)}, held by {job.claimer}"
                    yield Violation("no node does more than it was granted", job.id, sentence)
            if session.routes() or len(session.coordinators()) != 1:
                yield Violation("only the owner decides about the mesh", None, f"node {node.number} does not agree")
        authority = Up(node).log.authority()
        for other in nodes:
            if not authority.is_owner(node_id(other.key.public), int(node.clocks.day() * 1000)):
                yield Violation("no node loses a grant", None, f"at node {node.number}, {other.number} has lost its")


def _lost(nodes: Sequence[SimNode], acknowledged: dict[bytes, int]) -> Iterator[Violation]:
    for node in nodes:
        here = _ops(node)
        for op_id, by in acknowledged.items():
            if op_id not in here:
                sentence = f"node {node.number} lacks op {ulid_text(op_id)}, which node {by} has acknowledged"
                yield Violation("no acknowledged op is lost", op_id, sentence)
                break


def _differ(nodes: Sequence[SimNode], hostile: Collection[int]) -> Iterator[Violation]:
    """Nodes may have different parts of a node with two histories, but all draw the same conclusions."""
    first = nodes[0]
    ops, jobs = _ops(first, hostile), _conclusions(first)
    for node in nodes[1:]:
        here = _ops(node, hostile)
        if here != ops:
            odd = next(iter(sorted(here.keys() ^ ops.keys())), None)
            sentence = f"nodes {first.number} and {node.number} hold different ops"
            yield Violation("replicas agree", odd and (here.get(odd) or ops.get(odd) or odd), sentence)
            continue
        others = _conclusions(node)
        odd = next(
            (job_id for job_id in sorted(jobs.keys() | others.keys()) if jobs.get(job_id) != others.get(job_id)), None
        )
        if odd is not None:
            sentence = f"from the same ops nodes {first.number} and {node.number} show different jobs"
            yield Violation("replicas agree", odd, f"job {ulid_text(odd)}: {sentence}")


def _conclusions(node: SimNode) -> dict[bytes, Job]:
    """Every job of a node, without the time of its last op: that may be an op without effect, which a hostile node sent
    only to some nodes.
    """
    with node.store.read() as session:
        jobs = [without_keys(entry.job) for entry in session.each_job()]
    return {job.id: replace(job, last=job.scheduled) for job in jobs}


def _unfinished(nodes: Sequence[SimNode]) -> Iterator[Violation]:
    for node in nodes:
        with node.store.read() as session:
            stuck = [entry for entry in _unended(session) if _is_stuck(entry)]
        for entry in stuck:
            sentence = f"job {ulid_text(entry.job.id)} is still {entry.stage.name.lower()} at node {node.number}"
            yield Violation("every job ends", entry.job.id, sentence)


def _stale_results(nodes: Sequence[SimNode]) -> Iterator[Violation]:
    """The result of a job is what its last holder produced under that claim. The fences of an open job are counted
    again when an op about it comes late.
    """
    numbers = {node_id(node.key.public): node.number for node in nodes}
    with nodes[0].store.read() as session:
        for job in [entry.job for entry in session.each_job()]:
            said = view.result(session, job) if job.outcome is Outcome.SUCCEEDED else None
            if said is None or job.claimer is None or job.kind == ROGUE:
                continue
            if said["node"] != numbers[job.claimer] or (job.kind != OPEN and said["fence"] != job.fence):
                held = f"node {numbers[job.claimer]} holds it under fence {job.fence}"
                sentence = f"job {ulid_text(job.id)}: {held}, its result was made by {said}"
                yield Violation("only the holder ends a job", job.id, sentence)


def _unaware(node: SimNode) -> Iterator[Violation]:
    """Whatever a node writes is later than everything that it knew."""
    me = node_id(node.key.public).to_bytes(8, "big")
    with node.store.read() as session:
        rows = session.ops_after(0, 10_000_000)
    copied = rows[: node.store.copied]
    latest = max((row.hlc for row in copied), default=bytes(20))
    for row in rows[len(copied) :]:
        if row.hlc[12:] == me and row.hlc < latest:
            sentence = f"node {node.number} wrote op {ulid_text(row.id)} as if it had not known of a later one"
            yield Violation("clocks never go back", row.job or row.id, sentence)
            return
        latest = max(latest, row.hlc)


def overlaps(runs: Iterable[SimRun]) -> Iterator[Violation]:
    """Runs of one arbiter-decided job, at the same time on two nodes, in true time."""
    by_job: dict[bytes, list[SimRun]] = {}
    for run in runs:
        if run.kind != OPEN:
            by_job.setdefault(run.job_id, []).append(run)
    for job_id, held in by_job.items():
        for one, other in pairwise(sorted(held, key=lambda run: run.start)):
            if one.end is None or one.end > other.start:
                sentence = (
                    f"job {ulid_text(job_id)} runs at node {other.node} (fence {other.fence}) from {other.start:.3f} on"
                    f" while node {one.node} (fence {one.fence}) runs it from {one.start:.3f} to {one.end}"
                )
                yield Violation("no two holders at once", job_id, sentence)
