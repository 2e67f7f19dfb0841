"""Arguments of jobs by which they are found: members of the payload that the options of a kind name as its `index`,
like `frame` or `camera.name`. Their values are texts, as a person writes them in a search.
"""

from typing import Any, NamedTuple

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.kernel.policy import PATH_CHARS_MAX

# A longer value is not indexed.
VALUE_CHARS_MAX = 256


class JobArgument(NamedTuple):
    """The value at a path in a payload."""

    path: str
    value: str


def argument_of(text: str) -> JobArgument:
    """Reads `frame=7`. Raises ValueError."""
    path, sign, value = text.partition("=")
    if not sign or not path or len(path) > PATH_CHARS_MAX or len(value) > VALUE_CHARS_MAX:
        raise ValueError(f"{text!r} is no argument; write it as PATH=VALUE, like frame=7 or camera.name=front")
    return JobArgument(path, value)


def indexed_arguments(payload: bytes, paths: tuple[str, ...]) -> list[JobArgument]:
    """What a payload has at these paths: texts, numbers, true, false and null. It has nothing at the others; a payload
    that is no JSON object, such as one that was encrypted, has nothing at all.
    """
    try:
        value = decode_json(payload, dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    found = [(path, _text_at(value, path.split("."))) for path in dict.fromkeys(paths)]
    return [JobArgument(path, text) for path, text in found if text is not None and len(text) <= VALUE_CHARS_MAX]


def _text_at(value: Any, path: list[str]) -> str | None:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            return None
        value = value[name]
    if isinstance(value, dict | list):
        return None
    # PostgreSQL keeps no text with NUL.
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return None if "\0" in text else text
