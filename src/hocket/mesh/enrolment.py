"""How a node joins a mesh. A node of the mesh makes an invitation, a token with its addresses and a secret. The new
node makes its own key, which never leaves its machine, and asks to be admitted. The inviting node issues the delegation
with its own key, so no step needs the user's key. An invitation is valid for one key, for a limited time. Asking again
with the same key gives the same answer, so an interrupted join is simply repeated.

`invite`, `cancel` and `answer` are the inviting side; `ask`, `welcomed` and `enter` the joining side, in this order.
The kernel's authority decides what a node may do and may delegate.
"""

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from hocket.errors import Conflict, Failed, HocketError, NotAuthorised, Unreachable, Usage
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority
from hocket.kernel.capabilities import grant_of
from hocket.kernel.clock import Hlc
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import SigningKey, did_key, parse_did_key
from hocket.kernel.mesh_rules import Rules, decode_rules, encode_rules
from hocket.kernel.ops import NO_ID
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import NO_QUOTA, Capability, Delegation, Quota, issue
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Log, Transaction
from hocket.log.transaction import NEWCOMER, Wall
from hocket.mesh import peers, tickets
from hocket.mesh.grants import words
from hocket.mesh.names import likeness, names, namesakes, why_not
from hocket.mesh.tickets import StoreTicket, Ticket, Welcome
from hocket.mesh.wire import JSON, Reply, Request
from hocket.store import Invitation, LocalSession

JOIN = "/v1/join"
VALID_MS_DEFAULT = 3_600_000
VALID_MS_MAX = 30 * 86_400_000
INVITATIONS_MAX = 1_000
# A node's delegations are read at each of its actions; beyond this number it must be revoked and invited again.
DELEGATIONS_MAX = 32
_CANCELLED = 0

Send = Callable[[str, Request], Reply]


class InvitationTerms(msgspec.Struct, frozen=True):
    """What an invitation grants, as it is stored. `lifetime_s` counts from the join. `cid` is the delegation that was
    issued under it.
    """

    att: tuple[Capability, ...]
    lifetime_s: int | None = None
    cid: str | None = None
    quota: Quota = NO_QUOTA


class Invited(NamedTuple):
    """A new invitation. `ends` is when the delegation would end, in seconds, if the node joined now; `renews` is the
    existing node of that name.
    """

    token: str
    ticket: Ticket
    ends: int | None
    renews: int | None


# The inviting side.


def invite(
    log: Log,
    key: SigningKey,
    name: str,
    capabilities: tuple[Capability, ...],
    *,
    addresses: Sequence[str],
    valid_ms: int = VALID_MS_DEFAULT,
    lifetime_s: int | None = None,
    quota: Quota = NO_QUOTA,
    shares_store: bool = False,
    randomness: Callable[[int], bytes] = os.urandom,
) -> Invited:
    """Makes an invitation. Raises NotAuthorised if this node may not grant these capabilities. If a node in the mesh
    has this name, the invitation is for that node and gives it a further delegation. A node that `shares_store` needs
    the capability for that among the others.
    """
    if (fault := why_not(name)) is not None:
        raise Usage(f"{name!r} cannot be a node's name: {fault}; choose one like gpu-box")
    if not 0 < valid_ms <= VALID_MS_MAX:
        raise Usage(f"an invitation is valid for at most {VALID_MS_MAX // 86_400_000} days")
    if lifetime_s is not None and lifetime_s <= 0:
        raise Usage("a delegation must last longer; give a longer --expires")
    if not 0 < len(addresses) <= tickets.ADDRESSES_MAX:
        raise Usage(f"an invitation carries 1 to {tickets.ADDRESSES_MAX} addresses")
    secret = randomness(tickets.SECRET_BYTES)

    def request(tx: Transaction) -> Invited:
        open_ones = [each for each in tx.session.invitations() if is_open(each, tx.now)]
        for each in open_ones:
            if each.name == name:
                raise Conflict(f"{name} is already invited; `hocket mesh invite --cancel {name}` cancels that")
            if likeness(each.name) == likeness(name):
                raise Conflict(f"{each.name} is already invited, and {name} looks like it; choose another name")
        if len(open_ones) >= INVITATIONS_MAX:
            raise Conflict(f"{len(open_ones)} invitations are open; cancel some")
        # A throw-away key tests whether this can be granted.
        terms = InvitationTerms(capabilities, lifetime_s, quota=quota)
        tried = _issue(tx, log.user, key, SigningKey(randomness(32)).public, name, terms, trial=True)
        renews = _renewed(tx, name)
        expires = tx.now + valid_ms
        grants = msgspec.json.encode(terms)
        tx.session.put_invitation(Invitation(tickets.key_of(secret), name, grants, expires, None, tx.now))
        kind = StoreTicket if shares_store else Ticket
        ticket = kind(parse_did_key(log.user), key.public, secret, expires // 1000, tuple(addresses))
        return Invited(tickets.token(ticket), ticket, read_ucan(tried).expires, renews)

    return log.run(request)


def is_open(invitation: Invitation, now: int) -> bool:
    return invitation.used_by is None and invitation.expires > now


def is_cancelled(invitation: Invitation) -> bool:
    return invitation.expires == _CANCELLED


def terms_of(invitation: Invitation) -> InvitationTerms:
    return decode_json(invitation.grants, InvitationTerms)


def cancel(log: Log, name: str) -> None:
    """Cancels the open invitation of that name."""

    def request(tx: Transaction) -> Invitation:
        for each in tx.session.invitations():
            if each.name == name and is_open(each, tx.now):
                tx.session.put_invitation(each._replace(expires=_CANCELLED))
                return each
        raise Usage(f"no open invitation for {name!r}; `hocket mesh invite --list` shows them")

    _end(log, log.run(request))


def _end(log: Log, invitation: Invitation) -> None:
    """After the commit, since an invitation that was not used can still be used."""
    with log.store.read() as session:
        session.end_row("invitations", invitation)


class _JoinRefused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        body = msgspec.json.encode({"error": code, "message": message})
        self.reply = Reply(status, {"content-type": JSON}, body)


def answer(log: Log, key: SigningKey, request: Request) -> Reply:
    """The inviting node's answer to a request to join. A caller that does not know an invitation's secret learns
    nothing else; a caller that knows it learns what is wrong.
    """
    try:
        if len(request.body) > tickets.MESSAGE_BYTES_MAX:
            raise _JoinRefused(413, "unknown", "the request is too long")
        try:
            asked = tickets.read_request(request.body)
        except Malformed:
            raise _JoinRefused(403, "unknown", "unknown invitation") from None
        with log.store.read() as session:
            # Strangers are refused before they could delay a writer.
            before = _invited(session, asked)
        reply = log.run(lambda tx: _let_in(tx, log, key, asked))
    except _JoinRefused as refused:
        return refused.reply
    if before.used_by is None:
        _end(log, before)
    return reply


def refusal_of(reply: Reply) -> str:
    """Why a node was not admitted, in one word; empty if the reply does not say."""
    try:
        return decode_json(reply.body, dict[str, str]).get("error", "")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""


def _invited(session: LocalSession, asked: tickets.JoinRequest) -> Invitation:
    """The invitation whose secret the request proves."""
    for each in session.invitations():
        if tickets.id_of(each.secret_hash) == asked.invitation and asked.is_vouched_for(each.secret_hash):
            return each
    raise _JoinRefused(403, "unknown", "unknown invitation")


def _let_in(tx: Transaction, log: Log, key: SigningKey, asked: tickets.JoinRequest) -> Reply:
    invitation = _invited(tx.session, asked)
    terms = terms_of(invitation)
    if invitation.used_by is None:
        if not is_open(invitation, tx.now):
            code = "cancelled" if is_cancelled(invitation) else "expired"
            raise _JoinRefused(410, code, "the invitation is no longer valid")
        terms = _admit(tx, log, key, asked, invitation, terms)
    elif invitation.used_by != asked.public:
        raise _JoinRefused(410, "used", "the invitation was used by another node")
    return _welcome(tx, log, asked.public, invitation, terms)


def _admit(
    tx: Transaction,
    log: Log,
    key: SigningKey,
    asked: tickets.JoinRequest,
    invitation: Invitation,
    terms: InvitationTerms,
) -> InvitationTerms:
    """Delegates to the node and marks the invitation used."""
    name = invitation.name
    if asked.name not in (None, name):
        raise _JoinRefused(409, "name", "the invitation fixes the node's name")
    node = node_id(asked.public)
    # One key belongs to one node: a second node with the same key would be taken for the first.
    held = tx.projection.permissions.authority.held(node)
    if node == tx.node or (held and names(tx.projection.permissions).get(node) != name):
        raise _JoinRefused(409, "key", "a node with this key is already in the mesh under another name")
    if not namesakes(tx.projection.permissions, name, tx.now).keys() <= {node}:
        raise _JoinRefused(
            409, "name", "another node of this name, or of one that looks like it, is already in the mesh"
        )
    if _count(tx, node) >= DELEGATIONS_MAX:
        raise _JoinRefused(409, "many", "the node already holds the most delegations that a node may")
    try:
        token = _issue(tx, log.user, key, asked.public, name, terms)
    except NotAuthorised:
        raise _JoinRefused(403, "authority", "the inviting node may no longer grant what it offered") from None
    permissions = tx.projection.permissions
    if any(each.cid == content_hash(token) and permissions.authority.fault(each) for each in permissions.delegations):
        # The same grants in the same second give the same delegation, and that one was revoked.
        raise _JoinRefused(503, "again", "ask again in a second")
    if isinstance(tx.author(DelegateUcan(content_hash(token), token)), Reason):
        raise _JoinRefused(403, "authority", "the inviting node may no longer grant what it offered")
    terms = msgspec.structs.replace(terms, cid=content_hash(token).hex())
    tx.session.put_invitation(invitation._replace(used_by=asked.public, grants=msgspec.json.encode(terms)))
    return terms


def _welcome(tx: Transaction, log: Log, public: bytes, invitation: Invitation, terms: InvitationTerms) -> Reply:
    assert terms.cid is not None
    by_cid = {each.cid: each.token for each in tx.session.delegations()}
    cid = bytes.fromhex(terms.cid)
    permissions = tx.projection.permissions
    delegation = read_ucan(by_cid[cid])
    if permissions.authority.fault(delegation) is not None:
        raise _JoinRefused(403, "revoked", "the node was admitted and later revoked")
    chain: list[bytes] = []
    waiting = list(delegation.proofs)
    while waiting:
        parent = waiting.pop()
        if parent not in chain:
            chain.append(parent)
            waiting += read_ucan(by_cid[parent]).proofs
    welcome = Welcome(
        by_cid[cid].decode("ascii"),
        tuple(by_cid[each].decode("ascii") for each in reversed(chain)),
        encode_rules(log.rules).hex(),
        tx.now,
    )
    return Reply(200, {"content-type": JSON}, tickets.make_answer(invitation.secret_hash, public, welcome))


def _issue(
    tx: Transaction,
    user: str,
    key: SigningKey,
    public: bytes,
    name: str,
    terms: InvitationTerms,
    *,
    trial: bool = False,
) -> bytes:
    """This node's delegation to another node. Raises NotAuthorised if this node lacks what it would grant. The time
    since the trial may have shortened it.
    """
    permissions = tx.projection.permissions
    now_s = tx.now // 1000
    held = [
        each
        for each in permissions.authority.held(tx.node)
        if permissions.authority.fault(each) is None
        and each.not_before <= now_s
        and (each.expires is None or now_s < each.expires)
    ]
    parents = _parents(permissions.authority, held, terms.att)
    ends = [each.expires for each in parents if each.expires is not None]
    expires = None if terms.lifetime_s is None else now_s + terms.lifetime_s
    if expires is None:
        expires = min(ends, default=None)
    elif ends and expires > min(ends):
        if trial:
            days = (min(ends) - now_s) / 86_400
            raise NotAuthorised(f"this node's own delegation ends in {days:.1f} days; choose a shorter --expires")
        expires = min(ends)
    try:
        token = issue(key, public, terms.att, now_s, expires, [each.cid for each in parents], name, terms.quota)
    except Malformed as error:
        raise Usage(f"cannot grant that: {error}") from None
    delegation = read_ucan(token)
    fault = Authority(user, [*permissions.delegations, delegation], ()).fault(delegation)
    if fault is not None:
        raise NotAuthorised(f"this node cannot grant that: {fault.sentence}")
    return token


def _parents(authority: Authority, held: list[Delegation], att: tuple[Capability, ...]) -> list[Delegation]:
    """This node's delegations that cover the grants and let it delegate: one if one is enough, the longest first."""
    held = sorted(held, key=lambda each: (each.expires is not None, -(each.expires or 0)))
    if not any(map(_passes_on, held)):
        raise NotAuthorised("this node may not invite others; ask the owner for an invitation with registration:write")
    for each in held:
        if _passes_on(each) and all(_covers(authority, each, capability) for capability in att):
            return [each]
    chosen: list[Delegation] = []
    for capability in att:
        parent = next((each for each in held if _covers(authority, each, capability)), None)
        if parent is None:
            raise NotAuthorised(f"this node cannot let another node {words([capability])[0]}: it may not do so itself")
        if parent not in chosen:
            chosen.append(parent)
    if not any(map(_passes_on, chosen)):
        chosen.append(next(filter(_passes_on, held)))
    return chosen


def _covers(authority: Authority, parent: Delegation, capability: Capability) -> bool:
    grant = grant_of(capability)
    return grant is not None and any(map(grant.within, authority.passed_on(parent)))


def _passes_on(delegation: Delegation) -> bool:
    """Whether its holder may invite others."""
    grants = map(grant_of, delegation.capabilities)
    return any(grant is not None and grant.covers("Registration", "Write") for grant in grants)


def _renewed(tx: Transaction, name: str) -> int | None:
    """The existing node that an invitation of this name is for. Raises Conflict if the name is ambiguous."""
    found = namesakes(tx.projection.permissions, name, tx.now)
    for node, known in found.items():
        if known != name:
            raise Conflict(f"{name} looks too much like {known}, which is already in the mesh; choose another name")
        if len(found) > 1:
            raise Conflict(f"{len(found)} nodes in the mesh are called {name}; choose another name")
        if (count := _count(tx, node)) >= DELEGATIONS_MAX:
            raise Conflict(
                f"{name} already holds {count} delegations; revoke it, then invite it with all that it needs"
            )
    return next(iter(found), None)


def _count(tx: Transaction, node: int) -> int:
    authority = tx.projection.permissions.authority
    return sum(authority.fault(each) is None for each in authority.held(node))


# The joining side.


class Welcomed(NamedTuple):
    """What a node needs to start: checked, and traced back to the user named in the token."""

    delegation: Delegation
    tokens: tuple[bytes, ...]
    rules: Rules
    wall: int
    inviter: bytes
    address: str


_SENTENCES = {
    "unknown": "the inviting node does not know this invitation; check that it was made there, for this mesh",
    "expired": "the invitation has expired; ask for a new one",
    "cancelled": "the invitation was cancelled; ask for a new one",
    "used": "another node has already used the invitation; ask for a new one",
    "key": "a node with this home's key is already in the mesh under another name; choose another --home",
    "name": "another node already has this name, or one like it; ask for an invitation under another name",
    "many": "this node already holds the most delegations that a node may; ask the owner to revoke it",
    "authority": "the inviting node may no longer grant what it offered; ask the owner for an invitation",
    "revoked": "this node was admitted and later revoked; choose another --home and ask for a new invitation",
}
_CONFLICTS = frozenset({"used", "key", "name", "many"})


def parse(text: str) -> Ticket:
    """The content of a token. Raises Usage if it is incomplete, mistyped, or not a token."""
    try:
        return tickets.parse_token(text)
    except Malformed as error:
        raise Usage(f"bad invitation: {error}; copy the whole token again") from None


def ask(ticket: Ticket, node: SigningKey, send: Send, wall: Wall) -> Welcomed:
    """Asks the inviting node to be admitted, at each of its addresses in turn, and checks its answer."""
    request = Request("POST", JOIN, headers={"content-type": JSON}, body=tickets.make_request(ticket, node))
    silent: list[str] = []
    for address in ticket.addresses:
        try:
            reply = send(address, request)
        except Unreachable as error:
            silent.append(str(error))
            continue
        if reply.status == 200:
            return welcomed(ticket, node, reply.body, address, wall(0))
        if reply.status < 500 and reply.status != 429:
            raise _refusal(reply)
        silent.append(f"{address} answered with status {reply.status}")
    late = ticket.expires * 1000 < wall(0)
    raise Unreachable(
        f"the inviting node does not answer ({'; '.join(silent)}); check that `hocket mesh serve` is running there."
        + (" By this machine's clock the invitation has also expired." if late else " Join again with the same token.")
    )


def _refusal(reply: Reply) -> HocketError:
    code = refusal_of(reply)
    sentence = _SENTENCES.get(code, f"the inviting node refused (status {reply.status}); check its address")
    return Conflict(sentence) if code in _CONFLICTS else NotAuthorised(sentence)


def welcomed(ticket: Ticket, node: SigningKey, body: bytes, address: str, physical: int) -> Welcomed:
    """Checks an answer: it must come from the inviting node, for this node, in the mesh of the user named in the
    token.
    """
    try:
        welcome = tickets.read_answer(ticket, node.public, body)
        tokens = tuple(text.encode("ascii") for text in (welcome.ucan, *welcome.chain))
        delegations = [read_ucan(each) for each in tokens]
        rules = decode_rules(bytes.fromhex(welcome.rules))
    except (Malformed, ValueError) as error:
        raise NotAuthorised(f"the answer at {address} cannot be trusted: {error}") from None
    mine = delegations[0]
    if mine.public != node.public or mine.issuer != did_key(ticket.inviter):
        raise NotAuthorised(f"the answer at {address} is for another node, or from another")
    fault = Authority(ticket.user_did, delegations, ()).fault(mine)
    if fault is not None:
        raise NotAuthorised(f"the delegation from {address} does not lead back to the user: {fault.sentence}")
    apart = abs(welcome.wall - physical)
    bound = None if rules.extensions is None else rules.extensions.skew_ms
    if bound is not None and apart > bound:
        raise Failed(
            f"this machine's clock and the inviting node's are {apart // 1000} seconds apart; correct them"
            " and join again with the same token"
        )
    return Welcomed(mine, tokens, rules, welcome.wall, ticket.inviter, address)


def enter(log: Log, entry: Welcomed, trust: peers.Trust | None = None) -> None:
    """Writes what makes this node a member: first its own delegation, which states its key, then the delegations that
    it relies on, so that every node can follow the chain to the user; and adds the inviting node as a peer. They are
    ops of this node: another author's ops may not be admitted without all ops before them.
    """

    def request(tx: Transaction) -> None:
        # No op of this node may be older than its delegation.
        tx.hear(Hlc(entry.wall, 0, node_id(entry.inviter)))
        known = {each.cid for each in tx.session.delegations()}
        for token in entry.tokens:
            if content_hash(token) not in known:
                tx.author(DelegateUcan(content_hash(token), token))
        tx.session.set_own_meta(NEWCOMER, b"1")
        peers.add(tx.session, entry.address, tx.physical, node_id(entry.inviter), trust)

    log.run(request)


def share(log: Log, entry: Welcomed) -> None:
    """Makes this node one of those that share the store: writes its own delegation, which states its key. Everything
    else is on the log already. Raises Conflict if it is another log.
    """

    def request(tx: Transaction) -> None:
        token = entry.tokens[0]
        if content_hash(token) not in {each.cid for each in tx.session.delegations()}:
            raise Conflict(
                "this store does not have the inviting node's log; give the address of the store that it uses, with"
                " --store or HOCKET_STORE, and join again with the same token"
            )
        if tx.session.latest_of(tx.node.to_bytes(8, "big"))[1] == NO_ID:
            tx.author(DelegateUcan(content_hash(token), token))

    log.run(request)
