"""Opens a repository: the one place that knows which implementations of `Plane` exist."""

from collections.abc import Mapping
from pathlib import Path

from hocket.errors import Usage
from hocket.extensions.git.addresses import is_address
from hocket.extensions.git.git import PATIENCE_S
from hocket.extensions.git.local import LocalPlane
from hocket.extensions.git.plane import Plane
from hocket.extensions.git.remote import RemotePlane


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
