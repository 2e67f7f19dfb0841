"""Who leads the pulses of a cluster: the one that holds a lock, with a fence that never repeats. `ArbiterLock` is a
lock of the mesh, decided by the node's own store or by its coordinator. `NatsLeaderLock` is for pulses that share
nothing but a NATS server: a register that only one pulse can take at a time.

A frame only says who leads. `LeaderCheck` reads who may lead and who does: from this node's log, or from the register.
A member may lead if it may acquire the leader's lock. A node that may not read locks cannot tell who leads; it believes
the members that may.

The NATS server does not know when a leader has ended. A pulse asks only if it has heard no frame for more than a beat,
and frames go over the same server; so it takes the register from a silent leader, which finds that out when it renews.
Anyone with access to the server can write into the register. So each entry is signed by its node, and only an entry of
a member that may lead counts. A pulse replaces any other value, and says so.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from hocket.bus.envelope import LIFE_MS
from hocket.errors import NotAuthorised, StoreError, Unreachable
from hocket.events import Emit, ignore
from hocket.extensions.tempo.events import RegisterReplaced
from hocket.extensions.tempo.frame_judge import Lead
from hocket.extensions.tempo.messages import Count
from hocket.families.access import NodeAccess
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.requests import LockClient, LockHeld, LockLost, wanted
from hocket.families.locks.rules import Scope
from hocket.families.locks.rules import live as live_holds
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_text
from hocket.log.permissions import Permissions
from hocket.mesh import peers
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.bus.nats_register import NatsRegister
    from hocket.bus.signed import SignedMessages

SCOPE = "tempo"
INCIDENT = "incident"
NOBODY = Lead(0, 0)
# The register is taken from a leader if it has not changed for this part of a lock's time. A pulse that has just taken
# it thus has the time to send its first frame.
UNCHANGED = 0.17
# How often a renewal replaces values that do not count before it gives up.
REPLACED_MAX = 3


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


class LeaderEntry(msgspec.Struct, frozen=True):
    """A fence is a time in milliseconds, or one more than the fence before: it rises also if the server has lost its
    data, and no pulse can use the fences up.
    """

    holder: str
    fence: Count


class RegisterState(NamedTuple):
    """`entry` is None if the register is empty, or has a value that does not count."""

    revision: int
    node: int
    entry: LeaderEntry | None

    @property
    def is_foreign(self) -> bool:
        return self.revision > 0 and self.entry is None


class LeaderRegister:
    """The register of a cluster with signed entries. `bus` signs and knows the members, and `now_ms` is the time of
    day.
    """

    def __init__(
        self,
        register: "NatsRegister",
        bus: "SignedMessages",
        may_lead: Callable[[int], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._register, self._bus, self._may_lead, self.now_ms = register, bus, may_lead, now_ms

    @property
    def name(self) -> str:
        return self._register.name

    async def read(self) -> RegisterState:
        found = await self._register.read()
        signed = self._bus.open_value(self._register.subject, found.data)
        if signed is None or not self._may_lead(signed.at.node):
            return RegisterState(found.revision, 0, None)
        try:
            entry = decode_json(signed.data, LeaderEntry)
        except ValueError:
            return RegisterState(found.revision, 0, None)
        is_possible = 0 < entry.fence <= self.now_ms() + LIFE_MS
        return RegisterState(found.revision, signed.at.node, entry if is_possible else None)

    async def lead(self) -> Lead | None:
        found = await self.read()
        return None if found.entry is None else Lead(found.entry.fence, found.node)

    async def swap(self, revision: int, entry: LeaderEntry) -> int | None:
        node = self._bus.node
        if not self._may_lead(node):
            raise NotAuthorised(
                f"node {node_text(node)} may not lead the pulses of {self.name}; the owner grants it with"
                f" --may lock:acquire:pulse:{self.name}"
            )
        data = self._bus.seal_value(self._register.subject, msgspec.json.encode(entry))
        return await self._register.swap(revision, data)


class NatsLeaderLock:
    """`holder` is a name that no other process has."""

    def __init__(
        self, register: LeaderRegister, holder: str, monotonic: Callable[[], float], emit: Emit = ignore
    ) -> None:
        self._register, self._holder, self._monotonic, self._emit = register, holder, monotonic, emit
        self._revision = 0
        self._seen = 0
        self._seen_at = 0.0

    async def acquire(self, ttl_ms: int, above: int) -> int:
        found = await self._register.read()
        if found.revision != self._seen:
            self._seen, self._seen_at = found.revision, self._monotonic()
        if found.entry is not None and self._monotonic() - self._seen_at < UNCHANGED * ttl_ms / 1000:
            raise LockHeld("another pulse has just taken or renewed the lock")
        fence = max(0 if found.entry is None else found.entry.fence, above, self._register.now_ms()) + 1
        taken = await self._register.swap(found.revision, LeaderEntry(self._holder, fence))
        if taken is None:
            raise LockHeld("another pulse was faster")
        self._tell(found)
        self._revision = taken
        return fence

    async def renew(self, fence: int, ttl_ms: int) -> None:
        entry = LeaderEntry(self._holder, fence)
        for _ in range(REPLACED_MAX):
            taken = await self._register.swap(self._revision, entry)
            if taken is not None:
                self._revision = taken
                return
            found = await self._register.read()
            if found.entry is not None and found.entry != entry and found.entry.fence >= fence:
                raise LockLost("another pulse leads")
            # Nobody who may lead has taken it: the value is foreign, an old one, or this pulse's own.
            self._tell(found)
            self._revision = found.revision
        raise Unreachable(f"the register of {self._register.name} is overwritten again and again")

    async def release(self, fence: int) -> None:
        """Nothing: a follower takes the register as soon as it hears no frame."""

    def _tell(self, found: RegisterState) -> None:
        if found.is_foreign:
            self._emit(RegisterReplaced(self._register.name))
