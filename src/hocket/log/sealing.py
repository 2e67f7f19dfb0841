"""The end of the log. Every op is linked to the one before it when it is put on the log, so the last link, the end of
the chain, covers all of them. A node that has its log for itself marks the end with its key at each commit, and signs
it at most every `SIGN_S` seconds, so that ops need no signatures of their own before they leave the node.
"""

import hashlib
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from hocket.errors import StoreError
from hocket.kernel.ids import ulid_text
from hocket.kernel.signing import ForgedMark, OpSigner, has_long_mark
from hocket.log.parallel import Helpers
from hocket.store import NO_LINK, NO_SEAL, EndSeal, Head, NewOp, OpRow, SealedOp, Session, Store

# The end of the chain is signed again after this time, if the log has grown.
SIGN_S = 0.02


def link(previous: bytes, body: bytes) -> bytes:
    """The next link of the chain: it covers the whole op as it is stored, and every op before it."""
    return hashlib.sha3_256(previous + body).digest()


def _linked(session: Session, chain: bytes, ops: Sequence[NewOp]) -> tuple[int, bytes]:
    """Adds ops with their links, and gives the number and the link of the last. The link of a bundle covers its facts,
    which have none.
    """
    links: list[bytes] = []
    for op in ops:
        if op.place is None:
            chain = link(chain, op.body)
            links.append(chain)
        else:
            links.append(b"")
    return session.add_ops(ops, links), chain


def link_anew(session: Session, chain: bytes, entries: Iterable[tuple[int, bytes]]) -> bytes:
    """Gives the entries with these numbers other bytes, and links to the one before them. Gives the last link."""
    sealed: list[SealedOp] = []
    for seq, body in entries:
        chain = link(chain, body)
        sealed.append(SealedOp(seq, body, chain))
    session.seal_ops(sealed)
    return chain


LogEnd = tuple[int, bytes, EndSeal]
"""The number of the last op, its link, and what this node says of them. The caller puts it into the head."""


class Sealer(Protocol):
    def append(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        """Adds the ops of a transaction to the log."""

    def moved(self, seq: int, chain: bytes) -> LogEnd:
        """The end of a log from which the ops after that one were taken."""

    def seal(self) -> None:
        """Signs the end of the log, if that is this node's to do."""

    def close(self) -> None: ...


class SharedSealer:
    """For a store that nodes share. Their ops come signed, and no node signs for another."""

    def append(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        seq, chain = _linked(session, head.chain, ops) if ops else (head.seq, head.chain)
        if session.row_check is not None:
            session.row_check.wrote_ops(ops)
        return seq, chain, NO_SEAL

    def moved(self, seq: int, chain: bytes) -> LogEnd:
        return seq, chain, NO_SEAL

    def seal(self) -> None:
        pass

    def close(self) -> None:
        pass


class OwnSealer:
    """For a log that one node writes. With `helpers` a thread signs an end that no commit has signed for a while;
    without them every commit signs. Close it before the store.
    """

    def __init__(self, store: Store, signer: OpSigner, helpers: Helpers | None) -> None:
        self._store = store
        self._signer = signer
        self._author = signer.node.to_bytes(8, "big")
        self._sign_s = 0.0 if helpers is None else SIGN_S
        self._signed_at = float("-inf")
        # The end that this process has last checked, or written.
        self._good: tuple[int, bytes, bytes] = (0, bytes(32), b"")
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def append(self, session: Session, head: Head, ops: Sequence[NewOp]) -> LogEnd:
        if (head.seq, head.chain, head.seal.mark) != self._good:
            head = self._checked(session, head)
        if not ops:
            return head.seq, head.chain, head.seal
        is_due = time.monotonic() - self._signed_at >= self._sign_s
        return self._sealed(*_linked(session, head.chain, ops), None if is_due else head.seal)

    def moved(self, seq: int, chain: bytes) -> LogEnd:
        return self._sealed(seq, chain)

    def _sealed(self, seq: int, chain: bytes, before: EndSeal | None = None) -> LogEnd:
        """A new end with its mark. It keeps the signature from before until the thread makes one, or is signed now."""
        mark = self._signer.end_mark(seq, chain)
        self._good = seq, chain, mark
        if before is not None:
            if not self._wake.is_set():
                self._start()
                self._wake.set()
            return seq, chain, EndSeal(mark, before.signed, before.signature)
        self._signed_at = time.monotonic()
        return seq, chain, EndSeal(mark, seq, self._signer.end_signature(seq, chain))

    def _checked(self, session: Session, head: Head) -> Head:
        """The head, if a process of this node wrote it. Raises StoreError."""
        if head.seal == NO_SEAL:
            return head._replace(chain=self._adopted(session, head.seq))
        if head.seal.mark != self._signer.end_mark(head.seq, head.chain):
            raise StoreError(
                f"the end of the log, op {head.seq}, was not written with this node's key. Run `hocket log verify`, and"
                " restore a backup"
            )
        self._good = head.seq, head.chain, head.seal.mark
        return head

    def _adopted(self, session: Session, last: int) -> bytes:
        """The end of the chain of a log from before version 12 of the store. Its last ops may have no links yet, and
        long marks.
        """
        row, tail = session.entry(last), list[OpRow]()
        while row is not None and row.chain == NO_LINK:
            tail.insert(0, row)
            row = session.entry(row.seq - 1)
        chain = bytes(32) if row is None else row.chain
        return link_anew(session, chain, [(each.seq, self._signed_anew(each.body)) for each in tail])

    def _signed_anew(self, op: bytes) -> bytes:
        try:
            return self._signer.without_long_mark(op) if has_long_mark(op) else op
        except ForgedMark:
            raise _forged(op) from None

    def seal(self) -> None:
        with self._store.read() as session:
            if _is_signed(session.head()):
                return
        with self._store.write() as session:
            session.lock_author(self._author)
            head = session.head()
            if not _is_signed(head):
                head = self._checked(session, head)
                _, chain, seal = self._sealed(head.seq, head.chain)
                session.put_head(head._replace(chain=chain, seal=seal))

    def close(self) -> None:
        """Signs the end. If the store refuses, the next process does."""
        with self._starting:
            self._closing.set()
        if self._thread is not None:
            self._wake.set()
            self._thread.join()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="hocket-seal", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait()
            self._wake.clear()
            is_last = self._closing.wait(self._sign_s)
            # After another commit the next one signs, or this thread if there is none.
            if is_last or not self._wake.is_set():
                with suppress(StoreError):
                    self.seal()


def _is_signed(head: Head) -> bool:
    return head.seal.signed == head.seq


def signed(signer: OpSigner, op: bytes) -> bytes:
    """An op of the log as it may leave the node. Raises StoreError when another program wrote it into the store."""
    try:
        return signer.signed(op)
    except ForgedMark:
        raise _forged(op) from None


def _forged(op: bytes) -> StoreError:
    return StoreError(
        f"op {ulid_text(op[:16])} in the database was not written with this node's key; it is not signed. Run `hocket"
        " log verify`, and restore a backup"
    )
