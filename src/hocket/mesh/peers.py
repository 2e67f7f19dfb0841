"""The peers of a node as its store keeps them: their addresses, how far each was pulled, and the state of each. Also
what people see of them, including the coordinator's silence.
"""

import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import msgspec

from hocket.errors import Conflict, Usage
from hocket.families.access import NodeAccess
from hocket.kernel.authority import Authority, Standing
from hocket.kernel.capabilities import Knowledge, knowledge_text, read_knowledge, sentence
from hocket.kernel.clock import U32_MAX, Hlc, unpack
from hocket.kernel.decoding import decode_json
from hocket.kernel.frontier import Frontier, decode_frontier, encode_frontier
from hocket.kernel.ids import node_text
from hocket.kernel.postcard import Malformed
from hocket.kernel.retrying import Breaker
from hocket.log import Log
from hocket.log.limits import waiting
from hocket.mesh.wire import look, note
from hocket.store import PEER_NEW, PEER_OK, LocalSession, Peer, Session

if TYPE_CHECKING:
    from hocket.events import Emit

ADDRESS_CHARS_MAX = 512
PEERS_MAX = 1_000
# A coordinator that was silent for this long is reported. There is no automatic failover.
QUIET_MS = 10 * 60 * 1000

NEW, OK, PAUSED, REFUSED, UNREACHABLE = PEER_NEW, PEER_OK, "paused", "refused", "unreachable"

# What a server that knows this node answers if its delegation was revoked or has ended.
NO_RIGHTS = "refuses this node (403)"

# Store keys: the address of this node's own server, how to trust the certificates of others, and their breakers.
ADDRESS = "address"
TRUST = "trust"
BREAKERS = "breakers"


class Trust(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a peer's certificate is checked: against a CA file, or by its SHA-256. With neither, as the system does."""

    ca: str | None = None
    pin: str | None = None


class WaitingOps(NamedTuple):
    """The ops of this node that the coordinator does not have, the time of the oldest, and whether the coordinator was
    out of reach when it was last asked. Without a `coordinator` they wait for any other node.
    """

    coordinator: int | None
    ops: int
    since_ms: int | None
    is_away: bool


class Silence(NamedTuple):
    """The silent coordinator, and when it was last heard from; None for never."""

    node: int
    last_ms: int | None


def check_address(text: str) -> str:
    """An address in canonical form, `http://host:port`. The default scheme is http."""
    whole = text.strip()
    if "://" not in whole:
        whole = f"http://{whole}"
    try:
        parts = urlsplit(whole)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if (
        not host
        or parts.scheme not in ("http", "https")
        or parts.username is not None
        or parts.query
        or parts.fragment
        or len(whole) > ADDRESS_CHARS_MAX
        or not whole.isprintable()
        or " " in whole
    ):
        raise Usage(f"{text!r} is not an address; write it like http://host:7315 or https://host:7315")
    shown = f"[{host}]" if ":" in host else host
    place = shown if port is None else f"{shown}:{port}"
    return f"{parts.scheme}://{place}{parts.path.rstrip('/')}"


def check_pin(text: str | None) -> str | None:
    """A certificate's SHA-256 in plain digits; accepts the form with colons."""
    if text is None:
        return None
    digits = text.replace(":", "").strip().lower()
    if len(digits) != 64 or any(digit not in "0123456789abcdef" for digit in digits):
        raise Usage(f"{text!r} is not a SHA-256 fingerprint; give 64 hexadecimal digits")
    return digits


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find(session: LocalSession, address: str) -> Peer | None:
    return next((peer for peer in session.peers() if peer.address == address), None)


def add(session: Session, address: str, now_ms: int, node: int | None = None, trust: Trust | None = None) -> Peer:
    """Adds a peer. An existing peer keeps what is known about it."""
    if len(session.peers()) >= PEERS_MAX:
        raise Conflict(f"this node has {PEERS_MAX} peers, the most possible; remove some that no longer exist")
    known = None if node is None else node.to_bytes(8, "big")
    peer = find(session, address) or Peer(address, known, encode_frontier({}), NEW, "", 0, now_ms)
    session.put_peer(peer._replace(node=known or peer.node))
    if trust is not None and trust != Trust():
        set_trust(session, trusts(session) | {address: trust})
    return peer


def remove(session: Session, address: str) -> None:
    if not session.drop_peer(address):
        raise Usage(f"no peer at {address}; see `hocket mesh peers list`")
    set_breaker(session, address, None)
    set_trust(session, {other: trust for other, trust in trusts(session).items() if other != address})


def resume(session: Session, address: str) -> None:
    """Lets the next round try a peer again, whatever its state."""
    if find(session, address) is None:
        raise Usage(f"no peer at {address}; see `hocket mesh peers list`")
    set_breaker(session, address, None)
    change(session, address, lambda peer: peer._replace(state=NEW, detail=""))


def resume_node(session: Session, node: int) -> bool:
    """Resumes the paused peers that are this node, after it contacted us with our rules. Returns whether there were
    any.
    """
    paused = [peer for peer in session.peers() if peer.state == PAUSED and peer.node == node.to_bytes(8, "big")]
    for peer in paused:
        resume(session, peer.address)
    return bool(paused)


def change(session: Session, address: str, edit: Callable[[Peer], Peer]) -> None:
    """Changes the stored state of a peer, if it still exists."""
    peer = find(session, address)
    if peer is not None and (edited := edit(peer)) != peer:
        session.put_peer(edited)


def pulled(peer: Peer | None) -> Frontier:
    """How far a peer was pulled; the beginning if that is unreadable."""
    try:
        return {} if peer is None else decode_frontier(peer.pulled)
    except Malformed:
        return {}


def trusts(session: LocalSession) -> dict[str, Trust]:
    return decode_json(session.own_meta(TRUST) or b"{}", dict[str, Trust])


def set_trust(session: LocalSession, trust: dict[str, Trust]) -> None:
    session.set_own_meta(TRUST, msgspec.json.encode(trust))


def breakers(session: LocalSession) -> dict[str, Breaker]:
    """The breakers of peers that have failed, by their addresses."""
    return decode_json(session.own_meta(BREAKERS) or b"{}", dict[str, Breaker])


def breaker(session: LocalSession, address: str) -> Breaker:
    return breakers(session).get(address, Breaker())


def set_breaker(session: LocalSession, address: str, value: Breaker | None) -> None:
    """Stores a breaker; None forgets it."""
    kept = breakers(session)
    if value is not None:
        session.set_own_meta(BREAKERS, msgspec.json.encode(kept | {address: value}))
    elif kept.pop(address, None) is not None:
        session.set_own_meta(BREAKERS, msgspec.json.encode(kept))


def coordinator(log: Log, session: Session) -> int | None:
    """The current coordinator; this node itself, if it shares the coordinator's store and so decides as that does."""
    return log.permissions(session).leader(_now(log, session))


def awaited(log: Log, session: Session) -> int | None:
    """The node that must get what this node writes; None for any other node."""
    return log.permissions(session).awaited(_now(log, session))


def _now(log: Log, session: Session) -> Hlc:
    return Hlc(max(session.head().wall, log.physical()), U32_MAX, log.node)


def outbox(log: Log, session: Session) -> WaitingOps:
    node = awaited(log, session)
    found = waiting(session, log.node, node)
    address = None if node is None else address_of(session, node)
    asked = [each.state in (OK, NEW) for each in session.peers() if address in (None, each.address)]
    return WaitingOps(node, found.ops, found.since_ms, bool(asked) and not any(asked))


def has_peers(session: LocalSession) -> bool:
    """Whether a peer has answered, or none is needed, because others come to this node."""
    known = session.peers()
    return not known or any(each.state in (OK, NEW) for each in known)


def address_of(session: LocalSession, node: int) -> str | None:
    """The address where a node was met; of several, the one that answered last."""
    known = [peer for peer in session.peers() if peer.node == node.to_bytes(8, "big")]
    return max(known, key=lambda peer: (peer.state == OK, peer.seen)).address if known else None


def rights_lost(log: Log, session: Session) -> str | None:
    """What the coordinator said, if it serves this node no more: the node's delegation was revoked or has ended."""
    node = coordinator(log, session)
    address = None if node in (None, log.node) else address_of(session, node)
    peer = None if address is None else find(session, address)
    if peer is None or peer.state != REFUSED or NO_RIGHTS not in peer.detail:
        return None
    return peer.detail


def silence(log: Log, session: Session) -> Silence | None:
    """Whether the coordinator, another node, has been silent for long: no op from it, and no exchange with it."""
    node = coordinator(log, session)
    if node is None or node == log.node:
        return None
    key = node.to_bytes(8, "big")
    heard = [peer.seen for peer in session.peers() if peer.node == key and peer.seen]
    if (last := session.frontier().get(key)) is not None:
        heard.append(unpack(last).wall)
    if not heard:
        return Silence(node, None)
    return Silence(node, max(heard)) if log.physical() - max(heard) > QUIET_MS else None


def is_revoked(authority: Authority, node: bytes | None, now_ms: int) -> bool:
    return node is not None and authority.standing(int.from_bytes(node, "big"), now_ms) is Standing.REVOKED


# What the programs of other nodes know, as each node reports it. It tells operators which nodes to upgrade; nothing
# else depends on it.


async def note_program(access: NodeAccess, node: int, knows: Knowledge, emit: "Emit") -> None:
    """Stores what a node's program knows, and tells the operator if that is new and differs from this program."""
    key, text = node.to_bytes(8, "big"), knowledge_text(knows)
    if await look(access, lambda session: session.programs().get(key)) == text:
        return
    await note(access, lambda session: session.set_program(key, text))
    difference = sentence(knows)
    if difference is not None:
        from hocket.events.nodes import ProgramDiffers

        emit(ProgramDiffers(node_text(node), difference))


def program_differences(session: LocalSession) -> dict[int, str]:
    """The nodes whose programs differ from this one, and how."""
    found = {node: sentence(read_knowledge(knows)) for node, knows in session.programs().items()}
    return {int.from_bytes(node, "big"): said for node, said in found.items() if said is not None}
