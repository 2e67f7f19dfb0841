"""Edits of the text of a score. An edit replaces, adds or removes the characters of the values that it is about, and
leaves everything else in the text as it is: comments, order and layout. Each edit is read again and compared with what
it should mean, so that a text which is laid out in an unusual way is refused and never spoiled.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from hocket.extensions.tempo.beats import PHASE_NAMES
from hocket.extensions.tempo.policy import BadField
from hocket.extensions.tempo.score import WAITS, read_score, score_json
from hocket.kernel.policy import Score
from hocket.kernel.yaml_subset import BadText, read_text

ROOT = "score"
# The fields that the sheet offers, as paths below the score.
LISTS = ("escalation.on_wait_exhausted", "escalation.on_overrun")
FIELDS = (
    *("tempo", "bar_len", *(f"phases.{name}" for name in PHASE_NAMES), *(f"wait_budget.{name}" for name in WAITS)),
    *("retry.max_phrases", *LISTS),
)
_CHANGE = re.compile(r"(move|grow):(plan|work|review|help|io):([+-]?[0-9]{1,4})")
_DIGITS = re.compile(r"[0-9]{1,9}")


class BadEdit(ValueError):
    pass


class _Change(NamedTuple):
    """The characters from `start` up to `end` become `text`."""

    start: int
    end: int
    text: str


def changed(text: str, change: str) -> str:
    """The text after a change like `move:work:+1` or `grow:help:-1`, by so many beats. Raises BadEdit or BadField."""
    form = _CHANGE.fullmatch(change)
    if form is None:
        raise BadEdit(f"there is no change {change[:40]!r}")
    how, name, by = form[1], form[2], int(form[3])
    score = read_score(text.encode())
    if name in WAITS:
        if how == "move":
            raise BadEdit(f"the beats of {name} have no place: they can be spent anywhere in the phrase")
        return with_values(text, {f"wait_budget.{name}": max(0, score.wait_budget[name] + by)})
    if name not in score.phases:
        raise BadEdit(f"the score has no phase {name}")
    phases = _moved(score, name, by) if how == "move" else _grown(score, name, by)
    return with_values(text, {f"phases.{each}": beats for each, beats in phases.items()})


def _moved(score: Score, name: str, by: int) -> dict[str, int]:
    """Each beat that a phase goes further is one more for the phase before it, and one less for that after it or the
    rest of the bar.
    """
    phases, order = dict(score.phases), [*score.phases]
    place, way = order.index(name), 1 if by > 0 else -1
    if not place:
        raise BadEdit(f"{name} begins the bar")
    before, after = order[place - 1], order[place + 1] if place + 1 < len(order) else None
    for _ in range(abs(by)):
        rest = score.bar_len - sum(phases.values())
        if way < 0 and phases[before] < 2:
            raise BadEdit(f"{before} keeps at least one beat")
        if way > 0 and (after is None or phases[after] < 2) and not rest:
            raise BadEdit(f"the bar has no beat left after {name}")
        phases[before] += way
        if after is not None and (way < 0 or phases[after] > 1):
            phases[after] -= way
    return phases


def _grown(score: Score, name: str, by: int) -> dict[str, int]:
    """A phase gets beats of the rest of the bar, else of the phases after it, else of those before it. What it loses is
    rest.
    """
    phases, order = dict(score.phases), [*score.phases]
    place = order.index(name)
    if phases[name] + by < 1:
        raise BadEdit(f"{name} keeps at least one beat; empty its field to take the phase away")
    phases[name] += by
    givers = [*order[place + 1 :], *reversed(order[:place])]
    while sum(phases.values()) > score.bar_len:
        giver = next((each for each in givers if phases[each] > 1), None)
        if giver is None:
            raise BadEdit(f"the bar has no beat left for {name}")
        phases[giver] -= 1
    return phases


def field_values(score: Score) -> dict[str, str]:
    """What the fields of the sheet have, as text. Empty means that the score does not say, or has no such phase."""
    members = score_json(score)[ROOT]
    found = {}
    for field in FIELDS:
        value: Any = members
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        found[field] = ", ".join(value) if isinstance(value, list) else "" if value is None else str(value)
    return found


def with_fields(text: str, fields: Mapping[str, str]) -> str:
    """The text with the values of these fields. An empty field takes the member away. Raises BadEdit."""
    values: dict[str, Any] = {}
    for field, given in fields.items():
        if field in LISTS:
            values[field] = [each.strip() for each in given.split(",") if each.strip()] or None
        elif field not in FIELDS:
            raise BadEdit(f"there is no field {field[:40]!r}")
        elif given.strip() and _DIGITS.fullmatch(given.strip()) is None:
            raise BadEdit(f"{field}: {given[:20]!r} is not a whole number")
        else:
            values[field] = int(given) if given.strip() else None
    return with_values(text, values)


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """The text with these values at their paths below the score. None takes a member away. Raises BadEdit."""
    for path, value in values.items():
        steps = (ROOT, *path.split("."))
        before = _read(text)
        if _at(before, steps) == value:
            continue
        text = _applied(text, _change(text, steps, value))
        if _read(text) != _set(before, steps, value):
            raise BadEdit(f"{path} stands in the text in a way that only a person can change")
    return text


def _read(text: str) -> Any:
    try:
        return read_text(text.encode())
    except BadText as error:
        raise BadEdit(f"the text cannot be read: {error}") from None


def _at(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _set(value: Any, steps: Sequence[str], member: Any) -> Any:
    """A copy in which the member has another value. A mapping that is left without members goes, too."""
    members = dict(value) if isinstance(value, dict) else {}
    inner = member if len(steps) == 1 else _set(members.get(steps[0]), steps[1:], member)
    if inner is None or (inner == {} and len(steps) > 1):
        members.pop(steps[0], None)
    else:
        members[steps[0]] = inner
    return members


def _applied(text: str, change: _Change) -> str:
    return text[: change.start] + change.text + text[change.end :]


def _change(text: str, steps: Sequence[str], value: Any) -> _Change:
    try:
        node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        raise BadEdit("the text is JSON that no YAML reader takes; change it by hand") from None
    for depth, step in enumerate(steps):
        if not isinstance(node, yaml.MappingNode):
            raise BadEdit(f"{'.'.join(steps[:depth])} is not a mapping")
        found = next((place for place, (key, _) in enumerate(node.value) if key.value == step), None)
        if found is None:
            return _added(text, node, step, _nested(steps[depth + 1 :], value))
        last, (key, member) = depth + 1 == len(steps), node.value[found]
        # The only member of a mapping takes the mapping with it.
        if value is None and (last or (isinstance(member, yaml.MappingNode) and len(member.value) == 1 and depth)):
            return _removed(text, node, found)
        if last:
            return _replaced(key, member, value)
        node = member
    raise AssertionError


def _nested(steps: Sequence[str], value: Any) -> Any:
    for step in reversed(steps):
        value = {step: value}
    return value


def _replaced(key: Any, member: Any, value: Any) -> _Change:
    if isinstance(member, yaml.ScalarNode):
        empty = member.start_mark.index == member.end_mark.index
        return _Change(member.start_mark.index, member.end_mark.index, f"{' ' * empty}{_flow(value)}")
    if member.flow_style:
        return _Change(member.start_mark.index, member.end_mark.index, _flow(value))
    return _Change(key.end_mark.index, _end(member), f": {_flow(value)}")


def _added(text: str, mapping: Any, name: str, value: Any) -> _Change:
    if value is None:
        raise BadEdit(f"there is no {name}")
    if mapping.flow_style:
        if not mapping.value:
            return _Change(mapping.start_mark.index, mapping.end_mark.index, _flow({name: value}, _is_json(text)))
        end = _end(mapping.value[-1][1])
        return _Change(end, end, f", {_flow({name: value}, _is_json(text))[1:-1]}")
    last = _end(mapping.value[-1][1])
    line_end = text.find("\n", last)
    at = len(text) if line_end < 0 else line_end
    return _Change(at, at, f"\n{' ' * mapping.value[0][0].start_mark.column}{name}: {_flow(value)}")


def _removed(text: str, mapping: Any, place: int) -> _Change:
    key, member = mapping.value[place]
    start, end = key.start_mark.index, _end(member)
    if mapping.flow_style:
        if place + 1 < len(mapping.value):
            return _Change(start, mapping.value[place + 1][0].start_mark.index, "")
        before = _end(mapping.value[place - 1][1]) if place else start
        return _Change(before, end, "")
    line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    return _Change(line_start, len(text) if line_end < 0 else line_end + 1, "")


def _end(node: Any) -> int:
    """Where the last character of a value stands; a block ends with the last of its own."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{") and '"' in text


def _flow(value: Any, quotes_names: bool = False) -> str:
    if isinstance(value, dict):
        names = {name: json.dumps(name) if quotes_names else name for name in value}
        return "{" + ", ".join(f"{names[name]}: {_flow(each, quotes_names)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(json.dumps(each) for each in value) + "]"
    return str(value)


def score_text(score: Score) -> str:
    """A score as people write it."""
    members = score_json(score)
    lines = [f"ucxl: {json.dumps(members['ucxl'])}"] if score.ucxl else []
    lines += [f"{ROOT}:"]
    order = ("tempo", "bar_len", "phases", "wait_budget", "retry", "escalation")
    for name in (each for each in order if each in members[ROOT]):
        value = members[ROOT][name]
        if name == "escalation":
            given = {event: actions for event, actions in value.items() if actions}
            lines += [f"  {name}:"] * bool(given) + [f"    {event}: {_flow(each)}" for event, each in given.items()]
        else:
            lines.append(f"  {name}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def checked(text: str) -> Score | BadField:
    try:
        return read_score(text.encode())
    except BadField as error:
        return error


FIRST = """\
# How many beats a task has for its phases and waits.
score:
  bar_len: 8
  phases: {plan: 2, work: 4, review: 2}
  wait_budget: {help: 2, io: 1}
  retry: {max_phrases: 2}
  escalation:
    on_wait_exhausted: ["emit:needs-attention", "fallback:coarse-answer"]
    on_overrun: ["checkpoint", "defer:next-phrase"]
"""
