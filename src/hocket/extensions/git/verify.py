"""Verifies jobs in git from their objects alone: the manifest behind a job's name, the chain of signed claims, the
result and its proof, and every file of it. Each finding names the commit and what is wrong with it. A part that a
shallow or partial clone lacks is a gap, not an error. `trust` decides whether a signing key is trusted. Claims and
results of other programs must meet GATOS' rules; Hocket's must meet more.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import NamedTuple

from hocket.extensions.command.execution import Execution
from hocket.extensions.command.manifest import BadManifest, Manifest, content_id, read_manifest
from hocket.extensions.command.proof import PROOF_BYTES_MAX, BadProof
from hocket.extensions.git.claim_commits import GitClaim, is_ours, is_signed, other_worker, read_claim, worker_named
from hocket.extensions.git.gathering import Gathered, GitFinding, Wrong
from hocket.extensions.git.git_jobs import INPUTS, MANIFEST, JobRefs, group
from hocket.extensions.git.objects import Commit, ObjectTooLarge, TreeEntry
from hocket.extensions.git.plane import OBJECTS, Plane
from hocket.extensions.git.results import (
    ATTESTATION,
    BLOBS,
    OUTPUTS,
    PROOF,
    Result,
    checked_proof,
    is_hockets,
    made_by,
    pointers,
    read_other_envelope,
    read_result,
    result_data,
    signed,
    state_of,
)
from hocket.extensions.git.trailers import BadTrailer
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import key_text
from hocket.log.parallel import Shared

JOBS_AT_ONCE = 128


class Verified(NamedTuple):
    """The findings about one job. `worker` is the one that the newest claim names. `execution` is what its result
    proves, if Hocket wrote the result and it is valid. `signer` is the key that signed the proof of its result; None if
    there is no result or it is unsigned.
    """

    content_id: bytes
    findings: tuple[GitFinding, ...]
    worker: bytes | None = None
    execution: Execution | None = None
    has_result: bool = False
    signer: bytes | None = None


def verify(plane: Plane, job: bytes | None = None, helpers: Executor | None = None) -> Iterator[Verified]:
    """Verifies every job of the plane, or the one with that content id, in order of content id. Helpers are threads
    that verify signatures in parallel.
    """
    grouped = group(plane.refs() if job is None else plane.refs(JobRefs(job).name("")))
    jobs = iter(refs for _, refs in sorted(grouped.items()))
    shallow = plane.shallow()
    before: Shared[_Job, Verified] | None = None
    while some := list(islice(jobs, JOBS_AT_ONCE)):
        gathered = Gathered(plane, shallow)
        try:
            gathered.gather(some)
        except ObjectTooLarge:
            begun = None
        else:
            begun = Shared(helpers, _verify_each, [_Job(refs, gathered) for refs in some])
        # While one batch is read, the helpers verify the previous one.
        if before is not None:
            yield from before.finish()
        before = begun
        if begun is None:
            del gathered
            yield from (_verify_alone(plane, shallow, refs) for refs in some)
    if before is not None:
        yield from before.finish()


def _verify_each(looks: Sequence["_Job"]) -> list[Verified]:
    return [look.verify() for look in looks]


def _verify_alone(plane: Plane, shallow: frozenset[str], refs: JobRefs) -> Verified:
    """Verifies one of several jobs that are too large to read together."""
    gathered = Gathered(plane, shallow)
    try:
        gathered.gather([refs])
    except ObjectTooLarge:
        what = "its commits and files exceed the byte limit for one job"
        return Verified(refs.content_id, (GitFinding(_any_of(refs), what),), has_result=refs.result is not None)
    return _Job(refs, gathered).verify()


def _any_of(refs: JobRefs) -> str:
    every = (refs.job, refs.claim, refs.result, refs.abort, *refs.claims.values(), *refs.others.values())
    return next((oid for oid in every if oid is not None), str(refs.stray))


class _Job:
    """The verification of one job."""

    def __init__(self, refs: JobRefs, objects: Gathered) -> None:
        self._refs, self._objects = refs, objects
        self._findings: list[GitFinding] = []
        self._tree: str | None = None
        self._asked: Manifest | None = None
        self._head: GitClaim | None = None
        self._holders: set[bytes] = set()
        self._signer: bytes | None = None

    def verify(self) -> Verified:
        execution = None
        if self._refs.stray is not None:
            self._note(_any_of(self._refs), f"the ref {self._refs.stray} blocks a ref that the job needs")
        try:
            self._manifest()
            self._claims()
            execution = self._result()
        except Wrong as wrong:
            self._findings.append(wrong.finding)
        worker = None if self._head is None else self._head.worker
        has_result = self._refs.result is not None
        return Verified(self._refs.content_id, tuple(self._findings), worker, execution, has_result, self._signer)

    def _note(self, commit: str, what: str) -> None:
        self._findings.append(GitFinding(commit, what))

    # --- the job

    def _manifest(self) -> None:
        job = self._refs.job
        if job is None:
            raise Wrong(GitFinding(_any_of(self._refs), f"there is no ref {self._refs.name('job')}"))
        commit = self._objects.commit(job, job)
        self._tree = commit.tree
        try:
            entries = self._objects.tree(commit.tree, job)
            text = self._objects.file(entries, MANIFEST, job)
            manifest = self._asked = read_manifest(text)
            if content_id(manifest) != self._refs.content_id:
                what = f"its {MANIFEST} is {hash_text(content_id(manifest))}, not {hash_text(self._refs.content_id)}"
                self._note(job, what)
            named = {pointer.hash: pointer.size for pointer in manifest.inputs or ()}
            for path in ([INPUTS], OBJECTS):
                self._blobs(self._objects.below(entries, path, job), job, named)
        except BadManifest as error:
            self._note(job, f"its {MANIFEST} is no manifest: {error}")
        except Wrong as wrong:
            self._findings.append(wrong.finding)

    def _blobs(self, files: Mapping[str, TreeEntry], of: str, named: Mapping[bytes, int | None]) -> None:
        """Checks files that are named by their hashes."""
        for name, entry in files.items():
            try:
                hash, size = self._objects.weight(entry.oid, of)
            except Wrong as wrong:
                self._findings.append(wrong.finding)
                continue
            if hash.hex() != name:
                self._note(of, f"its file {name} is {hash_text(hash)}")
            elif hash not in named:
                self._note(of, f"its file {name} is not named anywhere")
            elif named[hash] not in (None, size):
                self._note(of, f"its file {name} has {size} bytes, not {named[hash]}")

    # --- the claims

    def _claims(self) -> None:
        refs = self._refs
        try:
            if refs.claim is not None and is_ours(self._objects.object(refs.claim, refs.claim).data):
                self._chain(refs.claim)
                return
            self._other_claims()
        except Wrong as wrong:
            self._findings.append(wrong.finding)

    def _other_claims(self) -> None:
        """Claims of other programs. GATOS requires a ref that names the holder of the job, and nothing else."""
        refs = self._refs
        names = {"claim": refs.claim} if refs.claim is not None else {}
        names |= {f"claims/{worker.hex()}": oid for worker, oid in refs.claims.items()}
        names |= {f"claims/{name}": oid for name, oid in refs.others.items()}
        for name, oid in names.items():
            found = self._objects.object(oid, oid)
            if is_ours(found.data):
                self._note(oid, f"there is no ref {refs.name('claim')} that leads to it")
                continue
            by = worker_named(name.removeprefix("claims/"))
            try:
                inside = other_worker(found.data)
            except BadTrailer as error:
                self._note(oid, str(error))
                continue
            if by is None and inside is None and name == "claim":
                self._note(oid, "it does not say which worker holds the job")
            elif by is not None and inside not in (None, by):
                self._note(oid, f"its Worker-Id is not that of the ref {refs.name(name)}")
            self._holders |= {worker for worker in (by, inside) if worker is not None}
        if refs.abort is not None:
            self._note(refs.abort, "the abort is not the newest claim")

    def _chain(self, oid: str) -> None:
        """Walks from the newest claim to the job."""
        newest: dict[bytes, str] = {}
        after: tuple[str, GitClaim] | None = None
        is_cut = False
        while not is_cut:
            commit = self._objects.commit(oid, after[0] if after else oid)
            if after and not is_ours(commit.message) and self._is_aborted_over(after[1], commit):
                break
            if after and not is_ours(commit.message):
                self._note(after[0], f"the claims lead to {oid}, not to the job's commit {self._refs.job}")
                break
            claim = self._claim(oid, commit)
            self._head = self._head or claim
            if claim.state != "aborted":
                newest.setdefault(claim.worker, oid)
            if after:
                self._step(*after, claim)
            if len(commit.parents) != 1:
                raise Wrong(GitFinding(oid, f"a claim has one parent, this one has {len(commit.parents)}"))
            if commit.parents[0] == self._refs.job:
                self._first(oid, claim)
                break
            if is_cut := oid in self._objects.shallow:
                self._findings.append(
                    GitFinding(oid, "the claims before it are not in this shallow clone", is_gap=True)
                )
            after, oid = (oid, claim), commit.parents[0]
        self._refs_of_claims(newest, is_cut)

    def _is_aborted_over(self, claim: GitClaim, commit: Commit) -> bool:
        """Whether this aborts a job that another program had claimed; it is the only step that may follow such a
        claim.
        """
        try:
            return claim.state == "aborted" and claim.fence == 0 and other_worker(commit.message) is not None
        except BadTrailer:
            return False

    def _claim(self, oid: str, commit: Commit) -> GitClaim:
        try:
            claim = read_claim(commit)
        except BadTrailer as error:
            raise Wrong(GitFinding(oid, str(error))) from None
        if claim.job != self._refs.content_id:
            self._note(oid, f"its Job-Id is {hash_text(claim.job)}, not {hash_text(self._refs.content_id)}")
        if not is_signed(commit, claim):
            self._note(oid, f"its Claim-Sig is not by {key_text(claim.worker)} over this commit")
        if commit.tree != self._tree:
            self._note(oid, f"its tree is {commit.tree}, not the job's")
        return claim

    def _first(self, oid: str, claim: GitClaim) -> None:
        right = 0 if claim.state == "aborted" else 1
        if claim.fence != right:
            self._note(oid, f"the first claim has the fence {claim.fence}, not {right}")
        if claim.state not in ("claimed", "aborted"):
            self._note(oid, f"the first claim is {claim.state}")

    def _step(self, oid: str, claim: GitClaim, before: GitClaim) -> None:
        """Whether a claim may follow the previous one."""
        if before.state in ("done", "aborted"):
            self._note(oid, f"it follows a claim that is {before.state}")
        elif claim.state == "aborted":
            if claim.fence != before.fence:
                self._note(oid, f"the fence goes from {before.fence} to {claim.fence} in a job that is aborted")
        elif before.state == "released" and claim.fence == before.fence:
            self._note(oid, f"it continues fence {claim.fence}, which was returned")
        elif claim.fence == before.fence:
            if (claim.worker, claim.process) != (before.worker, before.process):
                self._note(oid, f"another worker continues fence {claim.fence}")
            if before.state == "running" and claim.state == "claimed":
                self._note(oid, "it goes back from running to claimed")
        elif claim.fence != before.fence + 1:
            self._note(oid, f"the fence jumps from {before.fence} to {claim.fence}")
        elif claim.state != "claimed":
            self._note(oid, f"a claim that is taken over begins as claimed, not as {claim.state}")

    def _refs_of_claims(self, newest: Mapping[bytes, str], is_cut: bool) -> None:
        refs, head = self._refs, self._head
        assert head is not None
        for name, oid in refs.others.items():
            if head.state != "aborted":
                self._note(oid, f"{refs.name('claims/' + name)} claims the job beside the ref that decides")
        for worker, oid in refs.claims.items():
            is_called_off = head.state == "aborted" and not is_ours(self._objects.object(oid, oid).data)
            if newest.get(worker) != oid and not is_called_off and not (is_cut and worker not in newest):
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
        if refs.claim is None and not self._holders:
            self._note(oid, "no worker has claimed the job of this result")
        elif head is not None and head.state != "done":
            self._note(oid, f"there is a result, but the newest claim is {head.state}")
        elif head is not None and head.result != oid:
            self._note(oid, f"the newest claim is done with {head.result}, not with this")
        commit = self._objects.commit(oid, oid)
        if refs.job not in commit.parents:
            self._note(oid, f"its parent is {', '.join(commit.parents) or 'nothing'}, not the job's commit {refs.job}")
        try:
            result = read_result(commit)
        except BadTrailer as error:
            raise Wrong(GitFinding(oid, str(error))) from None
        if result.job != refs.content_id:
            self._note(oid, f"its Job-Id is {hash_text(result.job)}, not {hash_text(refs.content_id)}")
        holders = {head.worker} if head is not None else self._holders
        if holders and result.worker not in holders:
            held = " and ".join(key_text(worker) for worker in sorted(holders))
            self._note(oid, f"it is by {key_text(result.worker)}, but {held} holds the job")
        if result.policy_root is not None and (self._asked is None or result.policy_root != self._asked.policy_root):
            self._note(
                oid, f"its Policy-Code-Root is {result.policy_root}, not the policy_root of the job's {MANIFEST}"
            )
        entries = self._objects.tree(commit.tree, oid)
        if not self._is_hockets(oid, entries):
            self._other_result(oid, result, entries)
            return None
        execution = self._proof(oid, result, entries)
        self._signer = result.worker
        self._consequences(oid, commit, result, execution, entries)
        if head is None:
            self._note(oid, "the claim that it leads back to is not Hocket's")
        if head is not None and execution.fence != head.fence:
            self._note(oid, f"its proof is of fence {execution.fence}, the claim has fence {head.fence}")
        return execution

    def _is_hockets(self, oid: str, entries: Mapping[str, TreeEntry]) -> bool:
        if OUTPUTS in entries or ATTESTATION in entries:
            return True
        return PROOF in entries and is_hockets(self._objects.file(entries, PROOF, oid))

    def _other_result(self, oid: str, result: Result, entries: Mapping[str, TreeEntry]) -> None:
        """A result of another program: its proof, anywhere in the tree, and what it points to."""
        kept = self._objects.below(entries, OBJECTS, oid)
        envelope = self._objects.search(entries, result.proof, PROOF_BYTES_MAX)
        envelope = envelope or self._objects.search(kept, result.proof, PROOF_BYTES_MAX)
        if envelope is None:
            raise Wrong(GitFinding(oid, "none of its files is the proof that Proof-Of-Execution names"))
        if is_hockets(envelope):
            raise Wrong(GitFinding(oid, f"its proof is Hocket's, but its files are not: it has no {ATTESTATION}"))
        try:
            proof, what = read_other_envelope(envelope), signed(result, envelope)
        except BadTrailer as error:
            raise Wrong(GitFinding(oid, f"its proof is not valid: {error}")) from None
        if proof.job != self._refs.content_id:
            self._note(oid, f"its proof is of {hash_text(proof.job)}, not of {hash_text(self._refs.content_id)}")
        if result.program not in (None, proof.program):
            self._note(oid, f"its Attest-Program is not the proof's, {hash_text(proof.program)}")
        self._blobs(kept, oid, proof.pointers | {result.proof: len(envelope)})
        self._signer = result.worker if what == "proof" else None

    def _proof(self, oid: str, result: Result, entries: Mapping[str, TreeEntry]) -> Execution:
        envelope = self._objects.file(entries, PROOF, oid)
        if content_hash(envelope) != result.proof:
            self._note(oid, f"its {PROOF} is {hash_text(content_hash(envelope))}, not what Proof-Of-Execution says")
        try:
            return checked_proof(result, envelope, self._objects.file(entries, ATTESTATION, oid))
        except (BadTrailer, BadProof) as error:
            raise Wrong(GitFinding(oid, f"its proof is not valid: {error}")) from None

    def _consequences(
        self, oid: str, commit: Commit, result: Result, execution: Execution, entries: Mapping[str, TreeEntry]
    ) -> None:
        """Checks everything else in a result against its proof."""
        if self._asked is not None and execution.argv != self._asked.argv:
            self._note(oid, "its proof is of another command than the job's")
        if result.program != execution.runner.program:
            self._note(oid, f"its Attest-Program is not the proof's, {hash_text(execution.runner.program)}")
        if result.state != state_of(execution):
            self._note(oid, f"its State is {result.state}, but the proof says {state_of(execution)}")
        if self._objects.file(entries, OUTPUTS, oid) != pointers(execution):
            self._note(oid, f"its {OUTPUTS} is not what follows from the proof")
        for path in ([BLOBS], OBJECTS):
            self._blobs(self._objects.below(entries, path, oid), oid, made_by(execution))
        beside = entries.keys() - {PROOF, OUTPUTS, ATTESTATION, BLOBS, OBJECTS[0]}
        for depth in range(1, len(OBJECTS)):
            beside |= self._objects.below(entries, OBJECTS[:depth], oid).keys() - {OBJECTS[depth]}
        for name in sorted(beside):
            self._note(oid, f"its tree has a file that does not belong there: {name}")
        if commit.raw != result_data(result, execution.finished_at_ms, commit.tree, str(self._refs.job)):
            self._note(oid, "it is not in the format of a result commit")
