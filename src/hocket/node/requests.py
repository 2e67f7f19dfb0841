"""What a program asks of a node, in the forms that jobs have, and the answers that it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hocket.errors import Conflict, Unreachable, Usage
from hocket.kernel.ids import parse_ulid
from hocket.kernel.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hocket.kernel.roster import Job
    from hocket.work.handlers import JobType
    from hocket.work.jobs import Draft
    from hocket.work.pending_decisions import Decision

    Pairs = Iterable[tuple[JobType | str, dict[str, Any]]]
    Step = tuple[JobType | str, dict[str, Any]] | JobType | str


def drafts_of(pairs: Pairs) -> tuple[list[JobType], list[Draft]]:
    from hocket.work.handlers import named_kind

    given = [(named_kind(job), payload) for job, payload in pairs]
    return [job for job, _ in given], [job.draft(payload) for job, payload in given]


def pairs_of(steps: Iterable[Step]) -> Pairs:
    return [step if isinstance(step, tuple) else (step, {}) for step in steps]


def id_of(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not a job id: {error}") from None


def accepted(decision: Decision) -> Job:
    if isinstance(decision, Reason):
        raise Conflict(f"not accepted: {decision.sentence}")
    return decision


def kept(error: Unreachable) -> Unreachable:
    """The error for a request that could not be sent."""
    from hocket.mesh.waiting import DELIVERS

    return Unreachable(f"{error}; the request waits here, and {DELIVERS}")
