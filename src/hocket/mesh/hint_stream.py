"""Hint streams to peers: one event after each growth of the log that brings an op which the listener may read, did not
write, and has not received. A hint names only the jobs of those ops; the listener then pulls. Empty lines keep an idle
connection alive. A wish for the output of a job goes to the node that runs it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial

from hocket.bus.hints import ANYTHING, LOG, NOTHING, OUTPUT, Changes, about
from hocket.events import Emit
from hocket.families.access import NodeAccess
from hocket.kernel.authority import Standing
from hocket.kernel.clock import unpack
from hocket.kernel.frontier import Frontier, merge
from hocket.log.succession.leading import CONFIRMED
from hocket.mesh.outgoing import readable, reader
from hocket.mesh.output import OutputWishes, holders, wanted_in
from hocket.mesh.wire import hint, look
from hocket.store import OpRow, OpSession, Session
from hocket.work.environment import Environment, supervised

# Growth within this time of a hint goes into the next hint.
GAP_S = 0.02
# A hint can be lost, so the stream looks again after this long.
LOOK_AGAIN_S = 2.0
KEEP_ALIVE_S = 15.0
LISTENERS_MAX = 256
LISTENERS_OF_NODE_MAX = 8
# If there are more new ops than this, the stream assumes without checking that some are readable.
LOOK_OPS_MAX = 256

ALIVE = b":\n\n"
_CONFIRMED = about(CONFIRMED)


class _Listener:
    def __init__(self, node: int, seq: int) -> None:
        self.node, self.seq = node, seq
        self.given: Frontier = {}
        self.news = NOTHING
        self.due = asyncio.Event()
        self.is_over = False
        # Whether it got no hint because an answer to its node was under way.
        self.is_put_off = False


class HintStreams:
    def __init__(self, access: NodeAccess, environment: Environment, emit: Emit) -> None:
        self._access, self._environment, self._emit = access, environment, emit
        self._listeners: dict[_Listener, None] = {}
        self._watching: asyncio.Task[None] | None = None
        self._answering: Counter[int] = Counter()
        self._catching_up: set[asyncio.Task[None]] = set()
        self.wishes = OutputWishes(environment.monotonic)

    def has_room(self, node: int) -> bool:
        of_node = sum(listener.node == node for listener in self._listeners)
        return len(self._listeners) < LISTENERS_MAX and of_node < LISTENERS_OF_NODE_MAX

    async def listen(self, node: int) -> AsyncIterator[bytes]:
        """The lines of one listener's stream. The first line is a hint, since anything may have happened before."""
        listener = _Listener(node, await look(self._access, _seq))
        self._listeners[listener] = None
        if self._watching is None:
            watch = supervised("the watch for hints", self._watch, self._emit, self._environment)
            self._watching = asyncio.create_task(watch)
        try:
            yield hint(ANYTHING)
            while not listener.is_over:
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await listener.due.wait()
                except TimeoutError:
                    if not await self._access.call(lambda: self._is_active(node)):
                        return
                    yield ALIVE
                    continue
                listener.due.clear()
                news, listener.news = listener.news, NOTHING
                if not listener.is_over:
                    yield hint(news)
        finally:
            self._listeners.pop(listener, None)

    def gave(self, node: int, frontier: Frontier) -> None:
        """Records that a node received everything up to this frontier, which needs no hint."""
        for listener in list(self._listeners):
            if listener.node == node:
                listener.given = merge(listener.given, frontier)

    @contextmanager
    def answering(self, node: int) -> Iterator[None]:
        """While a node waits for ops in an answer, it gets no hints about them. What the answer leaves out, such as ops
        that came too late for it, is hinted at afterwards.
        """
        self._answering[node] += 1
        try:
            yield
        finally:
            self._answering[node] -= 1
            if not self._answering[node]:
                del self._answering[node]
                if any(listener.is_put_off for listener in self._listeners if listener.node == node):
                    task = asyncio.create_task(self._catch_up(node))
                    self._catching_up.add(task)
                    task.add_done_callback(self._catching_up.discard)

    async def _catch_up(self, node: int) -> None:
        put_off = [each for each in self._listeners if each.node == node and each.is_put_off]
        for listener in put_off:
            listener.is_put_off = False
        self._tell(await self._access.call(lambda: self._with_news(put_off)))

    async def close(self) -> None:
        """Ends every stream."""
        for task in (self._watching, *self._catching_up):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        for listener in self._listeners:
            listener.is_over = True
            listener.due.set()

    async def _watch(self) -> None:
        seq = -1
        with closing(self._access.listen(about(LOG) | about(OUTPUT) | _CONFIRMED)) as changes:
            while True:
                now = await look(self._access, _seq)
                if now != seq:
                    seq = now
                    for listener in self._listeners:
                        listener.is_put_off = listener.is_put_off or listener.node in self._answering
                    told = [listener for listener in self._listeners if not listener.is_put_off]
                    self._tell(await self._access.call(partial(self._with_news, told)))
                    await asyncio.sleep(GAP_S)
                came = await changes.wait(LOOK_AGAIN_S)
                if came.matches(_CONFIRMED):
                    seq = -1
                if wanted := wanted_in(came):
                    await self._pass_on(wanted)

    def _tell(self, found: Mapping[_Listener, Changes]) -> None:
        for listener, news in found.items():
            listener.news |= news
            listener.due.set()

    async def _pass_on(self, wanted: frozenset[bytes]) -> None:
        self.wishes.note(wanted)
        asked = await look(self._access, lambda session: _holders(session, wanted))
        for listener in self._listeners:
            for job_id in asked.get(listener.node, ()):
                listener.news |= about(OUTPUT, job_id)
                listener.due.set()

    def _with_news(self, listeners: Iterable[_Listener]) -> dict[_Listener, Changes]:
        """Which of these listeners have something to pull, and what. Ends the streams of nodes that lost their
        standing.
        """
        found = {}
        log = self._access.log
        listening = [(listener, reader(log, listener.node)) for listener in listeners]
        if not all(to.reads_everything for _, to in listening):
            # The job of an op decides who may read it, so the roster must be up to date.
            log.settle()
        rows_after: dict[int, list[OpRow]] = {}
        for listener, to in listening:
            with log.store.read() as session:
                if listener.seq not in rows_after:
                    new_rows = session.ops_after(listener.seq, LOOK_OPS_MAX)
                    rows_after[listener.seq] = log.lead.told(session, new_rows)
                rows = rows_after[listener.seq]
                if not rows:
                    continue
                new = [row for row in rows if not _is_within(row, listener.given)]
                news = ANYTHING if len(rows) == LOOK_OPS_MAX else readable(session, to, new)
                listener.seq = _seq(session) if len(rows) == LOOK_OPS_MAX else rows[-1].seq
            listener.is_over = listener.is_over or not self._is_active(listener.node)
            if news or listener.is_over:
                found[listener] = news
        return found

    def _is_active(self, node: int) -> bool:
        log = self._access.log
        return log.authority().standing(node, log.physical()) is Standing.ACTIVE


def _is_within(row: OpRow, frontier: Frontier) -> bool:
    stamp = unpack(row.hlc)
    return stamp.node in frontier and stamp <= frontier[stamp.node]


def _holders(session: Session, job_ids: frozenset[bytes]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for entry in session.jobs_by_id(sorted(job_ids)):
        for node in holders(session, entry.job):
            found.setdefault(node, []).append(entry.job.id)
    return found


def _seq(session: OpSession) -> int:
    return session.head().seq
