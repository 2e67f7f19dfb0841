"""Signs checkpoints of this node's own entries, and judges those of others. A node cosigns a checkpoint if it has
computed the same root from the entries that it has, and each tree only grows, so it never cosigns two that do not
agree. A checkpoint with another root is evidence that its author has two histories, and is kept.

A node whose copies of other authors' entries have gaps cannot compute their roots. It keeps the checkpoint of the most
entries, passes it on, and finds only two checkpoints of one size.

Nothing here is done while ops are written. A mesh whose ids are not bound to content has no checkpoints: there the
order of an author's ops is not certain.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from hocket.events import Event
from hocket.events.nodes import CheckpointsDiffer
from hocket.kernel.checkpoints.notes import (
    COSIGNATURES_MAX,
    Checkpoint,
    NoteSignature,
    SignedNote,
    author_of,
    cosignature,
    cosigned_at,
    is_signed_by,
    origin_of,
    read_checkpoint,
    read_note,
    signature,
)
from hocket.kernel.ids import node_text
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import OpSigner
from hocket.log.checkpoints.horizon_notes import is_horizon_note, take_horizon_note
from hocket.log.checkpoints.trees import ANCHOR_ENTRIES, AuthorTree, AuthorTrees, earlier
from hocket.log.permissions import Permissions
from hocket.log.transaction import GAPS
from hocket.store import Session, Store
from hocket.store.checkpoint_rows import CheckpointRow, CheckpointState

# A node signs a checkpoint when it has written so many entries since the last one, or any for this long.
CHECKPOINT_ENTRIES = 1_024
CHECKPOINT_MS = 60_000
# So many entries are read in one step, since each may be large, and the trees are stored after so many.
STEP_ENTRIES = 50
SAVE_ENTRIES = 8_192
# So many entries are read at most to judge the checkpoints of one message. What goes beyond waits.
RECEIVE_ENTRIES = ANCHOR_ENTRIES
# Another process may store something at the same moment.
_TRIES = 3


class KeeperLog(Protocol):
    """What is needed of the log."""

    node: int
    author: bytes
    user: str
    store: Store
    physical: Callable[[], int]

    @property
    def signer(self) -> OpSigner: ...
    @property
    def rules(self) -> Rules: ...
    def permissions(self, session: Session | None = None) -> Permissions: ...


class ReadNote(NamedTuple):
    """A note that its author has signed, with the cosignatures of members."""

    author: bytes
    checkpoint: Checkpoint
    signed: SignedNote


class KeeperStep(NamedTuple):
    """`has_more`: entries are left to read. `events` are to be reported."""

    has_more: bool
    events: list[Event]


Keys = Mapping[bytes, tuple[bytes, str]]


class CheckpointKeeper:
    """The checkpoints of one node, for one process. Safe to use from several threads."""

    def __init__(self, log: KeeperLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._trees = AuthorTrees()
        # The row on which the trees in memory build: another process may have stored more.
        self._basis: CheckpointRow | None = None
        self._is_loaded = False

    @property
    def has_checkpoints(self) -> bool:
        """Whether this mesh has any."""
        return self._log.rules.bounds is not None

    def step(self, *, at_once: bool = False) -> KeeperStep:
        """Reads the next entries of the log. At its end this node signs a checkpoint, if one is due, or `at_once`."""
        if not self.has_checkpoints:
            return KeeperStep(False, [])
        with self._lock:
            with self._log.store.read() as session:
                has_more = self._read_entries(session)
                is_due = not has_more and self._is_due(session, at_once)
            if not (is_due or self._trees.reached or self._trees.unsaved >= SAVE_ENTRIES):
                return KeeperStep(has_more, [])

            def sign(session: Session) -> list[Event]:
                # The trees were compared with what waited for them only now.
                if is_due and self._is_due(session, at_once):
                    self._sign(session)
                return []

            return KeeperStep(has_more, self._write(sign))

    def make(self) -> list[Event]:
        """Reads what is left of the log and signs a checkpoint now, if there are entries without one."""
        events: list[Event] = []
        while True:
            step = self.step(at_once=True)
            events += step.events
            if not step.has_more:
                return events

    def receive(self, notes: Iterable[bytes]) -> list[Event]:
        """Judges notes from elsewhere, keeps those that say something new, and cosigns those that are right. Others,
        and what is no note, are left out.
        """
        if not self.has_checkpoints:
            return []
        data = list(notes)
        with self._lock:
            for _ in range(_TRIES):
                events = self._receive(data)
                if self._is_loaded:
                    return events
        return []

    def _receive(self, notes: list[bytes]) -> list[Event]:
        with self._log.store.read() as session:
            left, has_more = RECEIVE_ENTRIES, True
            while has_more and left > 0:
                has_more, left = self._read_entries(session), left - STEP_ENTRIES
            keys = session.nodes()
            known = {row.note for row in session.checkpoints()}
            new = [each for each in notes if each not in known]
        user = self._log.user
        about_horizons = [each for each in new if is_horizon_note(each, user)]
        good = [note for each in new if (note := self._read(each, keys)) is not None]
        if not good and not about_horizons:
            return []

        def judge(session: Session) -> list[Event]:
            for each in about_horizons:
                take_horizon_note(session, each, user, keys)
            return [event for each in good for event in self._judge(session, each, keys)]

        return self._write(judge)

    # The trees.

    def _read_entries(self, session: Session) -> bool:
        """Reads the next entries; whether there may be more."""
        basis = self._read_row(session)
        if not self._is_loaded or basis != self._basis or not self._trees.is_of(session):
            rows = session.checkpoints()
            self._trees = AuthorTrees.load(session, rows)
            self._basis, self._is_loaded = basis, True
            self._await(rows)
        if session.head().seq <= self._trees.seq:
            return False
        rows_read = session.entries_after(self._trees.seq, STEP_ENTRIES)
        self._trees.take(rows_read, None if self.is_whole(session) else self._log.author)
        return len(rows_read) == STEP_ENTRIES

    def _await(self, rows: Iterable[CheckpointRow]) -> None:
        """Notes the sizes at which a checkpoint is compared with the tree when the tree gets there."""
        awaited: dict[bytes, set[int]] = {}
        for row in rows:
            if row.state in (CheckpointState.SIGNED, CheckpointState.AHEAD):
                awaited.setdefault(row.author, set()).add(row.size)
        self._trees.awaited = awaited

    def _read_row(self, session: Session) -> CheckpointRow | None:
        return session.checkpoint(self._log.author, CheckpointState.READ)

    def is_whole(self, session: Session) -> bool:
        """Whether this node has every entry of every author, as far as it has heard of them."""
        log = self._log
        authority = log.permissions(session).authority
        return authority.reads_everything(log.node, log.physical()) and session.own_meta(GAPS) is None

    def _write(self, change: Callable[[Session], list[Event]]) -> list[Event]:
        """Stores the trees, and what follows from them. If another process has stored something meanwhile, nothing is
        stored, and the next step begins with that.
        """
        with self._log.store.write() as session:
            basis = self._read_row(session)
            if basis != self._basis or not self._trees.is_of(session):
                self._is_loaded = False
                return []
            events = self._compare(session)
            saved = self._trees.save(session, self._log.author, 1 if basis is None else basis.made + 1)
            events += change(session)
            self._await(session.checkpoints())
        self._trees.saved()
        self._trees.reached.clear()
        self._basis = saved
        return events

    def _compare(self, session: Session) -> list[Event]:
        """Compares the trees with the checkpoints that waited for them."""
        events: list[Event] = []
        keys = session.nodes() if self._trees.reached else {}
        for reached in self._trees.reached:
            for row in session.checkpoints(reached.author):
                waits = row.state in (CheckpointState.SIGNED, CheckpointState.AHEAD)
                if waits and row.size == reached.at.tree.size and (note := self._read(row.note, keys)) is not None:
                    session.drop_checkpoint(row.author, row.state)
                    events += self._decide(session, note, reached.at, keys)
        return events

    # This node's own.

    def _is_due(self, session: Session, at_once: bool) -> bool:
        log = self._log
        tree = self._trees.by_author.get(log.author)
        signed = session.checkpoint(log.author, CheckpointState.SIGNED)
        size, made = (0, 0) if signed is None else (signed.size, signed.made)
        if tree is None or tree.tree.size <= size or log.author not in session.nodes():
            return False
        grown = tree.tree.size - size
        if not (at_once or grown >= CHECKPOINT_ENTRIES or abs(log.physical() - made) >= CHECKPOINT_MS):
            return False
        # A node that has lost the end of its log signs nothing until it has it back.
        ahead = session.checkpoint(log.author, CheckpointState.AHEAD)
        conflict = session.checkpoint(log.author, CheckpointState.CONFLICT)
        return conflict is None and (ahead is None or ahead.size <= tree.tree.size)

    def _sign(self, session: Session) -> None:
        log, tree = self._log, self._trees.by_author[self._log.author]
        name, public = origin_of(log.user, log.node), session.nodes()[log.author][0]
        text = Checkpoint(name, tree.tree.size, tree.tree.root()).text
        note = SignedNote(text, (signature(text, name, public, log.signer.note_signature),))
        self._put(session, log.author, CheckpointState.SIGNED, tree, note)

    # Those of others.

    def _read(self, data: bytes, keys: Keys) -> ReadNote | None:
        """None unless an author of this mesh has signed it. Cosignatures of unknown keys are left out."""
        try:
            signed = read_note(data)
            checkpoint = read_checkpoint(signed.text)
        except Malformed:
            return None
        node = author_of(checkpoint.origin, self._log.user)
        author = b"" if node is None else node.to_bytes(8, "big")
        if author not in keys or not is_signed_by(signed, checkpoint.origin, keys[author][0]):
            return None
        own = [each for each in signed.signatures if each.name == checkpoint.origin]
        cosigned = [each for each in signed.signatures if _is_cosigned(each, signed.text, self._log.user, keys)]
        cosigned = [each for each in cosigned if each.name != checkpoint.origin]
        return ReadNote(author, checkpoint, SignedNote(signed.text, _bounded(own[:1], cosigned)))

    def _judge(self, session: Session, note: ReadNote, keys: Keys) -> list[Event]:
        author, size = note.author, note.checkpoint.size
        signed = session.checkpoint(author, CheckpointState.SIGNED)
        if signed is not None and signed.size == size:
            return self._decide(session, note, AuthorTree.of(signed), keys)
        tree = self._trees.by_author.get(author)
        is_own = author == self._log.author
        if (not is_own and not self.is_whole(session)) or tree is None or tree.tree.size < size:
            return self._put_ahead(session, note)
        if tree.tree.size == size:
            return self._decide(session, note, tree, keys)
        rows = session.checkpoints(author)
        found = earlier(session, author, size, rows, RECEIVE_ENTRIES)
        return [] if found is None else self._decide(session, note, found, keys)

    def _put_ahead(self, session: Session, note: ReadNote) -> list[Event]:
        """Keeps a checkpoint that cannot be compared yet, or never here. That of the most entries is kept."""
        row = session.checkpoint(note.author, CheckpointState.AHEAD)
        at = AuthorTree()
        if row is not None and row.size == note.checkpoint.size:
            before = read_note(row.note)
            if read_checkpoint(before.text).root != note.checkpoint.root:
                return self._put_conflict(session, note)
            merged = _merged(before, note.signed)
            if merged != before:
                self._put(session, note.author, CheckpointState.AHEAD, at, merged, size=row.size)
        elif row is None or row.size < note.checkpoint.size:
            self._put(session, note.author, CheckpointState.AHEAD, at, note.signed, size=note.checkpoint.size)
        return []

    def _decide(self, session: Session, note: ReadNote, at: AuthorTree, keys: Keys) -> list[Event]:
        """`at` is the tree of this node with the size of the checkpoint."""
        if at.tree.root() != note.checkpoint.root:
            return self._put_conflict(session, note)
        log, author = self._log, note.author
        row = session.checkpoint(author, CheckpointState.SIGNED)
        if row is not None and row.size > at.tree.size:
            return []
        signed = note.signed
        if row is not None and row.size == at.tree.size:
            signed = _merged(read_note(row.note), signed)
        own = origin_of(log.user, log.node)
        if author != log.author and own not in {each.name for each in signed.signatures} and log.author in keys:
            sign, time_s = log.signer.note_signature, log.physical() // 1000
            line = cosignature(signed.text, own, keys[log.author][0], sign, time_s)
            signed = _merged(signed, SignedNote(signed.text, (signed.signatures[0], line)))
        if row is None or row.note != signed.encode():
            self._put(session, author, CheckpointState.SIGNED, at, signed)
        return []

    def _put_conflict(self, session: Session, note: ReadNote) -> list[Event]:
        if session.checkpoint(note.author, CheckpointState.CONFLICT) is not None:
            return []
        size = note.checkpoint.size
        self._put(session, note.author, CheckpointState.CONFLICT, AuthorTree(), note.signed, size=size)
        return [CheckpointsDiffer(node_text(int.from_bytes(note.author, "big")), size)]

    def _put(
        self,
        session: Session,
        author: bytes,
        state: CheckpointState,
        at: AuthorTree,
        note: SignedNote,
        size: int | None = None,
    ) -> None:
        row = at.row(author, state)
        session.put_checkpoint(
            row._replace(size=row.size if size is None else size, note=note.encode(), made=self._log.physical())
        )


def _is_cosigned(line: NoteSignature, text: str, user: str, keys: Keys) -> bool:
    node = author_of(line.name, user)
    key = None if node is None else keys.get(node.to_bytes(8, "big"))
    return key is not None and cosigned_at(line, text, key[0]) is not None


def _bounded(own: list[NoteSignature], cosigned: Iterable[NoteSignature]) -> tuple[NoteSignature, ...]:
    """The author's signature, and of each cosigner the first cosignature, in one order on every node."""
    first: dict[str, NoteSignature] = {}
    for each in sorted(cosigned, key=lambda each: (each.name, each.value)):
        first.setdefault(each.name, each)
    return (*own, *list(first.values())[:COSIGNATURES_MAX])


def _merged(left: SignedNote, right: SignedNote) -> SignedNote:
    """A note with the cosignatures of both. The first signature of each is the author's."""
    own, *cosigned = left.signatures
    return SignedNote(left.text, _bounded([own], [*cosigned, *right.signatures[1:]]))


def cosigners(note: SignedNote, user: str) -> list[tuple[int, int]]:
    """Who has cosigned a note that this node keeps, and when, in seconds."""
    found = [(author_of(each.name, user), int.from_bytes(each.value[:8], "big")) for each in note.signatures[1:]]
    return [(node, at) for node, at in found if node is not None]
