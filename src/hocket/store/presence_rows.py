"""What nodes and agents last said about themselves, and how far running jobs have come. These rows expire, and none of
them is on a log.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hocket.store.statements import Statements, insert, upsert

_AGENT = "node, name, doing, every_ms, seen"
_PUT_PRESENCE = (
    insert("presence", "node, said, heard, seen") + " ON CONFLICT (node) DO UPDATE"
    " SET said = excluded.said, heard = excluded.heard, seen = excluded.seen WHERE excluded.heard >= presence.heard"
)
# One statement for all nodes: a server hears of many with every heartbeat.
_TOUCH_PRESENCE = (
    "UPDATE presence SET heard = new.value ->> '$[0]', seen = json_remove(new.value, '$[0]')"
    " FROM json_each(?) AS new WHERE node = unhex(new.key) AND heard < new.value ->> '$[0]'"
)
_PUT_AGENT = upsert("agents", _AGENT, "node, name")
_PUT_PROGRESS = upsert("progress", "job, node, fence, note", "job")
_RUNNING = "FROM progress JOIN jobs ON jobs.id = progress.job AND jobs.fence = progress.fence AND jobs.stage = 3"
# Another node may be writing the notes of its own jobs.
_DROP_STALE = f"DELETE FROM progress WHERE node = ? AND job NOT IN (SELECT job {_RUNNING})"
_PROGRESS = f"SELECT job, node, progress.fence, note {_RUNNING} WHERE job {{}}"
_PROGRESS_OF = f"SELECT kind, job, node, progress.fence, note {_RUNNING} WHERE node = ? ORDER BY length(note), job"


class Presence(NamedTuple):
    """What another node said, as `work.presence` writes it, when that was heard, and when each of the agents
    that it named was last seen. All times are of this machine's clock.
    """

    node: bytes
    said: str
    heard: int
    seen: tuple[int, ...] = ()


class AgentRow(NamedTuple):
    """An agent of a node that uses this store: what it does, how often it says so, and when it last did."""

    node: bytes
    name: str
    doing: str
    every_ms: int
    seen: int


class ProgressRow(NamedTuple):
    """The newest progress note of a job that runs on a node that uses this store. It counts while the job has this
    fence.
    """

    job: bytes
    node: bytes
    fence: int
    note: bytes


class PresenceSession(Statements):
    def presence(self) -> list[Presence]:
        """What other nodes have said, however long ago."""
        rows = self._rows("SELECT node, said, heard, seen FROM presence ORDER BY node")
        return [Presence(node, said, heard, self._numbers(seen)) for node, said, heard, seen in rows]

    def put_presence(self, presence: Presence) -> None:
        """Replaces what that node has said before, unless that was heard later."""
        self._put(_PUT_PRESENCE, (*presence[:3], self._stored_numbers(presence.seen)))

    def touch_presence(self, times: Mapping[bytes, Sequence[int]]) -> None:
        """These nodes have said the same again: for each, when that was heard and when its agents were seen. A node
        that is not known, or was heard later, is left as it is.
        """
        by_node = json.dumps({node.hex(): list(each) for node, each in times.items()})
        self._put(_TOUCH_PRESENCE, (by_node,))

    def _stored_numbers(self, numbers: Sequence[int]) -> Any:
        """A column of numbers, for a database that has no arrays."""
        return json.dumps(numbers)

    def _numbers(self, stored: Any) -> tuple[int, ...]:
        return () if stored == "[]" else tuple(json.loads(stored))

    def drop_presence(self, before: int, after: int) -> None:
        """Forgets nodes and agents that were last heard before the one time or, by a clock that was set back since,
        after the other.
        """
        self._put("DELETE FROM presence WHERE heard < ? OR heard > ?", (before, after))
        self._put("DELETE FROM agents WHERE seen < ? OR seen > ?", (before, after))

    def put_agent(self, agent: AgentRow) -> None:
        self._put(_PUT_AGENT, agent)

    def agents(self, node: bytes) -> list[AgentRow]:
        """The agents of a node that uses this store, the one seen last first."""
        sql = f"SELECT {_AGENT} FROM agents WHERE node = ? ORDER BY seen DESC, name"
        return [AgentRow(*row) for row in self._rows(sql, node)]

    def put_progress(self, notes: Sequence[ProgressRow]) -> None:
        """Replaces the notes of these jobs, and forgets the notes of jobs of the same nodes that run no longer."""
        self._many(_PUT_PROGRESS, notes)
        self._many(_DROP_STALE, {(each.node,) for each in notes})

    def progress(self, job_ids: Sequence[bytes]) -> list[ProgressRow]:
        """The notes of those of these jobs that run on a node that uses this store. One statement."""
        return [ProgressRow(*row) for row in self._among(_PROGRESS, job_ids)]

    def progress_of(self, node: bytes) -> list[tuple[str, ProgressRow]]:
        """The notes of the jobs that a node runs, each with the kind of its job, short ones first."""
        return [(kind, ProgressRow(*row)) for kind, *row in self._rows(_PROGRESS_OF, node)]
