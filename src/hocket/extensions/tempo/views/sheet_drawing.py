"""How a score is drawn: a drawing for each phrase, with the beats of the bar from left to right and a lane for each
phase and each wait. And the windows of reverb as a timeline. Everything in a drawing is an attribute or a text, as the
policy of the page allows no style.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from hocket.extensions.tempo.beats import REST, spans
from hocket.extensions.tempo.messages import BarReport, ClaimState
from hocket.extensions.tempo.reports import alarms
from hocket.extensions.tempo.score import WAITS, phrase_phases
from hocket.kernel.policy import Score
from hocket.kernel.texts import counted

# In the drawing's own units, which are pixels.
_LABEL, _BEAT, _LANE, _HEAD, _GAP = 52, 32, 30, 20, 3
_TIMELINE_WIDTH, _TIMELINE_HEIGHT, _TIMELINE_FOOT = 960, 110, 16
# From the bottom of a column to its top; each has a look of its own.
STACK = (
    ClaimState.DONE,
    ClaimState.FAILED,
    ClaimState.WAITING,
    ClaimState.PLANNING,
    ClaimState.EXECUTING,
    ClaimState.REVIEW,
)
LOOKS = {ClaimState.DONE: "done", ClaimState.FAILED: "failed", ClaimState.WAITING: "waiting"}
# Filled with numbers and words of ours; only a sentence can have a text of another.
_RECT = '<rect class="{}" x="{:g}" y="{:g}" width="{:g}" height="{:g}"/>'
_LINE = '<line class="{}" x1="{:g}" y1="{:g}" x2="{:g}" y2="{:g}"/>'
_TEXT = '<text class="{}" x="{:g}" y="{:g}">{}</text>'
_MARK = '<path class="alarm" d="M{:g} {:g}h{:g}l-{:g} -10z"/>'


class Cue(NamedTuple):
    """`first` and `beats` are beats of the bar, counted from 0. A wait has no place of its own."""

    name: str
    first: int
    beats: int
    is_wait: bool

    @property
    def sentence(self) -> str:
        if self.is_wait:
            return f"waits for {self.name}: {counted(self.beats, 'beat')} at most, anywhere in the phrase"
        if self.beats == 1:
            return f"{self.name}: beat {self.first + 1}"
        return f"{self.name}: beats {self.first + 1} to {self.first + self.beats}"


def cues_of(score: Score, phrase: int) -> list[Cue]:
    phases = phrase_phases(score, phrase)
    found = [
        Cue(each.name, each.first, each.end - each.first, False)
        for each in spans(phases, score.bar_len)
        if each.name != REST
    ]
    return found + [Cue(name, 0, score.wait_budget[name], True) for name in WAITS]


def drawn_phrase(score: Score, phrase: int) -> Markup:
    cues = cues_of(score, phrase)
    beats = sum(each.beats for each in cues if not each.is_wait)
    width, height = _LABEL + _BEAT * score.bar_len + 1, _HEAD + _LANE * len(cues) + 1
    parts = [_RECT.format("rest", _LABEL + _BEAT * beats, _HEAD, _BEAT * (score.bar_len - beats), height - _HEAD - 1)]
    parts += [
        _LINE.format("bar" if each in (0, score.bar_len) else "beat", x, _HEAD, x, height - 1)
        for each in range(score.bar_len + 1)
        for x in (_LABEL + _BEAT * each,)
    ]
    parts += [
        _TEXT.format("beat-number", _LABEL + _BEAT * each + _BEAT // 2, _HEAD - 6, each + 1)
        for each in range(score.bar_len)
    ]
    for lane, cue in enumerate(cues):
        y = _HEAD + _LANE * lane
        parts.append(_TEXT.format("lane", 0, y + _LANE // 2 + 4, escape(cue.name)))
        # A wait can be longer than the phrase, but cannot last longer.
        shown = min(cue.beats, beats) if cue.is_wait else cue.beats
        parts.append(_drawn_cue(cue, _LABEL + _BEAT * cue.first, y, _BEAT * shown))
        after = cues[lane + 1] if lane + 1 < len(cues) else None
        if after is not None and not cue.is_wait and not after.is_wait:
            x = _LABEL + _BEAT * after.first
            parts.append(_LINE.format("then", x, y + _LANE - _GAP, x, y + _LANE + _GAP))
    sentence = "; ".join(each.sentence for each in cues)
    label = escape(f"Phrase {phrase + 1} of {score.max_phrases}: {sentence}")
    return Markup(
        f'<svg class="phrase" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="group"'
        f' aria-label="{label}" data-beat="{_BEAT}">{"".join(parts)}</svg>'
    )


def _drawn_cue(cue: Cue, x: int, y: int, width: int) -> str:
    look = "wait" if cue.is_wait else "phase"
    drawn = _RECT.format(f"{look} body", x + _GAP - 2, y + _GAP, max(6, width - 2 * _GAP + 3), _LANE - 2 * _GAP)
    label = "" if not cue.beats else _TEXT.format(look, x + max(6, width) // 2, y + _LANE // 2 + 4, cue.beats)
    sentence, name = escape(cue.sentence), escape(cue.name)
    return f'<g class="cue" role="img" aria-label="{sentence}" data-cue="{name}">{drawn}{label}</g>'


def drawn_windows(reports: Sequence[BarReport], sentence: str) -> Markup:
    """A column for each window, the oldest first: its tasks by their state, a triangle if it raises an alarm, and the
    tempo as a line.
    """
    step = _TIMELINE_WIDTH / max(12, len(reports))
    half = min(step * 0.3, 8.0)
    top, floor = 14, _TIMELINE_HEIGHT - _TIMELINE_FOOT
    most = max((each.tasks for each in reports), default=0) or 1
    fastest = max((each.tempo_bpm for each in reports), default=1)
    columns, tempo = [], []
    for place, each in enumerate(reports):
        x, y = place * step, float(floor)
        drawn = f"<title>{escape(window_sentence(each))}</title>"
        for state, tasks in stacked(each).items():
            height = (floor - top) * tasks / most
            y -= height
            drawn += _RECT.format(LOOKS.get(state, "open"), x + step * 0.1, y, step * 0.8, height)
        if alarms(each):
            drawn += _MARK.format(x + step / 2 - half, max(12.0, y - 2), 2 * half, half)
        columns.append(f"<g>{drawn}</g>")
        level = floor - (floor - top) * each.tempo_bpm / fastest
        tempo += [f"{x:.1f},{level:.1f}", f"{x + step:.1f},{level:.1f}"]
    return Markup(
        f'<svg class="windows" viewBox="0 0 {_TIMELINE_WIDTH} {_TIMELINE_HEIGHT}" role="img"'
        f' aria-label="{escape(sentence)}" preserveAspectRatio="none">'
        f"{_LINE.format('floor', 0, floor, _TIMELINE_WIDTH, floor)}{''.join(columns)}"
        f'<polyline class="tempo" points="{" ".join(tempo)}"/></svg>'
    )


def stacked(report: BarReport) -> Mapping[ClaimState, int]:
    return {state: tasks for state in STACK if (tasks := report.states.get(state, 0))}


def window_sentence(report: BarReport) -> str:
    states = ", ".join(f"{tasks} {state}" for state, tasks in stacked(report).items()) or "no tasks"
    raised = "".join(f"; alarm {each}" for each in alarms(report))
    return f"{report.window}: {states}; {report.tempo_bpm} beats a minute{raised}"
