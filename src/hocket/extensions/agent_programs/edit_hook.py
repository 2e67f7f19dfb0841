"""What a program of an agent asks before its agent edits files: whether another agent has locked them. The program
sends the edit as JSON: Claude Code, Codex and Cursor name the files, or hand over a patch.
"""

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hocket.api import Service
from hocket.api.locks import LockShown, show
from hocket.api.views import moment
from hocket.errors import Usage
from hocket.kernel.ids import node_text

INPUT_BYTES_MAX = 64 * 1024 * 1024
FILES_MAX = 1_000
# The members in which tools name a file, or several.
_FILE = ("file_path", "notebook_path", "path", "target_file")
_FILES = ("files", "paths", "edits")
# Those in which they hand over a patch, and what names a file there.
_PATCH = ("command", "input", "patch")
_IN_PATCH = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to): (.+?)\s*$", re.MULTILINE)


class PlannedEdit(NamedTuple):
    folder: Path
    files: list[str]


class LockedFile(NamedTuple):
    """A file that an agent may not edit now, because of this hold of another one."""

    file: str
    hold: LockShown

    @property
    def sentence(self) -> str:
        where = self.hold.node_name or self.hold.node
        return (
            f"{self.file} is locked by {self.hold.agent} on {where} until {moment(self.hold.expires_ms)} "
            f"(fence {self.hold.fence}); wait for the lock, or do something else first"
        )


def read_edit(text: bytes) -> PlannedEdit:
    """Raises Usage if it is not the JSON that a program sends before it uses a tool."""
    try:
        sent = msgspec.json.decode(text)
        used: Any = sent.get("tool_input") or {}
        folder = Path(sent.get("cwd") or ".").resolve()
        found = list(dict.fromkeys(_named(used)))
    except (msgspec.DecodeError, AttributeError, TypeError, ValueError, OSError, RecursionError) as error:
        raise Usage(f"stdin is not the JSON that a program sends before an edit: {error}") from None
    if len(found) > FILES_MAX:
        raise Usage(f"the edit names {len(found)} files; at most {FILES_MAX} are looked up")
    return PlannedEdit(folder, found)


def _named(used: Any) -> list[str]:
    if isinstance(used, str):
        return _IN_PATCH.findall(used)
    found = [used[name] for name in _FILE if isinstance(used.get(name), str)]
    for name in _FILES:
        each = used.get(name)
        found += [one if isinstance(one, str) else one["file_path"] for one in each or () if _names_file(one)]
    for name in _PATCH:
        patch = used.get(name)
        texts = patch if isinstance(patch, list) else [patch]
        found += [file for text in texts if isinstance(text, str) for file in _IN_PATCH.findall(text)]
    return found


def _names_file(one: Any) -> bool:
    return isinstance(one, str) or (isinstance(one, dict) and isinstance(one.get("file_path"), str))


def key_of(file: str, folder: Path) -> str:
    """The key of a file: its path from the root of the checkout, or its whole path if it is elsewhere."""
    place = os.path.realpath(folder / file)
    root = os.path.realpath(project_root(folder))
    inside = os.path.commonpath([place, root]) == root
    return f"file:{os.path.relpath(place, root) if inside else place}".replace(os.sep, "/")


def project_root(folder: Path) -> Path:
    """The root of the git checkout around a folder; without one the folder itself."""
    for each in (folder, *folder.parents):
        if (each / ".git").exists():
            return each
    return folder


def locked_by_others(service: Service, edit: PlannedEdit, agent: str, scope: str) -> list[LockedFile]:
    """The files that another agent has locked, alone or together with others. The key of a file whose name has a star
    stands for more than the file.
    """
    node = node_text(service.runtime.log.node)
    return [
        LockedFile(file, hold)
        for file in edit.files
        for hold in show(service, key_of(file, edit.folder), scope).holders
        if (hold.agent, hold.node) != (agent, node)
    ]
