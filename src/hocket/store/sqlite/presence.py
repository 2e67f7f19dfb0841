"""The statements about what nodes and agents say about themselves."""

import json
from collections.abc import Mapping, Sequence

from hocket.store.presence import AgentRow, Presence, ProgressRow
from hocket.store.sqlite.statements import Statements

_RUNNING = "FROM progress JOIN jobs ON jobs.id = progress.job AND jobs.fence = progress.fence AND jobs.stage = 3"


class PresenceStatements(Statements):
    def presence(self) -> list[Presence]:
        rows = self._sql("SELECT node, said, heard, seen FROM presence ORDER BY node")
        return [
            Presence(node, said, heard, () if seen == "[]" else tuple(json.loads(seen)))
            for node, said, heard, seen in rows
        ]

    def put_presence(self, presence: Presence) -> None:
        self._sql(
            "INSERT INTO presence VALUES (?, ?, ?, ?) ON CONFLICT (node) DO UPDATE"
            " SET said = excluded.said, heard = excluded.heard, seen = excluded.seen WHERE excluded.heard >= heard",
            (*presence[:3], json.dumps(presence.seen)),
        )

    def touch_presence(self, times: Mapping[bytes, Sequence[int]]) -> None:
        self._sql(
            "UPDATE presence SET heard = new.value ->> '$[0]', seen = json_remove(new.value, '$[0]')"
            " FROM json_each(?) AS new WHERE node = unhex(new.key) AND heard < new.value ->> '$[0]'",
            (json.dumps({node.hex(): list(each) for node, each in times.items()}),),
        )

    def drop_presence(self, before: int, after: int) -> None:
        self._sql("DELETE FROM presence WHERE heard < ? OR heard > ?", (before, after))
        self._sql("DELETE FROM agents WHERE seen < ? OR seen > ?", (before, after))

    def put_agent(self, agent: AgentRow) -> None:
        self._sql("REPLACE INTO agents VALUES (?, ?, ?, ?, ?)", agent)

    def agents(self, node: bytes) -> list[AgentRow]:
        sql = "SELECT node, name, doing, every_ms, seen FROM agents WHERE node = ? ORDER BY seen DESC, name"
        return [AgentRow(*row) for row in self._sql(sql, (node,))]

    def put_progress(self, notes: Sequence[ProgressRow]) -> None:
        self._many("REPLACE INTO progress VALUES (?, ?, ?, ?)", notes)
        self._sql(f"DELETE FROM progress WHERE job NOT IN (SELECT job {_RUNNING})")

    def progress(self, job_ids: Sequence[bytes]) -> list[ProgressRow]:
        sql = f"SELECT job, node, progress.fence, note {_RUNNING} WHERE job IN "
        return [ProgressRow(*row) for row in self._among_rows(sql, job_ids)]

    def progress_of(self, node: bytes) -> list[tuple[str, ProgressRow]]:
        sql = f"SELECT kind, job, node, progress.fence, note {_RUNNING} WHERE node = ? ORDER BY length(note), job"
        return [(kind, ProgressRow(*row)) for kind, *row in self._sql(sql, (node,))]
