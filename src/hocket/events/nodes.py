"""Other nodes."""

from hocket.events.event import ERROR, INFO, Event
from hocket.kernel.durations import span
from hocket.kernel.plurals import counted


class NodeGraded(Event, frozen=True):
    """`grade` is live, warn, alert, critical or dead, by the heartbeats that the node has missed. It is routine: a
    laptop that is closed falls silent, too.
    """

    routine = True
    logger = "hocket.presence"
    level = INFO

    node: str
    grade: str
    silent_ms: int

    def __str__(self) -> str:
        if self.grade == "live":
            return f"node {self.node} is heard again"
        return f"node {self.node}: {self.grade}; it was last heard {span(self.silent_ms)} ago"


class PeerChanged(Event, frozen=True):
    """`state` is the peer's state now: ok, refused or unreachable."""

    address: str
    state: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is {self.state}{_after_colon(self.detail)}"


class PeerPaused(Event, frozen=True):
    """This node does not sync with the peer, because their rules differ."""

    address: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is paused{_after_colon(self.detail)}"


class ProgramDiffers(Event, frozen=True):
    level = INFO

    node: str
    difference: str

    def __str__(self) -> str:
        return f"node {self.node}: {self.difference}"


class NodeForked(Event, frozen=True):
    level = ERROR

    node: str

    def __str__(self) -> str:
        return (
            f"node {self.node} has two histories: its key is in use twice, or an old copy of its home was used."
            " Its ops since then do not count; revoke it, and let it join again with a new home"
        )


class HistoryRecovered(Event, frozen=True):
    """This node had lost ops of its own, and has them back. Ops that it had written meanwhile were written again."""

    ops: int
    dropped: int

    def __str__(self) -> str:
        dropped = f"; {self.dropped} no longer count" if self.dropped else ""
        return (
            f"this home was older than what other nodes have of it. The lost ops came back, and {self.ops} ops that"
            f" were written meanwhile were written again, with new job ids{dropped}. If another copy of this home is"
            " in use, stop one of them"
        )


class NodeOverQuota(Event, frozen=True):
    """`is_work` says that the node's ops have taken more than its share of the store's time."""

    node: str
    ops: int
    is_work: bool = False

    def __str__(self) -> str:
        if self.is_work:
            return (
                f"node {self.node} has used up its share of the store's time: {self.ops} of its ops wait, and those of"
                " other nodes go first"
            )
        return (
            f"node {self.node} is over its quota: {self.ops} of its ops were refused for now;"
            " `hocket nodes` shows its quota"
        )


class OpRefused(Event, frozen=True):
    """Ops from a node were refused. `sender` is the node, or the address of the peer that they were pulled from;
    `reason` is the name of one of the kernel's reasons.
    """

    routine = True
    level = INFO

    sender: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {counted(self.count, 'op')} from {self.sender}: {self.reason}"


class StoreRowRefused(Event, frozen=True):
    """A row of a store that nodes share is not what the node signed that it names, so this node leaves it out."""

    level = ERROR

    table: str
    row: str
    reason: str

    def __str__(self) -> str:
        return (
            f"another program changed the store: {self.table}, row {self.row}: {self.reason}; the row is left out,"
            " and `hocket log verify` shows all such rows"
        )


class OpsCollided(Event, frozen=True):
    node: str
    count: int

    def __str__(self) -> str:
        return (
            f"{self.count} ops from node {self.node} have the same timestamp as another op of their author;"
            " check whether a home is in use twice"
        )


class CallerRefused(Event, frozen=True):
    """A request was refused. `node` is None if the caller did not identify itself."""

    status: int
    reason: str
    node: str | None
    detail: str

    def __str__(self) -> str:
        who = "a caller" if self.node is None else f"node {self.node}"
        return f"{who} was refused ({self.status}): {self.reason}{_after_colon(self.detail)}"


class JoinRefused(Event, frozen=True):
    status: int
    reason: str

    def __str__(self) -> str:
        return f"a request to join was refused ({self.status}): {self.reason}"


class RequestsRefused(Event, frozen=True):
    """How often a server refused requests for this reason while it ran."""

    level = INFO

    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {self.count}: {self.reason}"


class TrafficNotEncrypted(Event, frozen=True):
    def __str__(self) -> str:
        return "the traffic of this server is not encrypted; give --cert and --key, or use a private network"


def _after_colon(detail: str) -> str:
    return f": {detail}" if detail else ""
