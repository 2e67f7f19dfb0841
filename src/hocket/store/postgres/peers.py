"""The statements about peers and invitations."""

from hocket.store.peers import Invitation, Peer
from hocket.store.postgres.statements import PostgresStatements, upsert

_PEER = "address, node, pulled, state, detail, seen, added"
_INVITATION = "secret_hash, name, grants, expires, used_by, made"


class PostgresPeers(PostgresStatements):
    def put_peer(self, peer: Peer) -> None:
        self._put(upsert("peers", _PEER, "address"), peer)

    def drop_peer(self, address: str) -> bool:
        return self._sql("DELETE FROM peers WHERE address = %s", (address,)).rowcount > 0

    def peers(self) -> list[Peer]:
        return [Peer(*row) for row in self._rows(f"SELECT {_PEER} FROM peers ORDER BY added, address")]

    def programs(self) -> dict[bytes, str]:
        return {node: knows for node, knows in self._rows("SELECT node, knows FROM programs")}

    def set_program(self, node: bytes, knows: str) -> None:
        self._put(upsert("programs", "node, knows", "node"), (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._put(upsert("invitations", _INVITATION, "secret_hash"), invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        sql = f"SELECT {_INVITATION} FROM invitations WHERE secret_hash = %s"
        row = self._sql(sql, (secret_hash,)).first
        return None if row is None else Invitation(*row)

    def invitations(self) -> list[Invitation]:
        return [Invitation(*row) for row in self._rows(f"SELECT {_INVITATION} FROM invitations ORDER BY made")]
