"""The beats of one run: where it is in its score, and how long it may still wait. A phrase begins with the first beat
after its handler has started, and keeps the tempo that is in force then, so its end does not move. A short job without
a score never asks which beat it is, so that a tempo costs it next to nothing.
"""

import math
import threading
from collections.abc import Callable
from functools import cached_property

import msgspec

from hocket.extensions.cost.budgets import capped_score, hard_end_ms
from hocket.extensions.tempo.beat_source import BeatNow, BeatSource, LocalBeats
from hocket.extensions.tempo.beats.messages import BEATS_MAX, WAITS_MAX
from hocket.extensions.tempo.beats.policy import make_policy
from hocket.extensions.tempo.beats.score import (
    WAITS,
    PhrasePlace,
    Waits,
    fitted_score,
    phrase_phases,
    phrase_place,
    wait_end,
)
from hocket.extensions.tempo.beats.tempo import BPM_DEFAULT, Beat, Tempo, next_beat
from hocket.families.jobs.rules import Job
from hocket.kernel.policy import Score

# The cluster of a job whose worker has no tempo: its score's own.
ALONE = "local"


def keeper_alone(job: Job, clock_ms: Callable[[], int]) -> "ScoreKeeper | None":
    """For a worker without a tempo: a job with a score is kept to the tempo that its score suggests, and a hard
    end to the usual one.
    """
    score, budget = capped_score(job.policy.score, job.policy.budget), job.policy.budget
    if score is None:
        if budget is None or budget.hard_end is None:
            return None
        return ScoreKeeper(LocalBeats(make_policy(ALONE), clock_ms), job)
    policy = make_policy(ALONE, score.tempo or BPM_DEFAULT, score.bar_len)
    return ScoreKeeper(LocalBeats(policy, clock_ms), job)


class ScoreKeeper:
    """Any thread may use it. `changed` is called when the run begins, and when it begins or ends a wait."""

    def __init__(self, beats: BeatSource, job: Job, changed: Callable[[], None] = lambda: None) -> None:
        self._beats, self._job, self._changed = beats, job, changed
        self.has_begun = False
        self.progress = 0.0
        """The part of its work that the handler has reported as done."""
        self._threads: list[str] = []
        self.score: Score | None = None
        if (score := capped_score(job.policy.score, job.policy.budget)) is not None:
            self.score = fitted_score(score, beats.now().tempo.bar_len)
        self.phrase = job.failures
        self._bar_seen_ms = 0
        self._waits = Waits()
        self._began_ms: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    @cached_property
    def _begun(self) -> BeatNow:
        """When the phrase began. A job without a score has no phrase: this is when it was first asked for."""
        return self._beats.now()

    @property
    def tempo(self) -> Tempo:
        return self._begun.tempo

    @property
    def beat(self) -> Beat:
        return self._beats.now().beat

    @property
    def beat_ms(self) -> int:
        return self.tempo.beat_ms

    @property
    def now_ms(self) -> int:
        return self._beats.now().at_ms

    @property
    def is_waiting(self) -> bool:
        return bool(self._began_ms)

    @property
    def project(self) -> str:
        """The first part of the job's kind."""
        return self._job.kind.partition(".")[0]

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The threads in which help was asked for, and what else the run waits for."""
        kinds = {kind for kind, _ in self._began_ms} - ({"help"} if self._threads else set())
        return (*self._threads[-WAITS_MAX + len(WAITS) :], *sorted(kinds)) if self.is_waiting else ()

    def ask(self, thread_id: str) -> None:
        self._threads.append(thread_id)
        self._changed()

    def begin(self) -> float:
        if self.score is not None:
            self._begun = self._beats.now()
        self.has_begun = True
        self._changed()
        if self.score is None:
            return math.inf
        return (self._start_ms + self._phrase_beats * self.beat_ms - self._begun.at_ms) / 1000

    def left_s(self) -> float:
        if (budget := self._job.policy.budget) is None:
            return math.inf
        return max(0.0, (hard_end_ms(self.tempo, budget, self._job.scheduled.wall) - self.now_ms) / 1000)

    @property
    def place(self) -> PhrasePlace:
        return self.place_at(self._beats.now())

    def place_at(self, now: BeatNow) -> PhrasePlace:
        if self.score is None:
            phase = now.phase
            left = phase.end - now.beat.index
            return PhrasePlace(phase.name, left, left)
        beats = self._beats_at(now.at_ms)
        over = max(self._phrase_beats - beats - 1, -BEATS_MAX)
        last = PhrasePlace(next(reversed(self.score.phases)), over, over)
        return phrase_place(self.score, self.phrase, beats) or last

    def begin_wait(self, kind: str) -> float:
        assert self.score is not None
        with self._lock:
            now_ms = self._beats.now().at_ms
            end_ms = wait_end(self.score, self._waits, kind, self.beat_ms, now_ms, self._phase_end(now_ms))
            self._began_ms.append((kind, now_ms))
        self._changed()
        return (end_ms - now_ms) / 1000

    def end_wait(self, kind: str) -> int:
        with self._lock:
            began = next(each for each in self._began_ms if each[0] == kind)
            self._began_ms.remove(began)
            self._waits = self._waits.after(kind, self._beats.now().at_ms - began[1])
            if kind == "help":
                self._threads = []
        self._changed()
        return self._waits.of(kind)

    def report(self, note: bytes) -> None:
        value = msgspec.json.decode(note)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            self.progress = float(value)

    def has_new_bar(self) -> bool:
        seen_ms = max(self._begun.beat.window_ms, self._bar_seen_ms)
        self._bar_seen_ms = self.beat.window_ms
        return self._bar_seen_ms > seen_ms

    @property
    def _start_ms(self) -> int:
        return next_beat(self.tempo, self._begun.at_ms)

    @property
    def _phrase_beats(self) -> int:
        assert self.score is not None
        return sum(phrase_phases(self.score, self.phrase).values())

    def _beats_at(self, at_ms: int) -> int:
        return max(0, (at_ms - self._start_ms) // self.beat_ms)

    def _phase_end(self, at_ms: int) -> int:
        assert self.score is not None
        beats = self._beats_at(at_ms)
        place = phrase_place(self.score, self.phrase, beats)
        return at_ms if place is None else self._start_ms + (beats + 1 + place.beats_left) * self.beat_ms
