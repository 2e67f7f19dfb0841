"""Exchanges with one peer: pull until nothing is left, then push what the peer lacks. A batch is verified while the
next one is in transit, and the position is stored after each, so that a first sync of a long log streams and resumes
where it stopped.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Conflict, Failed, HocketError
from hocket.events import Emit
from hocket.events.nodes import NodeForked, OpRefused, SnapshotTaken
from hocket.families.access import NodeAccess
from hocket.families.jobs.claiming import accept
from hocket.kernel.capabilities import Knowledge
from hocket.kernel.clock import Hlc, just_before
from hocket.kernel.frontier import Frontier, encode_frontier, merge
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op, read_sequence
from hocket.kernel.postcard import Malformed, Reader
from hocket.log import Admission
from hocket.log.limits import OFFSET_MS_MIN, known_offset, note_delivered, note_offset
from hocket.log.lost_past import note_shared, ops_there, own_history, rewind
from hocket.log.snapshots.own_late import OLD_MS, write_late_again
from hocket.log.transaction import GAPS
from hocket.mesh import incoming, outgoing, peers
from hocket.mesh.client import RETRY_AFTER_S_MAX, AnswerTooLarge, Client, LetGo, PeerAnswer, PushCounts, Refused
from hocket.mesh.incoming import Received, is_brought, is_own, recover
from hocket.mesh.outgoing import PAGE_BYTES_MAX, PAGE_OPS_MAX, Page, own_frontier, page
from hocket.mesh.quotas import BatchWork, Quotas
from hocket.mesh.snapshots.fetching import take_snapshot
from hocket.mesh.wire import look, note
from hocket.store import Session
from hocket.work.environment import Environment

Push = Callable[[list[bytes]], Awaitable[PushCounts]]

# An exchange ends after this many batches; the next one continues from there.
PULLS_MAX = 10_000
# The peer verifies a push before it answers, so pushes are smaller than pulls.
PUSH_OPS_MAX = 2_000
PUSH_BYTES_MIN = 64 * 1024
# A peer that cannot prove its answers is asked for everything again after this long.
ANEW_S = 3600.0
# The store key of the delegations by which this node reads.
READING = "reading"
# How often a peer is asked for all ops of an author whose ops there do not follow those here.
COMPARE_S = 60.0
# How often the ops of this node's own are pulled in one exchange, while another process goes on writing.
RECOVERIES_MAX = 5
# How often it is noted how far a peer has this node's own ops.
SHARED_S = 60.0
# Every peer is asked for the last op of every author once more, this often.
RECHECK_S = 600.0


class Exchanged(NamedTuple):
    """The outcome of an exchange: the peer's state, ops that are new here and there, and ops that either side refused.
    It is not `answered` if ops were pushed after the last pull, so that the peer's decisions on them are not here.
    """

    address: str
    node: int | None
    state: str
    detail: str = ""
    pulled: int = 0
    pushed: int = 0
    refused: int = 0
    retry_s: float = 0.0
    answered: bool = True


class _Start(NamedTuple):
    """How an exchange begins: from where the peer is pulled, how far it counts as pulled, and by which delegations this
    node reads.
    """

    since: Frontier
    kept: Frontier
    reading: bytes


class _Taken(NamedTuple):
    """The outcome of a batch. `unread_at` is how many ops could be read, if more follow an unreadable one; `reached` is
    the last op of each author that this node has now. `retry_s` is the seconds until more of the peer's own ops are
    accepted, 0 if all were.
    """

    admission: Admission
    unread_at: int | None
    reached: Frontier
    retry_s: float


class _Tally:
    def __init__(self) -> None:
        self.pulled = self.pushed = self.refused = self.held = 0
        self.is_refused = False
        # The seconds until this node may push more, and may pull more of the peer's own ops.
        self.push_retry_s = self.pull_retry_s = 0.0
        self.unlinked: frozenset[int] = frozenset()
        self.forked: frozenset[int] = frozenset()
        self.branch: bytes | None = None

    def add(self, admission: Admission) -> None:
        self.unlinked |= admission.unlinked
        self.forked |= admission.forked
        self.branch = self.branch or admission.branch
        self.pulled += admission.appended
        self.refused += admission.rejected

    def push(self, counts: PushCounts, out: Page, before: Frontier) -> None:
        if counts.unlinked:
            self.unlinked |= {author for author, at in out.scanned.items() if before.get(author) != at}
        self.pushed += counts.appended
        self.held += counts.held
        self.refused += counts.rejected
        self.is_refused = self.is_refused or counts.rejected > 0
        self.push_retry_s = max(self.push_retry_s, min(float(counts.retry_s), RETRY_AFTER_S_MAX))


class PeerExchange:
    """What this process knows about one peer, and the exchanges with it, one at a time."""

    def __init__(
        self,
        client: Client,
        access: NodeAccess,
        environment: Environment,
        quotas: Quotas,
        emit: Emit,
        fetched_snapshot: Path | None = None,
    ) -> None:
        self.client = client
        self._fetched_snapshot = fetched_snapshot
        self._access, self._environment, self._quotas, self._emit = access, environment, quotas, emit
        self._lock = asyncio.Lock()
        # How many exchanges have begun; and the last whole one that worked, with its number.
        self._begun = 0
        self._last: tuple[int, Exchanged] | None = None
        self._theirs: Frontier | None = None
        # How far the peer has this node's own ops, and what the store says about that.
        self._delivered: Hlc | None = None
        self._noted: Hlc | None = None
        # How far a peer that is not Hocket counts as pulled.
        self._cursor: Frontier = {}
        self._began = self._rechecked = environment.monotonic()
        self._compared = self._recovered = self._shared = -COMPARE_S
        # When the peer was last asked, by the machine's clock.
        self._asked_ms = 0
        self._knows: Knowledge | None = None
        # By how much the peer's clock is ahead, as the store says.
        self._offset_ms: int | None = None

    async def exchange(self, *, unless_idle: bool = False) -> Exchanged:
        """Pulls everything and pushes everything. Raises Paused, Refused or Unreachable. Those who ask while an
        exchange runs share the next one, which begins after all of them have asked.
        """
        asked = self._begun
        async with self._lock:
            if self._last is not None and self._last[0] > asked:
                return self._last[1]
            self._begun = number = self._begun + 1
            done = await self._exchange(unless_idle)
            if not unless_idle:
                self._last = number, done
            return done

    @property
    def peer_has(self) -> Hlc | None:
        """This node's own last op that the peer has, as far as the last exchange has shown."""
        return (self._theirs or {}).get(self._access.log.node)

    async def deliver(self) -> None:
        """Pushes what the peer lacks, so that messages for its agents are stored there. Raises as `exchange` does."""
        async with self._lock:
            if self._theirs is None or self.client.node is None:
                await self._exchange(False, self.client.deliver)
            else:
                await self._push(_Tally(), self.client.deliver)

    async def _exchange(self, unless_idle: bool, push: Push | None = None) -> Exchanged:
        client, tally = self.client, _Tally()
        await client.meet()
        start = await self._access.call(self._begin)
        out: Page | None = None
        if abs(self._environment.physical_ms() - self._asked_ms) >= OLD_MS:
            # A horizon may have been moved meanwhile: what is late must not be pushed before that is known.
            self._theirs = None
        self._asked_ms = self._environment.physical_ms()
        before = self._theirs or {}
        if self._theirs is not None and client.node is not None:
            out = await self._next_page(PAGE_BYTES_MAX)
        if unless_idle and self._theirs is not None and (out is None or not out.bodies):
            return Exchanged(client.address, client.node, peers.OK)
        first: PeerAnswer | None = None
        try:
            if out is not None and out.bodies and client.is_hocket:
                counts, first = await client.exchange(out.bodies, start.since)
                tally.push(counts, out, before)
                if not counts.retry_s and not counts.rejected:
                    self._delivered = out.scanned.get(self._access.log.node, self._delivered)
            theirs = await self._pull(start, first, tally)
        except LetGo:
            out, first, start = None, None, await self._take_snapshot()
            theirs = await self._pull(start, None, tally)
        if tally.pulled or self._last is None:
            await self._access.call(lambda: write_late_again(self._access.log))
        node = await client.prove()
        if node is None:
            theirs = None
        elif client.knows is not None and client.knows != self._knows:
            self._knows = client.knows
            await peers.note_program(self._access, node, client.knows, self._emit)
        if node is not None:
            await self._note_offset(node)
        if first is not None and out is not None and theirs is not None:
            theirs = merge(theirs, out.scanned)
        if theirs is not None:
            self._theirs = theirs
            self._delivered = theirs.get(self._access.log.node, self._delivered)
        lost = None if self._theirs is None else await self._recover(start, tally)
        # If there was nothing to push and the peer's frontier has not changed, ops written here meanwhile are left to
        # the next exchange, which brings back the peer's decisions at once.
        is_even = out is not None and out.whole and not out.bodies and merge(self._theirs or {}, before) == self._theirs
        detail, answered = "", True
        if node is None:
            detail = "the peer's identity could not be verified, so nothing was pushed"
        elif lost is not None:
            detail = lost
        elif tally.push_retry_s:
            pass  # the peer accepts no more for now
        elif self._theirs is not None and not is_even and (first is None or out is None or not out.whole):
            answered = not await self._push(tally, push)
        await self._note_delivered()
        now = self._environment.monotonic()
        if client.is_hocket and now >= self._rechecked + RECHECK_S:
            self._rechecked = now
            await self._recheck(tally)
        if tally.unlinked and now >= self._compared + COMPARE_S:
            self._compared = now
            await self._compare(start, tally)
        for author in tally.forked:
            self._emit(NodeForked(node_text(author)))
            # The peer may have heard the other history alone. It is sent what is here, since some of it may be pinned.
            (self._theirs or {}).pop(author, None)
        if tally.is_refused:
            # The peer may accept later what it refused now, so its frontier is asked again.
            self._theirs = None
        retry_s = max(tally.push_retry_s, tally.pull_retry_s)
        if retry_s and not detail:
            whose = "this node's quota there" if tally.push_retry_s else "its quota here"
            detail = f"{whose} is used up; continuing in {retry_s:.0f} seconds"
        if tally.held:
            detail = (
                f"{client.address} holds {tally.held} ops of this node back until their time has come: the clock here"
                " is ahead of the clock there; set the one that is wrong"
            )
        return Exchanged(
            client.address, node, peers.OK, detail, tally.pulled, tally.pushed, tally.refused, retry_s, answered
        )

    async def _take_snapshot(self) -> _Start:
        """Begins anew from the peer's snapshot, because the peer has let go of ops that this node lacks. Raises Refused
        if there is none that this node can take.
        """
        if self._fetched_snapshot is None:
            raise Refused(f"{self.client.address} has let go of ops that this node lacks")
        try:
            loaded = await take_snapshot(self._access, self.client, self._fetched_snapshot)
        except (Conflict, Failed) as error:
            raise Refused(str(error)) from None
        self._emit(SnapshotTaken(self.client.address, loaded.added, loaded.deleted, loaded.rewritten, loaded.dropped))
        self._theirs = None
        return await self._access.call(self._begin)

    async def _note_offset(self, node: int) -> None:
        """Notes by how much the peer's clock differs from this one, if that has changed."""
        offset_ms, own = self.client.offset_ms, self._access.log.node
        offset_ms = offset_ms if abs(offset_ms) >= OFFSET_MS_MIN else 0
        if self._offset_ms is None:
            self._offset_ms = await look(self._access, lambda session: known_offset(session, own, node))
        if abs(offset_ms - self._offset_ms) >= OFFSET_MS_MIN or (self._offset_ms and not offset_ms):
            await note(self._access, lambda session: note_offset(session, own, node, offset_ms))
            self._offset_ms = offset_ms

    # Pulls.

    def _begin(self) -> _Start:
        """A node that reads everything, and always did, has no gaps: it asks a Hocket peer for what it lacks itself.
        Otherwise it asks from where the peer's last answer ended. The cursor of a peer that is not Hocket is unsigned,
        so it is kept only in this process, and not for long. Raises Refused for a revoked peer.
        """
        log, client = self._access.log, self.client
        if client.claims is not None and peers.is_revoked(
            log.authority(), client.claims.to_bytes(8, "big"), log.physical()
        ):
            raise Refused(
                f"node {node_text(client.claims)} at {client.address} was revoked; this node does not sync with it"
            )
        is_whole = outgoing.is_whole(log)
        with log.store.read() as session:
            reading = outgoing.reading(log, session)
            own, has_gaps = own_frontier(session), session.own_meta(GAPS) is not None
            author = log.node.to_bytes(8, "big")
            is_news = session.node_meta(author, READING) != reading
        if is_news or (not is_whole and not has_gaps and len(own) > 1):
            with log.store.write() as session:
                if session.node_meta(author, READING) not in (None, reading) and (has_gaps or not is_whole):
                    # Ops that were withheld from this node may be readable now.
                    for peer in session.peers():
                        session.put_peer(peer._replace(pulled=encode_frontier({})))
                session.set_node_meta(author, READING, reading)
                if not is_whole and len(own) > 1:
                    session.set_own_meta(GAPS, b"1")
                    has_gaps = True
        if not client.is_hocket:
            if self._environment.monotonic() - self._began > ANEW_S:
                self._cursor, self._began = {}, self._environment.monotonic()
            return _Start(self._cursor, self._cursor, reading)
        with log.store.read() as session:
            kept = peers.pulled(peers.find(session, client.address))
        mine = own if is_whole and not has_gaps else {n: at for n, at in own.items() if n == log.node}
        return _Start(merge(kept, mine), kept, reading)

    async def _compare(self, start: _Start, tally: _Tally) -> Frontier | None:
        """Pulls everything that the peer has of authors whose ops there do not follow those here. Either the peer lacks
        some of them, or such an author has two histories; then the first op that differs proves it.
        """
        since = {author: at for author, at in start.since.items() if author not in tally.unlinked}
        # If the peer has let go of them, it cannot show where they differ.
        with suppress(LetGo):
            return await self._pull(start._replace(since=since), None, tally)
        return None

    async def _recover(self, start: _Start, tally: _Tally) -> str | None:
        """Gets back ops of this node's own that the peer has and this node has lost. Returns why nothing can be pushed,
        if some are still missing.
        """
        log, now = self._access.log, self._environment.monotonic()
        at = (self._theirs or {}).get(log.node)

        def compare(session: Session) -> tuple[bool, bool]:
            return at is not None and not ops_there(session, at), any(own_history(session, log.node))

        has_lost, is_recovering = await look(self._access, compare)
        if has_lost and self.client.is_hocket and now >= self._recovered + COMPARE_S:
            self._recovered = now
            await self._get_back(start, tally)
        elif not is_recovering:
            if at is not None and now >= self._shared + SHARED_S:
                self._shared = now
                await note(self._access, lambda session: note_shared(session, at))
            return None
        return await self._access.call(lambda: recover(log, self._emit))

    async def _get_back(self, start: _Start, tally: _Tally) -> None:
        """Pulls all ops of this node's own, and makes room for those that it has lost."""
        log = self._access.log
        since = {author: stamp for author, stamp in start.since.items() if author != log.node}
        for _ in range(RECOVERIES_MAX):
            self._theirs = await self._pull(start._replace(since=since), None, tally) or self._theirs
            branch, tally.branch = tally.branch, None
            if branch is None:
                return
            await self._access.call(lambda branch=branch: rewind(log, branch))  # type: ignore[misc]

    async def _recheck(self, tally: _Tally) -> None:
        """Pulls the last op of every author once more. If an author has shown two histories that end at the same time,
        one here and one there, nothing else would bring them together.
        """
        start = await self._access.call(self._begin)
        since = {author: just_before(at) for author, at in start.since.items() if at.wall}
        with suppress(LetGo):
            await self._pull(start._replace(since=since), None, tally)

    async def _pull(self, start: _Start, first: PeerAnswer | None, tally: _Tally) -> Frontier | None:
        """Pulls until nothing is left. Returns the peer's frontier; None if the peer could not give it."""
        client = self.client
        since, limit, kept = start.since, PAGE_OPS_MAX, start.kept
        late: set[int] = set()
        fetching: asyncio.Task[PeerAnswer] | None = None
        answer = first or await client.pull(since, limit)
        try:
            for _ in range(PULLS_MAX):
                is_last = answer.frontier is not None or answer.following == since
                if not is_last:
                    fetching = asyncio.create_task(client.pull(answer.following, limit))
                admission, found, reached, retry_s = await self._admit(answer.body, late)
                tally.add(admission)
                for reason, count in admission.refused.items():
                    self._emit(OpRefused(client.address, reason.name, count))
                tally.pull_retry_s = max(tally.pull_retry_s, retry_s)
                if found is not None and limit > 1:
                    # One op is unreadable, so the ops after it cannot be found: ask again for the ops before it, then
                    # for that one alone, then for the rest.
                    await _drop(fetching)
                    limit = max(1, found)
                    answer = await client.pull(since, limit)
                    continue
                limit = PAGE_OPS_MAX
                late |= admission.curable.keys()
                if client.is_hocket:
                    kept = _cursor(kept, answer.following, reached, late)
                    await self._keep(kept, start.reading)
                elif not late:
                    self._cursor = answer.following
                if is_last:
                    return answer.following if answer.frontier is None else answer.frontier
                assert fetching is not None
                since, answer = answer.following, await fetching
        finally:
            await _drop(fetching)
        return None

    async def _admit(self, body: bytes, late: Collection[int]) -> _Taken:
        """Admits a batch. Earlier ops of the authors in `late` could not be admitted, so their later ones must wait,
        too.
        """
        log = self._access.log
        sender = self.client.node

        def work() -> _Taken:
            found = 0
            left: dict[int, Hlc] = {}
            unheard: list[tuple[bytes, Op]] = []
            stamps: dict[bytes, Hlc] = {}
            last: Op | Malformed | None = None

            by = None if sender is None else outgoing.reader(log, sender)
            meter = None if sender is None else self._quotas.meter(log, sender)
            authors = incoming.all_authors(log)

            def received() -> Iterator[Received]:
                """Ops are decoded while earlier ones are verified."""
                nonlocal found, last
                for item in read_sequence(body):
                    last = item[1]
                    found += 1
                    if isinstance(last, Op):
                        stamps[last.id] = last.timestamp
                    if isinstance(last, Op) and last.node_id in late:
                        continue
                    is_let_in = isinstance(last, Malformed) or is_brought(last, by, authors, log.node)
                    if is_let_in and meter is not None and is_own(last, meter.node):
                        is_let_in = meter.admits(*item)
                    if is_let_in:
                        yield item
                    elif isinstance(last, Op):
                        # The sender's delegation may begin in a moment; then the op is admitted.
                        left.setdefault(last.node_id, last.timestamp)
                        unheard.append((item[0], last))

            costs = BatchWork(self._quotas, log, None)
            admission = log.admit(received(), decide=accept, sender=sender or 0, costs=costs)
            retry_s = 0.0 if meter is None else max(meter.finish(admission), meter.spent_s)
            self._quotas.note(log, sender or 0, meter, admission)
            if unheard:
                log.hear(unheard)
            is_cut = isinstance(last, Malformed) and found < Reader(body).varint()
            with log.store.read() as session:
                reached = own_frontier(session)
                held = session.held_among(list(stamps)) if admission.held else ()
            for op_id in held:
                reached = merge(reached, {stamps[op_id].node: stamps[op_id]})
            admission = admission._replace(curable={**left, **admission.curable})
            return _Taken(admission, found - 1 if is_cut else None, reached, retry_s)

        return await self._access.call(work)

    async def _keep(self, kept: Frontier, reading: bytes) -> None:
        client, encoded, delivered = self.client, encode_frontier(kept), self._delivered
        own = self._access.log.node
        found = await look(self._access, lambda session: peers.find(session, client.address))
        if found is None or found.pulled == encoded:
            return

        def change(session: Session) -> None:
            # If this node may read more by now, it asks for everything again, and this cursor does not count.
            if session.node_meta(own.to_bytes(8, "big"), READING) == reading:
                peers.change(session, client.address, lambda peer: peer._replace(pulled=encoded))
            if client.node is not None and delivered not in (None, self._noted):
                note_delivered(session, client.node, delivered)

        await note(self._access, change)
        if client.node is not None:
            self._noted = delivered

    async def _note_delivered(self) -> None:
        """Notes how far the peer has this node's own ops, if that has not been noted with its answer."""
        node, delivered = self.client.node, self._delivered
        if node is not None and delivered not in (None, self._noted):
            await note(self._access, lambda session: note_delivered(session, node, delivered))
            self._noted = delivered

    # Pushes.

    async def _next_page(self, size: int) -> Page:
        assert self._theirs is not None and self.client.node is not None
        log, node, theirs = self._access.log, self.client.node, self._theirs
        return await self._access.call(
            lambda: page(log, outgoing.reader(log, node), theirs, limit=PUSH_OPS_MAX, size=size)
        )

    async def _push(self, tally: _Tally, push: Push | None = None) -> bool:
        """Whether there was anything to push. `push` is how it is sent, if not as other ops."""
        size, has_pushed, send = PAGE_BYTES_MAX, False, push or self.client.push
        for _ in range(PULLS_MAX):
            out = await self._next_page(size)
            if out.bodies:
                try:
                    counts = await send(out.bodies)
                except AnswerTooLarge:
                    if size <= PUSH_BYTES_MIN or len(out.bodies) == 1:
                        raise
                    size = size // 2
                    continue
                has_pushed = True
                tally.push(counts, out, self._theirs or {})
                if counts.retry_s:
                    break
            self._theirs = merge(self._theirs or {}, out.scanned)
            self._delivered = self._theirs.get(self._access.log.node, self._delivered)
            if out.whole:
                break
        return has_pushed


def _cursor(kept: Frontier, following: Frontier, reached: Frontier, late: Collection[int]) -> Frontier:
    """How far a Hocket peer counts as pulled after a batch: for each author as far as the peer says, but no further
    than this node has it. Ops of the authors in `late` must be sent again, so their cursor stays.
    """
    has = {author: stamp for author, stamp in reached.items() if author in following and author not in late}
    return merge(kept, {author: min(stamp, following[author]) for author, stamp in has.items()})


async def _drop(task: asyncio.Task[PeerAnswer] | None) -> None:
    if task is not None and not task.done():
        task.cancel()
    if task is not None:
        with suppress(asyncio.CancelledError, HocketError):
            await task
