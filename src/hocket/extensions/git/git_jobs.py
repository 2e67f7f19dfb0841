"""Jobs in git: submitting them, deriving their states from the refs and their commits, reading their manifests, and
removing jobs that have ended.
"""

import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sized
from itertools import islice
from typing import Literal, NamedTuple

from msgspec.structs import replace

from hocket.errors import Conflict, Failed, Usage
from hocket.extensions.command.manifest import AGAIN_NAME, BadManifest, Manifest, canonical, content_id, read_manifest
from hocket.extensions.git.claim_commits import (
    IDENTITY,
    ForeignClaim,
    GitClaim,
    is_ours,
    other_worker,
    read_claim,
    worker_named,
)
from hocket.extensions.git.objects import (
    COMMIT_BYTES_MAX,
    DIRECTORY,
    FILE,
    Commit,
    Object,
    TreeEntry,
    Unreadable,
    commit_data,
    tree_data,
)
from hocket.extensions.git.plane import (
    OBJECTS,
    ROOT,
    Change,
    Plane,
    Tree,
    as_commit,
    commits_at,
    directory_below,
    file_at,
    files_at,
    good,
    trees_at,
)
from hocket.extensions.git.results import Result, read_result
from hocket.extensions.git.trailers import BadTrailer, message
from hocket.kernel.ids import content_hash, hash_text, parse_ulid, ulid_text
from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

INPUTS_BYTES_MAX = 32 * 1024 * 1024

MANIFEST, INPUTS = "job.yaml", "inputs"
# The six states of the document, and what a job is called whose refs or manifest cannot be used.
JobState = Literal["pending", "claimed", "running", "succeeded", "failed", "aborted", "damaged"]
FINAL: frozenset[JobState] = frozenset({"succeeded", "failed", "aborted"})
# Git moves the refs of a push one after the other. A job that looks half-moved is read again after these pauses.
TORN_S = (0.02, 0.1, 0.4)
DESCRIBED_AT_ONCE = 256
ORDERS_AT_ONCE = 32
RUNS_MAX = 10_000
_REF = re.compile(ROOT + "([0-9a-f]{64})/(.+)")
_WORKER = re.compile("[0-9a-f]{64}")
_PARTS = ("job", "claim", "result", "abort")


class JobRefs(NamedTuple):
    """The refs of one job: what each points to. `others` are claims whose names are not keys in hex, and so not ours;
    `stray` is a ref that blocks one that the job needs, since git allows no ref below another.
    """

    content_id: bytes
    job: str | None = None
    claim: str | None = None
    result: str | None = None
    abort: str | None = None
    claims: Mapping[bytes, str] = {}
    others: Mapping[str, str] = {}
    stray: str | None = None

    def name(self, part: str) -> str:
        return f"{ROOT}{self.content_id.hex()}/{part}"

    @property
    def is_unclaimed(self) -> bool:
        """Whether the job is there, and no worker has claimed it yet."""
        if self.job is None or self.claims or self.others:
            return False
        return self.claim is None and self.result is None and self.abort is None

    def of_worker(self, worker: bytes) -> str:
        return self.name(f"claims/{worker.hex()}")


class GitJob(NamedTuple):
    """A job according to its newest commits. `other` is the claim of another program; `trouble` is what is wrong with a
    damaged job; `tree` is that of its commit, if it was read.
    """

    refs: JobRefs
    state: JobState
    claim: GitClaim | None = None
    result: Result | None = None
    trouble: str | None = None
    tree: str | None = None
    other: ForeignClaim | None = None


class GitSubmitted(NamedTuple):
    content_id: bytes
    commit: str
    is_new: bool


class GitOrder(NamedTuple):
    """A job's manifest, those of its inputs that are stored with it, by hash, and the commit."""

    manifest: Manifest
    inputs: Mapping[bytes, str]
    commit: str
    tree: str


# --- submitting


def submit(plane: Plane, text: bytes, now_ms: int, inputs: Iterable[bytes] = ()) -> GitSubmitted:
    """Submits a job. If the same job exists, nothing changes."""
    try:
        manifest = read_manifest(text)
    except BadManifest as error:
        raise Usage(str(error)) from None
    job = content_id(manifest)
    ref = JobRefs(job).name("job")
    contents = {content_hash(each): each for each in inputs}
    _check_inputs(manifest, contents)
    # Look first: two submitters that write the same in the same second write the same commit, and both would be told
    # that theirs is new.
    if (there := plane.refs(ref).get(ref)) is not None:
        return GitSubmitted(job, there, is_new=False)
    entries = [TreeEntry(FILE, MANIFEST, plane.write("blob", text))]
    if contents:
        files = [TreeEntry(FILE, hash.hex(), plane.write("blob", data)) for hash, data in contents.items()]
        entries += blob_entries(plane, INPUTS, files)
    trailers = [("Job-Id", hash_text(job))] + ([("Ulid", manifest.ulid)] if manifest.ulid else [])
    tree = plane.write("tree", tree_data(entries))
    commit = plane.write(
        "commit", commit_data(tree, [], IDENTITY, now_ms // 1000, message(f"job {job.hex()[:12]}", trailers))
    )
    if plane.swap([Change(ref, None, commit)]):
        return GitSubmitted(job, commit, is_new=True)
    there = plane.refs(ref).get(ref)
    if there is None:
        raise Conflict(f"the job {hash_text(job)} was removed a moment ago; submit it again")
    return GitSubmitted(job, there, is_new=False)


def submit_again(plane: Plane, text: bytes, now_ms: int, inputs: Iterable[bytes] = ()) -> GitSubmitted:
    """Submits a job that may exist already as a new one: its manifest gets the number of the run, and so another id."""
    inputs = list(inputs)
    made = submit(plane, text, now_ms, inputs)
    if made.is_new:
        return made
    manifest = read_manifest(text)
    there = group(plane.refs())
    for number in range(2, RUNS_MAX + 1):
        numbered = replace(manifest, env={**(manifest.env or {}), AGAIN_NAME: str(number)}, ulid=None)
        if content_id(numbered) in there:
            continue
        # Another submitter may take the number first.
        if (made := submit(plane, canonical(numbered), now_ms, inputs)).is_new:
            return made
    raise Conflict(f"the job has been submitted {RUNS_MAX} times; `hocket git gc` removes jobs that have ended")


def _check_inputs(manifest: Manifest, contents: Mapping[bytes, bytes]) -> None:
    if sum(map(len, contents.values())) > INPUTS_BYTES_MAX:
        raise Usage(f"the inputs are too large; a job can carry at most {INPUTS_BYTES_MAX} bytes")
    named = {pointer.hash: pointer.size for pointer in manifest.inputs or ()}
    for hash, data in contents.items():
        if hash not in named:
            raise Usage(f"{hash_text(hash)} is not among the manifest's inputs; name it there or leave it out")
        if named[hash] not in (None, len(data)):
            raise Usage(f"the input {hash_text(hash)} has {len(data)} bytes, but the manifest says {named[hash]}")


def blob_entries(plane: Plane, name: str, files: Iterable[TreeEntry]) -> list[TreeEntry]:
    """Directories that hold files by hash: one with that name, and the place that GATOS' pointers lead to. The second
    costs only two small trees, because both are the same directory.
    """
    oid = plane.write("tree", tree_data(files))
    entry = TreeEntry(DIRECTORY, OBJECTS[-1], oid)
    for above in reversed(OBJECTS[:-1]):
        entry = TreeEntry(DIRECTORY, above, plane.write("tree", tree_data([entry])))
    return [TreeEntry(DIRECTORY, name, oid), entry]


# --- looking


def group(refs: Mapping[str, str]) -> dict[bytes, JobRefs]:
    """Refs by job. Names that are not ours are left out."""
    parts: dict[str, dict[str, str]] = {}
    for name, oid in refs.items():
        if found := _REF.fullmatch(name):
            parts.setdefault(found[1], {})[found[2]] = oid
    grouped = {(job := bytes.fromhex(digits)): _job_refs(job, has) for digits, has in parts.items()}
    return {job: refs for job, refs in grouped.items() if refs != JobRefs(job)}


def _job_refs(job: bytes, has: Mapping[str, str]) -> JobRefs:
    claims: dict[bytes, str] = {}
    others: dict[str, str] = {}
    stray = None
    for part, oid in has.items():
        first, _, rest = part.partition("/")
        if part in _PARTS:
            continue
        if first == "claims" and _WORKER.fullmatch(rest):
            claims[bytes.fromhex(rest)] = oid
        elif first == "claims" and rest and "/" not in rest:
            others[rest] = oid
        elif first == "claims" or first in _PARTS:
            stray = f"{ROOT}{job.hex()}/{part}"
    return JobRefs(job, has.get("job"), has.get("claim"), has.get("result"), has.get("abort"), claims, others, stray)


def listing(plane: Plane) -> list[GitJob]:
    """Every job with its state, in order of content id."""
    return _with_manifests(plane, describe(plane, group(plane.refs()).values()))


def unfinished(plane: Plane) -> list[GitJob]:
    """The jobs without a result or an abort, including damaged ones. Ended jobs, however many, are not read."""
    found = group(plane.refs()).values()
    return describe(plane, [refs for refs in found if refs.result is None and refs.abort is None])


def is_waiting(job: GitJob) -> bool:
    """Whether a worker may act on the job, now or when a lease ends. Another program's claim has no lease: it ends with
    a result, or when a person aborts the job.
    """
    return job.state in ("pending", "claimed", "running") and job.other is None


def look(plane: Plane, job: bytes) -> GitJob | None:
    """One job; None if there is no job with that content id."""
    found = describe(plane, group(plane.refs(f"{ROOT}{job.hex()}/")).values())
    return _with_manifests(plane, found)[0] if found else None


def _with_manifests(plane: Plane, found: list[GitJob]) -> list[GitJob]:
    """Marks pending jobs without a good manifest as damaged, since no worker can run them."""
    orders = orders_of(plane, [each.refs for each in found if each.state == "pending"])
    bad = {job: order for job, order in orders.items() if isinstance(order, str)}
    return [
        each if each.refs.content_id not in bad else each._replace(state="damaged", trouble=bad[each.refs.content_id])
        for each in found
    ]


def is_unclaimed(plane: Plane, job: bytes) -> bool:
    """Whether the job is there, and no worker has claimed it yet."""
    refs = group(plane.refs(f"{ROOT}{job.hex()}/")).get(job)
    return refs is not None and refs.is_unclaimed


def describe(plane: Plane, jobs: Iterable[JobRefs]) -> list[GitJob]:
    """The states of jobs, derived from their refs and the commits that these point to."""
    found = _described(plane, jobs)
    for pause_s in TORN_S:
        torn = [at for at, each in enumerate(found) if _is_torn(each)]
        if not torn:
            break
        time.sleep(pause_s)
        now = group(plane.refs())
        again = [now.get(found[at].refs.content_id, found[at].refs) for at in torn]
        for at, each in zip(torn, _described(plane, again), strict=True):
            found[at] = each
    return found


def _is_torn(job: GitJob) -> bool:
    """Whether a push may be moving the job's refs: the claim is done, and the result is not there."""
    return job.claim is not None and job.claim.state == "done" and job.result is None


def _described(plane: Plane, jobs: Iterable[JobRefs]) -> list[GitJob]:
    jobs = [refs for refs in jobs if refs.job is not None]
    plane.bring(head for refs in jobs for head in _heads(refs))
    found = []
    left = iter(jobs)
    while some := list(islice(left, DESCRIBED_AT_ONCE)):
        objects = plane.read([head for refs in some for head in _heads(refs)], COMMIT_BYTES_MAX)
        found += [_describe(refs, objects) for refs in some]
    return found


def _heads(refs: JobRefs) -> list[str]:
    return [head for head in (refs.claim, refs.result) if head is not None]


def _describe(refs: JobRefs, objects: Mapping[str, Object | Unreadable]) -> GitJob:
    claim = other = result = None
    try:
        if refs.stray is not None:
            raise BadTrailer(f"the ref {refs.stray} blocks a ref that the job needs")
        if refs.claim is not None:
            other = _other_claim(refs, objects[refs.claim])
            claim = read_claim(good(as_commit(refs.claim, objects[refs.claim]))) if other is None else None
        elif refs.abort is None and (name := _claim_alone(refs)) is not None:
            other = ForeignClaim(worker_named(name), name)
        if refs.result is not None:
            result = read_result(good(as_commit(refs.result, objects[refs.result])))
    except ValueError as error:
        return GitJob(refs, "damaged", claim, trouble=str(error))
    state: JobState
    if result is not None:
        state = result.state or "succeeded"  # another program's, which says no more than that there is a result
    elif refs.abort is not None:
        state = "aborted"
    elif other is not None:
        state = "claimed"
    elif claim is None or claim.state == "released":
        state = "pending"
    elif claim.state == "done":
        return GitJob(refs, "damaged", claim, trouble=f"the claim {refs.claim} is done, but there is no result")
    else:
        state = claim.state
    return GitJob(refs, state, claim, result, other=other)


def _claim_alone(refs: JobRefs) -> str | None:
    """The name of a claim that is not in the chain of `claim`, the ref that decides for Hocket."""
    return next(iter([*(worker.hex() for worker in refs.claims), *refs.others]), None)


def _other_claim(refs: JobRefs, found: Object | Unreadable) -> ForeignClaim | None:
    """The claim that `claim` points to, if another program wrote it and it names the holder."""
    if isinstance(found, Unreadable) or is_ours(found.data) or (worker := other_worker(found.data)) is None:
        return None
    return ForeignClaim(worker, refs.name("claim"))


def order_of(plane: Plane, refs: JobRefs) -> GitOrder:
    """The manifest of a job. Raises Failed if its commit does not contain what its name promises."""
    order = orders_of(plane, [refs])[refs.content_id]
    if isinstance(order, str):
        raise Failed(f"the job {hash_text(refs.content_id)} {order}")
    return order


def orders_of(plane: Plane, some: Iterable[JobRefs]) -> dict[bytes, GitOrder | str]:
    """The manifests of jobs by content id, or why a job cannot be run. Reads the objects in as few requests as for one
    job.
    """
    some = [refs for refs in some if refs.job is not None]
    plane.bring(str(refs.job) for refs in some)
    orders: dict[bytes, GitOrder | str] = {}
    left = iter(some)
    while batch := list(islice(left, ORDERS_AT_ONCE)):
        commits = commits_at(plane, [str(refs.job) for refs in batch])
        trees = trees_at(plane, [each.tree for each in commits.values() if isinstance(each, Commit)])
        wanted = [each[MANIFEST].oid for each in trees.values() if isinstance(each, dict) and MANIFEST in each]
        texts = files_at(plane, wanted, TEXT_BYTES_MAX)
        for refs in batch:
            try:
                commit = good(commits[str(refs.job)])
                orders[refs.content_id] = _order(plane, refs, commit, good(trees[commit.tree]), texts)
            except ValueError as error:
                orders[refs.content_id] = f"cannot be run: {error}"
    return orders


def _order(
    plane: Plane, refs: JobRefs, commit: Commit, entries: Tree, texts: Mapping[str, bytes | BadTrailer]
) -> GitOrder:
    """Raises Malformed or BadManifest."""
    if MANIFEST not in entries:
        raise BadTrailer(f"the job's commit {refs.job} has no {MANIFEST}")
    manifest = read_manifest(good(texts[entries[MANIFEST].oid]))
    if content_id(manifest) != refs.content_id:
        raise BadTrailer(f"{MANIFEST} of {refs.job} is {hash_text(content_id(manifest))}")
    inputs: Tree = {}
    if manifest.inputs:
        inputs = directory_below(plane, entries, OBJECTS) | directory_below(plane, entries, [INPUTS])
    wanted = {pointer.hash.hex(): pointer.hash for pointer in manifest.inputs or ()}
    beside = {wanted[name]: entry.oid for name, entry in inputs.items() if name in wanted}
    return GitOrder(manifest, beside, str(refs.job), commit.tree)


def read_input(plane: Plane, hash: bytes, oid: str) -> bytes:
    """An input that is stored with its job. Raises Failed if its content does not match its hash."""
    try:
        data = file_at(plane, oid)
    except BadTrailer as error:
        raise Failed(f"the input {hash_text(hash)} in {plane.where} cannot be read: {error}") from None
    if content_hash(data) != hash:
        raise Failed(
            f"the input {hash_text(hash)} in {plane.where} does not match its hash; submit the job with the right one"
        )
    return data


def named(plane: Plane, text: str) -> JobRefs:
    """The job that a person names: by its content id, a unique beginning of it, or the ULID in its manifest."""
    digits = text.removeprefix("blake3:")
    grouped = [refs for refs in group(plane.refs()).values() if refs.job is not None]
    found = [refs for refs in grouped if digits and refs.content_id.hex().startswith(digits)]
    try:
        alias = ulid_text(parse_ulid(text))
    except ValueError:
        alias = None
    if alias is not None:
        found += [refs for refs in _called(plane, grouped, alias) if refs not in found]
    if not found:
        raise Usage(
            f"no job {text!r} in {plane.where}; {how_to_fetch(plane, grouped) or '`hocket git jobs` lists them'}"
        )
    if len(found) > 1:
        names = " and ".join(hash_text(refs.content_id) for refs in found[:2])
        raise Usage(f"{text!r} matches several jobs, like {names}; give more of the content id")
    return found[0]


def how_to_fetch(plane: Plane, found: Sized) -> str | None:
    """How to fetch the jobs into a clone that has none, because `git clone` leaves them out."""
    if found or not plane.remotes:
        return None
    remote = "origin" if "origin" in plane.remotes else plane.remotes[0]
    return (
        "a plain clone leaves the jobs out; fetch them with: "
        f"git -C {shlex.quote(plane.where)} fetch {shlex.quote(remote)} 'refs/gatos/*:refs/gatos/*'"
    )


def _called(plane: Plane, some: Iterable[JobRefs], alias: str) -> list[JobRefs]:
    """The jobs with that ULID. Trusts neither refs nor trailers, only manifests that match their job."""
    some = list(some)
    plane.bring(str(refs.job) for refs in some)
    found = []
    left = iter(some)
    while batch := list(islice(left, ORDERS_AT_ONCE)):
        orders = orders_of(plane, batch)
        for refs in batch:
            order = orders[refs.content_id]
            if isinstance(order, GitOrder) and order.manifest.ulid == alias:
                found.append(refs)
    return found


# --- clearing away


def clear(plane: Plane, ended_before_ms: int, states: frozenset[JobState] = FINAL) -> list[bytes]:
    """Removes the refs of jobs that ended before that time; git later deletes the objects. Returns the jobs."""
    gone = []
    for job in listing(plane):
        if job.state not in states or job.claim is None or job.claim.claimed_ms >= ended_before_ms:
            continue
        refs = job.refs
        has = {"job": refs.job, "claim": refs.claim, "result": refs.result, "abort": refs.abort}
        has |= {f"claims/{worker.hex()}": commit for worker, commit in refs.claims.items()}
        has |= {f"claims/{name}": commit for name, commit in refs.others.items()}
        if plane.swap([Change(refs.name(part), commit, None) for part, commit in has.items() if commit is not None]):
            gone.append(refs.content_id)
    return gone
