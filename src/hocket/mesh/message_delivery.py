"""Brings messages to the nodes that they are for, as soon as they are on the log: a push to the receiver's node, three
times at most. A message that could not be delivered so is on the log all the same, and the next exchange brings it.
"""

import asyncio
from collections.abc import Collection
from contextlib import closing
from typing import TYPE_CHECKING

from hocket.bus.changes import about
from hocket.errors import HocketError
from hocket.families.inbox.facts import MESSAGE, SendMessage
from hocket.families.inbox.rules import read_address
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode, read_sequence
from hocket.kernel.vocabulary import number_of
from hocket.log import Log
from hocket.mesh import peers
from hocket.mesh.wire import look
from hocket.store import OpSession
from hocket.work.node_access import NodeAccess

if TYPE_CHECKING:
    from hocket.mesh.sync import Exchanges

# How long to wait after each try that failed. After the last one the exchange takes over.
RETRY_S = (0.5, 1.0, 2.0)
# A hint can be lost, so the log is looked at again after this long.
LOOK_AGAIN_S = 2.0
STEP_OPS = 1_000
_SEND = number_of(SendMessage)


class DirectDelivery:
    """Cancel `run` to end it."""

    def __init__(self, access: NodeAccess, exchanges: "Exchanges") -> None:
        self._access, self._exchanges = access, exchanges
        self._wanted: set[int] = set()
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Delivers every message of this node for another one that is written from now on, by any of its processes."""
        try:
            with closing(self._access.listen(about(MESSAGE))) as changes:
                seq = await look(self._access, lambda session: session.head().seq)
                while True:
                    await changes.wait(LOOK_AGAIN_S)
                    found, seq = await look(self._access, lambda session, seq=seq: self._receivers(session, seq))  # type: ignore[misc]
                    for node in found:
                        self._wanted.add(node)
                        if node not in self._tasks:
                            self._tasks[node] = asyncio.create_task(self._deliver(node))
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def deliver_all(self, nodes: Collection[int]) -> bool:
        """Whether there were messages for some nodes, and each of these has them now."""
        return bool(nodes) and all(await asyncio.gather(*map(self.deliver, nodes)))

    async def deliver(self, node: int) -> bool:
        """Whether the node has every message for it that is on the log. False also if its address is not known."""
        address = await look(self._access, lambda session: peers.address_of(session, node))
        if address is None:
            return False
        for wait in RETRY_S:
            try:
                await self._exchanges.deliver(address)
            except HocketError:
                await asyncio.sleep(wait)
            else:
                return True
        return False

    async def _deliver(self, node: int) -> None:
        try:
            while node in self._wanted:
                self._wanted.discard(node)
                await self.deliver(node)
        finally:
            del self._tasks[node]

    def _receivers(self, session: OpSession, seq: int) -> tuple[set[int], int]:
        """The nodes that messages on the log after this number are for, and the log's last number."""
        own, found = self._access.log.node, set[int]()
        while rows := session.entries_after(seq, STEP_OPS):
            seq = rows[-1].seq
            mine = [row for row in rows if row.variant == _SEND and row.hlc[12:] == own.to_bytes(8, "big")]
            found.update(node for row in mine if (node := _receiver(decode(row.body))) not in (None, own))
        return found, seq


def _receiver(op: Op) -> int | None:
    assert isinstance(op.payload, SendMessage)
    address = read_address(op.payload.to)
    return None if address is None else address.node


def stored_messages(log: Log, body: bytes) -> list[str]:
    """Which messages of a push are on this node's log."""
    ops = [op for _, op in read_sequence(body) if isinstance(op, Op)]
    sent = [(op.id, op.payload.message_id) for op in ops if isinstance(op.payload, SendMessage)]
    with log.store.read() as session:
        return [ulid_text(message_id) for op_id, message_id in sent if session.op(op_id) is not None]
