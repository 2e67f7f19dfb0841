"""A file of an archive: the ops that one author wrote on one day, UTC, as they left its node. A day with very many ops
has several parts. The name, the borders and the content follow from the ops alone, so two nodes write the same file.

The file is one zstd frame. Its content is a line of JSON, the header, and then the ops, each a varint with its length
and then its bytes. An op bears its author's signature, and a link to the author's op before: so a file needs no other
to be verified, and its first op shows which file comes before it.
"""

import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Usage
from hocket.kernel.clock import parse_wall, wall_text
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import node_id, node_text
from hocket.kernel.ops import MAX_OP_BYTES
from hocket.kernel.postcard import Malformed, Reader, write_varint

FORMAT = 1
DAY_MS = 86_400_000
# A part ends before the op with which it would have more ops or bytes than this.
PART_OPS_MAX = 65_536
PART_BYTES_MAX = 16 * 1024 * 1024
_LEVEL = 9
_CONTENT_BYTES_MAX = PART_BYTES_MAX + MAX_OP_BYTES
# A frame of bytes that cannot be compressed is a little larger than its content.
FILE_BYTES_MAX = _CONTENT_BYTES_MAX + _CONTENT_BYTES_MAX // 128
_NAME = re.compile(r"(\d{4,5}-\d\d-\d\d)(?:\.([1-9]\d{0,8}))?\.ops\.zst")


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`mesh` is the user, whose key the mesh is known by; `key` is the author's public key, in hexadecimal."""

    archive: int
    mesh: str
    author: str
    key: str
    day: str
    part: int
    ops: int

    @property
    def public(self) -> bytes:
        return bytes.fromhex(self.key)


class DayFile(NamedTuple):
    header: Header
    ops: list[bytes]


def day_of(ms: int) -> str:
    return wall_text(ms).partition("T")[0]


def start_of(day: str) -> int:
    """The first millisecond of the day. Raises ValueError."""
    return parse_wall(f"{day}T00:00:00.000Z")


def file_name(day: str, part: int) -> str:
    return f"{day}.ops.zst" if part == 0 else f"{day}.{part}.ops.zst"


def place_in(name: str) -> tuple[str, int] | None:
    """The day and the part that a file with this name has."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    return found[1], int(found[2] or 0)


def fits(part: Sequence[bytes], size: int, op: bytes) -> bool:
    """Whether an op belongs to the part that already has these ops, of so many bytes."""
    return not part or (len(part) < PART_OPS_MAX and size + len(op) <= PART_BYTES_MAX)


def encode(file: DayFile) -> bytes:
    content = bytearray(msgspec.json.encode(file.header) + b"\n")
    for op in file.ops:
        write_varint(content, len(op))
        content += op
    zstd = _zstd()
    options = {zstd.CompressionParameter.compression_level: _LEVEL, zstd.CompressionParameter.checksum_flag: 1}
    return bytes(zstd.compress(bytes(content), options=options))


def decode(frame: bytes) -> DayFile:
    """Raises Malformed."""
    reader = Reader(_content(frame))
    end = reader.data.find(b"\n") + 1
    try:
        header = decode_json(reader.data[:end], Header)
    except msgspec.MsgspecError as error:
        raise Malformed(f"its header cannot be read: {error}") from None
    if header.archive != FORMAT:
        raise Malformed(f"it has format {header.archive}, and this program reads {FORMAT}; upgrade hocket")
    if msgspec.json.encode(header) + b"\n" != reader.data[:end]:
        raise Malformed("its header is not written as an archive has it")
    reader.pos = end
    ops: list[bytes] = []
    size = 0
    while reader.remaining():
        op = reader.take(reader.varint(MAX_OP_BYTES))
        if not fits(ops, size, op):
            raise Malformed("it has more ops than a part has")
        ops.append(op)
        size += len(op)
    if len(ops) != header.ops or not ops:
        raise Malformed(f"it has {len(ops)} ops, and its header counts {header.ops}")
    try:
        key = header.public
    except ValueError:
        raise Malformed("its header has no key") from None
    if node_text(node_id(key)) != header.author:
        raise Malformed(f"its key is not that of node {header.author}")
    return DayFile(header, ops)


def _content(frame: bytes) -> bytes:
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    try:
        content = bytes(decompressor.decompress(frame, max_length=_CONTENT_BYTES_MAX))
    except zstd.ZstdError as error:
        raise Malformed(f"it cannot be decompressed: {error}") from None
    if not decompressor.eof:
        raise Malformed("it is cut off" if decompressor.needs_input else "it is larger than a file of an archive")
    if decompressor.unused_data:
        raise Malformed("bytes follow its end")
    return content


def _zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Usage("archives need zstd; install hocket with it: pip install 'hocket[archive]'") from None
