"""The part of YAML that manifests need: mappings, lists and scalars of one document. Features that make a reader do
more than read (tags, anchors, aliases, directives), texts that two readers read differently, and texts that are too
deep or too long are refused with their line. A JSON reader reads JSON, because a YAML reader treats some of its escapes
differently.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

TEXT_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 8
_SHOWN_CHARS = 60

# `re` compiles these when they are first used: every worker loads this module, and few read YAML.
_WHOLE = "-?(?:0|[1-9][0-9]*)"
_POINT = "-?(?:0|[1-9][0-9]*)[.][0-9]+"
_DIGITS_MAX = 20  # one more than any number in a manifest may have
_FRACTION_CHARS_MAX = 64
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUTHS = {spelling: word == "true" for word in ("true", "false") for spelling in (word, word.title(), word.upper())}
# A boolean in YAML 1.1, a text in 1.2; likewise the merge key and the value key.
_SWITCHES = frozenset(
    spelling for word in ("y", "n", "yes", "no", "on", "off") for spelling in (word, word.title(), word.upper())
)
_DISPUTED = _SWITCHES | {"<<", "="}
# Line ends in YAML 1.1, ordinary characters in 1.2.
_LINE_ENDS = "[\x85\u2028\u2029]"
# Whatever a reader of YAML 1.1 or 1.2 might take for a number or a time. At every character at most one part of an
# alternative can continue, so a text of any length is matched in one pass.
_NUMBER = r"""[-+]?(?: 0b[01_]+ | 0o?[0-7_]+ | 0x[0-9a-fA-F_]+ | [0-9][0-9_]*(?::[0-5]?[0-9])+(?:[.][0-9_]*)?
            | (?:[0-9][0-9_]*(?:[.][0-9_]*)? | [.][0-9_]+)(?:[eE][-+]?[0-9]+)? | [.](?:inf|Inf|INF) )
        | [.](?:nan|NaN|NAN)
        | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:(?:[Tt]|[ \t]+).*)?"""


class BadText(ValueError):
    """Neither JSON nor the supported part of YAML."""


def read_text(text: bytes) -> object:
    """The value in a text: dicts with text keys, lists, texts, numbers, booleans and None."""
    if len(text) > TEXT_BYTES_MAX:
        raise BadText(f"longer than {TEXT_BYTES_MAX} bytes")
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadText(f"not UTF-8 text: byte {error.start} is {text[error.start]:#04x}") from None
    if decoded.lstrip(" \t\r\n").startswith("{"):
        try:
            return json.loads(
                decoded, object_pairs_hook=_pairs, parse_int=_whole, parse_constant=_no_constant, parse_float=_fraction
            )
        except json.JSONDecodeError:
            pass  # a mapping in YAML's flow style begins like this, too
        except RecursionError:
            raise BadText("nested too deeply") from None
    return _yaml(decoded)


def line_of(text: bytes, path: Sequence[str | int]) -> int | None:
    """The line of the member or item that the path leads to, in a text that `read_text` accepts. Where the path leads
    to nothing, the line of the last thing on the way. None if only a JSON reader can read the text.
    """
    import yaml

    try:
        node: Any = yaml.compose(text.decode("utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None
    mark = node.start_mark
    for step in path:
        if isinstance(node, yaml.SequenceNode):
            key = node = node.value[step]
        else:
            members = node.value if isinstance(node, yaml.MappingNode) else ()
            key, node = next(((key, value) for key, value in members if key.value == step), (None, None))
        if node is None:
            break
        mark = key.start_mark
    return int(mark.line) + 1


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise BadText(f"the key {_shown(name)} is repeated")
        members[name] = value
    return members


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS_MAX:
        raise BadText(f"the number {_shown(digits)} is too great")
    return int(digits)


def _fraction(digits: str) -> float:
    if len(digits) > _FRACTION_CHARS_MAX:
        raise BadText(f"the number {_shown(digits)} is too long")
    return float(digits)


def _no_constant(name: str) -> object:
    raise BadText(f"{name} is not a number")


def _yaml(text: str) -> object:
    # Loading this takes as long as everything else in a short command, and JSON does not need it.
    import yaml

    if found := re.search(_LINE_ENDS, text):
        line = text.count("\n", 0, found.start()) + 1
        raise BadText(f"line {line}: the character U+{ord(found[0]):04X} ends a line for some YAML readers; escape it")
    if (at := text.find("\ufeff", 1)) > 0:
        # One parser takes it for a part of a word, the other passes over it.
        raise BadText(f"line {text.count(chr(10), 0, at) + 1}: the character U+FEFF stands inside the text; escape it")
    # The two parsers read the same language, but only the one in C is fast enough for a megabyte.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events: Iterator[Any] = iter(yaml.parse(text, Loader=loader))
    try:
        next(events)
        start = next(events)
        if isinstance(start, yaml.StreamEndEvent):
            raise BadText("it is empty")
        if start.version or start.tags:
            raise BadText(f"line {_line(start)}: directives are not supported; leave them out")
        value = _value(events, next(events), 0)
        next(events)
        end = next(events)
        if not isinstance(end, yaml.StreamEndEvent):
            raise BadText(f"line {_line(end)}: a second document begins; only one is supported")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise BadText(f"{where}{error.problem or error.context or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise BadText(" ".join(str(error).split())) from None
    return value


def _value(events: Iterator[Any], event: Any, depth: int) -> object:
    """The value that begins with this event; its parts are taken from events."""
    kind = type(event).__name__
    if kind == "AliasEvent" or event.anchor is not None:
        raise BadText(f"line {_line(event)}: anchors and aliases are not supported; write the value out")
    if event.tag is not None:
        raise BadText(f"line {_line(event)}: the tag {_shown(event.tag)} is not supported; leave it out")
    if depth > DEPTH_MAX:
        raise BadText(f"line {_line(event)}: nested deeper than {DEPTH_MAX} levels")
    if kind == "ScalarEvent":
        return _plain(event) if event.implicit[0] else event.value
    if kind == "SequenceStartEvent":
        items = []
        while type(item := next(events)).__name__ != "SequenceEndEvent":
            items.append(_value(events, item, depth + 1))
        return items
    members: dict[str, object] = {}
    while type(key := next(events)).__name__ != "MappingEndEvent":
        name = _value(events, key, depth + 1)
        if not isinstance(name, str):
            raise BadText(f"line {_line(key)}: a key must be a text, not {_kind(name)}; quote it")
        if name in members:
            raise BadText(f"line {_line(key)}: the key {_shown(name)} is repeated")
        members[name] = _value(events, next(events), depth + 1)
    return members


def _plain(event: Any) -> object:
    """The value of a scalar without quotes, if all readers agree."""
    text: str = event.value
    if text in _NULLS:
        return None
    if text in _TRUTHS:
        return _TRUTHS[text]
    if re.fullmatch(_WHOLE, text):
        return _whole(text)
    if re.fullmatch(_POINT, text):
        return _fraction(text)
    if text in _DISPUTED or re.fullmatch(_NUMBER, text, re.VERBOSE):
        raise BadText(
            f"line {_line(event)}: {_shown(text)} is not the same to all YAML readers; quote a text, and write a"
            " number in plain digits"
        )
    return text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _kind(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return _shown("null" if value is None else str(value).lower() if isinstance(value, bool) else str(value))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…")
