"""What nodes and agents last said about themselves, and how far running jobs have come. These rows expire, and none of
them is on a log.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


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


class PresenceSession(Protocol):
    def presence(self) -> list[Presence]:
        """What other nodes have said, however long ago."""

    def put_presence(self, presence: Presence) -> None:
        """Replaces what that node has said before, unless that was heard later."""

    def touch_presence(self, times: Mapping[bytes, Sequence[int]]) -> None:
        """These nodes have said the same again: for each, when that was heard and when its agents were seen. A node
        that is not known, or was heard later, is left as it is. One statement, however many nodes.
        """

    def drop_presence(self, before: int, after: int) -> None:
        """Forgets nodes and agents that were last heard before the one time or, by a clock that was set back since,
        after the other.
        """

    def put_agent(self, agent: AgentRow) -> None: ...
    def agents(self, node: bytes) -> list[AgentRow]:
        """The agents of a node that uses this store, the one seen last first."""

    def put_progress(self, notes: Sequence[ProgressRow]) -> None:
        """Replaces the notes of these jobs, and forgets the notes of jobs that run no longer."""

    def progress(self, job_ids: Sequence[bytes]) -> list[ProgressRow]:
        """The notes of those of these jobs that run on a node that uses this store. One statement."""

    def progress_of(self, node: bytes) -> list[tuple[str, ProgressRow]]:
        """The notes of the jobs that a node runs, each with the kind of its job, short ones first."""
