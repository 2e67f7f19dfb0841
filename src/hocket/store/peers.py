"""Other nodes, as this one deals with them. None of this is on a log."""

from typing import NamedTuple, Protocol


class Peer(NamedTuple):
    """Another node that this one exchanges ops with. `pulled` is the frontier that its last answer ended with,
    encoded; `seen` is when an exchange last went well, 0 for never.
    """

    address: str
    node: bytes | None
    pulled: bytes
    state: str
    detail: str
    seen: int
    added: int


class Invitation(NamedTuple):
    """A promise of a delegation to whoever knows the secret, once."""

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
        """What the program of each other node knows, as far as it has said so."""

    def set_program(self, node: bytes, knows: str) -> None: ...
    def put_invitation(self, invitation: Invitation) -> None: ...
    def invitation(self, secret_hash: bytes) -> Invitation | None: ...
    def invitations(self) -> list[Invitation]: ...
