"""`hocket submit`: submits one job from the command line, and can wait for the result, or the jobs of a file in one
transaction: all or none. The lines of a file may have names and cite each other in any order. Every job is submitted
after the jobs in its `after`; otherwise the order of lines holds. Every error names its line.

A file is read twice, first to check every line and then to submit it, so that a long file needs little memory: of each
line only its place is kept, and of some lines their names.
"""

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple

from hocket.cli.declarations import Argument, Option
from hocket.cli.options import JobOptions, decoded, job_options, payload, seconds
from hocket.cli.printing import Progress, emit, emit_each, emit_line, progress, say
from hocket.cli.settings import deliver, open_runtime, open_service, spool_for
from hocket.errors import CommitUnknown, HocketError, StoreAway, Usage
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.drafts import OPTION_NAMES, draft, likely, policy
from hocket.families.jobs.requests import PAYLOAD_BYTES_MAX, Draft, Submitted
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.log import Transaction
from hocket.node.runtime import Runtime

if TYPE_CHECKING:
    from hocket.api import Service
    from hocket.cli.long_running import WaitLine


def submit(
    kind: Annotated[str | None, Argument("KIND", "Like acme.render.", show_default=False)] = None,
    data: Annotated[
        str | None, Argument("[JSON|@FILE|-]", "A JSON object: the handler's arguments.", show_default=False)
    ] = None,
    *,
    options: JobOptions,
    wait: Annotated[bool, Option("--wait", help="Wait for the job and print its result as JSON.")] = False,
    wait_for: Annotated[
        str | None, Option("--wait-for", "DURATION", "Wait at most this long, then exit with code 5.")
    ] = None,
    stream: Annotated[
        bool, Option("--stream", help="Print the parts of the result and the progress as they come.")
    ] = False,
    batch: Annotated[
        str | None, Option("--batch", "FILE|-", "Submit every line of a JSON Lines file, all or none.")
    ] = None,
) -> None:
    """Submit a job. The last word of the printed line is its id.

    \b
      hocket submit acme.render '{"frame": 7}' --priority 5 --retries 3
      hocket submit acme.report @args.json --after 01J9Z --not-before +10m
      hocket submit acme.render '{"frame": 8}' --timeout 10m --wait-for 1m
      hocket submit acme.chat '{"prompt": "hello"}' --stream
      hocket submit acme.answer @question.json --score score.yaml
      hocket submit --batch jobs.jsonl

    A line of a batch is {"kind": "acme.render", "payload": {"frame": 7}, "priority": 5, ...}; the options are those
    above, with _ for -. The "after" of a line can cite the "name" of any other line.
    """
    options = job_options(options)
    patience = seconds(wait_for, "--wait-for")
    if stream and patience is not None:
        raise Usage("--stream follows the job to its end; leave out --wait-for, or give the job a --timeout")
    wait = wait or wait_for is not None
    if batch is not None:
        if kind is not None or options or wait or stream:
            raise Usage("a batch names its kinds and options line by line; give --batch alone")
        submit_batch(batch)
    elif kind is None:
        raise Usage("name a kind, like `hocket submit acme.render`, or a file with --batch")
    else:
        _submit_one(kind, data, options, wait, patience, stream)


def _submit_one(
    kind: str, data: str | None, options: dict[str, Any], wait: bool, patience: float | None, stream: bool
) -> None:
    from hocket.api import jobs as operations
    from hocket.api.job_operations.job_submits import submit_drafts

    jobs.check_kind(kind)
    arguments = payload(data)
    try:
        service = open_service()
    except StoreAway as error:
        _keep_one(error, kind, draft(kind, arguments, options), wait or stream)
        return
    with service:
        if "after" in options:
            options["after"] = [operations.find(service, each) for each in options["after"]]
        made = submit_drafts(service, [draft(kind, arguments, options)])[0]
        job_id = ulid_text(made.job_id)
        answer = {"job_id": job_id, "kind": kind, "created": made.created}
        say(f"submitted {kind} {job_id}" if made.created else f"already there {job_id}")
        if service.runtime.kept is not None and (wait or stream):
            raise StoreAway(service.runtime.kept)
        if not wait and not stream:
            emit(answer | {"waits_here": service.deliver()})
            return
        sys.stdout.flush()
        from hocket.cli.long_running import WaitLine

        tell = emit_line if stream else emit
        try:
            with WaitLine(job_id) as line:
                printed = _print_parts(service, job_id, line) if stream else 0
                result = operations.result(service, job_id, patience, line.show)
        except HocketError:
            shown = operations.brief(service, job_id)
            tell(answer | {"outcome": shown.outcome, "result": None, "error": shown.error})
            raise
        tell(answer | {"outcome": "succeeded", "result": result, "error": None})
        if not printed:
            _say_json(result)


def _keep_one(error: StoreAway, kind: str, draft: Draft, waits: bool) -> None:
    """Keeps the job in the home while the database is away."""
    from hocket.node.kept_requests import kept_jobs
    from hocket.node.spool import sentence

    job_id = ulid_text(kept_jobs(spool_for(error), error, [draft])[0].job_id)
    emit({"job_id": job_id, "kind": kind, "created": True, "waits_here": sentence(error)})
    say(f"submitted {kind} {job_id}")
    if waits:
        raise error


def _print_parts(service: "Service", job_id: str, line: "WaitLine") -> int:
    """Returns how many there were."""
    from contextlib import closing

    from hocket.api import jobs as operations
    from hocket.cli.long_running import PartsPrinter
    from hocket.node.calls import StreamNews

    printer = PartsPrinter()

    def progress(note: Any) -> None:
        line.clear()
        printer.progress(note)

    try:
        with closing(operations.stream(service, job_id, StreamNews(progress, line.show))) as parts:
            for part in parts:
                line.clear()
                printer.part(part)
    finally:
        printer.end_line()
    return printer.count


def _say_json(value: Any) -> None:
    import msgspec

    say(msgspec.json.encode(value).decode())


LINES_MAX = 1_000_000
LINE_BYTES_MAX = 2 * PAYLOAD_BYTES_MAX
STEP = 1_000
ID_BYTES = 16
_OWN = {"kind", "payload", "name", "after"}


class BatchLine(NamedTuple):
    """A job as its line describes it. `after` holds names of other lines, or job ids."""

    number: int
    name: str | None
    after: tuple[str, ...]
    draft: Draft


class JobFile:
    """A checked file: where each of its jobs stands, its kind, and which jobs cite which. Jobs are counted from 0."""

    def __init__(self, source: str, file: BinaryIO) -> None:
        self.source = source
        self._file = file
        self._places, self._numbers, self._kinds = array("Q"), array("L"), array("L")
        self._kind_numbers: dict[str, int] = {}
        self.named: dict[str, int] = {}
        self.after: dict[int, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def at(self, index: int) -> Iterator[None]:
        with _placed(self.source, self._numbers[index]):
            yield

    def number(self, index: int) -> int:
        return self._numbers[index]

    def kinds(self) -> Sequence[str]:
        """The kind of each job."""
        names = list(self._kind_numbers)
        return [names[number] for number in self._kinds]

    def name(self, index: int) -> str:
        return next(name for name, other in self.named.items() if other == index)

    def add(self, place: int, line: BatchLine) -> None:
        index = len(self)
        if line.name is not None and (first := self.named.setdefault(line.name, index)) != index:
            raise Usage(f"line {self._numbers[first]} already has the name {line.name!r}")
        if line.after:
            self.after[index] = line.after
        self._places.append(place)
        self._numbers.append(line.number)
        self._kinds.append(self._kind_numbers.setdefault(line.draft.kind, len(self._kind_numbers)))

    def draft(self, index: int) -> Draft:
        """Reads a job again."""
        self._file.seek(self._places[index])
        return _line(self._numbers[index], self._file.readline(LINE_BYTES_MAX + 1)).draft


class Outcomes:
    """The job of each line, and whether it is new."""

    def __init__(self, count: int) -> None:
        self._ids, self._created = bytearray(ID_BYTES * count), bytearray(count)

    def put(self, index: int, made: Submitted) -> None:
        self._ids[ID_BYTES * index : ID_BYTES * (index + 1)] = made.job_id
        self._created[index] = made.created

    def job_id(self, index: int) -> str:
        return ulid_text(bytes(self._ids[ID_BYTES * index : ID_BYTES * (index + 1)]))

    def is_new(self, index: int) -> bool:
        return bool(self._created[index])


@contextmanager
def _placed(source: str, number: int) -> Iterator[None]:
    try:
        yield
    except HocketError as error:
        raise type(error)(f"{source} line {number}: {error}") from error


def submit_batch(source: str) -> None:
    """Reads, orders and submits a file, and prints the outcome of each line."""
    with ExitStack() as stack:
        try:
            runtime: Runtime | StoreAway = stack.enter_context(open_runtime())
        except StoreAway as error:
            runtime = error
        file = stack.enter_context(_opened(source))
        name = "standard input" if source == "-" else source
        with progress("reading") as bar:
            batch = _read(name, file, bar)
        if not len(batch):
            raise Usage(f"{name}: nothing to submit")
        made = Outcomes(len(batch))
        if isinstance(runtime, StoreAway):
            _keep(batch, runtime, made)
        else:
            try:
                there = _cited_jobs(runtime.find, batch)
                with progress("submitting") as bar:
                    runtime.log.run_each(_steps(batch, _ordered(batch), there, made, bar))
                deliver(runtime)
            except StoreAway as error:
                if isinstance(error, CommitUnknown):
                    raise
                _keep(batch, error, made)
    kinds = batch.kinds()
    emit_each(
        {"line": batch.number(n), "job_id": made.job_id(n), "kind": kinds[n], "created": made.is_new(n)}
        for n in range(len(batch))
    )
    for n in range(len(batch)):
        say(f"{f'submitted {kinds[n]}' if made.is_new(n) else 'already there'} {made.job_id(n)}")


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    """The file, or a copy of what a pipe gives: it is read twice."""
    with ExitStack() as stack:
        try:
            file: BinaryIO = sys.stdin.buffer if source == "-" else stack.enter_context(Path(source).open("rb"))
            if source == "-" or not file.seekable():
                import shutil
                import tempfile

                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(file, copy)
                copy.seek(0)
                file = copy
        except OSError as error:
            raise Usage(f"cannot read the batch {source}: {error.strerror}") from None
        yield file


def _read(source: str, file: BinaryIO, bar: Progress) -> JobFile:
    batch = JobFile(source, file)
    number = place = 0
    while text := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if number > LINES_MAX:
            raise Usage(f"{source} has more than {LINES_MAX} lines; split it")
        if number % STEP == 0:
            bar(number, number)
        if not text.isspace():
            with _placed(source, number):
                if len(text) > LINE_BYTES_MAX:
                    raise Usage(f"longer than {LINE_BYTES_MAX} bytes; pass a reference instead of the data")
                batch.add(place, _line(number, text))
        place += len(text)
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
    for key in options:
        if key not in OPTION_NAMES:
            known = sorted({*_OWN, *OPTION_NAMES})
            raise Usage(f"unknown member {key!r}{likely(key, known)}; known are {', '.join(known)}")
    for key, each in options.items():
        _check_option(key, each)
    return BatchLine(number, name, _after(value.get("after")), draft(kind, value.get("payload", {}), options))


def _check_option(key: str, value: Any) -> None:
    wrong = not isinstance(value, bool) if key == "open" else isinstance(value, bool | list | dict)
    if key in ("budget", "score"):
        wrong = not isinstance(value, dict)
    elif key in ("needs", "tags", "index"):
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


def _ordered(batch: JobFile) -> Iterable[int]:
    """The jobs in an order in which each comes after those in its `after`. Raises Usage for a cycle."""
    if not batch.after:
        return range(len(batch))
    order = array("L")
    begun, ordered = bytearray(len(batch)), bytearray(len(batch))
    for start in range(len(batch)):
        path = [] if begun[start] else [(start, _cited(batch, start))]
        begun[start] = True
        while path:
            index, cited = path[-1]
            following = next(cited, None)
            if following is None:
                path.pop()
                ordered[index] = True
                order.append(index)
            elif not begun[following]:
                begun[following] = True
                path.append((following, _cited(batch, following)))
            elif not ordered[following]:
                _refuse_cycle(batch, [each for each, _ in path], following)
    return order


def _cited(batch: JobFile, index: int) -> Iterator[int]:
    return iter([batch.named[each] for each in batch.after.get(index, ()) if each in batch.named])


def _refuse_cycle(batch: JobFile, path: list[int], back_to: int) -> None:
    cycle = [*path[path.index(back_to) :], back_to]
    with batch.at(back_to):
        raise Usage(f"cycle in after: {' → '.join(map(batch.name, cycle))}")


def _keep(batch: JobFile, error: StoreAway, made: Outcomes) -> None:
    """Keeps the jobs in the home while the database is away. Jobs that are not lines are cited by their whole ids."""
    from hocket.node.kept_requests import kept_jobs

    there, drafts, spool = _cited_jobs(parse_ulid, batch), list[Draft](), spool_for(error)
    order = list(_ordered(batch))
    place = {index: at for at, index in enumerate(order)}
    for index in order:
        with batch.at(index):
            drafts.append(batch.draft(index))
    cited = [[there.get(each) or place[batch.named[each]] for each in batch.after.get(index, ())] for index in order]
    for index, kept in zip(order, kept_jobs(spool, error, drafts, cited), strict=True):
        made.put(index, kept)


def _cited_jobs(find: Callable[[str], bytes], batch: JobFile) -> dict[str, str]:
    """The full ids of cited jobs that are not lines of this file."""
    there: dict[str, str] = {}
    for index, after in batch.after.items():
        for cited in after:
            if cited in batch.named or cited in there:
                continue
            with batch.at(index):
                try:
                    there[cited] = ulid_text(find(cited))
                except ValueError as error:
                    raise Usage(f'"after" {cited!r} is neither the name of a line nor a job: {error}') from None
    return there


def _steps(
    batch: JobFile, order: Iterable[int], there: Mapping[str, str], made: Outcomes, bar: Progress
) -> Iterator[Any]:
    """Requests that submit the jobs, some at a time."""
    left, done = iter(order), 0
    while some := list(islice(left, STEP)):
        yield partial(_submit, batch=batch, some=some, there=there, made=made)
        done += len(some)
        bar(done, len(batch))


def _submit(tx: Transaction, batch: JobFile, some: Iterable[int], there: Mapping[str, str], made: Outcomes) -> None:
    """A name stands for the job of its line, which may have existed before."""
    for index in some:
        with batch.at(index):
            ready = batch.draft(index)
            if after := batch.after.get(index):
                ids = [there.get(each) or made.job_id(batch.named[each]) for each in after]
                ready = ready._replace(policy=policy(ready.policy, after=ids))
            made.put(index, jobs.submit(tx, [ready])[0])
