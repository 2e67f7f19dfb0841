"""The store's records of other nodes. None of this is on a log."""

from collections.abc import Iterator
from typing import NamedTuple

from hocket.store.statements import Statements, upsert

# The states of a peer that was not asked yet, and of one that answered the last exchange. `mesh.peers` has the others.
PEER_NEW, PEER_OK = "new", "ok"

_SET_PROGRAM = upsert("programs", "node, knows", "node")


class Peer(NamedTuple):
    """Another node that this one exchanges ops with. `pulled` is the encoded frontier at the end of its last answer;
    `seen` is the time of the last successful exchange, 0 for never.
    """

    address: str
    node: bytes | None
    pulled: bytes
    state: str
    detail: str
    seen: int
    added: int


class Invitation(NamedTuple):
    """The promise of a delegation to the first node that presents the secret."""

    secret_hash: bytes
    name: str
    grants: bytes
    expires: int
    used_by: bytes | None
    made: int


class PeerSession(Statements):
    def put_peer(self, peer: Peer) -> None:
        self._put_own("peers", peer)

    def drop_peer(self, address: str) -> bool:
        sql = "DELETE FROM peers WHERE of_node = ? AND address = ? RETURNING 1"
        return bool(self._rows(sql, self._macs.node, address))

    def peers(self) -> list[Peer]:
        """SQLite takes longer to sort no rows than to find that there are none."""
        found = [Peer(*row[:-1]) for row in self._own("peers")]
        return sorted(found, key=lambda peer: (peer.added, peer.address))

    def programs(self) -> dict[bytes, str]:
        """What each other node's program knows, if that node has said so."""
        return {node: knows for node, knows in self._rows("SELECT node, knows FROM programs")}

    def set_program(self, node: bytes, knows: str) -> None:
        self._put(_SET_PROGRAM, (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._put_own("invitations", invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        return next(self._invitations("AND secret_hash = ?", self._macs.mac.conceal(secret_hash)), None)

    def invitations(self) -> list[Invitation]:
        return sorted(self._invitations(""), key=lambda invitation: invitation.made)

    def _invitations(self, tail: str, *values: bytes) -> Iterator[Invitation]:
        for concealed, *others, _ in self._own("invitations", tail, *values):
            yield Invitation(self._macs.mac.reveal(concealed), *others)
