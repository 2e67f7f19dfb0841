"""The statements about what nodes and agents say about themselves."""

from collections.abc import Mapping, Sequence

from hocket.store.postgres.statements import PostgresStatements, insert, upsert
from hocket.store.presence import AgentRow, Presence

_AGENT = "node, name, doing, every_ms, seen"


class PostgresPresence(PostgresStatements):
    def presence(self) -> list[Presence]:
        rows = self._rows("SELECT node, said, heard, seen FROM presence ORDER BY node")
        return [Presence(node, said, heard, tuple(seen)) for node, said, heard, seen in rows]

    def put_presence(self, presence: Presence) -> None:
        self._put(
            insert("presence", "node, said, heard, seen") + " ON CONFLICT (node) DO UPDATE"
            " SET said = excluded.said, heard = excluded.heard, seen = excluded.seen"
            " WHERE excluded.heard >= presence.heard",
            (*presence[:3], list(presence.seen)),
        )

    def touch_presence(self, times: Mapping[bytes, Sequence[int]]) -> None:
        self._many(
            "UPDATE presence SET heard = %s, seen = %s WHERE node = %s AND heard < %s",
            [(heard, seen, node, heard) for node, (heard, *seen) in times.items()],
        )

    def drop_presence(self, before: int, after: int) -> None:
        self._put("DELETE FROM presence WHERE heard < %s OR heard > %s", (before, after))
        self._put("DELETE FROM agents WHERE seen < %s OR seen > %s", (before, after))

    def put_agent(self, agent: AgentRow) -> None:
        self._put(upsert("agents", _AGENT, "node, name"), agent)

    def agents(self, node: bytes) -> list[AgentRow]:
        sql = f"SELECT {_AGENT} FROM agents WHERE node = %s ORDER BY seen DESC, name"
        return [AgentRow(*row) for row in self._rows(sql, node)]
