"""A simulated node: the real log, store, committer, worker, gate and exchanges, in an environment and over a network
that the seed chooses. It can crash at any moment and restart with what its disk has kept.

Its environment has clocks that are wrong in their own way, randomness from the seed, and handlers as tasks on the one
event loop. Hints end with the node's life; locks are entries in a table of its host, which stays, and they are free
when that life has ended.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, cast

from hocket.bus.memory import MemoryBus
from hocket.events import Event
from hocket.extensions.sim.disk import Disk, SimStore, StoreTime
from hocket.extensions.sim.loop import Life
from hocket.extensions.sim.network import Lines, Network, SimMessageServer, address
from hocket.families.blobs import Blobs
from hocket.families.liveness import Liveness, LockLiveness
from hocket.families.locks.processes import LockSweep
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import RowMac, SigningKey, did_key
from hocket.kernel.mesh_rules import Rules, encode_rules
from hocket.kernel.ops import Op, decode
from hocket.kernel.signing import OpSigner
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import RULES, Log, Transaction
from hocket.log.machine_clock import SteadyWall
from hocket.mesh import peers
from hocket.mesh.gate import Gate
from hocket.mesh.loop import SyncLoop
from hocket.mesh.snapshots.fetching import FETCHED
from hocket.mesh.snapshots.serving import SERVED, ServedSnapshots
from hocket.mesh.sync import Exchanges
from hocket.node.message_bus import NodeMessages
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import MEMORY, OpRow, Place
from hocket.store import open as open_store
from hocket.work.environment import WorkerOptions
from hocket.work.handler_threads import HandlerThreads, ProcessPlan
from hocket.work.handlers import Handlers
from hocket.work.maintenance import SWEEP_S, SweepLoop
from hocket.work.output_files import OutputFiles
from hocket.work.presence import Hardware
from hocket.work.runner import Run
from hocket.work.worker import Worker

T = TypeVar("T")
CONCURRENCY = 2
EPOCH_S = 1_750_000_000.0


class Clocks:
    """A machine's two clocks. Both run at its own `rate`; the time of day is also off by `skew` seconds."""

    def __init__(self, rate: float, skew: float) -> None:
        self._rate = rate
        self.skew = skew
        self._true = asyncio.get_running_loop().time

    def monotonic(self) -> float:
        return self._true() * self._rate

    def day(self) -> float:
        """This machine's time of day, in seconds since the epoch."""
        return EPOCH_S + self._true() * self._rate + self.skew


class SimHost:
    """A machine's locks. Its nodes come and go; `crash` ends all of them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._held: dict[str, bool] = {}

    def liveness(self, monotonic: Callable[[], float]) -> Liveness:
        return LockLiveness(self, self.place, 1, monotonic)

    def crash(self) -> None:
        self._held = dict.fromkeys(self._held, False)

    def take(self, name: str) -> "SimLock":
        self._held[name] = True
        return SimLock(self, name)

    def is_held(self, name: str) -> bool | None:
        return self._held.get(name)

    def remove(self, name: str) -> None:
        self._held.pop(name, None)


class SimLock(NamedTuple):
    host: SimHost
    name: str
    fd: None = None

    def close(self) -> None:
        if self.host.is_held(self.name):  # a crash has left it free, and tasks that end because of it remove nothing
            self.host.remove(self.name)


class SimEnvironment:
    """The environment of one life of a node."""

    def __init__(self, clocks: Clocks, chance: random.Random, host: SimHost) -> None:
        self.bus = MemoryBus()
        self.chance = chance
        self.monotonic = clocks.monotonic
        self.liveness = host.liveness(clocks.monotonic)
        self.hardware = Hardware(cpus=1)
        self._clocks = clocks

    def physical_ms(self) -> int:
        return int(self._clocks.day() * 1000)

    def name(self, role: str) -> str:
        return f"{role}-{self.chance.randbytes(4).hex()}"

    def slots(self, count: int, finished: Callable[[Run], None], plan: ProcessPlan | None) -> HandlerThreads:
        return Tasks(count, finished, self.monotonic)


class Tasks(HandlerThreads):
    """Handlers, which must be coroutines, as tasks of the running loop. Tracebacks name files of the real machine, and
    an op's id follows from its content: they are left out, so that a seed replays anywhere.
    """

    def __init__(self, slots: int, finished: Callable[[Run], None], monotonic: Callable[[], float]) -> None:
        def ended(run: Run) -> None:
            run.traceback = ""
            finished(run)

        super().__init__(slots, ended, monotonic)
        self.loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._waiting.clear()

    def _give_up(self, run: Run) -> None:
        self._over(run)


class Witness(Protocol):
    """Records what happens in a run."""

    def committed(self, node: int) -> None: ...
    def acknowledged(self, node: int, op_ids: Sequence[bytes]) -> None: ...
    def crashed(self, node: int) -> None: ...
    def emitted(self, node: int, event: Event) -> None: ...


class SimNode:
    """What survives a crash: the keys, the disk, the clocks, and the place in the network."""

    def __init__(self, number: int, user: SigningKey, clocks: Clocks, chance: random.Random, witness: Witness) -> None:
        self.number = number
        self.user = user
        self.key = SigningKey(chance.randbytes(32))
        self.clocks = clocks
        self.chance = chance
        self.witness = witness
        self.host = SimHost(Place(f"host-{number}", "boot", "pid", "locks"))
        self.store = SimStore(open_store(MEMORY), lambda: witness.committed(number))
        self.store.mac_rows(RowMac(self.key))
        self.slow_s = 0.0
        self.busy_until = 0.0
        self.store_time = StoreTime()
        self.folder: Path | None = None
        """The folder for its snapshots, if the log is pruned."""
        self.horizons_to_move = 0
        self.up: Up | None = None

    def install(self, rules: Rules, friends: Sequence[int] = ()) -> None:
        """What a node has from the beginning: rules, its introduction by the user, and the nodes to sync with."""
        with self.store.write() as session:
            session.set_meta(RULES, encode_rules(rules))
        self.befriend(friends)
        Up(self).log.run(self._introduce)

    def befriend(self, friends: Sequence[int]) -> None:
        """The nodes to sync with."""
        with self.store.write() as session:
            for friend in friends:
                peers.add(session, address(friend), 0)

    def _introduce(self, tx: Transaction) -> None:
        token = issue(self.user, self.key.public, ROOT, tx.now // 1000, None)
        tx.author(DelegateUcan(content_hash(token), token))

    def sent(self, rows: Iterable[OpRow]) -> list[tuple[bytes, Op]]:
        """Ops of its log as they leave it."""
        signer = OpSigner(self.key, node_id(self.key.public))
        return [(raw, decode(raw)) for raw in (signer.signed(row.body) for row in rows)]

    def start(
        self, handlers: Handlers, network: Network, messages: SimMessageServer, nodes: "Sequence[SimNode]"
    ) -> None:
        self.up = Up(self)
        self.up.start(handlers, Lines(self.number, network, lambda there: nodes[there].up), messages)

    def crash(self) -> None:
        """Everything stops between two steps; whatever was not committed is lost."""
        if self.up is not None:
            up, self.up = self.up, None
            up.life.end()
            up.hang_up()
            self.host.crash()
            self.witness.crashed(self.number)


class _SimRuntime(Runtime):
    """A runtime without a home: a simulated node needs no files."""

    def __init__(self, log: Log) -> None:
        self.store = log.store
        self.log = log
        self.helpers = None
        self.output = cast(OutputFiles, None)
        self.spool = None
        self.pacers = {}

    @property
    def blobs(self) -> Blobs:
        return cast(Blobs, None)


class _Alone:
    """The right to sync: a simulated node is one process."""

    def close(self) -> None:
        pass


class Up(Node):
    """One life of a node."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.life = Life()
        chance = random.Random(node.chance.getrandbits(64))
        environment = SimEnvironment(node.clocks, chance, node.host)
        log = Log(
            node.store,
            node.key,
            did_key(node.user.public),
            wall=SteadyWall(node.clocks.day, node.clocks.monotonic),
            physical=environment.physical_ms,
            randomness=chance.randbytes,
            bus=environment.bus,
            stopwatch=node.store_time,
            monotonic=environment.monotonic,
        )
        super().__init__(_SimRuntime(log), Disk(node, chance, self.life), environment)
        served = None if node.folder is None else ServedSnapshots(log, node.folder / SERVED)
        self.gate = Gate(self, node.key, environment, emit=self.emit, served_snapshots=served, is_contested=True)
        self._chance = chance
        self.hang_up: Callable[[], None] = lambda: None
        """Ends its part in the message bus at once."""
        self.messages: NodeMessages | None = None

    async def join(self, server: SimMessageServer) -> NodeMessages:
        """Its message bus, signed with its key."""
        messages = server.open(self.node.number, self._chance.randbytes, self.emit)
        self.hang_up = lambda: server.close(messages)
        self.messages = await NodeMessages.open(
            self, messages, self.node.key, self.environment, randomness=self._chance.randbytes
        )
        return self.messages

    def start(self, handlers: Handlers, lines: Lines, server: SimMessageServer | None = None) -> None:
        """Without a `server` its workers tell each other nothing."""
        exchanges = Exchanges(
            *(self, self.node.key, lines, self.environment),
            randomness=self._chance.randbytes,
            emit=self.emit,
            fetched_snapshot=None if self.node.folder is None else self.node.folder / FETCHED,
        )
        self.reach = exchanges.consult
        self.life.start(self.gate.open(), "gate")
        self.life.start(self._start(handlers, exchanges, server), "start")

    async def _start(self, handlers: Handlers, exchanges: Exchanges, server: SimMessageServer | None) -> None:
        messages = None if server is None else await self.join(server)
        touch = SyncLoop(self, exchanges, self.environment, _Alone, emit=self.emit, messages=messages)
        worker = Worker(self, self.environment, WorkerOptions(handlers, CONCURRENCY, emit=self.emit, messages=messages))
        self.life.start(touch.run(), "touch")
        self.life.start(worker.run(), "worker")
        self.life.start(SweepLoop(self, self.environment, self.emit, SWEEP_S).run(), "sweep")
        self.life.start(LockSweep(self, self.environment, self.emit, SWEEP_S).run(), "lock sweep")

    def emit(self, event: Event) -> None:
        self.node.witness.emitted(self.node.number, event)

    async def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        """As every node does it; once the answer is here, the written ops count as acknowledged."""

        def noted(tx: Transaction) -> tuple[T, list[bytes]]:
            before = len(tx.written)
            return request(tx), tx.written[before:]

        if self.life.is_over:
            raise asyncio.CancelledError
        result, op_ids = await super().run(noted)
        self.node.witness.acknowledged(self.node.number, op_ids)
        return result
