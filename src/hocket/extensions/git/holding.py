"""Holding a job in git: claiming it, renewing the claim, finishing, aborting. Each step writes its commit and then
moves the refs in one swap; None means that another worker was first. Time and randomness are arguments.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from hocket.errors import Conflict, Failed, Usage
from hocket.extensions.command.proof import Proof, check
from hocket.extensions.git.claim_commits import LEASE_S_MAX, LEASE_S_MIN, NONCE_BYTES, ClaimState, GitClaim, claim_data
from hocket.extensions.git.git_jobs import FINAL, GitJob, GitOrder, JobRefs, blob_entries, look
from hocket.extensions.git.objects import FILE, TreeEntry, tree_data
from hocket.extensions.git.plane import Change, Plane, commit_at
from hocket.extensions.git.results import BLOBS, result_data, result_files, result_of, travelling
from hocket.extensions.git.trailers import BadTrailer
from hocket.families.lease import Lease, may_be_taken_over
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import SigningKey

if TYPE_CHECKING:
    from hocket.extensions.command.job import Performed
    from hocket.work.runner import Run

LEASE_S_DEFAULT = 60
ABORT_TRIES = 20
REASON_CHARS_MAX = 200


class GitWorkerKey(NamedTuple):
    """The identity of a claiming worker: its key, the name of its process, the length of its leases, and the source of
    its nonces.
    """

    key: SigningKey
    process: str
    lease_s: int
    randomness: Callable[[int], bytes]


class HeldClaim(NamedTuple):
    """A claim in force, as far as its worker knows."""

    refs: JobRefs
    tree: str
    commit: str
    claim: GitClaim


class RunningClaim:
    """One job that this worker holds and runs."""

    def __init__(self, held: HeldClaim, order: GitOrder, asked_at: float) -> None:
        self.held = held
        self.order = order
        self.lock = threading.Lock()
        self.run: Run | None = None
        self.performed: Performed | None = None
        self.lease = Lease(held.claim.lease_s, asked_at)
        self.is_delivered = False  # its result is in the repository: no claim is left to renew
        self.is_called_off = False  # the worker is stopping and does not wait for the command
        self.is_released = False

    @property
    def is_lost(self) -> bool:
        """Whether the claim is no longer ours."""
        return self.lease.is_over

    def renewed(self, held: HeldClaim, asked_at: float) -> None:
        self.held = held
        self.lease.renewed(held.claim.lease_s, asked_at)

    @property
    def name(self) -> str:
        return hash_text(self.held.refs.content_id)


class ClaimWatch:
    """Which claims may be taken over. The watcher counts a lease on its own clock, from when it first saw the claim
    commit: a claim that stays unchanged for its lease plus a tenth has expired. A claim of our own key whose process is
    dead has expired at once.
    """

    def __init__(self, own: bytes, is_alive: Callable[[str], bool], monotonic: Callable[[], float]) -> None:
        self._own, self._is_alive, self._monotonic = own, is_alive, monotonic
        self._seen: dict[bytes, tuple[str, float]] = {}

    def open(self, jobs: Iterable[GitJob]) -> list[GitJob]:
        """The jobs that may be claimed now. Call this with every listing."""
        now = self._monotonic()
        seen: dict[bytes, tuple[str, float]] = {}
        found = []
        for job in jobs:
            if job.state == "pending":
                found.append(job)
            elif job.state in ("claimed", "running") and job.claim is not None and job.refs.claim is not None:
                commit, since = self._seen.get(job.refs.content_id, (job.refs.claim, now))
                if commit != job.refs.claim:
                    since = now
                seen[job.refs.content_id] = job.refs.claim, since
                is_over = may_be_taken_over(since, job.claim.lease_s, now)
                if is_over or (job.claim.worker == self._own and not self._is_alive(job.claim.process)):
                    found.append(job)
        self._seen = seen
        return found


def claim(plane: Plane, job: GitJob, worker: GitWorkerKey, now_ms: int) -> HeldClaim | None:
    """Claims a pending job, or takes over one whose claim has expired (`ClaimWatch` decides which). None means a lost
    race.
    """
    return next(iter(claim_each(plane, [job], worker, now_ms)), None)


def claim_each(plane: Plane, some: Iterable[GitJob], worker: GitWorkerKey, now_ms: int) -> list[HeldClaim]:
    """Claims several jobs; returns those that were won."""
    if not LEASE_S_MIN <= worker.lease_s <= LEASE_S_MAX:
        raise Usage(f"bad lease of {worker.lease_s} s; give {LEASE_S_MIN} to {LEASE_S_MAX} s")
    made: list[HeldClaim] = []

    def ready() -> Iterator[list[Change]]:
        for job in some:
            if job.state in ("pending", "claimed", "running"):
                held = _claim(plane, job, worker, now_ms)
                made.append(held)
                refs, me = job.refs, held.claim.worker
                yield [
                    Change(refs.name("claim"), refs.claim, held.commit),
                    Change(refs.of_worker(me), refs.claims.get(me), held.commit),
                ]

    won = plane.swap_each(ready())
    return [held for held, is_won in zip(made, won, strict=True) if is_won]


def _claim(plane: Plane, job: GitJob, worker: GitWorkerKey, now_ms: int) -> HeldClaim:
    refs = job.refs
    assert refs.job is not None
    tree = job.tree or _tree(plane, refs)
    made = GitClaim(
        job=refs.content_id,
        worker=worker.key.public,
        process=worker.process,
        fence=1 if job.claim is None else job.claim.fence + 1,
        lease_s=worker.lease_s,
        claimed_ms=now_ms,
        state="claimed",
        nonce=worker.randomness(NONCE_BYTES),
    )
    commit = plane.write("commit", claim_data(made, tree, refs.claim or refs.job, worker.key))
    return HeldClaim(refs, tree, commit, made)


def _tree(plane: Plane, refs: JobRefs) -> str:
    try:
        return commit_at(plane, str(refs.job)).tree
    except BadTrailer as error:
        raise Failed(f"the job {hash_text(refs.content_id)} cannot be claimed: {error}") from None


def run(plane: Plane, held: HeldClaim, worker: GitWorkerKey, now_ms: int) -> HeldClaim | None:
    """Records that the command runs now. None if the claim is no longer in force."""
    return _follow(plane, held, worker, now_ms, "running")


def renew(plane: Plane, held: HeldClaim, worker: GitWorkerKey, now_ms: int) -> HeldClaim | None:
    """Restarts the lease. None if the claim is no longer in force: another worker took it over, or the job was
    aborted.
    """
    return _follow(plane, held, worker, now_ms, held.claim.state)


def release(plane: Plane, held: HeldClaim, worker: GitWorkerKey, now_ms: int) -> bool:
    """Returns the job to the queue: any worker may claim it at once. False if the claim is no longer in force."""
    return _follow(plane, held, worker, now_ms, "released") is not None


def _follow(plane: Plane, held: HeldClaim, worker: GitWorkerKey, now_ms: int, state: ClaimState) -> HeldClaim | None:
    made = held.claim._replace(
        state=state, claimed_ms=now_ms, lease_s=worker.lease_s, nonce=worker.randomness(NONCE_BYTES)
    )
    commit = plane.write("commit", claim_data(made, held.tree, held.commit, worker.key))
    moved = plane.swap(_moves(held, commit))
    return held._replace(commit=commit, claim=made) if moved else None


def _moves(held: HeldClaim, commit: str) -> list[Change]:
    own = held.refs.of_worker(held.claim.worker)
    return [Change(held.refs.name("claim"), held.commit, commit), Change(own, held.commit, commit)]


def finish(
    plane: Plane,
    held: HeldClaim,
    worker: GitWorkerKey,
    proof: Proof,
    contents: Mapping[bytes, bytes],
    now_ms: int,
    policy_root: str | None = None,
) -> str | None:
    """Pushes the result together with the last claim; returns its commit. None if the claim is no longer in force.
    `contents` has the outputs by hash; an output that is too large for git stays behind as a pointer. `policy_root` is
    the manifest's.
    """
    assert held.refs.job is not None
    execution = check(proof, held.refs.content_id, worker.key.public)
    if execution.fence != held.claim.fence:
        raise ValueError(f"the proof is of fence {execution.fence}, the claim has fence {held.claim.fence}")
    files = result_files(proof, execution)
    entries = [TreeEntry(FILE, name, plane.write("blob", data)) for name, data in files.items()]
    if blobs := travelling(execution, contents):
        for hash, data in blobs.items():
            if content_hash(data) != hash:
                raise ValueError(f"a content is not {hash_text(hash)}")
        within = [TreeEntry(FILE, hash.hex(), plane.write("blob", data)) for hash, data in blobs.items()]
        entries += blob_entries(plane, BLOBS, within)
    tree = plane.write("tree", tree_data(entries))
    said = result_of(proof, execution, policy_root)
    result = plane.write("commit", result_data(said, execution.finished_at_ms, tree, held.refs.job))
    made = held.claim._replace(state="done", claimed_ms=now_ms, nonce=worker.randomness(NONCE_BYTES), result=result)
    last = plane.write("commit", claim_data(made, held.tree, held.commit, worker.key))
    moved = plane.swap([*_moves(held, last), Change(held.refs.name("result"), None, result)])
    return result if moved else None


def abort(plane: Plane, job: bytes, worker: GitWorkerKey, now_ms: int, reason: str = "") -> str:
    """Aborts a job that has not ended; returns the abort commit. Raises Conflict if the job has ended."""
    reason = " ".join(reason.encode("ascii", "replace").decode().split())[:REASON_CHARS_MAX].strip()
    for _ in range(ABORT_TRIES):
        found = look(plane, job)
        if found is None:
            raise Usage(f"there is no job {hash_text(job)} in {plane.where}")
        if found.state in FINAL:
            raise Conflict(f"the job {hash_text(job)} has already ended: {found.state}")
        refs = found.refs
        assert refs.job is not None
        made = GitClaim(
            job=job,
            worker=worker.key.public,
            process=worker.process,
            fence=found.claim.fence if found.claim else 0,
            lease_s=worker.lease_s,
            claimed_ms=now_ms,
            state="aborted",
            nonce=worker.randomness(NONCE_BYTES),
            reason=reason or None,
        )
        tree = _tree(plane, refs)
        commit = plane.write("commit", claim_data(made, tree, refs.claim or refs.job, worker.key))
        if plane.swap([Change(refs.name("claim"), refs.claim, commit), Change(refs.name("abort"), None, commit)]):
            return commit
    raise Conflict(f"the job {hash_text(job)} changed during each attempt to abort it; try again")
