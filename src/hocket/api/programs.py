"""Programs: how a program that is no node uses this node over HTTP, with a token. A token grants no more than this node
may do itself, and ends when it expires or is revoked. The store keeps its hash, so it is shown only once. A program
speaks as the agent that has the token's name, or as one of that agent's own (`ci/build` of `ci`).

A program may mark a request with a key, so that it can repeat it without doing it twice: the answer is kept for a day
and given again to a request with the same key. A request whose outcome is not known, because the server died or could
not reach the coordinator, is not done again either.
"""

import hmac
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from hocket.api import OF_AGENT, Program, Service, ServiceAnswer
from hocket.api.operation import InShell, OperationGroup, operation
from hocket.api.views import Line, Pairs, View, at, moment, seen, table
from hocket.errors import Conflict, HocketError, NotAuthorised, NotFound, StoreError, Usage
from hocket.kernel.capabilities import Grant, grant_of, held_grants
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash
from hocket.kernel.jws import base64url
from hocket.kernel.ucan import ROOT, Capability
from hocket.mesh.grants import parse_grants, words
from hocket.mesh.tickets import PREFIX, STORE_PREFIX
from hocket.node.variables import MESH_TOKEN
from hocket.store import AnswerRow, Session, TokenRow

TOKENS_MAX = 1_000
SECRET_BYTES = 32
ID_BYTES = 6
LIFETIME_MS_MAX = 100 * 365 * 86_400_000
# A use is noted again after this long.
USED_AGAIN_MS = 60_000
# A secret that the operator chose must be hard to guess.
CHOSEN_CHARS_MIN = 32
CHOSEN = "HOCKET_TOKEN"
# Where `hocket mesh serve` listens unless it is told otherwise, and the path that every token may read.
SERVER_ADDRESS = "http://127.0.0.1:7315"
DESCRIPTION = "/v1/openapi.json"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"hkt_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class UnknownToken(HocketError):
    """The token is not one of this node's, or is no longer in force."""

    exit_code = 4


class TokenShown(ServiceAnswer, frozen=True):
    """`state` is active, expired or revoked; `id` is the public part of the token, after `hkt_`."""

    name: str
    id: str
    state: str
    may: list[str]
    made_ms: int
    expires_ms: int | None
    revoked_ms: int | None
    used_ms: int | None


class TokenMade(TokenShown, frozen=True):
    """`token` is the secret. Nothing shows it again. `curl` is a command that tries it, and changes nothing."""

    token: str
    curl: str


def _show_made(made: TokenMade) -> Iterator[View]:
    yield Line(made.token)
    pairs = [("name", made.name), ("may", "; ".join(made.may)), ("expires", moment(made.expires_ms) or "never")]
    yield Pairs([*pairs, ("try it", made.curl)])


@operation("create_token", "POST", command="token create", show=_show_made)
def create(
    service: Service,
    name: Annotated[str, Meta(description="The token's name, and its agent's.")],
    may: Annotated[
        Sequence[str],
        Meta(description="resource:action[:prefix], or `all`; may be repeated."),
        InShell("--may", metavar="GRANT"),
    ] = (),
    lifetime_ms: Annotated[
        int,
        Meta(description="How long it is valid, like 30d; default: ever."),
        InShell("--expires", metavar="DURATION", form="duration"),
    ]
    | None = None,
) -> TokenMade:
    """Create a token and print it. Nothing prints it again: the node keeps only its hash.

    A grant is written as for `hocket mesh invite`, such as lock:acquire:file:src/, inbox:write:team/,
    row:write:memories/, mesh:read. A token grants only what --may names, and never more than this node may do itself.
    The program speaks as the agent NAME, or as NAME/anything. It sends the token in the header `Authorization: Bearer
    TOKEN`; the last line is a command that tries this.

    \b
      hocket token create ci --may lock:acquire:file:src/ --expires 30d
      hocket token create worker --may job:all:acme.
      hocket token create planner --may inbox:write --may inbox:claim:planner --may mesh:read
    """
    service.check_writer()
    if _NAME.fullmatch(name) is None or name.lower() == "all":
        raise Usage(
            f"bad name {name!r}: the name of a token has 1 to 64 letters, digits, dots and dashes, begins with a letter"
            " or digit, and is not `all`"
        )
    if lifetime_ms is not None and not 0 < lifetime_ms <= LIFETIME_MS_MAX:
        raise Usage("a token expires after more than no time and at most 100 years; leave out --expires for never")
    capabilities, now = parse_grants(may, of_node=False), service.runtime.log.physical()
    with service.runtime.store.write() as session:
        if any(each.name == name and state_of_token(each, now) == "active" for each in session.tokens()):
            raise Conflict(f"the token {name} is in force; revoke it first, or choose another name")
        if beyond := beyond_own(service, session, capabilities):
            raise NotAuthorised(f"this node itself may not {'; '.join(words(beyond))}; a token cannot grant more")
        made, token = put_new(session, name, msgspec.json.encode(capabilities), now, lifetime_ms)
    shown = msgspec.structs.asdict(_shown(made, now))
    return TokenMade(**shown, token=token, curl=_curl(service, token, capabilities))


def put_new(
    session: Session, name: str, grants: bytes, now: int, lifetime_ms: int | None, start: str = "hkt_"
) -> tuple[TokenRow, str]:
    """Adds a token, or replaces the one of that name. Its secret has `start`, the public id, and what is random."""
    known = {each.name for each in session.tokens()}
    if len(known) >= TOKENS_MAX and name not in known:
        raise Conflict(f"this node has {TOKENS_MAX} tokens, and no more fit; use the name of one that has ended")
    id = os.urandom(ID_BYTES).hex()
    token = f"{start}{id}_{base64url(os.urandom(SECRET_BYTES)).decode()}"
    row = TokenRow(
        name, id, content_hash(token.encode()), grants, now, None if lifetime_ms is None else now + lifetime_ms
    )
    session.put_token(row)
    return row, token


# What a token may read, and the path that shows some of it. The path of jobs takes the prefix of the grant.
_TRIALS = (
    *(("Job", "Read", "/v1/jobs"), ("Lock", "Read", "/v1/locks"), ("Inbox", "Read", "/v1/inbox")),
    *(("Mesh", "Read", "/v1/nodes"), ("Artifact", "Read", "/v1/artifacts")),
)


def _curl(service: Service, token: str, capabilities: Sequence[Capability]) -> str:
    """A command that tries the token at the server of this home, or where that would be."""
    from hocket.node.running import running_servers

    servers = running_servers(service.runtime.home.processes)
    address = servers[0].address if servers else SERVER_ADDRESS
    path = DESCRIPTION
    for resource, action, each in _TRIALS:
        grant = next((grant for grant in map(grant_of, capabilities) if grant and grant.covers(resource, action)), None)
        # An inbox is an agent's, and the prefix may be for another.
        if grant is not None and not (grant.key_prefix and resource == "Inbox"):
            path = f"{each}?kind={grant.kind_prefix[0]}" if each == "/v1/jobs" and grant.kind_prefix else each
            break
    return f"curl -H 'Authorization: Bearer {token}' '{address}{path}'"


_show = table(
    TokenShown,
    "no tokens",
    {
        "name": "name",
        "state": "state",
        "id": "id",
        "expires": at("expires_ms", "never"),
        "last used": seen("used_ms"),
        "may": lambda each: "; ".join(each.may),
    },
)


@operation("list_tokens", "GET", command="token list", show=_show)
def listing(service: Service) -> list[TokenShown]:
    """List the tokens: what each may do, until when, and when it was last used.

    \b
      hocket token list
      hocket token list --json | jq '.[] | select(.state == "active").name'
    """
    now = service.runtime.log.physical()
    with service.read() as session:
        return [_shown(each, now) for each in session.tokens()]


@operation(
    "revoke_token", "POST", command="token revoke", show=lambda shown: [Line(f"the token {shown.name} is revoked")]
)
def revoke(service: Service, name: Annotated[str, Meta(description="The token's name.")]) -> TokenShown:
    """Revoke a token. The server refuses it from the next request on.

    \b
      hocket token revoke ci
    """
    service.check_writer()
    now = service.runtime.log.physical()
    with service.runtime.store.write() as session:
        found = next((each for each in session.tokens() if each.name == name), None)
        if found is None:
            raise NotFound(f"no token {name!r}; `hocket token list` lists them")
        if found.revoked is None:
            found = put_end(session, found, now)
    service.runtime.home.mark_revoked_token()
    return _shown(found, now)


def put_end(session: Session, row: TokenRow, now: int) -> TokenRow:
    """Revokes a token. Nobody can put the row back as it was."""
    session.end_row("tokens", row)
    ended = row._replace(revoked=now)
    session.put_token(ended)
    return ended


def recognise(service: Service, text: str, chosen: str | None = None) -> Program:
    """The program that shows this token. `chosen` is a secret that the operator has set for programs that may do all
    that this node may. Raises UnknownToken.
    """
    log = service.runtime.log
    now = log.physical()
    if chosen is not None and hmac.compare_digest(content_hash(text.encode()), content_hash(chosen.encode())):
        with service.runtime.store.read() as session:
            return Program(CHOSEN, None, _held(service, session, ROOT, now))
    form = _TOKEN.fullmatch(text)
    if form is None:
        raise UnknownToken("the token is malformed; make one with `hocket token create`")
    with service.runtime.store.read() as session:
        row = session.token(form[1])
        # A wrong id takes as long as a wrong secret.
        is_right = hmac.compare_digest(content_hash(text.encode()), bytes(32) if row is None else row.hash)
        if row is None or not is_right:
            raise UnknownToken("this node does not know the token")
        if (state := state_of_token(row, now)) != "active":
            raise UnknownToken(f"the token {row.name} is {state}")
        held = _held(service, session, decode_json(row.grants, tuple[Capability, ...]), now)
    if row.used is None or now - row.used >= USED_AGAIN_MS:
        _note_use(service, row, now)
    return Program(row.name, row.name.partition(OF_AGENT)[0], held, row.expires, row.id)


def own_process(service: Service, agent: str, capabilities: Sequence[Capability] = ROOT) -> Program:
    """This process as a program that speaks for one agent, with what the capabilities grant now."""
    with service.runtime.store.read() as session:
        held = _held(service, session, capabilities, service.runtime.log.physical())
    return Program(agent, agent, held, is_process=True)


def in_force(service: Service, id: str) -> Program | None:
    """The program with the token of this public id; None if the token has ended."""
    now = service.runtime.log.physical()
    with service.runtime.store.read() as session:
        row = session.token(id)
        if row is None or state_of_token(row, now) != "active":
            return None
        held = _held(service, session, decode_json(row.grants, tuple[Capability, ...]), now)
    return Program(row.name, row.name.partition(OF_AGENT)[0], held, row.expires, row.id)


def chosen_token(environment: dict[str, str]) -> str | None:
    """The secret that the operator has set for programs, in either variable. A token of `hocket token create` is not
    one: it is there for a program that this process starts, and maybe for another node. Nor is an invitation.
    """
    for name in (CHOSEN, MESH_TOKEN):
        text = environment.get(name, "").strip()
        if text and not text.startswith(("hkt_", PREFIX, STORE_PREFIX)):
            return _checked_secret(name, text)
    return None


def check_mesh_token(text: str) -> None:
    """Raises Usage if this can be neither an invitation nor a secret for programs."""
    if not text.startswith(("hkt_", PREFIX, STORE_PREFIX)):
        _checked_secret(MESH_TOKEN, text)


def _checked_secret(name: str, text: str) -> str:
    if len(text) < CHOSEN_CHARS_MIN or not text.isascii() or not text.isprintable() or " " in text:
        raise Usage(
            f"{name} must have at least {CHOSEN_CHARS_MIN} printable ASCII characters and no space; make one with"
            " `openssl rand -hex 32`, or unset it"
        )
    return text


def _held(service: Service, session: Session, capabilities: Sequence[Capability], now: int) -> tuple[Grant, ...]:
    """What the capabilities grant now: what this node may no longer do, its programs may not do either."""
    log = service.runtime.log
    own = log.permissions(session).authority.grants(log.node, now)
    return tuple(own if capabilities is ROOT else held_grants(capabilities, own))


def beyond_own(service: Service, session: Session, capabilities: Sequence[Capability]) -> list[Capability]:
    held = _held(service, session, capabilities, service.runtime.log.physical())
    return [each for each in capabilities if grant_of(each) not in held]


def _note_use(service: Service, row: TokenRow, now: int) -> None:
    with suppress(StoreError), service.runtime.store.write() as session:
        found = session.token(row.id)
        if found is not None:
            session.put_token(found._replace(used=now))


def state_of_token(row: TokenRow, now: int) -> str:
    if row.revoked is not None:
        return "revoked"
    return "expired" if row.expires is not None and row.expires <= now else "active"


def _shown(row: TokenRow, now: int) -> TokenShown:
    may = words(decode_json(row.grants, tuple[Capability, ...]))
    return TokenShown(row.name, row.id, state_of_token(row, now), may, row.made, row.expires, row.revoked, row.used)


KEPT_MS = 86_400_000
KEYS_PER_PROGRAM_MAX = 10_000
KEY_CHARS_MAX = 255


class KeptAnswer(NamedTuple):
    status: int
    body: bytes


class TooManyKeys(Conflict):
    """A program has used too many keys within a day."""


class KeyReused(Usage):
    """A key stands for another request."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the Idempotency-Key {key!r} was used for another request; take a new one")


class KeyUnderWay(Conflict):
    """The first request with a key has not ended."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the first request with the Idempotency-Key {key!r} has not ended; send it again in a moment to get its"
            " answer"
        )


class OutcomeUnknown(Conflict):
    """A request with this key was begun, and nothing says whether it was done."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the outcome of the first request with the Idempotency-Key {key!r} is not known;"
            " look whether it was done before you take a new key"
        )


class KeyedRequest:
    """A request that a program has marked with a key. `content` is a hash of everything that the request says."""

    def __init__(self, service: Service, program: str, key: str, content: bytes) -> None:
        self._runtime, self._program, self._key, self._content = service.runtime, program, key, content

    def begin(self) -> KeptAnswer | None:
        """The answer to an earlier request with this key; None if this is the first one. Raises KeyReused if the key
        stands for another request, and OutcomeUnknown if the first one did not end.
        """
        key = self._key
        if not 0 < len(key) <= KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
            raise Usage(f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} printable ASCII characters")
        now = self._runtime.log.physical()
        with self._runtime.store.write() as session:
            session.drop_answers(now - KEPT_MS)
            known = session.answer(self._program, key)
            if known is None:
                if session.answer_count(self._program) >= KEYS_PER_PROGRAM_MAX:
                    raise TooManyKeys(f"this token has used {KEYS_PER_PROGRAM_MAX} keys within a day, and no more fit")
                session.put_answer(AnswerRow(self._program, key, self._content, None, None, now))
                return None
        if known.request != self._content:
            raise KeyReused(key)
        if known.status is None:
            raise OutcomeUnknown(key)
        return KeptAnswer(known.status, known.body or b"")

    def keep(self, answer: KeptAnswer) -> None:
        row = AnswerRow(self._program, self._key, self._content, *answer, self._runtime.log.physical())
        with self._runtime.store.write() as session:
            session.put_answer(row)

    def forget(self) -> None:
        """The request did nothing, so it may be tried again."""
        with self._runtime.store.write() as session:
            session.drop_answer(self._program, self._key)


commands = OperationGroup(
    """Tokens of programs that use this node over HTTP, while `hocket mesh serve` runs.

    \b
      hocket token create ci --may lock:acquire:file:src/ --expires 30d
      hocket token list
      hocket token revoke ci
    """,
    *(create, listing, revoke),
)
