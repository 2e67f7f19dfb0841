"""Where commands run. Each has a workdir below `runs`: its working directory, a home, a directory for temporary files,
and its kept output. The next tidying removes finished workdirs, and a new process clears the workdirs of dead ones.

Removes a directory that a command owned, whatever the command did there: unreadable directories, names of any bytes,
depths that no path can express. Two descriptors and no recursion are enough: subdirectories are moved up to the top
before their parent is removed.
"""

import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from blake3 import blake3

from hocket.errors import Failed, StoreError
from hocket.extensions.command.manifest import Manifest, Pointer
from hocket.extensions.command.outputs import collect
from hocket.families.liveness import ProcessLock, is_alive
from hocket.kernel.ids import hash_text

# Returns the content with a hash, whole or in parts. It is checked here.
Content = Callable[[bytes], bytes | Iterable[bytes]]


class Workdir:
    """The directories of one command. `work` is its working directory, `streams` holds its kept output; in a sandbox it
    cannot see the latter.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"
        self.home = path / "home"
        self.temporary = path / "tmp"
        self.shm = path / "shm"
        self.streams = path / "streams"

    @property
    def own(self) -> tuple[Path, ...]:
        """The directories that the command may write to. `shm` is its /dev/shm in a sandbox: on the disk, whose free
        space is watched, and not in memory.
        """
        return self.work, self.home, self.temporary, self.shm

    def furnish(self, manifest: Manifest, content: Content) -> None:
        """Puts the inputs where the manifest says, each checked against its hash, and creates the directory that the
        command starts in.
        """
        for pointer, place in zip(manifest.inputs or (), manifest.input_paths, strict=True):
            _put(self.work, place, pointer, content)
        try:
            self.begin_in(manifest).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Failed(f"cannot make the directory {manifest.cwd!r}: {error.strerror}") from None

    def begin_in(self, manifest: Manifest) -> Path:
        return self.work / (manifest.cwd or "")

    def collect(self, patterns: Iterable[str]) -> dict[str, Path]:
        """The command's output files, by their paths in `work`. Raises Failed if they cannot be kept."""
        return collect(self.work, patterns)


class Workdirs:
    """The workdirs of this process. Safe to use from several threads."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._sign: ProcessLock | None = None
        self._own: Path | None = None
        self._numbers = count(1)
        self._left: deque[Path] = deque()

    @contextmanager
    def workdir(self, name: str) -> Iterator[Workdir]:
        """A workdir for the duration of the block. The name, a job's, is for people."""
        try:
            if self._own is None:
                self.clear()
            path = self._own_rooms() / f"{name}-{next(self._numbers)}"
            workdir = Workdir(path)
        except OSError as error:
            raise StoreError(f"cannot make a directory for the command: {error.strerror}") from error
        try:
            try:
                for each in (path, *workdir.own, workdir.streams):
                    each.mkdir(mode=0o700)
            except OSError as error:
                raise StoreError(f"cannot make a directory for the command: {error.strerror}") from error
            yield workdir
        finally:
            self._left.append(path)

    def tidy(self) -> None:
        """Removes the finished workdirs."""
        while True:
            try:
                path = self._left.popleft()
            except IndexError:
                return
            remove_tree(path)

    def clear(self) -> int:
        """Removes the workdirs of dead processes; returns their number."""
        cleared = 0
        for workdirs in self._runs.glob("*/"):
            if not is_alive(self._runs, workdirs.name):
                cleared += remove_tree(workdirs)
        return cleared

    def close(self) -> None:
        with self._lock:
            if self._sign is not None and self._own is not None:
                remove_tree(self._own)
                self._sign.close()
                self._sign = self._own = None

    def _own_rooms(self) -> Path:
        with self._lock:
            if self._own is None:
                self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
                # The lock file first: without it the directory would be taken for a dead process's.
                name = f"{os.getpid()}-{os.urandom(4).hex()}"
                self._sign = ProcessLock(self._runs, name)
                self._own = self._runs / name
                self._own.mkdir(mode=0o700)
            return self._own


def _put(directory: Path, place: str, pointer: Pointer, content: Content) -> None:
    target = directory / place
    hasher, size = blake3(), 0
    given = content(pointer.hash)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Inputs may be programs, too.
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700), "wb") as file:
            for part in (given,) if isinstance(given, bytes) else given:
                hasher.update(part)
                size += len(part)
                file.write(part)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Failed(f"the input {place!r} conflicts with another; give them other names") from None
    except OSError as error:
        raise StoreError(f"cannot write the input {place!r}: {error.strerror}") from error
    if hasher.digest() != pointer.hash:
        raise Failed(f"the input {place!r} has the hash {hash_text(hasher.digest())}, not {hash_text(pointer.hash)}")
    if pointer.size is not None and pointer.size != size:
        raise Failed(f"the input {place!r} has {size} bytes, not {pointer.size}")


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
