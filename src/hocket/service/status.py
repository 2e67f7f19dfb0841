"""The state of a node: identity, log, jobs, workers, and what it knows about other nodes."""

import time

from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_text
from hocket.kernel.knowledge import unknown_of
from hocket.kernel.reasons import BY_NUMBER, Reason
from hocket.kernel.roster import Outcome
from hocket.mesh.peers import coordinator, silence
from hocket.mesh.programs import differences
from hocket.service import Service, ServiceAnswer
from hocket.store import Session, Stage
from hocket.work.liveness import WorkerState, standing, whereabouts


class WorkerStatus(ServiceAnswer, frozen=True):
    pid: int
    started_ms: int
    heard_ms: int
    state: str
    where: str


class QuotaRefusals(ServiceAnswer, frozen=True):
    """How many ops of a node were refused because it is over its quota, and when that last happened."""

    node: str
    last_ms: int
    ops: int


class PeerStatus(ServiceAnswer, frozen=True):
    address: str
    state: str
    detail: str
    seen_ms: int | None


class NodeStatus(ServiceAnswer, frozen=True):
    node: str
    user: str
    home: str
    ops: int
    clock: str
    chain_head: str
    rebuilding: bool
    jobs: dict[str, int]
    workers: list[WorkerStatus]
    dead_workers: list[WorkerStatus]
    waiting_ops: int
    offered_ops: int
    refusals: dict[str, int]
    schedules: list[str]
    over_quota: list[QuotaRefusals]
    programs: dict[str, str]
    unknown_ops: int
    unknown_grants: list[str]
    held_ops: int
    held_until_ms: int | None
    coordinator: str | None
    coordinator_is_quiet: bool
    peers: list[PeerStatus]


def status(service: Service) -> NodeStatus:
    log, home = service.runtime.log, service.runtime.home
    with service.read() as session:
        head = session.head()
        refused = session.refusal_counts()
        workers = _workers(service, session)
        delegations = log.permissions_reader.read(session, head.permissions_state).delegations
        node = coordinator(log, session)
        waiting = refused.pop(int(Reason.WAITING), 0)
        refused.pop(int(Reason.OFFERED), None)
        refusals = {BY_NUMBER[number].sentence: count for number, count in sorted(refused.items())}
        over = [(node_text(int.from_bytes(each.node, "big")), each) for each in session.over_quota().values()]
        return NodeStatus(
            node=node_text(log.node),
            user=log.user,
            home=str(home.path),
            ops=head.seq,
            clock=hlc_text(Hlc(head.wall, head.logical, log.node)),
            chain_head=f"{head.sealed}:{head.chain.hex()}",
            rebuilding=head.rebuilding is not None,
            jobs=_counts(session),
            workers=[each for each in workers if each.state != WorkerState.DIED.value],
            dead_workers=[each for each in workers if each.state == WorkerState.DIED.value],
            waiting_ops=waiting,
            offered_ops=session.open_offers(Reason.OFFERED),
            refusals=refusals,
            schedules=[each.name for each in session.schedules()],
            over_quota=[QuotaRefusals(other, each.wall, each.ops) for other, each in over],
            programs={node_text(other): how for other, how in differences(session).items()},
            unknown_ops=refused.get(int(Reason.UNKNOWN_VARIANT), 0),
            unknown_grants=sorted(unknown_of(delegations)),
            held_ops=session.held()[0],
            held_until_ms=session.held()[1],
            coordinator=None if node is None else node_text(node),
            coordinator_is_quiet=silence(log, session) is not None,
            peers=[PeerStatus(each.address, each.state, each.detail, each.seen or None) for each in session.peers()],
        )


def _workers(service: Service, session: Session) -> list[WorkerStatus]:
    liveness = service.runtime.liveness()
    now = max(session.head().wall, int(time.time() * 1000))
    return [
        WorkerStatus(
            each.pid,
            each.started,
            each.beat,
            standing(liveness, each, now).value,
            whereabouts(each.place, liveness.place),
        )
        for each in session.workers()
    ]


def _counts(session: Session) -> dict[str, int]:
    """The number of jobs in each state that people distinguish, in the order of a job's life."""
    counts = dict.fromkeys(("ready", "delayed", "blocked", "claimed", *(each.name.lower() for each in Outcome)), 0)
    for (stage, outcome), count in session.counts().items():
        name = stage.name.lower() if stage is not Stage.DONE or outcome is None else Outcome(outcome).name.lower()
        counts[name] = counts.get(name, 0) + count
    return counts
