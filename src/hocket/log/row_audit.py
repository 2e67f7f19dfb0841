"""Compares the derived rows of a store that nodes share with the ops that they come from, for an audit. The check of
each row is the one that it must stand before it is used.
"""

from collections.abc import Iterator
from itertools import islice

from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.subjects import Subject
from hocket.kernel.vocabulary import ClearSchedule, SetSchedule
from hocket.log.audit import BATCH, FINDINGS_MAX, AuditFinding
from hocket.log.checked_registers import CheckedRegisters
from hocket.log.schedule_register import scheduled
from hocket.log.store_check import SessionCheck, StoreCheck
from hocket.store import JobEntry, Session, Store


def audit_rows(store: Store, check: StoreCheck) -> list[AuditFinding]:
    """`check` is a new one: it reports each row once."""
    with store.read() as session:
        session.row_check = within = check.within(session)
        CheckedRegisters().read(session, ())
        session.nodes()
        for kind, hlc, node in session.routes():
            within.route(kind, hlc, node)
        _states(session)
        _schedules(session, within)
        for entries in _batches(session.each_job()):
            within.jobs(entries)
    rows = [each for each in check.findings.values() if each.table != "ops"]
    return [AuditFinding(None, None, f"{each.table}, row {each.row}: {each.what}") for each in rows[:FINDINGS_MAX]]


def _states(session: Session) -> None:
    """Reading a state compares it with the ops, also one that should be there and is not."""
    for family in FAMILIES.values():
        for key in session.subjects_of(family.name):
            if family.table is None:
                session.subject_state(Subject(family.name, key))
            else:
                family.table.read(session, key)
    after = b""
    while found := session.artifacts(after, BATCH):
        after = found[-1].id


def _schedules(session: Session, check: SessionCheck) -> None:
    """Which tick was the last is on no log."""
    for row in session.schedules():
        op = session.op(row.op)
        payload = None if op is None else decode(op.body).payload
        is_known = op is not None and isinstance(payload, SetSchedule | ClearSchedule)
        if not is_known or op is None or scheduled(decode(op.body))._replace(last_tick=row.last_tick) != row:
            check.refuse("schedules", row.name, f"it differs from op {ulid_text(row.op[:16].ljust(16, bytes(1)))}")


def _batches(entries: Iterator[JobEntry]) -> Iterator[list[JobEntry]]:
    while batch := list(islice(entries, BATCH)):
        yield batch
