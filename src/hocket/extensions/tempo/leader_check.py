"""Who may lead the pulses of a cluster, and who does: as this node's log has it, or the register on the bus. A frame
only says so. A member may lead if it may acquire the leader's lock. A node that may not read locks cannot tell who
leads; it believes the members that may.
"""

from contextlib import suppress
from typing import Protocol

from hocket.errors import StoreError, Unreachable
from hocket.extensions.tempo.beats.frame_judge import Lead
from hocket.extensions.tempo.leader_lock import SCOPE, leader_key
from hocket.families.access import NodeAccess
from hocket.families.locks.decisions import read_scope
from hocket.log.permissions import Permissions
from hocket.store import Session

NOBODY = Lead(0, 0)


class LeaderEntries(Protocol):
    """The leader's register, where a bus has one."""

    async def lead(self) -> Lead | None:
        """The leader in it; None if it has no entry that counts. Raises Unreachable."""


class LeaderCheck:
    """Call `refresh_members` now and then, and `refresh` when a frame must be confirmed. A store or a register that is
    away changes nothing. Set `register` where the bus has one; otherwise the lock on the log counts.
    """

    def __init__(self, access: NodeAccess, cluster_id: str) -> None:
        self._access, self._key = access, leader_key(cluster_id)
        self.register: LeaderEntries | None = None
        self._may_lead: frozenset[int] | None = frozenset()
        self._lead: Lead | None = None
        self._register_lead = NOBODY

    @property
    def lead(self) -> Lead | None:
        """None if this node may not read it."""
        return self._lead if self.register is None else self._register_lead

    def may_lead(self, node: int) -> bool:
        return self._may_lead is None or node in self._may_lead

    async def refresh(self) -> None:
        await self.refresh_members()
        if self.register is not None:
            with suppress(Unreachable):
                found = await self.register.lead()
                # An old entry that was written again deposes nobody.
                self._register_lead = max(found or NOBODY, self._register_lead)

    async def refresh_members(self) -> None:
        with suppress(StoreError):
            await self._access.peek(self._read)

    def _read(self, session: Session) -> None:
        permissions, now_ms = self._access.log.permissions(session), self._access.log.physical()
        self._may_lead = leaders(permissions, self._key, now_ms)
        if not self.may_lead(self._register_lead.node):
            self._register_lead = NOBODY
        if _may(permissions, self._access.log.node, "Read", self._key, now_ms):
            scope = read_scope(session, SCOPE)
            holds = () if scope is None else scope.holds
            self._lead = max((Lead(each.fence, each.node) for each in holds if self._key in each.keys), default=NOBODY)
        else:
            self._lead = None


def leaders(permissions: Permissions, key: str, now_ms: int) -> frozenset[int] | None:
    """The members that may acquire the leader's lock; None in a mesh without delegations, where all may."""
    if not permissions.delegations:
        return None
    nodes = {each.node for each in permissions.delegations} - permissions.forks.keys()
    return frozenset(node for node in nodes if _may(permissions, node, "Acquire", key, now_ms))


def _may(permissions: Permissions, node: int, action: str, key: str, now_ms: int) -> bool:
    grants = permissions.authority.grants(node, now_ms)
    return not permissions.delegations or any(grant.admits("Lock", action, (key,)) for grant in grants)
