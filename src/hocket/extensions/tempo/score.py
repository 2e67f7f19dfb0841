"""The score of a task: how many beats each phase gets, how long it may wait, how often it is tried, and what happens
when a wait or a phase is used up. A phrase is one pass through the phases; each retry is another phrase, of half the
beats. This module decides; a worker keeps the time and acts.
"""

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hocket.extensions.tempo.beats import BAR_LEN_DEFAULT, BPM_MAX, BPM_MIN, PHASE_NAMES, fitted
from hocket.kernel.policy import BAR_LEN_MAX, PHRASES_MAX, WAIT_BEATS_MAX, Score

if TYPE_CHECKING:
    from hocket.extensions.tempo.policy import Fields

WAITS = ("help", "io")
ACTIONS_MAX = 16
_NAMED = "(?:emit|fallback):[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_PLAIN = ("checkpoint", "defer:next-phrase")
_ACTIONS = "write emit:NAME, fallback:NAME, checkpoint or defer:next-phrase"


def read_score(text: bytes) -> Score:
    """From YAML or JSON. Raises BadField."""
    from hocket.extensions.tempo.policy import read_fields  # few jobs have a score

    return read_fields(text, _file)


def parse_score(value: object) -> Score:
    """From decoded JSON. Raises BadField."""
    from hocket.extensions.tempo.policy import fields_of

    return _file(fields_of(value))


def score_json(score: Score) -> dict[str, Any]:
    """As `parse_score` reads it, every default written out."""
    found: dict[str, Any] = {
        "bar_len": score.bar_len,
        "phases": dict(score.phases),
        "wait_budget": dict(score.wait_budget),
        "retry": {"max_phrases": score.max_phrases, "backoff": "geometric"},
        "escalation": {"on_wait_exhausted": [*score.on_wait_exhausted], "on_overrun": [*score.on_overrun]},
    }
    if score.tempo is not None:
        found["tempo"] = score.tempo
    return {"score": found} | ({"ucxl": score.ucxl} if score.ucxl else {})


def score_of(value: object) -> Score:
    """From a score, which another program may have made, from decoded JSON, with or without the name `score` around it,
    or from a file. Raises BadField.
    """
    if isinstance(value, bytes):
        return read_score(value)
    if isinstance(value, Score):
        return parse_score(score_json(value))
    return parse_score(value if isinstance(value, dict) and "score" in value else {"score": value})


def _file(fields: "Fields") -> Score:
    fields.only(("ucxl", "score"), ("score",))
    ucxl = fields.text("ucxl", _is_address, "write an address like ucxl://…") if "ucxl" in fields else ""
    score = fields.mapping("score").only(
        ("tempo", "bar_len", "phases", "wait_budget", "retry", "escalation"), ("phases",)
    )
    tempo = score.whole("tempo", BPM_MIN, BPM_MAX) if "tempo" in score else None
    bar_len = score.whole("bar_len", 1, BAR_LEN_MAX, BAR_LEN_DEFAULT)
    phases = _phases(score, bar_len)
    budget = score.mapping("wait_budget").only(WAITS)
    retry = score.mapping("retry").only(("max_phrases", "backoff"))
    retry.choice("backoff", ("geometric",), "geometric")
    escalation = score.mapping("escalation").only(("on_wait_exhausted", "on_overrun"))
    return Score(
        bar_len,
        phases,
        # A wait without a budget of its own ends with the phrase.
        {name: budget.whole(name, 0, WAIT_BEATS_MAX, sum(phases.values())) for name in WAITS},
        retry.whole("max_phrases", 1, PHRASES_MAX, 1),
        _actions(escalation, "on_wait_exhausted"),
        _actions(escalation, "on_overrun"),
        tempo,
        ucxl,
    )


def _phases(score: "Fields", bar_len: int) -> dict[str, int]:
    given = score.mapping("phases").only(PHASE_NAMES)
    phases = {name: given.whole(name, 1, bar_len) for name in PHASE_NAMES if name in given}
    if not phases:
        raise score.wrong("phases", "there is no phase", f"write beats for {', '.join(PHASE_NAMES)}")
    if (beats := sum(phases.values())) > bar_len:
        raise score.wrong("phases", f"they have {beats} beats", f"a bar has {bar_len}, as bar_len says")
    return phases


def _actions(escalation: "Fields", name: str) -> tuple[str, ...]:
    actions = escalation.texts(
        name, ACTIONS_MAX, lambda each: each in _PLAIN or bool(re.fullmatch(_NAMED, each)), _ACTIONS
    )
    if sum(each.startswith("fallback:") for each in actions) > 1:
        raise escalation.wrong(name, "there are two fallbacks", "write one")
    return actions


def _is_address(text: str) -> bool:
    from hocket.extensions.tempo.beats import BadAddress, parse_ucxl

    try:
        parse_ucxl(text)
    except BadAddress:
        return False
    return True


def fitted_score(score: Score, bar_len: int) -> Score:
    """The score in a cluster whose bars have another length. A phase that would have no beat left is left out."""
    phases = {name: beats for name, beats in fitted(score.phases, bar_len).items() if beats}
    return msgspec.structs.replace(score, bar_len=bar_len, phases=phases)


# Phrases.


class PhrasePlace(NamedTuple):
    """Where a phrase is: the phase, how many whole beats the phase has left after this one, and the phrase."""

    phase: str
    beats_left: int
    phrase_beats_left: int


def phrase_phases(score: Score, phrase: int) -> dict[str, int]:
    """The beats of each phase in this phrase, the first of which is 0: half as many each time, but at least one."""
    return {name: max(1, beats >> phrase) for name, beats in score.phases.items()}


def phrase_place(score: Score, phrase: int, beats: int) -> PhrasePlace | None:
    """Where the phrase is so many beats after its start; None when it is over."""
    phases = phrase_phases(score, phrase)
    phrase_left = sum(phases.values()) - beats - 1
    end = 0
    for name, length in phases.items():
        end += length
        if beats < end:
            return PhrasePlace(name, end - beats - 1, phrase_left)
    return None


# Waits.


class Waits(msgspec.Struct, frozen=True):
    """How long a phrase has waited so far."""

    help_ms: int = 0
    io_ms: int = 0

    def of(self, kind: str) -> int:
        return self.help_ms if kind == "help" else self.io_ms

    def after(self, kind: str, waited_ms: int) -> "Waits":
        waited_ms = max(0, waited_ms)
        if kind == "help":
            return Waits(self.help_ms + waited_ms, self.io_ms)
        return Waits(self.help_ms, self.io_ms + waited_ms)


def wait_end(score: Score, waits: Waits, kind: str, beat_ms: int, now_ms: int, phase_end_ms: int) -> int:
    """When a wait that begins now ends at the latest: when its budget is spent, or with the phase."""
    left_ms = max(0, score.wait_budget[kind] * beat_ms - waits.of(kind))
    return max(now_ms, min(now_ms + left_ms, phase_end_ms))


# Escalations.


class ScoreEvent(StrEnum):
    WAIT_EXHAUSTED = "wait exhausted"
    OVERRUN = "overrun"


class NextStep(StrEnum):
    FALLBACK = "fallback"  # end now with the fallback, as a degraded result
    DEFER = "defer"  # end this phrase, and try again in the next
    FAIL = "fail"  # end now, and say why


class Escalation(msgspec.Struct, frozen=True):
    """Send these messages, save a checkpoint if asked, and then do `step`."""

    step: NextStep
    fallback: str = ""
    emits: tuple[str, ...] = ()
    is_checkpointed: bool = False


def escalate(score: Score, event: ScoreEvent, phrase: int) -> Escalation:
    """A task whose phase has overrun is tried again while phrases are left, unless its score has only a fallback for
    that. A task that has waited too long is not: it goes on without help, or fails.
    """
    actions = score.on_wait_exhausted if event is ScoreEvent.WAIT_EXHAUSTED else score.on_overrun
    named = [each.partition(":")[::2] for each in actions]
    emits = tuple(name for action, name in named if action == "emit")
    fallback = next((name for action, name in named if action == "fallback"), "")
    wants_retry = "defer:next-phrase" in actions or (event is ScoreEvent.OVERRUN and not fallback)
    if wants_retry and phrase + 1 < score.max_phrases:
        step = NextStep.DEFER
    else:
        step = NextStep.FALLBACK if fallback else NextStep.FAIL
    return Escalation(step, fallback if step is NextStep.FALLBACK else "", emits, "checkpoint" in actions)
