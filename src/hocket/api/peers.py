"""The peers of this node: add, list, remove, resume and sync; and invitations for new nodes."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import InShell, OperationGroup, operation
from hocket.api.views import Line, Table, View, ago, now_ms, seen, table
from hocket.bus.hints import PEER, about
from hocket.errors import Usage
from hocket.kernel.capabilities import sharing
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.ucan import Capability, Quota
from hocket.log.permissions import founder
from hocket.mesh import enrolment, peers
from hocket.mesh.enrolment import Invited, is_cancelled, is_open, terms_of
from hocket.mesh.grants import words
from hocket.mesh.peer_exchange import Exchanged
from hocket.mesh.peers import ADDRESS, Trust, check_address, check_pin
from hocket.node.node import Node
from hocket.node.running import running_servers
from hocket.store import Invitation, Peer, Session


class PeerShown(ServiceAnswer, frozen=True):
    address: str
    node: str | None
    state: str
    detail: str
    seen_ms: int | None
    added_ms: int


class SilentCoordinator(ServiceAnswer, frozen=True):
    """`last_ms` is when it was last heard from; None for never."""

    node: str
    last_ms: int | None


class PeersShown(ServiceAnswer, frozen=True):
    peers: list[PeerShown]
    silent_coordinator: SilentCoordinator | None


class PeerVisited(ServiceAnswer, frozen=True):
    """The outcome of one sync with a peer."""

    address: str
    node: str | None
    state: str
    detail: str
    pulled: int
    pushed: int
    refused: int


class InvitationShown(ServiceAnswer, frozen=True):
    name: str
    state: str
    made_ms: int
    good_until_ms: int | None
    used_by: str | None
    may: list[str]
    quota: Quota


def _show_peers(shown: PeersShown) -> Iterator[View]:
    rows = [(each.address, each.node or "", each.state, seen("seen_ms")(each), each.detail) for each in shown.peers]
    columns = ("address", "node", "state", "last exchange", "detail")
    yield Table(columns, rows, "no peers; add one with `hocket mesh peers add ADDRESS`")
    silent = shown.silent_coordinator
    if silent is not None:
        last = "yet" if silent.last_ms is None else f"since {ago(silent.last_ms, now_ms())}"
        yield Line(
            f"the coordinator {silent.node} was not heard from {last}; `hocket mesh coordinator` designates another"
        )


@operation("list_peers", "GET", command="peers list", show=_show_peers)
def listing(service: Service) -> PeersShown:
    """List the peers with the state of each, and whether the coordinator has fallen silent.

    \b
      hocket mesh peers list
      hocket mesh peers list --json | jq '.peers[] | select(.state != "ok")'
    """
    with service.read() as session:
        quiet = peers.silence(service.runtime.log, session)
        silent = None if quiet is None else SilentCoordinator(node_text(quiet.node), quiet.last_ms)
        return PeersShown([_shown(each) for each in session.peers()], silent)


class PeerAdded(ServiceAnswer, frozen=True):
    """The address is in its canonical form, as in the next two."""

    address: str
    added: bool = True


class PeerRemoved(ServiceAnswer, frozen=True):
    address: str
    removed: bool = True


class PeerResumed(ServiceAnswer, frozen=True):
    address: str
    resumed: bool = True


Address = Annotated[str, Meta(description="Like http://192.168.1.7:7315.")]


@operation(
    "add_peer",
    "POST",
    command="peers add",
    show=lambda done: [Line(f"peer {done.address} added; run `hocket mesh sync` to sync with it now")],
)
def add(
    service: Service,
    address: Address,
    ca: Annotated[Path, Meta(description="The CA of its certificate."), InShell(metavar="FILE")] | None = None,
    pin: Annotated[str, Meta(description="The fingerprint of the one certificate to trust."), InShell(metavar="SHA256")]
    | None = None,
) -> PeerAdded:
    """Add a peer. `hocket mesh sync` then syncs with it at once.

    \b
      hocket mesh peers add 192.168.1.7:7315
      hocket mesh peers add https://mesh.example.org:7315 --ca ca.pem
    """
    if ca is not None and not ca.is_file():
        raise Usage(f"no file at {ca}")
    trust = Trust(None if ca is None else str(ca.absolute()), check_pin(pin))
    where = check_address(address)
    if trust != Trust() and not where.startswith("https://"):
        raise Usage("only an https:// address has a certificate; use one, or leave out --pin and --ca")
    with _changing(service, where) as session:
        peers.add(session, where, int(time.time() * 1000), trust=trust)
    return PeerAdded(where)


@operation("remove_peer", "DELETE", command="peers remove", show=lambda done: [Line(f"peer {done.address} removed")])
def remove(service: Service, address: Address) -> PeerRemoved:
    """Remove a peer. Ops received from it stay.

    \b
      hocket mesh peers remove http://192.168.1.7:7315
    """
    where = check_address(address)
    with _changing(service, where) as session:
        peers.remove(session, where)
    return PeerRemoved(where)


@operation(
    "resume_peer",
    "POST",
    command="peers resume",
    show=lambda done: [Line(f"peer {done.address} resumed; run `hocket mesh sync` to sync with it now")],
)
def resume(service: Service, address: Address) -> PeerResumed:
    """Try a paused peer again, after both nodes were given the same rules.

    \b
      hocket mesh peers resume http://192.168.1.7:7315
    """
    where = check_address(address)
    with _changing(service, where) as session:
        peers.resume(session, where)
    return PeerResumed(where)


class ServerFound(ServiceAnswer, frozen=True):
    """The node id is what the server claims; `is_ours` is whether it claims to be of this mesh."""

    address: str
    node: str
    is_ours: bool


_show_found = table(
    ServerFound,
    "no server answered on the local network",
    {"address": "address", "node": "node", "mesh": lambda each: "this one" if each.is_ours else "another"},
)


@operation("find_peers", "GET", command="peers find", show=_show_found)
def find(
    service: Service,
    seconds: Annotated[float, Meta(ge=0.1, le=60.0, description="How long to search."), InShell(metavar="N")] = 3.0,
) -> list[ServerFound]:
    """Find servers on the local network that were started with `hocket mesh serve --announce`.

    A result is only an address: a node is trusted for its delegation, not for being near.

    \b
      hocket mesh peers find
    """
    try:
        from hocket.mesh import lan
    except ImportError as error:
        raise Usage(f"finding peers needs {error.name}; install hocket[server]") from None
    log = service.runtime.log
    found = asyncio.run(lan.find(log.user, seconds))
    return [ServerFound(*each) for each in found if each.node != node_text(log.node)]


@contextmanager
def _changing(service: Service, address: str) -> Iterator[Session]:
    service.check_writer()
    with service.runtime.store.write() as session:
        yield session
    service.runtime.bus.publish(about(PEER, address.encode()))


def visit(service: Service, address: str | None) -> list[PeerVisited]:
    """Syncs now with one peer, even if it is paused, or with all."""
    service.check_writer()
    with service.read() as session:
        known = [each.address for each in session.peers()]
        if address is not None:
            known = [check_address(address)]
            if peers.find(session, known[0]) is None:
                raise Usage(f"no peer at {known[0]}; add it with `hocket mesh peers add {known[0]}`")
    if not known:
        raise Usage("this node has no peers; add one with `hocket mesh peers add ADDRESS`")
    return [_visited(each) for each in asyncio.run(_visit(service, known))]


async def _visit(service: Service, addresses: list[str]) -> list[Exchanged]:
    node = Node(service.runtime)
    try:
        exchanges = node.services().exchanges
        for address in addresses:
            await exchanges.transport.hasten(address)
        return list(await asyncio.gather(*(exchanges.visit_fully(address) for address in addresses)))
    finally:
        await node.finish()


def addresses(service: Service) -> list[str]:
    """The address of this node's server: that of the one that runs, else of the last one that ran."""
    if running := running_servers(service.runtime.home.processes):
        return [running[0].address]
    with service.read() as session:
        own = session.node_meta(service.runtime.log.node.to_bytes(8, "big"), ADDRESS)
    return [] if own is None else [own.decode()]


def note_address(service: Service, address: str) -> None:
    """Stores the address of this node's own server, for invitations."""
    service.check_writer()
    with service.runtime.store.write() as session:
        session.set_node_meta(service.runtime.log.node.to_bytes(8, "big"), ADDRESS, address.encode())


def rights_lost(service: Service) -> str | None:
    """What the coordinator said, if it serves this node no more."""
    with service.runtime.store.read() as session:
        return peers.rights_lost(service.runtime.log, session)


def invitations(service: Service) -> list[InvitationShown]:
    now = int(time.time() * 1000)
    with service.read() as session:
        return [_invitation(each, now) for each in session.invitations()]


class NewInvitation(msgspec.Struct, frozen=True):
    """The name and the grants of a new node. The token is valid for `valid_ms`; the node stays for `lifetime_s`, or as
    long as this node may. Without addresses, the invitation carries those of this node's server.
    """

    name: str
    capabilities: tuple[Capability, ...]
    addresses: list[str]
    valid_ms: int
    lifetime_s: int | None
    quota: Quota
    shares_store: bool = False


def is_served(service: Service) -> bool:
    """Whether a server of this node runs now."""
    return bool(running_servers(service.runtime.home.processes))


def invite(service: Service, asked: NewInvitation) -> Invited:
    service.check_writer()
    where = [check_address(each) for each in asked.addresses] or addresses(service)
    if not where:
        raise Usage("the invitation needs an address: start `hocket mesh serve` here first, or give --address")
    capabilities = asked.capabilities
    if asked.shares_store:
        capabilities = (*capabilities, *_sharing(service))
    return enrolment.invite(
        service.runtime.log,
        service.runtime.home.node_key(),
        asked.name,
        capabilities,
        addresses=where,
        valid_ms=asked.valid_ms,
        lifetime_s=asked.lifetime_s,
        quota=asked.quota,
        shares_store=asked.shares_store,
    )


def _sharing(service: Service) -> tuple[Capability, Capability]:
    """What a node that shares this node's store may do because of that: decide there, and read every op."""
    if not service.runtime.log.is_shared:
        raise Usage(
            "this node keeps its log in a file, which no other node can share; use a store in a database server, or"
            " invite without --share"
        )
    with service.read() as session:
        began = founder(session)
    assert began is not None
    return sharing(began), Capability("Ops", "Read", {})


def cancel_invitation(service: Service, name: str) -> None:
    service.check_writer()
    enrolment.cancel(service.runtime.log, name)


def _shown(peer: Peer) -> PeerShown:
    node = None if peer.node is None else peer.node.hex()
    return PeerShown(peer.address, node, peer.state, peer.detail, peer.seen or None, peer.added)


def _visited(done: Exchanged) -> PeerVisited:
    node = None if done.node is None else node_text(done.node)
    return PeerVisited(done.address, node, done.state, done.detail, done.pulled, done.pushed, done.refused)


def _invitation(invitation: Invitation, now: int) -> InvitationShown:
    if invitation.used_by is not None:
        state = "used"
    elif is_cancelled(invitation):
        state = "cancelled"
    else:
        state = "open" if is_open(invitation, now) else "expired"
    terms = terms_of(invitation)
    used_by = None if invitation.used_by is None else node_text(node_id(invitation.used_by))
    return InvitationShown(
        invitation.name, state, invitation.made, invitation.expires or None, used_by, words(terms.att), terms.quota
    )


commands = OperationGroup(
    """Nodes that this node syncs with. While `hocket mesh serve` or a worker runs, it syncs automatically.

    \b
      hocket mesh peers add http://192.168.1.7:7315
      hocket mesh peers list
    """,
    *(add, listing, remove, resume, find),
)
