"""The agents of the mesh: who they are, where, what they do, and when they were last seen. Workers are agents, too, and
so is who holds a lock, waits for one, or reads messages, according to the log.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.nodes import Within
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line, View, seen, table
from hocket.families.inbox.rules import read_address
from hocket.families.jobs.rules import Job
from hocket.families.liveness import BEAT_S, grade
from hocket.families.locks.decisions import read_scope, subject
from hocket.families.locks.facts import LOCK, RenewLocks
from hocket.families.locks.requests import moment
from hocket.families.locks.rules import NAME_CHARS_MAX, Agent, Hold, live
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ids import node_text, ulid_ms
from hocket.kernel.ops import decode
from hocket.kernel.texts import counted
from hocket.store import OpRow, Session
from hocket.work.presence import (
    DOING_CHARS_MAX,
    EVERY_MS_DEFAULT,
    EVERY_MS_MAX,
    EVERY_MS_MIN,
    AgentSaid,
    NodePresence,
    agents_of,
    known_nodes,
)
from hocket.work.presence import beat as agent_beat

# How many locks of an agent, keys of a lock and kinds of a worker are shown.
SHOWN = 3
# How many leased messages are looked at.
MESSAGES_MAX = 10_000


class AgentHolding(NamedTuple):
    """A lock or messages of an agent. The agent was last seen when it asked or renewed, and has time until `until_ms`
    to do so again.
    """

    doing: str
    seen_ms: int
    until_ms: int


Holdings = Mapping[Agent, Sequence[AgentHolding]]


def lock_holdings(session: Session, now_ms: int) -> Holdings:
    found: defaultdict[Agent, list[AgentHolding]] = defaultdict(list)
    for key in sorted(session.subjects_with_state(LOCK)):
        scope = key.decode()
        state = read_scope(session, scope)
        if state is None:
            continue
        where, holds = f" in {scope}" if scope else "", live(state, now_ms)
        since = pack(Hlc(min((hold.since for hold in holds), default=now_ms), 0, 0))
        ops = session.ops_about(subject(scope), after=since) if holds else []
        for hold in holds:
            doing = f"holds {few(hold.keys)}{where} until {moment(hold.deadline)}"
            found[hold.node, hold.agent].append(AgentHolding(doing, _renewed(hold, ops), hold.deadline))
        for wait in state.waits:
            if wait.until >= now_ms:
                doing = f"waits for {few(wait.keys)}{where}"
                found[wait.node, wait.agent].append(AgentHolding(doing, ulid_ms(wait.op), wait.until))
    return found


def message_holdings(session: Session, now_ms: int) -> Holdings:
    leases: defaultdict[Agent, list[tuple[int, int]]] = defaultdict(list)
    for row in session.deliveries_resting(MESSAGES_MAX):
        message, address = session.message(row.message_id), read_address(row.queue)
        assert message is not None and address is not None
        delivery = message.delivery(address.name, address.node or 0)
        if delivery.is_held(now_ms) and delivery.op is not None:
            leases[delivery.node, delivery.agent].append((ulid_ms(delivery.op), delivery.until))
    return {
        agent: [AgentHolding(f"reads {counted(len(each), 'message')}", max(each)[0], max(until for _, until in each))]
        for agent, each in leases.items()
    }


def few(texts: Sequence[str], between: str = ", ") -> str:
    return between.join((*texts[:SHOWN], *(["…"] if len(texts) > SHOWN else [])))


def _renewed(hold: Hold, ops: Iterable[OpRow]) -> int:
    """When its holder last asked for the lock or renewed it. `ops` are those about its scope."""
    for row in sorted(ops, key=lambda row: row.hlc, reverse=True):
        at = unpack(row.hlc)
        if at.wall < hold.since:
            break
        payload = decode(row.body).payload if at.node == hold.node else None
        if isinstance(payload, RenewLocks) and (payload.agent, payload.fence) == (hold.agent, hold.fence):
            return at.wall
    return hold.since


WORKER = "worker"
# What an agent does, and when it was last seen.
_Seen = tuple[AgentSaid, int]


class AgentShown(ServiceAnswer, frozen=True):
    """`grade` is live, warn, alert, critical or dead, by how often the agent promised to say what it does."""

    name: str
    node: str
    node_name: str | None
    doing: str
    last_seen_ms: int
    grade: str


READ = TokenNeed("Mesh", "Read")


def _show_beat(agent: AgentShown) -> Iterator[View]:
    yield Line(f"{agent.name}: {agent.doing or 'is there'}")


@operation("beat", "POST /v1/agents", READ, command="agents beat", show=_show_beat)
def beat(
    service: Service,
    name: Annotated[
        str,
        Meta(min_length=1, max_length=NAME_CHARS_MAX, description="The agent; default: the token's name."),
        InShell(metavar="[NAME]", help="The agent's name. Default: $HOCKET_AGENT, else your user.", is_argument=True),
    ]
    | None = None,
    doing: Annotated[
        str, Meta(max_length=DOING_CHARS_MAX, description="What it does, in one line."), InShell(metavar="TEXT")
    ] = "",
    every_ms: Annotated[
        int,
        Meta(ge=EVERY_MS_MIN, le=EVERY_MS_MAX, description="How often the agent will say so: 1s to 1d; default: 1m."),
        InShell("--every", metavar="DURATION", form="duration"),
    ] = EVERY_MS_DEFAULT,
) -> AgentShown:
    """Say what an agent of this node does. Other nodes hear of it with this node's next heartbeat. What an agent does
    is never written on the log, and a week after its last word the agent is forgotten.

    \b
      hocket mesh agents beat editor --doing "reviews src/lib.rs" --every 5m
    """
    service.check_writer()
    log, said = service.runtime.log, AgentSaid(service.agent(name), doing, every_ms)
    now_ms = log.physical()
    with service.runtime.store.write() as session:
        agent_beat(session, log.node, said, now_ms)
    service.wrote()
    with service.read() as session:
        names = service.names(session)
    return _shown(log.node, names, said, now_ms, now_ms)


_show_agents = table(
    AgentShown,
    "no agents; `hocket mesh agents beat NAME` tells of one",
    {
        "name": "name",
        "node": lambda each: each.node_name or each.node,
        "grade": "grade",
        "seen": seen("last_seen_ms"),
        "doing": "doing",
    },
)


@operation("list_agents", "GET /v1/agents", READ, key=lambda each: f"{each.node} {each.name}", show=_show_agents)
def listing(service: Service, within_ms: Within | None = None) -> list[AgentShown]:
    """List the agents of all nodes: what each does, and when it was last seen. A token that may read all locks, or all
    messages, is also told who holds them.
    """
    with_locks, with_messages = service.may("Lock", "Read"), service.may("Inbox", "Read")
    log = service.runtime.log
    with service.read() as session:
        known = known_nodes(session, service.runtime.liveness(), log)
        names, claimed = service.names(session), [entry.job for entry in session.claimed()]
        now_ms = log.physical()
        held = [
            *([lock_holdings(session, log.reading().wall)] if with_locks else []),
            *([message_holdings(session, now_ms)] if with_messages else []),
        ]
    said = {(each.node, agent.name): (agent, seen_ms) for each in known for agent, seen_ms in agents_of(each)}
    shown = [
        _shown(node, names, agent, seen_ms, now_ms)
        for (node, _), (agent, seen_ms) in _with_holdings(said, held, now_ms).items()
    ] + [
        _shown(each.node, names, worker, seen_ms, now_ms)
        for each in known
        for worker, seen_ms in _workers(each, claimed)
    ]
    place = {node_text(each.node): number for number, each in enumerate(known)}
    shown.sort(key=lambda each: place.get(each.node, len(place)))
    return [each for each in shown if within_ms is None or now_ms - each.last_seen_ms <= within_ms]


def _with_holdings(said: Mapping[Agent, _Seen], held: Iterable[Holdings], now_ms: int) -> dict[Agent, _Seen]:
    """Adds what agents hold to what they have said. An agent is alive as long as it holds something."""
    found = dict(said)
    for agent, holdings in ((agent, each) for holding in held for agent, each in holding.items()):
        before, seen_ms = found.get(agent, (AgentSaid(agent[1], every_ms=EVERY_MS_MIN), 0))
        seen_ms = min(now_ms, max(seen_ms, *(each.seen_ms for each in holdings)))
        every_ms = max(before.every_ms, *(each.until_ms - seen_ms for each in holdings))
        doing = "; ".join(filter(None, (before.doing, few([each.doing for each in holdings], "; "))))
        found[agent] = AgentSaid(before.name, doing, every_ms), seen_ms
    return found


def _workers(known: NodePresence, claimed: Iterable[Job]) -> Iterator[tuple[AgentSaid, int]]:
    """The workers of a node as agents. They beat with their node."""
    for worker in known.workers:
        running = sum(job.claimer == known.node and worker.covers(job.kind) for job in claimed)
        doing = f"runs {counted(running, 'job')}" if running else "idle"
        yield AgentSaid(WORKER, f"{doing}; serves {few(worker.kinds)}", round(BEAT_S * 1000)), known.heard_ms


def _shown(node: int, names: Mapping[str, str], said: AgentSaid, seen_ms: int, now_ms: int) -> AgentShown:
    id, graded = node_text(node), grade(now_ms - seen_ms, said.every_ms).value
    return AgentShown(said.name, id, names.get(id), said.doing, seen_ms, graded)
