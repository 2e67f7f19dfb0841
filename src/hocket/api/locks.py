"""Locks: acquire, renew, release, break, show and list. A lock that is acquired here belongs to its agent, not to this
process: it lasts until its agent releases it or its time is over.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, TypeVar

from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import Arguments, InShell, OverHttp, TokenNeed, operation
from hocket.api.views import Line, Table, View, at, moment, table
from hocket.errors import Usage
from hocket.families.locks import requests as locks
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import LOCK
from hocket.families.locks.index import overlap
from hocket.families.locks.requests import (
    REASON_CHARS_MAX,
    Length,
    LockClient,
    checked,
    checked_agent,
    checked_fence,
    checked_key,
    checked_scope,
    checked_ttl,
    default_ttl_ms,
)
from hocket.families.locks.rules import KEY_CHARS_MAX, KEYS_MAX, NAME_CHARS_MAX, TTL_MS_MAX, Hold, Wait, live
from hocket.kernel.ids import EXACT_MAX, node_text

if TYPE_CHECKING:
    from hocket.node.node import Node

T = TypeVar("T")

# The server ends a request after a minute.
WAIT_MS_MAX = 50_000

LockKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KEY_CHARS_MAX,
        description="What is locked, like file:src/lib.rs; in a path, a slash is %2F.",
    ),
    InShell(help="What is locked, like file:src/lib.rs."),
]
LockKeys = Annotated[
    list[LockKey],
    Meta(
        min_length=1, max_length=KEYS_MAX, description="What to lock, like file:src/lib.rs or file:src/**; all at once."
    ),
    InShell(metavar="KEY..."),
]
LockScope = Annotated[
    str,
    Meta(max_length=NAME_CHARS_MAX, description="What the keys belong to, such as a repository."),
    InShell(metavar="REPO"),
]
LockAgent = Annotated[
    str,
    Meta(min_length=1, max_length=NAME_CHARS_MAX, description="The agent; default: the token's name."),
    InShell(metavar="NAME", help="The agent that you act for. Default: $HOCKET_AGENT, else your user."),
]
LockTtl = Annotated[
    Length,
    OverHttp(Annotated[int, Meta(ge=1, le=TTL_MS_MAX, description="Default: 30 s for files, else 5 minutes.")]),
    InShell(
        "--lease",
        metavar="DURATION",
        help="How long it lasts unless renewed, or 4b in beats; default 30s for file:, else 5m.",
        form="length",
        earlier="--ttl",
    ),
]
FenceNumber = Annotated[
    int,
    Meta(ge=1, le=EXACT_MAX, description="The fence of the hold."),
    InShell("--fence", metavar="N", help="The fence that `lock acquire` gave."),
]


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


def _keys(*keys: str) -> list[str]:
    """The keys in the one form in which they are locked. Another form could have a prefix that this one has not."""
    return [checked(key, "key", KEY_CHARS_MAX) for key in keys]


def _scope(asked: Arguments) -> str | None:
    scope: str | None = asked["scope"]
    return scope


READ = TokenNeed("Lock", "Read", scope=_scope)
READ_ONE = TokenNeed("Lock", "Read", lambda service, asked: _keys(asked["key"]), scope=_scope)
ACQUIRE = TokenNeed("Lock", "Acquire", lambda service, asked: _keys(*asked["keys"]), scope=_scope)
HOLD = TokenNeed("Lock", "Acquire", lambda service, asked: _keys(asked["key"]), scope=_scope)
BREAK = TokenNeed("Lock", "Break", lambda service, asked: _keys(asked["key"]), scope=_scope)


def _show_broken(ended: Iterable[LockShown]) -> Iterator[View]:
    for each in ended:
        yield Line(f"{', '.join(each.keys)} taken from {each.agent} on {each.holder} (fence {each.fence})")


_show_list = table(
    LockShown,
    "no locks",
    {
        "key": lambda each: ", ".join(each.keys),
        "scope": "scope",
        "mode": "mode",
        "agent": "agent",
        "node": "holder",
        "fence": "fence",
        "since": at("since_ms"),
        "until": at("expires_ms"),
    },
)


def _show_state(state: LockState) -> Iterator[View]:
    held = [
        ("held", ", ".join(each.keys), each.mode, each.agent, each.holder, each.fence, moment(each.expires_ms))
        for each in state.holders
    ]
    waiting = [
        ("waits", ", ".join(each.keys), each.mode, each.agent, each.node_name or each.node, "", moment(each.until_ms))
        for each in state.waiting
    ]
    yield Table(("", "key", "mode", "agent", "node", "fence", "until"), [*held, *waiting], "free")


@operation(
    "acquire_lock",
    "POST /v1/locks",
    ACQUIRE,
    command="lock acquire",
    creates=True,
    show=lambda shown: [Line(shown.fence)],
)
async def acquire(
    service: Service,
    node: "Node",
    keys: LockKeys,
    agent: LockAgent | None = None,
    ttl_ms: LockTtl | None = None,
    shared: Annotated[bool, Meta(description="Hold it together with other shared holders.")] = False,
    wait_ms: Annotated[
        int,
        OverHttp(Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]),
        Meta(description="How long to wait for it; default: not at all."),
        InShell("--wait", metavar="DURATION", form="duration"),
    ] = 0,
    scope: LockScope = "",
) -> LockShown:
    """Acquire a lock on all keys at once, and learn its fence. If another agent holds it, this is refused as a conflict
    (exit code 3, status 409), with who, since when and until when. It lasts until it is released, or until its lease
    ends unless it is renewed. An agent that no longer waits leaves the queue.

    In a key `*` stands for any text without a slash and `**` for any text. Two keys conflict if they overlap.

    \b
      hocket lock acquire file:src/lib.rs --agent editor --lease 30s
      hocket lock acquire file:src/lib.rs --agent editor --lease 4b
      fence=$(hocket lock acquire build --agent ci --wait 1m)
    """
    from hocket.node.locks import lock_client

    service.check_writer()
    asked = locks.wanted(keys, service.agent(agent), ttl_ms, shared=shared, wait_ms=wait_ms, scope=scope)
    granted = await lock_client(node, node.lock_processes).acquire(asked, is_bound=False)
    return _shown(granted.hold, asked.scope, await node.peek(service.names))


@operation(
    "renew_lock",
    "POST /v1/locks/{key}/renew",
    HOLD,
    command="lock renew",
    show=lambda shown: [Line(f"{shown.key} is yours until {moment(shown.expires_ms)}")],
)
def renew(
    service: Service,
    key: LockKey,
    fence: FenceNumber,
    agent: LockAgent | None = None,
    ttl_ms: LockTtl | None = None,
    scope: LockScope = "",
) -> LockShown:
    """Keep a lock for longer, together with everything that was acquired with it. If the agent does not hold it under
    this fence, this is refused as a conflict (exit code 3, status 409).

    \b
      hocket lock renew file:src/lib.rs --fence 7 --agent editor --lease 1m
    """
    service.check_writer()
    scope, key, name = checked_scope(scope), checked_key(key), checked_agent(service.agent(agent))
    length = default_ttl_ms([key]) if ttl_ms is None else ttl_ms
    if isinstance(length, int):
        checked_ttl(length)
    number = checked_fence(fence)
    hold = _asked(service, lambda client: client.renew(scope, key, name, number, length))
    return _shown(hold, scope, _names(service))


@operation("release_lock", "POST /v1/locks/{key}/release", HOLD)
def release(
    service: Service, key: LockKey, fence: FenceNumber, agent: LockAgent | None = None, scope: LockScope = ""
) -> None:
    """Release a lock, together with everything that was acquired with it. If the agent does not hold it under this
    fence, this is refused as a conflict (exit code 3, status 409).
    """
    service.check_writer()
    scope, key, name = checked_scope(scope), checked_key(key), checked_agent(service.agent(agent))
    number = checked_fence(fence)
    _asked(service, lambda client: client.release(scope, key, name, number))


def release_all(service: Service, agent: str, *, scope: str | None = None) -> list[LockShown]:
    """Releases every lock that the agent holds on this node, of one scope or of all. Returns those that it released."""
    service.check_writer()
    held = held_here(service, agent, scope)
    for each in held:
        release(service, each.keys[0], each.fence, agent, each.scope)
    return held


def held_here(service: Service, agent: str, scope: str | None) -> list[LockShown]:
    """The locks that the agent holds on this node, of one scope or of all."""
    node = node_text(service.runtime.log.node)
    return [each for each in listing(service, scope) if each.agent == agent and each.node == node]


@operation("break_lock", "POST /v1/locks/{key}/break", BREAK, command="lock break", show=_show_broken)
def break_(
    service: Service,
    key: LockKey,
    reason: Annotated[
        str,
        Meta(min_length=1, max_length=REASON_CHARS_MAX, description="Why; it is on the log."),
        InShell("--reason", metavar="TEXT"),
    ],
    scope: LockScope = "",
) -> list[LockShown]:
    """Take a lock away from its holder: end every hold on a key, of any agent. A pattern may end several. The owner's
    nodes may do this, others with a grant like `--may lock:break:file:`, which must allow every key of a hold.

    \b
      hocket lock break file:src/lib.rs --reason "the agent hangs"
    """
    service.check_writer()
    if not reason.strip() or len(reason) > REASON_CHARS_MAX:
        raise Usage(f"bad reason: write 1 to {REASON_CHARS_MAX} characters")
    scope, key = checked_scope(scope), checked_key(key)
    may_break = lambda each: service.may("Lock", "Break", each, scope=scope)  # noqa: E731
    broken = _asked(service, lambda client: client.break_(scope, key, reason, may_break))
    called = _names(service)
    return [_shown(hold, scope, called) for hold in broken]


@operation("show_lock", "GET /v1/locks/{key}", READ_ONE, command="lock show", show=_show_state)
def show(service: Service, key: LockKey, scope: LockScope = "") -> LockState:
    """Show who holds a key, or keys that overlap it, and who waits for it, in order.

    \b
      hocket lock show file:src/lib.rs
    """
    scope, key, now = checked_scope(scope), checked_key(key), service.runtime.log.reading().wall
    with service.read() as session:
        state = read_scope(session, scope)
        called = service.names(session)
    holds = [] if state is None else [hold for hold in live(state, now) if _is_about(hold, key)]
    waits = [] if state is None else [wait for wait in state.waits if wait.until >= now and _is_about(wait, key)]
    return LockState(
        key, scope, [_shown(hold, scope, called) for hold in holds], [_waiting(wait, scope, called) for wait in waits]
    )


@operation(
    "list_locks",
    "GET /v1/locks",
    READ,
    command="lock list",
    key=lambda each: f"{each.scope} {each.fence:020}",
    show=_show_list,
)
def listing(
    service: Service,
    scope: Annotated[LockScope, InShell(metavar="REPO", help="Only the locks of this scope.")] | None = None,
) -> list[LockShown]:
    """List the locks that are held now, of one scope or of all.

    \b
      hocket lock list
    """
    now = service.runtime.log.reading().wall
    with service.read() as session:
        called = service.names(session)
        scopes = (
            [key.decode() for key in session.subjects_with_state(LOCK)] if scope is None else [checked_scope(scope)]
        )
        states = [(each, read_scope(session, each)) for each in sorted(scopes)]
    return [_shown(hold, each, called) for each, state in states if state is not None for hold in live(state, now)]


def queues(service: Service) -> list[LockState]:
    """Each lock that is held now, with who waits for it, in order. Each scope is read once."""
    now = service.runtime.log.reading().wall
    with service.read() as session:
        called = service.names(session)
        scopes = sorted(key.decode() for key in session.subjects_with_state(LOCK))
        states = [(each, read_scope(session, each)) for each in scopes]
    found: list[LockState] = []
    for scope, state in states:
        if state is not None:
            waits = [wait for wait in state.waits if wait.until >= now]
            for hold in live(state, now):
                queue = [wait for wait in waits if any(_is_about(wait, key) for key in hold.keys)]
                shown = [_waiting(wait, scope, called) for wait in queue]
                found.append(LockState(hold.keys[0], scope, [_shown(hold, scope, called)], shown))
    return found


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
