"""The end of a recovery: when a node has back what it had lost of its own history, it writes again what it wrote
meanwhile. `log.lost_past` does the work; here the operator is told.
"""

from hocket.events import Emit
from hocket.events.nodes import HistoryRecovered
from hocket.log import Log
from hocket.log.lost_past import own_history, rewrite

BEHIND_SENTENCE = (
    "this home is older than what other nodes have of it, and some ops of this node are still missing, so nothing that"
    " it writes leaves it. Exchange with a node that has them all (one that reads everything); if there is none, let"
    " this machine join as a new node with a new home"
)


def recover(log: Log, emit: Emit) -> str | None:
    """Finishes a recovery, if one is under way. Returns why it cannot be finished."""
    with log.store.read() as session:
        history = own_history(session, log.node)
    if history.is_behind:
        return BEHIND_SENTENCE
    if history.has_set_aside:
        done = rewrite(log)
        if done.ops or done.dropped:
            emit(HistoryRecovered(done.ops, done.dropped))
    return None
