"""A git repository that holds jobs: one interface, whether the repository is on this disk or at an address. `swap`
alone decides races: it moves refs from the values that the caller has seen, all or none. Commits, trees and files are
read many at a time and within limits. A bad object is a value, not an exception, so that one bad ref does not affect
the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from hocket.extensions.git.objects import (
    COMMIT_BYTES_MAX,
    OBJECT_BYTES_MAX,
    TREE_BYTES_MAX,
    Commit,
    Kind,
    Object,
    TreeEntry,
    Unreadable,
    read_commit,
    read_tree,
)
from hocket.extensions.git.trailers import BadTrailer

ROOT = "refs/gatos/jobs/"
SWAP_TRIES = 5
T = TypeVar("T")
Tree = dict[str, TreeEntry]
# Where GATOS keeps the bytes behind a pointer with a BLAKE3 hash.
OBJECTS = ("gatos", "objects", "blake3")


class Change(NamedTuple):
    """Moves a ref from `old` to `new`; None stands for a ref that does not exist."""

    ref: str
    old: str | None
    new: str | None


class Plane(Protocol):
    @property
    def where(self) -> str:
        """The repository's name for people, without passwords."""

    @property
    def digest_bytes(self) -> int:
        """20 in a sha1 repository, 32 in a sha256 one."""

    @property
    def remotes(self) -> list[str]:
        """The names of the repositories that this one was cloned from or pushes to; none for one at an address."""

    def refs(self, below: str = ROOT) -> dict[str, str]:
        """Every ref below (or with exactly) this name, as the repository has it now."""

    def swap(self, changes: Sequence[Change]) -> bool:
        """Makes all changes or none. False means that a ref was not as expected: another process was first. The caller
        moves a ref only to a new object of its own, so that a ref which points to it was moved by this swap, even if
        the answer was lost.
        """

    def swap_each(self, swaps: Iterable[Sequence[Change]]) -> list[bool]:
        """Several independent swaps, faster than one after another. No ref is in two of them."""

    def read(
        self, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX, together: int | None = None
    ) -> dict[str, Object | Unreadable]:
        """Objects by id; fetches those that are not on this disk from the repository's source. Skips an object of more
        than `limit` bytes. Raises TooLarge if the others exceed `together`.
        """

    def bring(self, oids: Iterable[str]) -> None:
        """Fetches those of these objects that are not on this disk, in one request. Objects that cannot be fetched stay
        missing.
        """

    def write(self, kind: Kind, data: bytes) -> str:
        """Writes an object that a later `swap` will point to; returns its id."""

    def shallow(self) -> frozenset[str]:
        """The commits whose parents were left out on purpose."""

    def close(self) -> None: ...


def parse_refs(listed: bytes, gap: bytes) -> dict[str, str]:
    """Lines of an id, a gap and a name."""
    found: dict[str, str] = {}
    # Not splitlines: a ref's name may contain characters that Python takes for the end of a line.
    for line in filter(None, listed.decode("utf-8", "surrogateescape").split("\n")):
        oid, _, name = line.partition(gap.decode())
        found[name] = oid
    return found


def outcome(changes: Sequence[Change], now: Mapping[str, str]) -> bool | None:
    """The outcome of a swap that git reported as failed: True if it was made all the same, False if another process was
    first, None if nothing has moved.
    """
    if all(now.get(change.ref) == change.new for change in changes):
        return True
    if any(now.get(change.ref) != change.old for change in changes):
        return False
    return None


def check_changes(changes: Sequence[Change]) -> None:
    names = [change.ref for change in changes]
    if not names or len(set(names)) != len(names) or not all(name.startswith(ROOT) for name in names):
        raise ValueError(f"not changes of different refs below {ROOT}: {names}")


def commits_at(plane: Plane, oids: Iterable[str]) -> dict[str, Commit | BadTrailer]:
    found = plane.read(oids, COMMIT_BYTES_MAX)
    return {oid: as_commit(oid, each) for oid, each in found.items()}


def trees_at(plane: Plane, oids: Iterable[str]) -> dict[str, Tree | BadTrailer]:
    found = plane.read(oids, TREE_BYTES_MAX)
    return {oid: as_tree(oid, each, plane.digest_bytes) for oid, each in found.items()}


def files_at(plane: Plane, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX) -> dict[str, bytes | BadTrailer]:
    found = plane.read(oids, limit)
    return {oid: _data(oid, each, "blob") for oid, each in found.items()}


def commit_at(plane: Plane, oid: str) -> Commit:
    return good(commits_at(plane, [oid])[oid])


def tree_at(plane: Plane, oid: str) -> Tree:
    return good(trees_at(plane, [oid])[oid])


def file_at(plane: Plane, oid: str, limit: int = OBJECT_BYTES_MAX) -> bytes:
    return good(files_at(plane, [oid], limit)[oid])


def directory_below(plane: Plane, top: Tree, path: Iterable[str]) -> Tree:
    """The directory at a path; empty if there is none."""
    for name in path:
        if name not in top:
            return {}
        top = tree_at(plane, top[name].oid)
    return top


def good(found: T | BadTrailer) -> T:
    """Returns what was found. Raises Malformed if it is bad."""
    if isinstance(found, BadTrailer):
        raise found
    return found


def as_commit(oid: str, found: Object | Unreadable) -> Commit | BadTrailer:
    data = _data(oid, found, "commit")
    try:
        return data if isinstance(data, BadTrailer) else read_commit(data)
    except ValueError:
        return BadTrailer(f"the object {oid} is not a commit")


def as_tree(oid: str, found: Object | Unreadable, digest_bytes: int) -> Tree | BadTrailer:
    data = _data(oid, found, "tree")
    try:
        return data if isinstance(data, BadTrailer) else read_tree(data, digest_bytes)
    except ValueError as error:
        return BadTrailer(f"the tree {oid}: {error}")


def _data(oid: str, found: Object | Unreadable, kind: str) -> bytes | BadTrailer:
    if isinstance(found, Unreadable):
        return BadTrailer(f"the object {oid} {found.why}")
    return found.data if found.kind == kind else BadTrailer(f"the object {oid} is not a {kind}")
