"""A repository on this disk: one long-lived `git update-ref` moves the refs, with one transaction for each swap."""

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hocket.errors import HocketError, StoreError
from hocket.extensions.git.git import PATIENCE_S, GitGone, Talk
from hocket.extensions.git.objects import OBJECT_BYTES_MAX, Kind, Object, Repository, Unreadable
from hocket.extensions.git.plane import ROOT, SWAP_TRIES, Change, check_changes, outcome, parse_refs

# How many swaps are sent to git beyond the one whose answer is awaited.
SAID_MAX = 1


class LocalPlane:
    """Safe to use from several threads."""

    def __init__(self, path: Path, outside: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S) -> None:
        self.repository = Repository(path, outside=outside, patience_s=patience_s)
        self.where = self.repository.git.where
        self.digest_bytes = len(self.repository.zero) // 2
        self.remotes = self.repository.remotes
        self._lock = threading.Lock()
        self._mover: Talk | None = None

    def close(self) -> None:
        self.repository.close()
        with self._lock:
            if self._mover is not None:
                self._mover.close()
                self._mover = None

    def shallow(self) -> frozenset[str]:
        return self.repository.shallow()

    def refs(self, below: str = ROOT) -> dict[str, str]:
        return self._listed(below)

    def _listed(self, *names: str) -> dict[str, str]:
        listed = self.repository.git.run("for-each-ref", "--format=%(objectname) %(refname)", *names)
        return parse_refs(listed, b" ")

    def swap(self, changes: Sequence[Change]) -> bool:
        return self.swap_each([changes])[0]

    def swap_each(self, swaps: Iterable[Sequence[Change]]) -> list[bool]:
        made: list[bool] = []
        said: deque[Sequence[Change]] = deque()
        with self._lock:
            try:
                for changes in swaps:  # git works on one and has the next while we prepare a third
                    check_changes(changes)
                    complaint = self._say(changes)
                    said.append(changes)
                    if complaint is not None:
                        made += self._end_all(said, complaint)
                    elif len(said) > SAID_MAX:
                        made += self._end_first(said)
                while said:
                    made += self._end_first(said)
            except BaseException:
                # Half an answer may still be in the pipe.
                if self._mover is not None:
                    self._mover.close()
                    self._mover = None
                raise
        return made

    def _end_first(self, said: deque[Sequence[Change]]) -> list[bool]:
        """The outcome of the first swap that was sent; of all swaps if git exited over it."""
        complaint = self._hear()
        if complaint is not None:
            return self._end_all(said, complaint)
        said.popleft()
        return [True]

    def _end_all(self, said: deque[Sequence[Change]], complaint: str) -> list[bool]:
        """The outcomes of swaps after git has exited: its error is about the first one that it did not make."""
        made = []
        while said:
            made.append(self._end(said.popleft(), complaint))
            complaint = ""
        return made

    def _end(self, changes: Sequence[Change], complaint: str) -> bool:
        """The outcome of a swap that git may not have made."""
        tries = 1
        while True:
            names = [change.ref for change in changes]
            became = outcome(changes, self._listed(*names))
            if became is not None:
                return became
            # If nothing has moved, another process held a ref for a moment, or there is a real error.
            if tries == SWAP_TRIES or (".lock" not in complaint and complaint):
                raise self._why(complaint)
            tries += 1
            again = self._say(changes)
            if again is None and (again := self._hear()) is None:
                return True
            complaint = again

    def _say(self, changes: Sequence[Change]) -> str | None:
        """Sends a swap to git; returns its error output if git has exited."""
        try:
            if self._mover is None:
                self._mover = self.repository.git.talk("update-ref", "--stdin")
            self._mover.say(_order(changes))
        except GitGone as ended:
            self._mover = None
            return str(ended)
        return None

    def _hear(self) -> str | None:
        """None if git made the changes, else its error output."""
        assert self._mover is not None
        self.repository.prepare()
        try:
            for step in (b"start: ok", b"prepare: ok", b"commit: ok"):
                if (line := self._mover.line()) != step:
                    raise AssertionError(f"git update-ref said {line!r}")
        except GitGone as ended:
            self._mover = None
            return str(ended)
        return None

    def _why(self, complaint: str) -> HocketError:
        if ".lock': File exists" in complaint:
            return StoreError(
                f"a ref of {self.where} stays locked; if no git process runs there, remove the lock "
                f"(git said: {complaint.splitlines()[0]})"
            )
        return self.repository.git.explain(complaint, "update-ref")

    def read(
        self, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX, together: int | None = None
    ) -> dict[str, Object | Unreadable]:
        wanted = list(oids)
        if self.repository.promisors:
            self.bring(wanted)
        return self.repository.read(wanted, limit, together)

    def bring(self, oids: Iterable[str]) -> None:
        if not self.repository.promisors:
            return
        missing = self.repository.missing(oids)
        for remote in self.repository.promisors:
            if not missing:
                break
            try:
                self.repository.fetch(remote, missing)
            except HocketError:
                continue  # they are reported as missing
            missing = self.repository.missing(missing)

    def write(self, kind: Kind, data: bytes) -> str:
        return self.repository.write(kind, data)


def _order(changes: Sequence[Change]) -> bytes:
    lines = ["start"]
    for ref, old, new in changes:
        if old is None:
            lines.append(f"create {ref} {new}" if new is not None else f"verify {ref}")
        elif new is None:
            lines.append(f"delete {ref} {old}")
        else:
            lines.append(f"update {ref} {new} {old}")
    return os.fsencode("\n".join([*lines, "prepare", "commit", ""]))
