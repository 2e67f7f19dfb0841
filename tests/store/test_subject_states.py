"""What a writer remembers of the states that it has written is what the database has."""

from contextlib import closing
from pathlib import Path

import pytest

from hocket.families.locks.facts import LOCK
from hocket.kernel.vocabulary import Subject
from hocket.store import Session, SubjectRow
from hocket.store.sqlite import SqliteStore
from hocket.store.sqlite.session import STATE_BYTES_REMEMBERED, STATES_REMEMBERED

SUBJECT = Subject(LOCK, b"scope")


def put(session: Session, state: bytes, subject: Subject = SUBJECT) -> None:
    session.put_subject(SubjectRow(subject, bytes(20), state))


def test_states_large_and_small_are_those_that_were_written_last(tmp_path: Path) -> None:
    large = b"l" * (STATE_BYTES_REMEMBERED + 1)
    with closing(SqliteStore(tmp_path / "log.db", create=True)) as store:
        for state in (b"one", large, b"two"):
            with store.write() as session:
                session.head()
                put(session, state)
                assert session.subject_state(SUBJECT) == state
            with store.write() as session:
                session.head()
                assert session.subject_state(SUBJECT) == state
        with store.write() as session:
            session.head()
            session.drop_subject(SUBJECT)
            assert session.subject_state(SUBJECT) is None


def test_a_state_of_a_transaction_that_was_undone_is_forgotten(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "log.db", create=True)) as store:
        with pytest.raises(ZeroDivisionError), store.write() as session:
            session.head()
            put(session, b"undone")
            raise ZeroDivisionError
        with store.write() as session:
            assert session.subject_state(SUBJECT) is None
            session.head()
            assert session.subject_state(SUBJECT) is None


def test_a_state_that_another_connection_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(SqliteStore(path, create=True)) as here, closing(SqliteStore(path)) as elsewhere:
        for state in (b"one", b"two", b"three"):
            for store in (here, elsewhere):
                with store.write() as session:
                    session.head()
                    put(session, state + (b"h" if store is here else b"e"))
            with here.write() as session:
                session.head()
                assert session.subject_state(SUBJECT) == state + b"e"


def test_a_writer_remembers_few_states(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "log.db", create=True)) as store:
        for number in range(3 * STATES_REMEMBERED):
            with store.write() as session:
                session.head()
                put(session, b"state", Subject(LOCK, number.to_bytes(2, "big")))
        assert 0 < len(store._write_session._states) <= STATES_REMEMBERED
