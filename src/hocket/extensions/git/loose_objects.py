"""Loose objects: one file each, in git's format, complete from the moment that it has its name."""

import errno
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from hocket.store.files import sync_directory

PLAIN_BYTES_MAX = 4_000
LEVEL_DEFAULT = 1

_NAMELESS = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


class _Blank(NamedTuple):
    """An empty file, open for writing; unnamed if the file system supports that."""

    handle: int
    name: str | None


class Loose:
    """Writes to the object directory of a repository. Safe to use from several threads."""

    def __init__(self, directory: str, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._own, self._numbers = os.urandom(4).hex(), count()
        level = settings.get("core.loosecompression", settings.get("core.compression"))
        self._level = None if level is None else int(level)
        self._is_synced = _is_synced(settings)
        self._has_nameless = bool(_NAMELESS)
        self._ready: list[_Blank] = []

    def close(self) -> None:
        while self._ready:
            os.close(self._ready.pop().handle)

    def place(self, oid: str) -> str:
        return f"{self._directory}/{oid[:2]}/{oid[2:]}"

    def put(self, oid: str, whole: bytes) -> None:
        """Writes an object, including its header. Raises OSError."""
        try:
            blank = self._ready.pop()
        except IndexError:
            blank = self._blank()
        try:
            try:
                packed = self._packed(whole)
                while packed:
                    packed = packed[os.write(blank.handle, packed) :]
                if self._is_synced:
                    os.fsync(blank.handle)
                _name(blank, self.place(oid))
            finally:
                os.close(blank.handle)
        except BaseException:
            if blank.name is not None:
                with suppress(FileNotFoundError):
                    os.unlink(blank.name)
            raise
        if self._is_synced:
            sync_directory(os.path.dirname(self.place(oid)))

    def prepare(self) -> None:
        """Opens the file for the next object ahead of time, if an unused one would leave nothing behind."""
        if self._has_nameless and not self._ready:
            with suppress(OSError):  # `put` raises if the file cannot be opened
                self._ready.append(self._blank())

    def _blank(self) -> _Blank:
        # All files start in one directory: creating each in another of many directories takes much longer.
        if self._has_nameless:
            try:
                return _Blank(os.open(self._directory, os.O_WRONLY | _NAMELESS | os.O_CLOEXEC, 0o444), None)
            except OSError as error:
                if error.errno not in _NO_NAMELESS:
                    raise
                self._has_nameless = False
        name = f"{self._directory}/tmp_obj_{os.getpid():x}_{next(self._numbers)}_{self._own}"
        return _Blank(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), name)

    def _packed(self, whole: bytes) -> bytes:
        if self._level is None and len(whole) <= PLAIN_BYTES_MAX:
            return _plain(whole)
        return zlib.compress(whole, LEVEL_DEFAULT if self._level is None else self._level)


def _plain(data: bytes) -> bytes:
    """An uncompressed zlib stream. A small file takes up one disk block either way."""
    size = len(data)
    head = b"\x78\x01\x01" + size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
    return head + data + zlib.adler32(data).to_bytes(4, "big")


def _name(blank: _Blank, place: str) -> None:
    try:
        _name_within(blank, place)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(place))
        _name_within(blank, place)


def _name_within(blank: _Blank, place: str) -> None:
    if blank.name is not None:
        os.rename(blank.name, place)
        return
    with suppress(FileExistsError):  # another process wrote the same bytes
        os.link(f"/proc/self/fd/{blank.handle}", place, src_dir_fd=blank.handle)


def _is_synced(settings: Mapping[str, str]) -> bool:
    """Whether the repository wants loose objects synced to disk before a ref points to them. Git's default is no."""
    synced = settings.get("core.fsyncobjectfiles", "false") in ("true", "yes", "on", "1", "")
    for part in filter(None, (word.strip() for word in settings.get("core.fsync", "").split(","))):
        name = part.removeprefix("-")
        if name in ("loose-object", "objects", "committed", "added", "all"):
            synced = not part.startswith("-")
        elif name == "none":
            synced = False
    return synced
