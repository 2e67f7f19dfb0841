"""Content over HTTP: sent whole or in a range of bytes (RFC 9110), and received into a file that needs no name. What is
sent whole is checked against its hash before its last bytes leave, so a program that gets all of it has the right one.
"""

import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import IO, Any

from blake3 import blake3

from hocket.api.operation import Download
from hocket.errors import StoreError
from hocket.mesh.wire import OCTETS, BodyTooLong, Reply, Request
from hocket.server.known_programs import TokenEnding
from hocket.server.negotiation import has_tag
from hocket.server.problems import BadRange

UPLOAD_BYTES_MAX = 64 * 1024 * 1024
# The most uploads of one program, and of all, at once.
UPLOADS_OF_PROGRAM_MAX = 4
UPLOADS_MAX = 16
# An upload is in memory up to this size, then in a file.
_MEMORY_BYTES = 1024 * 1024
CHUNK_BYTES = 256 * 1024

_RANGE = re.compile(r"bytes=[ \t]*(\d{0,18})-(\d{0,18})[ \t]*", re.IGNORECASE)

OffLoop = Callable[[Callable[[], Any]], Awaitable[Any]]


def asked_range(request: Request, size: int, tag: str) -> tuple[int, int] | None:
    """The first byte of what is asked for, and the one after the last; None for all. A header that asks for several
    ranges, that cannot be read, or that is for other content asks for all. Raises BadRange.
    """
    found = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if found is None or not (found[1] or found[2]) or request.headers.get("if-range", tag) != tag:
        return None
    first, last = found[1], found[2]
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return None
    if start >= end:
        raise BadRange(size)
    return start, end


def download_reply(
    request: Request, download: Download, headers: Mapping[str, str], ending: TokenEnding, off_loop: OffLoop
) -> Reply:
    tag = f'"{download.hash.hex()}"'
    head = {**headers, "etag": tag, "cache-control": "private, no-cache", "accept-ranges": "bytes"}
    if has_tag(request.headers.get("if-none-match", ""), tag):
        del head["content-type"]
        return Reply(304, head)
    span = asked_range(request, download.size, tag)
    start, end = span or (0, download.size)
    head |= {"content-type": OCTETS, "content-length": str(end - start), "content-disposition": "attachment"}
    if span is not None:
        head["content-range"] = f"bytes {start}-{end - 1}/{download.size}"
    stream = _Chunks(download, start, end, ending, off_loop)
    return Reply(200 if span is None else 206, head, stream=stream)


class _Chunks:
    """The bytes of a range. Ends early, without the last bytes, if its request must end or the content is damaged."""

    def __init__(self, download: Download, start: int, end: int, ending: TokenEnding, off_loop: OffLoop) -> None:
        self._download, self._at, self._end, self._ending, self._off_loop = download, start, end, ending, off_loop
        self._hasher = blake3() if (start, end) == (0, download.size) else None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._at >= self._end:
            raise StopAsyncIteration
        if self._ending.is_set():
            raise self._ending.error("the server stops; ask again for the rest")
        chunk: bytes = await self._off_loop(self._chunk)
        self._at += len(chunk)
        return chunk

    def _chunk(self) -> bytes:
        chunk = self._download.part(self._at, min(CHUNK_BYTES, self._end - self._at))
        if self._hasher is not None:
            self._hasher.update(chunk)
        is_last = self._at + len(chunk) >= self._end
        if not chunk or (is_last and self._hasher is not None and self._hasher.digest() != self._download.hash):
            raise StoreError("the content is damaged")
        return chunk


async def uploaded(request: Request, folder: Path, off_loop: OffLoop) -> IO[bytes]:
    """The body of a request in a file, which the caller closes. Raises BodyTooLong."""
    assert request.pieces is not None
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_MEMORY_BYTES, dir=str(folder))  # noqa: SIM115
    size, waiting = 0, bytearray()
    try:
        length = request.headers.get("content-length", "0")
        if len(length) > 18 or (length.isdigit() and int(length) > UPLOAD_BYTES_MAX):
            raise BodyTooLong
        async for piece in request.pieces():
            size += len(piece)
            if size > UPLOAD_BYTES_MAX:
                raise BodyTooLong
            waiting += piece
            if len(waiting) >= CHUNK_BYTES:
                await off_loop(_writing(file, bytes(waiting)))
                waiting.clear()
        await off_loop(_writing(file, bytes(waiting)))
    except BaseException:
        file.close()
        raise
    return file


def _writing(file: IO[bytes], data: bytes) -> Callable[[], None]:
    def write() -> None:
        try:
            file.write(data)
        except OSError as error:
            raise StoreError(f"cannot keep the body: {error.strerror}") from error

    return write
