"""Who may enter the page of this node. `hocket page` makes an address that one browser can use once. The browser then
has a token in a cookie, with the grants of the address. It is listed, expires and is revoked as every token is, and
what is done in the browser is done for the agent of the address.
"""

import hmac
import re
from collections.abc import Sequence
from itertools import count

import msgspec

from hocket.api import OF_AGENT, Service, ServiceAnswer
from hocket.api.programs import beyond_own, put_end, put_new, state_of_token
from hocket.errors import HocketError, NotAuthorised, Unreachable, Usage
from hocket.kernel.ids import content_hash
from hocket.mesh.grants import parse_grants, words
from hocket.node.running import running_servers
from hocket.store import Session

# An address that nobody uses ends after this long; a browser's token after this long by default, and at most.
ADDRESS_MS = 10 * 60_000
BROWSER_MS = 12 * 3_600_000
BROWSER_MS_MAX = 90 * 86_400_000
ENTER = "/enter/"
# What a person may do who only looks.
READER = ("job:read", "lock:read", "inbox:read", "row:read", "mesh:read", "artifact:read")

_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
# How long the browser may stay, the public id, and the secret.
_CODE = re.compile(r"hkp_([0-9]{1,10})_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class UsedAddress(HocketError):
    """The address of the page was used before, is too old, or is none of this node's."""

    exit_code = 4

    def __init__(self) -> None:
        super().__init__("this address was used, or has expired; make another with `hocket page`")


class PageAddress(ServiceAnswer, frozen=True):
    """One browser can use the `address` once, until `expires_ms`. It may do what `may` says for `lifetime_ms`."""

    address: str
    agent: str
    may: list[str]
    expires_ms: int
    lifetime_ms: int


class Entered(ServiceAnswer, frozen=True):
    """`token` is the secret of the browser."""

    token: str
    lifetime_ms: int


def make_address(service: Service, agent: str, may: Sequence[str], lifetime_ms: int = BROWSER_MS) -> PageAddress:
    """Makes an address for one browser. Raises Unreachable if no server of this home runs."""
    service.check_writer()
    if _AGENT.fullmatch(agent) is None:
        raise Usage(
            f"bad agent {agent!r}: on the page, the name of an agent has 1 to 40 letters, digits, dots and dashes, and"
            " begins with a letter or digit; name one with --agent"
        )
    if not 0 < lifetime_ms <= BROWSER_MS_MAX:
        raise Usage("a browser may stay for more than no time and at most 90 days")
    servers = running_servers(service.runtime.home.processes)
    if not servers:
        raise Unreachable("no server of this home runs, so nothing serves the page; start `hocket mesh serve`")
    now, capabilities = service.runtime.log.physical(), parse_grants(may, of_node=False)
    with service.runtime.store.write() as session:
        if beyond := beyond_own(service, session, capabilities):
            raise NotAuthorised(f"this node itself may not {'; '.join(words(beyond))}; a page cannot grant more")
        name = _free_name(session, f"{agent}{OF_AGENT}address", now)
        _, code = put_new(session, name, msgspec.json.encode(capabilities), now, ADDRESS_MS, f"hkp_{lifetime_ms}_")
    address = f"{servers[0].address.rstrip('/')}{ENTER}{code}"
    return PageAddress(address, agent, words(capabilities), now + ADDRESS_MS, lifetime_ms)


def enter(service: Service, code: str) -> Entered:
    """Uses an address up. Raises UsedAddress if it was used, and nobody can use it again."""
    form, now = _CODE.fullmatch(code), service.runtime.log.physical()
    if form is None:
        raise UsedAddress
    with service.runtime.store.write() as session:
        row = session.token(form[2])
        is_right = hmac.compare_digest(content_hash(code.encode()), bytes(32) if row is None else row.hash)
        if row is None or not is_right or state_of_token(row, now) != "active":
            raise UsedAddress
        put_end(session, row, now)
        agent, lifetime_ms = row.name.partition(OF_AGENT)[0], int(form[1])
        name = _free_name(session, f"{agent}{OF_AGENT}browser", now)
        _, token = put_new(session, name, row.grants, now, lifetime_ms)
    return Entered(token, lifetime_ms)


def _free_name(session: Session, name: str, now: int) -> str:
    """The name with the smallest number that no token in force has."""
    taken = {each.name for each in session.tokens() if state_of_token(each, now) == "active"}
    return next(each for each in (f"{name}-{number}" for number in count(1)) if each not in taken)


def leave(service: Service, id: str) -> None:
    """Revokes the token of a browser."""
    with service.runtime.store.write() as session:
        row = session.token(id)
        if row is not None and OF_AGENT in row.name and row.revoked is None:
            put_end(session, row, service.runtime.log.physical())
    service.runtime.home.mark_revoked_token()
