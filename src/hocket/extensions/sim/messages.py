"""The message bus of a simulated mesh. A message takes as long as a request does, and is lost, repeated, overtaken and
cut off as requests are. A node that is down gets none. Announcements are kept by a server that every node reaches.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from hocket.bus.messages import BusMessage, MemoryMessages, MemoryServer
from hocket.events import Emit, ignore
from hocket.extensions.sim.faults import HOSTILE
from hocket.extensions.sim.network import Network

# Where the topic is in `hocket.<mesh>.<topic>.<kind…>`.
TOPIC = 2


@dataclass
class TopicFigures:
    """The messages of one topic: how many the nodes published, with how many bytes; how many copies the server sent to
    other nodes, and how many of those arrived.
    """

    published: int = 0
    bytes: int = 0
    sent: int = 0
    arrived: int = 0


class SimMessageServer(MemoryServer):
    """Nodes with a number from `honest` on are hostile. What they publish is counted under that name."""

    def __init__(self, network: Network, honest: int) -> None:
        super().__init__(asyncio.get_running_loop().time)
        self._network, self._honest = network, honest
        self._nodes: dict[MemoryMessages, int] = {}
        self.topics: dict[str, TopicFigures] = {}

    def publish(self, sender: MemoryMessages, message: BusMessage) -> None:
        if sender not in self._nodes:
            return  # the sender's life has ended
        topic = "".join(message.subject.split(".")[TOPIC : TOPIC + 1])
        name = topic if self._nodes[sender] < self._honest else HOSTILE
        self._topic = self.topics.setdefault(name, TopicFigures())
        self._topic.published += 1
        self._topic.bytes += len(message.data)
        super().publish(sender, message)

    def open(self, node: int, randomness: Callable[[int], bytes], emit: Emit = ignore) -> MemoryMessages:
        """The bus of one life of a node. Close it when that ends."""
        made = MemoryMessages(self, emit, randomness)
        self._nodes[made] = node
        return made

    def carry(self, sender: MemoryMessages, receiver: MemoryMessages, put: Callable[[], None]) -> None:
        one, other, topic = self._nodes[sender], self._nodes[receiver], self._topic
        if one == other:
            put()
            return

        def arrive() -> None:
            topic.arrived += 1
            put()

        topic.sent += 1
        self._network.pass_on(one, other, arrive)

    def close(self, owner: MemoryMessages) -> None:
        super().close(owner)
        self._nodes.pop(owner, None)
