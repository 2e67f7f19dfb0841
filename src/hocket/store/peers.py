"""The store's records of other nodes. None of this is on a log."""

from typing import NamedTuple, Protocol

# The states of a peer that was not asked yet, and of one that answered the last exchange. `mesh.peers` has the others.
PEER_NEW, PEER_OK = "new", "ok"


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


class PeerSession(Protocol):
    def put_peer(self, peer: Peer) -> None: ...
    def drop_peer(self, address: str) -> bool: ...
    def peers(self) -> list[Peer]: ...

    def programs(self) -> dict[bytes, str]:
        """What each other node's program knows, if that node has said so."""

    def set_program(self, node: bytes, knows: str) -> None: ...

    def put_invitation(self, invitation: Invitation) -> None: ...
    def invitation(self, secret_hash: bytes) -> Invitation | None: ...
    def invitations(self) -> list[Invitation]: ...
