"""Lists and counts of jobs that cost the same however many jobs have ended. A page reads the indexes that fit its
filter, and of each a bounded number of rows; if that was not enough to fill it, it is shorter, and the next page goes
on where it ended.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

from hocket.kernel.ids import make_ulid
from hocket.store.job_rows import CHECKED_COLUMNS, JOB_COLUMNS, ChecksJobs, JobEntry, JobFilter, Stage, job_entries
from hocket.store.statements import Dialect, LockSession

# The most rows that a page reads of an index if its filter has to look at them: at their columns, or at the jobs.
ROWS_READ_MAX = 5_000
JOBS_READ_MAX = 500
# So many jobs of a stage are sorted for a list; more are found among all jobs.
SORTED_MAX = 2_000
# The list of a prefix reads the ended jobs of each kind, if there are not more kinds than that.
KINDS_READ_MAX = 50
# A count that the counters of ended jobs do not tell stops after so many rows of an index, so many rows that it has to
# look at, or so many jobs.
COUNTED_MAX = 200_000
COUNTED_ROWS_MAX = 10_000
COUNTED_JOBS_MAX = 1_000

_INDEXES = ("jobs_ready", "jobs_delayed", "jobs_blocked", "jobs_claimed")
_ID_BYTES = 10

# The order of the tables keeps SQLite from reading every job.
_WITH_ARGUMENTS = "arguments AS a CROSS JOIN jobs"
_OF_ARGUMENT = "WHERE jobs.id = a.job AND a.path = ? AND a.value = ?"

Passes = Callable[[JobEntry], bool]


class JobPage(NamedTuple):
    """Part of a list. `beyond` is where the next page begins; None at the end."""

    entries: list[JobEntry]
    beyond: bytes | None


class JobCount(NamedTuple):
    """How many jobs were found; if it `is_cut`, there may be more."""

    jobs: int
    is_cut: bool = False


class _Source(NamedTuple):
    """Jobs in the order of their ids. If it `is_exact`, all of them have the outcome and kind of the list, and a stage
    of it; else those count that do, and have one of the `stages`. `key` is the column of their ids in the index.
    """

    where: str
    values: tuple[Any, ...] = ()
    is_exact: bool = True
    stages: tuple[Stage, ...] = ()
    table: str = "jobs"
    key: str = "id"


@cache
def of_stages(dialect: Dialect) -> Mapping[Stage, str]:
    """The condition for each stage. All but the last have an index of their own."""
    indexes = [dialect.using.format(name) for name in _INDEXES] + [""]
    return {stage: f"{index} WHERE stage = {int(stage)}" for stage, index in zip(Stage, indexes, strict=True)}


def of_kind(wanted: str | None) -> tuple[str, tuple[Any, ...]]:
    """The condition of `kernel.policy.covers`, and its values."""
    if wanted is None:
        return "", ()
    if wanted.endswith("."):
        return " AND kind > ? AND kind < ?", (wanted, wanted[:-1] + "/")
    return " AND kind = ?", (wanted,)


class JobPageSession(LockSession):
    row_check: ChecksJobs | None

    def jobs(self, wanted: JobFilter, limit: int) -> list[JobEntry]:
        """The first jobs of a list, in the order of job ids."""
        found: list[JobEntry] = []
        while len(found) < limit:
            page = self.job_page(wanted, limit - len(found))
            found += page.entries
            if page.beyond is None:
                break
            wanted = wanted._replace(beyond=page.beyond)
        return found

    def job_page(self, wanted: JobFilter, limit: int, passes: Passes | None = None) -> JobPage:
        """A page in the order of job ids. `passes` is what the filter cannot say."""
        newest = wanted.newest_first
        pages = [self._read_jobs(source, wanted, limit, passes) for source in self._sources(wanted)]
        entries = sorted(
            (each for page in pages for each in page.entries), key=lambda each: each.job.id, reverse=newest
        )
        ends = [page.beyond for page in pages if page.beyond is not None]
        end = (max if newest else min)(ends) if ends else None
        if end is not None:
            entries = [each for each in entries if (each.job.id >= end if newest else each.job.id <= end)]
        return JobPage(entries[:limit], entries[limit - 1].job.id if len(entries) > limit else end)

    def job_count(self, wanted: JobFilter) -> int:
        """How many jobs of these stages, of this outcome and of these kinds there are. Ended ones are not read."""
        stages, found = wanted.stages or tuple(Stage), 0
        kind, values = of_kind(wanted.kind)
        if Stage.DONE in stages:
            ended = f"SELECT CAST(sum(jobs) AS BIGINT) FROM finished WHERE true{kind}"
            outcome = "" if wanted.outcome is None else f" AND outcome = {int(wanted.outcome)}"
            found += self._one(ended + outcome, *values) or 0
        for stage, where in of_stages(self.dialect).items() if wanted.outcome is None else ():
            if stage in stages and stage is not Stage.DONE:
                found += self._one(f"SELECT count(*) FROM jobs {where}{kind}", *values)
        return int(found)

    def bounded_count(self, wanted: JobFilter, passes: Passes | None = None) -> JobCount:
        """How many jobs a list has, however many pages it takes, as far as a bounded number of rows tells."""
        if passes is not None:
            found = 0
            for _ in range(COUNTED_JOBS_MAX // JOBS_READ_MAX):
                page = self.job_page(wanted, JOBS_READ_MAX, passes)
                found, wanted = found + len(page.entries), wanted._replace(beyond=page.beyond)
                if page.beyond is None:
                    return JobCount(found)
            return JobCount(found, is_cut=True)
        if (wanted.author, wanted.since_ms, wanted.until_ms, wanted.argument) == (None, None, None, None):
            return JobCount(self.job_count(wanted))
        counts = [self._count_jobs(source, wanted) for source in self._sources(wanted)]
        return JobCount(sum(each.jobs for each in counts), any(each.is_cut for each in counts))

    def _sources(self, wanted: JobFilter) -> list[_Source]:
        """Sources that together have every job of the list, each once."""
        stages, outcome = wanted.stages or tuple(Stage), wanted.outcome
        if wanted.argument is not None:
            return [_Source(_OF_ARGUMENT, wanted.argument, False, wanted.stages, _WITH_ARGUMENTS, "a.job")]
        if outcome is None and wanted.kind is None and len(stages) == len(Stage):
            return [_Source("WHERE true")]
        kind, values = of_kind(wanted.kind)
        sources = []
        for stage, where in of_stages(self.dialect).items() if outcome is None else ():
            if stage in stages and stage is not Stage.DONE:
                few = f"SELECT count(*) FROM (SELECT 1 FROM jobs {where}{kind} LIMIT {SORTED_MAX + 1}) AS few"
                if self._one(few, *values) > SORTED_MAX:
                    return [_Source("WHERE true", is_exact=False, stages=stages)]
                sources.append(_Source(where + kind, values))
        return sources + self._ended(wanted) if Stage.DONE in stages else sources

    def _ended(self, wanted: JobFilter) -> list[_Source]:
        """The jobs that have ended. How many there are of each kind and outcome is known."""
        kind, values = of_kind(wanted.kind)
        rows = self._rows(f"SELECT kind, outcome, jobs FROM finished WHERE jobs <> 0{kind}", *values)
        counts = [(name, jobs) for name, outcome, jobs in rows if wanted.outcome in (None, outcome)]
        kinds = sorted({name for name, _ in counts})
        is_any = wanted.outcome is None
        if wanted.outcome:
            failed = self.dialect.using.format("jobs_failed")
            where = f"{failed} WHERE outcome > 0 AND outcome = {int(wanted.outcome)}"
            return [_Source(where, is_exact=wanted.kind is None)] if kinds else []
        done = f"{self.dialect.using.format('jobs_done')} WHERE stage = 4"
        if len(kinds) <= KINDS_READ_MAX and (wanted.kind is not None or sum(jobs for _, jobs in counts) <= SORTED_MAX):
            return [_Source(f"{done} AND kind = ?", (name,), is_any) for name in kinds]
        return [_Source("WHERE true", is_exact=False, stages=(Stage.DONE,))]

    def _read_jobs(self, source: _Source, wanted: JobFilter, limit: int, passes: Passes | None) -> JobPage:
        """A page of one source, which has all its jobs up to its `beyond`, that one included."""
        order = "DESC" if wanted.newest_first else "ASC"
        where, values = _bounded(source, wanted)
        read = f"{source.table} {where}"
        conditions, more = _conditions(source, wanted)
        columns = JOB_COLUMNS if self.row_check is None else CHECKED_COLUMNS
        if not conditions and passes is None:
            rows = self._rows(f"SELECT {columns} FROM {read} ORDER BY {source.key} {order} LIMIT ?", *values, limit + 1)
            return JobPage(job_entries(rows, self.row_check), rows[-1][0] if len(rows) > limit else None)
        most = ROWS_READ_MAX if passes is None else JOBS_READ_MAX
        # No order is asked of the outer one, which takes the rows as they come: SQLite would read all to sort them.
        rows = self._rows(
            f"SELECT {columns} FROM (SELECT jobs.* FROM {read} ORDER BY {source.key} {order} LIMIT {most}) AS jobs"
            f" WHERE true{conditions} LIMIT ?",
            *(*values, *more, limit + 1 if passes is None else most),
        )
        found = (entry for row in rows for entry in job_entries([row], self.row_check))
        entries = list(islice(found if passes is None else filter(passes, found), limit + 1))
        if len(entries) > limit:
            return JobPage(entries, entries[-1].job.id)
        last = f"SELECT {source.key} FROM {read} ORDER BY {source.key} {order} LIMIT 1 OFFSET {most - 1}"
        return JobPage(entries, self._one(last, *values))

    def _count_jobs(self, source: _Source, wanted: JobFilter) -> JobCount:
        where, values = _bounded(source, wanted)
        read = f"{source.table} {where}"
        conditions, more = _conditions(source, wanted)
        most = COUNTED_ROWS_MAX if conditions else COUNTED_MAX
        columns = "jobs.*" if conditions else source.key
        order = "DESC" if wanted.newest_first else "ASC"
        ordered = f"{read} ORDER BY {source.key} {order}"
        first = f"SELECT {columns} FROM {ordered} LIMIT {most}"
        found = self._one(f"SELECT count(*) FROM ({first}) AS jobs WHERE true{conditions}", *values, *more)
        is_cut = self._one(f"SELECT 1 FROM {ordered} LIMIT 1 OFFSET {most}", *values)
        return JobCount(int(found), is_cut is not None)


def _bounded(source: _Source, wanted: JobFilter) -> tuple[str, tuple[Any, ...]]:
    """The part of the source that the page is about. An id begins with the time of its submit."""
    bounds = [("<" if wanted.newest_first else ">", wanted.beyond)]
    for sign, ms in ((">=", wanted.since_ms), ("<", wanted.until_ms)):
        bounds.append((sign, None if ms is None else make_ulid(ms, bytes(_ID_BYTES))))
    given = [(sign, value) for sign, value in bounds if value is not None]
    where = source.where + "".join(f" AND {source.key} {sign} ?" for sign, _ in given)
    return where, (*source.values, *(value for _, value in given))


def _conditions(source: _Source, wanted: JobFilter) -> tuple[str, tuple[Any, ...]]:
    """What the rows of a source must be besides."""
    said, values = of_kind(None)
    if not source.is_exact:
        said, values = of_kind(wanted.kind)
        if source.stages:
            said += f" AND stage IN ({', '.join(str(int(each)) for each in source.stages)})"
        if wanted.outcome is not None:
            said += f" AND outcome = {int(wanted.outcome)}"
    if wanted.author is not None:
        said, values = f"{said} AND substr(scheduled, 13) = ?", (*values, wanted.author)
    return said, values
