"""What a worker asks the roster: which jobs its node may claim now, and which claims are past their deadline."""

from collections.abc import Callable

from hocket.families.jobs.rules import Job
from hocket.kernel.policy import covers, routed_to
from hocket.log import Log
from hocket.store import JobEntry, JobFilter, Session, Stage
from hocket.work.members import routes_in_force

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
