"""The guard of a file. A hidden folder beside it has an empty entry for the highest fence that the file has seen, and
the drafts of writers. A writer replaces the file by its draft.

No process waits for another, so a frozen or killed writer blocks nobody. Each step is one call that the file system
does atomically, in an order that makes a stale writer fail:

- A new fence first adds its entry. Then it removes the drafts of lower fences, and only then their entries.
- A writer first creates its draft. Then it looks for higher entries, and only then moves the draft to the file.

A stale writer either looks after the higher entry was there and sees it, or has created its draft before and finds it
removed. If it moves its draft just before that, the file changes before the new holder gets to read it.
"""

import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import IO, Any, AnyStr, Generic, Literal, overload

from hocket.errors import StaleFence, Usage
from hocket.guard.fences import check_fence

FOLDER = ".hocket-fences"


class FencedFile(Generic[AnyStr]):
    """A file that is about to be written under a fence. Enter it with `with`: the block writes a draft, and its end
    replaces the file, unless the block raised an error.
    """

    def __init__(self, path: Path, fence: int, mode: str) -> None:
        self._path, self._fence, self._mode = path, fence, mode
        self._folder = path.parent / FOLDER / path.name
        self._draft = self._folder / f"{fence}.{secrets.token_hex(8)}"
        self._file: IO[Any] | None = None
        self._raise_fence()

    def __enter__(self) -> IO[AnyStr]:
        descriptor = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        self._file = open(descriptor, self._mode, encoding=None if "b" in self._mode else "utf-8")
        if self._path.exists():
            _copy_owner(self._path, descriptor)
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._file is not None
        try:
            with self._file as file:
                if error is not None:
                    return
                file.flush()
                os.fsync(file.fileno())
            self._refuse_if_stale()
            self._replace()
        finally:
            self._draft.unlink(missing_ok=True)

    def _raise_fence(self) -> None:
        if not self._folder.is_dir():
            _create(self._folder)
        (self._folder / str(self._fence)).touch()
        _sync(self._folder)
        names = self._refuse_if_stale()
        lower = [name for name in names if _fence_of(name) < self._fence]
        for name in sorted(lower, key=lambda name: "." not in name):  # drafts first
            (self._folder / name).unlink(missing_ok=True)

    def _refuse_if_stale(self) -> list[str]:
        names = [name for name in os.listdir(self._folder) if name[0] in "123456789"]
        newest = max(map(_fence_of, names), default=0)
        if newest > self._fence:
            raise StaleFence(str(self._path), self._fence, newest)
        return names

    def _replace(self) -> None:
        try:
            os.replace(self._draft, self._path)
        except FileNotFoundError:
            self._refuse_if_stale()
            raise
        _sync(self._path.parent)


def _fence_of(name: str) -> int:
    return int(name.partition(".")[0])


def _create(folder: Path) -> None:
    """Git ignores the folder of fences, which says so itself."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")
    for each in (folder.parent, folder.parent.parent):
        _sync(each)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_owner(path: Path, descriptor: int) -> None:
    """The draft gets the permissions of the file, and its owner where this process may set that."""
    known = path.stat()
    try:
        os.fchown(descriptor, known.st_uid, known.st_gid)
    except PermissionError:
        pass
    os.fchmod(descriptor, stat.S_IMODE(known.st_mode))


@overload
def fenced_file(path: str | os.PathLike[str], fence: int, mode: Literal["w"] = "w") -> FencedFile[str]: ...
@overload
def fenced_file(path: str | os.PathLike[str], fence: int, mode: Literal["wb"]) -> FencedFile[bytes]: ...
def fenced_file(path: str | os.PathLike[str], fence: int, mode: str = "w") -> FencedFile[Any]:
    """Refuses writes of a holder that has lost its lock or its job and does not know it.

        with hocket.fenced_file("notes.md", held.fence) as file:
            file.write(Path("notes.md").read_text() + "one more line\\n")

    Raises StaleFence, at the beginning or at the end of the block, if the file has seen a higher fence. The end of the
    block replaces the whole file; readers see the old content or the new. After an error the file is as it was. What
    the block reads is what lower fences have left for good. The text is UTF-8; mode "wb" takes bytes.
    """
    number = check_fence(fence)
    if mode not in ("w", "wb"):
        raise Usage(f"fenced_file writes a whole file: its mode is 'w' or 'wb', not {mode!r}")
    resolved = Path(path).resolve()
    if not resolved.parent.is_dir():
        raise Usage(f"{resolved.parent} is not a directory, so {resolved.name} cannot be written there")
    if resolved.exists() and not resolved.is_file():
        raise Usage(f"{resolved} is not a regular file; only such a file can be replaced")
    return FencedFile(resolved, number, mode)
