"""The coordinator is gone, and a named node follows it: real nodes, real HTTP."""

import asyncio
from pathlib import Path

from tests.mesh.succession.successors import is_settled, lead_of, leads, succeed, successors, wait_for


def test_the_coordinator_leads_with_a_quorum_and_the_next_follows_when_it_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        async with successors(tmp_path) as (a, b, c):
            succeed([a, b, c])
            await wait_for("the coordinator has the lead", lambda: is_settled(a))
            a.submit(1)
            await a.stop_serving()
            assert a._syncing is not None
            a._syncing.cancel()
            await wait_for("the next node has the lead", lambda: leads(b))
            print(lead_of(b), b.notices, c.notices)

    asyncio.run(run())
