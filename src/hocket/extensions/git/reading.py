"""Reads commits, trees and files of the plane, many at a time and within limits. A bad object is a value, not an
exception, so that one bad ref does not affect the others.
"""

from collections.abc import Iterable
from typing import TypeVar

from hocket.extensions.git.objects import (
    COMMIT_BYTES_MAX,
    OBJECT_BYTES_MAX,
    TREE_BYTES_MAX,
    Commit,
    Object,
    TreeEntry,
    Unreadable,
    read_commit,
    read_tree,
)
from hocket.extensions.git.plane import Plane
from hocket.extensions.git.trailers import BadTrailer

T = TypeVar("T")
Tree = dict[str, TreeEntry]
# Where GATOS keeps the bytes behind a pointer with a BLAKE3 hash.
OBJECTS = ("gatos", "objects", "blake3")


def commits(plane: Plane, oids: Iterable[str]) -> dict[str, Commit | BadTrailer]:
    found = plane.read(oids, COMMIT_BYTES_MAX)
    return {oid: as_commit(oid, each) for oid, each in found.items()}


def trees(plane: Plane, oids: Iterable[str]) -> dict[str, Tree | BadTrailer]:
    found = plane.read(oids, TREE_BYTES_MAX)
    return {oid: as_tree(oid, each, plane.digest_bytes) for oid, each in found.items()}


def files(plane: Plane, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX) -> dict[str, bytes | BadTrailer]:
    found = plane.read(oids, limit)
    return {oid: _data(oid, each, "blob") for oid, each in found.items()}


def commit(plane: Plane, oid: str) -> Commit:
    return good(commits(plane, [oid])[oid])


def tree(plane: Plane, oid: str) -> Tree:
    return good(trees(plane, [oid])[oid])


def file(plane: Plane, oid: str, limit: int = OBJECT_BYTES_MAX) -> bytes:
    return good(files(plane, [oid], limit)[oid])


def below(plane: Plane, top: Tree, path: Iterable[str]) -> Tree:
    """The directory at a path; empty if there is none."""
    for name in path:
        if name not in top:
            return {}
        top = tree(plane, top[name].oid)
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
