"""What agents of the owner's node do with locks, messages, rows and its availability, while a sharer changes rows; and
what must hold all the same, by what the node has answered: no lock is given while another agent surely holds it, no
fence comes twice or goes down, and no message is given again while it is leased, or after it was acknowledged.
"""

import random
from collections.abc import Callable

import apsw
import psycopg

from hocket.errors import HocketError
from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.requests import MessageDraft
from hocket.families.locks.decisions import scope_in
from hocket.families.locks.facts import AcquireLocks, LockMode, ReleaseLocks
from hocket.families.rows.facts import ROW, PutRow, Strategy
from hocket.families.rows.rules import RowState
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import Subject
from hocket.log import Transaction
from tests.trust.sharer import SharedMesh

# What may happen to the owner because of the sharer: it stops.
FAILURES = (HocketError, ValueError, LookupError, AssertionError, psycopg.Error, apsw.Error)
LONG_MS = 10_000_000
AGENTS = ("one", "two")
KEYS = ("k", "k", "l")


class Violated(AssertionError):
    pass


class AgentsJudge:
    def __init__(self, mesh: SharedMesh, rng: random.Random) -> None:
        self._mesh, self._rng = mesh, rng
        self._holders: dict[str, tuple[str, int]] = {}
        self._fence = 0
        self._sent: dict[bytes, str] = {}
        self._leased: dict[bytes, str] = {}
        self._ended: set[bytes] = set()
        # What the node has written last; empty if that failed, so that nobody knows.
        self._value: list[bytes | None] = [None]
        self._availability = [Availability.ACTIVE]
        self._ops: dict[bytes, tuple[object, ...]] = {}
        self._permissions = mesh.owner.log.permissions().fingerprint
        self.is_over = False
        self.acts: tuple[Callable[[], None], ...] = (
            *(self._acquire, self._acquire, self._release, self._send, self._claim, self._claim, self._acknowledge),
            *(self._write, self._look, self._drain),
        )

    def look_around(self) -> None:
        """Whoever may delete ops and grants can undo what they say: then this game is over."""
        found = {bytes(row[0]): row for row in self._mesh.sql(self._columns)}
        if any(found.get(op_id) != row for op_id, row in self._ops.items()):
            self.is_over = True
        try:
            if self._mesh.owner.log.permissions().fingerprint != self._permissions:
                self.is_over = True
        except FAILURES:
            self.is_over = True

    def note(self) -> None:
        """Remembers the ops that are there."""
        for row in self._mesh.sql(self._columns):
            self._ops.setdefault(bytes(row[0]), row)

    @property
    def _columns(self) -> str:
        settled = "" if self._mesh.kind == "postgres" else ", settled"
        return f"SELECT id, hlc, variant, family, key, body{settled} FROM ops"

    def _acquire(self) -> None:
        agent, key = self._rng.choice(AGENTS), self._rng.choice(KEYS)

        def request(tx: Transaction) -> int | None:
            op = tx.author(AcquireLocks("", (key,), agent, LockMode.EXCLUSIVE, LONG_MS, 0))
            if not isinstance(op, Op):
                return None
            scope = scope_in(tx, "")
            assert scope is not None
            return next(hold.fence for hold in scope.holds if hold.op == op.id)

        fence = self._mesh.owner.log.run(request)
        if fence is None:
            return
        if (holder := self._holders.get(key)) is not None and holder[0] != agent:
            raise Violated(f"{agent} gets {key}, which {holder[0]} holds")
        if fence <= self._fence:
            raise Violated(f"fence {fence} after {self._fence}")
        self._holders[key], self._fence = (agent, fence), fence

    def _release(self) -> None:
        if not self._holders:
            return
        key = self._rng.choice(sorted(self._holders))
        agent, fence = self._holders.pop(key)
        self._mesh.owner.log.run(lambda tx: tx.author(ReleaseLocks("", agent, fence)))

    def _send(self) -> None:
        to = self._rng.choice(AGENTS)
        draft = MessageDraft(to, b"hello", "writer")
        self._sent[self._mesh.owner.log.run(lambda tx: inbox.send(tx, None, draft))] = to  # type: ignore[arg-type]

    def _claim(self) -> None:
        agent = self._rng.choice(AGENTS)
        for each in self._mesh.owner.log.run(lambda tx: inbox.claim(tx, agent, 3, LONG_MS)).taken:
            if self._sent.get(each.message_id) != agent:
                raise Violated(f"{agent} gets a message that is not for it")
            if each.message_id in self._leased or each.message_id in self._ended:
                raise Violated(f"{agent} gets message {each.message_id.hex()} again")
            self._leased[each.message_id] = agent

    def _acknowledge(self) -> None:
        if not self._leased:
            return
        message_id = self._rng.choice(sorted(self._leased))
        agent = self._leased.pop(message_id)
        self._ended.add(message_id)
        self._mesh.owner.log.run(lambda tx: inbox.acknowledge(tx, message_id, agent))

    def _write(self) -> None:
        value = b"%d" % self._rng.getrandbits(30)
        known, self._value = self._value, []

        def request(tx: Transaction) -> Op | Reason:
            state: RowState | None = tx.state(Subject(ROW, b"t/k"))
            _check_row(state, known)
            return tx.author(PutRow("t/k", "one", None if state is None else state.op, value, Strategy.TAKE_LEFT))

        self._value = [value] if isinstance(self._mesh.owner.log.run(request), Op) else known

    def _look(self) -> None:
        self._mesh.owner.log.run(lambda tx: _check_row(tx.state(Subject(ROW, b"t/k")), self._value))
        node = self._mesh.sharer.log.node
        found = self._mesh.owner.log.run(lambda tx: tx.projection.availability(node))
        if self._availability and found is not self._availability[0]:
            raise Violated(f"the sharer's node is {found}, not {self._availability}")

    def _drain(self) -> None:
        node, wanted = self._mesh.sharer.log.node, self._rng.choice(tuple(Availability))
        self._availability.clear()
        self._mesh.owner.log.run(lambda tx: set_availability(tx, node, wanted, ""))
        self._availability.append(wanted)


def _check_row(state: RowState | None, known: list[bytes | None]) -> None:
    if known and (None if state is None else state.value) != known[0]:
        raise Violated(f"the row is {state}, not {known}")
