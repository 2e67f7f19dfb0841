"""The arbiter: the one place that decides, once, what happens to a job. For a single home, and for the coordinator, it
is the node's own store: a transaction is decided when it commits. For any other node it is the coordinator: the
transaction writes offers, and the coordinator decides on them when it receives them. Both have the same interface, and
both answer with the job's new state or the reason why not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hocket.log import Transaction
    from hocket.work.jobs import Offer, Result
    from hocket.work.pending_decisions import Decision

T = TypeVar("T")


class Arbiter(Protocol):
    async def run(self, request: Callable[[Transaction], T], *, beside: bool = False) -> T:
        """Runs a request in a transaction of the node's own log."""

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        """Sends offers to the arbiter; returns for each the job if accepted, else the reason. Raises Unreachable if the
        arbiter could not be asked: then nothing is known to be decided. An urgent request goes out even if the arbiter
        has not answered for a while.
        """


async def decided(arbiter: Arbiter, request: Callable[[Transaction], Sequence[Result]]) -> list[Decision]:
    """The decisions on a request."""
    from hocket.work.jobs import Offer

    results = await arbiter.run(request)
    offers = [result for result in results if isinstance(result, Offer)]
    decisions = iter(await arbiter.consult(offers) if offers else ())
    return [next(decisions) if isinstance(result, Offer) else result for result in results]
