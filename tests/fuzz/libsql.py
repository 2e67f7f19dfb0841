"""The targets that read the answers of a libSQL server. What is accepted has the form of the requests, and values that
a database has.
"""

import json
from random import Random
from typing import Any

from hocket.kernel.postcard import Malformed
from hocket.store.libsql.answers import CursorFailed, PipelineAnswer, Row, StepAnswer, read_entry, read_pipeline
from tests.fuzz.mutate import JSON_WORDS, Damage, JsonDamage, Sample, Stream, by_punctuation
from tests.fuzz.target import Target

STATEMENTS = (2, 0)
CELLS: list[dict[str, Any]] = [
    {"type": "null"},
    {"type": "integer", "value": "-9223372036854775808"},
    {"type": "float", "value": 1.5},
    {"type": "text", "value": "é"},
    {"type": "blob", "base64": "AAE"},
]
ERROR = {"message": "database is locked", "code": "SQLITE_BUSY"}
ROWS = {"cols": [{"name": "a"}], "rows": [CELLS, CELLS[:1]], "affected_row_count": 3, "last_insert_rowid": "7"}


def _answer(*steps: tuple[Any, Any]) -> dict[str, Any]:
    batch = {"step_results": [result for result, _ in steps], "step_errors": [error for _, error in steps]}
    results = [
        {"type": "ok", "response": {"type": "batch", "result": batch}},
        {"type": "ok", "response": {"type": "sequence"}},
    ]
    return {"baton": "b", "base_url": None, "results": results}


ANSWERS = [
    _answer((ROWS, None), (None, ERROR)),
    _answer((ROWS, None), (None, None)),
    {"baton": None, "base_url": "http://a", "results": [{"type": "error", "error": ERROR}] * 2},
]
ENTRIES: list[dict[str, Any]] = [
    {"type": "row", "row": CELLS},
    {"type": "step_begin", "step": 0, "cols": [{"name": "a"}]},
    {"type": "step_end", "affected_row_count": 1, "last_insert_rowid": None},
]


def _spell(value: Any) -> bytes:
    return json.dumps(value).encode()


def _samples(values: list[dict[str, Any]]) -> list[Sample]:
    return [by_punctuation(_spell(value)) for value in values]


def _stream(values: list[dict[str, Any]], rng: Random) -> Stream:
    """Half of the inputs are values with other values in them, and half are damaged texts."""
    of_values, of_texts = (
        JsonDamage(rng, values, _spell, ("type", "value", "row")),
        Damage(rng, _samples(values), JSON_WORDS),
    )
    return lambda: of_values() if rng.random() < 0.5 else of_texts()


def _hold_row(row: Row) -> None:
    assert all(value is None or isinstance(value, bytes | str | int | float) for value in row)
    assert all(-(2**63) <= value < 2**63 for value in row if isinstance(value, int))


def _hold_pipeline(data: bytes, answer: PipelineAnswer) -> bool:
    for count, result in zip(STATEMENTS, answer.results, strict=True):
        if isinstance(result, tuple):
            assert all(isinstance(each, str) for each in result)
            continue
        assert len(result) == count
        for step in result:
            assert isinstance(step, StepAnswer) and step.changed >= 0
            for row in step.rows:
                _hold_row(row)
    return True


def _hold_entry(data: bytes, row: Row | None) -> bool:
    _hold_row(row or ())
    return True


TARGETS = (
    Target(
        "libsql-answer",
        lambda data: read_pipeline(data, STATEMENTS),
        (Malformed,),
        _hold_pipeline,
        _samples(ANSWERS),
        lambda rng: _stream(ANSWERS, rng),
    ),
    Target(
        "libsql-row",
        read_entry,
        (Malformed, CursorFailed),
        _hold_entry,
        _samples(ENTRIES),
        lambda rng: _stream(ENTRIES, rng),
    ),
)
