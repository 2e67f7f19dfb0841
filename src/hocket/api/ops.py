"""The ops of the log: list and follow them, also as events, verify, rebuild, export, import, archive, and change the
rules that judge them; and the passes of derivations over them.
"""

import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import msgspec
from msgspec import Meta

from hocket.api import Service, ServiceAnswer, nodes
from hocket.api.jobs import JobText, OpLine, op_lines
from hocket.api.jobs import find as job_named
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line, View, moment
from hocket.bus.hints import LOG, about
from hocket.errors import Conflict, HocketError, Usage
from hocket.events import ignore
from hocket.families.jobs import view
from hocket.kernel.ids import EXACT_MAX, node_text, ulid_text
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.policy import covers
from hocket.kernel.postcard import Malformed
from hocket.kernel.texts import duration_ms
from hocket.kernel.vocabulary import JOB, Subject
from hocket.log import Admission, Log
from hocket.log.archives.archive import Archive, archived_ops, target_at
from hocket.log.archives.checking import ArchiveAudit
from hocket.log.archives.checking import verify_archive as check_archive
from hocket.log.archives.day_file import start_of
from hocket.log.archives.git_repository import GIT
from hocket.log.archives.writing import Archived, write_archive
from hocket.log.audit import Audit
from hocket.log.copies import export_ops, import_ops
from hocket.log.lost_past import rewind
from hocket.log.rebuild import Rebuilt
from hocket.log.snapshots.loading import load_snapshot
from hocket.mesh.incoming import recover
from hocket.node.log_events import EventFilter, EventNeed, LogEvent
from hocket.node.runtime import Progress
from hocket.node.variables import MESH_ENABLED, is_on
from hocket.store import OpRow, Session
from hocket.work.derivation import Derivation, DerivationPass, DonePass, done_passes, missing, repeated

if TYPE_CHECKING:
    from hocket.node.node import Node

LIMIT_MAX = 1_000_000
FOLLOW_STEP = 1_000
TYPES_MAX = 32
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


class OpFilter:
    """Which ops to show: those of one job, or of jobs of the kinds that `kind` covers."""

    def __init__(self, service: Service, job: str | None = None, kind: str | None = None) -> None:
        self.job_id: bytes | None = None
        self.job, self._kind = job, kind
        if job is not None:
            with service.view_of(job) as session:
                self.job_id = view.find(session, job).job.id

    def fits(self, session: Session, row: OpRow) -> bool:
        if self.job_id is not None and row.job != self.job_id:
            return False
        if self._kind is None:
            return True
        entry = None if row.job is None else session.job(row.job)
        return entry is not None and covers(self._kind, entry.job.kind)


class OpsTail(msgspec.Struct, frozen=True):
    """The newest ops, oldest first, and the sequence number up to which the log was searched."""

    items: list[OpLine]
    seen: int


def tail(service: Service, wanted: OpFilter, limit: int) -> OpsTail:
    with service.read() if wanted.job is None else service.view_of(wanted.job) as session:
        return OpsTail(op_lines(session, _newest(session, wanted, limit)), session.head().seq)


def _newest(session: Session, wanted: OpFilter, limit: int) -> list[OpRow]:
    """Reads further and further back until enough ops match."""
    if limit == 0:
        return []
    if wanted.job_id is not None:
        rows = sorted(session.ops_about(Subject(JOB, wanted.job_id)), key=lambda row: row.seq)
        return [row for row in rows if wanted.fits(session, row)][-limit:]
    read = limit
    while True:
        rows = session.last_ops(read)
        fitting = [row for row in rows if wanted.fits(session, row)]
        if len(fitting) >= limit or len(rows) < read:
            return fitting[-limit:]
        read *= 8


def follow(service: Service, wanted: OpFilter, seen: int) -> Iterator[list[OpLine]]:
    """Yields the ops after that sequence number as they arrive, for ever."""
    node = service.node

    def look(session: Session) -> tuple[bool, tuple[int, list[OpLine]]]:
        rows = session.ops_after(seen, FOLLOW_STEP)
        lines = op_lines(session, [row for row in rows if wanted.fits(session, row)])
        return bool(rows), (rows[-1].seq if rows else seen, lines)

    while True:
        seen, lines = node.until(look, None, about(LOG))
        yield lines


def verify(
    service: Service, expected: tuple[int, bytes] | None, progress: Progress, checkpoints: Sequence[bytes] = ()
) -> Audit:
    """Checks every signature, and the chain including its head; `expected` is a chain head from an earlier run, and
    `checkpoints` are notes that were kept elsewhere. Peers that answer are asked for theirs.
    """
    from hocket.node.local_node import ask_for_checkpoints

    with service.read() as session:
        has_peers = bool(session.peers())
    if has_peers and not service.is_connected and is_on(MESH_ENABLED):
        try:
            answered = ask_for_checkpoints(service.runtime)
        except HocketError as error:
            service.warn(f"no peer was asked for checkpoints: {error}")
        else:
            if not answered:
                service.warn("no peer answered; what they have cosigned was not compared")
    try:
        return service.runtime.verify(expected, progress, checkpoints)
    except Malformed as error:
        raise Usage(f"the checkpoint cannot be read: {error}") from None


def rebuild(service: Service, progress: Progress) -> Rebuilt:
    """Drops everything derived from the log and derives it again."""
    service.check_writer()
    return service.runtime.rebuild(progress)


def set_rules(service: Service, rules: Rules, progress: Progress) -> Rebuilt:
    """Changes the mesh rules of this node, and judges every op again by them."""
    service.check_writer()
    return service.runtime.set_rules(rules, progress)


def export(service: Service, out: BinaryIO, progress: Progress) -> int:
    """Writes every op as a postcard sequence; returns their number."""
    return export_ops(service.runtime.log, out, progress)


def is_archive(text: str) -> bool:
    """Whether this is the address of an archive, and no file."""
    return text.startswith((GIT, "s3://")) or Path(text).is_dir()


def take_in(service: Service, source: BinaryIO | str) -> Admission:
    """Imports the ops of an export, or of the archive at an address, after verifying each. If they are this node's own
    and newer than its log, it gets back what it has lost; a file is then read once more.
    """
    service.check_writer()
    log = service.runtime.log
    if isinstance(source, str):
        _begin_with(log, source)
    admitted = _taken_in(log, source)
    if admitted.branch is not None:
        rewind(log, admitted.branch)
        if isinstance(source, str):
            admitted = _taken_in(log, source)
        elif source.seekable():
            source.seek(0)
            admitted = _taken_in(log, source)
    recover(log, ignore)
    return admitted


def _begin_with(log: Log, address: str) -> None:
    """Takes the snapshot with which an archive begins, if it has one that this log needs."""
    archive = Archive(target_at(address))
    if archive.has_snapshot():
        with archive.snapshot() as folder, suppress(Conflict):
            assert folder is not None
            load_snapshot(log, folder)


def _taken_in(log: Log, source: BinaryIO | str) -> Admission:
    return log.admit(archived_ops(source)) if isinstance(source, str) else import_ops(log, source)


def archive_log(service: Service, to: str | Path, *, before: str, dry_run: bool = False) -> list[Archived]:
    """Writes the days that had ended before a time into an archive, and gives the files that it wrote. The time is a
    duration ago, like 90d, or the first day that stays out, like 2026-01-31. The archive is a folder, git+DIR for a
    git repository, or s3://BUCKET/PREFIX.
    """
    return list(archive(service, to, before, dry_run=dry_run))


def archive(
    service: Service,
    to: str | Path,
    before: str,
    *,
    dry_run: bool = False,
    progress: Progress = lambda done, total: None,
) -> Iterator[Archived]:
    """Gives each file when it is stored."""
    return write_archive(service.runtime.log, to, _before_ms(service, before), dry_run=dry_run, progress=progress)


def _before_ms(service: Service, before: str) -> int:
    now = service.runtime.log.physical()
    try:
        found = start_of(before) if _DAY.fullmatch(before) else now - duration_ms(before)
    except ValueError:
        raise Usage(f"bad --before {before!r}; use a duration such as 90d, or a day such as 2026-01-31") from None
    if found > now:
        raise Usage(f"bad --before {before!r}: that day has not ended")
    return max(found, 0)


def prove_archive(
    service: Service | None, address: str | Path, progress: Progress = lambda done, total: None
) -> ArchiveAudit:
    """Proves an archive, or a file of one. With a node, it must be the archive of its mesh."""
    if not Path(address).is_file() and not target_at(address).exists():
        raise Usage(f"{address} is not there")
    if service is None:
        return check_archive(address, progress=progress)
    return check_archive(address, mesh=service.runtime.log.user, helpers=service.runtime.helpers, progress=progress)


def verify_archive(service: Service, path: str | Path) -> ArchiveAudit:
    """Proves an archive of this node's mesh, or a file of one, from its own bytes."""
    return prove_archive(service, path)


class PassVerdict(StrEnum):
    same = "same"
    differs = "differs"
    missing = "missing"


class PassLine(ServiceAnswer, frozen=True):
    """A pass of a derivation: how many ops the function read and derived. `verdict` and `detail` are what a repetition
    on this node gave, if there was one.
    """

    derivation: str
    job_id: str
    node: str | None
    read: int
    derived: int
    verdict: PassVerdict | None = None
    detail: str = ""


def passes(service: Service, wanted: Sequence[Derivation], check: bool = False) -> list[PassLine]:
    """The passes of these derivations, oldest first. With `check` each is repeated here, over the same ops and from
    what the pass before it kept.
    """
    with service.read() as session:
        return [line for each in wanted for line in _lines(session, each, check)]


def _lines(session: Session, made: Derivation, check: bool) -> list[PassLine]:
    lines: list[PassLine] = []
    before: DonePass | None = None
    for done in done_passes(session, made):
        job, record = done.job, done.record
        verdict, detail = _verdict(session, made, record, before) if check else (None, "")
        # The claim of a job that has ended names its last holder.
        node = None if job.claimer is None else node_text(job.claimer)
        lines.append(PassLine(made.name, ulid_text(job.id), node, record.read, record.derived, verdict, detail))
        before = done
    return lines


def _verdict(
    session: Session, made: Derivation, record: DerivationPass, before: DonePass | None
) -> tuple[PassVerdict, str]:
    if record.previous != (None if before is None else ulid_text(before.job.id)):
        return PassVerdict.missing, "the pass before it is not here"
    if absent := missing(session, record):
        return PassVerdict.missing, f"ops of node {node_text(absent)} that it has read are not here yet"
    again = repeated(session, made, record, {} if before is None else before.record.memory).record
    if again.inputs != record.inputs:
        return PassVerdict.differs, f"{again.read} ops count here, and {record.read} did then"
    if (again.outputs, again.memory) != (record.outputs, record.memory):
        return (
            PassVerdict.differs,
            f"the function derives {again.derived} other ops here: it is not pure, or was changed",
        )
    return PassVerdict.same, ""


# A token sees the events that it may read. Which these are is judged for each.
READ = TokenNeed("Job", "Read", is_judged_later=True, is_any=True)

EventKind = Annotated[
    str,
    Meta(min_length=1, max_length=255, description="Only jobs of this kind; `acme.` for all below acme."),
    InShell(metavar="KIND"),
]
EventTypes = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        description="Only what happened so: `job.failed`, `job.` for all about jobs, or several with commas.",
    ),
    InShell("--type", metavar="TYPE"),
]
EventSubmitter = Annotated[
    str,
    Meta(min_length=1, max_length=64, description="Only jobs that this node has submitted: its name or id."),
    InShell(metavar="NODE"),
]


def filter_of(
    service: Service, job: str | None, kind: str | None, type: str | None, submitter: str | None
) -> EventFilter:
    """Raises Usage for a job or a node that is not known."""
    types = () if type is None else tuple(each.strip() for each in type.split(","))
    if not all(types) or len(types) > TYPES_MAX:
        raise Usage(f"bad type {type!r}: name 1 to {TYPES_MAX} types with commas between them, like job.failed")
    return EventFilter(
        None if job is None else job_named(service, job),
        kind,
        types,
        None if submitter is None else nodes.find(service, submitter).node,
    )


def allowed(service: Service, need: EventNeed) -> bool:
    return service.may(need.resource, "Read", *need.words, scope=need.scope)


def _show(event: LogEvent) -> Iterator[View]:
    fence = "" if event.fence is None else f" fence {event.fence}"
    subject = "-" if event.subject is None else event.subject
    detail = event.detail if event.detail != event.kind else ""
    about = " ".join(each for each in (event.kind or event.agent or "", detail) if each)
    yield Line(f"{event.seq} {moment(event.time_ms)} {event.type} {subject}{fence} {about}".rstrip())


@operation("follow_events", "GET /v1/events", READ, command="log events", key=lambda event: str(event.seq), show=_show)
async def events(
    service: Service,
    node: "Node",
    *,
    job: Annotated[JobText, InShell("--job", metavar="JOB")] | None = None,
    kind: EventKind | None = None,
    type: EventTypes | None = None,
    submitter: EventSubmitter | None = None,
    after: Annotated[
        int, Meta(ge=0, le=EXACT_MAX, description="Begin after this place, 0 for the first; default: now.")
    ]
    | None = None,
) -> AsyncIterator[LogEvent]:
    """Follow what happens, as it happens: jobs submitted, claimed, ended, locks, messages, rows, nodes. It never ends.
    An op that does not count makes no event.

    The `seq` of an event is its place in this node's log. Give the last one that you have as `after` to go on where you
    were, whenever that was. If the log no longer has what comes then, that is an error.

    \b
      hocket log events --kind acme. --type job.failed,job.cancelled
      hocket log events --after 4711 --json
    """
    wanted = await node.call(lambda: filter_of(service, job, kind, type, submitter))
    return await node.events(wanted, lambda need: allowed(service, need), after)
