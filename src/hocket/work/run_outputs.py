"""What a run produces besides its result: artifacts, ops for a knowledge graph, and the records of its model calls.
They are gathered while the handler runs and go on the log together with its end. A failed run keeps only the records of
model calls and the evidence of what it did; a stopped run keeps only the records: its outputs are void, but the calls
have happened.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hocket.errors import Failed, Usage
from hocket.families.blobs import Blobs, Staged, beginning
from hocket.families.inbox.facts import SendMessage
from hocket.families.jobs.parts import (
    PART_BYTES_MAX,
    PARTS_MAX,
    WHOLE_BYTES_MAX,
    WHOLE_BYTES_TYPE,
    WHOLE_TYPE,
    encode_whole,
)
from hocket.families.jobs.requests import NOTHING, Content, WrittenOutputs, creation
from hocket.families.jobs.rules import Job
from hocket.families.json_values import encode_json
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, parse_ulid
from hocket.kernel.ops import artifact_id
from hocket.kernel.postcard import Malformed
from hocket.kernel.postcard import encode as encode_value
from hocket.kernel.texts import duration_ms
from hocket.kernel.vocabulary import (
    PAYLOAD,
    AddEntityAlias,
    CreateArtifact,
    CreateClaim,
    CreateEntity,
    CreateEpisode,
    CreateSuggestedAction,
    Ids,
    IngestEvidence,
    MergeEntities,
    Payload,
    SplitEntity,
    SupersedeClaim,
    TombstoneEvidence,
    UpdateActionStatus,
    UpdateClaimConfidence,
    UpdateClaimStatus,
    UpdateEpisode,
)
from hocket.log import Transaction
from hocket.store import Session
from hocket.work.output_files import OutputFiles

INLINE_BYTES_MAX = 64 * 1024
# How many bytes the artifacts of one run may have inside ops if another member submitted the job. The rest goes into
# blobs, which are not on the log.
MEMBER_INLINE_BYTES_MAX = 256 * 1024
if TYPE_CHECKING:
    from hocket.families.jobs.apart import FetchBlob

TYPE_CHARS_MAX = 255
INPUTS_MAX = 1_000
# An op can cite a little more than a thousand others, and the completion cites every record of a model call.
PRODUCTS_MAX = 1_000
EMIT_BYTES_MAX = 1024 * 1024
TTL_MS_MAX = 100 * 365 * 86_400_000
RESERVED_TYPES = ("hocket.", "likewise.")
GRAPH_OPS = (
    *(IngestEvidence, TombstoneEvidence, CreateEntity, AddEntityAlias, MergeEntities, SplitEntity),
    *(CreateClaim, UpdateClaimStatus, UpdateClaimConfidence, SupersedeClaim),
    *(CreateEpisode, UpdateEpisode, CreateSuggestedAction, UpdateActionStatus),
)


def _unavailable(wanted: object) -> Any:
    raise Usage("this run has no node")


class RunParts:
    """The parts of a result that a run has made so far, each as JSON. The handler's thread adds them and never waits
    for anyone; others read meanwhile, and the node sends what is there. At the end they become the whole, an artifact
    of the run.
    """

    def __init__(self, job_id: bytes, fence: int) -> None:
        self.job_id, self.fence = job_id, fence
        self.made: list[bytes] = []
        self.is_bytes = False
        self.is_over = False
        self._size = 0

    def encode(self, value: Any) -> tuple[bytes, bool]:
        """The next part as JSON, and whether it is bytes. Raises ValueError if it is too large, there are too many, or
        it is not like those before.
        """
        is_bytes = isinstance(value, bytes | bytearray | memoryview)
        written = msgspec.json.encode(bytes(value)) if is_bytes else encode_json(value, "the part")
        if self.made and is_bytes is not self.is_bytes:
            raise ValueError("the parts of a job are all bytes, or none of them is")
        if len(written) > PART_BYTES_MAX:
            raise ValueError(f"the part has {len(written)} bytes as JSON, at most {PART_BYTES_MAX}; give smaller ones")
        if len(self.made) >= PARTS_MAX:
            raise ValueError(f"a job has at most {PARTS_MAX} parts; give larger ones")
        if self._size + len(written) > WHOLE_BYTES_MAX:
            raise ValueError(f"the parts of a job have at most {WHOLE_BYTES_MAX} bytes together; make an artifact")
        return written, is_bytes

    def add(self, written: bytes, is_bytes: bool) -> None:
        self.is_bytes = is_bytes
        self._size += len(written) + 1
        self.made.append(written)

    @property
    def whole(self) -> tuple[bytes, str]:
        """All parts as one artifact, and its type."""
        return encode_whole(self.made), WHOLE_BYTES_TYPE if self.is_bytes else WHOLE_TYPE


class RunServices(NamedTuple):
    """What a run gets from its node. `now` reads the log's clock and `new_id` makes an id for a time in milliseconds;
    `audited` is whether every model call must be recorded. Any thread may call them, even one that can be interrupted
    anywhere, so none of them touches the store in the caller's thread. `read` runs a query, and `node` gives a node for
    a handler, async or not. `output` keeps what the handler prints and logs, if it is kept. `stream` sends the parts of
    a result that are there to those who follow the job. `room` is how many bytes the outputs of a job may have, None if
    there is no limit. `payload` gives the payload of a job; the second argument is what its op has. `fetch` gives a
    blob of another node. `clock_ms` is the node's clock in milliseconds. `pacers` make what paces every run of this
    process, and `beat_ms` is one beat of the cluster's tempo, None without a tempo.
    """

    blobs: Blobs
    now: Callable[[], Hlc]
    new_id: Callable[[int], bytes]
    monotonic: Callable[[], float]
    audited: Callable[[], bool]
    read: Callable[[Callable[[Session], Any]], Any] = _unavailable
    node: Callable[[bool], Any] = _unavailable
    output: OutputFiles | None = None
    stream: Callable[[RunParts], None] = lambda parts: None
    room: Callable[[Job], int | None] = lambda job: None
    payload: Callable[[Job, bytes], bytes] = lambda job, inline: inline
    fetch: "FetchBlob | None" = None
    clock_ms: Callable[[], int] = lambda: 0
    pacers: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    beat_ms: Callable[[], int | None] = lambda: None


class RunOutput(NamedTuple):
    """One op to be written. `id` is the artifact's, if it makes one; `deps` are the artifacts whose ops it will cite.
    Evidence is kept even if the run fails.
    """

    id: bytes
    payload: Payload
    deps: Ids = ()
    staged: Staged | None = None
    is_snapshot: bool = False
    is_evidence: bool = False


class Evidence(NamedTuple):
    """An artifact to be written."""

    id: bytes
    hash: bytes
    size: int


class RunOutputs:
    """Safe to use from several threads. `job` is the job of the run, which has ended if it `is_sealed`."""

    def __init__(self, kit: RunServices, job: Job, is_sealed: bool = False) -> None:
        self.kit = kit
        self._job, self.job_id = job, job.id
        self._kept_bytes = self._inline_bytes = 0
        self._lock = threading.Lock()
        self._made: list[RunOutput] = []
        self._open: dict[bytes, Callable[[Hlc], RunOutput]] = {}
        self._sealed = is_sealed

    def artifact(
        self, content: bytes | PathLike[str], type: str, ttl: str | float | None, inputs: Iterable[str | bytes]
    ) -> bytes:
        check_type(type)
        return self._keep(content, type, check_ttl(ttl), check_inputs(inputs), is_evidence=False).id

    def evidence(self, content: bytes | PathLike[str], type: str, *, is_free: bool = False) -> Evidence:
        """Adds an artifact of one of our own types that records what the run did. It is kept even if the run fails. It
        counts towards the submitter's quota unless it `is_free`.
        """
        return self._keep(content, type, None, (), is_evidence=True, is_free=is_free)

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    @cached_property
    def _room(self) -> int | None:
        """How many bytes the submitter's quota leaves for the outputs of this run; None if there is no limit."""
        return self.kit.room(self._job)

    def has_room(self, size: int) -> bool:
        """Whether the quota of the job's submitter has room for so many bytes more."""
        room = self._room
        with self._lock:
            return room is None or self._kept_bytes + size <= room

    def _charge(self, kept: Content) -> None:
        room = self._room
        with self._lock:
            if room is not None and self._kept_bytes + kept.size > room:
                raise Failed(
                    f"the outputs of this job are more than its submitter may store here: {room} bytes are left"
                )
            self._kept_bytes += kept.size
            self._inline_bytes += 0 if kept.inline is None else kept.size

    @property
    def _inline_max(self) -> int:
        room = self._room
        with self._lock:
            left = MEMBER_INLINE_BYTES_MAX - self._inline_bytes
        return INLINE_BYTES_MAX if room is None else max(0, min(INLINE_BYTES_MAX, left))

    def _keep(
        self,
        content: bytes | PathLike[str],
        type: str,
        ttl_ms: int | None,
        inputs: Ids,
        is_evidence: bool,
        is_free: bool = False,
    ) -> Evidence:
        kept = contain(self.kit.blobs, content, INLINE_BYTES_MAX if is_free else self._inline_max)
        try:
            if not is_free:
                self._charge(kept)
            payload = self.named(creation(self.new_id(), type, self.job_id, inputs, kept, ttl_ms))
            self.add(RunOutput(payload.artifact_id, payload, self.snapshots, kept.staged, is_evidence=is_evidence))
        except BaseException:
            self._drop(kept.staged)
            raise
        return Evidence(payload.artifact_id, kept.hash, kept.size)

    def keep_parts(self, parts: RunParts, inline_bytes_max: int) -> None:
        """Adds the whole of the parts as an artifact, in a blob if it has more bytes than that."""
        data, type = parts.whole
        is_inline = len(data) <= inline_bytes_max
        kept = Content(content_hash(data), len(data), data, None) if is_inline else contain(self.kit.blobs, data)
        payload = self.named(creation(self.new_id(), type, self.job_id, (), kept, None))
        self.add(RunOutput(payload.artifact_id, payload, self.snapshots, kept.staged))

    def named(self, payload: CreateArtifact) -> CreateArtifact:
        """Gives an artifact the id derived from its content."""
        return msgspec.structs.replace(payload, artifact_id=artifact_id(self.kit.now().node, payload))

    def emit(self, payload: Payload) -> None:
        """Adds an op about what the run found. An op that comes after model calls is linked to their records."""
        if not isinstance(payload, GRAPH_OPS):
            raise Usage(f"a handler may not emit {type(payload).__name__}")
        snapshots = self.snapshots
        linked = _linked(payload, snapshots, self.job_id) if snapshots else payload
        try:
            size = len(encode_value(PAYLOAD, linked))
        except (Malformed, TypeError, ValueError, AttributeError) as error:
            raise Usage(f"this {type(payload).__name__} cannot be written: {error}") from None
        if size > EMIT_BYTES_MAX:
            raise Usage(f"the {type(payload).__name__} has {size} bytes, at most {EMIT_BYTES_MAX}")
        self.add(RunOutput(self.new_id(), linked, snapshots))

    def new_id(self) -> bytes:
        return self.kit.new_id(self.kit.now().wall)

    @property
    def snapshots(self) -> Ids:
        """The records of model calls so far."""
        with self._lock:
            return tuple(each.id for each in self._made if each.is_snapshot)

    def begin(self, call_id: bytes, unanswered: Callable[[Hlc], RunOutput]) -> None:
        """A model call has begun. `unanswered` gives its record in case no answer comes before the end."""
        with self._lock:
            self._check_room()
            self._open[call_id] = unanswered

    def end(self, call_id: bytes, record: RunOutput) -> None:
        """The call has ended with this record. If the run has ended too, the call is already recorded."""
        with self._lock:
            if self._open.pop(call_id, None) is not None:
                self._made.append(record)
                return
        self._drop(record.staged)

    def add(self, product: RunOutput) -> None:
        with self._lock:
            self._check_room()
            self._made.append(product)

    def _check_room(self) -> None:
        if self._sealed:
            raise Usage("the run has ended; its further outputs are not kept")
        if len(self._made) + len(self._open) >= PRODUCTS_MAX:
            raise Usage(f"a run makes at most {PRODUCTS_MAX} artifacts, ops and model calls; use more jobs")

    def _drop(self, staged: Staged | None) -> None:
        if staged is not None:
            self.kit.blobs.drop(staged)

    def contents(self, bytes_max: int) -> dict[bytes, bytes]:
        """The evidence so far, by hash; only pieces of at most that many bytes."""
        with self._lock:
            kept = [each for each in self._made if each.is_evidence]
        found: dict[bytes, bytes] = {}
        for each in kept:
            if not isinstance(each.payload, CreateArtifact):
                continue
            if each.payload.content_inline is not None:
                found[each.payload.content_hash] = each.payload.content_inline
            elif each.staged is not None and each.staged.size <= bytes_max:
                found[each.staged.hash] = each.staged.path.read_bytes()
        return found

    # The end of the run.

    @property
    def has_staged(self) -> bool:
        with self._lock:
            return any(each.staged is not None for each in self._made)

    def renew(self) -> None:
        """Makes certain that what was staged long ago is still there. Call it before the transaction that writes it."""
        with self._lock:
            self._made = [
                each if each.staged is None else each._replace(staged=self.kit.blobs.renewed(each.staged))
                for each in self._made
            ]

    def write(self, tx: Transaction, whole: bool, stopped: bool = False) -> WrittenOutputs | Reason:
        """Puts everything on the log; for a failed or stopped run, only what must be kept. Returns the reason if an op
        of a complete run would not count.
        """
        done = NOTHING
        written: dict[bytes, bytes] = {}
        for each in self.seal(tx):
            if not (whole or each.is_snapshot or (each.is_evidence and not stopped)):
                self._drop(each.staged)
                continue
            if each.staged is not None:
                self.kit.blobs.keep(each.staged)
            op = tx.author(each.payload, tuple(written[dep] for dep in each.deps if dep in written))
            if not isinstance(op, Reason):
                written[each.id] = op.id
                done = _added(done, each, op.id)
            elif whole and not isinstance(each.payload, SendMessage):
                return op
        return done

    def seal(self, tx: Transaction) -> list[RunOutput]:
        """Everything that the run has made; from here on nothing is added."""
        with self._lock:
            self._sealed = True
            while self._open:
                call_id, unanswered = next(iter(self._open.items()))
                self._made.append(unanswered(Hlc(tx.now, 0, tx.node)))
                del self._open[call_id]
            return list(self._made)


def _added(done: WrittenOutputs, product: RunOutput, op_id: bytes) -> WrittenOutputs:
    payload = product.payload
    if product.is_snapshot:
        return done._replace(snapshots=(*done.snapshots, product.id), records=(*done.records, op_id))
    if isinstance(payload, CreateArtifact):
        return done._replace(artifacts=(*done.artifacts, product.id))
    if isinstance(payload, CreateClaim):
        return done._replace(claims=(*done.claims, payload.claim_id))
    return done


def _linked(payload: Payload, snapshots: Ids, job_id: bytes) -> Payload:
    """The payload, linked to the model calls that it comes from."""
    if isinstance(payload, CreateClaim):
        told = payload.provenance
        provenance = msgspec.structs.replace(
            told, jobs=_union(told.jobs, (job_id,)), snapshots=_union(told.snapshots, snapshots)
        )
        return msgspec.structs.replace(payload, provenance=provenance)
    if isinstance(payload, CreateSuggestedAction) and payload.derivation_job is None:
        return msgspec.structs.replace(payload, derivation_job=job_id)
    return payload


def _union(left: Ids, right: Ids) -> Ids:
    return tuple(dict.fromkeys((*left, *right)))


def contain(blobs: Blobs, content: bytes | PathLike[str], inline_max: int = INLINE_BYTES_MAX) -> Content:
    """Content of at most `inline_max` bytes goes into the op, larger content into a blob."""
    if isinstance(content, bytes | bytearray | memoryview):
        data = bytes(content)
        if len(data) <= inline_max:
            return Content(content_hash(data), len(data), data, None)
        staged = blobs.stage(data)
    elif isinstance(content, PathLike):
        data = beginning(Path(content), inline_max + 1)
        if len(data) <= inline_max:
            return Content(content_hash(data), len(data), data, None)
        staged = blobs.stage(Path(content))
    else:
        raise Usage(f"the content of an artifact must be bytes or a Path, not {type(content).__name__}")
    return Content(staged.hash, staged.size, None, staged)


def check_type(type: str) -> str:
    if not 0 < len(type) <= TYPE_CHARS_MAX or not type.isprintable() or type.startswith(RESERVED_TYPES):
        raise Usage(
            f"illegal artifact type {type!r}; use 1 to {TYPE_CHARS_MAX} printable characters that do not begin with"
            f" {' or '.join(RESERVED_TYPES)}"
        )
    return type


def check_ttl(ttl: str | float | None) -> int | None:
    if ttl is None:
        return None
    try:
        ttl_ms = duration_ms(ttl)
    except ValueError as error:
        raise Usage(f"bad ttl {ttl!r}: {error}") from None
    if not 0 < ttl_ms <= TTL_MS_MAX:
        raise Usage(f"bad ttl {ttl!r}: it must be more than 0 and at most {TTL_MS_MAX // 86_400_000} days")
    return ttl_ms


def check_inputs(inputs: Iterable[str | bytes]) -> Ids:
    ids = tuple(dict.fromkeys(check_id(each) for each in inputs))
    if len(ids) > INPUTS_MAX:
        raise Usage(f"{len(ids)} inputs are too many, at most {INPUTS_MAX}")
    return ids


def check_id(value: str | bytes) -> bytes:
    if isinstance(value, bytes) and len(value) == 16:
        return value
    try:
        return parse_ulid(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise Usage(f"{value!r} is not an id; give a full ULID") from None
