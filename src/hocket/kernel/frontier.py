"""Causal frontiers: for each author, the time of the last op that a node has from it. A node holds every author's ops
from the beginning without gaps, so a frontier tells exactly what it has, and two of them tell what one node lacks of
the other. This module has their form as bytes and as the text of a cursor; the store finds the ops behind one.
"""

from hocket.kernel.clock import Hlc
from hocket.kernel.jws import base64url, from_base64url
from hocket.kernel.postcard import NODE, U32, U64, Codec, Malformed, Reader, write_varint

AUTHORS_MAX = 10_000
# An author's id and a full timestamp take at most 35 bytes, and 4 characters carry 3 bytes.
_TEXT_CHARS_MAX = (10 + 35 * AUTHORS_MAX) * 4 // 3 + 4

Frontier = dict[int, Hlc]

# The last entry that was encoded of each author: most authors have written nothing since the last frontier.
_entries: dict[int, tuple[Hlc, bytes]] = {}


def _write_stamp(out: bytearray, stamp: Hlc) -> None:
    U64.write(out, stamp.wall)
    U32.write(out, stamp.logical)
    NODE.write(out, stamp.node)


STAMP: Codec[Hlc] = Codec(_write_stamp, lambda r: Hlc(U64.read(r), U32.read(r), NODE.read(r)))


def encode_frontier(frontier: Frontier) -> bytes:
    if len(frontier) > AUTHORS_MAX:
        raise Malformed(f"a frontier of {len(frontier)} authors; at most {AUTHORS_MAX}")
    out = bytearray()
    write_varint(out, len(frontier))
    for author, stamp in sorted(frontier.items()):
        out += _entry(author, stamp)
    return bytes(out)


def _entry(author: int, stamp: Hlc) -> bytes:
    last = _entries.get(author)
    if last is not None and last[0] == stamp:
        return last[1]
    if stamp.node != author:
        raise Malformed("a frontier gives an author the time of another")
    out = bytearray()
    NODE.write(out, author)
    STAMP.write(out, stamp)
    entry = bytes(out)
    if len(_entries) >= AUTHORS_MAX:
        _entries.clear()
    _entries[author] = stamp, entry
    return entry


def decode_frontier(data: bytes) -> Frontier:
    r = Reader(data)
    count = U64.read(r)
    if count > AUTHORS_MAX:
        raise Malformed(f"a frontier of {count} authors; at most {AUTHORS_MAX}")
    frontier: Frontier = {}
    last = -1
    for _ in range(count):
        author = NODE.read(r)
        if author <= last:
            raise Malformed("the authors of a frontier do not ascend")
        stamp = STAMP.read(r)
        if stamp.node != author:
            raise Malformed("a frontier gives an author the time of another")
        frontier[author] = stamp
        last = author
    if r.remaining():
        raise Malformed(f"{r.remaining()} bytes follow the frontier")
    return frontier


def frontier_text(frontier: Frontier) -> str:
    """The cursor of a request: base64url without padding. The empty one, "from the beginning", is AA."""
    return base64url(encode_frontier(frontier)).decode("ascii")


def parse_frontier(text: str) -> Frontier:
    if len(text) > _TEXT_CHARS_MAX or not text.isascii():
        raise Malformed("a cursor is base64url, and no longer than a frontier can be")
    return decode_frontier(from_base64url(text.encode("ascii")))


def merge(a: Frontier, b: Frontier) -> Frontier:
    """What two nodes have together: the later time for each author."""
    merged = dict(a)
    for author, stamp in b.items():
        mine = merged.get(author)
        if mine is None or stamp > mine:
            merged[author] = stamp
    return merged
