"""What a write transaction in PostgreSQL is told when it begins: nothing old, and nothing that it has changed."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from hocket.families.availability.facts import AVAILABILITY
from hocket.families.kinds.facts import KIND, DefineKind
from hocket.kernel.vocabulary import Subject
from hocket.store.local import Place, WorkerRow
from hocket.store.postgres import PostgresStore
from hocket.store.postgres.beginning import SUBJECTS_MAX, UNASKED_MAX
from hocket.store.postgres.session import PostgresSession
from hocket.store.subjects import SubjectRow
from tests.log.roster.world import READER, introduction, new_log
from tests.stores import with_macs

pytestmark = pytest.mark.touches("VX-18")

ME, HLC = bytes(7) + b"\1", bytes(20)
KEY = Subject(KIND, b"acme.render")
NODE = Subject(AVAILABILITY, ME)


@pytest.fixture
def other(address: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(address)) as opened:
        yield opened


def put(session: PostgresSession, state: bytes, subject: Subject = KEY) -> None:
    session.put_subject(SubjectRow(subject, HLC, state))


def asked(session: PostgresSession) -> tuple[object, ...]:
    return session.subject_state(KEY), session.subject_state(NODE), session.has_after(), session.has_routes()


def look(store: PostgresStore) -> tuple[object, ...]:
    """Twice, so that the second transaction is told."""
    with store.write(ME) as session:
        asked(session)
    with store.write(ME) as session:
        return asked(session)


def test_a_transaction_sees_what_others_have_changed_before_it(store: PostgresStore, other: PostgresStore) -> None:
    assert look(store) == (None, None, False, False)
    with other.write() as session:
        put(session, b"1")
        put(session, b"2", NODE)
        session.set_after(b"job", [b"dependency"])
        session.set_route("acme.render", HLC, None)
    assert look(store) == (b"1", b"2", True, True)
    with other.write() as session:
        session.drop_subject(KEY)
        session.drop_job(b"job")
        session.drop_route("acme.render", HLC)
    assert look(store) == (None, b"2", False, False)


def test_a_transaction_sees_its_own_changes(store: PostgresStore) -> None:
    look(store)
    with store.write() as session:
        put(session, b"1")
        session.set_after(b"job", [b"dependency"])
        session.set_route("acme.render", HLC, None)
        assert asked(session) == (b"1", None, True, True)
        put(session, b"2")
        assert session.subject_state(KEY) == b"2"
        session.drop_subject(KEY)
        session.drop_route("acme.render", HLC)
        assert session.subject_state(KEY) is None and not session.has_routes()
        put(session, b"3")
        session.drop_projections()
        assert asked(session) == (None, None, False, False)


def test_what_was_undone_is_not_remembered(store: PostgresStore) -> None:
    look(store)
    with pytest.raises(KeyError):
        with store.write() as session:
            put(session, b"1")
            raise KeyError
    assert look(store)[0] is None


def test_a_worker_is_known_until_it_is_gone(store: PostgresStore, other: PostgresStore) -> None:
    row = WorkerRow(0, "name", 1, 1, ME, 1, Place("", "", "", ""), "")
    with_macs(store)
    with store.write() as session:
        assert not session.has_worker(1)
        number = session.put_worker(row)
        assert session.has_worker(number)
    with store.write(ME) as session:
        assert session.has_worker(number) and not session.has_worker(number + 1) and session.has_worker(number)
    with other.write() as session:
        session.drop_worker(number)
    with store.write(ME) as session:
        assert not session.has_worker(number)


def test_a_look_at_the_queue_knows_the_offers_of_its_transaction(store: PostgresStore) -> None:
    with store.write() as session:
        assert session.ready_kinds() == [] and session.offered_jobs() == set() and session.next_ready_at() is None
        session.put_offer(b"op", b"job", 1)
        assert session.offered_jobs() == {b"job"}
        session.ready_kinds()
        session.drop_offer(b"op")
        assert session.offered_jobs() == set()


def test_only_what_is_asked_again_is_read_in_advance(store: PostgresStore) -> None:
    with store.write(ME) as session:
        for n in range(SUBJECTS_MAX + 5):
            session.subject_state(Subject(KIND, b"%d" % n))
    with store.write(ME) as session:
        assert len(session._prefetched.subjects) == SUBJECTS_MAX
    for _ in range(UNASKED_MAX):
        with store.write(ME) as session:
            session.subject_state(KEY)
    with store.write(ME) as session:
        assert len(session._prefetched.subjects) <= 1


def test_a_plain_submit_notices_that_its_kind_has_options(store: PostgresStore, other: PostgresStore) -> None:
    log = new_log(store)
    log.run(lambda tx: tx.author(introduction(READER).payload))
    assert log.append_plain("acme.render", b"{}") is not None
    later = new_log(other, wall=lambda wall: wall + 1_000)
    later.run(lambda tx: tx.author(DefineKind("acme.render", b'{"concurrency":1}')))
    assert log.append_plain("acme.render", b"{}") is None
