"""A simulated node: the real log, store, committer, worker, gate and exchanges, in an environment and over a network
that the seed chooses. It can crash at any moment and restart with what its disk has kept.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, cast

from hocket.events import Event
from hocket.extensions.sim.disk import Disk, SimStore, StoreTime
from hocket.extensions.sim.environment import Clocks, SimEnvironment, SimHost
from hocket.extensions.sim.lines import Lines, address
from hocket.extensions.sim.loop import Life
from hocket.extensions.sim.messages import SimMessageServer
from hocket.extensions.sim.network import Network
from hocket.families.blobs import Blobs
from hocket.families.locks.processes import LockSweep
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import RowMac, SigningKey, did_key
from hocket.kernel.ops import Op, decode
from hocket.kernel.rules import Rules, encode_rules
from hocket.kernel.signing import OpSigner
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import RULES, Log, Transaction
from hocket.log.machine_clock import SteadyWall
from hocket.mesh import peers
from hocket.mesh.gate import Gate
from hocket.mesh.loop import SyncLoop
from hocket.mesh.sync import Exchanges
from hocket.node.message_bus import NodeMessages
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.store import MEMORY, OpRow, Place
from hocket.store import open as open_store
from hocket.work.environment import WorkerOptions
from hocket.work.handlers import Handlers
from hocket.work.maintenance import ROUND_S, SweepLoop
from hocket.work.output_files import OutputFiles
from hocket.work.worker import Worker

T = TypeVar("T")

CONCURRENCY = 2


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
        )
        super().__init__(_SimRuntime(log), Disk(node, chance, self.life), environment)
        self.gate = Gate(self, node.key, environment, emit=self._emit, is_contested=True)
        self._chance = chance
        self.hang_up: Callable[[], None] = lambda: None
        """Ends its part in the message bus at once."""
        self.messages: NodeMessages | None = None

    async def join(self, server: SimMessageServer) -> NodeMessages:
        """Its message bus, signed with its key."""
        messages = server.open(self.node.number, self._chance.randbytes, self._emit)
        self.hang_up = lambda: server.close(messages)
        self.messages = await NodeMessages.open(
            self, messages, self.node.key, self.environment, randomness=self._chance.randbytes
        )
        return self.messages

    def start(self, handlers: Handlers, lines: Lines, server: SimMessageServer | None = None) -> None:
        """Without a `server` its workers tell each other nothing."""
        exchanges = Exchanges(
            self, self.node.key, lines, self.environment, randomness=self._chance.randbytes, emit=self._emit
        )
        self.reach = exchanges.consult
        self.life.start(self.gate.open(), "gate")
        self.life.start(self._start(handlers, exchanges, server), "start")

    async def _start(self, handlers: Handlers, exchanges: Exchanges, server: SimMessageServer | None) -> None:
        messages = None if server is None else await self.join(server)
        touch = SyncLoop(self, exchanges, self.environment, _Alone, emit=self._emit, messages=messages)
        worker = Worker(
            self, self.environment, WorkerOptions(handlers, CONCURRENCY, emit=self._emit, messages=messages)
        )
        self.life.start(touch.run(), "touch")
        self.life.start(worker.run(), "worker")
        self.life.start(SweepLoop(self, self.environment, self._emit, ROUND_S).run(), "sweep")
        self.life.start(LockSweep(self, self.environment, self._emit, ROUND_S).run(), "lock sweep")

    def _emit(self, event: Event) -> None:
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
