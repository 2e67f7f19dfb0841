"""Three nodes, of which the first is the coordinator and the others may follow it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hocket.errors import Unreachable
from hocket.kernel.arbitration import Reason
from hocket.kernel.vocabulary import SetSuccession
from hocket.log.succession.leading import LeadRow, read_lead
from hocket.mesh.wire import Reply, Request
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
            place.port = int(place.address.rpartition(":")[2])  # type: ignore[attr-defined]
            place.keep_in_touch()
        ids = {place.id for place in places}

        def met(place: Place) -> set[int]:
            with place.log.store.read() as session:
                known = {int.from_bytes(each.node or b"", "big") for each in session.peers()}
                return known & {int.from_bytes(node, "big") for node in session.nodes()}

        def have_met() -> bool:
            return all(met(place) >= ids - {place.id} for place in places)

        await wait_for("every node knows every other", have_met)
        yield places


async def away(place: Place) -> None:
    """Nobody reaches the node, and it reaches nobody; its programs go on."""

    async def unreachable(address: str, request: Request) -> Reply:
        raise Unreachable(f"{address} cannot be reached: a test has cut it off")

    await place.stop_serving()
    place.real_send = place.exchanges.transport._transport.send  # type: ignore[attr-defined]
    place.exchanges.transport._transport.send = unreachable  # type: ignore[method-assign]


async def back(place: Place) -> None:
    place.exchanges.transport._transport.send = place.real_send  # type: ignore[attr-defined, method-assign]
    place.gate = place.services.gate()
    await place.serve(port=place.port)  # type: ignore[attr-defined]


async def lock(place: Place, key: str, agent: str) -> int:
    """The fence of a lock that stays held."""
    held = place.node.lock(key, agent=agent, ttl="10m", wait="30s")
    return (await held.__aenter__()).fence
