"""Whether agents that seem to wait for each other really do. A killed agent stays in the queue until its node withdraws
its request or the request ends by itself. So a wait makes a deadlock only if its agent is known to live: by the OS lock
of its process if it is of this node, otherwise because it has said again that it waits.
"""

from typing import NamedTuple

from msgspec.structs import replace

from hocket.families.locks.decisions import read_scope
from hocket.families.locks.processes import LockProcesses
from hocket.families.locks.projector import waited_in
from hocket.families.locks.rules import Agent, Scope, Wait, deadlock
from hocket.kernel.clock import Hlc
from hocket.store import Session


class Suspicion(NamedTuple):
    """Whether agents wait for each other if a request waits, and those of whom that is certain, in order."""

    is_suspected: bool
    agents: list[Agent]


class DeadlockWatch:
    """Watches the waits that stand against one request."""

    def __init__(self, processes: LockProcesses) -> None:
        self._processes = processes
        # When each wait would have ended when it was first seen. Only its agent can change that.
        self._first_until: dict[bytes, int] = {}

    def look(self, session: Session, scope_name: str, request: Wait, at: Hlc) -> Suspicion:
        scope = read_scope(session, scope_name) or Scope(0, (), (), at)
        others = waited_in(session, scope_name.encode())
        waits = [wait for each in (scope, *others) for wait in each.waits]
        for wait in waits:
            self._first_until.setdefault(wait.op, wait.until)
        if not deadlock(scope, request, at.wall, others):
            return Suspicion(False, [])
        live = self._processes.running(session, request.node, waits)
        live |= {wait.op for wait in waits if wait.until != self._first_until[wait.op]}
        certain, *certain_others = (_with_waits(each, live) for each in (scope, *others))
        return Suspicion(True, deadlock(certain, request, at.wall, certain_others))


def _with_waits(scope: Scope, live: set[bytes]) -> Scope:
    return replace(scope, waits=tuple(wait for wait in scope.waits if wait.op in live))
