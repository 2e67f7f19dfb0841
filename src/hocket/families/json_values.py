"""Values as JSON. JSON has no NaN and no infinity, and an encoder that writes null instead changes the value without a
word: such a value is an error that says where it is.
"""

import math
from pathlib import PurePath
from typing import Any

import msgspec


def encode_json(value: Any, name: str) -> bytes:
    """Raises ValueError if the value, called `name` for people, has a number that JSON cannot express."""
    encoded = msgspec.json.encode(value, enc_hook=encode_hook)
    if b"null" in encoded and (found := _not_finite(msgspec.to_builtins(value, enc_hook=encode_hook), "")):
        raise ValueError(f"{name} has {found}; JSON has no such number, so use None or a string")
    return encoded


def encode_hook(value: Any) -> Any:
    """How values are written that JSON and msgspec do not know: paths as text."""
    if isinstance(value, PurePath):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _not_finite(value: Any, path: str) -> str | None:
    """The first number that is not finite, and where it is."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} at {path}" if path else str(value)
    parts: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        parts = [(each, f"{path}.{key}" if path else str(key)) for key, each in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = [(each, f"{path}[{index}]") for index, each in enumerate(value)]
    return next((found for each, place in parts if (found := _not_finite(each, place))), None)
