"""What may leave this node for another: the next ops in HLC order after a frontier, without those that the reader may
not have, and with sanitised versions of those that it may have only in part. The answer to a pull and the body of a
push are made alike. What is sent reveals nothing about what was left out: a restricted reader gets a frontier that
covers only ops that it has.

A node that may not read everything has gaps in its copies of other authors' ops. It passes on only its own ops, so that
a frontier never claims more than a node has.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from hocket.bus.hints import LOG, NOTHING, Changes, gathered
from hocket.kernel.authority import Authority
from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import U32_MAX, U64_MAX, Hlc, just_after, pack, unpack
from hocket.kernel.frontier import Frontier, merge
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import NO_ID, Op, decode, encode, link_to
from hocket.kernel.postcard import Malformed
from hocket.kernel.sanitise import sanitised
from hocket.kernel.vocabulary import (
    JOB,
    Bundle,
    CreateArtifact,
    EvictArtifact,
    Payload,
    Sanitised,
    ScheduleJob,
    Subject,
    Unknown,
    number_of,
    subject_of,
)
from hocket.log import Log
from hocket.log.lost_past import own_history
from hocket.log.snapshots.own_late import note_old_given
from hocket.mesh.wire import BODY_BYTES_MAX
from hocket.store import OpRow, OpSession, Session, Store

PAGE_OPS_MAX = 5_000
# The count before the ops takes a few bytes too.
PAGE_BYTES_MAX = BODY_BYTES_MAX - 16
# Ops are read from the store in steps, each a short read; a step never holds many large ops.
STEP_OPS_MAX = 500
STEP_BYTES = 4 * 1024 * 1024
_FIRST_STEP = 16
_SANITISED = number_of(Sanitised)


class Page(NamedTuple):
    """Ops in HLC order. `seen` is the end of the page and may be told to the reader; `scanned` is how far this node
    searched. A `whole` page contains everything that the reader could have now; then `ours` is this node's own frontier
    at that moment. Of the authors in `gaps` ops were let go that the reader lacks, so it has none of them: see
    `snapshots`.
    """

    bodies: list[bytes]
    seen: Frontier
    scanned: Frontier
    whole: bool
    ours: Frontier
    gaps: frozenset[int] = frozenset()


class PeerReader(NamedTuple):
    """The node that ops are for, and its permissions. In a strict mesh nothing is sanitised: Likewise v0.1 has no op
    for that.
    """

    node: int
    authority: Authority
    now_ms: int
    reads_everything: bool
    is_strict: bool = False


def reader(log: Log, node: int) -> PeerReader:
    authority, now_ms = log.authority(), log.physical()
    return PeerReader(node, authority, now_ms, authority.reads_everything(node, now_ms), log.rules.is_strict)


def is_whole(log: Log) -> bool:
    """Whether this node may read everything, so that its copies of other authors' ops have no gaps."""
    return log.authority().reads_everything(log.node, log.physical())


def page(
    log: Log,
    to: PeerReader,
    since: Frontier,
    *,
    limit: int,
    size: int = PAGE_BYTES_MAX,
    before: Frontier | None = None,
    without_own: bool = False,
    is_named: bool = False,
) -> Page:
    """The next ops for a reader that knows each author up to `since`, limited in number and bytes. `before` is how far
    this node has already searched for that reader. `without_own` leaves out this node's own ops, and so does a node
    that is behind its own past. What a coordinator with successors has written is left out until it is confirmed,
    unless the reader `is_named`, and is to confirm it.
    """
    own_only = None if is_whole(log) else log.node
    permissions = log.permissions_reader.latest
    is_led = not is_named and permissions is not None and log.is_shared_out(permissions)
    if not to.reads_everything:
        # The job of an op decides who may read it, so the roster must be up to date.
        log.settle()
    gathered = _Gathered(to, since, merge(since, before or {}), size, log.signed)
    with log.store.read() as session:
        if without_own or own_history(session, log.node).is_behind:
            gathered.at[log.node] = Hlc(U64_MAX, U32_MAX, log.node)
        if to.reads_everything:
            gathered.links = settled_links(session, since)
        if is_led and (limit_at := log.lead.served_to(session, log.permissions(session))) is not None:
            gathered.until[log.node] = unpack(limit_at)
    made = _filled(log, to, gathered, own_only, limit)
    if log.node in made.seen and made.seen[log.node] != since.get(log.node):
        note_old_given(log, made.seen[log.node])
    return made


def _filled(log: Log, to: PeerReader, gathered: "_Gathered", own_only: int | None, limit: int) -> Page:
    step = _FIRST_STEP
    while limit > len(gathered.bodies):
        asked = min(step, limit - len(gathered.bodies))
        with log.store.read() as session:
            rows = _rows(session, gathered.at, own_only, to.node, asked)
            ours = gathered.bounded(own_frontier(session)) if len(rows) < asked else {}
            gathered.expect(session, rows)
            if not all(gathered.take(session, row) for row in rows):
                break
        if len(rows) < asked:
            return Page(gathered.bodies, gathered.seen, gathered.scanned, True, ours, gathered.gaps())
        largest = max(len(row.body) for row in rows)
        step = max(1, min(STEP_OPS_MAX, 2 * step, STEP_BYTES // largest))
    return Page(gathered.bodies, gathered.seen, gathered.scanned, False, {}, gathered.gaps())


class SettledLinks:
    """Of an author whose settled ops may have been deleted: which link its next entry has for this reader; None if that
    cannot be said here. The entry `head`, with which the settled ones end, is never deleted.
    """

    def __init__(self, head: bytes, link: bytes | None) -> None:
        self._head, self._link = head, link

    def follows(self, row: OpRow) -> bool:
        """Whether nothing is missing between the entry before and this one."""
        if decode(row.body).link != self._link:
            return False
        self._link = link_to(row.id)
        return True

    def ends_with(self, row: OpRow) -> bool:
        return row.id == self._head


def settled_links(session: Session, since: Frontier) -> dict[int, SettledLinks]:
    """The authors of whom the reader lacks settled entries."""
    found: dict[int, SettledLinks] = {}
    for author, head in session.heads().items():
        node = int.from_bytes(author, "big")
        at = since.get(node)
        if at is None or pack(at) < head.hlc:
            found[node] = SettledLinks(head.entry, link_to(NO_ID) if at is None else _link_after(session, at))
    return found


def _link_after(session: Session, at: Hlc) -> bytes | None:
    """The link of the entry after the one of this time. Who asks for an entry once more names the time before it."""
    if here := session.entries_at(pack(at)):
        return link_to(here[0].id)
    again = session.entries_at(pack(just_after(at)))
    return decode(again[0].body).link if again else None


class _Gathered:
    """A page under construction. An op about a job that has not arrived yet cannot be judged: its author is left out
    from there on until later, so that the reader misses nothing.
    """

    def __init__(
        self, to: PeerReader, since: Frontier, scanned: Frontier, size: int, signed: Callable[[bytes], bytes]
    ) -> None:
        self._to, self._left, self._signed = to, size, signed
        self._left_for_later: set[int] = set()
        self._kinds = JobKinds()
        self.links: dict[int, SettledLinks] = {}
        # No later ops of an author are given.
        self.until: Frontier = {}
        self._gaps: set[int] = set()
        self.bodies: list[bytes] = []
        self.seen, self.at, self.scanned = dict(since), dict(scanned), dict(scanned)

    def expect(self, session: Session, rows: Sequence[OpRow]) -> None:
        if not self._to.reads_everything:
            self._kinds.load(session, rows)

    def take(self, session: Session, row: OpRow) -> bool:
        """False if the page is full before this op."""
        stamp = unpack(row.hlc)
        author = stamp.node
        if author in self.links and not self._links_up(author, row):
            self._gaps.add(author)
            self._left_for_later.add(author)
        if author in self.until and stamp > self.until[author]:
            self._left_for_later.add(author)
        try:
            body = _outgoing(session, self._to, row, self._kinds)
        except Undecided:
            self._left_for_later.add(author)
            body = None
        if author not in self._left_for_later:
            if body is not None:
                body = self._signed(body)
                if len(body) > self._left:
                    return False
                self.bodies.append(body)
                self._left -= len(body)
                self.seen[author] = stamp
            self.scanned[author] = stamp
        self.at[author] = stamp
        return True

    def bounded(self, frontier: Frontier) -> Frontier:
        return {author: min(at, self.until.get(author, at)) for author, at in frontier.items()}

    def _links_up(self, author: int, row: OpRow) -> bool:
        links = self.links[author]
        if not links.follows(row):
            return False
        if links.ends_with(row):
            del self.links[author]
        return True

    def gaps(self) -> frozenset[int]:
        return frozenset(self._gaps)


def _rows(session: OpSession, since: Frontier, own_only: int | None, to: int, limit: int) -> list[OpRow]:
    if own_only is None:
        return session.entries_since({_key(node): pack(stamp) for node, stamp in since.items()}, limit)
    after = pack(since[own_only]) if own_only in since else bytes(20)
    rows = session.entries_of_author(_key(own_only), after, limit)
    if to in since and to != own_only and len(rows) < limit:
        # The reader says how far it has its own ops: it may have lost some.
        rows += session.entries_of_author(_key(to), pack(since[to]), limit - len(rows))
    return rows


class JobKinds:
    """The kinds of jobs, which decide who may read the ops about them."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, str] = {}

    def load(self, session: Session, rows: Iterable[OpRow]) -> None:
        """Reads at once the kinds of all jobs that these ops are about."""
        job_ids = {row.key for row in rows if row.family == JOB and row.key is not None} - self._kinds.keys()
        self._kinds.update((entry.job.id, entry.job.kind) for entry in session.jobs_by_id(list(job_ids)))

    def of(self, session: Session, job_id: bytes) -> str:
        """Raises Undecided if the job is not here."""
        if job_id not in self._kinds:
            self._kinds[job_id] = _kind(session, job_id)
        return self._kinds[job_id]


def _outgoing(session: Session, to: PeerReader, row: OpRow, kinds: JobKinds) -> bytes | None:
    """The bytes of an op as the reader may have it; None if it may not."""
    if to.reads_everything:
        return row.body
    if row.hlc[12:] == _key(to.node):
        # A copy that was sanitised for this node is no use to its author.
        return None if row.variant == _SANITISED else row.body
    op = decode(row.body)
    if isinstance(op.payload, Bundle):
        # The reader gets it whole, or not at all.
        is_readable = all(_rules(session, to, each.op, kinds) == () for each in read_facts(row.body))
        return row.body if is_readable else None
    rules = _rules(session, to, op, kinds)
    if rules is None:
        return None
    if isinstance(op.payload, Unknown):
        # An op of a newer program cannot be sanitised here.
        return None if rules else row.body
    if isinstance(op.payload, Sanitised):
        return row.body
    payload = sanitised(op.payload, rules)
    if payload is op.payload:
        return row.body
    if to.is_strict:
        return None
    try:
        return encode(msgspec.structs.replace(op, payload=Sanitised(rules, payload), signature=None))
    except Malformed:
        # Placeholders can be longer than the text that they replace, so that the op becomes too large.
        return None


def _rules(session: Session, to: PeerReader, op: Op, kinds: JobKinds) -> tuple[str, ...] | None:
    """How an op must be sanitised for the reader; None if the reader may not have it."""
    kind = kind_of(session, to, op.payload, kinds)
    return to.authority.reading(to.node, op.payload, op.timestamp.wall, kind, to.now_ms)


class Undecided(Exception):
    """The job of an op is not here."""


def kind_of(session: Session, to: PeerReader, payload: Payload, kinds: JobKinds) -> str | None:
    """The kind of the job that decides whether the reader may have an op: the op's job, or the job of an artifact. None
    if there is no such job, or it does not matter for this reader.
    """
    if isinstance(payload, Sanitised):
        payload = payload.payload
    if not to.authority.reads_by_kind(to.node, type(payload)):
        return None
    subject = subject_of(payload)
    job_id = subject.key if subject is not None and subject.family == JOB else None
    if isinstance(payload, CreateArtifact):
        job_id = payload.source_job
    elif isinstance(payload, EvictArtifact):
        artifact = session.artifact(payload.artifact_id)
        job_id = None if artifact is None else artifact.source_job
    return None if job_id is None else kinds.of(session, job_id)


def _kind(session: Session, job_id: bytes) -> str:
    entry = session.job(job_id)
    if entry is not None:
        return entry.job.kind
    for row in session.ops_about(Subject(JOB, job_id)):
        payload = decode(row.body).payload
        if isinstance(payload, ScheduleJob):
            return payload.kind
    raise Undecided


def may_have(session: Session, to: PeerReader, rows: Iterable[OpRow]) -> bool:
    """Whether the reader may have one of these ops."""
    kinds = JobKinds()
    try:
        return any(_outgoing(session, to, row, kinds) is not None for row in rows)
    except Undecided:
        return False


def readable(session: Session, to: PeerReader, rows: Sequence[OpRow]) -> Changes:
    """What these ops change, restricted to ops that are new to the reader: by another author, and readable."""
    found, kinds = [], JobKinds()
    if not to.reads_everything:
        kinds.load(session, rows)
    for row in rows:
        try:
            if row.hlc[12:] != _key(to.node) and _outgoing(session, to, row, kinds) is not None:
                found.append(row)
        except Undecided:
            continue
    keys: dict[str, set[bytes]] = {LOG: {b""}}
    for row in found:
        if row.key is not None:
            keys.setdefault(row.family, set()).add(row.key)
    return gathered((), keys) if found else NOTHING


def own_frontier(session: OpSession) -> Frontier:
    return {int.from_bytes(node, "big"): unpack(stamp) for node, stamp in session.frontier().items()}


def order_ops(store: Store) -> None:
    """Makes sure that the store can find ops by author and time. On a node without peers it does not keep that
    index.
    """
    with store.write() as session:
        session.order_ops()


def _key(node: int) -> bytes:
    return node.to_bytes(8, "big")


def reading(log: Log, session: Session) -> bytes:
    """A hash of what this node may read."""
    authority = log.permissions(session).authority
    good = [each.cid for each in authority.held(log.node) if authority.fault(each) is None]
    return content_hash(b"".join(sorted(good)))
