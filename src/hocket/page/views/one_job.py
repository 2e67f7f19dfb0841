"""One job: its story from submit to proof, why it waits, and what it left behind."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hocket.api import claims
from hocket.api.jobs import JobBrief, JobDetails, OpLine, briefs, show
from hocket.families.jobs.view import find
from hocket.kernel.clock import parse_hlc
from hocket.kernel.ids import parse_ulid
from hocket.kernel.vocabulary import JOB, Subject
from hocket.node.log_events import LogEvent, events_of
from hocket.page.views import PageView, ViewCall

# What each event is called in a story.
SENTENCES = {
    "job.submitted": "submitted",
    "job.claimed": "claimed",
    "job.renewed": "lease renewed",
    "job.succeeded": "succeeded",
    "job.returned": "returned to the queue",
    "job.lost": "lease ended; returned to the queue",
    "job.failed": "failed",
    "job.try_failed": "a try failed; it will be tried again",
    "job.cancelled": "cancelled",
    "job.retried": "retried",
    "job.progressed": "progress",
    "job.postponed": "postponed",
    "job.saved": "checkpoint saved",
    "artifact.created": "artifact stored",
    "artifact.evicted": "artifact evicted",
}
_FOLDED = ("job.renewed", "job.progressed", "job.saved")
# A story is cut in the middle beyond so many lines.
LINES_MAX = 400


class StoryLine(NamedTuple):
    """What happened, how often in a row, and the ops that say so, the first and the last. `why_not` is why an op does
    not count.
    """

    event: str
    sentence: str
    time_ms: int
    until_ms: int
    times: int
    author: str
    agent: str | None
    fence: int | None
    detail: str
    seq: int
    op: str
    why_not: str | None


def job(call: ViewCall, job: str) -> Mapping[str, Any]:
    details: JobDetails = show.function(call.service, job)
    with call.service.read() as session:
        rows = session.ops_about(Subject(JOB, parse_ulid(details.job_id)))
        events = {
            each.event.seq: each.event for each in events_of(session, rows, call.service.runtime.log.rules.is_strict)
        }
        needed = [find(session, each) for each in details.after]
        before: Sequence[JobBrief] = briefs(session, needed)
    lines = [_line(each, events.get(each.seq)) for each in details.ops]
    story = [*_folded(lines)]
    return {
        "title": f"Job {details.job_id[-6:]}",
        "job": details,
        "story": story if len(story) <= LINES_MAX else [*story[: LINES_MAX // 2], *story[-LINES_MAX // 2 :]],
        "left_out": max(0, len(story) - LINES_MAX),
        "before": before,
        "ranking": claims.explain.function(call.service, job) if details.outcome is None else None,
        "names": call.service.names(),
        "may_change": call.may("Job", "Schedule", details.kind),
    }


def _line(op: OpLine, event: LogEvent | None) -> StoryLine:
    name = op.type if event is None else event.type
    sentence = SENTENCES.get(name, op.type) if op.counts else op.type
    time_ms = _wall(op) if event is None else event.time_ms
    agent, fence = (None, None) if event is None else (event.agent, event.fence)
    return StoryLine(
        *(name if op.counts else "refused", sentence, time_ms, time_ms, 1, op.author, agent, fence),
        *(op.detail, op.seq, op.id, None if op.counts else op.reason),
    )


def _wall(op: OpLine) -> int:
    return parse_hlc(op.hlc, 0).wall


def _folded(lines: Sequence[StoryLine]) -> Iterator[StoryLine]:
    """Renewals, notes and checkpoints of one holder that follow each other are one line."""
    last: StoryLine | None = None
    for each in lines:
        same = last is not None and each.event in _FOLDED and (each.event, each.fence) == (last.event, last.fence)
        if last is not None and same:
            last = each._replace(time_ms=last.time_ms, times=last.times + 1)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


JOB_VIEW = PageView("/jobs/{job}", "job.html", job)
