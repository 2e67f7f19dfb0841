"""What the programs of other nodes know, as each node reports it. It tells operators which nodes to upgrade; nothing
else depends on it.
"""

from typing import TYPE_CHECKING

from hocket.kernel.ids import node_text
from hocket.kernel.knowledge import Knowledge, knowledge_text, read_knowledge, sentence
from hocket.mesh.wire import look, note
from hocket.store import PeerSession
from hocket.work.node_access import NodeAccess

if TYPE_CHECKING:
    from hocket.events import Emit


async def note_program(access: NodeAccess, node: int, knows: Knowledge, emit: "Emit") -> None:
    """Stores what a node's program knows, and tells the operator if that is new and differs from this program."""
    key, text = node.to_bytes(8, "big"), knowledge_text(knows)
    if await look(access, lambda session: session.programs().get(key)) == text:
        return
    await note(access, lambda session: session.set_program(key, text))
    difference = sentence(knows)
    if difference is not None:
        from hocket.events.nodes import ProgramDiffers

        emit(ProgramDiffers(node_text(node), difference))


def program_differences(session: PeerSession) -> dict[int, str]:
    """The nodes whose programs differ from this one, and how."""
    found = {node: sentence(read_knowledge(knows)) for node, knows in session.programs().items()}
    return {int.from_bytes(node, "big"): said for node, said in found.items() if said is not None}
