"""Locks: acquire, renew, release, break, show and list. A lock that is acquired here belongs to its agent, not to this
process: it lasts until its agent releases it or its time is over.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from hocket.coordination import locks
from hocket.coordination.lock_decisions import read_scope
from hocket.coordination.locks import (
    REASON_CHARS_MAX,
    Length,
    LockClient,
    Wanted,
    checked_agent,
    checked_fence,
    checked_key,
    checked_scope,
    checked_ttl,
    default_ttl_ms,
)
from hocket.errors import Usage
from hocket.kernel.ids import node_text
from hocket.kernel.key_patterns import overlap
from hocket.kernel.locks import Hold, Wait, live
from hocket.kernel.subjects import LOCK
from hocket.service import Service, ServiceAnswer

if TYPE_CHECKING:
    from hocket.node.node import Node

T = TypeVar("T")


class LockShown(ServiceAnswer, frozen=True):
    """One hold. `key` is the first of `keys`; `holder` is the node's name, or its id if it has none. `expires` is in
    milliseconds since 1970, like `expires_ms`.
    """

    key: str
    keys: list[str]
    scope: str
    mode: str
    holder: str
    node: str
    node_name: str | None
    agent: str
    fence: int
    since_ms: int
    expires_ms: int
    expires: int


class WaitShown(ServiceAnswer, frozen=True):
    """An agent that waits for a lock until its patience is over."""

    keys: list[str]
    scope: str
    mode: str
    node: str
    node_name: str | None
    agent: str
    until_ms: int


class LockState(ServiceAnswer, frozen=True):
    """What is known about a key: who holds keys that overlap it, and who waits for such keys, in order."""

    key: str
    scope: str
    holders: list[LockShown]
    waiting: list[WaitShown]


def acquire(
    service: Service,
    keys: Sequence[str],
    agent: str,
    lasts: Length | None = None,
    *,
    shared: bool = False,
    wait_ms: int = 0,
    scope: str = "",
) -> LockShown:
    """Raises Conflict, with the holder, since when and until when, if the lock is not free in time."""
    service.check_writer()
    wanted = locks.wanted(keys, agent, lasts, shared=shared, wait_ms=wait_ms, scope=scope)
    return service.node.with_node(lambda node: acquire_on(service, node, wanted))


async def acquire_on(service: Service, node: "Node", wanted: Wanted) -> LockShown:
    """Acquires locks on the event loop of a node, where any number of requests can wait at once."""
    from hocket.node.locks import lock_client

    service.check_writer()
    granted = await lock_client(node, node.lock_processes).acquire(wanted, is_bound=False)
    return _shown(granted.hold, wanted.scope, await node.peek(service.names))


def renew(
    service: Service, key: str, agent: str, fence: int, lasts: Length | None = None, *, scope: str = ""
) -> LockShown:
    """Keeps the lock for so long again. Raises Conflict if the agent does not hold it under this fence."""
    service.check_writer()
    scope, key, agent = checked_scope(scope), checked_key(key), checked_agent(agent)
    length = default_ttl_ms([key]) if lasts is None else lasts
    if isinstance(length, int):
        checked_ttl(length)
    number = checked_fence(fence)
    hold = _asked(service, lambda client: client.renew(scope, key, agent, number, length))
    return _shown(hold, scope, _names(service))


def release(service: Service, key: str, agent: str, fence: int, *, scope: str = "") -> None:
    """Raises Conflict if the agent does not hold the lock under this fence."""
    service.check_writer()
    scope, key, agent, number = checked_scope(scope), checked_key(key), checked_agent(agent), checked_fence(fence)
    _asked(service, lambda client: client.release(scope, key, agent, number))


def release_all(service: Service, agent: str, *, scope: str | None = None) -> list[LockShown]:
    """Releases every lock that the agent holds on this node, of one scope or of all. Returns those that it released."""
    service.check_writer()
    node = node_text(service.runtime.log.node)
    held = [each for each in listing(service, scope=scope) if each.agent == agent and each.node == node]
    for each in held:
        release(service, each.keys[0], agent, each.fence, scope=each.scope)
    return held


def break_(
    service: Service, key: str, reason: str, *, scope: str = "", may_break: Callable[[str], bool] | None = None
) -> list[LockShown]:
    """Ends every hold on a key, of any agent. Returns what was ended: a pattern may end several. `may_break` says which
    keys a program may break for which this is done; a hold with another key stops it.
    """
    service.check_writer()
    if not reason.strip() or len(reason) > REASON_CHARS_MAX:
        raise Usage(f"bad reason: write 1 to {REASON_CHARS_MAX} characters")
    scope, key = checked_scope(scope), checked_key(key)
    broken = _asked(service, lambda client: client.break_(scope, key, reason, may_break))
    called = _names(service)
    return [_shown(hold, scope, called) for hold in broken]


def show(service: Service, key: str, *, scope: str = "") -> LockState:
    scope, key, now = checked_scope(scope), checked_key(key), service.runtime.log.reading().wall
    with service.read() as session:
        state = read_scope(session, scope)
        called = service.names(session)
    holds = [] if state is None else [hold for hold in live(state, now) if _is_about(hold, key)]
    waits = [] if state is None else [wait for wait in state.waits if wait.until >= now and _is_about(wait, key)]
    return LockState(
        key, scope, [_shown(hold, scope, called) for hold in holds], [_waiting(wait, scope, called) for wait in waits]
    )


def listing(service: Service, *, scope: str | None = None) -> list[LockShown]:
    """The locks in force, of one scope or of all."""
    now = service.runtime.log.reading().wall
    with service.read() as session:
        called = service.names(session)
        scopes = (
            [key.decode() for key in session.subjects_since(LOCK, b"")] if scope is None else [checked_scope(scope)]
        )
        states = [(each, read_scope(session, each)) for each in sorted(scopes)]
    return [_shown(hold, each, called) for each, state in states if state is not None for hold in live(state, now)]


def _asked(service: Service, act: Callable[[LockClient], Awaitable[T]]) -> T:
    from hocket.node.locks import lock_client

    return service.node.with_node(lambda node: act(lock_client(node, node.lock_processes)))


def _names(service: Service) -> dict[str, str]:
    with service.runtime.store.read() as session:
        return service.names(session)


def _is_about(each: Hold | Wait, key: str) -> bool:
    return any(overlap(one, key) for one in each.keys)


def _shown(hold: Hold, scope: str, called: dict[str, str]) -> LockShown:
    node = node_text(hold.node)
    return LockShown(
        key=hold.keys[0],
        keys=list(hold.keys),
        scope=scope,
        mode=hold.mode.name.lower(),
        holder=called.get(node, node),
        node=node,
        node_name=called.get(node),
        agent=hold.agent,
        fence=hold.fence,
        since_ms=hold.since,
        expires_ms=hold.deadline,
        expires=hold.deadline,
    )


def _waiting(wait: Wait, scope: str, called: dict[str, str]) -> WaitShown:
    node = node_text(wait.node)
    return WaitShown(list(wait.keys), scope, wait.mode.name.lower(), node, called.get(node), wait.agent, wait.until)
