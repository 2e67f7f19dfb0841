"""Verifying jobs in git with nothing but their objects: the manifest behind a job's name, the chain of signed claims,
the result and its proof, and every file that came along. Each finding names the commit and says what is wrong with it.
What a shallow or partial clone has left out is told apart from what is wrong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import NamedTuple

from hocket.gitplane.claims import Claim, is_signed, read_claim
from hocket.gitplane.jobs import INPUTS, MANIFEST, JobRefs, group
from hocket.gitplane.objects import DIRECTORY, FILE, Commit, Entry, Object, Unreadable, read_commit, read_tree
from hocket.gitplane.plane import Plane
from hocket.gitplane.results import (
    ATTESTATION,
    BLOBS,
    OUTPUTS,
    PROOF,
    Result,
    checked_proof,
    made_by,
    pointers,
    read_result,
    result_data,
    state_of,
)
from hocket.gitplane.trailers import Malformed
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import key_text
from hocket.kernel.manifest import BadManifest, Manifest, content_id, read_manifest
from hocket.kernel.proof import BadProof, Execution
from hocket.log.parallel import Shared

JOBS_AT_ONCE = 128
LARGE_AT_ONCE = 8
CHAIN_MAX = 100_000


class Finding(NamedTuple):
    """`is_gap` is True for what could not be looked at, because it is not in this clone."""

    commit: str
    what: str
    is_gap: bool = False


class Verified(NamedTuple):
    """What was found about one job. `execution` is what its result proves, when it proves it."""

    content_id: bytes
    findings: tuple[Finding, ...]
    worker: bytes | None = None
    execution: Execution | None = None

    @property
    def is_sound(self) -> bool:
        return not self.findings


def verify(plane: Plane, job: bytes | None = None, helpers: Executor | None = None) -> Iterator[Verified]:
    """Every job of the plane, or the one with that content id, in the order of the content ids. Helpers are threads
    that verify signatures at the same time."""
    grouped = group(plane.refs() if job is None else plane.refs(JobRefs(job).name("")))
    jobs = iter(refs for _, refs in sorted(grouped.items()))
    shallow = plane.shallow()
    before: Shared[_Job, Verified] | None = None
    while some := list(islice(jobs, JOBS_AT_ONCE)):
        objects = _Objects(plane, shallow)
        objects.gather(some)
        begun = Shared(helpers, _verify_each, [_Job(refs, objects) for refs in some])
        # While one batch is read, the helpers verify the one before.
        if before is not None:
            yield from before.finish()
        before = begun
    if before is not None:
        yield from before.finish()


def _verify_each(looks: Sequence["_Job"]) -> list[Verified]:
    return [look.verify() for look in looks]


class _Wrong(Exception):
    """Ends the look at one part of a job, with what was found."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.what)
        self.finding = finding


class _Objects:
    """The objects of some jobs, read in a few large requests, one for each step away from the refs."""

    def __init__(self, plane: Plane, shallow: frozenset[str]) -> None:
        self._plane = plane
        self.shallow = shallow
        self.digest_bytes = plane.digest_bytes
        self._found: dict[str, Object | Unreadable] = {}
        self._weights: dict[str, tuple[bytes, int]] = {}
        self._commits: dict[str, Commit] = {}
        self._trees: dict[str, dict[str, Entry]] = {}

    def gather(self, jobs: Iterable[JobRefs]) -> None:
        heads: dict[str, None] = {}
        for refs in jobs:
            for oid in (refs.job, refs.claim, refs.result, refs.abort, *refs.claims.values()):
                if oid is not None:
                    heads[oid] = None
        trees: dict[str, None] = {}
        wanted: Iterable[str] = heads
        for _ in range(CHAIN_MAX):
            new = self._read(wanted)
            if not new:
                break
            commits = [commit for commit in map(self._as_commit, new) if commit is not None]
            trees |= dict.fromkeys(commit.tree for commit in commits)
            wanted = [parent for commit in commits for parent in commit.parents]
        below = [entry for tree in self._read(trees) for entry in self._as_tree(tree)]
        self._read(entry.oid for entry in below if entry.mode == FILE)
        within = self._read(entry.oid for entry in below if entry.mode == DIRECTORY)
        self._weigh({entry.oid: None for tree in within for entry in self._as_tree(tree)})

    def _read(self, oids: Iterable[str]) -> list[str]:
        """Reads those that were not read yet; gives their ids."""
        wanted = {oid: None for oid in oids if oid not in self._found and len(oid) == 2 * self.digest_bytes}
        if wanted:
            self._found |= self._plane.read(wanted)
        return list(wanted)

    def _weigh(self, oids: Iterable[str]) -> None:
        """Of files that may be large only the hash and the size are kept."""
        left = iter(oids)
        while some := list(islice(left, LARGE_AT_ONCE)):
            for oid, found in self._plane.read(some).items():
                if isinstance(found, Object) and found.kind == "blob":
                    self._weights[oid] = content_hash(found.data), len(found.data)
                else:
                    self._found[oid] = found

    def _as_commit(self, oid: str) -> Commit | None:
        try:
            return self.commit(oid, oid)
        except _Wrong:
            return None

    def _as_tree(self, oid: str) -> Iterable[Entry]:
        try:
            return self.tree(oid, oid).values()
        except _Wrong:
            return ()

    def weight(self, oid: str, of: str) -> tuple[bytes, int]:
        """The hash and the size of a file."""
        if oid not in self._weights:
            data = self.get(oid, "blob", of)
            self._weights[oid] = content_hash(data), len(data)
        return self._weights[oid]

    def get(self, oid: str, kind: str, of: str) -> bytes:
        """The bytes of an object that the commit `of` leads to."""
        found = self._found.get(oid, Unreadable("is not the id of an object here"))
        if isinstance(found, Unreadable):
            raise _Wrong(Finding(of, f"its object {oid} {found.why}", is_gap=found.is_missing))
        if found.kind != kind:
            raise _Wrong(Finding(of, f"its object {oid} is a {found.kind} and not a {kind}"))
        return found.data

    def commit(self, oid: str, of: str) -> Commit:
        if oid not in self._commits:
            raw = self.get(oid, "commit", of)
            try:
                self._commits[oid] = read_commit(raw)
            except ValueError as error:
                raise _Wrong(Finding(oid, str(error))) from None
        return self._commits[oid]

    def tree(self, oid: str, of: str) -> dict[str, Entry]:
        if oid not in self._trees:
            raw = self.get(oid, "tree", of)
            try:
                self._trees[oid] = read_tree(raw, self.digest_bytes)
            except ValueError as error:
                raise _Wrong(Finding(of, f"its tree {oid}: {error}")) from None
        return self._trees[oid]

    def file(self, entries: Mapping[str, Entry], name: str, of: str) -> bytes:
        if name not in entries:
            raise _Wrong(Finding(of, f"its tree has no {name}"))
        return self.get(entries[name].oid, "blob", of)


class _Job:
    """The look at one job."""

    def __init__(self, refs: JobRefs, objects: _Objects) -> None:
        self._refs, self._objects = refs, objects
        self._findings: list[Finding] = []
        self._tree: str | None = None
        self._asked: Manifest | None = None
        self._head: Claim | None = None

    def verify(self) -> Verified:
        execution = None
        try:
            self._manifest()
            self._claims()
            execution = self._result()
        except _Wrong as wrong:
            self._findings.append(wrong.finding)
        worker = None if self._head is None else self._head.worker
        return Verified(self._refs.content_id, tuple(self._findings), worker, execution)

    def _note(self, commit: str, what: str) -> None:
        self._findings.append(Finding(commit, what))

    # --- the job

    def _manifest(self) -> None:
        job = self._refs.job
        if job is None:
            any_other = (
                self._refs.claim or self._refs.result or self._refs.abort or next(iter(self._refs.claims.values()))
            )
            raise _Wrong(Finding(any_other, f"there is no ref {self._refs.name('job')}"))
        commit = self._objects.commit(job, job)
        self._tree = commit.tree
        if commit.parents:
            self._note(job, "a job's commit has no parents, this one has")
        try:
            entries = self._objects.tree(commit.tree, job)
            text = self._objects.file(entries, MANIFEST, job)
            manifest = self._asked = read_manifest(text)
            if content_id(manifest) != self._refs.content_id:
                what = f"its {MANIFEST} is {hash_text(content_id(manifest))}, not {hash_text(self._refs.content_id)}"
                self._note(job, what)
            if INPUTS in entries:
                self._blobs(entries[INPUTS].oid, job, {pointer.hash: pointer.size for pointer in manifest.inputs or ()})
        except BadManifest as error:
            self._note(job, f"its {MANIFEST} is no manifest: {error}")
        except _Wrong as wrong:
            self._findings.append(wrong.finding)

    def _blobs(self, oid: str, of: str, named: Mapping[bytes, int | None]) -> None:
        """Files that are called by their hashes."""
        for name, entry in self._objects.tree(oid, of).items():
            try:
                hash, size = self._objects.weight(entry.oid, of)
            except _Wrong as wrong:
                self._findings.append(wrong.finding)
                continue
            if hash.hex() != name:
                self._note(of, f"its file {name} is {hash_text(hash)}")
            elif hash not in named:
                self._note(of, f"its file {name} is not named by anything")
            elif named[hash] not in (None, size):
                self._note(of, f"its file {name} has {size} bytes, not {named[hash]}")

    # --- the claims

    def _claims(self) -> None:
        refs = self._refs
        if refs.claim is not None:
            try:
                self._chain(refs.claim)
            except _Wrong as wrong:
                self._findings.append(wrong.finding)
            return
        for oid in (refs.abort, *refs.claims.values()):
            if oid is not None:
                self._note(oid, f"there is no ref {refs.name('claim')} that leads to it")

    def _chain(self, oid: str) -> None:
        """Walks from the newest claim to the job."""
        newest: dict[bytes, str] = {}
        after: tuple[str, Claim] | None = None
        is_cut = False
        while not is_cut:
            commit = self._objects.commit(oid, after[0] if after else oid)
            if after and not commit.parents:
                self._note(after[0], f"the claims lead to {oid}, not to the job's commit {self._refs.job}")
                break
            claim = self._claim(oid, commit)
            self._head = self._head or claim
            if claim.state != "aborted":
                newest.setdefault(claim.worker, oid)
            if after:
                self._step(*after, claim)
            if len(commit.parents) != 1:
                raise _Wrong(Finding(oid, f"a claim has one parent, this one has {len(commit.parents)}"))
            if commit.parents[0] == self._refs.job:
                self._first(oid, claim)
                break
            if is_cut := oid in self._objects.shallow:
                self._findings.append(Finding(oid, "the claims before it are not in this shallow clone", is_gap=True))
            after, oid = (oid, claim), commit.parents[0]
        self._refs_of_claims(newest, is_cut)

    def _claim(self, oid: str, commit: Commit) -> Claim:
        try:
            claim = read_claim(commit)
        except Malformed as error:
            raise _Wrong(Finding(oid, str(error))) from None
        if claim.job != self._refs.content_id:
            self._note(oid, f"its Job-Id is {hash_text(claim.job)}, not {hash_text(self._refs.content_id)}")
        if not is_signed(commit, claim):
            self._note(oid, f"its Claim-Sig is not by {key_text(claim.worker)} over this commit")
        if commit.tree != self._tree:
            self._note(oid, f"its tree is {commit.tree}, not the job's")
        return claim

    def _first(self, oid: str, claim: Claim) -> None:
        right = 0 if claim.state == "aborted" else 1
        if claim.fence != right:
            self._note(oid, f"the first claim has the fence {claim.fence}, not {right}")
        if claim.state not in ("claimed", "aborted"):
            self._note(oid, f"the first claim is {claim.state}")

    def _step(self, oid: str, claim: Claim, before: Claim) -> None:
        """Whether a claim may follow the one before it."""
        if before.state in ("done", "aborted"):
            self._note(oid, f"it follows a claim that is {before.state}")
        elif claim.state == "aborted":
            if claim.fence != before.fence:
                self._note(oid, f"the fence goes from {before.fence} to {claim.fence} in a job that is aborted")
        elif claim.fence == before.fence:
            if (claim.worker, claim.process) != (before.worker, before.process):
                self._note(oid, f"another worker goes on with the fence {claim.fence}")
            if before.state == "running" and claim.state == "claimed":
                self._note(oid, "it goes back from running to claimed")
        elif claim.fence != before.fence + 1:
            self._note(oid, f"the fence jumps from {before.fence} to {claim.fence}")
        elif claim.state != "claimed":
            self._note(oid, f"a claim that is taken over begins as claimed, not as {claim.state}")

    def _refs_of_claims(self, newest: Mapping[bytes, str], is_cut: bool) -> None:
        refs, head = self._refs, self._head
        assert head is not None
        for worker, oid in refs.claims.items():
            if newest.get(worker) != oid and not (is_cut and worker not in newest):
                self._note(oid, f"{refs.of_worker(worker)} is not the newest claim of that worker")
        for worker, oid in newest.items():
            if worker not in refs.claims:
                self._note(oid, f"there is no ref {refs.of_worker(worker)}")
        if refs.abort is not None and (refs.abort != refs.claim or head.state != "aborted"):
            self._note(refs.abort, "the abort is not the newest claim")
        elif refs.abort is None and head.state == "aborted":
            self._note(str(refs.claim), f"it is aborted, but there is no ref {refs.name('abort')}")

    # --- the result

    def _result(self) -> Execution | None:
        refs, head = self._refs, self._head
        oid = refs.result
        if oid is None:
            if head is not None and head.state == "done":
                self._note(str(refs.claim), f"it is done, but there is no ref {refs.name('result')}")
            return None
        if refs.claim is None:
            self._note(oid, "nobody has claimed the job that this is a result of")
        elif head is not None and head.state != "done":
            self._note(oid, f"there is a result, but the newest claim is {head.state}")
        elif head is not None and head.result != oid:
            self._note(oid, f"the newest claim is done with {head.result}, not with this")
        commit = self._objects.commit(oid, oid)
        if commit.parents != (refs.job,):
            self._note(oid, f"its parent is {', '.join(commit.parents) or 'nothing'}, not the job's commit {refs.job}")
        try:
            result = read_result(commit)
        except Malformed as error:
            raise _Wrong(Finding(oid, str(error))) from None
        if result.job != refs.content_id:
            self._note(oid, f"its Job-Id is {hash_text(result.job)}, not {hash_text(refs.content_id)}")
        if head is not None and result.worker != head.worker:
            self._note(oid, f"it is by {key_text(result.worker)}, but {key_text(head.worker)} holds the job")
        entries = self._objects.tree(commit.tree, oid)
        execution = self._proof(oid, result, entries)
        self._consequences(oid, commit, result, execution, entries)
        if head is not None and execution.fence != head.fence:
            self._note(oid, f"its proof is of fence {execution.fence}, the claim has fence {head.fence}")
        return execution

    def _proof(self, oid: str, result: Result, entries: Mapping[str, Entry]) -> Execution:
        envelope = self._objects.file(entries, PROOF, oid)
        if content_hash(envelope) != result.proof:
            self._note(oid, f"its {PROOF} is {hash_text(content_hash(envelope))}, not what Proof-Of-Execution says")
        try:
            return checked_proof(result, envelope, self._objects.file(entries, ATTESTATION, oid))
        except (Malformed, BadProof) as error:
            raise _Wrong(Finding(oid, f"its proof does not hold: {error}")) from None

    def _consequences(
        self, oid: str, commit: Commit, result: Result, execution: Execution, entries: Mapping[str, Entry]
    ) -> None:
        """Everything else in a result follows from its proof."""
        if self._asked is not None and execution.argv != self._asked.argv:
            self._note(oid, "its proof is of another command than the job's")
        if result.program != execution.runner.program:
            self._note(oid, f"its Attest-Program is not the proof's, {hash_text(execution.runner.program)}")
        if result.state != state_of(execution):
            self._note(oid, f"its State is {result.state}, but the proof says {state_of(execution)}")
        if self._objects.file(entries, OUTPUTS, oid) != pointers(execution):
            self._note(oid, f"its {OUTPUTS} is not what follows from the proof")
        if BLOBS in entries:
            self._blobs(entries[BLOBS].oid, oid, made_by(execution))
        for name in entries.keys() - {PROOF, OUTPUTS, ATTESTATION, BLOBS}:
            self._note(oid, f"its tree has a file that does not belong there: {name}")
        if commit.raw != result_data(result, execution.finished_at_ms, commit.tree, str(self._refs.job)):
            self._note(oid, "it is not written as a result commit is")
