"""One job: its story from submit to proof, why it waits, what it sends while it runs, and what it left behind."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from hocket.api import Service, artifacts
from hocket.api.job_operations.job_answers import asks_caller
from hocket.api.jobs import JobBrief, JobDetails, OpLine, briefs, found_job, is_rejection, show
from hocket.api.operation import extension_operations
from hocket.errors import HocketError
from hocket.families.jobs.parts import Part, joined
from hocket.families.jobs.view import find
from hocket.kernel.clock import parse_hlc
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import EVENTS, JOB, NAMES, AcceptWork, Subject, number_of
from hocket.log.evidence import SignatureState, signature_states
from hocket.node.log_events import LogEvent, events_of
from hocket.page.live_jobs import LiveView
from hocket.page.rendering import count
from hocket.page.views import PageView, ViewCall
from hocket.store import OpRow, Session

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
    "job.approved": "approved",
    "job.refused": "approval refused",
    "job.saved": "checkpoint saved",
    "artifact.created": "artifact stored",
    "artifact.evicted": "artifact evicted",
}
# The events of ops that do not count, by the names of their types.
_EVENTS = {name: EVENTS[number] for number, name in NAMES.items()}
_ACCEPT = number_of(AcceptWork)
_FOLDED = ("job.renewed", "job.progressed", "job.saved")
# A story is cut in the middle beyond so many lines, and so many ops are verified for one look at it.
LINES_MAX = 400
VERIFIED_MAX = 1_000
# Jobs that this one waits for, or that wait for it: so many are shown of each.
NEIGHBOURS_MAX = 50
ARTIFACTS_MAX = 200
# The artifact with the proof of a command.
_PROOF = "hocket.proof"
_NO_LIVE = LiveView((), 0, ())
_SIGNED = {
    SignatureState.VERIFIED: "the signature of the op's node was verified here now",
    SignatureState.OWN: "this node wrote and marked the op; it signs the end of the log, and the op when it leaves",
    SignatureState.LEFT_OUT: "not kept: another node cut the op for this one, and its signature with it",
    SignatureState.UNKNOWN: "no delegation on this log names the key of the op's node",
    SignatureState.BAD: "the signature does not fit the op and its node: run `hocket log verify`",
    None: "not verified now, because there are too many ops",
}


class StoryLine(NamedTuple):
    """What happened, how often in a row, and the op that says so, the last if there are several. An offer that the
    coordinator has accepted is one line with the acceptance, and `author` is the node that made it. Any other offer
    `is_offer`; `why_not` is why any other op does not count. `signature` is the worst of its ops; None if they were too
    many to verify.
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
    is_offer: bool
    why_not: str | None
    signature: SignatureState | None

    @property
    def signed(self) -> str:
        return _SIGNED[self.signature]


class Neighbours(NamedTuple):
    """Jobs on one side of this one. `left_out` more are not shown, and `hidden` are not for this visitor."""

    jobs: Sequence[JobBrief]
    left_out: int
    hidden: int


def job(call: ViewCall, job: str) -> Mapping[str, Any]:
    service = call.service
    details: JobDetails = show.function(service, job)
    id, log = parse_ulid(details.job_id), service.runtime.log
    with service.read() as session:
        entry = find(session, details.job_id)
        rows = session.ops_about(Subject(JOB, id))
        events = {each.event.seq: each.event for each in events_of(session, rows, log.rules.is_strict)}
        signatures = signature_states(log, session, _verified(rows))
        before = _neighbours(service, session, details.after)
        behind = _neighbours(service, session, [ulid_text(each) for each in sorted(session.dependents(id))])
    story = [*_folded(_lines(details.ops, _acceptances(rows), events, signatures))]
    may_read_content = service.may("Artifact", "Read", details.kind)
    live = call.live_jobs.look(service, entry.job) if may_read_content else _NO_LIVE
    made = artifacts.page.function(service, details.job_id, ARTIFACTS_MAX).items if may_read_content else []
    cost = _cost(service, details.job_id) if may_read_content else None
    return {
        "title": f"Job {details.job_id[-6:]}",
        "job": details,
        "story": story if len(story) <= LINES_MAX else [*story[: LINES_MAX // 2], *story[-LINES_MAX // 2 :]],
        "left_out": max(0, len(story) - LINES_MAX),
        "before": before,
        "behind": behind,
        "artifacts": made,
        "sent_parts": _parts_text(live.parts),
        "parts_left_out": live.left_out,
        "output": [(each, each.data.decode(errors="replace")) for each in live.output if each.data],
        "has_proof": any(each.type == _PROOF and each.content != "evicted" for each in made),
        "cost": cost,
        "used": [] if cost is None else [*_amounts(cost.usage)],
        "names": service.names(),
        "may_change": call.may("Job", "Schedule", details.kind),
        "may_approve": asks_caller(service, details),
        "changes": f"/changes?job={quote(details.job_id)}",
    }


def watched_job(service: Service, job: str) -> bytes | None:
    """The job that an open page hears of, if what it sends may be seen there. Raises NotFound and NotAuthorised."""
    with service.read() as session:
        found = found_job(service, session, job, "Read")
    return found.id if service.may("Artifact", "Read", found.kind) else None


def _verified(rows: Sequence[OpRow]) -> Sequence[OpRow]:
    return rows if len(rows) <= VERIFIED_MAX else [*rows[: VERIFIED_MAX // 2], *rows[-VERIFIED_MAX // 2 :]]


def _neighbours(service: Service, session: Session, ids: Sequence[str]) -> Neighbours:
    entries = session.jobs_by_id([parse_ulid(each) for each in ids[:NEIGHBOURS_MAX]])
    readable = [each for each in entries if service.may("Job", "Read", each.job.kind)]
    hidden = len(ids[:NEIGHBOURS_MAX]) - len(readable)
    return Neighbours(briefs(session, readable), max(0, len(ids) - NEIGHBOURS_MAX), hidden)


def _parts_text(parts: Sequence[Part]) -> Any:
    """The parts as one text if they are texts; else a list."""
    value = joined([each.value for each in parts])
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _cost(service: Service, job: str) -> Any:
    """None without the extension that counts costs, without a rate card, or without a run."""
    if (operation := extension_operations().get("job_cost")) is not None:
        with suppress(HocketError):
            row = operation.function(service, job)
            return row if row.runs else None
    return None


def _amounts(usage: Any) -> Iterator[tuple[str, str]]:
    """What was used, by name, without what was not."""
    for name, value in msgspec.to_builtins(usage).items():
        for part, amount in (value if isinstance(value, dict) else {"": value}).items():
            if amount:
                yield f"{name} {part}".strip(), count(amount) if isinstance(amount, int) else f"{amount:.3g}"


def _acceptances(rows: Sequence[OpRow]) -> Mapping[str, str]:
    """The ids of the offers that the coordinator has accepted, by those of its acceptances."""
    found = ((row, decode(row.body).payload) for row in rows if row.variant == _ACCEPT and not row.reason)
    return {ulid_text(row.id[:16]): ulid_text(op.offer[:16]) for row, op in found if isinstance(op, AcceptWork)}


def _lines(
    ops: Sequence[OpLine],
    acceptances: Mapping[str, str],
    events: Mapping[int, LogEvent],
    signatures: Mapping[int, SignatureState],
) -> Iterator[StoryLine]:
    accepted = {*acceptances.values()}
    signed = {op.id: signatures.get(op.seq) for op in ops}
    for op in ops:
        if op.id not in accepted:
            line = _line(op, events.get(op.seq), signed[op.id])
            if (offer := acceptances.get(op.id)) is None:
                yield line
            else:
                worst = max((line.signature, signed.get(offer)), key=_badness)
                yield line._replace(signature=worst, op=f"{op.id}, which accepts {offer}")


def _line(op: OpLine, event: LogEvent | None, signature: SignatureState | None) -> StoryLine:
    """The line of an op. Of one that counts there is an event."""
    name = _EVENTS.get(op.type, op.type) if event is None else event.type
    time_ms = parse_hlc(op.hlc, 0).wall
    reason = op.reason or ""
    is_offer = not op.counts and not is_rejection(reason)
    if event is None:
        author, agent, fence, detail = op.author, None, None, reason if is_offer else op.detail
    else:
        author, agent, fence, detail = event.author, event.agent, event.fence, op.detail
        if author != op.author:  # the coordinator has accepted what the node offered
            detail = event.detail
    return StoryLine(
        *(name if op.counts else "refused", SENTENCES.get(name, op.type), time_ms, time_ms, 1, author, agent, fence),
        *(detail, op.seq, op.id, is_offer, None if op.counts or is_offer else reason, signature),
    )


def _folded(lines: Iterable[StoryLine]) -> Iterator[StoryLine]:
    """Renewals, notes and checkpoints of one holder that follow each other are one line."""
    last: StoryLine | None = None
    for each in lines:
        same = last is not None and each.event in _FOLDED and (each.event, each.fence) == (last.event, last.fence)
        if last is not None and same:
            worst = max((last.signature, each.signature), key=_badness)
            last = each._replace(time_ms=last.time_ms, times=last.times + 1, signature=worst)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _badness(state: SignatureState | None) -> int:
    return list(SignatureState).index(state) if state is not None else len(SignatureState) - 1


JOB_VIEW = PageView("/jobs/{job}", "job.html", job)
