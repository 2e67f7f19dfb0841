"""Other nodes: peers, the coordinator, callers, and the bus that connects them."""

from hocket.events import ERROR, INFO, WARNING, Event
from hocket.kernel.clock import wall_text
from hocket.kernel.texts import counted, span


class NodeGraded(Event):
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


class PeerChanged(Event):
    """`state` is the peer's state now: ok, refused or unreachable."""

    address: str
    state: str
    detail: str

    @property
    def own_level(self) -> int:
        return INFO if self.state == "ok" else WARNING

    def __str__(self) -> str:
        return f"peer {self.address} is {self.state}{_after_colon(self.detail)}"


class PeerPaused(Event):
    """This node does not sync with the peer, because their rules differ."""

    address: str
    detail: str

    def __str__(self) -> str:
        return f"peer {self.address} is paused{_after_colon(self.detail)}"


class ProgramDiffers(Event):
    level = INFO
    sentence = "node {node}: {difference}"
    node: str
    difference: str


class SnapshotTaken(Event):
    """The peer has let go of ops that this node lacked. `rewritten` counts this node's own late ops, which were written
    again, and `dropped` those of them that would not count any more.
    """

    level = INFO
    address: str
    added: int
    deleted: int
    rewritten: int = 0
    dropped: int = 0

    def __str__(self) -> str:
        took = f"took a snapshot from {self.address}: {counted(self.added, 'op')} came in"
        went = f", {counted(self.deleted, 'settled op')} went"
        again = f", {counted(self.rewritten, 'op')} of this node were written again" if self.rewritten else ""
        lost = f", {counted(self.dropped, 'op')} would not count any more" if self.dropped else ""
        return took + went + again + lost


class NodeForked(Event):
    level = ERROR
    sentence = (
        "node {node} has two histories: its key is in use twice, or an old copy of its home was used."
        " Its ops since then do not count; revoke it, and let it join again with a new home"
    )
    node: str


class HorizonMoved(Event):
    """Everything up to the time `at_ms` is settled. `ops` of them go."""

    level = INFO
    at_ms: int
    ops: int

    def __str__(self) -> str:
        return f"the horizon moved to {wall_text(self.at_ms)}; {counted(self.ops, 'op')} may go"


class HorizonDiffers(Event):
    """What remains here is not what the node that moved the horizon says. Nothing goes."""

    sentence = (
        "the horizon that {node} moved has another root than the log here, so nothing goes; run `hocket log verify` on"
        " both nodes"
    )
    node: str


class OpsPruned(Event):
    level = INFO
    ops: int
    bytes: int

    def __str__(self) -> str:
        return f"{counted(self.ops, 'op')} with {self.bytes} bytes were deleted, as the log's retention says"


class CheckpointsDiffer(Event):
    level = ERROR
    sentence = (
        "node {node} has signed a checkpoint of {size} entries that are not those here: it has shown two histories."
        " `hocket log checkpoints` has the evidence; revoke the node, and let it join again with a new home"
    )
    node: str
    size: int


class HistoryRecovered(Event):
    """This node had lost ops of its own and has them back. Of those that it wrote meanwhile, it wrote `ops` again, and
    `dropped` no longer count.
    """

    ops: int
    dropped: int

    def __str__(self) -> str:
        dropped = f"; {self.dropped} more no longer count" if self.dropped else ""
        return (
            "this home lacked ops of this node that other nodes have. This node fetched them and wrote"
            f" {counted(self.ops, 'later op')} again, with new job ids{dropped}. If another copy of this home is in"
            " use, stop one of them"
        )


class NodeOverQuota(Event):
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
            f"node {self.node} is over its quota: this node refuses {self.ops} of its ops for now;"
            " `hocket mesh nodes` shows its quota"
        )


class OpRefused(Event):
    """This node refused ops. `sender` is the node that sent them, or the address of the peer that this node pulled them
    from; `reason` is the name of one of the kernel's reasons.
    """

    routine = True
    level = INFO
    sender: str
    reason: str
    count: int

    def __str__(self) -> str:
        return f"refused {counted(self.count, 'op')} from {self.sender}: {self.reason}"


class OpsCollided(Event):
    sentence = (
        "{count} ops from node {node} have the same timestamp as another op of their author;"
        " check whether a home is in use twice"
    )
    node: str
    count: int


class StoreRowRefused(Event):
    """A row of a shared store differs from the signed op that it names, so this node ignores it."""

    level = ERROR
    sentence = (
        "another program changed the store: {table}, row {row}: {reason}; this node ignores the row,"
        " and `hocket log verify` shows all such rows"
    )
    table: str
    row: str
    reason: str


class StoreRestored(Event):
    """A shared store had lost ops of this node: it failed over without its newest commits, or was restored from a
    backup. The node has offered its ops again.
    """

    level = ERROR
    sentence = "{report}"
    report: str


class CallerRefused(Event):
    """This server refused a request. `node` is None if the caller did not identify itself."""

    status: int
    reason: str
    node: str | None
    detail: str

    def __str__(self) -> str:
        caller = "a caller" if self.node is None else f"node {self.node}"
        return f"{caller} was refused ({self.status}): {self.reason}{_after_colon(self.detail)}"


class JoinRefused(Event):
    sentence = "a request to join was refused ({status}): {reason}"
    status: int
    reason: str


class RequestsRefused(Event):
    """How often a server refused requests or ops for this reason while it ran."""

    level = INFO
    sentence = "refused {count}: {reason}"
    reason: str
    count: int


class TrafficNotEncrypted(Event):
    sentence = "the traffic of this server is not encrypted; give --cert and --key, or use a private network"


class CoordinatorUnreachable(Event):
    sentence = "no decision from the coordinator ({error}); jobs that need one wait"
    error: str


class CoordinatorFailed(Event):
    sentence = "asking the coordinator failed ({error}); jobs that need its decision wait"
    error: str


class CoordinatorReachable(Event):
    level = INFO
    sentence = "the coordinator decides again"


class CoordinatorUnknown(Event):
    sentence = "this node does not know the coordinator yet; jobs that need its decision wait"


class CoordinatorSilent(Event):
    sentence = "the coordinator {node} has been silent for long"
    node: str


class LeadHeld(Event):
    level = INFO
    sentence = "enough named nodes answer: the coordinator decides"


class LeadLost(Event):
    sentence = "the coordinator decides nothing for now: {why}"
    why: str


class TakenOver(Event):
    """This node has become the coordinator in the place of another. `offered` counts requests that it decided anew."""

    node: str
    term: int
    offered: int

    def __str__(self) -> str:
        anew = f"{counted(self.offered, 'request')} decided anew"
        return f"this node is the coordinator now, after {self.node}, in term {self.term}; {anew}"


class TakeoverFailed(Event):
    sentence = "the coordinator {node} is silent, and this node cannot follow it yet: {why}"
    node: str
    why: str


class OpsWaiting(Event):
    """Ops of this node wait for the coordinator, which it cannot reach. `since_ms` is the time of the oldest."""

    ops: int
    since_ms: int

    def __str__(self) -> str:
        return f"waiting here for the coordinator: {counted(self.ops, 'op')}, sent in order when it answers"


class OpsDelivered(Event):
    level = INFO
    sentence = "the coordinator has all ops that waited here"


class MessagesDropped(Event):
    """A subscription's queue was full for the first time. Its receiver is too slow, or a node sends too much."""

    sentence = (
        "messages on {pattern} arrive faster than this process reads them; it keeps the newest {capacity} and drops"
        " older ones"
    )
    pattern: str
    capacity: int


class BusConnected(Event):
    """`keeps` is whether the server keeps announcements for nodes that join later."""

    level = INFO
    server: str
    keeps: bool

    def __str__(self) -> str:
        missing = "" if self.keeps else "; it has no JetStream, so late joiners miss announcements"
        return f"the bus {self.server} is connected{missing}"


class BusAway(Event):
    sentence = "the bus {server} is away ({error}); work goes on without it"
    server: str
    error: str


def _after_colon(detail: str) -> str:
    return f": {detail}" if detail else ""
