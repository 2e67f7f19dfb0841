"""Pages and counts of jobs over every store: whatever the filter, the pages together have each job that matches once
and in order, also if a page may read only a few rows.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import make_ulid
from hocket.kernel.policy import Policy, covers
from hocket.store import JobEntry, JobFilter, Session, Stage, Store, job_pages
from hocket.store.sqlite import SqliteStore
from tests.effort import some
from tests.store.sqlite_steps import steps
from tests.stores import STORES

KINDS = ("acme.", "acme.a", "acme.b", "acmf.a", "z", None)
AUTHORS = (1, 2)
STATES = {Stage.CLAIMED: State.CLAIMED, Stage.DONE: State.COMPLETED}


def made(seed: int, count: int) -> Iterator[JobEntry]:
    chance = random.Random(seed)
    for n in range(count):
        stage = chance.choice([*Stage, Stage.DONE])
        at = Hlc(1_000 + n // 3, n, chance.choice(AUTHORS))
        outcome = chance.choice(list(Outcome)) if stage is Stage.DONE else None
        kind = chance.choice(["acme.a", "acme.b", "acmf.a", "z"])
        job = Job(
            make_ulid(at.wall, chance.randbytes(10)),
            *(kind, bytes(16), at, Policy(), at, STATES.get(stage, State.PENDING), outcome),
        )
        yield JobEntry(job, stage, None)


def matches(entry: JobEntry, wanted: JobFilter) -> bool:
    job = entry.job
    return (
        (not wanted.stages or entry.stage in wanted.stages)
        and wanted.outcome in (None, job.outcome)
        and (wanted.kind is None or covers(wanted.kind, job.kind))
        and (wanted.author is None or job.scheduled.node.to_bytes(8, "big") == wanted.author)
        and (wanted.since_ms is None or job.scheduled.wall >= wanted.since_ms)
        and (wanted.until_ms is None or job.scheduled.wall < wanted.until_ms)
        and wanted.argument in (None, *arguments(entry))
    )


def arguments(entry: JobEntry) -> list[tuple[str, str]]:
    """Some have none."""
    number = entry.job.id[-1] % 4
    return [("frame", str(number)), ("all", "é:=")][: number or None] if number < 3 else []


def put(session: Session, entries: list[JobEntry]) -> None:
    session.put_jobs(entries)
    for each in entries:
        session.put_arguments(each.job.id, arguments(each))


FILTERS = [
    *(JobFilter(kind=kind) for kind in KINDS),
    *(JobFilter((Stage.DONE,), kind=kind) for kind in KINDS),
    *(JobFilter(outcome=outcome, kind=kind) for outcome in Outcome for kind in ("acme.", "z", None)),
    JobFilter((Stage.READY,)),
    JobFilter((Stage.READY, Stage.BLOCKED), kind="acme."),
    JobFilter((Stage.READY, Stage.DONE), Outcome.FAILED),
    JobFilter((Stage.READY,), Outcome.FAILED),
    JobFilter(author=(2).to_bytes(8, "big")),
    JobFilter((Stage.DONE,), kind="acme.a", author=(2).to_bytes(8, "big")),
    JobFilter(since_ms=1_010, until_ms=1_020),
    JobFilter((Stage.DONE,), Outcome.CANCELLED, "acme.", author=(1).to_bytes(8, "big"), since_ms=1_005),
    JobFilter(kind="nothing"),
    JobFilter(argument=("frame", "1")),
    JobFilter(argument=("frame", "3")),
    JobFilter(argument=("all", "é:=")),
    JobFilter(argument=("all", "é")),
    JobFilter((Stage.READY, Stage.DONE), kind="acme.", argument=("all", "é:=")),
    JobFilter((Stage.DONE,), Outcome.FAILED, argument=("frame", "2"), since_ms=1_005, until_ms=1_020),
    JobFilter(author=(2).to_bytes(8, "big"), argument=("frame", "0")),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with closing(STORES[request.param].new()) as opened:
        yield opened


@pytest.fixture
def entries(store: Store) -> list[JobEntry]:
    entries = list(made(7, 90))
    with store.write() as session:
        put(session, entries)
    return entries


def listed(session: Session, wanted: JobFilter, limit: int, passes: job_pages.Passes | None = None) -> list[bytes]:
    found: list[bytes] = []
    pages = 0
    while True:
        page = session.job_page(wanted, limit, passes)
        assert len(page.entries) <= limit
        found += [each.job.id for each in page.entries]
        pages += 1
        if page.beyond is None:
            return found
        assert wanted.beyond is None or (page.beyond < wanted.beyond) == wanted.newest_first
        wanted = wanted._replace(beyond=page.beyond)


@pytest.mark.parametrize(("rows", "sorted_max"), [(3, 0), (7, 5), (3, 1_000), (5_000, 1_000)])
def test_pages_have_each_job_that_matches_once_and_in_order(
    store: Store, entries: list[JobEntry], monkeypatch: pytest.MonkeyPatch, rows: int, sorted_max: int
):
    """With SQLite for all filters; a server answers hundreds of times as slowly, and is asked for a part of them."""
    for name in ("ROWS_READ_MAX", "JOBS_READ_MAX"):
        monkeypatch.setattr(job_pages, name, rows)
    monkeypatch.setattr(job_pages, "SORTED_MAX", sorted_max)
    monkeypatch.setattr(job_pages, "KINDS_READ_MAX", rows)
    with store.read() as session:
        for wanted in FILTERS if isinstance(store, SqliteStore) else some(FILTERS, 3):
            for newest in (True, False):
                asked = wanted._replace(newest_first=newest)
                ids = sorted((each.job.id for each in entries if matches(each, wanted)), reverse=newest)
                assert listed(session, asked, 7) == ids, asked
                assert [each.job.id for each in session.jobs(asked, 1_000)] == ids, asked
                assert session.bounded_count(asked) == (len(ids), False)
                odd = [each for each in ids if each[-1] % 2]
                assert listed(session, asked, 7, lambda entry: bool(entry.job.id[-1] % 2)) == odd, asked


def test_a_job_that_is_dropped_is_found_by_nothing(store: Store, entries: list[JobEntry]):
    found = JobFilter(argument=("all", "é:="))
    with store.write() as session:
        for each in entries:
            session.drop_job(each.job.id)
        session.put_jobs(entries)
    with store.read() as session:
        assert listed(session, found, 7) == [] and not session.has_argument("all")


def test_a_count_that_had_to_stop_says_so(store: Store, entries: list[JobEntry], monkeypatch: pytest.MonkeyPatch):
    for name, value in (("COUNTED_MAX", 9), ("COUNTED_ROWS_MAX", 9), ("COUNTED_JOBS_MAX", 6), ("JOBS_READ_MAX", 3)):
        monkeypatch.setattr(job_pages, name, value)
    with store.read() as session:
        assert session.bounded_count(JobFilter(since_ms=0)) == (9, True)
        cut = session.bounded_count(JobFilter(author=(1).to_bytes(8, "big")))
        assert cut.is_cut and cut.jobs <= 9
        assert session.bounded_count(JobFilter(), lambda entry: True) == (6, True)
        assert session.bounded_count(JobFilter()) == (len(entries), False)


@pytest.mark.parametrize(
    "sizes", [(2_000, 20_000), pytest.param((10_000, 1_000_000), marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_no_page_and_no_count_costs_more_with_many_times_as_many_ended_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
):
    for name in ("ROWS_READ_MAX", "JOBS_READ_MAX", "SORTED_MAX", "COUNTED_MAX", "COUNTED_ROWS_MAX", "COUNTED_JOBS_MAX"):
        monkeypatch.setattr(job_pages, name, 50)
    costs: list[list[int]] = []
    for count in sizes:
        with closing(SqliteStore(tmp_path / f"{count}.db", create=True)) as store:
            entries = (each for each in made(3, count) if each.stage is Stage.DONE)
            while some := list(islice(entries, 20_000)):
                with store.write() as session:
                    put(session, some)
            asks: list[Callable[[Session], object]] = []
            for wanted in FILTERS:
                for newest in (True, False):
                    asked = wanted._replace(newest_first=newest)
                    asks += [
                        lambda session, asked=asked: session.job_page(asked, 20),  # type: ignore[misc]
                        lambda session, asked=asked: session.job_page(asked, 20, lambda entry: False),  # type: ignore[misc]
                        lambda session, asked=asked: session.bounded_count(asked),  # type: ignore[misc]
                    ]
            costs.append([steps(store, ask) for ask in asks])
    for few, many in zip(*costs, strict=True):
        assert many < few * 1.5 + 200
