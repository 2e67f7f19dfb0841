"""Carries presence between nodes. A node tells each peer every `BEAT_S` what it says about itself, and gets what the
peer knows of others: what has changed since the last answer, and for the rest the times. A node speaks only for itself:
its token says which node it is. A peer's word about others is believed, because presence decides nothing.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hocket.errors import HocketError
from hocket.families.access import NodeAccess
from hocket.families.jobs.progress import ProgressNote
from hocket.families.liveness import BEAT_S
from hocket.kernel.authority import Standing
from hocket.kernel.capabilities import Grant, grant_of
from hocket.kernel.decoding import decode_json
from hocket.kernel.extension import extension_kinds
from hocket.kernel.ids import node_text, parse_node, parse_ulid
from hocket.kernel.sanitise import sanitised
from hocket.kernel.vocabulary import ReportProgress
from hocket.log import Log
from hocket.mesh import wire
from hocket.mesh.outgoing import PeerReader, reader
from hocket.mesh.wire import Reply, look
from hocket.store import Session
from hocket.work.environment import Environment
from hocket.work.presence import (
    AHEAD_MS,
    KEPT_MS,
    NodePresence,
    NodeSaid,
    Serving,
    is_away,
    known_nodes,
    own_presence,
    read_presence,
    read_said,
    said_text,
    serving_text,
)

if TYPE_CHECKING:
    from hocket.mesh.client import Client

# A server reads its store, and writes what it has heard if that is nothing new, at most this often.
ROUND_S = 1.0
# A node sends changed progress to a peer at most this often.
NOTES_S = 2.0
BODY_BYTES_MAX = 64 * 1024
NODES_MAX = 256
# Who may send messages to agents, or shares locks with them, may know which there are.
_WITH_AGENTS = (("Inbox", "Write"), ("Inbox", "Claim"), ("Inbox", "Read"), ("Lock", "Acquire"), ("Lock", "Read"))


class _Beat(NodeSaid, frozen=True):
    """What a node tells. `seen` is how long ago each of its agents was seen. `mark` is where the last answer ended;
    None from earlier versions, which get the whole list.
    """

    seen: tuple[int, ...] = ()
    mark: str | None = None


class _Known(NodeSaid, frozen=True, kw_only=True):
    """What it is told about another node, and how long ago that node, and each of its agents, was heard."""

    node: str
    age_ms: int
    seen: tuple[int, ...] = ()


class _Presences(msgspec.Struct, frozen=True):
    """`nodes` have changed since the mark that the caller sent. `ages` are of all nodes that are not dead, and that the
    caller has been told about: how long ago each was heard, then its agents.
    """

    mark: str
    nodes: tuple[_Known, ...]
    ages: dict[str, tuple[int, ...]]


class _Heard(NamedTuple):
    """What is known about a node; `changed` numbers the last change."""

    presence: NodePresence
    text: str
    changed: int


class PresenceBoard:
    """What a server knows about other nodes. It holds everything in memory and goes to the store once a second at most,
    however many nodes there are: a heartbeat may be lost. Calls come from several threads, one at a time.
    """

    def __init__(self, log: Log, environment: Environment) -> None:
        self._log, self._environment = log, environment
        self._name = environment.name("presence")
        self._known: dict[int, _Heard] = {}
        self._count = 0
        self._unstored: dict[int, NodePresence] = {}
        self._had_news: set[int] = set()
        self._next_round = environment.monotonic()

    def answer(self, to: PeerReader, permissions: int, body: bytes) -> Reply:
        """Takes what the caller says about itself, and tells it about the others as far as it may know.
        `permissions` is the number of the permissions by which the caller reads.
        """
        try:
            told = decode_json(body, _Beat)
        except (msgspec.MsgspecError, RecursionError):
            return Reply(400)
        now_ms = self._log.physical()
        whole = NodeSaid(told.workers, told.agents, told.hardware, told.progress)
        said = read_said(said_text(whole))  # within its bounds
        seen = tuple(now_ms - max(0, age) for age in told.seen[: len(said.agents)])
        is_news = self._hear(NodePresence(to.node, said, now_ms, seen))
        self._round(is_urgent=is_news and to.node not in self._had_news)
        if is_news:
            self._had_news.add(to.node)
        near = [each for each in self._known.values() if each.presence.node != to.node]
        near = [each for each in near if not is_away(each.presence, now_ms)][:NODES_MAX]
        if told.mark is None:
            return _json(_fitting(_shown(to, near, now_ms))[0])
        return _json(self._answer(to, f"{self._name}.{permissions}", told.mark, near, now_ms))

    def _answer(self, to: PeerReader, epoch: str, mark: str, near: list[_Heard], now_ms: int) -> _Presences:
        began, _, at = mark.rpartition("-")
        since = int(at) if began == epoch and at.isascii() and at.isdigit() and len(at) < 16 else 0
        news = sorted((each for each in near if each.changed > since), key=lambda each: each.changed)
        shown, is_whole = _fitting(_shown(to, news, now_ms))
        last = self._count if is_whole else news[len(shown) - 1].changed if shown else since
        meets = _meets_agents(to)
        times = {
            node_text(each.presence.node): (
                max(0, now_ms - each.presence.heard_ms),
                *(max(0, now_ms - at) for at in each.presence.seen_ms if meets),
            )
            for each in near
            if each.changed <= last
        }
        return _Presences(f"{epoch}-{last}", tuple(shown), times)

    def _hear(self, presence: NodePresence, *, is_stored: bool = False) -> bool:
        """Whether it is news. What was heard just now is the latest, even if the clock was set back."""
        before = self._known.get(presence.node)
        if is_stored and before is not None and before.presence.heard_ms > presence.heard_ms:
            return False
        text = said_text(presence.said)
        is_news = before is None or before.text != text
        self._count += is_news
        changed = before.changed if before is not None and not is_news else self._count
        self._known[presence.node] = _Heard(presence, text, changed)
        if not is_stored:
            self._unstored[presence.node] = presence
        return is_news

    def _round(self, is_urgent: bool) -> None:
        """Stores a node's first news at once and the rest once a second; reads what other processes of this node have
        stored.
        """
        if self._environment.monotonic() >= self._next_round:
            self._next_round = self._environment.monotonic() + ROUND_S
            self._had_news.clear()
        elif not is_urgent:
            return
        unstored, self._unstored = self._unstored, {}
        keep(self._log, list(unstored.values()))
        with self._log.store.read() as session:
            found = known_nodes(session, self._environment.liveness, self._log, self._environment.hardware)
        known = {each.node for each in found}
        self._known = {node: each for node, each in self._known.items() if node in known}
        for each in found:
            self._hear(each, is_stored=True)


def _fitting(shown: list[_Known]) -> tuple[list[_Known], bool]:
    """As many as fit into an answer, and whether these are all."""
    left = BODY_BYTES_MAX // 2  # the times take the rest
    for index, each in enumerate(shown):
        left -= len(msgspec.json.encode(each)) + 1
        if left < 0:
            return shown[:index], False
    return shown, True


def _json(value: object) -> Reply:
    return Reply(200, {"content-type": wire.JSON}, msgspec.json.encode(value))


def _grants(to: PeerReader) -> list[Grant]:
    capabilities = [each for held in to.authority.in_force(to.node, to.now_ms) for each in held.capabilities]
    return [grant for each in capabilities if (grant := grant_of(each)) is not None]


def _meets_agents(to: PeerReader) -> bool:
    return to.reads_everything or any(grant.covers(*each) for grant in _grants(to) for each in _WITH_AGENTS)


def _shown(to: PeerReader, heard: Iterable[_Heard], now_ms: int) -> list[_Known]:
    """What the reader may know about these nodes."""
    meets = _meets_agents(to)
    return [
        _Known(
            node=node_text(known.node),
            age_ms=max(0, now_ms - known.heard_ms),
            workers=_readable(to, known.said.workers),
            agents=known.said.agents if meets else (),
            hardware=known.said.hardware,
            progress=_readable_notes(to, known.node, known.said.progress),
            seen=tuple(max(0, now_ms - each) for each in known.seen_ms) if meets else (),
        )
        for known, _, _ in heard
    ]


def _readable(to: PeerReader, workers: tuple[Serving, ...]) -> tuple[Serving, ...]:
    """The workers with only those kinds that the reader may read or submit."""
    if to.reads_everything:
        return workers
    grants = _grants(to)
    limits = [grant.kind_prefix for grant in grants if any(grant.covers("Job", each) for each in ("Read", "Schedule"))]
    if None in limits:
        return workers
    prefixes = {prefix for limit in limits for prefix in limit or ()}
    found = [(each, _within(each.kinds, prefixes)) for each in workers]
    limited = {each.kind for each in extension_kinds() if each.refusal}
    return tuple(
        msgspec.structs.replace(each, kinds=kinds, claimed=())
        if not limited.isdisjoint(kinds)
        else Serving(kinds, labels=each.labels, id=each.id, weight=each.weight)
        for each, kinds in found
        if kinds
    )


def _readable_notes(to: PeerReader, node: int, notes: tuple[ProgressNote, ...]) -> tuple[ProgressNote, ...]:
    """The progress of a node's jobs, as far as the reader may read it on the log."""
    if to.reads_everything:
        return notes
    found = []
    for each in notes:
        try:
            payload = ReportProgress(parse_ulid(each.job_id), node, each.note.encode())
        except ValueError:
            continue
        rules = to.authority.reading(to.node, payload, to.now_ms, each.kind, to.now_ms)
        if rules is not None and (not rules or sanitised(payload, rules) == payload):
            found.append(each)
    return tuple(found)


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


def keep(log: Log, heard: Sequence[NodePresence], times: Mapping[int, Sequence[int]] | None = None) -> bool:
    """Stores what was heard of members other than this node, and the times of what is stored already. False if there
    are times of members about which nothing is stored. What seems to be heard in the future is from before the clock
    was set back.
    """
    with log.store.read() as session:
        stored = session.presence()
        authority, now_ms = log.permissions(session).authority, log.physical()
    before = {each.node: each.said for each in stored if each.heard <= now_ms + AHEAD_MS}

    def is_member(node: int) -> bool:
        return node != log.node and authority.standing(node, now_ms) is Standing.ACTIVE

    rows = [each.row for each in heard if is_member(each.node)]
    touched = {node.to_bytes(8, "big"): each for node, each in (times or {}).items() if is_member(node)}
    touched |= {row.node: (row.heard, *row.seen) for row in rows if before.get(row.node) == row.said}
    news = [row for row in rows if before.get(row.node) != row.said]
    if news or touched:
        with log.store.write() as session:
            session.drop_presence(now_ms - KEPT_MS, now_ms + AHEAD_MS)
            for row in news:
                session.put_presence(row)
            session.touch_presence(touched)
    return touched.keys() <= before.keys() | {row.node for row in news}


class _Told(NamedTuple):
    """What a peer was told last, when, and where its answer ended."""

    workers: str = ""
    progress: tuple[ProgressNote, ...] = ()
    at: float = -BEAT_S
    mark: str = ""


class PresenceSharing:
    """Tells peers what this node says about itself, and stores their answers. One for each process that syncs."""

    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._access, self._environment = access, environment
        self._told: dict[str, _Told] = {}
        self._sharing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def has_told(self, address: str, workers: Sequence[Serving], progress: tuple[ProgressNote, ...]) -> bool:
        told = self._told.get(address, _Told())
        return not told.workers or (told.workers, told.progress) == (serving_text(workers), progress)

    def due_s(self, address: str, every_s: float = BEAT_S) -> float:
        """How long until the peer is to be told again."""
        return self._told.get(address, _Told()).at + every_s - self._environment.monotonic()

    async def share(self, client: "Client", every_s: float = BEAT_S) -> None:
        """Shares with a peer that has just answered, if that was last done `every_s` ago or there is news. Two tasks
        that call it share once, and both have the answer. A peer that does not know how is left alone.
        """
        async with self._sharing[client.address]:
            await self._share(client, every_s)

    async def _share(self, client: "Client", every_s: float) -> None:
        access, environment = self._access, self._environment
        told = self._told.get(client.address, _Told())
        if not client.is_hocket or client.node is None:
            self._told[client.address] = told._replace(at=environment.monotonic())
            return
        own = await look(access, self._own)
        now_ms, workers = own.heard_ms, serving_text(own.workers)
        notes = own.said.progress
        if notes != told.progress:
            every_s = min(every_s, NOTES_S)
        if workers == told.workers and self.due_s(client.address, every_s) > 0:
            return
        told = self._told[client.address] = _Told(workers, notes, environment.monotonic(), told.mark)
        log, peer = access.log, client.node
        if notes:
            notes = await access.call(lambda: _readable_notes(reader(log, peer), log.node, notes))
        seen = tuple(max(0, now_ms - each) for each in own.seen_ms)
        beat = _Beat(own.said.workers, own.said.agents, own.said.hardware, notes, seen, told.mark)
        try:
            body = await client.share_presence(msgspec.json.encode(beat))
            found = [] if body is None else decode_json(body, list[_Known] | _Presences)
            answer = found if isinstance(found, _Presences) else _Presences("", tuple(found), {})
            heard = [_presence(each, now_ms) for each in answer.nodes[:NODES_MAX]]
            ages = list(answer.ages.items())[:NODES_MAX]
            times = {parse_node(node): [now_ms - max(0, age) for age in each] for node, each in ages if each}
        except (HocketError, msgspec.MsgspecError, ValueError, RecursionError):
            return
        is_complete = await access.call(lambda: keep(access.log, heard, times))
        # Without a mark, the next answer is about all nodes again.
        self._told[client.address] = told._replace(mark=answer.mark if is_complete else "")

    def _own(self, session: Session) -> NodePresence:
        environment = self._environment
        own = own_presence(session, environment.liveness, self._access.log, environment.hardware)
        return read_presence(own.row)  # within its bounds


def _presence(known: _Known, now_ms: int) -> NodePresence:
    """By the time before the question was sent: a node never looks more alive than it is."""
    said = NodeSaid(known.workers, known.agents, known.hardware, known.progress)
    seen = tuple(now_ms - max(0, age) for age in known.seen)
    return NodePresence(parse_node(known.node), said, now_ms - max(0, known.age_ms), seen)
