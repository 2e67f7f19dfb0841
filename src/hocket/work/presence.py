"""What nodes and agents say about themselves: the workers of a node and what they run, its agents and what they do, and
what its machine has. Presence is on no log, expires, and decides nothing: it shows people who is there and what a job
waits for. `mesh.presence` carries it between nodes.

A node says it again every `BEAT_S`, an agent as often as it has promised. `families.liveness` grades those that fall
silent.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from hocket.errors import Conflict, Usage
from hocket.families.jobs.progress import ProgressNote, own_notes
from hocket.families.liveness import Grade, Liveness, WorkerState, grade, standing
from hocket.kernel.decoding import decode_json
from hocket.log import Log
from hocket.store import AgentRow, Presence, Session, WorkerRow
from hocket.work.hardware import UNKNOWN, Hardware
from hocket.work.serving import TEXT_CHARS_MAX, Serving, read_serving, without_tallies

# What was heard longer ago than this is forgotten: a week.
KEPT_MS = 7 * 24 * 3600 * 1000
# How far another process of this machine may be ahead when it notes that it has heard something.
AHEAD_MS = 1_000
DOING_CHARS_MAX = 500
NAME_CHARS_MAX = 128
AGENTS_MAX = 256
EVERY_MS_MIN, EVERY_MS_DEFAULT, EVERY_MS_MAX = 1_000, 60_000, 24 * 3600 * 1000


class AgentSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent does, and how often it says so."""

    name: str
    doing: str = ""
    every_ms: int = EVERY_MS_DEFAULT


class NodeSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says about itself. It stays the same while nothing changes: times travel separately.
    `progress` are the newest notes of the jobs that it runs.
    """

    workers: tuple[Serving, ...] = ()
    agents: tuple[AgentSaid, ...] = ()
    hardware: Hardware = UNKNOWN
    progress: tuple[ProgressNote, ...] = ()


class NodePresence(NamedTuple):
    """What a node said, when it was last heard, and when each of its agents was last seen, by this machine's clock."""

    node: int
    said: NodeSaid
    heard_ms: int
    seen_ms: tuple[int, ...] = ()

    @property
    def workers(self) -> tuple[Serving, ...]:
        return self.said.workers

    @property
    def row(self) -> Presence:
        return Presence(self.node.to_bytes(8, "big"), said_text(self.said), self.heard_ms, self.seen_ms)

    def with_workers(self, more: Iterable[Serving]) -> "NodePresence":
        return self._replace(said=msgspec.structs.replace(self.said, workers=(*self.said.workers, *more)))

    def grade(self, now_ms: int) -> Grade:
        return grade(now_ms - self.heard_ms)


def said_text(said: NodeSaid) -> str:
    """As the store keeps it, bounded: what workers have claimed, then long progress notes, agents and workers that no
    longer fit are left out.
    """
    if len(msgspec.json.encode(said)) > TEXT_CHARS_MAX:
        said = msgspec.structs.replace(said, workers=tuple(without_tallies(said.workers)))
    while len(text := msgspec.json.encode(said).decode()) > TEXT_CHARS_MAX:
        name = "progress" if said.progress else "agents" if said.agents else "workers"
        every = getattr(said, name)
        said = msgspec.structs.replace(said, **{name: every[: len(every) // 2]})
    return text


def read_said(text: str) -> NodeSaid:
    """What a node of this or another version said; nothing if it is unreadable. A node that names an agent as no
    agent can be called has none.
    """
    try:
        said = decode_json(text, NodeSaid)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NodeSaid()
    if any(fault(each) for each in said.agents):
        return msgspec.structs.replace(said, agents=())
    return said


def read_presence(row: Presence) -> NodePresence:
    return NodePresence(int.from_bytes(row.node, "big"), read_said(row.said), row.heard, row.seen)


def own_workers(
    session: Session, liveness: Liveness, node: int, now_ms: int, rows: Sequence[WorkerRow] | None = None
) -> tuple[Serving, ...]:
    """What the running workers of this node run. `rows` are the workers in the store, if they were read before."""
    key = node.to_bytes(8, "big")
    of_node = session.workers(key) if rows is None else [each for each in rows if each.node == key]
    running = [each for each in of_node if standing(liveness, each, now_ms) is WorkerState.RUNNING]
    return tuple(worker for each in running for worker in read_serving(each.serves) if worker.kinds)


def own_presence(
    session: Session, liveness: Liveness, log: Log, hardware: Hardware, rows: Sequence[WorkerRow] | None = None
) -> NodePresence:
    """What this node says about itself now. `rows` are the workers in the store, if they were read before."""
    now_ms = log.physical()
    workers = own_workers(session, liveness, log.node, max(now_ms, session.head().wall), rows)
    agents = session.agents(log.node.to_bytes(8, "big"))[:AGENTS_MAX]
    notes = own_notes(session, log.node) if workers else ()
    said = NodeSaid(workers, tuple(AgentSaid(each.name, each.doing, each.every_ms) for each in agents), hardware, notes)
    return NodePresence(log.node, said, now_ms, tuple(each.seen for each in agents))


def known_nodes(session: Session, liveness: Liveness, log: Log, hardware: Hardware = UNKNOWN) -> list[NodePresence]:
    """This node first, and what others have said, however long ago."""
    others = {each.node: each for each in map(read_presence, session.presence())}
    workers = session.workers()
    for near in _sharing(session, workers, log.node):
        told = others.get(near.node, near)
        said = msgspec.structs.replace(near.said, hardware=told.said.hardware, progress=told.said.progress)
        others[near.node] = near._replace(said=said, heard_ms=max(near.heard_ms, told.heard_ms))
    here = own_presence(session, liveness, log, hardware, workers)
    return [here, *(each for node, each in sorted(others.items()) if node != log.node)]


def _sharing(session: Session, known: Sequence[WorkerRow], node: int) -> list[NodePresence]:
    """The other nodes with workers in this store: the rows of those tell more than what the nodes last said."""
    rows: dict[bytes, list[WorkerRow]] = {}
    for row in known:
        if row.node != node.to_bytes(8, "big"):
            rows.setdefault(row.node, []).append(row)
    found = []
    for author, workers in rows.items():
        agents = session.agents(author)[:AGENTS_MAX]
        serving = tuple(each for row in workers for each in read_serving(row.serves) if each.kinds)
        said = NodeSaid(serving, tuple(AgentSaid(each.name, each.doing, each.every_ms) for each in agents))
        seen = tuple(each.seen for each in agents)
        heard_ms = max(*(row.beat for row in workers), *seen, 0)
        found.append(NodePresence(int.from_bytes(author, "big"), said, heard_ms, seen))
    return found


def is_away(known: NodePresence, now_ms: int) -> bool:
    return known.grade(now_ms) is Grade.DEAD


def fault(said: AgentSaid) -> str | None:
    """What is wrong with what an agent says, if anything."""
    try:
        check_agent(said.name)
    except ValueError as error:
        return str(error)
    if len(said.doing) > DOING_CHARS_MAX or not said.doing.isprintable():
        return f"what an agent does is one line of at most {DOING_CHARS_MAX} printable characters"
    if not EVERY_MS_MIN <= said.every_ms <= EVERY_MS_MAX:
        return "an agent says what it does once a second at most, and once a day at least"
    return None


def beat(session: Session, node: int, said: AgentSaid, now_ms: int) -> None:
    """An agent of this node says what it does."""
    if wrong := fault(said):
        raise Usage(wrong)
    key = node.to_bytes(8, "big")
    session.drop_presence(now_ms - KEPT_MS, now_ms + AHEAD_MS)
    known = {each.name for each in session.agents(key)}
    if said.name not in known and len(known) >= AGENTS_MAX:
        raise Conflict(f"this node has {AGENTS_MAX} agents already; one that is silent for a week is forgotten")
    session.put_agent(AgentRow(key, said.name, said.doing, said.every_ms, now_ms))


def agents_of(known: NodePresence) -> Sequence[tuple[AgentSaid, int]]:
    """The agents that a node has told about, and when each was last seen. An agent was seen no later than its node
    was heard.
    """
    seen = (*known.seen_ms, *[known.heard_ms] * len(known.said.agents))
    return [(agent, min(at, known.heard_ms)) for agent, at in zip(known.said.agents, seen, strict=False)]


def check_agent(name: str) -> str:
    """Raises ValueError with what is wrong with the name of an agent, a program or person that acts on a node. An
    address puts `@` and a node after the name, and a group ends with a slash, so no name does.
    """
    if not 0 < len(name) <= NAME_CHARS_MAX:
        raise ValueError(f"an agent's name has 1 to {NAME_CHARS_MAX} characters")
    if not name.isprintable() or " " in name:
        raise ValueError(f"bad agent name {name!r}; use no spaces and no control characters")
    if "@" in name or name.endswith("/") or name == "all":
        raise ValueError(f"bad agent name {name!r}; a name has no @, does not end with / and is not `all`")
    return name
