"""Locks that end with their process. A request of a running program is noted with the OS lock that its process holds.
If that process is dead, or has given the request up, any process of the node releases what the request got. Each node
also releases its own holds that are long past their deadline, so that nothing is left of them.

`DeadlockWatch` finds out whether agents that seem to wait for each other really do. A killed agent stays in the queue
until its node withdraws its request or the request ends by itself. So a wait makes a deadlock only if its agent is
known to live: by the OS lock of its process if it is of this node, otherwise because it has said again that it waits.

A claim of a message can be noted in the same way: it is returned when its process has ended.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hocket.errors import StoreError
from hocket.families.access import NodeAccess
from hocket.families.inbox.facts import ClaimMessage
from hocket.families.liveness import SignOfLife
from hocket.families.locks.facts import LOCK, AcquireLocks, LeaveQueue, ReleaseLocks
from hocket.families.locks.rules import LOCKS, Hold, Wait
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import AcceptOffer, Subject
from hocket.log import Transaction
from hocket.store import BoundRequest, Session, WorkerRow

if TYPE_CHECKING:
    from hocket.events import Emit
    from hocket.families.liveness import ProcessEnvironment

from typing import NamedTuple

from msgspec.structs import replace

from hocket.families.locks.decisions import read_scope
from hocket.families.locks.projector import waited_in
from hocket.families.locks.rules import Agent, Scope, deadlock
from hocket.kernel.clock import Hlc

# How often a long-running process looks for locks of dead processes, if a process has asked for one, and otherwise; and
# for expired ones.
ROUND_S = 0.25
QUIET_S = 1.0
EXPIRED_S = 60.0
PROCESS_ENDED = "the process of its agent has ended"


class LockProcesses:
    """Which requests end with this process, and which ended with another. Close it when the process needs no lock."""

    def __init__(self, environment: "ProcessEnvironment") -> None:
        self._environment = environment
        self._name = ""
        self._sign: SignOfLife | None = None
        self._has_swept = False
        self.is_quiet = False
        """Whether there was no request at the last look."""

    @property
    def fd(self) -> int | None:
        """A process that inherits it keeps the requests of this process alive."""
        return None if self._sign is None else self._sign.fd

    def close(self) -> None:
        if self._sign is not None:
            self._sign.close()
            self._sign = None

    def bind(self, tx: Transaction, op_id: bytes, scope: str, lasts_ms: int) -> None:
        """The request ends with this process, or the claim of a message, which is in no scope."""
        if self._sign is None:
            self._name = self._environment.name("lock")
            self._sign = self._environment.liveness.announce(self._name)
        place, node = self._environment.liveness.place, tx.node.to_bytes(8, "big")
        tx.session.put_lock_request(BoundRequest(op_id, node, scope, self._name, tx.now + lasts_ms, place))

    def free(self, tx: Transaction, op_id: bytes) -> None:
        """The request has ended, or no longer depends on this process."""
        tx.session.drop_lock_request(op_id)

    def rebind(self, tx: Transaction, before: bytes, op_id: bytes) -> None:
        """Another op stands for the request from now on."""
        for request in tx.session.lock_requests(tx.node.to_bytes(8, "big")):
            if request.op == before:
                tx.session.drop_lock_request(before)
                tx.session.put_lock_request(request._replace(op=op_id))

    def give_up(self, tx: Transaction, op_id: bytes) -> None:
        """The process waits for the request no longer: the node releases what it got, or withdraws it."""
        for request in tx.session.lock_requests(tx.node.to_bytes(8, "big")):
            if request.op == op_id:
                release_ended(tx, request)

    def ended(self, session: Session, node: int) -> list[BoundRequest]:
        """The requests of this node that were given up, or whose process is dead, if there may be something to do."""
        requests = session.lock_requests(node.to_bytes(8, "big"))
        self.is_quiet = not requests
        return [each for each in requests if self._is_ended(session, each)]

    def _is_ended(self, session: Session, request: BoundRequest) -> bool:
        if not request.process:
            return request.until < self._environment.physical_ms() or _has_got(session, request)
        return self._is_running(request) is False

    def _is_running(self, request: BoundRequest) -> bool | None:
        """Whether the process of a request runs; None if that cannot be seen from here."""
        if request.process == self._name:
            return True
        worker = WorkerRow(0, request.process, 0, 0, request.node, 0, request.place)
        return self._environment.liveness.is_running(worker)

    def running(self, session: Session, node: int, waits: Iterable[Wait]) -> set[bytes]:
        """The ops of those waits of this node whose process surely runs."""
        requests = session.lock_requests(node.to_bytes(8, "big"))
        running = {each.op for each in requests if each.process and self._is_running(each)}
        own = [wait.op for wait in waits if wait.node == node]
        return {op for op in own if running and (op in running or _accepted_offer(session, op) in running)}

    async def sweep_once(self, access: NodeAccess) -> None:
        """Sweeps before the first request of this process. Another process of the same agent may have died."""
        if not self._has_swept:
            await self.sweep_dead(access)

    async def sweep_dead(self, access: NodeAccess) -> int:
        """Releases what ended requests got, and gives how many ops that took. Writes nothing if there are none."""
        self._has_swept = True
        ended = await access.peek(lambda session: self.ended(session, access.log.node))
        if not ended:
            return 0
        given_up = {each.op for each in ended}
        dead = {each.process for each in ended if each.process}

        def release(tx: Transaction) -> int:
            # A process may have made a request after this look at the store began, and before it died.
            requests = tx.session.lock_requests(tx.node.to_bytes(8, "big"))
            return sum(release_ended(tx, each) for each in requests if each.op in given_up or each.process in dead)

        released = await access.run(release)
        for process in dead:
            self._environment.liveness.discard(process)
        return released


def release_ended(tx: Transaction, request: BoundRequest) -> bool:
    """Releases what the request got. A request that is not decided yet is withdrawn, and is remembered as given up
    until what it may have got has ended by itself.
    """
    if (claim := _claim_of_message(tx, request.op)) is not None:
        from hocket.families.inbox.requests import hand_back  # few commands about locks need it

        tx.session.drop_lock_request(request.op)
        return isinstance(hand_back(tx, claim.message_id, claim.agent, 0, PROCESS_ENDED, request.op), Op)
    scope = tx.projection.projectors[LOCK].state(request.scope.encode())
    found = [each for each in (*scope.holds, *scope.waits) if _is_for(tx, each, request.op)] if scope else []
    for each in found:
        if isinstance(each, Hold):
            tx.author(ReleaseLocks(request.scope, each.agent, each.fence))
        else:
            tx.author(LeaveQueue(request.scope, each.agent, each.op))
    if found or request.until < tx.now:
        tx.session.drop_lock_request(request.op)
    elif request.process:
        _withdraw(tx, request)
        tx.session.put_lock_request(request._replace(process=""))
    return bool(found)


def _claim_of_message(tx: Transaction, op_id: bytes) -> ClaimMessage | None:
    op, _ = tx.projection.known(op_id)
    if op is not None and isinstance(op.payload, AcceptOffer):
        op, _ = tx.projection.known(op.payload.offer)
    return op.payload if op is not None and isinstance(op.payload, ClaimMessage) else None


def _withdraw(tx: Transaction, request: BoundRequest) -> None:
    """Tells the arbiter, which gets this op together with the request, not to accept the request."""
    op, _ = tx.projection.known(request.op)
    if op is not None and isinstance(op.payload, AcquireLocks) and tx.projection.arbiter(tx.latest) != tx.node:
        tx.author(LeaveQueue(request.scope, op.payload.agent, request.op))


def _has_got(session: Session, request: BoundRequest) -> bool:
    """Whether a hold or a wait comes from the request."""
    state = session.subject_state(Subject(LOCK, request.scope.encode()))
    scope = None if state is None else LOCKS.decode(state)
    found: tuple[Hold | Wait, ...] = () if scope is None else (*scope.holds, *scope.waits)
    own = (each.op for each in found if each.node == int.from_bytes(request.node, "big"))
    return any(request.op in (op, _accepted_offer(session, op)) for op in own)


def _accepted_offer(session: Session, op_id: bytes) -> bytes | None:
    row = session.op(op_id)
    payload = None if row is None else decode(row.body).payload
    return payload.offer if isinstance(payload, AcceptOffer) else None


def _accepts(op: Op, offer: bytes) -> bool:
    return isinstance(op.payload, AcceptOffer) and op.payload.offer == offer


def _is_for(tx: Transaction, each: Hold | Wait, op_id: bytes) -> bool:
    """Whether it comes from this op of this node: by itself, or by the arbiter's acceptance of it."""
    if each.node != tx.node or each.op == op_id:
        return each.node == tx.node
    op, _ = tx.projection.known(each.op)
    return op is not None and _accepts(op, op_id)


def release_expired(tx: Transaction) -> int:
    """Releases the holds of this node that are past their deadline by the machine's own clock."""
    released = 0
    for key in tx.session.subjects_with_state(LOCK):
        scope = tx.projection.projectors[LOCK].state(key)
        for hold in () if scope is None else scope.holds:
            if hold.node == tx.node and hold.deadline < tx.physical:
                tx.author(ReleaseLocks(key.decode(), hold.agent, hold.fence))
                released += 1
    return released


class LockSweep:
    """Sweeps in a long-running process."""

    def __init__(
        self, access: NodeAccess, environment: "ProcessEnvironment", emit: "Emit", quiet_s: float = QUIET_S
    ) -> None:
        self._access, self._environment, self._emit, self._quiet_s = access, environment, emit, quiet_s
        self._processes = LockProcesses(environment)
        # A command that takes a lock needs no events.
        from hocket.events.troubles import Troubles

        self._troubles = Troubles(emit, environment.monotonic)
        self._looked_at = environment.monotonic()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        import asyncio

        from hocket.events.workers import StoreUnavailable

        while True:
            round_s = self._quiet_s if self._processes.is_quiet else ROUND_S
            await asyncio.sleep(round_s * self._environment.chance.uniform(0.8, 1.2))
            try:
                with self._troubles.contained("locks", "releasing the locks of dead processes"):
                    await self.look()
            except StoreError as error:
                self._emit(StoreUnavailable(str(error)))

    async def look(self) -> None:
        await self._processes.sweep_dead(self._access)
        if self._environment.monotonic() - self._looked_at >= EXPIRED_S:
            self._looked_at = self._environment.monotonic()
            if await self._access.peek(self._has_expired):
                await self._access.run(release_expired)

    def _has_expired(self, session: Session) -> bool:
        now, node = self._environment.physical_ms(), self._access.log.node
        states = (session.subject_state(Subject(LOCK, key)) for key in session.subjects_with_state(LOCK))
        scopes = [LOCKS.decode(state) for state in states if state is not None]
        return any(hold.node == node and hold.deadline < now for scope in scopes for hold in scope.holds)


class Suspicion(NamedTuple):
    """Whether agents wait for each other if a request waits, and those of whom that is certain, in order."""

    is_suspected: bool
    agents: list[Agent]


class DeadlockWatch:
    """Watches the waits that stand against one request."""

    def __init__(self, processes: LockProcesses) -> None:
        self._processes = processes
        # When each wait would have ended when it was first seen. Only its agent can change that.
        self._first_until: dict[bytes, int] = {}

    def look(self, session: Session, scope_name: str, request: Wait, at: Hlc) -> Suspicion:
        scope = read_scope(session, scope_name) or Scope(0, (), (), at)
        others = waited_in(session, scope_name.encode())
        waits = [wait for each in (scope, *others) for wait in each.waits]
        for wait in waits:
            self._first_until.setdefault(wait.op, wait.until)
        if not deadlock(scope, request, at.wall, others):
            return Suspicion(False, [])
        live = self._processes.running(session, request.node, waits)
        live |= {wait.op for wait in waits if wait.until != self._first_until[wait.op]}
        certain, *certain_others = (_with_waits(each, live) for each in (scope, *others))
        return Suspicion(True, deadlock(certain, request, at.wall, certain_others))


def _with_waits(scope: Scope, live: set[bytes]) -> Scope:
    return replace(scope, waits=tuple(wait for wait in scope.waits if wait.op in live))
