"""The statements about peers and invitations."""

from collections.abc import Iterator

from hocket.store.peers import Invitation, Peer
from hocket.store.postgres.statements import PostgresStatements, upsert


class PostgresPeers(PostgresStatements):
    def put_peer(self, peer: Peer) -> None:
        self._put_own("peers", peer)

    def drop_peer(self, address: str) -> bool:
        sql = "DELETE FROM peers WHERE of_node = %s AND address = %s"
        return self._sql(sql, (self._macs.node, address)).rowcount > 0

    def peers(self) -> list[Peer]:
        return [Peer(*row[:-1]) for row in self._own("peers", "ORDER BY added, address")]

    def programs(self) -> dict[bytes, str]:
        return {node: knows for node, knows in self._rows("SELECT node, knows FROM programs")}

    def set_program(self, node: bytes, knows: str) -> None:
        self._put(upsert("programs", "node, knows", "node"), (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._put_own("invitations", invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        return next(self._invitations("AND secret_hash = %s", self._macs.mac.conceal(secret_hash)), None)

    def invitations(self) -> list[Invitation]:
        return list(self._invitations("ORDER BY made"))

    def _invitations(self, tail: str, *values: bytes) -> Iterator[Invitation]:
        for concealed, *others, _ in self._own("invitations", tail, *values):
            yield Invitation(self._macs.mac.reveal(concealed), *others)
