"""What a listener can make a sender of parts do is bounded."""

import asyncio

import pytest

from hocket.bus.messages import MemoryMessages, MemoryServer, MessageQueue
from hocket.bus.signed import SignedMessages
from hocket.families.jobs.parts import encode_wanted
from hocket.kernel.ids import node_id
from hocket.kernel.keys import SigningKey
from hocket.node import job_stream
from hocket.node.job_stream import PartSender, parts_subject, wanted_subject
from hocket.work.run_outputs import RunParts

MESH, JOB = "did:key:zMesh", b"j" * 16
KEYS = [SigningKey(bytes(31) + letter) for letter in (b"a", b"b", b"c", b"d")]
KNOWN = {node_id(key.public): key.public for key in KEYS}
PATIENCE_S = 60.0


async def answers(queue: MessageQueue) -> int:
    count = 0
    while await queue.get(0.1) is not None:
        count += 1
    return count


@pytest.mark.parametrize("askers", [1, 3])
def test_a_flood_of_wishes_is_answered_up_to_a_bound(askers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node gets no more than its share, and all of them together no more than theirs."""
    for name, value in (("WISHES", 8.0), ("ALL_WISHES", 12.0)):
        monkeypatch.setattr(job_stream, f"{name}_BURST", value)
        monkeypatch.setattr(job_stream, f"{name}_RATE_PER_S", 1e-6)

    async def test() -> None:
        server = MemoryServer()
        buses = [SignedMessages(MemoryMessages(server), key, MESH, KNOWN.get, lambda: 1_000_000) for key in KEYS]

        async def open_bus() -> SignedMessages:
            return buses[0]

        sender, run = PartSender(open_bus, MESH), RunParts(JOB, 1)
        queue = await buses[1].subscribe(parts_subject(MESH, JOB))
        run.add(b'"part"', False)
        sender.tell(run)
        assert await queue.get(PATIENCE_S) is not None
        async with asyncio.timeout(PATIENCE_S):  # the sender listens from now on
            while not any(each.pattern.endswith("parts-wanted.>") for each in server._queues):
                await asyncio.sleep(0)
        for _ in range(20):
            for asker in buses[1 : 1 + askers]:
                await asker.publish(wanted_subject(MESH, JOB), encode_wanted(1, 0))
        assert await answers(queue) == (8 if askers == 1 else 12)
        assert sender.refused == 20 * askers - (8 if askers == 1 else 12)
        await sender.close()

    asyncio.run(test())
