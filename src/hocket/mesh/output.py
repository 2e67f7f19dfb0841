"""The output of jobs across the mesh, while they run and for some time afterwards. A node asks its peers for output. A
peer that does not run the job itself passes the wish on as a hint to the node that does, if that node listens there:
it need not be reachable itself. That node then pushes what its runs write for as long as the wish is repeated, and the
peer keeps a copy, within the limits of `output_files`, from which it answers. So a slow reader delays nothing.

A node that may read the job's artifacts may read its output.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

import msgspec

from hocket.bus.hints import OUTPUT, Changes
from hocket.errors import HocketError, Unreachable
from hocket.families import artifacts
from hocket.families.access import NodeAccess
from hocket.families.blobs import BLOB_BYTES_MAX, Blobs
from hocket.families.jobs.rules import Job
from hocket.kernel.decoding import decode_json
from hocket.kernel.extension import extension_kind
from hocket.kernel.ids import content_hash, hash_text, parse_ulid, ulid_text
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import JOB, ClaimWork, CreateArtifact, Subject, number_of
from hocket.log import Log
from hocket.mesh import outgoing, wire
from hocket.mesh.client import Client, Refused
from hocket.mesh.outgoing import JobKinds, PeerReader, Undecided, kind_of
from hocket.mesh.wire import Reply
from hocket.store import Session, Stage
from hocket.work.output_files import HANDLER, STREAM_TYPES, STREAMS, OutputFiles, OutputPart

PART_BYTES = 256 * 1024
# A wish counts for this long; whoever reads repeats it.
WANTED_S = 6.0
WANTED_MAX = 256
# How often a node looks for more to push, and for how many jobs at once.
PUSH_S = 0.25
PUSHES_MAX = 32

_FRAME = struct.Struct(">QQQBB")


class AskedOutput(NamedTuple):
    """From where on the output of which run is wanted, or sent."""

    job_id: bytes
    stream: str
    fence: int = 0
    start: int = 0

    def query(self) -> str:
        values = {"job": ulid_text(self.job_id), "stream": self.stream, "fence": self.fence, "from": self.start}
        return urlencode(values)


class FarOutput(NamedTuple):
    """The answer to a wish: what the peer has, and whether it knows that the job has ended."""

    part: OutputPart
    is_done: bool


class PushedOutput(msgspec.Struct):
    """The answer to a push: up to where the peer has the stream, and whether it wants more."""

    have: int
    wanted: bool


def read_query(query: str) -> AskedOutput | None:
    try:
        values = dict(parse_qsl(query, strict_parsing=True, max_num_fields=8))
        fence, start = (int(values[name]) for name in ("fence", "from") if len(values[name]) < 20)
        asked = AskedOutput(parse_ulid(values["job"]), values["stream"], fence, start)
    except (KeyError, ValueError):
        return None
    return asked if asked.stream in STREAMS and fence >= 0 and start >= 0 else None


def encode_part(part: OutputPart, is_done: bool) -> bytes:
    return _FRAME.pack(part.fence, part.start, part.total, part.is_over, is_done) + part.data


def decode_part(body: bytes) -> FarOutput:
    """Raises Malformed."""
    if len(body) < _FRAME.size:
        raise Malformed("output without its frame")
    fence, start, total, is_over, is_done = _FRAME.unpack_from(body)
    return FarOutput(OutputPart(fence, start, body[_FRAME.size :], total, bool(is_over)), bool(is_done))


def streams_of(job: Job) -> Sequence[str]:
    return (HANDLER,) if extension_kind(job.kind) is None else tuple(STREAM_TYPES)


def holders(session: Session, job: Job) -> set[int]:
    """The node that holds or held the job last; all that ever claimed it if it waits for its next run."""
    if job.claimer is not None:
        return {job.claimer}
    rows = session.ops_about(Subject(JOB, job.id))
    return {int.from_bytes(row.hlc[12:], "big") for row in rows if row.variant == number_of(ClaimWork)}


def may_read(to: PeerReader, job: Job) -> bool:
    """Whether a node may read the job's artifacts as they are."""
    artifact = CreateArtifact(NO_ID, STREAM_TYPES["stdout"], job.id, (), content_hash(b""), b"", None, None, 0, None)
    return to.authority.reading(to.node, artifact, to.now_ms, job.kind, to.now_ms) == ()


# The server.


class OutputWishes:
    """The jobs whose output is wanted now. Use it on one event loop."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._until: dict[bytes, float] = {}

    def note(self, job_ids: Iterable[bytes]) -> None:
        for job_id in job_ids:
            self._until.pop(job_id, None)
            self._until[job_id] = self._monotonic() + WANTED_S
        while len(self._until) > WANTED_MAX:
            del self._until[next(iter(self._until))]

    def has(self, job_id: bytes) -> bool:
        return self._until.get(job_id, 0.0) > self._monotonic()


def wanted_in(changes: Changes) -> frozenset[bytes]:
    """The jobs whose output a hint asks for."""
    return frozenset(key for family, key in changes.subjects if family == OUTPUT and key)


def answer_output(log: Log, output: OutputFiles, to: PeerReader, asked: AskedOutput) -> tuple[Reply, bool]:
    """The output that this node has, and whether another node must be asked for more. A caller that may not read it
    gets the same answer as if there were no such job.
    """
    log.settle()
    with log.store.read() as session:
        entry = session.job(asked.job_id)
        if entry is None or not may_read(to, entry.job):
            return Reply(404), False
        is_here = log.node in holders(session, entry.job)
    is_done = entry.stage is Stage.DONE
    part = output.read(ulid_text(asked.job_id), asked.stream, asked.fence, asked.start, PART_BYTES)
    if part is None:
        part = OutputPart(asked.fence, asked.start, b"", asked.start, is_done and is_here)
    return Reply(200, {}, encode_part(part, is_done)), not is_here


def keep_output(log: Log, output: OutputFiles, sender: int, asked: AskedOutput, body: bytes, is_wanted: bool) -> Reply:
    """Copies output that a node pushes: only of jobs that it holds or held, and only while it is wanted."""
    log.settle()
    try:
        part = decode_part(body).part
    except Malformed:
        return Reply(400)
    with log.store.read() as session:
        entry = session.job(asked.job_id)
        if entry is None or sender not in holders(session, entry.job) or not _fits(part, asked, entry.job):
            return Reply(404)
    if not is_wanted:
        return Reply(200, {}, msgspec.json.encode(PushedOutput(0, False)))
    file = output.file(ulid_text(asked.job_id), asked.fence, asked.stream)
    file.write_at(part.start, part.data, part.is_over)
    file.close(is_over=False)
    return Reply(200, {}, msgspec.json.encode(PushedOutput(file.total, True)))


def _fits(part: OutputPart, asked: AskedOutput, job: Job) -> bool:
    """Whether a pushed part can be of a run of the job."""
    kind = extension_kind(job.kind)
    has_own_fences = kind is not None and kind.counts_fences
    return (part.fence, part.start) == asked[2:] and (part.fence <= job.fence or has_own_fences)


# The node that runs the job.


class OutputPushes:
    """Pushes the output of this node's runs to peers that want it. `client` gives the client of a peer by its address.
    Use it on one event loop; close it when done.
    """

    def __init__(
        self,
        access: NodeAccess,
        output: OutputFiles,
        client: Callable[[str], Awaitable[Client]],
        monotonic: Callable[[], float],
    ) -> None:
        self._access, self._output, self._client, self._monotonic = access, output, client, monotonic
        self._until: dict[tuple[str, bytes], float] = {}
        self._tasks: dict[tuple[str, bytes], asyncio.Task[None]] = {}

    def wanted(self, address: str, job_ids: Iterable[bytes]) -> None:
        """A peer wants the output of these jobs now."""
        for job_id in job_ids:
            key = address, job_id
            if key in self._tasks or len(self._tasks) < PUSHES_MAX:
                self._until[key] = self._monotonic() + WANTED_S
            if key not in self._tasks and len(self._tasks) < PUSHES_MAX:
                self._tasks[key] = asyncio.create_task(self._push(address, job_id))
                self._tasks[key].add_done_callback(lambda task, key=key: self._ended(key))  # type: ignore[misc]

    async def close(self) -> None:
        for task in (ending := list(self._tasks.values())):
            task.cancel()
        if ending:
            await asyncio.wait(ending)

    def _ended(self, key: tuple[str, bytes]) -> None:
        del self._tasks[key], self._until[key]

    async def _push(self, address: str, job_id: bytes) -> None:
        """Pushes until the wish is over, or nothing more will come."""
        sent: dict[str, OutputPart] = {}
        is_done = False
        while self._monotonic() < self._until[address, job_id]:
            try:
                client = await self._client(address)
                for asked, found in await self._access.call(partial(self._news, client.node, job_id, sent)):
                    pushed = read_pushed(await client.push_output(asked.query(), encode_part(*found)))
                    if not pushed.wanted:
                        return
                    # The peer may have more than that already, from an earlier wish.
                    end = max(found.part.end, pushed.have)
                    sent[asked.stream] = found.part._replace(start=end, data=b"")
                    is_done = found.is_done
                if is_done and all(part.is_over and part.start >= part.total for part in sent.values()):
                    return
            except HocketError:
                pass  # the wish is repeated, or it is over
            await asyncio.sleep(PUSH_S)

    def _news(self, to: int | None, job_id: bytes, sent: dict[str, OutputPart]) -> list[tuple[AskedOutput, FarOutput]]:
        """What the peer lacks and may read."""
        log = self._access.log
        log.settle()
        with log.store.read() as session:
            entry = session.job(job_id)
        if entry is None or to is None or not may_read(outgoing.reader(log, to), entry.job):
            return []
        is_done, found = entry.stage is Stage.DONE, []
        for stream in streams_of(entry.job):
            last = sent.get(stream, OutputPart(0, 0, b"", 0, False))
            part = self._output.read(ulid_text(job_id), stream, last.fence, last.start, PART_BYTES)
            if part is None and is_done:
                part = OutputPart(entry.job.fence, 0, b"", 0, True)
            if part is not None and (part.data or part._replace(data=b"") != last):
                found.append((AskedOutput(job_id, stream, part.fence, part.start), FarOutput(part, is_done)))
        return found


def read_pushed(body: bytes) -> PushedOutput:
    try:
        return decode_json(body, PushedOutput)
    except msgspec.MsgspecError:
        raise Unreachable("a peer answered a push of output with something else") from None


# The reader.


async def fetch_output(clients: Iterable[Client], asked: AskedOutput) -> FarOutput | None:
    """The next part of the output from the first peer that has some; else what a peer knows about its end."""
    found = None
    for client in clients:
        try:
            await client.meet()
            body = await client.output(asked.query())
            far = None if body is None else decode_part(body)
        except (HocketError, Malformed):
            continue
        if far is not None and (far.part.data or far.part.is_over):
            return far
        found = found or far
    return found


# Blobs across the mesh. Artifact content that is too large for its op stays on the node that made it until another
# node asks for it. A node gives it, part by part, to any node that may read the artifact unsanitised. The other node
# joins the parts and keeps them only if they match the op.

BLOB_PART_BYTES = 4 * 1024 * 1024
# How long a peer may take for one part.
PART_S = 30.0


def answer_blob(log: Log, blobs: Blobs, to: PeerReader, query: str) -> Reply:
    """Part of a blob. A caller that may not have the blob gets the same answer as if it were not here."""
    asked = _asked_part(query)
    if asked is None:
        return Reply(400)
    hash, start = asked

    if not to.reads_everything:
        # The kind of a job decides who may read its artifacts, so the roster must be up to date.
        log.settle()
    with log.store.read() as session:

        def may_read(op: Op) -> bool:
            try:
                kind = kind_of(session, to, op.payload, JobKinds())
            except Undecided:
                return False
            return to.authority.reading(to.node, op.payload, op.timestamp.wall, kind, to.now_ms) == ()

        readable = artifacts.is_readable(session, hash, may_read)
    part = blobs.part(hash, start, BLOB_PART_BYTES) if readable else None
    return Reply(404) if part is None else Reply(200, {"content-type": wire.OCTETS}, part)


def _asked_part(query: str) -> tuple[bytes, int] | None:
    try:
        values = dict(parse_qsl(query, max_num_fields=4))
        start = values.get("from", "0")
        hash = bytes.fromhex(values.get("hash", ""))
    except ValueError:
        return None
    if len(hash) != 32 or not (start.isascii() and start.isdigit() and len(start) < 16):
        return None
    return hash, int(start)


async def fetch_blob(clients: Sequence[Client], hash: bytes, size: int) -> bytes:
    """Fetches a whole blob from the first client that has it. Raises Unreachable if none does."""
    for client in clients:
        try:
            parts = await _blob_parts(client, hash, min(size, BLOB_BYTES_MAX))
        except (Unreachable, Refused, TimeoutError):
            continue
        if parts is not None and content_hash(parts) == hash:
            return parts
    raise Unreachable(f"no reachable node has {hash_text(hash)}")


async def _blob_parts(client: Client, hash: bytes, size: int) -> bytes | None:
    data = bytearray()
    await client.meet()
    while True:
        async with asyncio.timeout(PART_S):
            part = await client.blob(hash, len(data))
        if part is None:
            return None
        data += part
        if not part or len(data) >= size:
            return bytes(data)
