"""The arbiter: the one place where it is decided, once, what happens to a job. For a home alone, and for the node that
is the coordinator, that is its own store: what a transaction writes is decided when it commits. For any other node it
is the coordinator: the transaction writes offers, and the coordinator decides on them when they are put to it. Both are
asked in the same way, and both answer with the job as it then is, or with the reason why not.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hocket.log import Transaction
from hocket.work.jobs import Offer, Result
from hocket.work.pending_decisions import Decision

T = TypeVar("T")


class Arbiter(Protocol):
    async def run(self, request: Callable[[Transaction], T]) -> T:
        """Runs a request in a transaction of the node's own log."""

    async def consult(self, offers: Sequence[Offer]) -> list[Decision]:
        """Puts offers to whoever decides on them; gives, for each, the job if it was accepted, else the reason. Raises
        Unreachable when nobody could be asked: then nothing is known to be decided.
        """


async def decided(arbiter: Arbiter, request: Callable[[Transaction], Sequence[Result]]) -> list[Decision]:
    """What a request does to jobs, once it is decided."""
    results = await arbiter.run(request)
    offers = [result for result in results if isinstance(result, Offer)]
    decisions = iter(await arbiter.consult(offers) if offers else ())
    return [next(decisions) if isinstance(result, Offer) else result for result in results]
