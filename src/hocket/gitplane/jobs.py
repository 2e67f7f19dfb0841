"""Jobs in git: submitting them, telling their states from the refs and the commits behind them, reading what they ask
for, and clearing away those that have ended.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from hocket.errors import Conflict, Failed, Usage
from hocket.gitplane.claims import IDENTITY, Claim, read_claim
from hocket.gitplane.objects import (
    DIRECTORY,
    FILE,
    Commit,
    Entry,
    Object,
    Unreadable,
    commit_data,
    read_commit,
    read_tree,
    tree_data,
)
from hocket.gitplane.plane import ROOT, Change, Plane
from hocket.gitplane.results import Result, read_result
from hocket.gitplane.trailers import Malformed, message
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.manifest import BadManifest, Manifest, content_id, read_manifest

INPUTS_BYTES_MAX = 32 * 1024 * 1024

MANIFEST, INPUTS = "job.yaml", "inputs"
JobState = Literal["pending", "claimed", "running", "succeeded", "failed", "aborted", "damaged"]
FINAL: frozenset[JobState] = frozenset({"succeeded", "failed", "aborted"})
_REF = re.compile(ROOT + "([0-9a-f]{64})/(job|claim|result|abort|claims/([0-9a-f]{64}))")


class JobRefs(NamedTuple):
    """The refs of one job: what each points to."""

    content_id: bytes
    job: str | None = None
    claim: str | None = None
    result: str | None = None
    abort: str | None = None
    claims: Mapping[bytes, str] = {}

    def name(self, part: str) -> str:
        return f"{ROOT}{self.content_id.hex()}/{part}"

    def of_worker(self, worker: bytes) -> str:
        return self.name(f"claims/{worker.hex()}")


class Job(NamedTuple):
    """A job as its newest commits say. `trouble` tells what is wrong with one that is damaged; `tree` is that of its
    commit, where it was looked up."""

    refs: JobRefs
    state: JobState
    claim: Claim | None = None
    result: Result | None = None
    trouble: str | None = None
    tree: str | None = None


class Submitted(NamedTuple):
    content_id: bytes
    commit: str
    is_new: bool


class Order(NamedTuple):
    """What a job asks for, those of its inputs that lie beside it, by their hashes, and the commit that says so."""

    manifest: Manifest
    inputs: Mapping[bytes, str]
    commit: str
    tree: str


# --- submitting


def submit(plane: Plane, text: bytes, now_ms: int, inputs: Iterable[bytes] = ()) -> Submitted:
    """Puts a job there. One that is there already is the same job; nothing changes."""
    try:
        manifest = read_manifest(text)
    except BadManifest as error:
        raise Usage(str(error)) from None
    job = content_id(manifest)
    ref = JobRefs(job).name("job")
    contents = {content_hash(each): each for each in inputs}
    _check_inputs(manifest, contents)
    # Looked at first: two who write the same at the same second write the same commit, and both would be told that
    # theirs is new.
    if (there := plane.refs(ref).get(ref)) is not None:
        return Submitted(job, there, is_new=False)
    entries = [Entry(FILE, MANIFEST, plane.write("blob", text))]
    if contents:
        files = [Entry(FILE, hash.hex(), plane.write("blob", data)) for hash, data in contents.items()]
        entries.append(Entry(DIRECTORY, INPUTS, plane.write("tree", tree_data(files))))
    trailers = [("Job-Id", hash_text(job))] + ([("Ulid", manifest.ulid)] if manifest.ulid else [])
    tree = plane.write("tree", tree_data(entries))
    commit = plane.write(
        "commit", commit_data(tree, [], IDENTITY, now_ms // 1000, message(f"job {job.hex()[:12]}", trailers))
    )
    if plane.swap([Change(ref, None, commit)]):
        return Submitted(job, commit, is_new=True)
    there = plane.refs(ref).get(ref)
    if there is None:
        raise Conflict(f"the job {hash_text(job)} was there a moment ago and is cleared away now; submit it again")
    return Submitted(job, there, is_new=False)


def _check_inputs(manifest: Manifest, contents: Mapping[bytes, bytes]) -> None:
    if sum(map(len, contents.values())) > INPUTS_BYTES_MAX:
        raise Usage(f"the inputs are too large; at most {INPUTS_BYTES_MAX} bytes together travel with a job")
    named = {pointer.hash: pointer.size for pointer in manifest.inputs or ()}
    for hash, data in contents.items():
        if hash not in named:
            raise Usage(f"{hash_text(hash)} is not among the manifest's inputs; name it there or leave it out")
        if named[hash] not in (None, len(data)):
            raise Usage(f"the input {hash_text(hash)} has {len(data)} bytes, but the manifest says {named[hash]}")


# --- looking


def group(refs: Mapping[str, str]) -> dict[bytes, JobRefs]:
    """Refs by job. Names that are none of ours are left out."""
    parts: dict[str, dict[str, str]] = {}
    claims: dict[str, dict[bytes, str]] = {}
    for name, oid in refs.items():
        found = _REF.fullmatch(name)
        if found is None:
            continue
        if found[3] is not None:
            claims.setdefault(found[1], {})[bytes.fromhex(found[3])] = oid
        parts.setdefault(found[1], {})[found[2]] = oid
    return {
        (job := bytes.fromhex(digits)): JobRefs(
            job, has.get("job"), has.get("claim"), has.get("result"), has.get("abort"), claims.get(digits, {})
        )
        for digits, has in parts.items()
    }


def listing(plane: Plane) -> list[Job]:
    """Every job with its state, in the order of the content ids."""
    return describe(plane, group(plane.refs()).values())


def waiting(plane: Plane) -> list[Job]:
    """The jobs that have not ended. Those that have, however many, are not looked at."""
    found = group(plane.refs()).values()
    described = describe(plane, [refs for refs in found if refs.result is None and refs.abort is None])
    return [job for job in described if job.state in ("pending", "claimed", "running")]


def look(plane: Plane, job: bytes) -> Job | None:
    """One job, None when there is none of that content id."""
    found = group(plane.refs(f"{ROOT}{job.hex()}/"))
    return describe(plane, found.values())[0] if found else None


def describe(plane: Plane, jobs: Iterable[JobRefs]) -> list[Job]:
    """The states of jobs, told from their refs and the commits that these point to."""
    jobs = [refs for refs in jobs if refs.job is not None]
    heads = [head for refs in jobs for head in (refs.claim, refs.result) if head is not None]
    objects = plane.read(heads) if heads else {}
    return [_describe(refs, objects) for refs in jobs]


def _describe(refs: JobRefs, objects: Mapping[str, Object | Unreadable]) -> Job:
    try:
        claim = None if refs.claim is None else read_claim(commit_of(refs.claim, objects))
        result = None if refs.result is None else read_result(commit_of(refs.result, objects))
    except ValueError as error:
        return Job(refs, "damaged", trouble=str(error))
    state: JobState
    if result is not None:
        state = result.state
    elif refs.abort is not None:
        state = "aborted"
    elif claim is None:
        state = "pending"
    elif claim.state == "done":
        return Job(refs, "damaged", claim, trouble=f"the claim {refs.claim} is done, but there is no result")
    else:
        state = claim.state
    return Job(refs, state, claim, result)


def commit_of(oid: str, objects: Mapping[str, Object | Unreadable]) -> Commit:
    """One of these objects as a commit. Raises Malformed."""
    found = objects[oid]
    if isinstance(found, Unreadable):
        raise Malformed(f"the object {oid} {found.why}")
    try:
        if found.kind != "commit":
            raise ValueError
        return read_commit(found.data)
    except ValueError:
        raise Malformed(f"the object {oid} is not a commit") from None


def order_of(plane: Plane, refs: JobRefs) -> Order:
    """What a job asks for. Raises Failed when its commit does not hold what its name promises."""
    assert refs.job is not None
    try:
        commit = commit_of(refs.job, plane.read([refs.job]))
        entries = _tree(plane, commit.tree)
        if MANIFEST not in entries:
            raise Malformed(f"the job's commit {refs.job} has no {MANIFEST}")
        manifest = read_manifest(_blob(plane, entries[MANIFEST].oid))
        inputs = _tree(plane, entries[INPUTS].oid) if INPUTS in entries else {}
        if content_id(manifest) != refs.content_id:
            raise Malformed(f"{MANIFEST} of {refs.job} is {hash_text(content_id(manifest))}")
    except ValueError as error:
        raise Failed(f"the job {hash_text(refs.content_id)} cannot be run: {error}") from None
    wanted = {pointer.hash.hex(): pointer.hash for pointer in manifest.inputs or ()}
    beside = {wanted[name]: entry.oid for name, entry in inputs.items() if name in wanted}
    return Order(manifest, beside, refs.job, commit.tree)


def orders_of(plane: Plane, some: Iterable[JobRefs]) -> dict[bytes, Order | str]:
    """What jobs ask for, by content id, or why that cannot be told. Wherever the objects are, they are read in as few
    goes as for one job.
    """
    some = list(some)
    commits = plane.read([str(refs.job) for refs in some])
    trees = [read_commit(each.data).tree for each in commits.values() if isinstance(each, Object)]
    found = plane.read(trees).values()
    entries = [read_tree(each.data, plane.digest_bytes) for each in found if isinstance(each, Object)]
    plane.read([each[MANIFEST].oid for each in entries if MANIFEST in each])
    orders: dict[bytes, Order | str] = {}
    for refs in some:
        try:
            orders[refs.content_id] = order_of(plane, refs)
        except Failed as error:
            orders[refs.content_id] = str(error)
    return orders


def read_input(plane: Plane, hash: bytes, oid: str) -> bytes:
    """An input that lies beside its job. Raises Failed when it is not what its name says."""
    data = _blob(plane, oid)
    if content_hash(data) != hash:
        raise Failed(
            f"the input {hash_text(hash)} in {plane.where} is something else; submit the job with the right one"
        )
    return data


def _tree(plane: Plane, oid: str) -> dict[str, Entry]:
    found = plane.read([oid])[oid]
    if isinstance(found, Unreadable) or found.kind != "tree":
        raise Malformed(f"the object {oid} {found.why if isinstance(found, Unreadable) else 'is not a tree'}")
    return read_tree(found.data, plane.digest_bytes)


def _blob(plane: Plane, oid: str) -> bytes:
    found = plane.read([oid])[oid]
    if isinstance(found, Unreadable) or found.kind != "blob":
        raise Malformed(f"the object {oid} {found.why if isinstance(found, Unreadable) else 'is not a blob'}")
    return found.data


# --- clearing away


def clear(plane: Plane, ended_before_ms: int, states: frozenset[JobState] = FINAL) -> list[bytes]:
    """Removes the refs of jobs that ended before that time; git drops the objects by and by. Gives the jobs."""
    gone = []
    for job in listing(plane):
        if job.state not in states or job.claim is None or job.claim.claimed_ms >= ended_before_ms:
            continue
        refs = job.refs
        has = {"job": refs.job, "claim": refs.claim, "result": refs.result, "abort": refs.abort}
        has |= {f"claims/{worker.hex()}": commit for worker, commit in refs.claims.items()}
        if plane.swap([Change(refs.name(part), commit, None) for part, commit in has.items() if commit is not None]):
            gone.append(refs.content_id)
    return gone
