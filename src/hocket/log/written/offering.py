"""Offers this node's ops again to a store that has lost them. They keep their ids, times and signatures, so that a job
is known by the id that its submitter was given, and a node elsewhere that has them sees no second history. The fold
decides about each by its time, as about every late op: what another node has written meanwhile may count no more, or in
their place.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from hocket.kernel.arbitration import BY_NUMBER, Reason
from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import unpack
from hocket.kernel.ops import Op, decode
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import Bundle
from hocket.log.written.journal import LostTail, WrittenEntries, WrittenEntry
from hocket.store import Session, Store

# An op with one of these reasons counts as soon as the ops of others are there on which it depends.
_WAITING = frozenset((0, Reason.WAITING, Reason.OFFERED, Reason.UNKNOWN_JOB, Reason.DEPENDENCY_REJECTED))


class OfferingLog(Protocol):
    """What is needed of the log."""

    node: int
    store: Store
    physical: Callable[[], int]

    def settle(self) -> None: ...
    def admit(
        self,
        ops: Iterable[tuple[bytes, Op | Malformed]],
        decide: None = None,
        *,
        sender: int | None = None,
    ) -> object: ...


def offer_again(log: OfferingLog, written: WrittenEntries) -> None:
    """Does nothing if another process or thread of the node has done so."""
    with written.offering():
        log.settle()
        with log.store.read() as session:
            entries = written.lost(session)
        if not entries:
            return
        log.admit([(each.body, decode(each.body)) for each in entries], sender=log.node)
        with log.store.read() as session:
            known = session.known_ops([each.id for each in entries])
            here = [each for each in entries if each.id in known]
            standings = _standings(session, here)
        missing = [each for each in entries if each.id not in known]
        if missing:
            written.give_up(missing)
        # What depends on a refused op is refused with it, and otherwise waits.
        waiting = _WAITING if _WAITING.issuperset(standings) else _WAITING - {Reason.DEPENDENCY_REJECTED}
        refused = Counter(BY_NUMBER[each].sentence for each in standings if each not in waiting)
        written.note(
            LostTail(
                at_ms=log.physical(),
                since_ms=unpack(entries[0].hlc).wall,
                offered=len(standings),
                waiting=sum(each in waiting and each != 0 for each in standings),
                refused=dict(refused),
                missing=len(_facts(missing)),
            )
        )


def _facts(entries: Sequence[WrittenEntry]) -> list[bytes]:
    """The ids of the ops in the entries."""
    found: list[bytes] = []
    for each in entries:
        is_bundle = isinstance(decode(each.body).payload, Bundle)
        found += [fact.op.id for fact in read_facts(each.body)] if is_bundle else [each.id]
    return found


def _standings(session: Session, entries: Sequence[WrittenEntry]) -> list[int]:
    """What the log says about each op of these entries: a reason, or 0."""
    return [row.reason for row in session.ops_by_id(_facts(entries))]
