"""A job is named by its id, or by a unique beginning or end of it."""

import pytest
from msgspec.structs import replace

from hocket.errors import Usage
from hocket.families.jobs.rules import Job, State
from hocket.families.jobs.view import ENDING_CHARS_MIN, ending_chars, find
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import parse_ulid, ulid_ending, ulid_text
from hocket.kernel.policy import DEFAULT
from hocket.store import MEMORY, JobEntry, Stage, Store
from hocket.store import open as open_store

FIRST, SECOND, THIRD = "01M7HEESFGZFB4H0J1Q15SBRAR", "01M7HEESFGYK8553MFK9546RAR", "01M7HEFSFGYK8553MFK01M7HEE"


@pytest.fixture
def store() -> Store:
    store = open_store(MEMORY, create=True)
    at = Hlc(1, 0, 1)
    with store.write() as session:
        for text in (FIRST, SECOND, THIRD):
            job = Job(parse_ulid(text), "acme.mail", parse_ulid(text), at, DEFAULT, at, State.PENDING, None)
            session.put_jobs([JobEntry(job, Stage.READY, None)])
    return store


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (FIRST, FIRST),
        ("01M7HEF", THIRD),
        ("BRAR", FIRST),
        ("6rar", SECOND),
        (SECOND[1:], SECOND),
        # The beginning of several and the end of one.
        ("01M7HEE", THIRD),
    ],
)
def test_a_unique_beginning_or_end_names_a_job(store: Store, text: str, found: str) -> None:
    with store.read() as session:
        assert ulid_text(find(session, text).job.id) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("01M7", "'01M7' is the beginning of several job ids"),
        ("RAR", "no job 'RAR'"),
        ("", "no job ''"),
        ("no!", "'no!' is not a job id"),
        ("ZZZZZ", "no job 'ZZZZZ'"),
        (FIRST + "A", "is not a job id"),
    ],
)
def test_other_texts_name_none(store: Store, text: str, says: str) -> None:
    with store.read() as session, pytest.raises(Usage, match=says):
        find(session, text)


def test_an_end_of_several_names_them(store: Store) -> None:
    twin = parse_ulid("0" + FIRST[1:8] + "A" + FIRST[9:])
    with store.write() as session:
        entry = session.job(parse_ulid(FIRST))
        assert entry is not None
        session.put_jobs([entry._replace(job=replace(entry.job, id=twin))])
    with store.read() as session, pytest.raises(Usage, match=f"end of several job ids: .*{FIRST}.*give more"):
        find(session, "BRAR")


def test_an_end_has_its_last_whole_bytes() -> None:
    for chars in range(1, 27):
        ending = ulid_ending(FIRST[-chars:])
        assert len(ending) == chars * 5 // 8 and parse_ulid(FIRST).endswith(ending)


def test_shown_ends_differ_and_grow_with_the_number_of_jobs() -> None:
    assert ending_chars([FIRST, SECOND, THIRD], 3) == ENDING_CHARS_MIN
    assert ending_chars([FIRST, FIRST[:20] + "XSBRAR"], 2) == 6
    assert ending_chars([FIRST], 200_000) == 6
    assert ending_chars([FIRST, FIRST], 2) == 26
