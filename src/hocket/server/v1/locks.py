"""The routes about locks."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from hocket.coordination.locks import REASON_CHARS_MAX, checked, wanted
from hocket.kernel.locks import KEY_CHARS_MAX, KEYS_MAX, NAME_CHARS_MAX, TTL_MS_MAX
from hocket.server.v1.routes import PAGE_DEFAULT, After, ApiCall, ApiRoute, Limit, RouteNeed, page_of
from hocket.service import ListPage, locks
from hocket.service.locks import LockShown, LockState

# The server ends a request after a minute.
WAIT_MS_MAX = 50_000

LockKey = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=KEY_CHARS_MAX, description="A key or a pattern; in a path, a slash is %2F."),
]
LockScope = Annotated[str, msgspec.Meta(max_length=NAME_CHARS_MAX, description="What the keys belong to.")]
LockAgent = Annotated[
    str, msgspec.Meta(min_length=1, max_length=NAME_CHARS_MAX, description="The agent; default: the token's name.")
]
LockTtl = Annotated[int, msgspec.Meta(ge=1, le=TTL_MS_MAX, description="Default: 30 s for files, else 5 minutes.")]
FenceNumber = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1, description="The fence of the hold.")]


class LockWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All keys are taken at once, or none. If they are held, the request waits in the queue for `wait_ms`."""

    keys: Annotated[list[LockKey], msgspec.Meta(min_length=1, max_length=KEYS_MAX)]
    agent: LockAgent | None = None
    ttl_ms: LockTtl | None = None
    shared: bool = False
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 0
    scope: LockScope = ""


class Renewal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fence: FenceNumber
    agent: LockAgent | None = None
    ttl_ms: LockTtl | None = None
    scope: LockScope = ""


class Releasing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fence: FenceNumber
    agent: LockAgent | None = None
    scope: LockScope = ""


class Breaking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_CHARS_MAX)]
    scope: LockScope = ""


class LocksQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: LockScope | None = None
    limit: Annotated[int, Limit] = PAGE_DEFAULT
    after: Annotated[str, After] | None = None


class LockQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scope: LockScope = ""


async def acquire_lock(call: ApiCall, body: LockWanted) -> LockShown:
    """Acquire a lock. A lock that others hold is answered with 409, which names the holder, since when and until when.
    The lock ends after `ttl_ms` unless it is renewed. A request whose caller disconnects leaves the queue.
    """
    asked = wanted(
        body.keys,
        call.agent(body.agent),
        body.ttl_ms,
        shared=body.shared,
        wait_ms=body.wait_ms,
        scope=body.scope,
    )
    return await locks.acquire_on(call.service, call.node, asked)


def list_locks(call: ApiCall, query: LocksQuery) -> ListPage[LockShown]:
    """List the locks in force, of one scope or of all."""
    found = locks.listing(call.service, scope=query.scope)
    return page_of(found, lambda each: f"{each.scope} {each.fence:020}", query.limit, query.after)


def show_lock(call: ApiCall, key: LockKey, query: LockQuery) -> LockState:
    """Show who holds a key, or one that overlaps it, and who waits."""
    return locks.show(call.service, key, scope=query.scope)


def renew_lock(call: ApiCall, key: LockKey, body: Renewal) -> LockShown:
    """Keep a lock for another `ttl_ms`. An agent that does not hold it under this fence is answered with 409."""
    return locks.renew(call.service, key, call.agent(body.agent), body.fence, body.ttl_ms, scope=body.scope)


def release_lock(call: ApiCall, key: LockKey, body: Releasing) -> None:
    """Release a lock, with all keys that were acquired together."""
    locks.release(call.service, key, call.agent(body.agent), body.fence, scope=body.scope)


def break_lock(call: ApiCall, key: LockKey, body: Breaking) -> list[LockShown]:
    """End every hold on a key, of any agent. A pattern may end several. The token must grant every key of a hold."""

    def may_break(each: str) -> bool:
        return call.program.may("Lock", "Break", (each,), body.scope)

    return locks.break_(call.service, key, body.reason, scope=body.scope, may_break=may_break)


def _keys(*keys: str) -> list[str]:
    """The keys in the one form in which they are locked. Another form could have a prefix that this one has not."""
    return [checked(key, "key", KEY_CHARS_MAX) for key in keys]


def _key(call: ApiCall, asked: Mapping[str, Any]) -> list[str]:
    return _keys(asked["key"])


def _asked_scope(asked: Mapping[str, Any]) -> str | None:
    scope: str | None = asked["query"].scope
    return scope


def _body_scope(asked: Mapping[str, Any]) -> str:
    scope: str = asked["body"].scope
    return scope


READ = RouteNeed("Lock", "Read", scope=_asked_scope)
READ_ONE = RouteNeed("Lock", "Read", _key, scope=_asked_scope)
ACQUIRE = RouteNeed("Lock", "Acquire", lambda call, asked: _keys(*asked["body"].keys), scope=_body_scope)
HOLD = RouteNeed("Lock", "Acquire", _key, scope=_body_scope)
BREAK = RouteNeed("Lock", "Break", _key, scope=_body_scope)

ROUTES = (
    ApiRoute("POST", "/v1/locks", acquire_lock, ACQUIRE, creates=True),
    ApiRoute("GET", "/v1/locks", list_locks, READ),
    ApiRoute("GET", "/v1/locks/{key}", show_lock, READ_ONE),
    ApiRoute("POST", "/v1/locks/{key}/renew", renew_lock, HOLD),
    ApiRoute("POST", "/v1/locks/{key}/release", release_lock, HOLD),
    ApiRoute("POST", "/v1/locks/{key}/break", break_lock, BREAK),
)
