"""Three nodes, of which the first is the coordinator and the others may follow it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hocket.kernel.arbitration import Reason
from hocket.kernel.vocabulary import SetSuccession
from hocket.log.leading import LeadRow, read_lead
from tests.mesh.world import PATIENCE_S, Place, world

AFTER_MS = 2_000


def succeed(places: Sequence[Place], quorum: int = 2, after_ms: int = AFTER_MS) -> bytes:
    """The owner names them in this order."""
    log = places[0].log
    head = log.permissions().chain.head
    assert head is not None
    op = log.run(lambda tx: tx.author(SetSuccession(head.op_id, tuple(p.id for p in places), quorum, after_ms)))
    assert not isinstance(op, Reason), op
    return op.id


def lead_of(place: Place) -> LeadRow | None:
    with place.log.store.read() as session:
        return read_lead(session)


def leads(place: Place) -> bool:
    log = place.log
    with log.store.read() as session:
        permissions = log.permissions(session)
        return log.lead.is_shared_out(permissions) and log.lead.fault(session, permissions) is None


def is_settled(place: Place) -> bool:
    row = lead_of(place)
    return leads(place) and row is not None and bool(row.settled)


async def wait_for(what: str, test: object) -> None:
    assert callable(test)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not await asyncio.to_thread(test):
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"never: {what}") from None


@asynccontextmanager
async def successors(directory: Path, count: int = 3) -> AsyncIterator[list[Place]]:
    """Nodes that know each other's addresses and sync."""
    async with world(directory, *("abcde"[:count])) as places:
        for one in places:
            for other in places:
                if one is not other:
                    one.befriend(other.address)
        for place in places:
            place.keep_in_touch()
        ids = {place.id for place in places}

        def have_met() -> bool:
            def met(place: Place) -> set[int]:
                with place.log.store.read() as session:
                    known = {int.from_bytes(each.node, "big") for each in session.peers() if each.node is not None}
                    return known | {int.from_bytes(node, "big") for node in session.nodes()} if len(known) == count - 1 else set()

            return all(met(place) >= ids - {place.id} for place in places)

        await wait_for("every node knows every other", have_met)
        yield places
