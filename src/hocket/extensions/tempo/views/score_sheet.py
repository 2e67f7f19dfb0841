"""The sheet of a score: its text, checked as `hocket tempo score check` does, and drawn as bars and beats. The page
keeps no score: the text comes with each request and goes back with the answer, changed by the edit that the request
names.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from hocket.api.jobs import found_job
from hocket.errors import NotFound, Usage
from hocket.extensions.tempo.policy import FILE_BYTES_MAX, BadField
from hocket.extensions.tempo.policy_file import home_timeline, readable_policy
from hocket.extensions.tempo.score import WAITS, fitted_score, phrase_phases, read_score, score_json
from hocket.extensions.tempo.views.score_edits import (
    FIRST,
    BadEdit,
    changed,
    checked,
    field_values,
    score_text,
    with_fields,
)
from hocket.extensions.tempo.views.sheet_drawing import Cue, cues_of, drawn_phrase
from hocket.extensions.tempo.views.tempo_view import PACKAGE
from hocket.kernel.decoding import decode_json
from hocket.kernel.policy import Score
from hocket.kernel.texts import counted, span
from hocket.page.views import Action, PageFile, PageView, ViewCall

TEXT, EDIT, FIELD, BEFORE = "score", "edit", "field ", "was "
DOWNLOAD, APPLY, CHECK = "download", "apply", "check"
# Phrases that are drawn.
DRAWN_MAX = 4
_EVENTS = {"on_wait_exhausted": "When a wait is spent", "on_overrun": "When the phrase runs over"}


class PhraseShown(NamedTuple):
    title: str
    drawing: Any


class TextLine(NamedTuple):
    number: int
    text: str
    is_wrong: bool


def sheet(call: ViewCall) -> Mapping[str, Any] | PageFile:
    text, said, problem = _edited(call)
    if call.form.get("do") == DOWNLOAD:
        return PageFile("score.yaml", "application/yaml; charset=utf-8", text.encode())
    found = checked(text)
    shown: dict[str, Any] = {
        "title": "Score sheet",
        "text": text,
        "said": said,
        "problem": problem,
        "wrong": None,
        "score": None,
        "may_submit": call.program.may_some("Job", "Schedule"),
    }
    if isinstance(found, BadField):
        return shown | {"wrong": found, "lines": _lines_around(text, found.line)}
    cues = cues_of(found, 0)
    return shown | {
        "score": found,
        "verdict": _verdict(found),
        "phrases": [_phrase(found, each) for each in range(min(found.max_phrases, DRAWN_MAX))],
        "more_phrases": max(0, found.max_phrases - DRAWN_MAX),
        "in_cluster": _in_cluster(call, found),
        "cues": cues,
        "missing": [name for name in ("plan", "work", "review") if name not in found.phases],
        "fields": field_values(found),
        "events": _events(found),
        "said": said or _told(call.form.get(EDIT, ""), cues),
    }


def _edited(call: ViewCall) -> tuple[str, str, str]:
    """The text, what was done with it, and why an edit could not be done."""
    if not call.form:
        return _first(call), "", ""
    text = call.form.get(TEXT, "").removeprefix("\ufeff")
    if len(text.encode()) > FILE_BYTES_MAX:
        raise Usage(f"a score has at most {FILE_BYTES_MAX} bytes")
    try:
        if call.form.get(EDIT):
            return changed(text, call.form[EDIT]), "", ""
        if call.form.get("do") == APPLY:
            return with_fields(text, _given(call.form)), "The text has the fields now.", ""
    except BadEdit as error:
        return text, "", str(error)
    except BadField:
        return text, "", "mend the text first"
    return text, "", ""


def _given(form: Mapping[str, str]) -> dict[str, str]:
    """The fields whose values are no longer those that were shown."""
    given = {name.removeprefix(FIELD): value for name, value in form.items() if name.startswith(FIELD)}
    return {name: value for name, value in given.items() if value.strip() != form.get(BEFORE + name)}


def _first(call: ViewCall) -> str:
    """The score of the job that the address names, or one to begin with."""
    if (job := call.query.get("job")) is None:
        return FIRST
    with call.service.read() as session:
        found = found_job(call.service, session, job, "Read")
    if found.policy.score is None:
        raise NotFound(f"job {job} has no score")
    return score_text(found.policy.score)


def _verdict(score: Score) -> str:
    beats = sum(score.phases.values())
    waits = " and ".join(f"{score.wait_budget[name]} for {name}" for name in WAITS)
    tries = counted(score.max_phrases, "phrase")
    return f"good: {beats} of {counted(score.bar_len, 'beat')}, {tries}, waits of at most {waits}"


def _phrase(score: Score, phrase: int) -> PhraseShown:
    beats = sum(phrase_phases(score, phrase).values())
    length = "" if score.tempo is None else f", {span(beats * (60_000 // score.tempo))}"
    return PhraseShown(f"Phrase {phrase + 1}: {counted(beats, 'beat')}{length}", drawn_phrase(score, phrase))


def _in_cluster(call: ViewCall, score: Score) -> str:
    home = call.service.runtime.home
    if (policy := readable_policy(home)) is None:
        return "This node has no tempo: a worker keeps to the tempo that the score suggests."
    tempo = home_timeline(home, policy).at(call.service.runtime.log.physical())
    fitted = fitted_score(score, tempo.bar_len)
    beats = ", ".join(f"{name} {length}" for name, length in fitted.phases.items())
    long = span(sum(fitted.phases.values()) * tempo.beat_ms)
    return (
        f"In {policy.cluster_id}, with {tempo.bpm} beats a minute and {tempo.bar_len} a bar: {beats}; the first phrase"
        f" takes {long} at most."
    )


def _events(score: Score) -> list[tuple[str, str, tuple[str, ...]]]:
    """Each event: the name of its field, what it is called, and what happens then."""
    actions = {"on_wait_exhausted": score.on_wait_exhausted, "on_overrun": score.on_overrun}
    return [(f"escalation.{name}", title, actions[name]) for name, title in _EVENTS.items()]


def _told(edit: str, cues: list[Cue]) -> str:
    name = edit.split(":")[1] if edit.count(":") == 2 else ""
    return next((f"{each.sentence[:1].upper()}{each.sentence[1:]}." for each in cues if each.name == name), "")


def _lines_around(text: str, line: int | None) -> list[TextLine]:
    lines = text.split("\n")
    if line is None:
        return []
    first, last = max(1, line - 1), min(len(lines), line + 1)
    return [TextLine(number, lines[number - 1], number == line) for number in range(first, last + 1)]


def _job_of(fields: Mapping[str, str]) -> Mapping[str, Any]:
    """The job that the form of the sheet describes. Raises ValueError."""
    try:
        payload = decode_json(fields.get("payload", "{}").encode(), dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"the payload is no JSON object: {error}") from None
    score = score_json(read_score(fields.get(TEXT, "").encode()))
    return {"kind": fields.get("kind", ""), "payload": payload, "score": score}


SCORE_SHEET = PageView(
    "/tempo/score",
    "score.html",
    sheet,
    takes_form=True,
    package=PACKAGE,
    actions=[Action("submit_job", "Submit", "submitted the job {job_id}", read=_job_of, then="/jobs/{job_id}")],
)
