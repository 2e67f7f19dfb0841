"""A reverb in a process of a node."""

from hocket.events import Emit, ignore
from hocket.kernel.beats.policy import TempoPolicy
from hocket.node.local_node import LocalNode
from hocket.rhythm.beat_source import LocalBeats
from hocket.rhythm.reverb import Reverb
from hocket.rhythm.tempo_messages import TempoMessages


async def run_reverb(node: LocalNode, policy: TempoPolicy, emit: Emit = ignore) -> None:
    """Runs a reverb until it is cancelled."""
    messages = TempoMessages(await node.message_bus(emit), node.log.user)
    beats = LocalBeats(policy, node.environment.physical_ms)
    await Reverb(node, messages, beats, emit).run()
