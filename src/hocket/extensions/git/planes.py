"""The two kinds of repositories that hold jobs, and opening one. In a repository on this disk one long-lived `git
update-ref` moves the refs, with one transaction for each swap. Of a repository at an address the refs are listed and
moved there; its objects are cached in a bare repository on this disk, which holds nothing that could not be fetched
again. Small files are fetched together with what names them, large ones on demand.
"""

import fcntl
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from blake3 import blake3

from hocket.errors import HocketError, NotAuthorised, StoreError, Unreachable, Usage
from hocket.extensions.git.git import PATIENCE_S, Done, Git, GitGone, Talk
from hocket.extensions.git.objects import OBJECT_BYTES_MAX, Kind, Object, Repository, Unreadable
from hocket.extensions.git.plane import ROOT, SWAP_TRIES, Change, Plane, check_changes, outcome, parse_refs

CACHE_BYTES_MAX = 1024 * 1024 * 1024
ABOVE_MAX = 64
PUSHED_MAX = 32
FILTER = "blob:limit=65536"
_NAME = "origin"
# How git forwards the fatal error of the server's git.
_DAMAGE = "remote: fatal: "
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


class RemotePlane:
    """Safe to use from several threads, and by several processes with the same cache."""

    def __init__(
        self, address: str, cache: Path, outside: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S
    ) -> None:
        self._alive = -1
        probe = Git(address, None, outside, patience_s=patience_s)
        self.where = probe.where
        directory = cache / blake3(address.encode()).hexdigest(16)
        self._alive = self._make(probe, address, directory)
        try:
            self.repository = Repository(directory / "repository.git", self.where, outside, patience_s)
        except BaseException:
            os.close(self._alive)
            raise
        self.digest_bytes = len(self.repository.zero) // 2
        self.remotes: list[str] = []
        self._git = self.repository.git
        self._whole: frozenset[str] = frozenset()
        self._damaged: set[str] = set()  # objects that the server failed to serve; they are not requested again
        self._seen: dict[str, str] = {}  # what each ref last pointed to
        self._before: dict[str, str] = {}  # a ref's current target to its previous one

    def close(self) -> None:
        self.repository.close()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def _make(self, probe: Git, address: str, directory: Path) -> int:
        """Creates the cache if there is none; returns a lock that marks it as in use. A cache that has grown too large
        is created again when no process uses it.
        """
        place = directory / "repository.git"
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"cannot keep a cache of {self.where} in {directory}: {error.strerror}") from error
        try:
            if not (place / "complete").exists() or _size(place) > CACHE_BYTES_MAX:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if (place / "complete").exists() else 0))
                except BlockingIOError:
                    pass
                else:
                    if not (place / "complete").exists() or _size(place) > CACHE_BYTES_MAX:
                        self._fill(probe, address, place)
            fcntl.flock(lock, fcntl.LOCK_SH)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _fill(self, probe: Git, address: str, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        probe.run("init", "--quiet", "--bare", "--template=", f"--object-format={_format(probe, address)}", str(place))
        git = Git(address, str(place))
        for name, value in {
            f"remote.{_NAME}.url": address,
            f"remote.{_NAME}.promisor": "true",
            f"remote.{_NAME}.partialclonefilter": FILTER,
        }.items():
            git.run("config", name, value)
        (place / "complete").touch()

    def shallow(self) -> frozenset[str]:
        return self.repository.shallow()

    def refs(self, below: str = ROOT) -> dict[str, str]:
        pattern = below + "*" if below.endswith("/") else below
        now = self._list(pattern)
        if below == ROOT:
            self._before = {oid: self._seen[name] for name, oid in now.items() if self._seen.get(name, oid) != oid}
            self._seen = now
        return dict(now)

    def read(
        self, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX, together: int | None = None
    ) -> dict[str, Object | Unreadable]:
        wanted = list(oids)
        self.bring(wanted)
        return self.repository.read(wanted, limit, together)

    def bring(self, oids: Iterable[str]) -> None:
        if missing := [oid for oid in self.repository.missing(oids) if oid not in self._damaged]:
            self._fetch(missing)

    def _fetch(self, oids: Sequence[str]) -> None:
        before = [self._before[oid] for oid in oids if oid in self._before][:ABOVE_MAX]
        absent = set(self.repository.missing(before))
        above = [oid for oid in before if oid not in absent]
        try:
            self.repository.fetch(_NAME, oids, f"--filter={FILTER}", above=above)
        except HocketError as error:
            is_damaged = isinstance(error, Unreachable) and _DAMAGE in str(error)
            if isinstance(error, NotAuthorised | Unreachable) and not is_damaged:
                raise
            # One object that the server no longer has, or cannot read, makes the whole request fail.
            if len(oids) > 1:
                half = len(oids) // 2
                self._fetch(oids[:half])
                self._fetch(oids[half:])
            elif is_damaged:
                self._damaged.add(oids[0])
            else:
                self._fetch_whole()

    def _fetch_whole(self) -> None:
        """Some servers serve only what a ref points to. From those, fetches everything, once for each state of the
        refs.
        """
        tips = frozenset(self.refs().values())
        if tips and tips != self._whole:
            self._whole = tips
            try:
                self.repository.fetch(_NAME, tips, "--refetch", "--no-filter")
            except (NotAuthorised, Unreachable):
                raise
            except HocketError:
                pass  # a ref has moved since; missing objects are reported

    def write(self, kind: Kind, data: bytes) -> str:
        return self.repository.write(kind, data)

    def swap(self, changes: Sequence[Change]) -> bool:
        check_changes(changes)
        order = ["push", "--porcelain", "--quiet", "--atomic", "--no-verify", "--no-thin"]
        order += [f"--force-with-lease={ref}:{old or ''}" for ref, old, _ in changes]
        order += [_NAME, *(f"{new or ''}:{ref}" for ref, _, new in changes)]
        for _ in range(SWAP_TRIES):
            done = self._git.attempt(*order)
            if done.code == 0:
                return True
            if not done.was_cut_off and not any(line.startswith(b"!\t") for line in done.out.splitlines()):
                raise self._git.explain(done.complaint, "push")
            became = outcome(changes, self._list(*(change.ref for change in changes)))
            if became is not None:
                return became
            if not done.was_cut_off and not _was_busy(done):
                break
        raise self._why(done)

    def _list(self, *patterns: str) -> dict[str, str]:
        return parse_refs(self._git.ask("ls-remote", "--quiet", _NAME, *patterns), b"\t")

    def swap_each(self, swaps: Iterable[Sequence[Change]]) -> list[bool]:
        """All in one push. If one of them lost its race, they are pushed one by one."""
        made: list[bool] = []
        left = iter(swaps)
        while some := list(islice(left, PUSHED_MAX)):
            if len(some) > 1 and self.swap([change for changes in some for change in changes]):
                made += [True] * len(some)
            else:
                made += [self.swap(changes) for changes in some]
        return made

    def _why(self, done: Done) -> HocketError:
        reasons = [line.decode("utf-8", "replace") for line in done.out.splitlines() if line.startswith(b"!\t")]
        words = done.complaint + "\n" + "\n".join(reason.split("\t", 1)[1] for reason in reasons)
        return self._git.explain(words, "push")


def _was_busy(done: Done) -> bool:
    """Whether the server could not lock a ref at that moment."""
    words = done.out.decode("utf-8", "replace") + done.complaint
    return any(sign in words for sign in ("lock", "failed to update ref", "stale info", "transaction"))


def _format(probe: Git, address: str) -> str:
    """The hash algorithm of the remote repository."""
    if listed := probe.ask("ls-remote", "--quiet", address):
        return "sha256" if listed.find(b"\t") == 64 else "sha1"
    # An empty repository has no id to go by; its algorithm appears only in the packet trace.
    heard = probe.attempt("ls-remote", "--quiet", address, more={"GIT_TRACE_PACKET": "1"}).complaint
    return "sha256" if "object-format=sha256" in heard else "sha1"


def _size(place: Path) -> int:
    """Roughly how many bytes the objects take on disk. One of the 256 directories of loose objects is measured for
    all.
    """
    total = 0
    for directory, times in (("objects/17", 256), ("objects/pack", 1)):
        try:
            with os.scandir(place / directory) as files:
                total += times * sum(file.stat(follow_symlinks=False).st_blocks * 512 for file in files)
        except FileNotFoundError:
            continue
    return total


def open_plane(
    where: str,
    cache: Path,
    outside: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Plane:
    """Opens the repository at a path or an address. Objects from an address are cached in a directory below `cache`."""
    if not where or where.startswith("-"):
        raise Usage(f"{where!r} is neither a directory nor the address of a git repository")
    if is_address(where):
        return RemotePlane(where, cache, outside, patience_s)
    return LocalPlane(Path(where).expanduser(), outside, patience_s)


def is_address(where: str) -> bool:
    """Whether git would look for this elsewhere than on this disk."""
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", where):
        return True
    return re.match(r"[^/:]+:", where) is not None and not Path(where).exists()
