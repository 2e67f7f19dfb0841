"""Removes a directory that a command owned, whatever the command did there: unreadable directories, names of any bytes,
depths that no path can express. Two descriptors and no recursion are enough: subdirectories are moved up to the top
before their parent is removed.
"""

import os
import stat
from itertools import count
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> bool:
    """Links are removed and never followed. False if something could not be removed, such as a mount."""
    try:
        _make_open(path, None)
        top = os.open(path, _OPEN)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        _empty(top)
    except OSError:
        return False
    finally:
        os.close(top)
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def _empty(top: int) -> None:
    taken = {os.fsencode(name) for name in os.listdir(top)}
    numbers = count()
    while names := os.listdir(top):
        for name in names:
            if not _is_directory(name, top):
                os.unlink(name, dir_fd=top)
                continue
            _make_open(name, top)
            directory = os.open(name, _OPEN, dir_fd=top)
            try:
                for below in os.listdir(directory):
                    if not _is_directory(below, directory):
                        os.unlink(below, dir_fd=directory)
                        continue
                    # Moving a directory changes its `..` entry, for which it must be writable.
                    _make_open(below, directory)
                    while (place := b"%d" % next(numbers)) in taken:
                        continue
                    os.rename(below, place, src_dir_fd=directory, dst_dir_fd=top)
            finally:
                os.close(directory)
            os.rmdir(name, dir_fd=top)


def _is_directory(name: str, above: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _make_open(name: str | Path, above: int | None) -> None:
    """Makes a directory of ours readable and writable. A descriptor of this kind needs no permission, and its name in
    /proc leads to the opened directory, never through a link.
    """
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)
