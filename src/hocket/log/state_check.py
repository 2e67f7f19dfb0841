"""Checks the states of locks, rows, messages, kinds and nodes in a store that nodes share, where each of these can
change any row. Such a state follows from the ops about its subject, so its row is only a copy. A process believes a
row that it has written or checked itself, as long as no op has come since. Otherwise it applies the ops that came to
the state that it knows, and if the row differs then, it folds all ops about the subject. A row that still differs is
reported, and what the ops say counts in its place.

Compares the rows of artifacts in a store that nodes share with the ops that create these artifacts. The hash in such a
row decides what a program reads, and its expiry whether a node evicts the artifact.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import msgspec

from hocket.kernel import arbitration
from hocket.kernel.arbitration import Reason, Standings
from hocket.kernel.clock import unpack
from hocket.kernel.decoding import msgpack_decoder
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import CreateArtifact, Subject, subject_of
from hocket.log.citations import ID_BYTES, Citations, Naming, UnstoredOps, keyed
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.log.projectors import rules_of
from hocket.log.registers import artifact_of
from hocket.store import Artifact, OpRow, Session
from hocket.store.horizon_rows import BaseRow

# How many bytes of states a process remembers.
REMEMBERED_BYTES = 16 * 1024 * 1024
# From how many ops on a home keeps the state that they led to, and how many such states.
KEPT_FROM_OPS = 64
KEPT_MAX = 1_000
DIFFERS = "it is not what the ops about it say"
GONE = "ops about it were there and are gone"


class CheckedState(NamedTuple):
    """`state` is what the ops up to `latest` say under these permissions; the stored `row` should say the same. `seq`
    is how long the log was.
    """

    state: bytes | None
    row: bytes | None
    latest: bytes
    permissions: bytes
    seq: int


class CheckedStates(Protocol):
    """Keeps states that took many ops."""

    def get(self, subject: Subject) -> CheckedState | None: ...
    def put(self, subject: Subject, checked: CheckedState) -> None: ...


class CheckedStateFiles:
    """Keeps them in a home, each in a file of its own, so that its next process need not fold all ops. A file that
    cannot be read or written is only work that is done again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, subject: Subject) -> CheckedState | None:
        with suppress(OSError, msgspec.MsgspecError):
            kept, checked = _decode_kept(self._path(subject).read_bytes())
            return checked if kept == subject else None
        return None

    def put(self, subject: Subject, checked: CheckedState) -> None:
        path = self._path(subject)
        unfinished = path.with_suffix(f".{os.getpid()}")
        with suppress(OSError):
            self._directory.mkdir(mode=0o700, exist_ok=True)
            if not path.exists():
                self._make_room()
            unfinished.write_bytes(_encode((subject, checked)))
            unfinished.replace(path)

    def _make_room(self) -> None:
        files = list(self._directory.iterdir())
        if len(files) >= KEPT_MAX:
            for each in sorted(files, key=lambda file: file.stat().st_mtime)[: len(files) - KEPT_MAX + 1]:
                each.unlink(missing_ok=True)

    def _path(self, subject: Subject) -> Path:
        name = blake2b(subject.family.encode() + b"\0" + subject.key, digest_size=16)
        return self._directory / name.hexdigest()


class StateCheck:
    """The checks of one process. `refuse` reports a row."""

    def __init__(
        self,
        reader: Callable[[], PermissionsReader],
        refuse: Callable[[str, str, str], None],
        kept: CheckedStates | None = None,
    ) -> None:
        self._reader, self._refuse, self._kept = reader, refuse, kept
        self.artifacts = ArtifactCheck(reader, refuse)
        self._known: dict[Subject, CheckedState] = {}
        self._bytes = 0
        self._lock = Lock()

    def state(self, session: Session, subject: Subject, row: bytes | None, latest: bytes | None) -> CheckedState | None:
        """What the ops about a subject say, if its `row` and the time of the `latest` of these ops are so; None if
        there is no such op.
        """
        known = self._known.get(subject)
        if row is None and latest is None and known is None:
            return None
        permissions = self._reader().read(session, session.head().permissions_state)
        facts = row, latest or b"", permissions.fingerprint
        if known is not None and known[1:4] == facts:
            return known
        if known is None and self._kept is not None:
            known = self._kept.get(subject)
        return self._checked(session, subject, row, latest or b"", permissions, known)

    def _checked(
        self,
        session: Session,
        subject: Subject,
        row: bytes | None,
        latest: bytes,
        permissions: Permissions,
        known: CheckedState | None,
    ) -> CheckedState:
        seq = session.head().seq
        fold = _Fold(session, subject, permissions, self._reader().rules.is_strict)
        if known is not None and known.permissions == permissions.fingerprint:
            if latest < known.latest and not (row == known.state and fold.base is not None):
                if seq >= known.seq:  # and not a view from before this process has checked it
                    self._report(subject, GONE)
            elif (followed := fold.following(known)) is not None and _says(subject, row, followed.state):
                checked = CheckedState(row, row, latest, permissions.fingerprint, seq)
                return self._remember(subject, checked, followed.ops)
        folded, count = fold.whole()
        is_right = _says(subject, row, folded)
        if not is_right:
            self._report(subject, DIFFERS)
        state = row if is_right else None if folded is None else rules_of(subject.family).encode(folded)
        return self._remember(subject, CheckedState(state, row, latest, permissions.fingerprint, seq), count)

    def _remember(self, subject: Subject, checked: CheckedState, ops: int = 0) -> CheckedState:
        size = _size(checked)
        with self._lock:
            self._forget(subject)
            while self._known and self._bytes + size > REMEMBERED_BYTES:
                self._forget(next(iter(self._known)))
            if size <= REMEMBERED_BYTES:
                self._known[subject] = checked
                self._bytes += size
        if ops >= KEPT_FROM_OPS and self._kept is not None:
            self._kept.put(subject, checked)
        return checked

    def _forget(self, subject: Subject) -> None:
        if (known := self._known.pop(subject, None)) is not None:
            self._bytes -= _size(known)

    def wrote(self, session: Session, states: Mapping[Subject, tuple[bytes | None, bytes]]) -> None:
        """A transaction that has written these states, with the times of their latest ops, is committed."""
        permissions, seq = self._reader().latest, session.head().seq
        for subject, (state, last) in states.items():
            if state is None or permissions is None:
                with self._lock:
                    self._forget(subject)
            else:
                self._remember(subject, CheckedState(state, state, last, permissions.fingerprint, seq))

    def _report(self, subject: Subject, what: str) -> None:
        family = FAMILIES[subject.family]
        key = family.key_text(subject.key)
        if family.table is None:
            self._refuse("subjects", f"{family.name} {key}", what)
        else:
            self._refuse(family.table.name, key, what)


class SessionStates:
    """The checks of states and artifacts within one session."""

    def __init__(self, states: StateCheck, session: Session) -> None:
        self._states, self.session = states, session
        self._written: dict[Subject, tuple[bytes | None, bytes]] = {}
        self._made: set[Artifact] = set()
        self.wrong: set[Subject] = set()
        self.replays = False

    def state(self, subject: Subject, row: bytes | None, latest: bytes | None) -> bytes | None:
        if self.replays or ((written := self._written.get(subject)) is not None and written[0] == row):
            return row
        checked = self._states.state(self.session, subject, row, latest)
        if checked is None:
            return None
        if checked.state != checked.row:
            self.wrong.add(subject)
        return checked.state

    def wrote_state(self, subject: Subject, state: bytes | None, last: bytes) -> None:
        if not self.replays:
            self._written[subject] = state, last
            self.wrong.discard(subject)

    def artifacts(self, found: Sequence[Artifact]) -> list[Artifact]:
        return self._states.artifacts.good(self.session, found, self._made)

    def made_artifacts(self, artifacts: Sequence[Artifact]) -> None:
        self._made.update(artifacts)

    def committed(self) -> None:
        if self._written:
            self._states.wrote(self.session, self._written)
            self._written.clear()


class _Folded(NamedTuple):
    state: Any
    ops: int


class _Fold:
    """Folds the ops about one subject, and answers the rules' questions about the rest of the log."""

    def __init__(self, session: Session, subject: Subject, permissions: Permissions, is_strict: bool) -> None:
        self._session, self._subject, self._permissions = session, subject, permissions
        self._family = rules_of(subject.family)
        self.refusal, self.arbiter = permissions.refusal, permissions.arbiter
        self.is_overtaken, self.designations = permissions.is_overtaken, permissions.designations
        fresh = UnstoredOps()
        self._naming = Naming(session, fresh, is_strict)
        no_job, is_settled = lambda job: None, lambda: False
        cut = permissions.cut
        is_gone = lambda name: cut is not None and cut.is_gone(name[:ID_BYTES])  # noqa: E731
        self._citations = _Citations(
            session, fresh, no_job, session.artifact, self.arbiter, is_settled, is_strict, is_gone
        )
        self._ops: dict[bytes, Op] = {}
        self._is_unsure = False

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        op = self._ops.get(op_id)
        if op is None:
            row = self._session.op(op_id)
            op = None if row is None else keyed(row)
            self._is_unsure |= op is None
        return op if op is not None and subject_of(op.payload) == subject else None

    @cached_property
    def base(self) -> BaseRow | None:
        """What stands in the place of settled ops."""
        return None if self._permissions.cut is None else self._session.base(self._subject)

    def whole(self) -> _Folded:
        base = self.base
        rows = self._session.every_op_about(self._subject, b"" if base is None else base.last)
        begin = None if base is None else self._family.decode(base.state)
        return _Folded(self._folded(rows, {}, begin), len(rows))

    def following(self, known: CheckedState) -> _Folded | None:
        """The state after the ops that are later than a known state; None if that cannot be told from these alone."""
        state = None if known.state is None else self._family.decode(known.state)
        rows = self._session.every_op_about(self._subject, known.latest)
        if any(row.reason == Reason.INTEGRITY for row in rows):
            return None
        standings: Standings = {}
        ops = {row.id: keyed(row) for row in rows}
        claims = FAMILIES[self._subject.family].claims(state)
        for cited in {dep for op in ops.values() for dep in op.cited} - ops.keys():
            row = self._session.op(cited) if cited in claims else None
            if row is None:
                return None
            standings[cited] = unpack(row.hlc), 0
        folded = self._folded(rows, standings, state)
        return None if self._is_unsure else _Folded(folded, len(rows))

    def _folded(self, rows: list[OpRow], standings: Standings, state: Any) -> Any:
        self._ops = {row.id: keyed(row) for row in rows}
        times = Counter(row.hlc for row in rows)
        for row in rows:
            # Each node can change the column `reason`, too.
            is_doubled = times[row.hlc] > 1 or (
                row.reason == Reason.INTEGRITY and len(self._session.ops_at(row.hlc)) > 1
            )
            if is_doubled and row.id not in self._permissions.pinned:
                standings[row.id] = unpack(row.hlc), int(Reason.INTEGRITY)
        cut = self._permissions.cut
        if cut is not None:
            late = [op for op in self._ops.values() if op.id not in standings and cut.is_late(op)]
            standings.update((op.id, (op.timestamp, int(Reason.BEHIND_HORIZON))) for op in late)
        resolved = (self._naming.resolved(op) for op in self._ops.values())
        return arbitration.fold(self._family, self._subject, resolved, self, self._citations.fault, standings, state)


class _Citations(Citations):
    def cite(self, name: bytes, op_id: bytes) -> None:
        """What is only checked changes nothing."""


def _says(subject: Subject, row: bytes | None, state: Any) -> bool:
    """Whether a row says what the ops say. An older program may have written it in other bytes."""
    if row is None or state is None:
        return row is None and state is None
    family = rules_of(subject.family)
    if family.encode(state) == row:
        return True
    try:
        return bool(family.decode(row) == state)
    except (ValueError, TypeError, IndexError, msgspec.MsgspecError):
        return False


def _size(checked: CheckedState) -> int:
    row = 0 if checked.row is None or checked.row is checked.state else len(checked.row)
    return len(checked.state or b"") + row + 256


_encode = msgspec.msgpack.Encoder().encode
_decode_kept = msgpack_decoder(tuple[Subject, CheckedState]).decode


# How many artifacts are remembered as good.
ARTIFACTS_MAX = 16_384


class ArtifactCheck:
    """The checks of one process. `refuse` reports a row."""

    def __init__(self, reader: Callable[[], PermissionsReader], refuse: Callable[[str, str, str], None]) -> None:
        self._reader, self._refuse = reader, refuse
        self._good: dict[Artifact, None] = {}

    def good(self, session: Session, found: Sequence[Artifact], made: set[Artifact]) -> list[Artifact]:
        """Those that are as their ops say; `made` are those of ops that the transaction has yet to store."""
        unknown = [each for each in found if each not in self._good and each not in made]
        if not unknown:
            return list(found)
        permissions = self._reader().read(session, session.head().permissions_state)
        ops = {row.id: keyed(row) for row in session.ops_by_id([each.op_id for each in unknown])}
        bad: set[Artifact] = set()
        for each in unknown:
            if _made(ops.get(each.op_id), each, permissions):
                while len(self._good) >= ARTIFACTS_MAX:
                    self._good.pop(next(iter(self._good)), None)
                self._good[each] = None
            else:
                bad.add(each)
                self._refuse("artifacts", ulid_text(each.id[:16].ljust(16, b"\0")), "no op of its author says so")
        return [each for each in found if each not in bad]


def _made(op: Op | None, artifact: Artifact, permissions: Permissions) -> bool:
    if op is None or not isinstance(op.payload, CreateArtifact):
        return False
    return artifact_of(op, op.payload) == artifact and permissions.refusal(op) is None
