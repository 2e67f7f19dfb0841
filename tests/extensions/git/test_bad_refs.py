"""Anything at all may be behind a ref. Listing, verifying and working go on with the other jobs, and say once what is
wrong with that one.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hocket.extensions.command.manifest import content_id, read_manifest
from hocket.extensions.git import git_jobs
from hocket.extensions.git.git_jobs import JobRefs
from hocket.extensions.git.objects import COMMIT_BYTES_MAX
from hocket.extensions.git.planes import open_plane
from hocket.extensions.git.verify import verify
from hocket.node.runtime import Runtime
from tests.cli.fork_server import run_command
from tests.extensions.git.hands import NOW_MS, finished, manifest, submitted
from tests.extensions.git.places import Place, place

pytestmark = pytest.mark.timeout(240)

BAD = JobRefs(content_id(read_manifest(manifest(666))))
PATIENCE_S = 200
MIB = 1024 * 1024


def write(here: Place, kind: str, data: bytes) -> str:
    """An object as git itself would never write it."""
    return here.git("hash-object", "-w", "-t", kind, "--literally", "--stdin", given=data).strip()


def put(here: Place, part: str, oid: str) -> None:
    """A ref, past git's own checks."""
    path = here.directory / BAD.name(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{oid}\n")


def commit(here: Place, tree: str, message: bytes = b"x\n", parent: str = "") -> str:
    head = f"tree {tree}\n{parent}author x <x@x> 1 +0000\ncommitter x <x@x> 1 +0000\n\n"
    return write(here, "commit", head.encode() + message)


def tree(here: Place, *entries: tuple[bytes, bytes, str]) -> str:
    return write(here, "tree", b"".join(b"%b %b\0" % (mode, name) + bytes.fromhex(oid) for mode, name, oid in entries))


def job(here: Place) -> str:
    """A job that is in order."""
    return commit(here, tree(here, (b"100644", b"job.yaml", write(here, "blob", manifest(666)))))


def job_is(make: Callable[[Place], str]) -> Callable[[Place], None]:
    return lambda here: put(here, "job", make(here))


def job_tree_is(make: Callable[[Place], str]) -> Callable[[Place], None]:
    return job_is(lambda here: commit(here, make(here)))


def beside_a_job(part: str, make: Callable[[Place], str]) -> Callable[[Place], None]:
    def poison(here: Place) -> None:
        put(here, "job", job(here))
        put(here, part, make(here))

    return poison


def blob(here: Place) -> str:
    return write(here, "blob", b"\xff\x00")


def tag(here: Place) -> str:
    return write(here, "tag", b"object %b\ntype blob\ntag x\ntagger x <x@x> 1 +0000\n\nx\n" % blob(here).encode())


NO_TRAILERS = "result has no trailers"
POISONS: dict[str, Callable[[Place], None]] = {
    "job is a blob": job_is(blob),
    "job is a tree": job_is(lambda here: tree(here)),
    "job is a tag": job_is(tag),
    "job is missing": job_is(lambda here: "12" * 20),
    "job is a commit of garbage": job_is(lambda here: write(here, "commit", b"\xff\n\n\n")),
    "job is a huge commit": job_is(lambda here: commit(here, tree(here), b"x" * (COMMIT_BYTES_MAX + 1))),
    "job's tree is malformed": job_tree_is(lambda here: write(here, "tree", b"100644 job.yaml\0short")),
    "job's tree is a blob": job_tree_is(blob),
    "job's tree is missing": job_tree_is(lambda here: "34" * 20),
    "job's tree is no id": job_tree_is(lambda here: "abc"),
    "job's tree has names out of order": job_tree_is(
        lambda here: tree(here, (b"100644", b"job.yaml", blob(here)), (b"100644", b"a", blob(here)))
    ),
    "job.yaml is a tree": job_tree_is(lambda here: tree(here, (b"40000", b"job.yaml", tree(here)))),
    "job.yaml is a submodule": job_tree_is(lambda here: tree(here, (b"160000", b"job.yaml", "56" * 20))),
    "job.yaml is too long": job_tree_is(
        lambda here: tree(here, (b"100644", b"job.yaml", write(here, "blob", b"#" * (MIB + 1))))
    ),
    "job.yaml is no manifest": job_tree_is(lambda here: tree(here, (b"100644", b"job.yaml", blob(here)))),
    "claim is a blob": beside_a_job("claim", blob),
    "claim is a tag": beside_a_job("claim", tag),
    "claim is missing": beside_a_job("claim", lambda here: "78" * 20),
    "claim is a commit of garbage": beside_a_job("claim", lambda here: commit(here, "abc", b"Fence: \xff")),
    "claim's worker is no key": beside_a_job(
        "claim", lambda here: commit(here, tree(here), b"x\n\nWorker-Id: ed25519:zz\n")
    ),
    "result is a blob": beside_a_job("result", blob),
    "result is a tree": beside_a_job("result", lambda here: tree(here)),
    NO_TRAILERS: beside_a_job("result", lambda here: commit(here, tree(here))),
    "a ref is in the way of the claim": beside_a_job("claim/x", blob),
    "a ref is in the way of the claims": beside_a_job("claims", blob),
    "a ref is in the way of the result": beside_a_job("result/x", blob),
}


@pytest.mark.req("GT-06", "GT-15")
@pytest.mark.parametrize("kind", POISONS)
def test_a_bad_ref_spoils_only_its_own_job(here: Place, kind: str):
    plane = here.open()
    done, waiting = finished(plane, 1), submitted(plane, 2)
    POISONS[kind](here)
    plane = here.open()
    states = {each.refs.content_id: each.state for each in git_jobs.listing(plane)}
    assert states[done.refs.content_id] == "succeeded" and states[waiting.refs.content_id] == "pending"
    orders = git_jobs.orders_of(plane, [each.refs for each in git_jobs.unfinished(plane) if git_jobs.is_waiting(each)])
    assert isinstance(orders[waiting.refs.content_id], git_jobs.GitOrder)
    assert isinstance(orders.get(BAD.content_id, ""), str) or states[BAD.content_id] == "claimed"
    found = {each.content_id: each for each in verify(plane)}
    assert not found[done.refs.content_id].findings and not found[waiting.refs.content_id].findings
    assert found[BAD.content_id].findings
    assert git_jobs.clear(plane, NOW_MS + 1_000_000) == [done.refs.content_id]


@pytest.mark.req("GT-06", "GT-15")
def test_a_server_that_cannot_read_some_of_its_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its git ends over each of them, and with it the request for all the others."""
    with place("http", tmp_path) as there:
        local = open_plane(str(there.directory), tmp_path / "none")
        done, waiting = finished(local, 1), submitted(local, 2)
        local.close()
        for number, poison in enumerate(POISONS.values(), 1000):
            monkeypatch.setattr(sys.modules[__name__], "BAD", JobRefs(content_id(read_manifest(manifest(number)))))
            poison(there)
        plane = there.open()
        states = {each.refs.content_id: each.state for each in git_jobs.listing(plane)}
        assert states[done.refs.content_id] == "succeeded" and states[waiting.refs.content_id] == "pending"
        orders = git_jobs.orders_of(
            plane, [each.refs for each in git_jobs.unfinished(plane) if git_jobs.is_waiting(each)]
        )
        assert [job for job, order in orders.items() if isinstance(order, git_jobs.GitOrder)] == [
            waiting.refs.content_id
        ]
        sound = {each.content_id for each in verify(plane) if not each.findings}
        assert sound == {done.refs.content_id, waiting.refs.content_id}


def work(home: Path, here: Place) -> "subprocess.CompletedProcess[bytes]":
    told = here.outside | {"HOCKET_HOME": str(home), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    words = ["git", "work", here.address, "--allow-any", "--until-idle"]
    return run_command(words, None, told, Path.cwd(), PATIENCE_S)


# A server that has one of these takes no push at all, and its git says so; nobody can push them there, either.
NOT_PUSHED = {
    *("job is missing", "job is a commit of garbage", "job's tree is malformed", "job's tree is a blob"),
    *("job's tree is missing", "job's tree is no id", "claim is missing", "claim is a commit of garbage"),
}


@pytest.mark.req("GT-06", "GT-15")
@pytest.mark.parametrize("where", ["bare", "http"])
def test_a_worker_meets_every_bad_ref_and_does_the_other_jobs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All of them at once, each on a job of its own."""
    Runtime.init(tmp_path / "home").close()
    with place(where, tmp_path) as here:
        names = {}
        for number, (kind, poison) in enumerate(POISONS.items(), 1000):
            if where == "http" and kind in NOT_PUSHED:
                continue
            refs = JobRefs(content_id(read_manifest(manifest(number))))
            monkeypatch.setattr(sys.modules[__name__], "BAD", refs)
            poison(here)
            names[refs.content_id] = kind
        plane = here.open()
        made = git_jobs.submit(plane, b"command: [/bin/true]\ntimeout: 30\n", NOW_MS)
        ran = work(tmp_path / "home", here)
        complaints = ran.stderr.decode()
        assert ran.returncode == 0, complaints
        assert b"1 succeeded, 0 failed" in ran.stdout, complaints
        assert "Traceback" not in complaints
        told = [line for line in complaints.splitlines() if "cannot be run" in line or "damaged" in line]
        of = Counter(name for line in told for job, name in names.items() if job.hex() in line)
        assert of == Counter(
            name for name in names.values() if not name.startswith("result is") and name != NO_TRAILERS
        )
        state = {each.refs.content_id: each.state for each in git_jobs.listing(plane)}[made.content_id]
        assert state == "succeeded"
        sound = {each.content_id for each in verify(plane) if not each.findings}
        assert sound == {made.content_id}, [names[each] for each in sound - {made.content_id}]


@pytest.mark.req("GT-06")
def test_a_ref_with_a_line_end_in_its_name_is_one_ref(here: Place):
    plane = here.open()
    done = finished(plane)
    for odd in ("a\u2028b", "a\x85b", "a\u2029"):
        here.git("update-ref", f"refs/gatos/jobs/{odd}", str(done.refs.job))
    assert len(plane.refs()) == 4 + 3
    assert [each.state for each in git_jobs.listing(plane)] == ["succeeded"]


MEASURED = """
import json, resource, sys
from pathlib import Path
from hocket.extensions.git import git_jobs
from hocket.extensions.git.planes import open_plane
from hocket.extensions.git.verify import verify
plane = open_plane(sys.argv[1], Path(sys.argv[2]))
listed = [job.state for job in git_jobs.listing(plane)]
orders = git_jobs.orders_of(plane, git_jobs.group(plane.refs()).values())
bad = [len(found.findings) for found in verify(plane)]
plane.close()
# Not getrusage for this process: that counts what its parent had before it became this program.
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
most = [own // 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024]
print(json.dumps([listed, sum(isinstance(order, str) for order in orders.values()), bad, most]))
"""


@pytest.mark.slow
@pytest.mark.req("GT-06")
def test_large_objects_take_no_memory(here: Place, tmp_path: Path):
    """Commits, trees, manifests, claims and results of 60 MiB each. Twelve such commits took 813 MiB to list."""
    zeros = bytes(60 * MIB)
    large = write(here, "blob", zeros)
    count = 0
    for number in range(2):
        for part in ("commit", "tree", "manifest", "claim", "result"):
            refs = JobRefs(content_id(read_manifest(manifest(count))))
            text = write(here, "blob", manifest(count))
            count += 1
            good = commit(here, tree(here, (b"100644", b"job.yaml", text)))
            last = b"%d" % number
            if part == "commit":
                good = commit(here, tree(here), zeros + last)
            elif part == "tree":
                good = commit(here, write(here, "tree", zeros + last))
            elif part == "manifest":
                good = commit(here, tree(here, (b"100644", b"job.yaml", large)))
            path = here.directory / refs.name("job")
            path.parent.mkdir(parents=True)
            path.write_text(f"{good}\n")
            if part in ("claim", "result"):
                (path.parent / part).write_text(commit(here, tree(here), zeros + part.encode() + last) + "\n")
    ran = subprocess.run(
        [sys.executable, "-c", MEASURED, str(here.directory), str(tmp_path / "cache")],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    listed, refused, bad, most = json.loads(ran.stdout)
    assert listed == ["damaged"] * count
    assert refused == 6
    assert len(bad) == count and all(bad)
    assert max(most) < 200, "MiB, in this process and in git"
