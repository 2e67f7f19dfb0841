"""The record of one model call, which becomes the content of a `likewise.inference.snapshot` artifact: the model, the
prompt, the evidence, and the output. This module defines its form and checks that an artifact's op and its content
agree. `authority` decides when a call must be recorded, and the fold whether an output names its record.
"""

from msgspec import Struct

from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import STAMP
from hocket.kernel.ids import content_hash
from hocket.kernel.postcard import STR, Codec, Malformed, Reader, decode, encode
from hocket.kernel.postcard import struct as fields
from hocket.kernel.vocabulary import TELEMETRY, ULIDS, CreateArtifact, Ids, Telemetry

SNAPSHOT_TYPE = "likewise.inference.snapshot"


class Snapshot(Struct, frozen=True):
    """The three lists of ids are what the model was given; the two times enclose the call. `rest` is whatever a later
    version of the record adds: it is not understood here, but kept.
    """

    model_id: str
    model_version: str
    backend: str
    evidence: Ids
    claims: Ids
    entities: Ids
    prompt: str
    output: str
    telemetry: Telemetry
    started_at: Hlc
    completed_at: Hlc
    rest: bytes = b""


def _read_rest(r: Reader) -> bytes:
    return r.take(r.remaining())


# The last field has no length of its own: it extends to the end, and is empty in a record of this version.
_REST: Codec[bytes] = Codec(bytearray.extend, _read_rest)
_SNAPSHOT = fields(Snapshot, STR, STR, STR, ULIDS, ULIDS, ULIDS, STR, STR, TELEMETRY, STAMP, STAMP, _REST)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return encode(_SNAPSHOT, snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """The record in these bytes, or Malformed."""
    return decode(_SNAPSHOT, data)


def is_record(creation: CreateArtifact) -> bool:
    """Whether the op that creates an artifact has the fields that a record's op must have. Content outside the op is
    not checked.
    """
    if not creation.model_id or not creation.model_version:
        return False
    content = creation.content_inline
    if content is None:
        return True
    if len(content) != creation.size_bytes or content_hash(content) != creation.content_hash:
        return False
    try:
        return not contradictions(decode_snapshot(content), creation)
    except Malformed:
        return False


def contradictions(record: Snapshot, creation: CreateArtifact) -> list[str]:
    """Where a record contradicts the op that created it, or itself."""
    found = []
    if (record.model_id, record.model_version) != (creation.model_id, creation.model_version):
        found.append("names another model than its op")
    if not set(record.evidence) <= set(creation.inputs_used):
        found.append("names other evidence than its op")
    if record.completed_at < record.started_at:
        found.append("ended before it began")
    return found
