"""A reverb in a process of a node."""

from hocket.events import Emit, ignore
from hocket.kernel.beats.policy import TempoPolicy
from hocket.node.local_node import LocalNode
from hocket.node.tempo import heard_beats
from hocket.rhythm.reverb import Reverb
from hocket.rhythm.tempo_messages import TempoMessages


async def run_reverb(node: LocalNode, policy: TempoPolicy, emit: Emit = ignore) -> None:
    """Runs a reverb until it is cancelled."""
    messages = TempoMessages(await node.message_bus(emit), node.log.user)
    async with heard_beats(node, policy, emit) as beats:
        await Reverb(node, messages, beats, emit).run()
