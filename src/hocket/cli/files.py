"""Reads files up to a limit, and writes them whole or not at all, readable only by their owner."""

import os
import sys
from pathlib import Path
from typing import BinaryIO

from hocket.errors import Usage


def read_file(name: str, limit: int) -> bytes:
    """Reads a file, or standard input for -. Returns one byte more than the limit if there is more, so that the decoder
    can report that it is too long.
    """
    if name == "-":
        return sys.stdin.buffer.read(limit + 1)
    try:
        with Path(name).open("rb") as file:
            return file.read(limit + 1)
    except OSError as error:
        raise Usage(f"cannot read {name}: {error.strerror}") from None
    except ValueError as error:
        raise Usage(f"cannot read {name!r}: {error}") from None


def write_file(path: Path, data: bytes) -> None:
    """Replaces a file whole, or leaves it as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with private_file(temporary) as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Usage(f"cannot write {path}: {error.strerror}") from None


def private_file(path: Path) -> BinaryIO:
    """Creates a file that only its owner can read. Replaces any file of that name."""
    path.unlink(missing_ok=True)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
