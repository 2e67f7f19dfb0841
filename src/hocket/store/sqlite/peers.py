"""The statements about peers and invitations."""

from collections.abc import Iterator

from hocket.store.peers import Invitation, Peer
from hocket.store.sqlite.statements import Statements


class PeerStatements(Statements):
    def put_peer(self, peer: Peer) -> None:
        self._put_own("peers", peer)

    def drop_peer(self, address: str) -> bool:
        sql = "DELETE FROM peers WHERE of_node = ? AND address = ? RETURNING 1"
        return bool(self._sql(sql, (self._macs.node, address)).fetchall())

    def peers(self) -> list[Peer]:
        """SQLite takes longer to sort no rows than to find that there are none."""
        found = [Peer(*row[:-1]) for row in self._own("peers")]
        return sorted(found, key=lambda peer: (peer.added, peer.address))

    def programs(self) -> dict[bytes, str]:
        return dict(self._sql("SELECT node, knows FROM programs"))

    def set_program(self, node: bytes, knows: str) -> None:
        self._sql("REPLACE INTO programs VALUES (?, ?)", (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._put_own("invitations", invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        return next(self._invitations("AND secret_hash = ?", self._macs.mac.conceal(secret_hash)), None)

    def invitations(self) -> list[Invitation]:
        return sorted(self._invitations(""), key=lambda invitation: invitation.made)

    def _invitations(self, tail: str, *values: bytes) -> Iterator[Invitation]:
        for concealed, *others, _ in self._own("invitations", tail, *values):
            yield Invitation(self._macs.mac.reveal(concealed), *others)
