"""The figures of a node that its store has: how many jobs there are of each kind and state, which ops do not count, how
far other nodes have this node's ops, and how ranked jobs spread. `hocket.server.monitoring` shows them as metrics.
"""

from collections import Counter

from hocket.api import Service, ServiceAnswer
from hocket.api.claims import GridKind, grid
from hocket.families.jobs.view import counted_as
from hocket.families.liveness import standing
from hocket.kernel.arbitration import BY_NUMBER, Reason
from hocket.kernel.ids import node_text
from hocket.mesh.peers import outbox
from hocket.store import Session
from hocket.store.checkpoint_rows import CheckpointState
from hocket.work.presence import known_nodes

_NOT_REFUSED = {int(Reason.WAITING), int(Reason.OFFERED)}


class PeerFigures(ServiceAnswer, frozen=True):
    address: str
    state: str
    seen_ms: int


class JobFigure(ServiceAnswer, frozen=True):
    """How many jobs of a kind are in a state: ready, delayed, blocked, running, or their outcome."""

    kind: str
    state: str
    jobs: int


class Figures(ServiceAnswer, frozen=True):
    """`refused_ops` are the ops on this log that do not count, and the newest of those that were not admitted, by
    reason. `lag_ms` is the age of the oldest op that the coordinator lacks, 0 if it lacks none. The log is settled up
    to `horizon_age_ms` ago, and `deleted_ops` were deleted from it. `workers` are counted by state, `nodes` by grade,
    and `checkpoints` by how they stand to the entries here. `checkpoint_ms` is since when this node has its own newest
    one.
    """

    node: str
    ops: int
    jobs: list[JobFigure]
    refused_ops: dict[str, int]
    held_ops: int
    outbox_ops: int
    lag_ms: int
    horizon_age_ms: int | None
    deleted_ops: int
    peers: list[PeerFigures]
    workers: dict[str, int]
    nodes: dict[str, int]
    grid: list[GridKind]
    checkpoints: dict[str, int]
    checkpoint_ms: int | None


def figures(service: Service) -> Figures:
    log, liveness = service.runtime.log, service.runtime.liveness()
    with service.read() as session:
        now_ms, head = log.physical(), session.head()
        waiting = outbox(log, session)
        refused = session.refusal_counts()
        own = session.checkpoint(log.author, CheckpointState.SIGNED)
        return Figures(
            node=node_text(log.node),
            ops=session.op_count(),
            jobs=_jobs(session),
            refused_ops={BY_NUMBER[each].name.lower(): n for each, n in refused.items() if each not in _NOT_REFUSED},
            held_ops=session.held()[0],
            outbox_ops=waiting.ops,
            lag_ms=0 if waiting.since_ms is None else max(0, now_ms - waiting.since_ms),
            horizon_age_ms=None if (row := session.horizon()) is None else max(0, now_ms - row.at_ms),
            deleted_ops=sum(gap.last - gap.first + 1 for gap in session.gaps()),
            peers=[PeerFigures(each.address, each.state, each.seen) for each in session.peers()],
            workers=dict(Counter(standing(liveness, each, max(head.wall, now_ms)).value for each in session.workers())),
            nodes=dict(Counter(each.grade(now_ms).value for each in known_nodes(session, liveness, log))),
            grid=grid(service),
            checkpoints=_checkpoints(session),
            checkpoint_ms=None if own is None else own.made,
        )


def _checkpoints(session: Session) -> dict[str, int]:
    """How many there are of each standing, those without any among them."""
    standings = (CheckpointState.SIGNED, CheckpointState.AHEAD, CheckpointState.CONFLICT)
    found = Counter(row.state for row in session.checkpoints())
    return {each.value: found[each.value] for each in standings}


def _jobs(session: Session) -> list[JobFigure]:
    return [
        JobFigure(kind, counted_as(stage, end), n)
        for (stage, end, kind), n in sorted(session.counts_by_kind().items(), key=lambda each: (each[0][2], each[0][0]))
    ]


def why_not_ready(service: Service) -> list[str]:
    """Why this node cannot work now; empty if it can."""
    with service.runtime.store.read() as session:
        if session.head().rebuilding is not None:
            return ["the log is being rebuilt"]
    return []
