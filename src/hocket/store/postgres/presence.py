"""The statements about what nodes and agents say about themselves."""

from collections.abc import Mapping, Sequence

from hocket.store.postgres.columns import Bytes
from hocket.store.postgres.statements import PostgresStatements, insert, upsert
from hocket.store.presence import AgentRow, Presence, ProgressRow

_AGENT = "node, name, doing, every_ms, seen"
_RUNNING = "FROM progress JOIN jobs ON jobs.id = progress.job AND jobs.fence = progress.fence AND jobs.stage = 3"


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

    def put_progress(self, notes: Sequence[ProgressRow]) -> None:
        self._many(upsert("progress", "job, node, fence, note", "job"), notes)
        # Another node may be writing the notes of its own jobs.
        of_these = [each.node for each in notes]
        stale = f"node = ANY(%s) AND job NOT IN (SELECT job {_RUNNING})"
        self._put(f"DELETE FROM progress WHERE {stale}", (Bytes(of_these),))

    def progress(self, job_ids: Sequence[bytes]) -> list[ProgressRow]:
        sql = f"SELECT job, node, progress.fence, note {_RUNNING} WHERE job = ANY(%s)"
        return [ProgressRow(*row) for row in self._rows(sql, Bytes(job_ids))] if job_ids else []

    def progress_of(self, node: bytes) -> list[tuple[str, ProgressRow]]:
        sql = f"SELECT kind, job, node, progress.fence, note {_RUNNING} WHERE node = %s ORDER BY length(note), job"
        return [(kind, ProgressRow(*row)) for kind, *row in self._rows(sql, node)]
