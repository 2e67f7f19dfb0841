"""Signs this node's ops after their commit, and seals the log: each op gets its signature and its link of the chain, in
the order of the log. No commit waits for that. The next transaction of the process stores the signatures; if none comes
for a moment, and none waits for its turn to write, the sealer stores them in its own transaction. If an op waits too
long, because the process that wrote it has died, another process of the node signs and seals it.
"""

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import NamedTuple, Protocol

from hocket.errors import StoreError
from hocket.kernel.ids import ulid_text
from hocket.kernel.signing import ForgedMark, OpSigner
from hocket.log.batch_signing import BatchSigner
from hocket.log.parallel import Helpers
from hocket.store import Head, NewOp, SealedOp, Session, Store

# Ops that are committed within this time are signed together.
GATHER_S = 0.002
# Signatures wait this long for a transaction that takes them along.
CARRY_S = 0.02
# If the chain does not grow for this time, and up to twice that, the process that wrote its next op was killed. The
# processes of a node wait for different times, so that one of them signs for it and not all.
ABANDONED_S = 1.0
# A process that has seen no ops of others for this long is alone.
ALONE_S = 1.0
BATCH = 1_000


def link(previous: bytes, body: bytes) -> bytes:
    """The next link of the chain: it covers the whole op, its signature included, and every op before it."""
    return hashlib.sha3_256(previous + body).digest()


class LogEnd(NamedTuple):
    """The number of the last op, and of the last sealed one with its link. The caller puts it into the head."""

    seq: int
    sealed: int
    chain: bytes


class Sealer(Protocol):
    def carrier(self) -> AbstractContextManager[None]:
        """Around a transaction that will `append`, from before it waits for its turn to write."""

    def append(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        """Adds the ops of a transaction to the log."""

    def added(self, first: int, ops: Sequence[bytes]) -> None:
        """This process has committed ops, with numbers from `first` on."""

    def seal(self) -> None:
        """Signs and seals every op that is on the log by now."""

    def close(self) -> None: ...


class SharedSealer:
    """For a store that nodes share. Their ops come signed, so each transaction links its own, and no node waits for the
    key of another. `wrote` is called with the ops of each.
    """

    def __init__(self, store: Store, wrote: Callable[[Sequence[NewOp]], None]) -> None:
        self._store, self._wrote = store, wrote

    def carrier(self) -> AbstractContextManager[None]:
        return nullcontext()

    def append(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        _check_sealed(head)
        links: list[bytes] = []
        chain = head.chain
        for op in ops:
            chain = link(chain, op.body)
            links.append(chain)
        seq = session.add_ops(ops, links) if ops else head.seq
        self._wrote(ops)
        return LogEnd(seq, seq, chain)

    def added(self, first: int, ops: Sequence[bytes]) -> None:
        pass

    def seal(self) -> None:
        with self._store.read() as session:
            _check_sealed(session.head())

    def close(self) -> None:
        pass


def _check_sealed(head: Head) -> None:
    if head.sealed != head.seq:
        raise StoreError(
            f"the log has {head.seq} ops and is sealed up to op {head.sealed}, but nodes that share a store seal at"
            " once: another program wrote into it. Run `hocket log verify`, and restore a backup"
        )


class BackgroundSealer:
    """With `helpers` it works in a thread of its own; without them it seals at once, in the thread that has committed.
    Close it before the store.
    """

    def __init__(self, store: Store, signer: OpSigner, helpers: Helpers | None) -> None:
        self._store = store
        self._signer = signer
        self._helpers = helpers
        self._author = signer.node.to_bytes(8, "big")
        # Ops of this process, marked: the number of the first, and the bytes of all.
        self._marked: deque[tuple[int, Sequence[bytes]]] = deque()
        # Ops by their number, signed and not known to be sealed.
        self._signed: dict[int, bytes] = {}
        self._batches = BatchSigner(signer)
        # The number of the last op of this process, and when another process was last seen to have written.
        self._written = 0
        self._joined_at = 0.0
        self._moved_at = 0.0
        # The end of the chain as last seen, and until when it may stay there.
        self._seen = -1
        self._patient_until = 0.0
        self._wake = threading.Event()
        self._is_closing = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        # The threads with a transaction that will store what is signed.
        self._carriers: set[int] = set()

    @contextmanager
    def carrier(self) -> Iterator[None]:
        thread = threading.get_ident()
        self._carriers.add(thread)
        try:
            yield
        finally:
            self._carriers.discard(thread)

    def append(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        last = session.add_ops(ops) if ops else head.seq
        return LogEnd(last, *self._carry(session, head))

    def added(self, first: int, ops: Sequence[bytes]) -> None:
        if self._helpers is None:
            with suppress(StoreError):
                self.seal()
            return
        self._written = max(self._written, first + len(ops) - 1)
        self._marked.append((first, ops))
        self._wake.set()
        if self._thread is None:
            self._start()

    def _carry(self, session: Session, head: Head) -> tuple[int, bytes]:
        """Seals what is signed, inside a transaction that is under way. Gives the new end of the chain."""
        if head.seq > self._written > 0:
            self._joined_at = time.monotonic()
        self._forget_sealed(head.sealed)
        seq, chain = head.sealed, head.chain
        sealed: list[SealedOp] = []
        while (body := self._signed.get(seq + 1)) is not None:
            seq, chain = seq + 1, link(chain, body)
            sealed.append(SealedOp(seq, body, chain))
        if sealed and session.seal_ops(sealed) < len(sealed):
            # Ops were taken off the log (`lost_past`), and their numbers belong to others now.
            self._forget_gone(session, head)
            return self._carry(session, head)
        if sealed or not self._signed:
            self._moved_at = time.monotonic()
        return seq, chain

    def _forget_sealed(self, last: int) -> None:
        for seq in list(self._signed):
            if seq <= last:
                self._signed.pop(seq, None)  # another thread may do the same

    def _forget_gone(self, session: Session, head: Head) -> None:
        rows = session.ops_after(head.sealed, max(self._signed) - head.sealed)
        there = {row.seq: row.body[:16] for row in rows}
        for seq, body in list(self._signed.items()):
            if there.get(seq) != body[:16]:
                del self._signed[seq]

    def seal(self) -> None:
        """Also ops of other processes of the node."""
        with self._store.read() as session:
            last = session.head().seq
        while self._seal_some(last):
            pass

    def close(self) -> None:
        """Seals the ops of this process. If the store refuses, the next process seals them."""
        with self._starting:
            self._is_closing = True
        if self._thread is not None:
            self._wake.set()
            self._batches.interrupt()
            self._thread.join()
            with suppress(StoreError):
                if self._marked or self._signed:
                    self.seal()

    def _seal_some(self, last: int) -> bool:
        """False when everything up to `last` is sealed."""
        with self._store.read() as session:
            head = session.head()
            rows = session.ops_after(head.sealed, BATCH) if head.sealed < last else []
        if not rows:
            return False
        for row in rows:
            if row.seq not in self._signed:
                self._signed[row.seq] = signed(self._signer, row.body)
        self._put()
        return True

    def _put(self) -> None:
        with self._store.write() as session:
            session.lock_author(self._author)
            head = session.head()
            sealed, chain = self._carry(session, head)
            if sealed != head.sealed:
                session.put_head(head._replace(sealed=sealed, chain=chain))

    # The thread.

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="hocket-seal", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wait()
                try:
                    self._look_after()
                except StoreError:
                    # The store is full, locked or damaged. Writers get the error; sealing is tried again after a while.
                    self._moved_at = time.monotonic()
        finally:
            self._batches.close()

    def _wait(self) -> None:
        if not self._wake.wait(CARRY_S if self._signed else self._batches.patience):
            self._batches.rest()
        self._wake.clear()
        time.sleep(GATHER_S)

    def _look_after(self) -> None:
        marked: dict[int, bytes] = {}
        while self._marked:
            first, ops = self._marked.popleft()
            marked.update(enumerate(ops, first))
        if marked:
            is_alone = time.monotonic() - self._joined_at > ALONE_S
            self._signed.update(zip(marked, self._batches.signed(list(marked.values()), is_alone), strict=True))
        unsealed = list(self._signed)
        if not unsealed or time.monotonic() - self._moved_at < CARRY_S:
            return
        with self._store.read() as session:
            sealed = session.head().sealed
        if sealed != self._seen:
            self._seen, self._patient_until = sealed, time.monotonic() + ABANDONED_S * (1 + os.urandom(1)[0] / 256)
        if sealed >= max(unsealed):
            self._forget_sealed(sealed)  # another thread has stored them
        elif sealed + 1 in unsealed:
            if not self._carriers:
                self._put()
        elif time.monotonic() > self._patient_until:
            self.seal()


def signed(signer: OpSigner, op: bytes) -> bytes:
    """An op of the log as it may leave the node. Raises StoreError when another program wrote it into the store."""
    try:
        return signer.signed(op)
    except ForgedMark:
        raise StoreError(
            f"op {ulid_text(op[:16])} in the database was not written with this node's key; nothing behind it is"
            " signed. Run `hocket log verify`, and restore a backup"
        ) from None
