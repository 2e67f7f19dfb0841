"""The offers that wait for the arbiter: each is decided once, whatever comes between decision and handing out."""

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from hocket.families.jobs.requests import Decision, Offer
from hocket.kernel.arbitration import Reason
from hocket.work.pending_decisions import PendingDecisions


class StubEnvironment:
    monotonic = staticmethod(time.monotonic)
    chance = random.Random(1)


@pytest.mark.req("LW-39")
def test_an_offer_is_not_asked_about_again_before_its_decision_is_handed_out() -> None:
    async def run() -> None:
        asked: list[int] = []
        heard: list[Decision] = []

        async def consult(offers: Sequence[Offer], is_urgent: bool) -> list[Decision]:
            asked.append(len(offers))
            return [Reason.NOT_ACCEPTED] * len(offers)

        pending_decisions = PendingDecisions(consult, StubEnvironment(), lambda: None, lambda text: None)  # type: ignore[arg-type]
        pending_decisions.add(Offer(b"o" * 16, b"j" * 16), lambda decision, dropped: heard.append(decision))
        pending_decisions.ask(time.monotonic())
        while not asked or pending_decisions._asking is not None:
            await asyncio.sleep(0)
        pending_decisions.ask(time.monotonic())
        await asyncio.sleep(0.01)
        pending_decisions.settle()
        pending_decisions.settle()
        assert asked == [1] and heard == [Reason.NOT_ACCEPTED] and pending_decisions.is_empty

    asyncio.run(run())
