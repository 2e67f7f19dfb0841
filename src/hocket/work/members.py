"""Which workers are ranked for the jobs of a kind: those of the nodes that share this store, by their rows, and those
of other nodes, by what these have said about themselves. `families.jobs.candidates` decides who counts; here the store
is read. A node that is draining or quarantined has no members, and a node that may not claim the kind has none for it.
`claimable` and `overdue` tell which jobs this node may claim now, and which claims are past their deadline.

What a coordinator relays about other nodes is believed unchecked: this decides only who tries to claim a job.
"""

from collections.abc import Callable

import msgspec

from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.availability.rules import AVAILABILITIES
from hocket.families.jobs.candidates import EPOCH_MS, Candidates, KnownWorkers, WorkerHeard, worker_id
from hocket.families.jobs.rules import Job
from hocket.families.liveness import Liveness, WorkerState, standing
from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import decode_json
from hocket.kernel.policy import covers, routed_to
from hocket.log import Log
from hocket.log.permissions import Permissions
from hocket.log.projectors import availability_of
from hocket.store import JobEntry, JobFilter, Presence, RegisterSession, Session, Stage, WorkerRow
from hocket.work.presence import Serving, read_serving

# A node that is not heard for this long has no members: two heartbeats, and a half for the way through a third node.
EXPIRY_MS = 25_000
# The store is read again after this long.
REFRESH_MS = 500


class _WorkersSaid(msgspec.Struct):
    """What counts here of what a node says about itself."""

    workers: tuple[Serving, ...] = ()


class _KnownNode(msgspec.Struct):
    """What was last read about a node: as text, and the workers in it by their names."""

    text: str
    workers: dict[str, Serving]
    heard_ms: int = -1


class Members:
    """The members as one process knows them. Call `refresh` with a session first; times are of the machine's clock."""

    def __init__(self, liveness: Liveness, log: Log) -> None:
        self._liveness, self._log = liveness, log
        self._now_ms = self._next_ms = log.physical()
        self._permissions: Permissions | None = None
        self._routes: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self._known = KnownWorkers(self._now_ms, self._may_claim)
        self._nodes: dict[int, _KnownNode] = {}
        # The time of the last fact about each node. Two facts never have the same.
        self._said: dict[int, int] = {}

    def refresh(self, session: Session, now_ms: int, *, now: bool = False) -> None:
        """Reads the store, if that is due or must be `now`."""
        self._now_ms = max(self._now_ms, now_ms)
        if self._now_ms < self._next_ms and not now:
            return
        if self._now_ms >= self._next_ms + EPOCH_MS:
            self._begin()  # it has not looked for so long that it knows no more than one that has just started
        self._next_ms = self._now_ms + REFRESH_MS
        self._read_permissions(session)
        here = self._here(session)
        elsewhere = [each for each in session.presence() if int.from_bytes(each.node, "big") not in here]
        found = here | {int.from_bytes(each.node, "big"): self._heard(each) for each in elsewhere}
        # Each one is compared with the ops where nodes share the store.
        is_limited = any(
            session.row_check is not None or AVAILABILITIES.decode(state).availability is not Availability.ACTIVE
            for state in session.subject_states(AVAILABILITY, b"")
        )
        for node, read in found.items():
            state = availability_of(session, node) if is_limited else None
            if state is not None and state.availability is not Availability.ACTIVE:
                read = _KnownNode("", {}, self._now_ms)
            self._take(node, read)
        for node in [node for node in self._nodes if node not in found]:
            self._take(node, _KnownNode("", {}, self._now_ms))
            del self._nodes[node]

    def candidates(self, kind: str, announced_ms: int, needs: tuple[str, ...] = ()) -> Candidates:
        """The members for a job that was announced at that time."""
        return self._known.candidates(kind, min(announced_ms, self._now_ms), self._now_ms, needs)

    def _read_permissions(self, session: Session) -> None:
        permissions, routes = self._log.permissions(session), routes_in_force(session)
        if permissions is not self._permissions or routes != self._routes:
            self._permissions, self._routes = permissions, routes
            self._known.ask_again()

    def _may_claim(self, node: int, kind: str) -> bool:
        if routed_to(kind, self._routes) not in (None, node):
            return False
        return self._permissions is None or self._permissions.may_run(node, kind, self._now_ms)

    def _here(self, session: Session) -> dict[int, _KnownNode]:
        """The workers of the nodes that use this store. One whose process has ended is gone at once."""
        now_ms = max(self._now_ms, session.head().wall)
        found: dict[int, _KnownNode] = {}
        for row in session.workers():
            node = int.from_bytes(row.node, "big")
            read = found.setdefault(node, _KnownNode("", {}, self._now_ms))
            if standing(self._liveness, row, now_ms) is WorkerState.RUNNING and (told := _told(row)) is not None:
                read.workers[row.name] = told
        return found

    def _heard(self, row: Presence) -> _KnownNode:
        node = int.from_bytes(row.node, "big")
        before = self._nodes.get(node)
        if before is not None and before.text == row.said:
            return _KnownNode(row.said, before.workers, row.heard)
        try:
            said = decode_json(row.said, _WorkersSaid).workers
        except (msgspec.MsgspecError, ValueError, RecursionError):
            said = ()
        own = worker_id(node, "")
        named = {each.id.removeprefix(own): each for each in said if each.id.startswith(own)}
        return _KnownNode(row.said, named, row.heard)

    def _take(self, node: int, read: _KnownNode) -> None:
        before, self._nodes[node] = self._nodes.get(node, _KnownNode("", {})), read
        if read.heard_ms != before.heard_ms or read.workers.keys() != before.workers.keys():
            for name, told in read.workers.items():
                self._hear(node, name, told, min(read.heard_ms, self._now_ms), EXPIRY_MS)
        for name in before.workers.keys() - read.workers.keys():
            self._hear(node, name, before.workers[name], self._now_ms, 0)

    def _hear(self, node: int, name: str, told: Serving, heard_ms: int, expiry_ms: int) -> None:
        self._said[node] = max(self._said.get(node, 0) + 1, heard_ms)
        said = Hlc(self._said[node], 0, node)
        expires_ms = heard_ms + expiry_ms if expiry_ms else self._now_ms
        # Heard now, with what is left of its expiry: it counts from the epoch after this one.
        left_ms = max(0, expires_ms - self._now_ms)
        self._known.hear(
            WorkerHeard(node, name, said, self._now_ms, told.kinds, told.labels, told.weight, left_ms),
        )


def routes_in_force(session: RegisterSession) -> dict[str, int]:
    """The node of each kind and each prefix that is routed to one."""
    return {kind: int.from_bytes(node, "big") for kind, _, node in session.routes() if node is not None}


def _told(row: WorkerRow) -> Serving | None:
    return next((each for each in read_serving(row.serves) if each.id and each.kinds), None)


# How many jobs a search reads at once.
PAGE = 1_000

RosterAsk = Callable[[Log, Session, str | None, int], list[JobEntry]]
"""A question to the roster: about which kind, and how many jobs at most."""


def claimable(log: Log, session: Session, kind: str | None, limit: int) -> list[JobEntry]:
    """The pending jobs of a kind (`acme.` for all kinds below acme) that this node may claim now, the oldest first: the
    routes in force and its delegations let it. In a strict mesh nothing else keeps a pending job from being claimed.
    """
    is_strict, now = log.rules.is_strict, max(log.physical(), session.head().wall)
    permissions, routes = log.permissions(session), routes_in_force(session)
    stages = (Stage.READY, Stage.DELAYED, *((Stage.BLOCKED,) if is_strict else ()))
    known: dict[str, bool] = {}

    def is_admitted(job: Job) -> bool:
        if job.kind not in known:
            is_routed_here = routed_to(job.kind, routes) in (None, log.node)
            known[job.kind] = is_routed_here and permissions.may_run(log.node, job.kind, now)
        return known[job.kind] and (is_strict or job.ready_at <= now)

    found: list[JobEntry] = []
    wanted = JobFilter(stages, None, kind, newest_first=False)
    while len(found) < limit and (entries := session.jobs(wanted, PAGE)):
        found += [entry for entry in entries if is_admitted(entry.job)]
        wanted = wanted._replace(beyond=entries[-1].job.id)
    return found[:limit]


def overdue(log: Log, session: Session, kind: str | None, limit: int) -> list[JobEntry]:
    """The claimed jobs of a kind whose lease is over by the clock of the log, the oldest first. The next sweep ends
    such leases.
    """
    now = max(log.physical(), session.head().wall)
    entries = session.overdue(now, session.job_count(JobFilter((Stage.CLAIMED,))))
    found = [each for each in entries if kind is None or covers(kind, each.job.kind)]
    return sorted(found, key=lambda each: each.job.id)[:limit]
