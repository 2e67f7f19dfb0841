"""The wire form of an invitation: the one line of text that a person carries from the inviting machine to the joining
one, and the messages between the two machines that its secret authenticates. The secret itself is never sent: both
sides derive a key from it, the inviting side keeps only that key, and using the key proves knowledge of the secret.
`enrolment` decides what an invitation grants, and to whom.
"""

import hmac
from typing import NamedTuple

import msgspec
from blake3 import blake3

from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash
from hocket.kernel.jws import base64url, from_base64url
from hocket.kernel.keys import KEY_BYTES, SIGNATURE_BYTES, SigningKey, did_key, key_text, parse_key, verify
from hocket.kernel.postcard import STR, U64, Malformed, Reader, encode, fixed, seq
from hocket.kernel.postcard import struct as fields

PREFIX = "hocket-1-"
# How a token for a node that shares the store begins: programs that cannot share one refuse it.
STORE_PREFIX = "hocket-store-1-"
SECRET_BYTES = 16
ADDRESSES_MAX = 8
TICKET_CHARS_MAX = 4096
MESSAGE_BYTES_MAX = 512 * 1024
_CHECKSUM_BYTES = 4
_KEY_CONTEXT = "hocket 2025 invitation key"
_REQUEST, _ANSWER = b"hocket mesh join request 1\0", b"hocket mesh join answer 1\0"


class Ticket(msgspec.Struct, frozen=True):
    """The content of a token: whose mesh it is, who invites, the secret, the expiry in seconds, and the addresses."""

    user: bytes
    inviter: bytes
    secret: bytes
    expires: int
    addresses: tuple[str, ...]

    @property
    def user_did(self) -> str:
        return did_key(self.user)


class StoreTicket(Ticket, frozen=True):
    """The content of a token for a node that will share the inviting node's store. It names neither the store's address
    nor its password.
    """


_TICKET = fields(Ticket, fixed(KEY_BYTES), fixed(KEY_BYTES), fixed(SECRET_BYTES), U64, seq(STR, limit=ADDRESSES_MAX))


def token(ticket: Ticket) -> str:
    data = encode(_TICKET, ticket)
    prefix = STORE_PREFIX if isinstance(ticket, StoreTicket) else PREFIX
    return prefix + base64url(data + content_hash(data)[:_CHECKSUM_BYTES]).decode("ascii")


def parse_token(text: str) -> Ticket:
    """The content of a token. Raises Malformed if it is not one, or incomplete. Line breaks and spaces from copying are
    ignored.
    """
    body = "".join(text.split())
    prefix = STORE_PREFIX if body.startswith(STORE_PREFIX) else PREFIX
    if not body.startswith(prefix):
        raise Malformed(f"an invitation begins with {PREFIX} or {STORE_PREFIX}")
    if len(body) > TICKET_CHARS_MAX or not body.isascii():
        raise Malformed("it differs from the printed token")
    data = from_base64url(body.removeprefix(prefix).encode("ascii"))
    data, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if content_hash(data)[:_CHECKSUM_BYTES] != checksum:
        raise Malformed("it is incomplete or mistyped")
    reader = Reader(data)
    ticket = _TICKET.read(reader)
    if reader.remaining():
        raise Malformed(f"{reader.remaining()} bytes follow the invitation")
    return ticket if prefix == PREFIX else StoreTicket(*msgspec.structs.astuple(ticket))


def key_of(secret: bytes) -> bytes:
    """The key that both sides derive from the secret; the inviting side keeps nothing else."""
    return bytes(blake3(secret, derive_key_context=_KEY_CONTEXT).digest())


def id_of(key: bytes) -> bytes:
    """The public id of an invitation."""
    return content_hash(key)[:16]


def _mac(key: bytes, context: bytes, message: bytes) -> bytes:
    return bytes(blake3(context + message, key=key).digest())


class JoinRequest(NamedTuple):
    """A node's request to be admitted, with the invitation and its key. Older versions sent a `name`: there, a node
    could choose its own.
    """

    invitation: bytes
    public: bytes
    name: str | None
    signed: bytes
    mac: bytes

    def is_vouched_for(self, key: bytes) -> bool:
        """Whether the sender knows the secret behind this key."""
        return hmac.compare_digest(_mac(key, _REQUEST, self.signed), self.mac)


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    invitation: str
    key: str
    signature: str
    mac: str
    name: str | None = None


def _signed(invitation: bytes, public: bytes, name: str | None) -> bytes:
    return _REQUEST + invitation + public + (name or "").encode()


def make_request(ticket: Ticket, node: SigningKey, name: str | None = None) -> bytes:
    """The request of the node that holds this key, signed with it."""
    key = key_of(ticket.secret)
    invitation = id_of(key)
    message = _signed(invitation, node.public, name)
    signature = node.sign(message)
    mac = _mac(key, _REQUEST, message + signature)
    request = _Request(invitation.hex(), key_text(node.public), key_text(signature), mac.hex(), name)
    return msgspec.json.encode(request)


def read_request(body: bytes) -> JoinRequest:
    """Decodes a request, or raises Malformed. Checks that the key in it signed it; the caller must check that the
    secret authenticates it.
    """
    try:
        request = decode_json(body, _Request)
        invitation, mac = bytes.fromhex(request.invitation), bytes.fromhex(request.mac)
        public, signature = parse_key(request.key), parse_key(request.signature, SIGNATURE_BYTES)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(f"not a request to join: {error}") from None
    if request.name == "":
        # An empty name would be signed like no name, so a carrier of the request could swap the two.
        raise Malformed("a request to join with an empty name")
    message = _signed(invitation, public, request.name)
    if not verify(public, signature, message):
        raise Malformed("a request to join is not signed by the key that it names")
    return JoinRequest(invitation, public, request.name, message + signature, mac)


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the inviting node gives: the delegation, those that it relies on with the user's first, the mesh rules, and
    the time of the inviting node's log.
    """

    ucan: str
    chain: tuple[str, ...]
    rules: str
    wall: int


class _Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mac: str
    welcome: msgspec.Raw


def make_answer(key: bytes, public: bytes, welcome: Welcome) -> bytes:
    encoded = msgspec.json.encode(welcome)
    return msgspec.json.encode(_Answer(_mac(key, _ANSWER, public + encoded).hex(), msgspec.Raw(encoded)))


def read_answer(ticket: Ticket, public: bytes, body: bytes) -> Welcome:
    """The inviting node's answer to the node with this key. Raises Malformed if the sender does not know the secret, or
    the answer is for another node.
    """
    try:
        answer = decode_json(body, _Answer)
        encoded = bytes(answer.welcome)
        mac = bytes.fromhex(answer.mac)
        if not hmac.compare_digest(_mac(key_of(ticket.secret), _ANSWER, public + encoded), mac):
            raise Malformed("the answer is not from the node that made the invitation")
        return decode_json(encoded, Welcome)
    except Malformed:
        raise
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(f"not an answer to a request to join: {error}") from None
