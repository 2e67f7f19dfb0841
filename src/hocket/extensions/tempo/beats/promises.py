"""When a promise of help is due, when its thread closes, and how it ended."""

from typing import NamedTuple

from hocket.extensions.tempo.beats.messages import HelpPromise, PromiseOutcome
from hocket.extensions.tempo.beats.tempo import Tempo, next_downbeat


class PromiseTimes(NamedTuple):
    due_ms: int
    closes_ms: int


def promise_times(promise: HelpPromise, made_ms: int, beat_ms: int) -> PromiseTimes:
    return PromiseTimes(
        made_ms + promise.promise_beats * beat_ms,
        made_ms + promise.fail_after_beats * beat_ms,
    )


def promise_outcome(times: PromiseTimes, answered_ms: int | None, now_ms: int) -> PromiseOutcome | None:
    """None while the thread is open and nothing has come. An answer after the thread has closed does not count."""
    if answered_ms is not None and answered_ms <= times.closes_ms:
        return PromiseOutcome.KEPT if answered_ms <= times.due_ms else PromiseOutcome.LATE
    return PromiseOutcome.BROKEN if now_ms > times.closes_ms else None


def reply_due(tempo: Tempo, asked_ms: int) -> int:
    """Until when a request for help must get a promise: the end of the bar, but at least one beat."""
    return next_downbeat(tempo, asked_ms + tempo.beat_ms)
