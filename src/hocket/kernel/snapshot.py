"""The record of one model call, which becomes the content of a `likewise.inference.snapshot` artifact: which model was
asked what, on which evidence, and what it said. Here is its form and no more; when a call must be recorded is decided
by authority, and whether an output names its record by the fold.
"""

from msgspec import Struct

from hocket.kernel.clock import Hlc
from hocket.kernel.frontier import STAMP
from hocket.kernel.postcard import STR, Codec, Reader, decode, encode
from hocket.kernel.postcard import struct as fields
from hocket.kernel.vocabulary import TELEMETRY, ULIDS, Ids, Telemetry

SNAPSHOT_TYPE = "likewise.inference.snapshot"


class Snapshot(Struct, frozen=True):
    """The three lists of ids are what was put before the model; the two times enclose the call. `rest` is whatever a
    later version of the record adds: it is not understood here, and kept."""

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


# The last field has no length of its own: it goes on to the end, and is empty in a record of this version.
_REST: Codec[bytes] = Codec(bytearray.extend, _read_rest)
_SNAPSHOT = fields(Snapshot, STR, STR, STR, ULIDS, ULIDS, ULIDS, STR, STR, TELEMETRY, STAMP, STAMP, _REST)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    return encode(_SNAPSHOT, snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """The record in these bytes, or Malformed."""
    return decode(_SNAPSHOT, data)
