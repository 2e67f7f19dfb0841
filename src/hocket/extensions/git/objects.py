"""Git objects on this disk. One long-lived git process reads them, many at a time, and we hash them again, because git
itself does not check that an object's bytes match its id. We write them as loose objects in git's format.

A loose object is one file, in git's format, complete from the moment that it has its name.
"""

import errno
import hashlib
import os
import re
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from hocket.errors import StoreError, Usage
from hocket.extensions.git.git import PATIENCE_S, Git, GitGone, Talk
from hocket.store.files import sync_directory

OBJECT_BYTES_MAX = 64 * 1024 * 1024
COMMIT_BYTES_MAX = 64 * 1024
TREE_BYTES_MAX = 4 * 1024 * 1024
BATCH_MAX = 256
READ_TRIES = 2
Answer = TypeVar("Answer")
Kind = Literal["blob", "tree", "commit"]
FILE, DIRECTORY = "100644", "40000"
_DIGESTS = {"sha1": (hashlib.sha1, 20), "sha256": (hashlib.sha256, 32)}
_HEAD = re.compile(b"tree ([0-9a-f]+)((?:\nparent [0-9a-f]+)*)(?:\n(?!parent )|$)")
_MODES = frozenset({b"100644", b"100755", b"100664", b"120000", b"160000", b"40000"})
PLAIN_BYTES_MAX = 4_000
LEVEL_DEFAULT = 1
_NAMELESS = getattr(os, "O_TMPFILE", 0) if os.path.isdir("/proc/self/fd") else 0
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


class Object(NamedTuple):
    kind: str
    data: bytes


class Unreadable(NamedTuple):
    """An object that cannot be read, and why: the text follows "the object ID"."""

    why: str
    is_missing: bool = False


class TreeEntry(NamedTuple):
    mode: str
    name: str
    oid: str


MISSING = Unreadable("is missing here", is_missing=True)


class ObjectTooLarge(Exception):
    """Objects that are not read, because together they exceed the caller's limit."""


class Repository:
    """One repository on this disk. Safe to use from several threads."""

    def __init__(
        self,
        path: Path,
        where: str | None = None,
        outside: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        where = where or str(path)
        if not path.is_dir():
            raise Usage(f"there is no git repository at {where}: no such directory")
        git = Git(where, None, outside, {"safe.bareRepository": "all"}, patience_s)
        asked = git.run("-C", str(path.absolute()), "rev-parse", "--absolute-git-dir", "--show-object-format")
        found = asked.decode(errors="surrogateescape").splitlines()
        if len(found) != 2 or found[1] not in _DIGESTS:
            raise Usage(f"the repository {where} has a format that is not known here; install a newer git or Hocket")
        self.git = Git(where, found[0], outside, patience_s=patience_s)
        self.algorithm = found[1]
        self._digest, self._digest_bytes = _DIGESTS[self.algorithm]
        self.zero = "0" * (2 * self._digest_bytes)
        self._oid = re.compile(f"(?:[0-9a-f]{{2}}){{{self._digest_bytes}}}")
        settings = self._settings()
        self._objects = os.fsdecode(self.git.run("rev-parse", "--git-path", "objects").rstrip(b"\n"))
        self._loose = Loose(self._objects, settings)
        self._shared = settings.get("core.sharedrepository", "false") not in ("false", "umask", "0", "no", "off", "")
        self.promisors = [
            name.split(".", 1)[1].rsplit(".", 1)[0]
            for name, value in settings.items()
            if name.startswith("remote.") and name.endswith(".promisor") and value in ("true", "yes", "on", "1", "")
        ]
        self.remotes = [
            name.removeprefix("remote.").removesuffix(".url")
            for name in settings
            if name.startswith("remote.") and name.endswith(".url")
        ]
        self._lock = threading.Lock()
        self._reader: Talk | None = None
        self._bare: tempfile.TemporaryDirectory[str] | None = None
        self._outside = outside

    def _settings(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for part in self.git.run("config", "--list", "-z").decode(errors="surrogateescape").split("\0"):
            name, _, value = part.partition("\n")
            found[name] = value
        return found

    def close(self) -> None:
        self._loose.close()
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            if self._bare is not None:
                self._bare.cleanup()
                self._bare = None

    def is_oid(self, text: str) -> bool:
        return self._oid.fullmatch(text) is not None

    def oid_of(self, kind: str, data: bytes) -> str:
        return self._digest(b"%s %d\0" % (kind.encode(), len(data)) + data).hexdigest()

    def shallow(self) -> frozenset[str]:
        """The commits whose parents were left out on purpose."""
        path = Path(os.fsdecode(self.git.run("rev-parse", "--git-path", "shallow").rstrip(b"\n")))
        try:
            return frozenset(path.read_text(encoding="ascii").split())
        except FileNotFoundError:
            return frozenset()

    # --- reading

    def read(
        self, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX, together: int | None = None
    ) -> dict[str, Object | Unreadable]:
        """Each of these objects as it is on this disk; fetches nothing. Asks git for the sizes first, and skips an
        object of more than `limit` bytes. Raises TooLarge if the others exceed `together`.
        """
        found: dict[str, Object | Unreadable] = {}
        wanted = self._wanted(oids, found)
        with self._lock:
            for start in range(0, len(wanted), BATCH_MAX):
                batch = wanted[start : start + BATCH_MAX]
                measured = self._measure(batch)
                found |= {oid: it for oid, it in measured.items() if isinstance(it, Unreadable)}
                sizes = {oid: it for oid, it in measured.items() if not isinstance(it, Unreadable)}
                for oid, size in sizes.items():
                    if size > limit:
                        found[oid] = Unreadable(f"has {size} bytes, more than the limit of {limit}")
                fitting = [oid for oid in sizes if oid not in found]
                if together is not None and (together := together - sum(sizes[oid] for oid in fitting)) < 0:
                    raise ObjectTooLarge
                self._ask("contents", fitting, self._contents, found)
        return found

    def missing(self, oids: Iterable[str]) -> list[str]:
        """Those of these objects that are not on this disk."""
        wanted = self._wanted(oids, {})
        with self._lock:
            batches = [wanted[start : start + BATCH_MAX] for start in range(0, len(wanted), BATCH_MAX)]
            return [oid for batch in batches for oid, it in self._measure(batch).items() if it == MISSING]

    def _wanted(self, oids: Iterable[str], found: dict[str, Object | Unreadable]) -> list[str]:
        wanted = list(dict.fromkeys(oids))
        found |= {oid: Unreadable("is not the id of an object here") for oid in wanted if not self.is_oid(oid)}
        return [oid for oid in wanted if oid not in found]

    def _measure(self, oids: Sequence[str]) -> dict[str, int | Unreadable]:
        found: dict[str, int | Unreadable] = {}
        self._ask("info", oids, self._size, found)
        return found

    def _ask(
        self,
        command: str,
        oids: Sequence[str],
        answer: Callable[[Talk, str], Answer | Unreadable],
        found: dict[str, Answer | Unreadable],
        tries: int = 1,
    ) -> None:
        """Sends git the same request for several objects; the answers go into `found`."""
        try:
            talk = self._reading()
            talk.say(b"".join(b"%b %b\n" % (command.encode(), oid.encode()) for oid in oids) + b"flush\n")
            for oid in oids:
                found[oid] = answer(talk, oid)
        except GitGone as ended:
            # Git exits on some kinds of damage, or was killed. Each of the others is requested again.
            self._reader = None
            rest = [oid for oid in oids if oid not in found]
            if len(rest) > 1 or tries < READ_TRIES:
                for oid in rest:
                    self._ask(command, [oid], answer, found, tries + 1 if len(rest) == 1 else 1)
            else:
                words = "; ".join(str(ended).removeprefix("fatal: ").removeprefix("error: ").split("\n"))
                found[rest[0]] = Unreadable(f"is damaged: {words.strip('; ')}")
        except BaseException:
            # Half an answer may still be in the pipe.
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            raise

    def _reading(self) -> Talk:
        if self._reader is None:
            git = self._apart() if self.promisors else self.git
            self._reader = git.talk("cat-file", "--batch-command", "--buffer")
        return self._reader

    def _apart(self) -> Git:
        """Git on the same objects, but in a repository of its own that has no remote: otherwise git would fetch each
        missing object separately, or fail.
        """
        if self._bare is None:
            self._bare = tempfile.TemporaryDirectory(prefix="hocket-git-")
            place = Path(self._bare.name)
            for name in ("refs", "objects"):
                (place / name).mkdir()
            (place / "HEAD").write_text("ref: refs/heads/none\n")
            (place / "config").write_text(
                "[core]\n\trepositoryformatversion = 1\n\tbare = true\n"
                f"[extensions]\n\tobjectFormat = {self.algorithm}\n"
            )
        where = {"GIT_OBJECT_DIRECTORY": self._objects}
        return Git(self.git.where, self._bare.name, self._outside, patience_s=self.git.patience_s, more=where)

    def _head(self, talk: Talk, oid: str) -> tuple[str, int] | Unreadable:
        head = talk.line().split(b" ")
        if len(head) != 3:
            # Git also reports a file that it cannot parse as missing.
            is_there = os.path.exists(self._loose.place(oid))
            return Unreadable("is damaged: git cannot read it") if is_there else MISSING
        return head[1].decode(), int(head[2])

    def _size(self, talk: Talk, oid: str) -> int | Unreadable:
        head = self._head(talk, oid)
        return head if isinstance(head, Unreadable) else head[1]

    def _contents(self, talk: Talk, oid: str) -> Object | Unreadable:
        head = self._head(talk, oid)
        if isinstance(head, Unreadable):
            return head
        kind, size = head
        data = talk.exactly(size + 1)[:-1]
        if self.oid_of(kind, data) != oid:
            return Unreadable("is damaged: its bytes do not match its id")
        return Object(kind, data)

    def fetch(self, remote: str, oids: Iterable[str], *options: str, above: Sequence[str] = ()) -> None:
        """Fetches objects from another repository, with everything that they rely on, except what the commits `above`,
        which are already here, rely on.
        """
        tips = (f"--negotiation-tip={oid}" for oid in above)
        self.git.ask(
            *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--recurse-submodules=no"),
            *(*options, *tips, "--stdin", remote),
            given="".join(f"{oid}\n" for oid in oids).encode(),
            settings={"fetch.negotiationAlgorithm": "consecutive" if above else "noop"},
        )

    # --- writing

    def prepare(self) -> None:
        """Call this when there is time: it speeds up writing the next object."""
        self._loose.prepare()

    def write(self, kind: Kind, data: bytes) -> str:
        """Writes an object, unless it exists; returns its id."""
        if len(data) > OBJECT_BYTES_MAX:
            raise Usage(f"a {kind} of {len(data)} bytes is more than the {OBJECT_BYTES_MAX} that a git object may have")
        whole = b"%s %d\0" % (kind.encode(), len(data)) + data
        oid = self._digest(whole).hexdigest()
        if self._shared:
            # Git knows which group and permissions its files must have.
            self.git.run("hash-object", "-w", "-t", kind, "--stdin", given=data)
            return oid
        if kind != "commit":  # our commits are all different
            try:
                os.utime(self._loose.place(oid))  # a new date keeps git from pruning it before a ref points to it
                return oid
            except OSError:
                pass
        try:
            self._loose.put(oid, whole)
        except FileNotFoundError:
            raise StoreError(f"the repository {self.git.where} is gone; restore it or name another one") from None
        except OSError as error:
            raise self.git.explain(os.strerror(error.errno or 0), "writing") from error
        return oid


# --- the insides of objects


def tree_data(entries: Iterable[TreeEntry]) -> bytes:
    """The bytes of a tree."""
    return b"".join(
        b"%b %b\0" % (entry.mode.encode(), entry.name.encode("utf-8", "surrogateescape")) + bytes.fromhex(entry.oid)
        for entry in sorted(entries, key=_place)
    )


def _place(entry: TreeEntry) -> bytes:
    """Git sorts directories as if their names ended in a slash."""
    return entry.name.encode("utf-8", "surrogateescape") + (b"/" if entry.mode == DIRECTORY else b"")


def read_tree(data: bytes, digest_bytes: int) -> dict[str, TreeEntry]:
    """The entries of a tree by name. Raises ValueError if it is not a tree, or not in git's format."""
    entries: dict[str, TreeEntry] = {}
    at, before = 0, b""
    while at < len(data):
        space, end = data.find(b" ", at), data.find(b"\0", at)
        if space < 0 or end < space or end + 1 + digest_bytes > len(data) or data[at:space] not in _MODES:
            raise ValueError("not a tree")
        name = data[space + 1 : end].decode("utf-8", "surrogateescape")
        entry = TreeEntry(data[at:space].decode(), name, data[end + 1 : end + 1 + digest_bytes].hex())
        if name in ("", ".", "..", ".git") or "/" in name or name in entries or before >= (before := _place(entry)):
            raise ValueError(f"the name {name!r} is invalid, or out of order")
        entries[name] = entry
        at = end + 1 + digest_bytes
    return entries


class Commit(NamedTuple):
    """A commit as its bytes say, without grafts and replacements."""

    tree: str
    parents: tuple[str, ...]
    message: bytes
    raw: bytes


def commit_data(tree: str, parents: Iterable[str], who: str, seconds: int, message: bytes) -> bytes:
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"author {who} {seconds} +0000", f"committer {who} {seconds} +0000", "", ""]
    return "\n".join(lines).encode() + message


def read_commit(raw: bytes) -> Commit:
    """Raises ValueError if it is not a commit."""
    head, gap, message = raw.partition(b"\n\n")
    found = _HEAD.match(head)
    if not gap or found is None:
        raise ValueError("not a commit")
    return Commit(found[1].decode(), tuple(found[2].decode().split("\nparent ")[1:]), message, raw)


class _Blank(NamedTuple):
    """An empty file, open for writing; unnamed if the file system supports that."""

    handle: int
    name: str | None


class Loose:
    """Writes to the object directory of a repository. Safe to use from several threads."""

    def __init__(self, directory: str, settings: Mapping[str, str]) -> None:
        self._directory = directory
        self._own, self._numbers = os.urandom(4).hex(), count()
        level = settings.get("core.loosecompression", settings.get("core.compression"))
        self._level = None if level is None else int(level)
        self._is_synced = _is_synced(settings)
        self._has_nameless = bool(_NAMELESS)
        self._ready: list[_Blank] = []

    def close(self) -> None:
        while self._ready:
            os.close(self._ready.pop().handle)

    def place(self, oid: str) -> str:
        return f"{self._directory}/{oid[:2]}/{oid[2:]}"

    def put(self, oid: str, whole: bytes) -> None:
        """Writes an object, including its header. Raises OSError."""
        try:
            blank = self._ready.pop()
        except IndexError:
            blank = self._blank()
        try:
            try:
                packed = self._packed(whole)
                while packed:
                    packed = packed[os.write(blank.handle, packed) :]
                if self._is_synced:
                    os.fsync(blank.handle)
                _name(blank, self.place(oid))
            finally:
                os.close(blank.handle)
        except BaseException:
            if blank.name is not None:
                with suppress(FileNotFoundError):
                    os.unlink(blank.name)
            raise
        if self._is_synced:
            sync_directory(os.path.dirname(self.place(oid)))

    def prepare(self) -> None:
        """Opens the file for the next object ahead of time, if an unused one would leave nothing behind."""
        if self._has_nameless and not self._ready:
            with suppress(OSError):  # `put` raises if the file cannot be opened
                self._ready.append(self._blank())

    def _blank(self) -> _Blank:
        # All files start in one directory: creating each in another of many directories takes much longer.
        if self._has_nameless:
            try:
                return _Blank(os.open(self._directory, os.O_WRONLY | _NAMELESS | os.O_CLOEXEC, 0o444), None)
            except OSError as error:
                if error.errno not in _NO_NAMELESS:
                    raise
                self._has_nameless = False
        name = f"{self._directory}/tmp_obj_{os.getpid():x}_{next(self._numbers)}_{self._own}"
        return _Blank(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444), name)

    def _packed(self, whole: bytes) -> bytes:
        if self._level is None and len(whole) <= PLAIN_BYTES_MAX:
            return _plain(whole)
        return zlib.compress(whole, LEVEL_DEFAULT if self._level is None else self._level)


def _plain(data: bytes) -> bytes:
    """An uncompressed zlib stream. A small file takes up one disk block either way."""
    size = len(data)
    head = b"\x78\x01\x01" + size.to_bytes(2, "little") + (size ^ 0xFFFF).to_bytes(2, "little")
    return head + data + zlib.adler32(data).to_bytes(4, "big")


def _name(blank: _Blank, place: str) -> None:
    try:
        _name_within(blank, place)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(place))
        _name_within(blank, place)


def _name_within(blank: _Blank, place: str) -> None:
    if blank.name is not None:
        os.rename(blank.name, place)
        return
    with suppress(FileExistsError):  # another process wrote the same bytes
        os.link(f"/proc/self/fd/{blank.handle}", place, src_dir_fd=blank.handle)


def _is_synced(settings: Mapping[str, str]) -> bool:
    """Whether the repository wants loose objects synced to disk before a ref points to them. Git's default is no."""
    synced = settings.get("core.fsyncobjectfiles", "false") in ("true", "yes", "on", "1", "")
    for part in filter(None, (word.strip() for word in settings.get("core.fsync", "").split(","))):
        name = part.removeprefix("-")
        if name in ("loose-object", "objects", "committed", "added", "all"):
            synced = not part.startswith("-")
        elif name == "none":
            synced = False
    return synced
