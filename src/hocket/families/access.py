"""A node as its parts see it: the worker, the maintenance, the exchanges with peers, the requests of families and the
job handles all get the same object. `node.Node` is the real one; a simulated node runs on virtual time.

The arbiter decides, once, what happens to a job, a lock, a message or a row. For a single home, and for the
coordinator, it is the node's own store: a transaction is decided when it commits. For any other node it is the
coordinator: the transaction writes offers, and the coordinator decides on them when it receives them. Both answer
alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from hocket.bus.hints import ANYTHING, Changes
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import pack
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import ACCEPTANCES, number_of, subject_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hocket.bus.listener import Listener
    from hocket.families.blobs import Blobs
    from hocket.families.jobs.requests import Decision, Offer, Result
    from hocket.families.jobs.rules import Job
    from hocket.log import Log, Transaction
    from hocket.store import Session

T = TypeVar("T")

_ACCEPTANCES = tuple(number_of(payload) for payload in ACCEPTANCES)


class Arbiter(Protocol):
    async def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        """Runs a request in a transaction of the node's own log."""

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        """Sends offers to the arbiter; returns for each the job if accepted, else the reason. Raises Unreachable if the
        arbiter could not be asked: then nothing is known to be decided. An urgent request goes out even if the arbiter
        has not answered for a while.
        """


class NodeAccess(Arbiter, Protocol):
    """Requests and queries do not block the event loop. Requests that wait at the same time are committed together."""

    @property
    def log(self) -> Log: ...

    @property
    def blobs(self) -> Blobs: ...

    async def read(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view whose roster has every submitted job."""

    async def peek(self, query: Callable[[Session], T]) -> T:
        """Runs a query on one consistent view, without waiting until the roster has the newest submits."""

    async def call(self, work: Callable[[], T]) -> T:
        """Runs a long blocking function off the event loop, in parallel with requests and queries."""

    async def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""

    def listen(self, topics: Changes) -> Listener:
        """Listens for every change of this node that matches the topics, from now on."""

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        """Calls `look` now and after each change of the topics, until it returns a value. Raises TimeoutError."""


async def decided(arbiter: Arbiter, request: Callable[[Transaction], Sequence[Result]]) -> list[Decision]:
    """The decisions on a request."""
    from hocket.families.jobs.requests import Offer

    results = await arbiter.run(request)
    offers = [result for result in results if isinstance(result, Offer)]
    decisions = iter(await arbiter.consult(offers) if offers else ())
    return [next(decisions) if isinstance(result, Offer) else result for result in results]


class Written(NamedTuple):
    """An op that this node wrote, and whether it only counts if the arbiter accepts it."""

    op: Op
    is_offer: bool


def written(tx: Transaction, op: Op | Reason) -> Written | Reason:
    return op if isinstance(op, Reason) else Written(op, tx.is_offer(op))


async def decide(access: NodeAccess, request: Callable[[Transaction], Op | Reason]) -> bytes | Reason:
    """Writes the op of the request and has it decided. Returns the id under which it counts: its own, or that of the
    arbiter's acceptance. Raises Unreachable if the arbiter cannot be asked: the offer then waits here, and is decided
    when the arbiter can be reached.
    """
    said = await access.run(lambda tx: written(tx, request(tx)))
    if isinstance(said, Reason):
        return said
    if not said.is_offer:
        return said.op.id
    await access.consult(())
    found = await access.peek(lambda session: acceptance(session, said.op))
    return found or Reason.NOT_ACCEPTED


def acceptance(session: Session, offered: Op) -> bytes | None:
    """The op by which the arbiter has accepted an offer, if it has."""
    subject = subject_of(offered.payload)
    assert subject is not None
    for row in session.ops_about(subject, after=pack(offered.timestamp)):
        if row.variant in _ACCEPTANCES and not row.reason and decode(row.body).payload.offer == offered.id:  # type: ignore[union-attr]
            return row.id
    return None
