"""A git repository as the place where jobs lie: one interface, whether the repository is on this disk or behind an
address. `swap` is all that decides anything: it moves refs from the values that the caller has seen, all of them or
none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from hocket.gitplane.objects import OBJECT_BYTES_MAX, Kind, Object, Unreadable

ROOT = "refs/gatos/jobs/"
SWAP_TRIES = 5


class Change(NamedTuple):
    """A ref is to go from `old` to `new`; None stands for a ref that is not there."""

    ref: str
    old: str | None
    new: str | None


class Plane(Protocol):
    @property
    def where(self) -> str:
        """What people call the repository, without passwords."""

    @property
    def digest_bytes(self) -> int:
        """20 in a sha1 repository, 32 in a sha256 one."""

    @property
    def remotes(self) -> list[str]:
        """The names of the repositories that this one was cloned from or pushes to; none of one behind an address."""

    def refs(self, below: str = ROOT) -> dict[str, str]:
        """Every ref below (or of exactly) this name, as the repository has it now."""

    def swap(self, changes: Sequence[Change]) -> bool:
        """Makes all the changes or none. False means that a ref was not as expected: somebody else was first. What a
        ref is moved to is the caller's own and new, so that one found there was moved by this swap, when its answer
        was lost on the way."""

    def swap_each(self, swaps: Iterable[Sequence[Change]]) -> list[bool]:
        """Several swaps, each decided on its own, faster than one after another. No ref is in two of them."""

    def read(
        self, oids: Iterable[str], limit: int = OBJECT_BYTES_MAX, together: int | None = None
    ) -> dict[str, Object | Unreadable]:
        """Objects by id; those that are not on this disk are fetched from where the repository has its own from. An
        object of more than `limit` bytes is not read. Raises TooLarge when the others have more than `together`."""

    def bring(self, oids: Iterable[str]) -> None:
        """Fetches those of these objects that are not on this disk, all in one go. Those that cannot be had stay
        missing."""

    def write(self, kind: Kind, data: bytes) -> str:
        """Writes an object that a later `swap` leads to; gives its id."""

    def shallow(self) -> frozenset[str]:
        """The commits whose parents were left out on purpose."""

    def close(self) -> None: ...


def parse_refs(listed: bytes, gap: bytes) -> dict[str, str]:
    """Lines of an id, a gap and a name."""
    found: dict[str, str] = {}
    # Not splitlines: a ref may have characters in its name that Python takes for the end of a line.
    for line in filter(None, listed.decode("utf-8", "surrogateescape").split("\n")):
        oid, _, name = line.partition(gap.decode())
        found[name] = oid
    return found


def outcome(changes: Sequence[Change], now: Mapping[str, str]) -> bool | None:
    """What became of a swap that git reported as failed: True when it was made all the same, False when somebody else
    was first, None when nothing has moved.
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
