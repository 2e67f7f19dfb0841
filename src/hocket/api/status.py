"""The state of a node: identity, log, jobs, workers, and what it knows about other nodes."""

import time
from typing import Any

import msgspec

from hocket.api import Service, ServiceAnswer
from hocket.api.nodes import AvailabilityShown, availability_of_all
from hocket.api.operation import operation
from hocket.api.views import Pairs, ago, now_ms
from hocket.families.jobs.view import COUNTED, counted_as
from hocket.families.liveness import WorkerState, standing, whereabouts
from hocket.kernel.arbitration import BY_NUMBER, Reason
from hocket.kernel.capabilities import unknown_of
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.retrying import BreakerState
from hocket.kernel.texts import counted, span
from hocket.log.limits import OUTBOX_OPS_MAX
from hocket.mesh.names import names
from hocket.mesh.peers import breakers, coordinator, outbox, program_differences, silence
from hocket.node.home import Home
from hocket.node.running import RunningServer, running_buses, running_servers, store_troubles
from hocket.store import Place, Session, WorkerRow
from hocket.work.presence import is_away, known_nodes, read_serving

# The most job ids that are shown for one worker.
SHOWN_MAX = 3


class WorkerStatus(ServiceAnswer, frozen=True):
    """A worker that shares this node's store. `running` are the ids of the jobs that it holds."""

    pid: int
    node: str
    name: str | None
    kinds: list[str]
    running: list[str]
    started_ms: int
    heard_ms: int
    state: str
    where: str


class NodeWorkersStatus(ServiceAnswer, frozen=True):
    """What the workers of another node run, as it last said."""

    node: str
    name: str | None
    kinds: list[str]
    heard_ms: int
    grade: str
    is_away: bool
    availability: AvailabilityShown


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


class BreakerStatus(ServiceAnswer, frozen=True):
    """A circuit breaker that is not closed, or has counted failures. `process` is the one whose store it is; a peer's
    breaker is that of every process of this node. `next_ms` is when the next call may go out.
    """

    what: str
    process: int | None
    state: str
    failures: int
    error: str
    since_ms: int | None
    next_ms: int | None


class BusStatus(ServiceAnswer, frozen=True):
    """A process's connection to its NATS servers. `detail` says why it is away, or what a server refuses; `keeps` is
    whether announcements are kept there. `lost` counts messages that were not sent, `refused` those that came and did
    not count, by reason.
    """

    process: int
    server: str
    is_connected: bool
    since_ms: int
    detail: str
    keeps: bool
    lost: int
    refused: dict[str, int]


class OutboxStatus(ServiceAnswer, frozen=True):
    """Ops of this node that wait for the coordinator, and the time of the oldest."""

    ops: int
    since_ms: int | None
    coordinator: str | None
    coordinator_is_away: bool
    ops_max: int


class KeptStatus(ServiceAnswer, frozen=True):
    """Requests that this home kept while the database was away: how many wait, since when, and how many were refused
    when they were sent.
    """

    waiting: int
    since_ms: int | None
    refused: int


class ReplicaStatus(ServiceAnswer, frozen=True):
    """The local copy that answers reads: up to which op it has the log, and when that was all. `error` says why it
    cannot follow the store now.
    """

    path: str
    ops: int
    followed_ms: int
    error: str | None


class NodeStatus(ServiceAnswer, frozen=True):
    node: str
    name: str | None
    user: str
    home: str
    availability: AvailabilityShown
    ops: int
    clock: str
    chain_head: str
    rebuilding: bool
    jobs: dict[str, int]
    workers: list[WorkerStatus]
    dead_workers: list[WorkerStatus]
    workers_elsewhere: list[NodeWorkersStatus]
    servers: list[RunningServer]
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
    breakers: list[BreakerStatus]
    buses: list[BusStatus]
    outbox: OutboxStatus
    kept: KeptStatus
    replica: ReplicaStatus | None


def _worker_text(shown: WorkerStatus, now: int) -> str:
    """Describes one worker. Its last heartbeat matters only if its lock cannot be tested from here."""
    process = f"process {shown.pid} {shown.where}".strip() if shown.pid else shown.where
    said = [process, f"started {ago(shown.started_ms, now)}"]
    if shown.state == WorkerState.SILENT.value:
        said.append(f"silent for {span(now - shown.heard_ms)}")
    elif shown.where:
        said.append(f"heard from {ago(min(now, shown.heard_ms), now)}")
    said.append(f"serves {', '.join(shown.kinds)}" if shown.kinds else "does not say what it serves")
    ids = " ".join(shown.running[:SHOWN_MAX]) + (" …" if len(shown.running) > SHOWN_MAX else "")
    said.append(f"runs {len(shown.running)} ({ids})" if shown.running else "runs nothing")
    return f"{shown.name or shown.node}: {', '.join(said)}"


def _processes(shown: NodeStatus, now: int) -> list[tuple[str, object]]:
    """The server and the workers of this node, and the workers that other nodes have told about."""
    pairs: list[tuple[str, object]] = [
        ("server", f"{each.address}, process {each.pid}, started {ago(each.started_ms, now)}") for each in shown.servers
    ]
    pairs = pairs or [("server", "none")]
    pairs += [("worker", _worker_text(each, now)) for each in shown.workers] or [("workers", "none")]
    for each in shown.workers_elsewhere:
        state = "away, last" if each.is_away else "last"
        heard = f"{state} heard {ago(min(now, each.heard_ms), now)}"
        work = "" if each.availability.state == "active" else f", {each.availability}"
        pairs.append(("elsewhere", f"{each.name or each.node}, serves {', '.join(each.kinds)}{work}, {heard}"))
    return pairs


def _mesh(shown: NodeStatus) -> list[tuple[str, Any]]:
    """What concerns other nodes, if there is anything to report."""
    pairs: list[tuple[str, Any]] = []
    if shown.coordinator not in (None, shown.node):
        quiet = " (silent for long; `hocket mesh coordinator NODE` designates another)"
        pairs.append(("coordinator", shown.coordinator + (quiet if shown.coordinator_is_quiet else "")))
    for peer in shown.peers:
        pairs.append(("peer", " ".join(part for part in (peer.address, peer.state, peer.detail) if part)))
    now = now_ms()
    if shown.kept.waiting and shown.kept.since_ms is not None:
        waited = f"the oldest for {span(max(0, now - shown.kept.since_ms))}"
        pairs.append(("kept", f"{counted(shown.kept.waiting, 'request')} waiting here for the database, {waited}"))
    if shown.kept.refused:
        where = "in spool/refused.jsonl of the home"
        pairs.append(("refused", f"{counted(shown.kept.refused, 'kept request')} when sent; see why {where}"))
    if shown.outbox.ops and shown.outbox.since_ms is not None:
        waited = f"the oldest for {span(max(0, now - shown.outbox.since_ms))}"
        pairs.append(("outbox", f"{counted(shown.outbox.ops, 'op')} waiting here for the coordinator, {waited}"))
    pairs += [("breaker", _breaker_text(each, now)) for each in shown.breakers]
    pairs += [("bus", _bus_text(each, now)) for each in shown.buses]
    for over in shown.over_quota:
        refused = f"{over.ops:,} ops refused, last {ago(over.last_ms, now)}"
        pairs.append(("over quota", f"node {over.node}: {refused}; see `hocket mesh nodes`"))
    pairs += [("program", f"node {node}: {how}") for node, how in shown.programs.items()]
    if shown.unknown_ops:
        kept = f"{shown.unknown_ops} ops of newer programs do nothing here; upgrade this node to read them"
        pairs.append(("unknown ops", kept))
    if shown.unknown_grants:
        names = ", ".join(shown.unknown_grants)
        pairs.append(("unknown grants", f"delegations name {names}; upgrade this node to honour that"))
    if shown.held_ops:
        pairs.append(("held", f"{shown.held_ops} ops from clocks that are too far ahead; check this machine's clock"))
    return pairs


def _availability_pairs(shown: NodeStatus, now: int) -> list[tuple[str, object]]:
    """If this node takes no new jobs."""
    availability = shown.availability
    if availability.since_ms is None:
        return []
    said = f"{availability}, set by {availability.by} {ago(availability.since_ms, now)}"
    return [("work", f"{said}; `hocket node resume here` ends that")]


def _bus_text(shown: BusStatus, now: int) -> str:
    state = "connected" if shown.is_connected else "away"
    said = [f"{shown.server}, process {shown.process}: {state} for {span(max(0, now - shown.since_ms))}"]
    said += [shown.detail] if shown.detail else []
    said += [] if shown.is_connected else ["work goes on without it"]
    is_silent = shown.keeps or "keeps no announcements" in shown.detail
    said += ["keeps no announcements"] if shown.is_connected and not is_silent else []
    said += [f"{counted(shown.lost, 'message')} lost"] if shown.lost else []
    said += [f"{count:,} refused as {reason}" for reason, count in shown.refused.items()]
    return "; ".join(said)


def _breaker_text(shown: BreakerStatus, now: int) -> str:
    whose = shown.what if shown.process is None else f"{shown.what} in process {shown.process}"
    said = f"{whose} is {shown.state}: {shown.failures} failures in a row, the last: {shown.error}"
    if shown.state == BreakerState.OPEN and shown.next_ms is not None:
        return f"{said}; the next try is {'due' if shown.next_ms <= now else f'in {span(shown.next_ms - now)}'}"
    return f"{said}; one try is under way" if shown.state == BreakerState.HALF_OPEN else said


def _fields(shown: NodeStatus) -> list[tuple[str, object]]:
    now = now_ms()
    dead = ", ".join(str(each.pid) for each in shown.dead_workers)
    pairs: list[tuple[str, object]] = [
        ("node", shown.node if shown.name is None else f"{shown.node} ({shown.name})"),
        ("user", shown.user),
        ("home", shown.home),
        *_availability_pairs(shown, now),
        ("ops", shown.ops),
        ("clock", shown.clock),
        ("chain head", shown.chain_head),
    ]
    if shown.replica is not None:
        pairs.append(("replica", f"{shown.replica.path}, {span(max(0, now - shown.replica.followed_ms))} old"))
    if shown.rebuilding:
        pairs.append(("rebuild", "under way or interrupted; run `hocket log rebuild` to finish it"))
    pairs += [
        ("jobs", ", ".join(f"{count} {name}" for name, count in shown.jobs.items() if count) or "none"),
        *_processes(shown, now),
        *([("died", f"process {dead}; the next worker returns its jobs to the queue")] if dead else []),
        ("schedules", ", ".join(shown.schedules) or "none"),
        ("waiting ops", shown.waiting_ops),
    ]
    pairs += _mesh(shown)
    pairs += [("refused", f"{count}: {sentence}") for sentence, count in shown.refusals.items()]
    return pairs


@operation("show_status", "GET", command="status", show=lambda shown: [Pairs(_fields(shown))])
def status(service: Service) -> NodeStatus:
    """Show the state of this node: identity, log, jobs, workers, schedules, and refused ops.

    \b
      hocket status
      hocket status --json | jq .jobs
    """
    service.refresh()
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
            name=names(log.permissions(session)).get(log.node),
            user=log.user,
            home=str(home.path),
            availability=availability_of_all(service, session).get(log.node, AvailabilityShown()),
            ops=session.op_count(),
            clock=hlc_text(Hlc(head.wall, head.logical, log.node)),
            chain_head=f"{head.seq}:{head.chain.hex()}",
            rebuilding=head.rebuilding is not None,
            jobs=_counts(session),
            workers=[each for each in workers if each.state != WorkerState.DIED.value],
            dead_workers=[each for each in workers if each.state == WorkerState.DIED.value],
            workers_elsewhere=_elsewhere(service, session),
            servers=running_servers(home.processes),
            waiting_ops=waiting,
            offered_ops=session.open_offers(Reason.OFFERED),
            refusals=refusals,
            schedules=[each.name for each in session.schedules()],
            over_quota=[QuotaRefusals(other, each.wall, each.ops) for other, each in over],
            programs={node_text(other): how for other, how in program_differences(session).items()},
            unknown_ops=refused.get(int(Reason.UNKNOWN_VARIANT), 0),
            unknown_grants=sorted(unknown_of(delegations)),
            held_ops=session.held()[0],
            held_until_ms=session.held()[1],
            coordinator=None if node is None else node_text(node),
            coordinator_is_quiet=silence(log, session) is not None,
            peers=[PeerStatus(each.address, each.state, each.detail, each.seen or None) for each in session.peers()],
            breakers=breakers_of(session, home),
            buses=[BusStatus(*msgspec.structs.astuple(each)) for each in running_buses(home.processes)],
            outbox=outbox_status(service, session),
            kept=KeptStatus(*((0, None, 0) if service.runtime.spool is None else service.runtime.spool.state())),
            replica=None if service.runtime.replica is None else ReplicaStatus(*service.runtime.replica.state),
        )


def breakers_of(session: Session, home: Home) -> list[BreakerStatus]:
    now = int(time.time() * 1000)
    of_peers = [
        BreakerStatus(
            f"peer {address}",
            None,
            each.state.value,
            each.failures,
            each.error,
            each.since_ms,
            now + each.wait_ms(now) if each.opened_ms is not None else None,
        )
        for address, each in sorted(breakers(session).items())
        if each.failures
    ]
    of_stores = [
        BreakerStatus("the store", each.pid, each.state, each.failures, each.error, each.since_ms, each.next_ms)
        for each in store_troubles(home.processes)
    ]
    return of_stores + of_peers


def outbox_status(service: Service, session: Session) -> OutboxStatus:
    found = outbox(service.runtime.log, session)
    node = None if found.coordinator is None else node_text(found.coordinator)
    return OutboxStatus(found.ops, found.since_ms, node, found.is_away, OUTBOX_OPS_MAX)


def _workers(service: Service, session: Session) -> list[WorkerStatus]:
    log, liveness = service.runtime.log, service.runtime.liveness()
    now = max(session.head().wall, log.physical())
    called = names(log.permissions(session))
    held: dict[int, list[str]] = {}
    for entry in session.claimed():
        if entry.worker is not None:
            held.setdefault(entry.worker, []).append(ulid_text(entry.job.id))
    return [
        WorkerStatus(
            each.pid,
            node_text(node),
            called.get(node),
            [kind for worker in read_serving(each.serves) for kind in worker.kinds],
            held.get(each.number, []),
            each.started,
            each.beat,
            standing(liveness, each, now).value,
            _where(each, liveness.place),
        )
        for each in session.workers()
        # Rows of earlier versions name no node: they are this node's.
        for node in (int.from_bytes(each.node, "big") or log.node,)
    ]


def _where(worker: WorkerRow, here: Place) -> str:
    """Where a worker runs, in words; of one over HTTP also the names of its agent and itself."""
    from hocket.work.remote.remote_holds import read_row_name

    name = read_row_name(worker.name)
    said = whereabouts(worker.place, here)
    return said if name is None else f"{name.agent}/{name.worker} {said}"


def _elsewhere(service: Service, session: Session) -> list[NodeWorkersStatus]:
    log = service.runtime.log
    called, now = names(log.permissions(session)), log.physical()
    availability = availability_of_all(service, session)
    return [
        NodeWorkersStatus(
            node_text(each.node),
            called.get(each.node),
            kinds,
            each.heard_ms,
            each.grade(now).value,
            is_away(each, now),
            availability.get(each.node, AvailabilityShown()),
        )
        for each in known_nodes(session, service.runtime.liveness(), log)[1:]
        if (kinds := sorted({kind for worker in each.workers for kind in worker.kinds}))
    ]


def _counts(session: Session) -> dict[str, int]:
    """The number of jobs in each state that people distinguish, in the order of a job's life."""
    counts = dict.fromkeys(COUNTED, 0)
    for (stage, outcome), count in session.counts().items():
        counts[counted_as(stage, outcome)] += count
    return counts
