"""The agents of the mesh: who they are, where, what they do, and when they were last seen. Workers are agents, too."""

from collections.abc import Iterable, Iterator, Mapping

from hocket.coordination.presence import EVERY_MS_DEFAULT, AgentSaid, NodePresence, agents_of, known_nodes
from hocket.coordination.presence import beat as agent_beat
from hocket.kernel.ids import node_text
from hocket.kernel.plurals import counted
from hocket.kernel.roster import Job
from hocket.service import Service, ServiceAnswer
from hocket.work.liveness import BEAT_S, grade

WORKER = "worker"
# How many kinds a worker is shown with.
KINDS_SHOWN = 3


class AgentShown(ServiceAnswer, frozen=True):
    """`grade` is live, warn, alert, critical or dead, by how often the agent promised to say what it does."""

    name: str
    node: str
    node_name: str | None
    doing: str
    last_seen_ms: int
    grade: str


def beat(service: Service, name: str, doing: str = "", every_ms: int = EVERY_MS_DEFAULT) -> AgentShown:
    """An agent of this node says what it does, and that it will do so again within `every_ms`."""
    service.check_writer()
    log, said = service.runtime.log, AgentSaid(name, doing, every_ms)
    now_ms = log.physical()
    with service.runtime.store.write() as session:
        agent_beat(session, log.node, said, now_ms)
    with service.read() as session:
        names = service.names(session)
    return _shown(log.node, names, said, now_ms, now_ms)


def listing(service: Service, live_within_ms: int | None = None) -> list[AgentShown]:
    """All agents that this node knows of, node by node; only those that were seen within that time, if given."""
    log = service.runtime.log
    with service.read() as session:
        known = known_nodes(session, service.runtime.liveness(), log)
        names, claimed = service.names(session), [entry.job for entry in session.claimed()]
    now_ms = log.physical()
    shown = [
        _shown(each.node, names, said, seen_ms, now_ms)
        for each in known
        for said, seen_ms in (*agents_of(each), *_workers(each, claimed))
    ]
    return [each for each in shown if live_within_ms is None or now_ms - each.last_seen_ms <= live_within_ms]


def _workers(known: NodePresence, claimed: Iterable[Job]) -> Iterator[tuple[AgentSaid, int]]:
    """The workers of a node as agents. They beat with their node."""
    for worker in known.workers:
        running = sum(job.claimer == known.node and worker.covers(job.kind) for job in claimed)
        kinds = ", ".join(worker.kinds[:KINDS_SHOWN]) + (", …" if len(worker.kinds) > KINDS_SHOWN else "")
        doing = f"runs {counted(running, 'job')}" if running else "idle"
        yield AgentSaid(WORKER, f"{doing}; serves {kinds}", round(BEAT_S * 1000)), known.heard_ms


def _shown(node: int, names: Mapping[str, str], said: AgentSaid, seen_ms: int, now_ms: int) -> AgentShown:
    id, graded = node_text(node), grade(now_ms - seen_ms, said.every_ms).value
    return AgentShown(said.name, id, names.get(id), said.doing, seen_ms, graded)
