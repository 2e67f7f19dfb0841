"""A repository on this disk, worked on directly: one long-lived `git update-ref` moves the refs, one transaction for
each swap.
"""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hocket.errors import HocketError, StoreError
from hocket.gitplane.git import PATIENCE_S, Ended, Talk
from hocket.gitplane.objects import Kind, Object, Repository, Unreadable
from hocket.gitplane.plane import ROOT, SWAP_TRIES, Change, check_changes, outcome, parse_refs


class LocalPlane:
    """Safe to use from several threads."""

    def __init__(self, path: Path, outside: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S) -> None:
        self.repository = Repository(path, outside=outside, patience_s=patience_s)
        self.where = self.repository.git.where
        self.digest_bytes = len(self.repository.zero) // 2
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
        listed = self.repository.git.run("for-each-ref", "--format=%(objectname) %(refname)", below)
        return parse_refs(listed, b" ")

    def swap(self, changes: Sequence[Change]) -> bool:
        check_changes(changes)
        order, complaint = _order(changes), None
        for _ in range(SWAP_TRIES):
            with self._lock:
                complaint = self._try(order)
            if complaint is None:
                return True
            listed = self.repository.git.run(
                "for-each-ref", "--format=%(objectname) %(refname)", *(change.ref for change in changes)
            )
            became = outcome(changes, parse_refs(listed, b" "))
            if became is not None:
                return became
            if ".lock" not in complaint:
                break
            # Somebody held a ref for a moment and let go of it unchanged.
        raise self._why(complaint or "")

    def _try(self, order: bytes) -> str | None:
        """None when git made the changes, else its complaint."""
        try:
            if self._mover is None:
                self._mover = self.repository.git.talk("update-ref", "--stdin")
            self._mover.say(order)
            for step in (b"start: ok", b"prepare: ok", b"commit: ok"):
                if (line := self._mover.line()) != step:
                    raise AssertionError(f"git update-ref said {line!r}")
        except Ended as ended:
            self._mover = None
            return str(ended) or "without a word"
        except BaseException:
            if self._mover is not None:
                self._mover.close()
                self._mover = None
            raise
        return None

    def _why(self, complaint: str) -> HocketError:
        if ".lock': File exists" in complaint:
            return StoreError(
                f"a ref of {self.where} stays locked; if no git process runs there, remove the lock "
                f"(git said: {complaint.splitlines()[0]})"
            )
        return self.repository.git.explain(complaint, "update-ref")

    def read(self, oids: Iterable[str]) -> dict[str, Object | Unreadable]:
        found = self.repository.read(oids)
        missing = [oid for oid, it in found.items() if isinstance(it, Unreadable) and it.is_missing]
        for remote in self.repository.promisors:
            if not missing:
                break
            try:
                self.repository.fetch(remote, missing)
            except HocketError:
                continue  # they stay missing, and are reported as that
            found |= self.repository.read(missing)
            missing = [oid for oid in missing if isinstance(found[oid], Unreadable)]
        return found

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
