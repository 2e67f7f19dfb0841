"""The statements about peers and invitations."""

from hocket.store.peers import Invitation, Peer
from hocket.store.sqlite.statements import Statements

_INVITATION = "secret_hash, name, grants, expires, used_by, made"


class PeerStatements(Statements):
    def put_peer(self, peer: Peer) -> None:
        self._sql(
            "REPLACE INTO peers (address, node, pulled, state, detail, seen, added) VALUES (?, ?, ?, ?, ?, ?, ?)", peer
        )

    def drop_peer(self, address: str) -> bool:
        return bool(self._sql("DELETE FROM peers WHERE address = ? RETURNING 1", (address,)).fetchall())

    def peers(self) -> list[Peer]:
        rows = self._sql("SELECT address, node, pulled, state, detail, seen, added FROM peers ORDER BY added, address")
        return [Peer(*row) for row in rows]

    def programs(self) -> dict[bytes, str]:
        return dict(self._sql("SELECT node, knows FROM programs"))

    def set_program(self, node: bytes, knows: str) -> None:
        self._sql("REPLACE INTO programs VALUES (?, ?)", (node, knows))

    def put_invitation(self, invitation: Invitation) -> None:
        self._sql(f"REPLACE INTO invitations ({_INVITATION}) VALUES (?, ?, ?, ?, ?, ?)", invitation)

    def invitation(self, secret_hash: bytes) -> Invitation | None:
        sql = f"SELECT {_INVITATION} FROM invitations WHERE secret_hash = ?"
        row = self._sql(sql, (secret_hash,)).fetchone()
        return None if row is None else Invitation(*row)

    def invitations(self) -> list[Invitation]:
        return [Invitation(*row) for row in self._sql(f"SELECT {_INVITATION} FROM invitations ORDER BY made")]
