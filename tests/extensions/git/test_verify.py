"""Verifying: what is sound is found sound, and every kind of tampering is found and named with its commit."""

import re
import subprocess
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.claim_commits import GitClaim, claim_data
from hocket.extensions.git.git_jobs import GitJob
from hocket.extensions.git.objects import FILE, Object, TreeEntry, commit_data, read_commit, read_tree, tree_data
from hocket.extensions.git.plane import Plane
from hocket.extensions.git.verify import GitFinding, Verified, verify
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import key_text
from tests.extensions.git.hands import CONTENTS, NOW_MS, finished, manifest, proof, seen, submitted, worker
from tests.extensions.git.places import Place


def findings(plane: Plane) -> list[GitFinding]:
    return [finding for found in verify(plane) for finding in found.findings]


def only(plane: Plane) -> Verified:
    (found,) = verify(plane)
    return found


def raw(plane: Plane, oid: str | None) -> bytes:
    assert oid is not None
    found = plane.read([oid])[oid]
    assert isinstance(found, Object)
    return found.data


def point(here: Place, job: GitJob, *moves: tuple[str, str]) -> None:
    """Somebody who may push moves refs as they like."""
    for part, oid in moves:
        here.git("update-ref", job.refs.name(part), oid)


def own(job: GitJob) -> str:
    return f"claims/{worker().key.public.hex()}"


@pytest.mark.req("GT-10")
def test_what_is_sound(anywhere: Place):
    plane, me, two = anywhere.open(), worker(), worker("two")
    done = finished(plane, 1)
    failed = finished(plane, 2, exit_code=1)
    submitted(plane, 3)
    held = holding.claim(plane, submitted(plane, 4), me, NOW_MS)
    assert held is not None and holding.run(plane, held, me, NOW_MS)
    holding.abort(plane, submitted(plane, 5).refs.content_id, two, NOW_MS)
    held = holding.claim(plane, submitted(plane, 6), me, NOW_MS)
    assert held is not None
    over = holding.claim(plane, seen(plane, held.refs.content_id), two, NOW_MS)
    assert over is not None
    holding.abort(plane, held.refs.content_id, worker("three"), NOW_MS)
    back = holding.claim(plane, submitted(plane, 7), me, NOW_MS)
    for by in (two, me):
        back = holding.claim(plane, seen(plane, back.refs.content_id), by, NOW_MS) if back else None
    assert back is not None and holding.finish(plane, back, me, proof(back, me, 7), CONTENTS, NOW_MS)

    anywhere.cache = anywhere.cache.with_name("another")
    found = {each.content_id: each for each in verify(anywhere.open())}
    assert len(found) == 7
    assert [each.findings for each in found.values() if each.findings] == []
    execution = found[done.refs.content_id].execution
    assert execution is not None and execution.exit_code == 0
    assert found[done.refs.content_id].worker == me.key.public
    execution = found[failed.refs.content_id].execution
    assert execution is not None and execution.exit_code == 1
    assert [each.content_id for each in verify(plane, done.refs.content_id)] == [done.refs.content_id]


# --- tampering. Each function gets the plane with one finished job, does its worst, and gives the commit that is to
# be named and a part of what is to be said of it.

Tampering = Callable[[Place, Plane, GitJob], tuple[str, str]]


def rewritten(here: Place, plane: Plane, job: GitJob, part: str, change: Callable[[bytes], bytes]) -> str:
    """The commit of a ref with other bytes, and the ref moved to it."""
    before = raw(plane, getattr(job.refs, part))
    after = change(before)
    assert after != before
    oid = plane.write("commit", after)
    # Git itself would refuse to point to some of what the tests make.
    (here.directory / job.refs.name(part)).write_text(f"{oid}\n")
    return oid


def replaced(part: str, old: bytes, new: bytes, what: str) -> Tampering:
    def tamper(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
        return rewritten(here, plane, job, part, lambda data: data.replace(old, new)), what

    return tamper


def upper(part: str, trailer: bytes) -> Tampering:
    def tamper(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
        def change(data: bytes) -> bytes:
            return re.sub(trailer + rb": \w+:\K?[0-9a-f]+".replace(rb"\K?", b""), _upper, data)

        return rewritten(here, plane, job, part, change), f"{trailer.decode()} is not"

    return tamper


def _upper(match: "re.Match[bytes]") -> bytes:
    name, _, digits = match[0].rpartition(b":")
    return name + b":" + digits.upper()


def in_base64(part: str, trailer: bytes, what: str) -> Tampering:
    from base64 import b64encode

    def tamper(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
        def change(data: bytes) -> bytes:
            return re.sub(
                trailer + rb": (\w+):([0-9a-f]+)",
                lambda m: trailer + b": " + m[1] + b":" + b64encode(bytes.fromhex(m[2].decode())),
                data,
            )

        return rewritten(here, plane, job, part, change), what

    return tamper


def job_replaced(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    """Puts the manifest into another commit: the claim and the result belong to the first."""
    tree = read_commit(raw(plane, job.refs.job)).tree
    oid = plane.write("commit", commit_data(tree, [], "x <x@x>", 1, b"another\n"))
    point(here, job, ("job", oid))
    return str(job.refs.result), f"not the job's commit {oid}"


def job_replaced_under_a_claim(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    job_replaced(here, plane, job)
    first = here.git("rev-list", str(job.refs.claim)).split()[-2]
    return first, f"the claims lead to {job.refs.job}, not to the job's commit"


def manifest_changed(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    tree = plane.write("tree", tree_data([TreeEntry(FILE, "job.yaml", plane.write("blob", manifest(99)))]))
    oid = plane.write("commit", commit_data(tree, [], "x <x@x>", 1, b"another\n"))
    point(here, job, ("job", oid))
    return oid, "its job.yaml is blake3:"


def manifest_broken(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    tree = plane.write("tree", tree_data([TreeEntry(FILE, "job.yaml", plane.write("blob", b"command: 7\n"))]))
    oid = plane.write("commit", commit_data(tree, [], "x <x@x>", 1, b"another\n"))
    point(here, job, ("job", oid))
    return oid, "its job.yaml is no manifest: timeout"


def manifest_gone(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    oid = plane.write("commit", commit_data(plane.write("tree", b""), [], "x <x@x>", 1, b"another\n"))
    point(here, job, ("job", oid))
    return oid, "has no job.yaml"


def job_ref_gone(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    here.git("update-ref", "-d", job.refs.name("job"))
    return str(job.refs.claim), "there is no ref"


def claim_ref_gone(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    here.git("update-ref", "-d", job.refs.name("claim"))
    return str(job.refs.result), "no worker has claimed"


def worker_ref_gone(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    here.git("update-ref", "-d", job.refs.name(own(job)))
    return str(job.refs.claim), "there is no ref"


def result_ref_gone(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    here.git("update-ref", "-d", job.refs.name("result"))
    return str(job.refs.claim), "it is done, but there is no ref"


def ref_of_a_stranger(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    point(here, job, (f"claims/{'ab' * 32}", str(job.refs.claim)))
    return str(job.refs.claim), "is not the newest claim of that worker"


def older_claim(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    parent = read_commit(raw(plane, job.refs.claim)).parents[0]
    point(here, job, ("claim", parent), (own(job), parent))
    return str(job.refs.result), "the newest claim is running"


def forged(**changes: object) -> Callable[[Place, Plane, GitJob, str], str]:
    """A claim after the last, signed by somebody with a key of their own."""

    def make(here: Place, plane: Plane, job: GitJob, parent: str) -> str:
        commit = read_commit(raw(plane, job.refs.claim))
        by = changes.get("by", worker("two"))
        assert job.claim is not None
        fields = {name: value for name, value in changes.items() if name != "by"}
        claim: GitClaim = job.claim._replace(worker=by.key.public, **fields)  # type: ignore[attr-defined, arg-type]
        oid = plane.write("commit", claim_data(claim, commit.tree, parent, by.key))  # type: ignore[attr-defined]
        point(here, job, ("claim", oid), (f"claims/{by.key.public.hex()}", oid))  # type: ignore[attr-defined]
        return oid

    return make


def after_the_end(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    make = forged(fence=2, state="claimed", result=None)
    return make(here, plane, job, str(job.refs.claim)), "follows a claim that is done"


def fence_jumps(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    return forged(fence=3, state="claimed", result=None)(here, plane, job, running), "the fence jumps from 1 to 3"


def fence_falls(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    return forged(fence=0, state="claimed", result=None)(here, plane, job, running), "the fence jumps from 1 to 0"


def fence_of_another(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    return forged(fence=1)(here, plane, job, running), "another worker continues fence 1"


def taken_over_as_done(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    return forged(fence=2)(here, plane, job, running), "begins as claimed, not as done"


def starts_at_two(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    return forged(fence=2, state="claimed", result=None)(here, plane, job, str(job.refs.job)), "has the fence 2, not 1"


def starts_running(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    make = forged(fence=1, state="running", result=None)
    return make(here, plane, job, str(job.refs.job)), "the first claim is running"


def goes_back(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    make = forged(state="claimed", result=None, by=worker())
    return make(here, plane, job, running), "goes back from running to claimed"


def of_another_job(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    return forged(job=bytes(32), by=worker())(here, plane, job, running), "its Job-Id is blake3:000"


def signed_by_another_key(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    commit = read_commit(raw(plane, job.refs.claim))
    unsigned = commit.raw[: commit.raw.rindex(b"Claim-Sig")]
    signature = key_text(worker("two").key.sign(b"hocket claim 1\0" + unsigned))
    oid = plane.write("commit", unsigned + f"Claim-Sig: {signature}\n".encode())
    point(here, job, ("claim", oid), (own(job), oid))
    return oid, "its Claim-Sig is not by"


def moved_in_the_chain(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    """The last claim, put directly on the job: each trailer is as it was."""
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    oid = rewritten(here, plane, job, "claim", lambda data: data.replace(running.encode(), str(job.refs.job).encode()))
    point(here, job, (own(job), oid))
    return oid, "its Claim-Sig is not by"


def abort_beside_a_result(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    point(here, job, ("abort", str(job.refs.claim)))
    return str(job.refs.claim), "the abort is not the newest claim"


def result_elsewhere(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    other = finished(plane, 1)
    oid = rewritten(
        here, plane, job, "result", lambda data: data.replace(str(job.refs.job).encode(), str(other.refs.job).encode())
    )
    return oid, "its parent is"


def result_without_parents(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    parent = f"parent {job.refs.job}\n".encode()
    return rewritten(here, plane, job, "result", lambda data: data.replace(parent, b"")), "its parent is nothing"


def result_of_another_job(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    other = finished(plane, 1)
    point(here, job, ("result", str(other.refs.result)))
    return str(other.refs.result), "the newest claim is done with"


def with_file(name: str, change: Callable[[bytes], bytes | None], what: str) -> Tampering:
    """The result with one file changed, and every id above it made anew."""

    def tamper(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
        commit = read_commit(raw(plane, job.refs.result))

        def anew(oid: str, steps: list[str]) -> str:
            entries = read_tree(raw(plane, oid), plane.digest_bytes)
            entry = entries.get(steps[0], TreeEntry(FILE, steps[0], ""))
            if steps[1:]:
                entries[steps[0]] = entry._replace(oid=anew(entry.oid, steps[1:]))
            else:
                data = change(raw(plane, entry.oid) if entry.oid else b"")
                entries.pop(steps[0], None)
                if data is not None:
                    entries[steps[0]] = entry._replace(oid=plane.write("blob", data))
            return plane.write("tree", tree_data(entries.values()))

        tree = anew(commit.tree, name.split("/"))
        oid = rewritten(here, plane, job, "result", lambda data: data.replace(commit.tree.encode(), tree.encode()))
        return oid, what

    return tamper


def proof_of_another_key(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    """A stranger proves the same run, and puts the proof in place of the worker's."""
    two = worker("two")
    held = holding.claim(plane, submitted(plane, 50), two, NOW_MS)
    assert held is not None
    theirs = held._replace(refs=job.refs, claim=held.claim._replace(job=job.refs.content_id))
    calls: list[str] = []
    plane_write = plane.write

    class Writing:
        def __getattr__(self, name: str) -> object:
            return getattr(plane, name)

        def write(self, kind: str, data: bytes) -> str:
            calls.append(plane_write(kind, data))  # type: ignore[arg-type]
            return calls[-1]

    assert holding.finish(Writing(), theirs, two, proof(theirs, two), CONTENTS, NOW_MS) is None  # type: ignore[arg-type]
    point(here, job, ("result", calls[-2]))
    return calls[-2], "it is by ed25519:"


def tree_of_another(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    """The worker itself signs a claim that shows another tree than the job's."""
    assert job.claim is not None
    running = read_commit(raw(plane, job.refs.claim)).parents[0]
    oid = plane.write("commit", claim_data(job.claim, plane.write("tree", b""), running, worker().key))
    point(here, job, ("claim", oid), (own(job), oid))
    return oid, "its tree is"


def proof_of_another_fence(here: Place, plane: Plane, job: GitJob) -> tuple[str, str]:
    """The worker takes its own job over, and hands in the proof of the first time."""
    assert job.claim is not None
    parent = read_commit(raw(plane, job.refs.claim)).parents[0]
    for state, result in (("claimed", None), ("done", job.refs.result)):
        parent = forged(fence=2, state=state, result=result, by=worker())(here, plane, job, parent)
    return str(job.refs.result), "its proof is of fence 1, the claim has fence 2"


ELSE = b"blake3:" + b"ab" * 32
MADE = content_hash(b"made\n").hex()
TAMPERINGS: dict[str, Tampering] = {
    "job commit replaced": job_replaced,
    "job commit replaced under a claim": job_replaced_under_a_claim,
    "manifest changed": manifest_changed,
    "manifest broken": manifest_broken,
    "manifest gone": manifest_gone,
    "job ref gone": job_ref_gone,
    "claim ref gone": claim_ref_gone,
    "worker's ref gone": worker_ref_gone,
    "result ref gone": result_ref_gone,
    "ref of a stranger": ref_of_a_stranger,
    "older claim": older_claim,
    "claim's trailer changed": replaced("claim", b"Lease: 60", b"Lease: 61", "its Claim-Sig is not by"),
    "claim's date changed": replaced("claim", b"1762600002 +0000", b"1762600003 +0000", "its Claim-Sig is not by"),
    "claim's worker changed": replaced(
        "claim",
        key_text(worker().key.public).encode(),
        key_text(worker("two").key.public).encode(),
        "its Claim-Sig is not by",
    ),
    "claim's trailer unknown": replaced("claim", b"Lease: 60", b"Lease: 60\nExtra: 1", "Extra is not known"),
    "claim's trailer gone": replaced("claim", b"Lease: 60\n", b"", "the trailer Lease is missing"),
    "claim's worker in upper case": upper("claim", b"Worker-Id"),
    "claim's job in upper case": upper("claim", b"Job-Id"),
    "claim's signature in base64": in_base64("claim", b"Claim-Sig", "Claim-Sig is not"),
    "claim signed by another key": signed_by_another_key,
    "claim moved in the chain": moved_in_the_chain,
    "claim of another job": of_another_job,
    "claim after the end": after_the_end,
    "fence jumps": fence_jumps,
    "fence falls": fence_falls,
    "fence of another": fence_of_another,
    "taken over as done": taken_over_as_done,
    "starts at two": starts_at_two,
    "starts running": starts_running,
    "goes back": goes_back,
    "abort beside a result": abort_beside_a_result,
    "result's parent wrong": result_elsewhere,
    "result's parent gone": result_without_parents,
    "result of another job": result_of_another_job,
    "result's job in upper case": upper("result", b"Job-Id"),
    "result's proof in upper case": upper("result", b"Proof-Of-Execution"),
    "result's program in upper case": upper("result", b"Attest-Program"),
    "result's worker in base64": in_base64("result", b"Worker-Id", "not in the format of a result commit"),
    "result's signature in base64": in_base64("result", b"Attest-Sig", "not in the format of a result commit"),
    "result's job": lambda here, plane, job: replaced(
        "result", b"blake3:" + job.refs.content_id.hex().encode(), ELSE, "its Job-Id is blake3:abab"
    )(here, plane, job),
    "result's program": replaced(
        "result",
        b"blake3:" + content_hash(b"the runner").hex().encode(),
        ELSE,
        "its Attest-Program is not",
    ),
    "claim's tree": tree_of_another,
    "proof of another fence": proof_of_another_fence,
    "result's state": replaced("result", b"State: succeeded", b"State: failed", "its State is failed"),
    "result's state unknown": replaced("result", b"State: succeeded", b"State: great", "State is none of"),
    "result's subject": replaced("result", b"\n\nsucceeded", b"\n\nSucceeded", "not in the format of a result commit"),
    "result's date": replaced("result", b"1762600001", b"1762600002", "not in the format of a result commit"),
    "proof changed by a byte": with_file(
        "proof.json", lambda data: data.replace(b'"exit_code":0', b'"exit_code":1'), "its proof.json is blake3:"
    ),
    "proof is no JSON": with_file("proof.json", lambda data: data[1:], "its proof is not valid"),
    "proof gone": with_file("proof.json", lambda data: None, "its tree has no proof.json"),
    "proof of another key": proof_of_another_key,
    "outputs changed": with_file("outputs.json", lambda data: data.replace(b":5,", b":6,"), "its outputs.json is not"),
    "outputs gone": with_file("outputs.json", lambda data: None, "its tree has no outputs.json"),
    "attestation changed": with_file(
        "attestation.dsse.json",
        lambda data: data.replace(b'"payload":"ey', b'"payload":"fy'),
        "its proof is not valid",
    ),
    "attestation respelled": with_file("attestation.dsse.json", lambda data: data + b"\n", "its proof is not valid"),
    "attestation gone": with_file("attestation.dsse.json", lambda data: None, "has no attestation.dsse.json"),
    "blob changed": with_file(f"blobs/{MADE}", lambda data: b"mode\n", f"its file {MADE} is blake3:"),
    "blob added": with_file(f"blobs/{content_hash(b'more').hex()}", lambda data: b"more", "is not named anywhere"),
    "blob left out": with_file(f"blobs/{MADE}", lambda data: None, "the newest claim is done with"),
    "file added": with_file("more", lambda data: b"more", "does not belong there: more"),
    "file added beside the objects": with_file("gatos/more", lambda data: b"more", "does not belong there: more"),
    "object changed": with_file(f"gatos/objects/blake3/{MADE}", lambda data: b"mode\n", f"its file {MADE} is blake3:"),
}


@pytest.mark.req("GT-10")
@pytest.mark.parametrize("kind", TAMPERINGS)
def test_tampering_is_found_and_named(here: Place, kind: str):
    plane = here.open()
    job = finished(plane)
    assert findings(plane) == []
    commit, what = TAMPERINGS[kind](here, plane, job)
    found = findings(here.open())
    assert [each for each in found if each.commit == commit and what in each.what], found
    assert not any(each.is_gap for each in found)


def test_a_proof_of_another_command(here: Place):
    plane, me = here.open(), worker()
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    assert held is not None
    result = holding.finish(plane, held, me, proof(held, me, number=99), CONTENTS, NOW_MS)
    assert findings(plane) == [GitFinding(str(result), "its proof is of another command than the job's")]


def test_a_claim_that_forgets_a_taken_over_one(here: Place):
    """The chain goes on from an older claim, as if nobody had taken over."""
    plane, me = here.open(), worker()
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    assert held is not None
    over = holding.claim(plane, seen(plane, held.refs.content_id), worker("two"), NOW_MS)
    assert over is not None
    job = seen(plane, held.refs.content_id)
    point(here, job, ("claim", held.commit))
    assert GitFinding(
        over.commit, f"{job.refs.of_worker(over.claim.worker)} is not the newest claim of that worker"
    ) in (findings(plane))


# --- any byte


def objects_of(here: Place, job: GitJob) -> list[str]:
    """Every object that a result is made of, and its claim and its job."""
    listed = here.git("rev-list", "--objects", "--no-object-names", str(job.refs.result), str(job.refs.claim))
    return listed.split()


@pytest.mark.req("GT-10")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_found(here: Place, data: st.DataObject):
    plane = here.planes[0] if here.planes else here.open()
    refs = plane.refs()
    job = seen(plane, next(iter(git_jobs.group(refs)))) if refs else finished(plane)
    oid = data.draw(st.sampled_from(objects_of(here, job)))
    path = here.directory / "objects" / oid[:2] / oid[2:]
    before = path.read_bytes()
    if data.draw(st.booleans(), label="inside"):
        # Another content under the old id, in a file that is in order.
        content = bytearray(zlib.decompress(before))
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        after = zlib.compress(bytes(content), 1)
    else:
        packed = bytearray(before)
        at = data.draw(st.integers(0, len(packed) - 1))
        packed[at] ^= data.draw(st.integers(1, 255))
        after = bytes(packed)
    same = _content(after) == _content(before)
    try:
        path.chmod(0o644)
        path.write_bytes(after)
        found = only(here.open())
        # A changed byte of the file that leaves the content alone (zlib has a few such) changes nothing.
        assert same or found.findings, (oid, at)
    finally:
        path.write_bytes(before)
        here.planes.pop().close()
    assert not only(plane).findings


def _content(packed: bytes) -> bytes | None:
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return None


@pytest.mark.req("GT-10")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_changed_byte_is_found_when_all_ids_are_made_anew(here: Place, data: st.DataObject):
    """Somebody who may push changes a byte of a file, or of the result's commit, and makes every id right again."""
    plane = here.planes[0] if here.planes else here.open()
    refs = plane.refs()
    job = seen(plane, next(iter(git_jobs.group(refs)))) if refs else finished(plane)
    names = ["", "proof.json", "outputs.json", "attestation.dsse.json", f"blobs/{MADE}"]
    name = data.draw(st.sampled_from(names))

    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] ^= data.draw(st.integers(1, 255))
        return bytes(changed)

    try:
        if name:
            with_file(name, change, "")(here, plane, job)
        else:
            rewritten(here, plane, job, "result", change)
        assert only(plane).findings
    finally:
        point(here, job, ("result", str(job.refs.result)))
    assert not only(plane).findings


# --- clones


def clone(here: Place, tmp_path: Path, *options: str) -> Path:
    """A clone of the project, as people make one, with the jobs fetched into it."""
    tree = here.git("mktree").strip()
    here.git("update-ref", "refs/heads/main", here.git("commit-tree", tree, given="main\n").strip())
    here.git("symbolic-ref", "HEAD", "refs/heads/main")
    target = tmp_path / "clone"

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], env=here.outside, check=True, capture_output=True)

    git("clone", "-q", *options, f"file://{here.directory}", str(target))
    git("-C", str(target), "fetch", "-q", *options, "origin", "refs/gatos/*:refs/gatos/*")
    return target


@pytest.mark.req("GT-10")
def test_a_plain_clone_verifies_offline(here: Place, tmp_path: Path):
    job = finished(here.open())
    here.address = str(clone(here, tmp_path))
    here.directory.rename(here.directory.with_name("gone"))
    found = only(here.open())
    assert not found.findings and found.content_id == job.refs.content_id and found.execution is not None


def test_a_shallow_clone_says_what_it_lacks(here: Place, tmp_path: Path):
    plane = here.open()
    job = finished(plane)
    pending = submitted(plane, 1)
    here.address = str(clone(here, tmp_path, "--depth=1"))
    shallow = here.open()
    found = list(verify(shallow, job.refs.content_id))
    assert [(each.commit, each.is_gap) for each in found[0].findings] == [(job.refs.claim, True)]
    assert found[0].execution is not None, "the result itself is whole"
    assert [each.state for each in git_jobs.listing(shallow)] == [each.state for each in git_jobs.listing(plane)]
    # Working there is possible too.
    held = holding.claim(shallow, pending, worker(), NOW_MS)
    assert held is not None and holding.run(shallow, held, worker(), NOW_MS)
    assert not next(verify(shallow, pending.refs.content_id)).findings


def test_a_partial_clone_fetches_what_it_lacks(here: Place, tmp_path: Path):
    plane = here.open()
    job, pending = finished(plane), submitted(plane, 1)
    here.address = str(clone(here, tmp_path, "--filter=blob:none"))
    partial = here.open()
    assert git_jobs.order_of(partial, pending.refs).manifest.args == ("1",)
    assert holding.claim(partial, seen(partial, pending.refs.content_id), worker(), NOW_MS) is not None
    assert not next(verify(partial, job.refs.content_id)).findings


def test_a_partial_clone_without_its_origin_says_what_it_lacks(here: Place, tmp_path: Path):
    job = finished(here.open())
    here.address = str(clone(here, tmp_path, "--filter=blob:none"))
    here.directory.rename(here.directory.with_name("gone"))
    found = only(here.open())
    assert found.findings and all(each.is_gap for each in found.findings)
    assert {each.commit for each in found.findings} == {job.refs.job, job.refs.result}
    assert all("is missing here" in each.what for each in found.findings)


def test_helpers_find_the_same(here: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hocket.extensions.git.verify.JOBS_AT_ONCE", 10)
    plane = here.open()
    made = [finished(plane, number) for number in range(24)]
    here.git("update-ref", made[7].refs.name("result"), str(made[3].refs.result))
    with ThreadPoolExecutor(2) as helpers:
        found = list(verify(plane, helpers=helpers))
    assert found == list(verify(plane))
    assert [each.content_id for each in found] == sorted(job.refs.content_id for job in made)
    assert [each.content_id for each in found if each.findings] == [made[7].refs.content_id]


def test_jobs_that_are_too_large_together_are_looked_at_one_by_one(here: Place, monkeypatch: pytest.MonkeyPatch):
    plane, me = here.open(), worker()
    made = [finished(plane, number) for number in range(12)]
    held = holding.claim(plane, submitted(plane, 99), me, NOW_MS)
    for _ in range(30):
        held = holding.renew(plane, held, me, NOW_MS) if held else None
    assert held is not None
    expected = list(verify(plane))
    monkeypatch.setattr("hocket.extensions.git.verify.JOBS_AT_ONCE", 5)
    for room, too_large in ((40_000, set()), (15_000, {held.refs.content_id})):
        monkeypatch.setattr("hocket.extensions.git.gathering.GATHERED_BYTES_MAX", room)
        found = list(verify(plane))
        assert [each.content_id for each in found] == [each.content_id for each in expected]
        assert {each.content_id for each in found if each.findings} == too_large
        assert len(found) == len(made) + 1
    (finding,) = next(each.findings for each in found if each.findings)
    assert "exceed the byte limit for one job" in finding.what and finding.commit == held.refs.job


def test_a_long_chain_of_claims(here: Place):
    plane, me = here.open(), worker()
    held = holding.claim(plane, submitted(plane), me, NOW_MS)
    for _ in range(40):
        assert held is not None
        held = holding.renew(plane, held, me, NOW_MS)
    assert not only(plane).findings


def test_bytes_of_any_kind_are_no_reason_to_give_up(here: Place):
    """Whatever a ref leads to, verifying says what it is and goes on."""
    plane = here.open()
    job = finished(plane)
    blob = plane.write("blob", b"\xff\x00")
    tree = plane.write(
        "tree", tree_data([TreeEntry("120000", "job.yaml", blob), TreeEntry("160000", "outputs.json", "12" * 20)])
    )
    for oid in (blob, tree, plane.write("commit", commit_data(tree, [str(job.refs.job)], "x <x@x>", 1, b"\xff\n"))):
        for part in ("job", "claim", "result"):
            here.git("update-ref", job.refs.name(part), oid)
            assert only(here.open()).findings
            here.git("update-ref", job.refs.name(part), str(getattr(job.refs, part)))
    assert not only(here.open()).findings
