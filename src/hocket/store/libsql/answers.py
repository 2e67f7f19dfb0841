"""The answers of a libSQL server, read into types. A server may be hostile: whatever it sends is an answer of Hrana 3
within bounds, or raises Malformed.
"""

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from hocket.kernel.decoding import json_decoder
from hocket.kernel.postcard import Malformed

# The server sends no more than 10 MB of values in one answer. Written as JSON that is at most a few times as much.
PIPELINE_BYTES_MAX = 64 * 1024 * 1024
# What does not fit there comes as a cursor, line by line.
CURSOR_BYTES_MAX = 512 * 1024 * 1024
LINE_BYTES_MAX = PIPELINE_BYTES_MAX
# An answer with another status says why, in a few words.
REFUSAL_BYTES_MAX = 64 * 1024
_BATON_CHARS_MAX = 8_192
_INTEGER = range(-(2**63), 2**63)

T = TypeVar("T")
Row = tuple[Any, ...]


class StepAnswer(NamedTuple):
    """What a statement returned; or its error, a code and a message; or nothing, if it was skipped."""

    rows: list[Row]
    changed: int = 0
    error: tuple[str, str] | None = None
    is_skipped: bool = False


class _Null(msgspec.Struct, tag="null", frozen=True, gc=False):
    def read(self) -> None:
        return None


class _Integer(msgspec.Struct, tag="integer", frozen=True, gc=False):
    """JSON's numbers are too small for it, so it comes as text."""

    value: Annotated[str, msgspec.Meta(max_length=20)]

    def read(self) -> int:
        number = int(self.value)
        if number not in _INTEGER:
            raise ValueError("an integer has more than 64 bits")
        return number


class _Float(msgspec.Struct, tag="float", frozen=True, gc=False):
    value: float

    def read(self) -> float:
        return self.value


class _Text(msgspec.Struct, tag="text", frozen=True, gc=False):
    value: str

    def read(self) -> str:
        return self.value


class _Blob(msgspec.Struct, tag="blob", frozen=True, gc=False):
    """The server leaves the padding out."""

    base64: str

    def read(self) -> bytes:
        return b64decode(self.base64 + "=" * (-len(self.base64) % 4), validate=True)


_Cell = _Null | _Integer | _Float | _Text | _Blob


class _Error(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None

    def read(self) -> tuple[str, str]:
        return self.code or "", self.message


class _Rows(msgspec.Struct, frozen=True):
    rows: list[list[_Cell]]
    affected_row_count: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Steps(msgspec.Struct, frozen=True):
    step_results: list[_Rows | None]
    step_errors: list[_Error | None]


class _Batch(msgspec.Struct, tag="batch", frozen=True):
    result: _Steps


class _Sequence(msgspec.Struct, tag="sequence", frozen=True):
    pass


class _Done(msgspec.Struct, tag="ok", frozen=True):
    response: _Batch | _Sequence


class _Failed(msgspec.Struct, tag="error", frozen=True):
    error: _Error


class Continuation(msgspec.Struct, frozen=True):
    """How a stream goes on: with this baton, at this address."""

    baton: Annotated[str, msgspec.Meta(max_length=_BATON_CHARS_MAX)] | None = None
    base_url: Annotated[str, msgspec.Meta(max_length=_BATON_CHARS_MAX)] | None = None


class _Pipeline(Continuation, frozen=True):
    results: list[_Done | _Failed] = msgspec.field(default_factory=list)


class _Entry(msgspec.Struct, frozen=True):
    """A line of a cursor. Those of other types say nothing that is needed."""

    type: str
    row: list[_Cell] = msgspec.field(default_factory=list)
    error: _Error | None = None


_pipeline, _continuation, _entry = json_decoder(_Pipeline), json_decoder(Continuation), json_decoder(_Entry)


class PipelineAnswer(NamedTuple):
    """For each request the answers to its statements, or the error that ended it."""

    continuation: Continuation
    results: list[list[StepAnswer] | tuple[str, str]]


def read_pipeline(content: bytes, statements: Sequence[int]) -> PipelineAnswer:
    """The answer to requests with so many statements each; a script has none."""
    found = _decoded(_pipeline.decode, content)
    if len(found.results) != len(statements):
        raise Malformed(f"{len(found.results)} results for {len(statements)} requests")
    results = [_result(result, count) for result, count in zip(found.results, statements, strict=True)]
    return PipelineAnswer(found, results)


def read_continuation(content: bytes) -> Continuation:
    return _decoded(_continuation.decode, content)


def read_entry(content: bytes) -> Row | None:
    """A row of a cursor, or None for a line that has none. Raises CursorFailed for the error that ends it."""
    found = _decoded(_entry.decode, content)
    if found.type == "row":
        return _row(found.row)
    if found.type in ("step_error", "error"):
        raise CursorFailed(*(_Error("no reason is given") if found.error is None else found.error).read())
    return None


class CursorFailed(Exception):
    """The server has ended a cursor."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def _result(result: _Done | _Failed, count: int) -> list[StepAnswer] | tuple[str, str]:
    if isinstance(result, _Failed):
        return result.error.read()
    if isinstance(result.response, _Sequence):
        if count:
            raise Malformed("the result of a script for a batch")
        return []
    rows, errors = result.response.result.step_results, result.response.result.step_errors
    if len(rows) != count or len(errors) != count:
        raise Malformed(f"{len(rows)} results and {len(errors)} errors for {count} statements")
    return [_answer(*each) for each in zip(rows, errors, strict=True)]


def _answer(found: _Rows | None, error: _Error | None) -> StepAnswer:
    if error is not None:
        return StepAnswer([], error=error.read())
    if found is None:
        return StepAnswer([], is_skipped=True)
    return StepAnswer([_row(row) for row in found.rows], found.affected_row_count)


def _row(cells: Sequence[_Cell]) -> Row:
    try:
        return tuple([cell.read() for cell in cells])
    except ValueError as error:
        raise Malformed(str(error)) from None


def _decoded(decode: Callable[[bytes], T], content: bytes) -> T:
    try:
        return decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
