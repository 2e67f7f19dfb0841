"""Reads the fields of a small YAML or JSON file. An error names the field, its line and what is allowed there."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from hocket.kernel.yaml_subset import BadText, line_of, read_text

FILE_BYTES_MAX = 64 * 1024
_SHOWN_CHARS = 60
_LINE = re.compile("line ([0-9]+): ")

T = TypeVar("T")
FieldPath = tuple[str | int, ...]


class BadField(ValueError):
    """`field` is empty if the file as a whole is wrong."""

    def __init__(self, path: FieldPath, problem: str, allowed: str, line: int | None = None) -> None:
        self.path, self.problem, self.allowed, self.line = path, problem, allowed, line
        self.field = ".".join(map(str, path))

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.field}{': ' if self.field else ''}{self.problem}; {self.allowed}"


def read_fields(text: bytes, read: Callable[["Fields"], T]) -> T:
    """Reads a file and passes its fields to `read`. Raises BadField."""
    if len(text) > FILE_BYTES_MAX:
        raise BadField((), f"the file is longer than {FILE_BYTES_MAX} bytes", "write less")
    try:
        value = read_text(text)
    except BadText as error:
        found = _LINE.match(str(error))
        problem, line = (str(error)[found.end() :], int(found[1])) if found else (str(error), None)
        raise BadField((), f"the file cannot be read: {problem}", "write plain YAML or JSON", line) from None
    with _lines(text):
        return read(fields_of(value))


def fields_of(value: object, path: FieldPath = ()) -> "Fields":
    if not isinstance(value, dict):
        raise BadField(path, f"{_shown(value)} is not a mapping", "write fields with their values")
    return Fields(value, path)


@contextmanager
def _lines(text: bytes) -> Iterator[None]:
    try:
        yield
    except BadField as error:
        raise BadField(error.path, error.problem, error.allowed, line_of(text, error.path)) from None


class Fields:
    """The members of one mapping. Each is read by the name and the form that it must have."""

    def __init__(self, members: dict[str, object], path: FieldPath) -> None:
        self._members, self._path = members, path

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def only(self, known: Collection[str], required: Collection[str] = ()) -> "Fields":
        for name in self._members:
            if name not in known:
                raise self.wrong(name, "unknown field", f"known are {', '.join(known)}")
        for name in required:
            if name not in self._members:
                raise self.wrong(name, "the field is missing", f"required are {', '.join(required)}")
        return self

    def mapping(self, name: str) -> "Fields":
        """An empty one if the field is not there."""
        return fields_of(self._members.get(name, {}), (*self._path, name))

    def whole(self, name: str, least: int, most: int, default: int | None = None) -> int:
        value = self._members.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(name, f"{_shown(value)} is not allowed", f"write a whole number from {least} to {most}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._members.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{_shown(value)} is not allowed", "write true or false")
        return value

    def choice(self, name: str, choices: Sequence[str], default: str) -> str:
        value = self._members.get(name, default)
        if value not in choices:
            raise self.wrong(name, f"{_shown(value)} is not allowed", f"write {' or '.join(choices)}")
        return str(value)

    def text(self, name: str, is_good: Callable[[str], bool], allowed: str) -> str:
        value = self._members.get(name)
        if not isinstance(value, str) or not is_good(value):
            raise self.wrong(name, f"{_shown(value)} is not allowed", allowed)
        return value

    def texts(self, name: str, most: int, is_good: Callable[[str], bool], allowed: str) -> tuple[str, ...]:
        """An empty tuple if the field is not there."""
        value = self._members.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, f"{_shown(value)} is not allowed", f"write a list of at most {most} texts")
        for place, each in enumerate(value):
            if not isinstance(each, str) or not is_good(each):
                raise BadField((*self._path, name, place), f"{_shown(each)} is not allowed", allowed)
        return tuple(value)

    def is_list(self, name: str) -> bool:
        return isinstance(self._members.get(name), list)

    def wrong(self, name: str, problem: str, allowed: str) -> BadField:
        return BadField((*self._path, name), problem, allowed)


def _shown(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
