"""Files that a command line names: read up to a bound, and written whole or not at all, for their owner alone."""

import os
import sys
from pathlib import Path
from typing import BinaryIO

from hocket.errors import Usage


def read_file(name: str, limit: int) -> bytes:
    """What is in a file, or in standard input for -. Of what is longer than the limit, one byte more than that: the
    reader of those bytes then says that they are too many."""
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
    """A whole file, or what was there before."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with private_file(temporary) as file:
            file.write(data)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Usage(f"cannot write {path}: {error.strerror}") from None


def private_file(path: Path) -> BinaryIO:
    """A new file that only its owner can read, whatever was there before."""
    path.unlink(missing_ok=True)
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
