"""Which bearer tokens were used already, at any server of a home and before a restart. A file in the home has a record
for each; the servers append to it under an OS lock, and read what others have appended. It outlives every process, but
not the last moments before a power failure: a server refuses tokens that were issued before it started anyway.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hocket.kernel.bearer import LEEWAY_S, NONCES_MAX, Bearer, Nonces
from hocket.kernel.ids import digest

NAME = "tokens.used"
# The file is written anew, without the tokens that have expired, when it has this many records more than it had then.
RECORDS_MAX = NONCES_MAX
# When the token expires, its node, and a hash of its nonce.
_RECORD = struct.Struct(">QQ16s")
# How often the file was written anew, and how many records it had then.
_HEADER = struct.Struct(">QQ")


class UsedTokens:
    """Without a directory the tokens are remembered in this process alone."""

    def __init__(self, directory: Path | None = None) -> None:
        self._nonces = Nonces()
        self._path = None if directory is None else directory / NAME
        self._fd = -1
        self._rewritten, self._read_to = 0, _HEADER.size

    def use(self, bearer: Bearer, now_s: int) -> bool:
        """Whether the token is used for the first time. Call this after the token was accepted."""
        record = (bearer.expires, bearer.node, digest(bearer.nonce.encode(), 16))
        if self._path is None:
            return self._is_new(record, now_s)
        with self._locked(self._path) as fd:
            rewritten, records = self._catch_up(fd, now_s)
            if not self._is_new(record, now_s):
                return False
            os.pwrite(fd, _RECORD.pack(*record), self._read_to)
            self._read_to += _RECORD.size
            if self._read_to > _HEADER.size + (records + RECORDS_MAX) * _RECORD.size:
                self._rewrite(fd, rewritten + 1, now_s)
            return True

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_new(self, record: tuple[int, int, bytes], now_s: int) -> bool:
        expires, node, nonce = record
        return self._nonces.use(node, nonce.hex(), expires, now_s)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[int]:
        if self._fd < 0:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            yield self._fd
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _catch_up(self, fd: int, now_s: int) -> tuple[int, int]:
        """Reads what other servers have appended. Returns the header."""
        head = os.pread(fd, _HEADER.size, 0)
        if len(head) < _HEADER.size:
            os.pwrite(fd, _HEADER.pack(0, 0), 0)
            return 0, 0
        rewritten, records = _HEADER.unpack(head)
        if rewritten != self._rewritten:
            self._rewritten, self._read_to = rewritten, _HEADER.size
        if size := os.fstat(fd).st_size - self._read_to:
            for record in _records(os.pread(fd, size, self._read_to)):
                self._is_new(record, now_s)
                self._read_to += _RECORD.size
        return rewritten, records

    def _rewrite(self, fd: int, rewritten: int, now_s: int) -> None:
        whole = os.pread(fd, self._read_to - _HEADER.size, _HEADER.size)
        kept = [each for each in _records(whole) if each[0] + LEEWAY_S > now_s]
        content = b"".join(_RECORD.pack(*each) for each in kept)
        os.pwrite(fd, _HEADER.pack(rewritten, len(kept)) + content, 0)
        self._rewritten, self._read_to = rewritten, _HEADER.size + len(content)
        os.ftruncate(fd, self._read_to)


def _records(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """A last record that was cut off is left out, and overwritten by the next."""
    yield from _RECORD.iter_unpack(data[: len(data) - len(data) % _RECORD.size])
