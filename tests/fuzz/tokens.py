"""The targets that decide whom to believe: bearer tokens, delegations and what they allow, invitations and the messages
of joining, and the query of a request. The real keys have signed only what is listed here, so whatever else is accepted
in their name is a finding, be it one bit away, put together of two good ones, or spelled in another way.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from hocket.kernel import ucan
from hocket.kernel import vocabulary as v
from hocket.kernel.authority import Authority, Standing
from hocket.kernel.frontier import Frontier, frontier_text
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.jws import Bearer, canonical_json, check_bearer, make_bearer, read_bearer
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.postcard import Malformed, Reader
from hocket.kernel.ucan import Capability, Delegation
from hocket.mesh import gate_requests, tickets
from hocket.mesh.tickets import JoinRequest, Ticket, Welcome
from hocket.mesh.wire import Request
from tests.fuzz.codecs import FRONTIERS
from tests.fuzz.mutate import (
    JSON_WORDS,
    Damage,
    JsonDamage,
    Stream,
    TokenDamage,
    by_fields,
    by_punctuation,
    from_unpadded,
    repeated,
    unpadded,
)
from tests.fuzz.target import Target

NOW = 1_750_000_000
USER, NODE, OTHER, OUTSIDER = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
MALFORMED = (Malformed,)


# Bearer tokens. Two nodes are known; the outsider is not.

PUBLIC = {node_id(key.public): key.public for key in (NODE, OTHER)}
HERE = ("4711", "https://box.example")
BEARERS = [
    make_bearer(key, audience, NOW - age, f"nonce-{key.seed[0]}-{age}", 300)
    for key in (NODE, OTHER)
    for audience in HERE
    for age in (0, 30)
]
_ELSEWHERE = [
    make_bearer(NODE, "4712", NOW, "n1"),
    make_bearer(NODE, "4711", NOW - 9000, "n2"),
    make_bearer(NODE, "4711", NOW + 9000, "n3"),
    make_bearer(NODE, "4711", NOW, "n4", 3601),
    make_bearer(OUTSIDER, "4711", NOW, "n5"),
]
_GOOD_BEARERS = frozenset(BEARERS)


def _bearer(data: bytes) -> tuple[str, Bearer]:
    # A header arrives as Latin-1.
    text = data.decode("latin-1")
    return text, read_bearer(text)


def _hold_bearer(data: bytes, read: tuple[str, Bearer]) -> bool:
    text, bearer = read
    public = PUBLIC.get(bearer.node)
    if public is None or check_bearer(text, bearer, public, HERE, NOW) is not None:
        return False
    assert text in _GOOD_BEARERS, "accepted, and never made"
    return True


def _bearers(rng: Random) -> Stream:
    tokens = [text.encode() for text in (*BEARERS, *_ELSEWHERE)]

    def plausible() -> bytes:
        """In shape and in time, so that the signature alone can tell."""
        node, age = rng.choice(list(PUBLIC)), rng.randrange(200)
        nonce = f"nonce-{rng.getrandbits(16)}"
        claims = {"iss": str(node), "aud": rng.choice(HERE), "iat": NOW - age, "exp": NOW + 1 + age, "nonce": nonce}
        return msgspec.json.encode(claims)

    return TokenDamage(rng, tokens, OUTSIDER.sign, plausible)


# What stands in a bearer token, whoever signed it.

_NODE_ID = node_id(NODE.public)
_HEADER = unpadded(canonical_json({"alg": "EdDSA", "kid": f"node-{_NODE_ID}"}))
_CLAIMS = [
    {"iss": str(_NODE_ID), "aud": "4711", "iat": NOW, "exp": NOW + 300, "nonce": "n"},
    {"iss": str(_NODE_ID), "aud": "https://box.example", "iat": 0, "exp": 2**53 - 1, "nonce": "é" * 100},
]
CLAIMS = [by_punctuation(canonical_json(each)) for each in _CLAIMS]


def _claims(data: bytes) -> Bearer:
    return read_bearer((_HEADER + b"." + unpadded(data) + b"." + unpadded(bytes(64))).decode())


def _hold_claims(data: bytes, bearer: Bearer) -> bool:
    """A second JSON reader finds the same words; others are ignored."""
    says = json.loads(data)
    answer = says.get("hocket_answer")
    assert bearer == Bearer(
        int(says["iss"]), says["aud"], says["iat"], says["exp"], says["nonce"], answer if type(answer) is str else None
    )
    assert bearer.node == _NODE_ID and type(says["iat"]) is int and type(says["exp"]) is int
    assert 0 < len(bearer.nonce) <= 512 and 0 < len(bearer.audience) <= 512
    return True


def _claims_stream(rng: Random) -> Stream:
    text = Damage(rng, CLAIMS, JSON_WORDS + repeated([(each.data, b"") for each in CLAIMS]))
    values = JsonDamage(rng, _CLAIMS, msgspec.json.encode, ("iss", "aud", "nbf", "hocket_answer", "x"))
    return lambda: text() if rng.random() < 0.7 else values()


# Delegations.

DID = did_key(USER.public)
_CAPS = (
    Capability("Ops", "Read", {"time_range": [0, 2**50], "sanitize": ["StripGeo", "TruncateContent(8)"]}),
    Capability("Job", "*", {"kind_prefix": ["acme."], "audit_inference": True}),
    Capability("Evidence", "Write", {"source_types": ["photo", "mail"]}),
    Capability("Claim", "Write", {"predicates": ["age"]}),
)
ROOT = ucan.issue(USER, NODE.public, ucan.ROOT, 0, None, name="home")
_PASS_ON = Capability("Registration", "Write", {})
SCOPED = ucan.issue(USER, OTHER.public, (*_CAPS, _PASS_ON), 100, NOW + 10_000, name="box")
UCANS = [ROOT, SCOPED, ucan.issue(NODE, OTHER.public, _CAPS[:2], 0, NOW, (content_hash(ROOT),))]
FOREIGN = [
    ucan.issue(OUTSIDER, OUTSIDER.public, ucan.ROOT, 0, None, name="me"),
    ucan.issue(OUTSIDER, OUTSIDER.public, _CAPS, 0, None, (content_hash(ROOT),)),
    ucan.issue(OUTSIDER, NODE.public, _CAPS, 0, NOW, (content_hash(SCOPED), content_hash(ROOT))),
]
_GOOD_UCANS = frozenset(UCANS)
_REAL = frozenset(did_key(key.public) for key in (USER, NODE, OTHER))
_STANDING = [ucan.read(token) for token in UCANS]
_NOBODY = node_id(OUTSIDER.public)
_ID = bytes(16)
_ASKED: tuple[tuple[v.Payload, str | None], ...] = (
    (v.ScheduleJob(_ID, "acme.render", b"", b""), "acme.render"),
    (v.ClaimWork(_ID, 1, 1), "other.kind"),
    (v.IngestEvidence(_ID, bytes(32), "photo", "a"), None),
    (v.AddEntityAlias(_ID, "a"), None),
    (v.DesignateCoordinator(1), None),
)
_TIMES = (0, 150_000, NOW * 1000, (NOW + 20_000) * 1000)


def _hold_ucan(data: bytes, delegation: Delegation) -> bool:
    if data in _GOOD_UCANS:
        return True
    assert delegation.issuer not in _REAL, "accepted in the name of a key that never signed it"
    assert delegation.cid == content_hash(data) and node_id(delegation.public) == delegation.node
    _hold_nothing_granted(delegation)
    return True


def _hold_nothing_granted(delegation: Delegation) -> None:
    """What an outsider signs gives no node anything that it did not have."""
    authority = Authority(DID, [*_STANDING, delegation], ())
    assert authority.fault(delegation) is not None, "a delegation of an outsider stands"
    for payload, kind in _ASKED:
        assert authority.refusal(_NOBODY, payload, NOW * 1000, kind) is not None
        assert authority.reading(_NOBODY, payload, NOW * 1000, kind, NOW * 1000) is None
    assert authority.standing(_NOBODY, NOW * 1000) is not Standing.ACTIVE
    assert not authority.is_owner(_NOBODY, NOW * 1000) and not authority.reads_everything(_NOBODY, NOW * 1000)


def _ucans(rng: Random) -> Stream:
    tokens = [*UCANS, *FOREIGN]
    payloads = [json.loads(from_unpadded(token.split(b".")[1])) for token in tokens]
    words = ("iss", "aud", "fct", "facts", "name", "sanitize", "time_range", "kind_prefix", "x")
    edits = JsonDamage(rng, payloads, _canonical, words)
    return TokenDamage(rng, tokens, OUTSIDER.sign, edits, signed_share=0.15)


def _canonical(value: Any) -> bytes:
    try:
        return canonical_json(value)
    except ValueError:
        return json.dumps(value).encode()


# What a real node's own delegation may hand on.

ATT = [by_punctuation(canonical_json(msgspec.to_builtins(caps))) for caps in (_CAPS, ucan.ROOT, _CAPS[:1], ())]


def _capabilities(data: bytes) -> Delegation:
    """As if the node behind SCOPED had signed this list."""
    capabilities = msgspec.json.decode(data, type=tuple[Capability, ...])
    if canonical_json(msgspec.json.decode(data)) != data:
        raise Malformed("not canonical")
    return Delegation(
        cid=content_hash(data), issuer=did_key(OTHER.public), audience=did_key(OUTSIDER.public),
        capabilities=capabilities, not_before=100, expires=NOW + 10_000, proofs=(content_hash(SCOPED),),
        node=_NOBODY, public=OUTSIDER.public,
    )  # fmt: skip


def _hold_capabilities(data: bytes, delegation: Delegation) -> bool:
    """A child of SCOPED may do nothing that SCOPED may not."""
    authority = Authority(DID, [_STANDING[1], delegation], ())
    parent = node_id(OTHER.public)
    for payload, kind in _ASKED:
        for wall in _TIMES:
            if authority.refusal(_NOBODY, payload, wall, kind) is None:
                assert authority.refusal(parent, payload, wall, kind) is None, "wider than its parent"
            rules = authority.reading(_NOBODY, payload, wall, kind, NOW * 1000)
            if rules is not None:
                above = authority.reading(parent, payload, wall, kind, NOW * 1000)
                assert above is not None and set(above) <= set(rules), "reads more than its parent"
    assert not authority.is_owner(_NOBODY, NOW * 1000) and not authority.reads_everything(_NOBODY, NOW * 1000)
    return authority.fault(delegation) is None


def _capability_stream(rng: Random) -> Stream:
    words = ("sanitize", "time_range", "kind_prefix", "source_types", "predicates", "audit_inference", "x", "action")
    edits = JsonDamage(rng, [json.loads(each.data) for each in ATT], _canonical, words)
    text = Damage(rng, ATT, JSON_WORDS)
    return lambda: edits() if rng.random() < 0.7 else text()


# Invitations: the line of text, the request to join and its answer.

TICKETS = [
    Ticket(USER.public, NODE.public, bytes(range(16)), NOW, ("http://192.168.1.7:7315", "https://box.example")),
    Ticket(USER.public, OTHER.public, b"s" * 16, 2**64 - 1, ()),
    Ticket(bytes(32), bytes(32), bytes(16), 0, ("é" * 20,) * tickets.ADDRESSES_MAX),
]
TOKENS = [by_punctuation(tickets.token(ticket).encode()) for ticket in TICKETS]


def _ticket(data: bytes) -> Ticket:
    return tickets.parse_token(data.decode("latin-1"))


def _hold_ticket(data: bytes, ticket: Ticket) -> bool:
    assert tickets.token(ticket) == "".join(data.decode("latin-1").split()), "not the spelling of what it says"
    return True


def _ticket_stream(rng: Random) -> Stream:
    words = (b" ", b"\n", b"=", b"+", b"/", b"hocket-1-", b"A", b"\xa0", b"\x85", b"\xe9", b"-", b"_")
    text = Damage(rng, TOKENS, words)
    bodies = [by_fields(_ticket_bytes(token.data), _read_fields) for token in TOKENS]
    inside = Damage(rng, bodies)

    def make() -> bytes:
        if rng.random() < 0.5:
            return text()
        # Somebody who knows how a token is made, so that the reader behind the checksum is reached.
        body = inside()
        return tickets.PREFIX.encode() + unpadded(body + content_hash(body)[:4])

    return make


def _ticket_bytes(token: bytes) -> bytes:
    return tickets.from_base64url(token.removeprefix(tickets.PREFIX.encode()))[:-4]


def _read_fields(r: Reader) -> None:
    for size in (32, 32, 16):
        r.take(size)
    r.varint()
    for _ in range(r.varint()):
        r.take(r.varint())


_KEY = tickets.key_of(TICKETS[0].secret)
_NAMES: Sequence[str | None] = (None, "box", "gpu-1")
REQUESTS = [
    by_punctuation(tickets.make_request(ticket, key, name))
    for ticket in TICKETS[:2]
    for key in (NODE, OTHER)
    for name in _NAMES
]
_MADE = {(tickets.id_of(_KEY), key.public, name) for key in (NODE, OTHER) for name in _NAMES}


def _hold_request(data: bytes, request: JoinRequest) -> bool:
    if not request.is_vouched_for(_KEY):
        return False
    assert (request.invitation, request.public, request.name) in _MADE, "vouched for, and never asked"
    return True


def _request_stream(rng: Random) -> Stream:
    fields = repeated([(each.data, b"") for each in REQUESTS])
    text = Damage(rng, REQUESTS, JSON_WORDS + fields)
    parsed = [json.loads(each.data) for each in REQUESTS]
    words = ("name", "mac", "key", "invitation", "signature", "x")
    edits = JsonDamage(rng, parsed, msgspec.json.encode, words)

    def mixed() -> bytes:
        return msgspec.json.encode({name: rng.choice(parsed)[name] for name in parsed[0]})

    return lambda: rng.choice((text, text, edits, mixed))()


_WELCOMES = [Welcome("a.b.c", ("d.e.f",), "00ff", NOW), Welcome("", (), "", 0)]
ANSWERS = [by_punctuation(tickets.make_answer(_KEY, key.public, w)) for w in _WELCOMES for key in (NODE, OTHER)]


def _answer(data: bytes) -> Welcome:
    return tickets.read_answer(TICKETS[0], NODE.public, data)


def _hold_answer(data: bytes, welcome: Welcome) -> bool:
    assert welcome in _WELCOMES, "accepted, and never given"
    return True


def _answer_stream(rng: Random) -> Stream:
    text = Damage(rng, ANSWERS, JSON_WORDS + repeated([(each.data, b"") for each in ANSWERS]))
    edits = JsonDamage(rng, [json.loads(each.data) for each in ANSWERS], msgspec.json.encode, ("mac", "wall", "x"))
    return lambda: text() if rng.random() < 0.7 else edits()


# The query of a request to the gate.

QUERIES = [
    by_punctuation(query)
    for since in FRONTIERS
    for text in [unpadded(since.data)]
    for query in (b"since=" + text, b"since=" + text + b"&limit=100", b"limit=%30&since=" + text)
]


def _query(data: bytes) -> tuple[Frontier, int]:
    return gate_requests.asked_page(Request("GET", "/ops", data.decode("latin-1")), 1)


def _hold_query(data: bytes, asked: tuple[Frontier, int]) -> bool:
    since, limit = asked
    assert 0 <= limit <= gate_requests.PAGE_OPS_MAX
    fields = dict(field.split("=", 1) for field in data.decode("latin-1").split("&") if field)
    values = {unquote_plus(name): unquote_plus(value) for name, value in fields.items()}
    assert frontier_text(since) == values.pop("since"), "not the cursor that was asked for"
    assert not values.keys() - {"limit"}
    return True


def _query_stream(rng: Random) -> Stream:
    words = (
        b"since=",
        b"limit=",
        b"&",
        b"=",
        b"%",
        b"%41",
        b"%ff",
        b"+",
        b";",
        b"limit=-1",
        b"limit=\xb2",
        b"AA",
        b"9" * 30,
    )
    return Damage(rng, QUERIES, words)


TARGETS = (
    Target("bearer", _bearer, MALFORMED, _hold_bearer, [by_punctuation(text.encode()) for text in BEARERS], _bearers),
    Target("bearer-claims", _claims, MALFORMED, _hold_claims, CLAIMS, _claims_stream),
    Target("ucan", ucan.read, MALFORMED, _hold_ucan, [by_punctuation(token) for token in (*UCANS, *FOREIGN)], _ucans),
    Target("capabilities", _capabilities, (ValueError, RecursionError), _hold_capabilities, ATT, _capability_stream),
    Target(
        "ticket",
        lambda data: tickets.parse_token(data.decode("latin-1")),
        MALFORMED,
        _hold_ticket,
        TOKENS,
        _ticket_stream,
    ),
    Target("join-request", tickets.read_request, MALFORMED, _hold_request, REQUESTS, _request_stream),
    Target("join-answer", _answer, MALFORMED, _hold_answer, ANSWERS, _answer_stream),
    Target("query", _query, (gate_requests.RequestRefused,), _hold_query, QUERIES, _query_stream),
)
