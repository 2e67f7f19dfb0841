"""Reads one job or artifact back from an archive: finds the ops about it, verifies them, and folds them in a store in
memory, so that everything that shows a job can show it from there. Who wrote ops, and what they might do, the log says:
delegations are never pruned.

An id begins with the time at which it was made, so the search begins with the files of that day. Bytes are compared
before they are decoded; an op in a bundle that names itself does not contain its id, and is found by its time.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hocket.errors import Failed, Usage
from hocket.kernel.bundles import read_facts
from hocket.kernel.ids import ulid_ms, ulid_prefix_range, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import (
    Bundle,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    SetSchedule,
    SetSuccession,
    TakeOver,
    number_of,
)
from hocket.log import Log
from hocket.log.archives.archive import Archive, ArchivePlace, target_at
from hocket.log.archives.day_file import day_of
from hocket.log.audit import author_keys
from hocket.log.author_check import op_fault
from hocket.store import Store

# The ops that say what others mean. They come from the log.
_CONTEXT = tuple(
    number_of(each)
    for each in (
        *(DelegateUcan, RevokeUcan, RevokeRoot, ReportFork),
        *(DesignateCoordinator, SetSuccession, TakeOver, RouteKind, SetSchedule),
    )
)
# The ops that the ops of a job cite are read too, and those that these cite.
_ROUNDS = 3
_SHOWN_MAX = 5
_TIME_BYTES = 6


class FoundOp(NamedTuple):
    raw: bytes
    op: Op


def read_archived(log: Log, new_log: Callable[[], Log], address: str, text: str) -> Store | None:
    """A store in memory with the job or the artifact whose id begins with this text, and what it depends on. None if
    the archive has none. `new_log` gives an empty log with the rules of this one.
    """
    try:
        low, high = ulid_prefix_range(text)
    except ValueError:
        return None
    search = _ArchiveSearch(Archive(target_at(address)))
    try:
        wanted = low if low == high else search.one_between(low, high, text)
        found = {} if wanted is None else search.about(wanted)
    except Malformed as error:
        raise Failed(f"the archive {address} is damaged: an op cannot be read: {error}") from None
    if not found:
        return None
    return _folded(log, new_log(), list(found.values()))


class _ArchiveSearch:
    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._places = sorted(archive.all_places(), key=lambda place: (place.day, place.author, place.part))

    def one_between(self, low: bytes, high: bytes, text: str) -> bytes | None:
        """The one id of a job or an artifact between these. Raises Usage if there are more."""
        found = set()
        for raw in self._ops(day_of(ulid_ms(low)), day_of(ulid_ms(high))):
            if low[:_TIME_BYTES] <= raw[:_TIME_BYTES] <= high[:_TIME_BYTES]:
                found |= {each for each in _made_by(raw) if low <= each <= high}
        if len(found) > 1:
            shown = ", ".join(ulid_text(each) for each in sorted(found)[:_SHOWN_MAX])
            raise Usage(f"{text!r} is the beginning of several ids in {self._archive.target.shown}: {shown}; give more")
        return next(iter(found), None)

    def about(self, wanted: bytes) -> dict[bytes, FoundOp]:
        """The entries that name the id, and those that these depend on, by their ids."""
        found = {each.op.id: each for each in self._naming({wanted}, None)}
        asked = {wanted}
        for _ in range(_ROUNDS):
            named = {each for entry in found.values() for each in _named_in(entry)} - found.keys() - asked
            if not named:
                break
            asked |= named
            # What was made at the same time as its id: an op, or the artifact of one.
            for day in sorted({day_of(ulid_ms(each)) for each in named}):
                of_day = {each for each in named if day_of(ulid_ms(each)) == day}
                found |= {each.op.id: each for each in self._naming(of_day, day)}
        return found

    def _naming(self, wanted: set[bytes], day: str | None) -> Iterator[FoundOp]:
        times = {each[:_TIME_BYTES] for each in wanted}
        first = min(day_of(ulid_ms(each)) for each in wanted)
        for raw in self._ops(first, day):
            if raw[:_TIME_BYTES] in times:
                op = decode(raw)
                ids = {op.id, *_made_by(raw)}
                if day is not None and isinstance(op.payload, Bundle):
                    ids |= {each.op.id for each in read_facts(raw)}
                if wanted & ids:
                    yield FoundOp(raw, op)
                    continue
            if day is None and any(each in raw for each in wanted):
                yield _found(raw)

    def _ops(self, first: str, last: str | None) -> Iterator[bytes]:
        """Those of the days from the first to the last."""
        for place in self._places:
            if first <= place.day and (last is None or place.day <= last):
                yield from self._read(place)

    def _read(self, place: ArchivePlace) -> list[bytes]:
        try:
            return self._archive.read(place).ops
        except Malformed as error:
            raise Failed(f"{self._archive.shown(place)} is damaged: {error}") from None


def _found(raw: bytes) -> FoundOp:
    return FoundOp(raw, decode(raw))


def _facts(raw: bytes) -> Iterable[Op]:
    op = decode(raw)
    return [each.op for each in read_facts(raw)] if isinstance(op.payload, Bundle) else [op]


def _made_by(raw: bytes) -> Iterator[bytes]:
    """The jobs and artifacts that an op makes."""
    for op in _facts(raw):
        if isinstance(op.payload, ScheduleJob):
            yield op.payload.job_id
        elif isinstance(op.payload, CreateArtifact):
            yield op.payload.artifact_id


def _named_in(entry: FoundOp) -> Iterator[bytes]:
    for op in _facts(entry.raw):
        yield from op.cited
        yield from getattr(op.payload, "output_artifacts", ())


def _folded(log: Log, copy: Log, found: list[FoundOp]) -> Store:
    with log.store.read() as session:
        keys = author_keys(session, log.user)
        context = [_found(log.signed(row.body)) for row in session.ops_of_variants(_CONTEXT)]
    entries = {each.op.id: each for each in [*context, *found]}
    with copy.store.write() as session:
        tx = copy.begin(session)
        in_order = sorted(entries.values(), key=lambda each: each.op.timestamp)
        tx.lock_permissions_for(each.op.payload for each in in_order)
        session.order_ops()
        tx.projection.prepare([each.op for each in in_order])
        for raw, op in in_order:
            if op_fault(log.user, raw, op, keys.get(op.node_id), True) is not None:
                raise Failed(f"op {ulid_text(op.id)} in the archive is not one that a node of this mesh has signed")
            tx.hear(op.timestamp)
            tx.admit(op, raw)
        tx.projection.settle()
        tx.close(copy.append_received)
    return copy.store
