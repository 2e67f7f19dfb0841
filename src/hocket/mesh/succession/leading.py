"""The coordinator's part: it sends its entries to the named nodes as soon as it has written them, counts who has them
and until when they have promised not to vote, and notes in the store what that means. See `log.leading`.
"""

import asyncio
from contextlib import closing
from dataclasses import dataclass, field

from msgspec.structs import replace

from hocket.bus.hints import LOG, about
from hocket.errors import HocketError, StoreError, Unreachable
from hocket.events import Emit
from hocket.events.nodes import LeadHeld, LeadLost, TakenOver
from hocket.families.access import NodeAccess
from hocket.families.jobs.claiming import accept
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.frontier import Frontier, decode_frontier
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, pinned_time
from hocket.kernel.postcard import Malformed
from hocket.kernel.succession.chain import Chain
from hocket.kernel.succession.quorums import agreed, binding, confirm_fault, is_quorum, lease_end
from hocket.kernel.vocabulary import JOB
from hocket.log import Log, Transaction
from hocket.log.succession.leading import CONFIRMED, LeadRow, NamedNode, put_lead
from hocket.mesh import outgoing, peers
from hocket.mesh.outgoing import PAGE_BYTES_MAX
from hocket.mesh.peer_exchange import PUSH_OPS_MAX
from hocket.mesh.succession.witness import read_promised
from hocket.mesh.succession.words import (
    WITNESS,
    Settled,
    WitnessAnswer,
    WitnessAsk,
    author_of,
    in_pages,
    read,
    sequence_of,
    write,
)
from hocket.mesh.sync import Exchanges
from hocket.mesh.wire import look, note
from hocket.store import Session, Stage
from hocket.work.environment import Environment

# A named node must answer within this time, or half of the silence if that is less.
ASK_S = 5.0
# After a failure the next try comes at the next renewal, or after this long if that is later.
RETRY_S = 0.25
# Before a succession counts as acted under, processes that did not know of it yet have ended what they had begun.
SETTLE_S = 2.0
FOREVER = float("inf")
# More than any time: a named node that has been sent a part is asked again at once.
_MORE = b"\xff" * 20
# The most bytes of entries in a request.
PUSH_BYTES = PAGE_BYTES_MAX - 64 * 1024


@dataclass
class _Named:
    """What the coordinator knows of a named node."""

    node: int
    has: bytes = b""
    frontier: Frontier | None = None
    promised_until: float = -FOREVER
    knows: bytes = b""
    fault: str = "not asked yet"
    answered_ms: int | None = None
    # How many pages of the entries of coordinators before it has.
    tail_pages: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def shown(self) -> NamedNode:
        return NamedNode(self.node, self.answered_ms, self.has.hex(), self.fault)


class Leading:
    """The coordinator in one tenure. Run it in the process that syncs; cancel it when another tenure begins."""

    def __init__(
        self,
        access: NodeAccess,
        exchanges: Exchanges,
        environment: Environment,
        key: SigningKey,
        tenure: bytes,
        emit: Emit,
    ) -> None:
        self._access, self._exchanges, self._environment = access, exchanges, environment
        self._log: Log = access.log
        self._key, self._tenure, self._emit = key, tenure, emit
        self._named: dict[int, _Named] = {}
        self._news = asyncio.Event()
        self._is_held: bool | None = None
        self._after_ms = 0
        # When the newest succession may count as acted under, and the last op that must be confirmed then.
        self._settle_at: tuple[bytes, float, bytes | None] | None = None
        self._tails: list[list[bytes]] | None = None
        self._taken_over = False

    async def run(self) -> None:
        tasks: dict[int, asyncio.Task[None]] = {}
        watching = asyncio.create_task(self._watch())
        try:
            while True:
                chain = await look(self._access, lambda session: self._log.permissions(session).chain)
                if chain.head is None or chain.head.op_id != self._tenure:
                    return
                wanted = {node for each in chain.in_question[-2:] for node in each.nodes} - {self._log.node}
                for node in wanted - tasks.keys():
                    self._named[node] = _Named(node)
                    tasks[node] = asyncio.create_task(self._attend(self._named[node]))
                for node in tasks.keys() - wanted:
                    tasks.pop(node).cancel()
                    del self._named[node]
                self._after_ms = min((each.after_ms for each in chain.in_question if each.nodes), default=0)
                left = await self._conclude()
                for each in (watching, *tasks.values()):
                    if each.done():
                        each.result()
                self._news.clear()
                try:
                    async with asyncio.timeout(left):
                        await self._news.wait()
                except TimeoutError:
                    pass
        finally:
            watching.cancel()
            for task in tasks.values():
                task.cancel()
            await asyncio.wait([watching, *tasks.values()])

    async def _watch(self) -> None:
        """Wakes those that send when there is something to send."""
        with closing(self._access.listen(about(LOG))) as changes:
            while True:
                for each in self._named.values():
                    each.wake.set()
                self._news.set()
                await changes.wait(self._renewal_s)

    @property
    def _renewal_s(self) -> float:
        return max(RETRY_S, self._after_ms / 3000)

    # One named node.

    async def _attend(self, named: _Named) -> None:
        while True:
            named.wake.clear()
            try:
                async with asyncio.timeout(min(ASK_S, max(RETRY_S, self._after_ms / 2000))):
                    is_even = await self._ask(named)
            except StoreError:
                raise
            except (HocketError, Malformed) as error:
                is_even, named.fault = None, str(error)
            except TimeoutError:
                is_even, named.fault = None, "no answer in time"
            if is_even is not True:
                # What it has may be more than it could say.
                named.frontier = None if is_even is None else named.frontier
            self._news.set()
            if is_even is None:
                await asyncio.sleep(RETRY_S + self._renewal_s / 4 * self._environment.chance.random())
            elif is_even:
                try:
                    async with asyncio.timeout(self._renewal_s * self._environment.chance.uniform(0.8, 1.0)):
                        await named.wake.wait()
                except TimeoutError:
                    pass

    async def _ask(self, named: _Named) -> bool | None:
        """Sends what the named node lacks. Returns whether it has everything then; None if it confirms nothing."""
        address = await look(self._access, lambda session: peers.address_of(session, named.node))
        if address is None:
            raise Unreachable("no address of it is known; add it with `hocket mesh peers add`")
        ask, last = await self._access.call(lambda: self._prepared(named))
        sent = self._environment.monotonic()
        await self._exchanges.transport.revive(address)
        client = await self._exchanges.client(address)
        answer = read(await client.ask_named(WITNESS, write(ask)), WitnessAnswer)
        if client.node != named.node:
            raise Unreachable(f"node {node_text(client.node or 0)} answers at its address")
        named.answered_ms = self._environment.physical_ms()
        named.knows = answer.succession
        named.fault = answer.fault
        if answer.fault:
            named.frontier = None
            return None
        named.promised_until = max(named.promised_until, lease_end(sent, answer.after_ms))
        named.has = max(named.has, answer.has)
        if named.frontier is not None and named.tail_pages < len(self._tails or ()) and ask.aside:
            named.tail_pages += 1
        named.frontier = decode_frontier(answer.frontier) | {self._log.node: unpack(answer.has)}
        return answer.has >= last

    def _prepared(self, named: _Named) -> tuple[WitnessAsk, bytes]:
        """What to send to a named node, and the time of this node's last op now, if it will have that."""
        log = self._log
        with log.store.read() as session:
            chain = log.permissions(session).chain
            row = log.lead.row(session, chain)
            settled = None if row.settled_id is None else Settled.signed(self._key, self._tenure, row.settled_id)
            head, last = chain.head, session.latest_of(log.author)[0]
            if self._tails is None:
                self._tails = in_pages(_tails(log, session, chain))
            begun = session.op(self._tenure) if head is not None and head.is_takeover else None
            clock_ms = log.lead.judging_ms(session, log.permissions(session), log.physical())
        ask = WitnessAsk(self._tenure, b"" if begun is None else log.signed(begun.body), settled, clock_ms)
        if named.frontier is None:
            return ask, _MORE  # first it says what it has
        if named.tail_pages < len(self._tails):
            return replace(ask, aside=sequence_of(self._tails[named.tail_pages])), _MORE
        reader = outgoing.reader(log, named.node)
        if not reader.reads_everything:
            raise Unreachable("it may not read every op")
        out = outgoing.page(log, reader, named.frontier, limit=PUSH_OPS_MAX, size=PUSH_BYTES, is_named=True)
        own = [body for body in out.bodies if author_of(body) == log.node]
        others = [body for body in out.bodies if author_of(body) != log.node]
        return replace(ask, aside=sequence_of(own), others=sequence_of(others)), last

    # What follows.

    async def _conclude(self) -> float:
        """Notes what the answers mean. Returns the seconds until it may mean something else."""
        row, is_new = await note(self._access, self._noted)
        if is_new:
            self._environment.bus.publish(about(CONFIRMED))
        now = self._environment.monotonic()
        fault = await look(self._access, lambda session: self._log.lead.fault(session, self._log.permissions(session)))
        if fault is None and not self._is_held:
            self._is_held = True
            await self._began(row)
        elif fault is not None and self._is_held is not False:
            if self._is_held:
                self._emit(LeadLost(fault))
            self._is_held = False
        return max(0.05, min(self._renewal_s, row.until - now if row.until > now else self._renewal_s))

    def _noted(self, session: Session) -> tuple[LeadRow, bool]:
        log = self._log
        permissions = log.permissions(session)
        chain = permissions.chain
        before = log.lead.row(session, chain)
        if before.until > self._environment.monotonic() + self._after_ms / 1000:
            before = replace(before, until=0.0)  # from before the machine was restarted
        own_last = session.latest_of(log.author)[0]
        bound = binding(chain, before.settled_id)
        has = {each.node: int.from_bytes(each.has) for each in self._named.values() if each.has}
        until = {each.node: each.promised_until for each in self._named.values()}
        if confirm_fault(chain, self._tenure, read_promised(session).vote) is None:
            has[log.node], until[log.node] = int.from_bytes(own_last), FOREVER
        reached, promised = agreed(has, bound), agreed(until, bound)
        row = before
        if reached is not None:
            row = replace(row, confirmed=max(before.confirmed_at, reached.to_bytes(20)).hex())
        if promised is not None and promised > before.until:
            row = replace(row, until=promised)
        if confirm_fault(chain, self._tenure, read_promised(session).vote) is not None:
            row = replace(row, until=0.0)
        if (settled := self._settled(chain, before, row, own_last)) is not None:
            row = replace(row, settled=settled.hex())
        shown = tuple(each.shown for _, each in sorted(self._named.items()))
        is_new = (row.confirmed, row.settled) != (before.confirmed, before.settled) or (
            row.until > before.until and before.until < self._environment.monotonic()
        )
        is_renewed = row.until > before.until + self._after_ms / 10_000 or row.until < before.until
        is_told = [each.fault for each in shown] != [each.fault for each in before.named]
        if is_new or is_renewed or is_told or not before.named:
            put_lead(session, replace(row, named=shown))
        return row, is_new

    def _settled(self, chain: Chain, before: LeadRow, row: LeadRow, own_last: bytes) -> bytes | None:
        """The newest succession, once this node may act under it alone: enough nodes of the one before know it, and
        enough of its own have everything that was told before.
        """
        newest = chain.in_question[-1]
        if before.settled_id == newest.op_id:
            return None
        now = self._environment.monotonic()
        if self._settle_at is None or self._settle_at[0] != newest.op_id:
            self._settle_at = newest.op_id, now + SETTLE_S, None
        _, at, until = self._settle_at
        if now >= at and until is None:
            until = own_last
            self._settle_at = newest.op_id, at, until
        knowing = {each.node for each in self._named.values() if each.knows == newest.op_id} | {self._log.node}
        old = [each for each in binding(chain, before.settled_id) if each.op_id != newest.op_id]
        if until is None or not is_quorum(old, knowing) or (newest.nodes and row.confirmed_at < until):
            return None
        return newest.op_id

    async def _began(self, row: LeadRow) -> None:
        """This node may decide, for the first time or again."""
        chain = await look(self._access, lambda session: self._log.permissions(session).chain)
        head = chain.head
        assert head is not None
        if head.is_takeover and not self._taken_over:
            await self._access.call(lambda: _take_in(self._log))
        offers = await self._access.call(lambda: decide_open(self._log))
        if head.is_takeover and not self._taken_over:
            before = next((each for each in chain.tenures if each.op_id == head.follows), None)
            self._emit(TakenOver(node_text(0 if before is None else before.node), head.term, offers))
        else:
            self._emit(LeadHeld())
        self._taken_over = True
        for each in self._named.values():
            each.wake.set()


def _tails(log: Log, session: Session, chain: Chain) -> list[bytes]:
    """The entries of the coordinators before, up to where each counts, that are on no log yet."""
    found: list[bytes] = []
    for node, last in _ends(chain):
        author = node.to_bytes(8, "big")
        on_log = session.latest_of(author)[0]
        found += [row.body for row in session.witnessed_of(author, on_log) if row.hlc <= pack(last)]
    return found


def _ends(chain: Chain) -> list[tuple[int, Hlc]]:
    """Up to when each coordinator before this one counts, in the order of tenures."""
    return [
        (before.node, pinned_time(after.pin, before.node))
        for before, after in zip(chain.tenures, chain.tenures[1:], strict=False)
        if after.is_takeover and after.pin is not None
    ]


def _take_in(log: Log) -> None:
    """Takes the entries of the coordinators before into the log: they are confirmed with this node's takeover."""
    with log.store.read() as session:
        bodies = _tails(log, session, log.permissions(session).chain)
    log.admit([(body, decode(body)) for body in bodies])
    with log.store.write() as session:
        for node, last in _ends(log.permissions(session).chain):
            author = node.to_bytes(8, "big")
            session.drop_witnessed(author, min(pack(last), session.latest_of(author)[0]))


# The offers that are open when a node begins to decide: those that the coordinator before it has not decided, and those
# whose acceptance nobody was told of.

# Open offers that one transaction decides on.
STEP_OPS = 500


def decide_open(log: Log) -> int:
    """Decides on every open offer about something that has not ended. Returns how many were accepted."""
    log.settle()
    with log.store.read() as session:
        ids = [op.id for op in _open_offers(session)]
    accepted = 0
    for first in range(0, len(ids), STEP_OPS):
        step = ids[first : first + STEP_OPS]

        def decide(tx: Transaction, step: list[bytes] = step) -> int:
            rows = tx.session.ops_by_id(step)
            return accept(tx, [decode(row.body) for row in rows if row.reason == Reason.OFFERED])

        accepted += log.run_unconfirmed(decide)
    return accepted


def _open_offers(session: Session) -> list[Op]:
    rows = session.ops_refused_for((Reason.OFFERED,))
    ids = {row.key for row in rows if row.family == JOB and row.key is not None}
    ended = {entry.job.id for entry in session.jobs_by_id(sorted(ids)) if entry.stage is Stage.DONE}
    return sorted((decode(row.body) for row in rows if row.key not in ended), key=lambda op: op.timestamp)
