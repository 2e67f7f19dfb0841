"""Jobs that come after other jobs: a chain in one transaction, and the results that a handler gets from the jobs before
its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from hocket.errors import Failed, Usage
from hocket.families.jobs import requests as jobs
from hocket.families.jobs import view
from hocket.families.jobs.requests import Draft, Submitted
from hocket.families.jobs.rules import Job
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import check_policy, covers
from hocket.log import Transaction
from hocket.store import Session


def after(draft: Draft, before: Iterable[bytes]) -> Draft:
    """A job that starts only when these have succeeded as well."""
    named = dict.fromkeys((*draft.policy.after, *map(ulid_text, before)))
    try:
        policy = check_policy(msgspec.structs.replace(draft.policy, after=tuple(named)))
    except ValueError as error:
        raise Usage(f"bad after: {error}") from None
    return draft._replace(policy=policy)


def submit(tx: Transaction, drafts: Sequence[Draft]) -> list[Submitted]:
    """Submits all of them or none; each comes after the one before it."""
    made: list[Submitted] = []
    for draft in drafts:
        made += jobs.submit(tx, [after(draft, [each.job_id for each in made[-1:]])])
    return made


def results(session: Session, job: Job) -> list[Any]:
    """The results of the jobs that this one comes after, in the order in which it names them."""
    return [view.result(session, each) for each in _before(session, job)]


def results_of(session: Session, job: Job, kind: str) -> list[tuple[str, Any]]:
    """The ids and results of those jobs of a kind that this one comes after."""
    return [
        (ulid_text(each.id), view.result(session, each)) for each in _before(session, job) if covers(kind, each.kind)
    ]


def _before(session: Session, job: Job) -> Iterator[Job]:
    for job_id in job.policy.dependencies():
        entry = session.job(job_id)
        if entry is None:
            raise Failed(f"job {ulid_text(job_id)}, before this one, is not on this log")
        yield entry.job
