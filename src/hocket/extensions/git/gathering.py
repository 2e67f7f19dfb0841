"""Reads the objects needed to verify some jobs, in a few large requests, one for each step away from the refs, and
never more bytes than there is room for.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple

from hocket.extensions.command.proof import PROOF_BYTES_MAX
from hocket.extensions.git.claim_commits import is_ours
from hocket.extensions.git.git_jobs import INPUTS, MANIFEST, JobRefs
from hocket.extensions.git.objects import (
    COMMIT_BYTES_MAX,
    OBJECT_BYTES_MAX,
    TREE_BYTES_MAX,
    Commit,
    Object,
    ObjectTooLarge,
    TreeEntry,
    Unreadable,
    read_commit,
    read_tree,
)
from hocket.extensions.git.plane import OBJECTS, Plane
from hocket.extensions.git.results import ATTESTATION, BLOBS, OUTPUTS, PROOF
from hocket.kernel.ids import content_hash
from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

GATHERED_BYTES_MAX = 128 * 1024 * 1024
ATTESTATION_BYTES_MAX = 16 * 1024 * 1024
LARGE_AT_ONCE = 8
CHAIN_MAX = 100_000
SEARCHED_MAX = 256

# The files of a job or a result that are read whole, with their largest sizes.
_FILES = {
    TEXT_BYTES_MAX: (MANIFEST,),
    PROOF_BYTES_MAX: (PROOF, OUTPUTS),
    ATTESTATION_BYTES_MAX: (ATTESTATION,),
}


class GitFinding(NamedTuple):
    """`is_gap` is True if a part could not be checked because this clone does not have it."""

    commit: str
    what: str
    is_gap: bool = False


class Wrong(Exception):
    """Ends the check of one part of a job, with a finding."""

    def __init__(self, finding: GitFinding) -> None:
        super().__init__(finding.what)
        self.finding = finding


class Gathered:
    def __init__(self, plane: Plane, shallow: frozenset[str]) -> None:
        self._plane = plane
        self._room = GATHERED_BYTES_MAX
        self.shallow = shallow
        self.digest_bytes = plane.digest_bytes
        self._found: dict[str, Object | Unreadable] = {}
        self._weights: dict[str, tuple[bytes, int]] = {}
        self._commits: dict[str, Commit] = {}
        self._trees: dict[str, dict[str, TreeEntry]] = {}

    def gather(self, jobs: Iterable[JobRefs]) -> None:
        """Raises TooLarge if these jobs have more bytes than there is room for."""
        jobs = list(jobs)
        outer = [oid for refs in jobs for oid in (refs.job, refs.result) if oid is not None]
        claims = [oid for refs in jobs for oid in (refs.claim, refs.abort) if oid is not None]
        claims += [oid for refs in jobs for oid in (*refs.claims.values(), *refs.others.values())]
        self._read([*outer, *claims], COMMIT_BYTES_MAX)
        self._follow(claims)
        commits = [commit for commit in map(self._as_commit, outer) if commit is not None]
        tops = [commit.tree for commit in commits]
        self._read(tops, TREE_BYTES_MAX)
        entries = [entry for tree in dict.fromkeys(tops) for entry in self._as_tree(tree)]
        for limit, names in _FILES.items():
            self._read([entry.oid for entry in entries if entry.name in names], limit)
        within = [entry.oid for entry in entries if entry.name in (INPUTS, BLOBS)]
        within += self._descend([entry.oid for entry in entries if entry.name == OBJECTS[0]], OBJECTS[1:])
        self._read(within, TREE_BYTES_MAX)
        self._weigh({entry.oid: None for tree in within for entry in self._as_tree(tree)})

    def _follow(self, claims: Iterable[str]) -> None:
        """Reads the earlier claims. The parents of a job or of another program's claim are no part of the chain, and
        may be the whole history of a project.
        """
        seen: set[str] = set()
        for _ in range(CHAIN_MAX):
            new = dict.fromkeys(oid for oid in claims if oid not in seen)
            seen.update(new)
            commits = [commit for commit in map(self._as_commit, new) if commit is not None and is_ours(commit.message)]
            claims = [parent for commit in commits for parent in commit.parents]
            if not claims:
                break
            self._read(claims, COMMIT_BYTES_MAX)

    def _descend(self, tops: list[str], steps: Iterable[str]) -> list[str]:
        """The trees at the end of a path below each of these."""
        for step in steps:
            self._read(tops, TREE_BYTES_MAX)
            tops = [entry.oid for tree in tops for entry in self._as_tree(tree) if entry.name == step]
        return tops

    def _read(self, oids: Iterable[str], limit: int) -> None:
        """Reads the objects that were not read yet."""
        wanted = {oid: None for oid in oids if oid not in self._found and len(oid) == 2 * self.digest_bytes}
        if wanted:
            found = self._plane.read(wanted, limit, self._room)
            self._room -= sum(len(each.data) for each in found.values() if isinstance(each, Object))
            self._found |= found

    def _weigh(self, oids: Iterable[str]) -> None:
        """Keeps only the hash and the size of files that may be large."""
        left = iter(oids)
        while some := list(islice(left, LARGE_AT_ONCE)):
            try:
                found = self._plane.read(some, OBJECT_BYTES_MAX, OBJECT_BYTES_MAX)
            except ObjectTooLarge:
                for oid in some:
                    self._keep_weights(self._plane.read([oid]))
            else:
                self._keep_weights(found)

    def _keep_weights(self, found: Mapping[str, Object | Unreadable]) -> None:
        for oid, each in found.items():
            if isinstance(each, Object) and each.kind == "blob":
                self._weights[oid] = content_hash(each.data), len(each.data)
            elif isinstance(each, Object):
                self._found[oid] = Unreadable(f"is a {each.kind} and not a blob")
            else:
                self._found[oid] = each

    def _as_commit(self, oid: str) -> Commit | None:
        try:
            return self.commit(oid, oid)
        except Wrong:
            return None

    def _as_tree(self, oid: str) -> Iterable[TreeEntry]:
        try:
            return self.tree(oid, oid).values()
        except Wrong:
            return ()

    def weight(self, oid: str, of: str) -> tuple[bytes, int]:
        """The hash and the size of a file."""
        if oid not in self._weights:
            data = self.get(oid, "blob", of)
            self._weights[oid] = content_hash(data), len(data)
        return self._weights[oid]

    def get(self, oid: str, kind: str, of: str) -> bytes:
        """The bytes of an object that the commit `of` leads to."""
        found = self.object(oid, of)
        if found.kind != kind:
            raise Wrong(GitFinding(of, f"its object {oid} is a {found.kind} and not a {kind}"))
        return found.data

    def object(self, oid: str, of: str) -> Object:
        found = self._found.get(oid, Unreadable("is not the id of an object here"))
        if isinstance(found, Unreadable):
            raise Wrong(GitFinding(of, f"its object {oid} {found.why}", is_gap=found.is_missing))
        return found

    def commit(self, oid: str, of: str) -> Commit:
        if oid not in self._commits:
            raw = self.get(oid, "commit", of)
            try:
                self._commits[oid] = read_commit(raw)
            except ValueError as error:
                raise Wrong(GitFinding(oid, str(error))) from None
        return self._commits[oid]

    def tree(self, oid: str, of: str) -> dict[str, TreeEntry]:
        if oid not in self._trees:
            raw = self.get(oid, "tree", of)
            try:
                self._trees[oid] = read_tree(raw, self.digest_bytes)
            except ValueError as error:
                raise Wrong(GitFinding(of, f"its tree {oid}: {error}")) from None
        return self._trees[oid]

    def below(self, entries: Mapping[str, TreeEntry], path: Iterable[str], of: str) -> dict[str, TreeEntry]:
        """The directory at a path; empty if there is none."""
        found = dict(entries)
        for name in path:
            if name not in found:
                return {}
            found = self.tree(found[name].oid, of)
        return found

    def file(self, entries: Mapping[str, TreeEntry], name: str, of: str) -> bytes:
        if name not in entries:
            raise Wrong(GitFinding(of, f"its tree has no {name}"))
        return self.get(entries[name].oid, "blob", of)

    def search(self, entries: Mapping[str, TreeEntry], hash: bytes, limit: int) -> bytes | None:
        """The file among these with that hash, whatever its name; files are read one at a time."""
        for oid in islice(dict.fromkeys(entry.oid for entry in entries.values()), SEARCHED_MAX):
            found = self._plane.read([oid], limit)[oid]
            if isinstance(found, Object) and found.kind == "blob" and content_hash(found.data) == hash:
                return found.data
        return None
