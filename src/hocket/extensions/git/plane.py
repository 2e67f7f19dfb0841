"""A git repository that holds jobs: one interface, whether the repository is on this disk or at an address. `swap`
alone decides races: it moves refs from the values that the caller has seen, all or none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from hocket.extensions.git.objects import OBJECT_BYTES_MAX, Kind, Object, Unreadable

ROOT = "refs/gatos/jobs/"
SWAP_TRIES = 5


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
