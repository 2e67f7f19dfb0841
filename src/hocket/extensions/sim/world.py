"""One run: creates the nodes, starts clients and faults, waits until everything is quiet, and checks the invariants."""

import asyncio
import gc
import random
import resource
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from msgspec.structs import replace

from hocket.events import Event
from hocket.extensions.sim import checks, faults, load, loop, pruning
from hocket.extensions.sim.checks import SimEvent, Trace, Violation
from hocket.extensions.sim.coordination_load import LockLoad, MessageLoad, RowLoad, draw_locks, draw_messages, draw_rows
from hocket.extensions.sim.costly import AheadNode, CostlyNode, LivenessLoad
from hocket.extensions.sim.disk import StoreTime
from hocket.extensions.sim.faults import COSTLY, HIDING, HONEST_FAULTS, HOSTILE, Fault
from hocket.extensions.sim.hiding import HidingNode
from hocket.extensions.sim.hostile import HostileNode
from hocket.extensions.sim.load import Clients, Journal
from hocket.extensions.sim.loop import Life
from hocket.extensions.sim.network import Network, SimMessageServer, TopicFigures
from hocket.extensions.sim.node import Clocks, SimNode, Up
from hocket.extensions.sim.remembered import remembered
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import DesignateCoordinator, SetSuccession
from hocket.log import Log, Transaction
from hocket.work.handlers import Handlers

# When the nodes start, in the simulation's own time. They have met before.
BEGIN_S = 100.0
# How often the replicas are checked during the run.
LOOK_S = 0.5
# After the faults end, everything must settle within this time.
SETTLE_S = 180.0
# After this silence of the coordinator another node follows it, if some are named.
SILENCE_MS = 3_000
# The rules of simulated nodes: clocks may differ by less than usual, so that a run can outlast it.
SKEW_S = 10.0
assert HOCKET.extensions is not None
RULES = replace(HOCKET, extensions=replace(HOCKET.extensions, skew_ms=int(SKEW_S * 1000)))
TRACE_SHOWN = 40
# Up to this many nodes, each syncs with its neighbour, too.
RING_MAX = 50
# In a larger mesh there is a hostile node for each so many honest ones.
HONEST_FOR_EACH = 50
GC_EVERY = 50_000


@dataclass(frozen=True)
class Report:
    """The outcome of a run. `settled_s` is how long it took after the faults ended until everything was done and all
    nodes agreed; None if that did not happen. `seconds` are real ones. `takeovers` are runs of a job that another node
    had begun, and `overlaps` those of them that began before the other had ended, which only an `open` job may have.
    `bus` has the figures of each topic; `requests` are those between nodes, over HTTP in a real mesh. `memory_bytes` is
    the most memory that this process has used.
    """

    seed: int
    nodes: int
    faults: tuple[str, ...]
    virtual_s: float
    seconds: float
    settled_s: float | None
    jobs: int
    ops: int
    runs: int
    takeovers: int
    overlaps: int
    locks: int
    messages: int
    rows: int
    bus: Mapping[str, TopicFigures]
    requests: int
    memory_bytes: int
    digest: str
    violations: tuple[Violation, ...]
    events: tuple[SimEvent, ...]

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.nodes} nodes, {self.virtual_s:.0f} s, {self.jobs} jobs, {self.runs} runs,"
            f" {self.locks} locks, {self.messages} messages, {self.rows} rows, {self.ops} ops;"
            f" faults: {', '.join(self.faults) or 'none'}; trace {self.digest[:16]}"
        ]
        for violation in self.violations:
            lines.append(f"  {violation.rule}: {violation.sentence}")
        if self.violations:
            lines += [f"  {event}" for event in self.events]
            named = "" if self.faults == HONEST_FAULTS else f" --faults {','.join(self.faults) or 'none'}"
            lines.append(f"  again with: hocket sim --seed {self.seed} --nodes {self.nodes}{named}")
        return "\n".join(lines)


def run(
    seed: int,
    *,
    nodes: int = 5,
    minutes: float = 2.0,
    faults: Iterable[str] = HONEST_FAULTS,
    jobs: int | None = None,
    coordination: int | None = None,
    ranked: bool = False,
    named: int = 0,
) -> Report:
    """One simulated run. `jobs` is how many are submitted; by default ten for each minute. `coordination`
    is how many locks are asked for, how many messages are sent and how often rows are written; by default as many as
    jobs. With `ranked` the jobs are short, succeed, and all go by rank. So many nodes are `named` to follow the
    coordinator, itself included.
    """
    # A run makes much cyclic garbage; collecting it as often as usual takes a tenth of the time.
    before = gc.get_threshold()
    gc.set_threshold(GC_EVERY, 20, 20)
    try:
        with remembered():
            with TemporaryDirectory(prefix="hocket-sim-") as folder:
                world = World(seed, nodes, minutes * 60, tuple(faults), jobs, coordination, ranked, named, Path(folder))
                return loop.run(world.run())
    finally:
        gc.set_threshold(*before)


def _ops(node: SimNode) -> list[tuple[bytes, Op]]:
    with node.store.read() as session:
        return node.sent(session.entries_after(0, 1_000))


class Load(Protocol):
    """Requests of one sort. `look` checks a replica during the run."""

    async def run(self) -> None: ...
    def look(self, node: SimNode) -> None: ...
    def at_the_end(self) -> Iterator[Violation]: ...


class World:
    def __init__(
        self,
        seed: int,
        nodes: int,
        seconds: float,
        names: Sequence[str],
        jobs: int | None,
        coordination: int | None,
        ranked: bool,
        named: int,
        folder: Path,
    ) -> None:
        if nodes < 1 or seconds <= 0:
            raise ValueError("a simulation needs at least one node and some time")
        self._seed, self._folder = seed, folder
        self._names = faults.check(names)
        self._seconds = seconds
        self._count = nodes
        self._chance = random.Random(seed)
        self._named = named
        self._plan = faults.draw(self._chance, nodes, seconds, self._names, SKEW_S, max(1, named))
        count = round(seconds / 6) if jobs is None else jobs
        self._wishes = load.draw(self._chance, nodes, seconds, count)
        if ranked:
            self._wishes = load.ranked(self._wishes)
        others = count if coordination is None else coordination
        lock_wishes = draw_locks(self._chance, nodes, seconds, others)
        message_wishes = draw_messages(self._chance, nodes, seconds, others)
        row_wishes = draw_rows(self._chance, nodes, seconds, others)
        self._paces = load.paces(self._chance, nodes)
        self._trace = Trace()
        self._journal = Journal()
        self._nodes: list[SimNode] = []
        self._hostile: list[HostileNode] = []
        # Of a mesh whose log is pruned: the members with something to hide, and the node that joins during the run.
        self._hiding: list[HidingNode] = []
        self._late: list[SimNode] = []
        self._stirred: dict[int, None] = {}
        self._acknowledged: dict[bytes, int] = {}
        self._violations: dict[tuple[str, bytes | None], Violation] = {}
        self._watch = checks.InvariantWatch(self._found)
        self._locks = LockLoad(lock_wishes, self._nodes, self._note, self._found)
        self._messages = MessageLoad(message_wishes, self._nodes, self._note)
        self._rows = RowLoad(row_wishes, self._nodes, self._note)
        self._store_time = StoreTime()
        self._loads: tuple[Load, ...] = (self._locks, self._messages, self._rows)
        if self._names == (COSTLY,):
            # Other faults delay requests, too.
            self._loads = (*self._loads, LivenessLoad(self._nodes, seconds, self._note))

    async def run(self) -> Report:
        with self._store_time.counted() if COSTLY in self._names else nullcontext():
            return await self._run()

    async def _run(self) -> Report:
        began = time.perf_counter()
        loop_here = asyncio.get_running_loop()
        assert isinstance(loop_here, loop.VirtualLoop)
        self._loop = loop_here
        self._loop.set_exception_handler(self._failed)
        self._network = Network(random.Random(self._chance.getrandbits(64)), self._life)
        self._bus = SimMessageServer(self._network, self._count)
        self._make_nodes()
        clients = Clients(random.Random(self._chance.getrandbits(64)), self._nodes, self._journal, self._note)
        world = Life()
        world.start(clients.run(self._wishes), "clients")
        for each in self._loads:
            world.start(each.run(), type(each).__name__)
        world.start(self._look_on(), "watch")
        world.start(self._join_late(), "late")
        for fault in self._plan.faults:
            await self._until(fault.at)
            self._strike(fault)
        await self._until(self._seconds)
        self._calm()
        settled = await self._settle()
        virtual = self._loop.time() - self._begin_s
        self._look()
        for violation in (
            *checks.at_the_end(self._honest, self._journal, self._acknowledged, self._rogues),
            *(pruning.violations(self._honest, self._hiding, self._history) if self._late else ()),
            *(violation for each in self._loads for violation in each.at_the_end()),
        ):
            self._found(violation)
        lives = [world, *(node.up.life for node in self._honest if node.up is not None)]
        for life in lives:
            life.end()
        for life in lives:
            await life.ended()
        return self._report(virtual, time.perf_counter() - began, settled)

    # Setup.

    def _make_nodes(self) -> None:
        user = SigningKey(self._chance.randbytes(32))
        for number, rate in enumerate(self._plan.rates):
            chance = random.Random(self._chance.getrandbits(64))
            self._nodes.append(SimNode(number, user, Clocks(rate, 0.0), chance, self))
        for number in range(1 + self._count // HONEST_FOR_EACH if HOSTILE in self._names else 0):
            chance = random.Random(self._chance.getrandbits(64))
            victims = tuple(self._nodes)
            self._hostile.append(
                HostileNode(self._count + number, user, Clocks(1.0, 0.0), chance, self, victims=victims)
            )
        for made in (CostlyNode, AheadNode) if COSTLY in self._names else ():
            chance = random.Random(self._chance.getrandbits(64))
            number = self._count + len(self._hostile)
            self._hostile.append(made(number, user, Clocks(1.0, 0.0), chance, self, victims=tuple(self._nodes)))
        if HIDING in self._names:
            self._make_hiding(user)
        for node in self._nodes:
            node.store_time = self._store_time
        self._acquaint()
        for node in self._nodes:
            # The arbiter, and one more: so that news spreads even while the arbiter is away. In a large mesh that
            # would double the exchanges.
            others = (0, (node.number + 1) % self._count) if self._count <= RING_MAX else (0,)
            friends = dict.fromkeys(n for n in (*others, *range(self._named)) if n != node.number)
            if node.number < 2:
                friends |= dict.fromkeys(each.number for each in self._hostile)
            node.befriend(list(friends))
        for node in self._late:
            node.befriend([*(each.number for each in self._hiding), 0, min(1, self._count - 1)])
        # That was long ago, when the clocks were right.
        self._loop.now = self._begin_s
        for node, skew in zip(self._nodes, self._plan.skews, strict=True):
            node.clocks.skew = skew
            self._start(node)
        for hostile in self._hostile:
            hostile.start(Handlers(()), self._network, self._bus, self._everyone)

    def _make_hiding(self, user: SigningKey) -> None:
        chance = random.Random(self._chance.getrandbits(64))
        member = HidingNode(
            *(self._count + len(self._hostile), user, Clocks(1.0, 0.0), chance, self),
            victims=tuple(self._nodes),
            folder=self._folder / "hostile",
        )
        self._hiding.append(member)
        self._hostile.append(member)
        chance = random.Random(self._chance.getrandbits(64))
        self._late.append(SimNode(self._count + len(self._hostile), user, Clocks(1.0, 0.0), chance, self))
        self._nodes[0].horizons_to_move = pruning.HORIZONS
        for node in self._honest:
            node.folder = self._folder / str(node.number)

    def _long_ago(self, arbiter: Log) -> None:
        def wait() -> None:
            self._loop.now = self._begin_s - pruning.HALF_S

        nobody = SigningKey(self._chance.randbytes(32))
        self._history = pruning.write_history(arbiter, self._nodes[0].user, nobody, wait)

    def _acquaint(self) -> None:
        """Every node has met the arbiter, and through it the others, before the run begins."""
        self._nodes[0].install(RULES)
        arbiter = Up(self._nodes[0]).log
        arbiter.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
        for node in self._everyone[1:]:
            node.install(RULES)
            arbiter.admit(_ops(node))
        if self._late:
            self._long_ago(arbiter)
        if self._named:
            arbiter.run(self._name_successors)
        for node in self._nodes[1:]:
            node.store.copy(self._nodes[0].store, arbiter.signed)

    def _name_successors(self, tx: Transaction) -> None:
        head = tx.projection.permissions.chain.head
        assert head is not None
        nodes = tuple(node_id(node.key.public) for node in self._nodes[: self._named])
        tx.author(SetSuccession(head.op_id, nodes, self._named // 2 + 1, SILENCE_MS))

    def _start(self, node: SimNode) -> None:
        def note(what: str, about: bytes, detail: str) -> None:
            self._note(node.number, what, about, detail)

        pace = self._paces[min(node.number, self._count - 1)]
        handlers = load.handlers(node.number, pace, self._journal, note)
        node.start(handlers, self._network, self._bus, self._everyone)
        if self._late and node.up is not None:
            node.up.life.start(pruning.keep(node.up), "keeping")

    @property
    def _everyone(self) -> list[SimNode]:
        return [*self._nodes, *self._hostile, *self._late] if self._hostile else self._nodes

    @property
    def _honest(self) -> list[SimNode]:
        return [*self._nodes, *self._late] if self._late else self._nodes

    @property
    def _begin_s(self) -> float:
        return pruning.LONG_AGO_S if self._late else BEGIN_S

    def _life(self, number: int) -> Life | None:
        up = self._everyone[number].up
        return None if up is None else up.life

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, self._begin_s + at - self._loop.time()))

    async def _join_late(self) -> None:
        await self._until(self._seconds * pruning.JOINS_AT)
        for node in self._late:
            self._start(node)

    # Faults.

    def _strike(self, fault: Fault) -> None:
        weather = self._network.weather
        node = self._nodes[fault.node]
        if fault.what == "cut":
            weather.groups = {number: int(fault.size) >> number & 1 for number in range(self._count)}
            self._note(-1, "cut", b"", " ".join(str(side) for side in weather.groups.values()))
        elif fault.what == "heal":
            weather.groups = {}
            self._note(-1, "heal")
        elif fault.what == "loss":
            weather.loss = fault.size
        elif fault.what == "duplicate":
            weather.duplicate = fault.size
        elif fault.what == "jitter":
            weather.jitter_s = fault.size
        elif fault.what == "slow":
            node.slow_s = fault.size
            self._note(node.number, "slow disk" if fault.size else "good disk", b"", f"{fault.size:.2f}")
        elif fault.what == "clock":
            node.clocks.skew = fault.size
            self._note(node.number, "clock", b"", f"{fault.size:.3f}")
        elif fault.what == "restart":
            self._restart(node)
        elif fault.mode == "now":
            node.crash()
        else:
            node.store.cut = fault.mode  # type: ignore[assignment]

    def _restart(self, node: SimNode) -> None:
        node.store.cut = None
        if node.up is None:
            self._note(node.number, "restart")
            self._start(node)

    def _calm(self) -> None:
        weather = self._network.weather
        weather.groups, weather.loss, weather.duplicate, weather.jitter_s = {}, 0.0, 0.0, 0.0
        for node in self._honest:
            node.slow_s = 0.0
            self._restart(node)
        for hostile in self._hostile:
            # The honest nodes must settle what it leaves behind.
            hostile.crash()
        self._note(-1, "quiet")

    @property
    def _rogues(self) -> set[int]:
        return {hostile.node for hostile in self._hostile}

    async def _settle(self) -> float | None:
        start = self._loop.time()
        while not self._is_settled():
            if self._loop.time() - start > SETTLE_S:
                return None
            await asyncio.sleep(LOOK_S)
        return self._loop.time() - start

    def _is_settled(self) -> bool:
        is_quiet = not self._late or pruning.is_quiet(self._honest, self._hiding)
        return is_quiet and checks.settled(self._honest, self._rogues)

    # Observation.

    def _note(self, node: int, what: str, about: bytes = b"", detail: str = "") -> None:
        self._trace.add(self._loop.time() - self._begin_s, node, what, about, detail)

    def committed(self, node: int) -> None:
        if node < self._count:
            self._stirred[node] = None

    def acknowledged(self, node: int, op_ids: Sequence[bytes]) -> None:
        self._acknowledged.update(dict.fromkeys(op_ids, node))

    def crashed(self, node: int) -> None:
        self._note(node, "crash")

    def emitted(self, node: int, event: Event) -> None:
        if not event.routine:
            self._note(node, "says", b"", str(event))

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        stirred, self._stirred = self._stirred, {}
        for number in stirred:
            if checks.is_untold(self._nodes[number]):
                self._stirred[number] = None
                continue
            self._watch.look(self._nodes[number])
            for each in self._loads:
                each.look(self._nodes[number])

    def _found(self, violation: Violation) -> None:
        if (violation.rule, violation.about) not in self._violations:
            self._violations[violation.rule, violation.about] = violation
            self._note(-1, "violation", violation.about or b"", violation.rule)

    def _failed(self, event_loop: object, context: dict[str, Any]) -> None:
        """Nothing in a node may raise an unexpected error."""
        error = context.get("exception")
        text = "".join(traceback.format_exception(error)) if error is not None else ""
        self._found(Violation("no unexpected errors", None, f"{context['message']}\n{text}"))

    def _report(self, virtual: float, seconds: float, settled: float | None) -> Report:
        longest = 0
        for node in self._nodes:
            with node.store.read() as session:
                head = session.head()
            longest = max(longest, head.seq)
            self._note(node.number, "ends", b"", f"{head.seq} {head.chain.hex()}")
        violations = tuple(self._violations.values())
        about = violations[0].about if violations else None
        report = Report(
            self._seed,
            self._count,
            self._names,
            virtual,
            seconds,
            settled,
            len(self._journal.submitted),
            longest,
            len(self._journal.runs),
            *self._journal.takeovers(),
            len(self._locks.runs),
            len(self._messages.runs),
            self._rows.stored.total(),
            self._bus.topics,
            self._network.requests,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            self._trace.digest(),
            violations,
            tuple(self._trace.around(about, TRACE_SHOWN)) if violations else (),
        )
        for node in self._honest:
            node.store.close()
        return report
