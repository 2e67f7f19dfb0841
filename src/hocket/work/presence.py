"""What nodes, workers and agents say about themselves: the workers of a node and what they run, its agents and what
they do, and what its machine has. Presence is on no log, expires, and decides nothing about who holds a job: it shows
people who is there and which worker could take a job, and `members` knows by it which workers are ranked.
`mesh.presence` carries it between nodes.

A node says it again every `BEAT_S`, an agent as often as it has promised. `families.liveness` grades those that fall
silent.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from hocket.errors import Conflict, Usage
from hocket.families.jobs.progress import ProgressNote, own_notes
from hocket.families.jobs.rules import Job
from hocket.families.liveness import Grade, Liveness, WorkerState, grade, standing
from hocket.kernel.decoding import decode_json
from hocket.log import Log
from hocket.store import AgentRow, Presence, Session, WorkerRow

# What was heard longer ago than this is forgotten: a week.
KEPT_MS = 7 * 24 * 3600 * 1000
# How far another process of this machine may be ahead when it notes that it has heard something.
AHEAD_MS = 1_000
DOING_CHARS_MAX = 500
NAME_CHARS_MAX = 128
AGENTS_MAX = 256
EVERY_MS_MIN, EVERY_MS_DEFAULT, EVERY_MS_MAX = 1_000, 60_000, 24 * 3600 * 1000
MINUTE_MS = 60_000
# The minutes with claims that a report has, of all kinds together.
TOLD_MAX = 32
# Kind, minute since the epoch, claims.
Tally = tuple[tuple[str, int, int], ...]
# The longest text about the workers of one node. What does not fit is left out.
TEXT_CHARS_MAX = 16_384
GPUS_MAX = 64
_NAME_CHARS_MAX = 100


class ClaimTally:
    """How many jobs a worker has claimed by rank, by kind and minute: it tells others with its presence. The log knows
    only nodes. Sticky jobs are left out: their keys, not the weights, decide about them.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._counts: dict[tuple[int, str], int] = {}

    def add(self, job: Job) -> None:
        if job.policy.claim != "rendezvous":
            return
        key = self._now_ms() // MINUTE_MS, job.kind
        if key not in self._counts and len(self._counts) >= TOLD_MAX:
            del self._counts[min(self._counts)]
        self._counts[key] = self._counts.get(key, 0) + 1

    def told(self) -> Tally:
        return tuple((kind, minute, count) for (minute, kind), count in sorted(self._counts.items()))


if TYPE_CHECKING:
    from hocket.work.handlers import JobType


class Serving(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker. A kind that ends with a dot stands for every kind below it. `allow`, `allow_any` and `variables`
    limit the commands of other nodes that it runs, which get the `network` only with this switch; `refuses` is why it
    runs none, as an `Obstacle`; `labels` are what jobs may need. `id` is the worker's own, and `weight` its share of
    the jobs that go by rank; a worker without an id is not ranked. `since_ms` is when it began, and `claimed` how many
    jobs it has claimed by rank: kind, minute, claims. A worker over HTTP that `drains` takes no new jobs.
    """

    kinds: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    allow_any: bool = False
    variables: tuple[str, ...] = ()
    network: bool = False
    refuses: str = ""
    labels: tuple[str, ...] = ()
    id: str = ""
    weight: float = 1.0
    since_ms: int = 0
    claimed: Tally = ()
    drains: bool = False

    def covers(self, kind: str) -> bool:
        return any(kind == each or (each.endswith(".") and kind.startswith(each)) for each in self.kinds)

    def labelled(self, labels: Iterable[str]) -> "Serving":
        return msgspec.structs.replace(self, labels=tuple(sorted(labels)))

    def ranked(self, id: str, weight: float, since_ms: int = 0) -> "Serving":
        return msgspec.structs.replace(self, id=id, weight=weight, since_ms=since_ms)


class WorkerPart(Protocol):
    """What an extension adds to a worker: its jobs, and what other nodes are told about them."""

    kind: str
    limit: Callable[[Serving], Serving]

    def job_type(self) -> "JobType": ...


def serving(kinds: Iterable[str], parts: Iterable[WorkerPart] = ()) -> Serving:
    """What a worker of these kinds runs, with these parts."""
    found = Serving(tuple(sorted(kinds)))
    for each in parts:
        if each.kind in found.kinds:
            found = each.limit(found)
    return found


def without_tallies(workers: Iterable[Serving]) -> list[Serving]:
    return [msgspec.structs.replace(each, claimed=()) for each in workers]


def serving_text(workers: Sequence[Serving]) -> str:
    """The workers as text: if they do not fit, without what they have claimed, and then without the last ones."""
    shown = list(workers)
    if len(text := msgspec.json.encode(shown).decode()) > TEXT_CHARS_MAX:
        shown = without_tallies(shown)
    while len(text := msgspec.json.encode(shown).decode()) > TEXT_CHARS_MAX:
        shown.pop()
    return text


def read_serving(text: str) -> list[Serving]:
    """The workers in a text of this or another program; none if it is unreadable."""
    try:
        return decode_json(text or "[]", list[Serving])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []


class Hardware(msgspec.Struct, frozen=True, omit_defaults=True):
    """`gpus` are the models, one for each GPU. Zero and none mean unknown, too."""

    cpus: int = 0
    memory_bytes: int = 0
    gpus: tuple[str, ...] = ()


UNKNOWN = Hardware()


def this_machine() -> Hardware:
    """What this process may use: a container's limits count."""
    return Hardware(_cpus(), _memory_bytes(), _gpus(Path("/proc/driver/nvidia/gpus")))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _memory_bytes() -> int:
    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):
        return whole


def _gpus(directory: Path) -> tuple[str, ...]:
    """The GPUs that NVIDIA's driver lists."""
    found = []
    for path in sorted(directory.glob("*/information"))[:GPUS_MAX]:
        try:
            lines = dict(line.partition(":")[::2] for line in path.read_text(errors="replace").splitlines())
        except OSError:
            continue
        found.append(lines.get("Model", "").strip()[:_NAME_CHARS_MAX] or "unknown")
    return tuple(found)


_STAT = Path("/proc/stat")


class MachineLoad:
    """How busy the processors and GPUs have been between two calls."""

    def __init__(self) -> None:
        self._before = _ticks()

    def cpu(self) -> float:
        """The share of its time that the processors have worked since the last call; 0 where the system does not
        tell.
        """
        (busy, whole), self._before = self._since(now := _ticks()), now
        return round(busy / whole, 3) if whole > 0 else 0.0

    def _since(self, now: tuple[int, int]) -> tuple[int, int]:
        return max(0, now[0] - self._before[0]), now[1] - self._before[1]

    def gpu(self) -> float | None:
        """The recent load of all GPUs together, from 0 to 1; None without GPUs or a library that reads them."""
        library, devices = _nvml()
        with suppress(Exception):
            rates = [library.nvmlDeviceGetUtilizationRates(each).gpu / 100 for each in devices]
            return round(min(1.0, sum(rates) / len(rates)), 3) if rates else None
        return None


def _ticks() -> tuple[int, int]:
    """Those in which a processor worked, and all."""
    try:
        numbers = [int(each) for each in _STAT.read_text().partition("\n")[0].split()[1:9]]
        return sum(numbers) - numbers[3] - numbers[4], sum(numbers)
    except (OSError, ValueError, IndexError):
        return 0, 0


@cache
def _nvml() -> tuple[Any, tuple[Any, ...]]:
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
        count = library.nvmlDeviceGetCount()
        return library, tuple(library.nvmlDeviceGetHandleByIndex(number) for number in range(count))
    except Exception:
        return None, ()


class AgentSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent does, and how often it says so."""

    name: str
    doing: str = ""
    every_ms: int = EVERY_MS_DEFAULT


class NodeSaid(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says about itself. It stays the same while nothing changes: times travel separately. `progress` are
    the newest notes of the jobs that it runs.
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
    """What a node of this or another version said; nothing if it is unreadable. A node that names an agent as no agent
    can be called has none.
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
    """The agents that a node has told about, and when each was last seen. An agent was seen no later than its node was
    heard.
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
