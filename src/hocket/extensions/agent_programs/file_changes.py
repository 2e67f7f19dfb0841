"""Changes of files that belong to others: each has the text before and after, is shown before it is made, and leaves
alone what it does not name.
"""

import difflib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hocket.errors import Usage

FILE_BYTES_MAX = 4 * 1024 * 1024


class FileChange(NamedTuple):
    """A text that is None stands for no file."""

    path: Path
    before: str | None
    after: str | None

    @property
    def is_needed(self) -> bool:
        return self.before != self.after

    def shown(self, root: Path) -> Iterator[str]:
        """The lines of a unified diff, with paths from the root of the project."""
        name = os.path.relpath(self.path, root)
        old, new = (text.splitlines() if text is not None else [] for text in (self.before, self.after))
        of_old, of_new = (name if text is not None else "/dev/null" for text in (self.before, self.after))
        return difflib.unified_diff(old, new, of_old, of_new, lineterm="", n=2)

    def make(self, root: Path) -> None:
        """Folders of the project that are left empty go. Raises Usage if the file cannot be written, or has changed
        since it was read.
        """
        if read_text(self.path) != self.before:
            raise Usage(f"{self.path} has changed meanwhile; run this again")
        try:
            if self.after is None:
                self.path.unlink()
                for folder in self.path.parents:
                    if folder == root or any(folder.iterdir()):
                        return
                    folder.rmdir()
                return
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A link stays a link: what it names is replaced.
            place = self.path.resolve()
            draft = place.with_name(f".{place.name}.{os.getpid()}.hocket")
            try:
                draft.write_text(self.after, encoding="utf-8")
                if self.before is not None:
                    draft.chmod(place.stat().st_mode & 0o7777)
                draft.replace(place)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise Usage(f"cannot write {self.path}: {error.strerror}") from None


def read_text(path: Path) -> str | None:
    """None if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Usage(f"cannot read {path}: {error.strerror}") from None
    try:
        if len(data) <= FILE_BYTES_MAX:
            return data.decode()
    except UnicodeDecodeError:
        raise Usage(f"{path} is not text in UTF-8, so it is left alone; mend it first") from None
    raise Usage(f"{path} has {len(data)} bytes, so it is left alone; expected a configuration file")


def whole_file(path: Path, text: str, *, is_removed: bool) -> FileChange:
    """A file of our own. It is only taken back as we wrote it."""
    before = read_text(path)
    if is_removed:
        return FileChange(path, before, None if before == text else before)
    return FileChange(path, before, text)


def block(path: Path, begin: str, end: str, lines: Sequence[str], *, is_removed: bool) -> FileChange:
    """A block of lines between two marks, at the end of the file unless it is there already."""
    before = read_text(path)
    text = before or ""
    head, mark, rest = text.partition(f"{begin}\n")
    _, closed, tail = rest.partition(f"{end}\n")
    if mark and not closed:
        raise Usage(f"{path} has the line {begin!r} and no line {end!r} after it; mend that first")
    if not mark:
        head, tail = text, ""
    if is_removed:
        kept = (head.removesuffix("\n") if mark and head.endswith("\n\n") else head) + tail
        return FileChange(path, before, kept or None if mark else before)
    if not mark and head:
        head = head + ("\n" if head.endswith("\n") else "\n\n")
    return FileChange(path, before, "".join((head, begin, "\n", *(f"{line}\n" for line in lines), end, "\n", tail)))


def json_file(path: Path, change: Callable[[dict[str, Any]], None]) -> FileChange:
    """What `change` makes of the object in a JSON file. A file without anything left is taken away."""
    before = read_text(path)
    try:
        members = json.loads(before) if before is not None and before.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Usage(f"{path} is not JSON, so it is left alone: {error}; mend it first") from None
    if not isinstance(members, dict):
        raise Usage(f"{path} has no object at its top, so it is left alone; mend it first")
    was = json.dumps(members)
    try:
        change(members)
    except (AttributeError, KeyError, TypeError):
        raise Usage(f"{path} has not the form that its program reads, so it is left alone; mend it first") from None
    if json.dumps(members) == was:
        return FileChange(path, before, before)
    if not members:
        return FileChange(path, before, None)
    return FileChange(path, before, json.dumps(members, indent=_indent(before), ensure_ascii=False) + "\n")


def _indent(text: str | None) -> str | int:
    """What the file indents its lines by."""
    for line in (text or "").splitlines():
        if margin := line[: len(line) - len(line.lstrip())]:
            return margin
    return 2
