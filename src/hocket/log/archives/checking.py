"""Proves an archive from its own bytes: every op is the one that its author signed, none is missing between the first
and the last, and each is in the file of its day. It trusts no node and no database. The authors' keys must be those of
the delegations in the archive that lead back to the user. If it begins with a snapshot, what came before is not in it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Failed
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text, parse_node, ulid_text
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.ops import NO_ID, Op, decode, link_to
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log.archives.archive import SNAPSHOT, Archive, read_file, target_at
from hocket.log.archives.day_file import DayFile, day_of, file_name
from hocket.log.author_check import op_fault
from hocket.log.parallel import Helpers, in_parallel
from hocket.log.snapshots.checking import check_snapshot

FINDINGS_MAX = 100


class ArchiveFinding(NamedTuple):
    """One fault, the file that has it, and the op if it is one op's."""

    file: str
    op_id: str | None
    what: str


class ArchiveAudit(NamedTuple):
    """`mesh` is the user whose key the archive says it is of; empty if no file could be read. `begins_ms` is the time
    of the horizon at which it begins, if it begins with a snapshot.
    """

    files: int
    ops: int
    mesh: str
    first_day: str
    last_day: str
    findings: list[ArchiveFinding]
    begins_ms: int | None = None


def verify_archive(
    address: str | Path,
    *,
    mesh: str | None = None,
    helpers: Helpers | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ArchiveAudit:
    """Reads a whole archive, or one file of it. With `mesh`, it must be that user's. Raises Usage if it is none."""
    checker = _Checker(mesh, helpers)
    if (path := Path(address)).is_file():
        checker.file(path.name, partial(read_file, path))
        progress(1, 1)
        return checker.audit()
    archive = Archive(target_at(address))
    places = archive.all_places()
    checker.begin_with(archive)
    for name in archive.strangers():
        checker.report(name, None, "it is no file of an archive")
    for done, place in enumerate(places, start=1):
        checker.begin(place.author)
        checker.file(place.name, partial(archive.read, place))
        progress(done, len(places))
    checker.check_keys()
    return checker.audit()


class _Checker:
    def __init__(self, mesh: str | None, helpers: Helpers | None) -> None:
        self._mesh, self._helpers = mesh, helpers
        self._author = ""
        # The last op of the author so far: its id, and its time. None: the files before are not at hand.
        self._last: tuple[bytes, Hlc] | None = None
        self._keys: dict[str, bytes] = {}
        self._delegations: list[Delegation] = []
        # The entries after which authors begin, and when that was.
        self._begins: dict[str, tuple[bytes, Hlc]] = {}
        self._begins_ms: int | None = None
        self._days: list[str] = []
        self._files = self._ops = 0
        self.findings: list[ArchiveFinding] = []

    def report(self, file: str, op: bytes | None, what: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(ArchiveFinding(file, None if op is None else ulid_text(op), what))

    def audit(self) -> ArchiveAudit:
        days = sorted(self._days) or [""]
        counts = self._files, self._ops, self._mesh or "", days[0], days[-1]
        return ArchiveAudit(*counts, self.findings, self._begins_ms)

    def begin_with(self, archive: Archive) -> None:
        """Proves the snapshot with which the archive begins, if there is one."""
        if not archive.has_snapshot():
            return
        self._files += 1
        try:
            with archive.snapshot() as folder:
                assert folder is not None
                self._mesh = self._mesh or folder.mesh()
                audit = check_snapshot(folder, self._mesh, HOCKET, round(time.time() * 1000), self._helpers)
                law = [decode(raw) for raw in folder.manifest().law]
        except (Malformed, Failed) as error:
            self.report(SNAPSHOT, None, str(error))
            return
        moved = audit.horizon.payload
        self._begins_ms = moved.at_ms
        self._begins = {node_text(each.node): (each.entry, each.at) for each in moved.heads}
        for op in law:
            self._note_delegation(op)

    def begin(self, author: str) -> None:
        """The next file is of this author. If the one before was not, it must be the author's first."""
        if author != self._author:
            self._author, self._last = author, self._begins.get(author, (NO_ID, Hlc(0, 0, 0)))

    def file(self, name: str, read: Callable[[], DayFile]) -> None:
        self._files += 1
        try:
            file = read()
        except Malformed as error:
            self.report(name, None, str(error))
            self._last = None
            return
        header = file.header
        expected = f"{header.author}/{file_name(header.day, header.part)}"
        if not expected.endswith(name):
            self.report(name, None, f"its header says that it is {expected}")
        if self._mesh is None:
            self._mesh = header.mesh
        if header.mesh != self._mesh:
            self.report(name, None, f"it is of another mesh, {header.mesh}")
        if self._keys.setdefault(header.author, header.public) != header.public:
            self.report(name, None, "its author has another key in another file")
        self._check_ops(name, file)
        self._days.append(header.day)

    def _check_ops(self, name: str, file: DayFile) -> None:
        ops = [_decoded(raw) for raw in file.ops]
        faults = self._faults(file, ops)
        author = parse_node(file.header.author)
        for op, fault in zip(ops, faults, strict=True):
            self._ops += 1
            if op is None:
                self.report(name, None, "the bytes of an op cannot be read")
                self._last = None
                continue
            if op.node_id != author:
                self.report(name, op.id, f"node {node_text(op.node_id)} wrote it")
            elif fault is not None:
                self.report(name, op.id, fault.sentence)
            self._check_order(name, op)
            if day_of(op.timestamp.wall) != file.header.day:
                self.report(name, op.id, f"it was written on {day_of(op.timestamp.wall)}")
            self._note_delegation(op)

    def _note_delegation(self, op: Op) -> None:
        if isinstance(op.payload, DelegateUcan):
            with suppress(Malformed):
                self._delegations.append(read_ucan(op.payload.ucan_bytes))

    def _check_order(self, name: str, op: Op) -> None:
        if self._last is not None:
            last_id, last_time = self._last
            if op.link != link_to(last_id):
                self.report(name, op.id, "ops of its author are missing before it" if op.link else "it has no link")
            elif op.timestamp <= last_time:
                self.report(name, op.id, "it is earlier than the op before it")
        self._last = op.id, op.timestamp

    def _faults(self, file: DayFile, ops: Sequence[Op | None]) -> list[Reason | None]:
        mesh, key = file.header.mesh, file.header.public

        def check(pairs: Sequence[tuple[bytes, Op | None]]) -> list[Reason | None]:
            return [None if op is None else op_fault(mesh, raw, op, key, True) for raw, op in pairs]

        return in_parallel(self._helpers, check, list(zip(file.ops, ops, strict=True)))

    def check_keys(self) -> None:
        """The user must have admitted every author, with the key of its files."""
        authority = Authority(self._mesh or "", self._delegations, ())
        admitted = {node_text(each.node): each.public for each in self._delegations if authority.fault(each) is None}
        for author, key in self._keys.items():
            if admitted.get(author) != key:
                self.report(author, None, "no delegation in this archive that leads back to the user admits this node")


def _decoded(raw: bytes) -> Op | None:
    try:
        return decode(raw)
    except Malformed:
        return None
