"""Which workers other nodes have. A node that syncs with another also sends what its own workers run, and gets what the
workers of that node, and of the nodes that have told it, run. Presence is on no log and decides nothing: people are
told by it what a job waits for. A node that has not been heard for a while counts as away.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hocket.errors import HocketError
from hocket.kernel.authority import Standing
from hocket.kernel.capabilities import grant_of
from hocket.kernel.ids import node_text, parse_node
from hocket.log import Log
from hocket.mesh import wire
from hocket.mesh.outgoing import PeerReader
from hocket.mesh.wire import Reply, look
from hocket.store import Presence, Session
from hocket.work.command.request import KIND
from hocket.work.environment import Environment
from hocket.work.liveness import Liveness, WorkerState, standing
from hocket.work.node_access import NodeAccess
from hocket.work.serving import Serving, read_serving, serving_text

if TYPE_CHECKING:
    from hocket.mesh.client import Client

# How often a node says what its workers run, if that has not changed.
SHARE_S = 10.0
# A node that was not heard for this long is away. Idle nodes sync every half minute.
AWAY_MS = 90_000
# What a node has said is stored again after this long, if it is the same.
HEARD_AGAIN_MS = 10_000
BODY_BYTES_MAX = 64 * 1024
NODES_MAX = 256


class NodeWorkers(NamedTuple):
    """The workers of a node, and when it last said so."""

    node: int
    workers: list[Serving]
    heard_ms: int


class _Told(msgspec.Struct):
    """What a node says about itself."""

    workers: list[Serving]


class _Known(msgspec.Struct):
    """What it is told about another node."""

    node: str
    age_ms: int
    workers: list[Serving]


def own_workers(session: Session, liveness: Liveness, node: int, now_ms: int) -> list[Serving]:
    """What the running workers of this node run."""
    rows = session.workers(node.to_bytes(8, "big"))
    running = [each for each in rows if standing(liveness, each, now_ms) is WorkerState.RUNNING]
    return [worker for each in running for worker in read_serving(each.serves) if worker.kinds]


def known_workers(session: Session, liveness: Liveness, log: Log) -> list[NodeWorkers]:
    """The workers of this node, and what others have said, however long ago; this node is the first."""
    now_ms = log.physical()
    here = NodeWorkers(log.node, own_workers(session, liveness, log.node, max(now_ms, session.head().wall)), now_ms)
    others = [
        NodeWorkers(int.from_bytes(each.node, "big"), read_serving(each.serves), each.heard)
        for each in session.presence()
    ]
    return [here, *(each for each in others if each.node != log.node)]


def is_away(known: NodeWorkers, now_ms: int) -> bool:
    return now_ms - known.heard_ms > AWAY_MS


def answer(log: Log, liveness: Liveness, to: PeerReader, body: bytes) -> Reply:
    """Stores what the caller says about its workers, and tells it about the others as far as it may know their
    kinds.
    """
    try:
        told = msgspec.json.decode(body, type=_Told)
    except (msgspec.MsgspecError, RecursionError):
        return Reply(400)
    _keep(log, [NodeWorkers(to.node, told.workers, log.physical())])
    now_ms = log.physical()
    with log.store.read() as session:
        found = known_workers(session, liveness, log)
    near = [each for each in found if each.node != to.node and not is_away(each, now_ms)]
    shown = [
        _Known(node_text(each.node), max(0, now_ms - each.heard_ms), _readable(to, each.workers))
        for each in near[:NODES_MAX]
    ]
    while len(body := msgspec.json.encode(shown)) > BODY_BYTES_MAX:
        shown.pop()
    return Reply(200, {"content-type": wire.JSON}, body)


def _readable(to: PeerReader, workers: list[Serving]) -> list[Serving]:
    """The workers with only those kinds that the reader may read or submit."""
    if to.reads_everything:
        return workers
    capabilities = [each for held in to.authority.in_force(to.node, to.now_ms) for each in held.capabilities]
    grants = [grant for each in capabilities if (grant := grant_of(each)) is not None]
    limits = [grant.kind_prefix for grant in grants if any(grant.covers("Job", each) for each in ("Read", "Schedule"))]
    if None in limits:
        return workers
    prefixes = {prefix for limit in limits for prefix in limit or ()}
    found = [(each, _within(each.kinds, prefixes)) for each in workers]
    return [
        msgspec.structs.replace(each, kinds=kinds) if KIND in kinds else Serving(kinds, labels=each.labels)
        for each, kinds in found
        if kinds
    ]


def _within(kinds: Iterable[str], prefixes: Iterable[str]) -> tuple[str, ...]:
    """The part of the kinds that begins with one of the prefixes."""
    found: set[str] = set()
    for kind in kinds:
        for prefix in prefixes:
            if kind.startswith(prefix):
                found.add(kind)
            elif kind.endswith(".") and prefix.startswith(kind):
                found |= {prefix, f"{prefix.rstrip('.')}."}
    return tuple(sorted(found))


def _keep(log: Log, heard: Iterable[NodeWorkers]) -> None:
    """Stores what was heard, if it is news."""
    with log.store.read() as session:
        before = {each.node: each for each in session.presence()}
        authority, now_ms = log.permissions(session).authority, log.physical()
    news = []
    for each in heard:
        key, text = each.node.to_bytes(8, "big"), serving_text(each.workers)
        known = before.get(key)
        if each.node == log.node or authority.standing(each.node, now_ms) is not Standing.ACTIVE:
            continue
        if known is None or each.heard_ms - known.heard >= (HEARD_AGAIN_MS if text == known.serves else 1):
            news.append(Presence(key, text, each.heard_ms))
    if news:
        with log.store.write() as session:
            for each_new in news:
                session.put_presence(each_new)


class PresenceSharing:
    """Tells peers what the workers of this node run, and stores their answers. One for each process that syncs."""

    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._access, self._environment = access, environment
        self._told: dict[str, tuple[str, float]] = {}

    def has_told(self, address: str, workers: Sequence[Serving]) -> bool:
        return self._told.get(address, ("",))[0] in ("", serving_text(workers))

    async def share(self, client: "Client") -> None:
        """Shares with a peer that has just answered, if that is due. A peer that does not know how is left alone."""
        access, environment = self._access, self._environment
        liveness, now_ms = environment.liveness, environment.physical_ms()
        workers = await look(access, lambda session: own_workers(session, liveness, access.log.node, now_ms))
        text, (before, at) = serving_text(workers), self._told.get(client.address, ("", -SHARE_S))
        if text == before and environment.monotonic() < at + SHARE_S:
            return
        self._told[client.address] = text, environment.monotonic()
        try:
            body = await client.share_presence(msgspec.json.encode(_Told(read_serving(text))))
            found = [] if body is None else msgspec.json.decode(body, type=list[_Known])
            heard = [NodeWorkers(parse_node(each.node), each.workers, now_ms - each.age_ms) for each in found]
        except (HocketError, msgspec.MsgspecError, ValueError, RecursionError):
            return
        await access.call(lambda: _keep(access.log, heard[:NODES_MAX]))
