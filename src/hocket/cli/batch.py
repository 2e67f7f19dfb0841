"""A file of jobs, submitted in one transaction: all or none. Lines may have names and cite each other in any order.
Every job is submitted after the jobs in its `after`; otherwise the order of lines holds. Every error names its line.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from hocket.cli.options import decoded
from hocket.cli.output import Progress, emit, progress, say
from hocket.cli.settings import deliver, open_runtime
from hocket.errors import HocketError, Usage
from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.work import jobs
from hocket.work.handlers import draft, policy
from hocket.work.jobs import PAYLOAD_BYTES_MAX, Draft, Submitted

LINES_MAX = 1_000_000
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
STEP = 1_000
_OWN = {"kind", "payload", "name", "after"}


class BatchLine(NamedTuple):
    """A job as its line describes it. `after` holds names of other lines, or job ids."""

    number: int
    name: str | None
    after: tuple[str, ...]
    draft: Draft


class JobFile(NamedTuple):
    """The lines of one file, and the file's name."""

    source: str
    lines: list[BatchLine]
    named: dict[str, int]

    @contextmanager
    def at(self, line: BatchLine) -> Iterator[None]:
        with _placed(self.source, line.number):
            yield


@contextmanager
def _placed(source: str, number: int) -> Iterator[None]:
    try:
        yield
    except HocketError as error:
        raise type(error)(f"{source} line {number}: {error}") from error


def submit_batch(source: str) -> None:
    """Reads, orders and submits a file, and prints the outcome of each line."""
    with open_runtime() as runtime:
        name = "standard input" if source == "-" else source
        with _opened(source) as file, progress("reading") as bar:
            batch = _read(name, file, bar)
        if not batch.lines:
            raise Usage(f"{name}: nothing to submit")
        order = _ordered(batch)
        there = _cited_jobs(runtime, batch)
        with progress("submitting") as bar:
            made = runtime.log.run(lambda tx: _submit(tx, batch, order, there, bar))
        deliver(runtime)
    emit(
        [
            {
                "line": line.number,
                "job_id": ulid_text(made[index].job_id),
                "kind": line.draft.kind,
                "created": made[index].created,
            }
            for index, line in enumerate(batch.lines)
        ]
    )
    for index, line in enumerate(batch.lines):
        verb = f"submitted {line.draft.kind}" if made[index].created else "already there"
        say(f"{verb} {ulid_text(made[index].job_id)}")


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(source).open("rb") as file:
            yield file
    except OSError as error:
        raise Usage(f"cannot read the batch {source}: {error.strerror}") from None


def _read(source: str, file: BinaryIO, bar: Progress) -> JobFile:
    batch = JobFile(source, [], {})
    number = 0
    while text := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if number > LINES_MAX:
            raise Usage(f"{source} has more than {LINES_MAX} lines; split it")
        if number % STEP == 0:
            bar(number, number)
        if text.isspace():
            continue
        with _placed(source, number):
            if len(text) > LINE_BYTES_MAX:
                raise Usage(f"longer than {LINE_BYTES_MAX} bytes; pass a reference instead of the data")
            line = _line(number, text)
            if line.name is not None and batch.named.setdefault(line.name, len(batch.lines)) != len(batch.lines):
                first = batch.lines[batch.named[line.name]].number
                raise Usage(f"line {first} already has the name {line.name!r}")
        batch.lines.append(line)
    return batch


def _line(number: int, text: bytes) -> BatchLine:
    value = decoded(text.strip(), "this")
    if not isinstance(value, dict):
        raise Usage(f'a line must be an object like {{"kind": "acme.render"}}, not {_called(value)}')
    kind, name = value.get("kind"), value.get("name")
    if not isinstance(kind, str):
        raise Usage(f'"kind" must be a string, not {_called(kind)}' if "kind" in value else '"kind" is missing')
    if name is not None and (not isinstance(name, str) or not name):
        raise Usage(f'"name" must be a string of at least one character, not {_called(name)}')
    options = {key: each for key, each in value.items() if key not in _OWN}
    for key, each in options.items():
        _check_option(key, each)
    return BatchLine(number, name, _after(value.get("after")), draft(kind, value.get("payload", {}), options))


def _check_option(key: str, value: Any) -> None:
    wrong = not isinstance(value, bool) if key == "open" else isinstance(value, bool | list | dict)
    if key == "needs":
        wrong = not isinstance(value, str | list) or not all(isinstance(each, str) for each in value)
    if wrong or (key == "unique" and not isinstance(value, str | None)):
        raise Usage(f"bad {key}: {_called(value)} is not allowed here")
    if isinstance(value, float) and key in ("priority", "retries", "concurrency", "not_before"):
        raise Usage(f"bad {key} {value!r}: it must be a whole number")


def _called(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _after(value: Any) -> tuple[str, ...]:
    named = [value] if isinstance(value, str) else value if value is not None else []
    if not isinstance(named, list) or not all(isinstance(each, str) and each for each in named):
        raise Usage('"after" must be a job id or a name, or a list of them')
    return tuple(named)


def _ordered(batch: JobFile) -> list[int]:
    """The indices of the lines; each comes after those in its `after`. Raises Usage for a cycle."""
    order: list[int] = []
    seen: dict[int, bool] = {}  # False while on the current path, True when ordered
    for start in range(len(batch.lines)):
        path = [] if start in seen else [(start, _cited(batch, start))]
        if path:
            seen[start] = False
        while path:
            index, cited = path[-1]
            following = next(cited, None)
            if following is None:
                path.pop()
                seen[index] = True
                order.append(index)
            elif following not in seen:
                seen[following] = False
                path.append((following, _cited(batch, following)))
            elif not seen[following]:
                _refuse_cycle(batch, [each for each, _ in path], following)
    return order


def _cited(batch: JobFile, index: int) -> Iterator[int]:
    return iter([batch.named[each] for each in batch.lines[index].after if each in batch.named])


def _refuse_cycle(batch: JobFile, path: list[int], back_to: int) -> None:
    cycle = [*path[path.index(back_to) :], back_to]
    with batch.at(batch.lines[back_to]):
        raise Usage(f"cycle in after: {' → '.join(str(batch.lines[index].name) for index in cycle)}")


def _cited_jobs(runtime: Runtime, batch: JobFile) -> dict[str, str]:
    """The full ids of cited jobs that are not lines of this file."""
    there: dict[str, str] = {}
    for line in batch.lines:
        for cited in line.after:
            if cited in batch.named or cited in there:
                continue
            with batch.at(line):
                try:
                    there[cited] = ulid_text(runtime.find(cited))
                except Usage as error:
                    raise Usage(f'"after" {cited!r} is neither the name of a line nor a job: {error}') from None
    return there


def _submit(
    tx: Transaction, batch: JobFile, order: Iterable[int], there: dict[str, str], bar: Progress
) -> dict[int, Submitted]:
    """Submits the lines and returns the outcome of each. A name stands for the job of its line, which may have existed
    before.
    """
    made: dict[int, Submitted] = {}
    for index in order:
        line = batch.lines[index]
        ready = line.draft
        with batch.at(line):
            if line.after:
                ids = [there.get(each) or ulid_text(made[batch.named[each]].job_id) for each in line.after]
                ready = ready._replace(policy=policy(ready.policy, after=ids))
            made[index] = jobs.submit(tx, [ready])[0]
        if len(made) % STEP == 0:
            bar(len(made), len(batch.lines))
    return made
