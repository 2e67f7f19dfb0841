"""Records of model calls. Each call leaves a snapshot: the model, the prompt and its context, the output, the duration.
The record is an artifact that goes on the log when the run ends, however it ends, and later outputs of the run are
linked to it. So every output can be traced to its inputs.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Usage
from hocket.families.jobs.requests import Content
from hocket.kernel.clock import Hlc
from hocket.kernel.snapshot import SNAPSHOT_TYPE, Snapshot, encode_snapshot
from hocket.kernel.vocabulary import CreateArtifact, Ids, Telemetry
from hocket.work.run_outputs import RunOutput, RunOutputs, check_id, contain

PROMPT_BYTES_MAX = 8 * 1024 * 1024
OUTPUT_BYTES_MAX = 8 * 1024 * 1024
NAME_CHARS_MAX = 255
CONTEXT_MAX = 1_000
_LISTS = ("evidence", "claim", "entity")


class Question(NamedTuple):
    """What a model is asked, and what went into the prompt."""

    model: str
    version: str
    backend: str
    prompt: str
    evidence: Ids
    claims: Ids
    entities: Ids


class Answer(NamedTuple):
    """A call may return this to report more than its value: the literal output, the actual model version, token counts,
    and an error to raise once the call is recorded.
    """

    value: Any
    text: str | bytes
    version: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: Exception | None = None


def question(model: str, version: str, backend: str, prompt: str, context: Iterable[Any]) -> Question:
    """Raises Usage before the call if it could not be recorded."""
    for name, value in (("model", model), ("version", version), ("backend", backend)):
        if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX:
            raise Usage(
                f"a model call is recorded with its {name}: 1 to {NAME_CHARS_MAX} characters, not {value!r:.99}"
            )
    if not isinstance(prompt, str):
        raise Usage(f"the prompt must be text, not {type(prompt).__name__}; give the literal text")
    size = len(prompt.encode(errors="surrogatepass"))
    if size > PROMPT_BYTES_MAX:
        raise Usage(f"the prompt has {size} bytes, at most {PROMPT_BYTES_MAX}")
    lists: dict[str, dict[bytes, None]] = {name: {} for name in _LISTS}
    for each in context:
        name, given = _sorted_out(each)
        lists[name][given] = None
    if sum(map(len, lists.values())) > CONTEXT_MAX:
        raise Usage(f"the context has more than {CONTEXT_MAX} ids")
    return Question(model, version, backend, _writable(prompt), *(tuple(lists[name]) for name in _LISTS))


def _sorted_out(each: Any) -> tuple[str, bytes]:
    """`evidence:ID`, `claim:ID` or `entity:ID`; an id alone is evidence."""
    if not isinstance(each, str):
        return "evidence", check_id(each)
    name, colon, rest = each.rpartition(":")
    if colon and name not in _LISTS:
        raise Usage(f"bad context id {each!r}: its prefix must be one of {', '.join(_LISTS)}")
    return name or "evidence", check_id(rest)


def infer(products: RunOutputs, asked: Question, call: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Calls the model and records the call. Returns the call's result, or an awaitable if the call returns one."""
    record = _Record(products, asked)
    try:
        value = call(asked.prompt, **options)
    except BaseException as error:
        record.failed(error)
        raise
    return _awaited(record, value) if inspect.isawaitable(value) else record.answered(value)


async def _awaited(record: "_Record", coming: Awaitable[Any]) -> Any:
    try:
        value = await coming
    except BaseException as error:
        record.failed(error)
        raise
    return record.answered(value)


class _Record:
    """One call from its beginning to its end."""

    def __init__(self, products: RunOutputs, asked: Question) -> None:
        self._products = products
        self._asked = asked
        kit = products.kit
        self._began = kit.monotonic()
        self._started_at = kit.now()
        self._id = kit.new_id(self._started_at.wall)
        products.begin(self._id, self._unanswered)

    def answered(self, value: Any) -> Any:
        answer = value if isinstance(value, Answer) else _read(value)
        text = _writable(answer.text)
        size = len(text.encode())
        if size > OUTPUT_BYTES_MAX:
            cut = text.encode()[:OUTPUT_BYTES_MAX].decode(errors="ignore")
            self._end(answer, f"{cut}\n[cut: {size} bytes in all]")
            raise Usage(f"the model's output has {size} bytes, at most {OUTPUT_BYTES_MAX}; it is recorded shortened")
        self._end(answer, text)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def failed(self, error: BaseException) -> None:
        self._end(Answer(None, ""), _writable(f"[no answer: {type(error).__name__}: {error}]"))

    def _end(self, answer: Answer, text: str) -> None:
        self._products.end(self._id, self._made(answer, text, self._products.kit.now()))

    def _unanswered(self, now: Hlc) -> RunOutput:
        return self._made(Answer(None, ""), "[no answer: the run was over before one came]", now)

    def _made(self, answer: Answer, text: str, now: Hlc) -> RunOutput:
        asked, kit = self._asked, self._products.kit
        version = answer.version or asked.version
        taken_ms = max(0, int((kit.monotonic() - self._began) * 1000))
        snapshot = Snapshot(
            model_id=asked.model,
            model_version=version,
            backend=asked.backend,
            evidence=asked.evidence,
            claims=asked.claims,
            entities=asked.entities,
            prompt=asked.prompt,
            output=text,
            telemetry=Telemetry(taken_ms, answer.prompt_tokens, answer.completion_tokens, None),
            started_at=self._started_at,
            completed_at=max(self._started_at, now),
        )
        content = contain(kit.blobs, encode_snapshot(snapshot))
        payload = self._products.named(_creation(self._id, self._products.job_id, snapshot, content))
        return RunOutput(payload.artifact_id, payload, (), content.staged, is_snapshot=True)


def _creation(artifact_id: bytes, job_id: bytes, snapshot: Snapshot, content: Content) -> CreateArtifact:
    model = snapshot.model_id, snapshot.model_version
    return CreateArtifact(
        artifact_id, SNAPSHOT_TYPE, job_id, snapshot.evidence, content.hash, content.inline, *model, content.size, None
    )


def _read(value: Any) -> Answer:
    """The answer in a plain value. Model clients return token counts as `usage`."""
    usage = member(value, "usage")
    prompt_tokens = count(member(usage, "prompt_tokens"), member(usage, "input_tokens"))
    completion_tokens = count(member(usage, "completion_tokens"), member(usage, "output_tokens"))
    return Answer(value, _said(value), None, prompt_tokens, completion_tokens)


def _said(value: Any) -> str | bytes:
    """The output as text: itself, else as JSON, else its repr."""
    if isinstance(value, str | bytes):
        return value
    dump = getattr(value, "model_dump_json", None)
    try:
        return str(dump()) if callable(dump) else msgspec.json.encode(value)
    except Exception:
        return repr(value)


def member(value: Any, name: str) -> Any:
    """The member of a dictionary or an object with that name."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def count(*values: Any) -> int | None:
    """The first value that is a token count."""
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and 0 <= v < 2**63), None)


def _writable(text: str | bytes) -> str:
    """Text that can be stored: bytes that are not UTF-8 are shown as `\\xff`, and half a character as its number."""
    if isinstance(text, bytes):
        return text.decode(errors="backslashreplace")
    return text.encode(errors="backslashreplace").decode()
