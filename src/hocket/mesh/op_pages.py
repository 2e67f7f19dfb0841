"""The ops that a caller of the gate gets, page by page, and what the gate remembers about that: how far it has searched
for a reader that may not have all ops, and how far others have this node's own.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import Frontier, encode_frontier, frontier_text
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import encode_sequence
from hocket.kernel.postcard import Malformed
from hocket.log.lost_past import note_shared, ops_there
from hocket.mesh import wire
from hocket.mesh.gate_requests import Caller, RequestRefused
from hocket.mesh.outgoing import Page, may_have, page
from hocket.mesh.wire import Reply
from hocket.work.environment import Environment
from hocket.work.node_access import NodeAccess

# How often it is noted how far a caller has this node's own ops.
SHARED_S = 60.0
# The gate remembers how far it has searched for this many restricted readers, and for this many of each reader's last
# answers.
SCANNED_MAX = 1_000
SCANNED_PER_NODE_MAX = 16


class OpPages:
    """`gave` is told what a node has received."""

    def __init__(self, access: NodeAccess, environment: Environment, gave: Callable[[int, Frontier], None]) -> None:
        self._access, self._environment, self._gave = access, environment, gave
        self._scanned: OrderedDict[int, OrderedDict[bytes, Frontier]] = OrderedDict()
        self._scanning = threading.Lock()
        self._shared_at = 0.0

    def answer(self, caller: Caller, since: Frontier, limit: int) -> Reply:
        """A caller that has an op of this node which this node does not know is told that this node lacks all of its
        own ops: then the caller gives them back.
        """
        log, own = self._access.log, self._access.log.node
        with log.store.read() as session:
            # Whether an op exists that the caller may not read, the answer does not tell.
            known = ops_there(session, since[own]) if own in since and log.rules.bounds is not None else None
            has_lost = known is not None and not may_have(session, caller.reader, known)
        if known is not None and not has_lost:
            self._note_shared(since[own])
        made = self._page(caller, since, limit, has_lost)
        if made.whole:
            # A reader's frontier proves nothing about authors that are not on this log.
            self._gave(caller.node, {n: at for n, at in made.scanned.items() if n in made.ours})
        try:
            headers = {"content-type": wire.OCTETS, wire.NEXT_FRONTIER: frontier_text(made.seen)}
            if made.whole:
                whole = caller.reader.reads_everything
                told = made.ours if whole else {n: at for n, at in made.ours.items() if n == caller.node}
                if has_lost:
                    told = told | {own: Hlc(0, 0, own)}
                headers[wire.FRONTIER] = frontier_text(told)
        except Malformed as error:
            raise RequestRefused(
                507, "more authors on the log than an answer can name", caller.node, str(error)
            ) from None
        return Reply(200, headers, encode_sequence(made.bodies))

    def _note_shared(self, at: Hlc) -> None:
        """Notes now and then how far others have this node's own ops."""
        if self._environment.monotonic() >= self._shared_at:
            self._shared_at = self._environment.monotonic() + SHARED_S
            with self._access.log.store.write() as session:
                note_shared(session, at)

    def _page(self, caller: Caller, since: Frontier, limit: int, without_own: bool) -> Page:
        """For a reader that may not have all ops, the gate remembers how far it has searched; the reader is not
        told.
        """
        to, log = caller.reader, self._access.log
        if to.reads_everything:
            return page(log, to, since, limit=limit, without_own=without_own)
        known = self._scanned.get(to.node)
        before = None if known is None else known.get(_state(since, caller))
        made = page(log, to, since, limit=limit, before=before, without_own=without_own)
        with self._scanning:
            mine = self._scanned.pop(to.node, OrderedDict())
            self._scanned[to.node] = mine
            # Only the differences: most of a frontier is what the reader sent.
            mine[_state(made.seen, caller)] = {n: at for n, at in made.scanned.items() if made.seen.get(n) != at}
            if len(mine) > SCANNED_PER_NODE_MAX:
                mine.popitem(last=False)
            if len(self._scanned) > SCANNED_MAX:
                self._scanned.popitem(last=False)
        return made


def _state(frontier: Frontier, caller: Caller) -> bytes:
    """The permissions are a part of the key, because they decide what a reader with this frontier may have."""
    return content_hash(encode_frontier(frontier) + caller.permissions.to_bytes(16, "big", signed=True))
