"""Which jobs a list, a count or a change of many is about, as one value. The store finds jobs by what is in their rows;
their tags, their errors and the text of their ids are looked at here.
"""

from collections.abc import Callable
from typing import NamedTuple

from hocket.errors import Usage
from hocket.families.jobs.index import JobArgument, indexed_arguments
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.jobs.view import JobState, error_of
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.policy import lacking
from hocket.kernel.vocabulary import ScheduleJob
from hocket.store import JobEntry, JobFilter, Session


class JobSelection(NamedTuple):
    """Jobs in a state, of an outcome, of a kind or of all kinds below one that ends with a dot; submitted by a node,
    not before one time and before another; with a text in their ids, with a tag, with a text in their last error,
    in capitals or not, and with an argument by which they are found.
    """

    state: JobState | None = None
    outcome: Outcome | None = None
    kind: str | None = None
    submitter: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    id_text: str | None = None
    tag: str | None = None
    error: str | None = None
    argument: JobArgument | None = None

    @property
    def filter(self) -> JobFilter:
        """What the rows of the jobs have. Raises Usage if no job has it."""
        named = JobFilter() if self.state is None else self.state.filter
        if None not in (named.outcome, self.outcome) and self.outcome is not named.outcome:
            raise Usage(f"no job is {self.state} with the outcome {self.outcome and self.outcome.name.lower()}")
        return named._replace(
            outcome=named.outcome if self.outcome is None else self.outcome,
            kind=self.kind,
            author=None if self.submitter is None else self.submitter.to_bytes(8, "big"),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            argument=self.argument,
        )

    def passes(self, session: Session) -> Callable[[JobEntry], bool] | None:
        """What else is to be looked at; None if nothing is."""
        id_text, tag, error = (None if each is None else each.upper() for each in (self.id_text, self.tag, self.error))
        # A store that nodes share can have any rows; what a payload has is in its op.
        argument = None if session.row_check is None else self.argument
        if (id_text, tag, error, argument) == (None, None, None, None):
            return None

        def check(entry: JobEntry) -> bool:
            job = entry.job
            if id_text is not None and id_text not in ulid_text(job.id):
                return False
            if argument is not None and argument not in _arguments(session, job):
                return False
            if self.tag is not None and lacking([self.tag], job.policy.tags):
                return False
            return error is None or error in (error_of(session, job) or "").upper()

        return check


def _arguments(session: Session, job: Job) -> list[JobArgument]:
    row = session.op(job.schedule_op)
    payload = None if row is None else decode(row.body).payload
    return indexed_arguments(payload.payload, job.policy.index) if isinstance(payload, ScheduleJob) else []
