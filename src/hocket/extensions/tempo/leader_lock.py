"""Who leads the pulses of a cluster: the one that holds a lock. `LeaderLock` is what a pulse needs of it, with a fence
that never repeats. `ArbiterLock` is a lock of the mesh, decided by the node's own store or by its coordinator. A mesh
that has only NATS uses `nats_leader`.
"""

from typing import Protocol

from hocket.families.access import NodeAccess
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.requests import LockClient, LockHeld, wanted
from hocket.families.locks.rules import Scope
from hocket.families.locks.rules import live as live_holds
from hocket.mesh import peers
from hocket.store import Session

SCOPE = "tempo"
INCIDENT = "incident"


def leader_key(cluster_id: str) -> str:
    """The key of the leader's lock. The members that may acquire it may lead, whatever the bus is."""
    return f"pulse:{cluster_id}"


class LeaderLock(Protocol):
    async def acquire(self, ttl_ms: int, above: int) -> int:
        """Returns the fence, which is greater than `above`. Raises LockHeld if another pulse leads, and other
        HocketErrors if the lock cannot be asked for.
        """

    async def renew(self, fence: int, ttl_ms: int) -> None:
        """Raises LockLost if the pulse no longer leads, and other HocketErrors if that cannot be known."""

    async def release(self, fence: int) -> None: ...


class ArbiterLock:
    """`agent` is a name that no other process has. A refused request leaves nothing on the log."""

    def __init__(self, access: NodeAccess, client: LockClient, cluster_id: str, agent: str) -> None:
        self._access, self._client = access, client
        self._key, self._agent = leader_key(cluster_id), agent
        self._request: bytes | None = None

    async def acquire(self, ttl_ms: int, above: int) -> int:
        if not await self._access.peek(self._decides):
            await self._access.consult(())
        scope = await self._access.peek(lambda session: read_scope(session, SCOPE))
        if scope is not None and self._is_held(scope):
            raise LockHeld(f"another pulse holds {self._key}")
        asked = wanted([self._key], self._agent, ttl_ms, scope=SCOPE)
        granted = await self._client.acquire(asked, is_bound=True)
        self._request = granted.request
        return granted.hold.fence

    async def renew(self, fence: int, ttl_ms: int) -> None:
        await self._client.renew(SCOPE, None, self._agent, fence, ttl_ms)

    async def release(self, fence: int) -> None:
        await self._client.release(SCOPE, None, self._agent, fence, self._request)

    def _decides(self, session: Session) -> bool:
        """Whether this node decides about locks itself."""
        return peers.coordinator(self._access.log, session) in (None, self._access.log.node)

    def _is_held(self, scope: Scope) -> bool:
        return any(self._key in hold.keys for hold in live_holds(scope, self._access.log.physical()))


def is_incident(session: Session, now_ms: int) -> bool:
    """Whether an agent holds the lock that freezes the tempo."""
    scope = read_scope(session, SCOPE)
    return scope is not None and any(INCIDENT in hold.keys for hold in live_holds(scope, now_ms))
