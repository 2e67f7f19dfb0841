"""An archive in a git repository: a folder whose files the git program commits when a run of `hocket log archive` ends.
Pushing is left to the owner of the repository.
"""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from hocket.errors import StoreError, Usage
from hocket.log.archives.targets import ArchiveTarget, folder_target

GIT = "git+"
# Hooks and signing are for people's own commits: a hook that asks something would hold up the run for ever.
_OPTIONS = (
    *("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null", "-c", "core.autocrlf=false"),
    *("-c", "user.name=hocket", "-c", "user.email=hocket@localhost"),
)
_FROM_INPUT = "--pathspec-from-file=-"
_TIMEOUT_S = 600


def git_target(path: Path) -> ArchiveTarget:
    folder = folder_target(path, f"{GIT}{path}")
    return folder._replace(writing=partial(_committing, path, folder))


@contextmanager
def _committing(path: Path, folder: ArchiveTarget) -> Iterator[None]:
    """Commits what the run has written, and what an earlier one wrote that was killed before its commit."""
    with folder.writing():
        if not (path / ".git").exists():
            _git(path, "init", "--quiet")
        yield
        names = sorted(folder.names())
        if not names:
            return
        _git(path, "add", "--force", _FROM_INPUT, given=names)
        # Behind two letters and a space; others may have staged something beside.
        changed = {line[3:] for line in _git(path, "status", "--porcelain", "--untracked-files=no").splitlines()}
        if changes := sorted(changed.intersection(names)):
            _git(path, "commit", "--quiet", "--only", "--message", "Archive of the log", _FROM_INPUT, given=changes)


def _git(path: Path, *words: str, given: Sequence[str] = ()) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(path), *_OPTIONS, *words],
            input="\n".join(given),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError:
        raise Usage("an archive in git needs the git program; install it") from None
    except subprocess.TimeoutExpired:
        raise StoreError(f"git did not end within {_TIMEOUT_S} s in {path}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise StoreError(f"git {words[0]} failed in {path}: {said[-1]}")
    return done.stdout
