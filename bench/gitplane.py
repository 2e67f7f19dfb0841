"""The git plane beside git itself. Where both change something, each has half of the jobs in one repository, and they
take turns in small portions. Repositories are as `git init` makes them: refs are on the disk before a claim counts,
loose objects need not be.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from bench.subject import Result
from hocket.extensions.command.execution import Execution, Output, Resources, RunnerProgram, Stream
from hocket.extensions.command.proof import Proof, check, prove
from hocket.extensions.git import git_jobs, holding, verify
from hocket.extensions.git.git_jobs import GitJob
from hocket.extensions.git.holding import GitWorkerKey, HeldClaim
from hocket.extensions.git.objects import Kind
from hocket.extensions.git.plane import ROOT, Change, Plane
from hocket.extensions.git.planes import open_plane
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey

NOW_MS = 1_762_600_000_123
PORTION = 16
SUBMIT_STEP = 500
ME = GitWorkerKey(SigningKey(hashlib.sha256(b"bench").digest()), "bench-1", 60, os.urandom)


# --- claims


def claims_local(home: Path, count: int, batch: int) -> Result:
    """Claims a second in a repository on this disk, so many at a time, against one long-lived `git update-ref --stdin`
    that makes the same two refs, in a transaction for each claim, of a commit that is there already.
    """
    _repository(home / "jobs.git", 2 * count)
    with closing(_plane(home / "jobs.git", home)) as plane:
        listed = _learned(plane, git_jobs.listing(plane))
        raw = _UpdateRef(home / "jobs.git")
        try:
            return _turns(plane, batch, listed[::2], raw.claim, listed[1::2])
        finally:
            raw.close()


def claims_http(home: Path, count: int, batch: int) -> Result:
    """Claims a second over smart HTTP, so many at a time, against `git push --atomic` of the same two refs for each of
    as many claims, whose commits were made before.
    """
    served = home / "served"
    _repository(served / "jobs.git", 2 * count)
    with _serving(served) as address, closing(open_plane(f"{address}/jobs.git", home / "cache", os.environ)) as plane:
        listed = _learned(plane, git_jobs.listing(plane))
        raw = _Push(home / "raw.git", f"{address}/jobs.git", listed[1::2])
        return _turns(plane, batch, listed[::2], raw.claim, listed[1::2])


def _learned(plane: Plane, listed: Sequence[GitJob]) -> list[GitJob]:
    """A worker has read what a job asks for before it claims it."""
    orders = git_jobs.orders_of(plane, [job.refs for job in listed])
    return [
        job._replace(tree=each.tree)
        for job in listed
        if isinstance(each := orders[job.refs.content_id], git_jobs.GitOrder)
    ]


def _turns(
    plane: Plane,
    batch: int,
    ours: Sequence[GitJob],
    claim: Callable[[Sequence[GitJob]], None],
    others: Sequence[GitJob],
) -> Result:
    """Ours and the raw command claim the same number of jobs, a portion each in turn."""
    seconds = raw_seconds = 0.0
    portion = max(batch, PORTION // batch * batch)
    for some, same in zip(_portions(ours, portion), _portions(others, portion), strict=True):
        start = time.perf_counter()
        won = 0
        for few in _portions(some, batch):
            won += len(holding.claim_each(plane, few, ME, NOW_MS))
        between = time.perf_counter()
        for few in _portions(same, batch):
            claim(few)
        seconds += between - start
        raw_seconds += time.perf_counter() - between
        if won != len(some):
            raise RuntimeError(f"{won} claims of {len(some)}")
    rate, raw_rate = len(ours) / seconds, len(others) / raw_seconds
    return {"rate": rate, "raw_rate": raw_rate, "ratio": rate / raw_rate}


def _portions(some: Sequence[GitJob], size: int) -> Iterator[list[GitJob]]:
    left = iter(some)
    while few := list(islice(left, size)):
        yield few


def _refs(job: GitJob) -> tuple[str, str]:
    return job.refs.name("claim"), job.refs.of_worker(ME.key.public)


class _UpdateRef:
    """`git update-ref --stdin`, with nothing around it."""

    def __init__(self, repository: Path) -> None:
        self._process = subprocess.Popen(
            ["git", "--git-dir", str(repository), "update-ref", "--stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def claim(self, some: Sequence[GitJob]) -> None:
        for job in some:
            creates = "".join(f"create {ref} {job.refs.job}\n" for ref in _refs(job))
            self._to.write(f"start\n{creates}prepare\ncommit\n".encode())
            heard = b""
            while not heard.endswith(b"commit: ok\n"):
                if not (part := self._from.read(4096)):
                    raise RuntimeError("git update-ref has ended")
                heard += part

    def close(self) -> None:
        self._to.close()
        self._process.wait()


class _Push:
    """`git push --atomic` out of a bare repository that has the jobs and, made before, the commits that claim them."""

    def __init__(self, place: Path, address: str, listed: Iterable[GitJob]) -> None:
        self._git = ["git", "--git-dir", str(place)]
        _run("git", "init", "--quiet", "--bare", str(place))
        _run(*self._git, "config", "remote.origin.url", address)
        _run(*self._git, "fetch", "--quiet", "origin", f"+{ROOT}*:{ROOT}*")
        self._commits: dict[bytes, str] = {}
        with closing(open_plane(str(place), place, os.environ)) as plane:
            aside = _Aside(plane)
            for job in listed:
                held = holding.claim(aside, job, ME, NOW_MS)
                assert held is not None
                self._commits[job.refs.content_id] = held.commit

    def claim(self, some: Sequence[GitJob]) -> None:
        moves = [f"{self._commits[job.refs.content_id]}:{ref}" for job in some for ref in _refs(job)]
        _run(*self._git, "push", "--quiet", "--atomic", "origin", *moves)


@contextmanager
def _serving(directory: Path) -> Iterator[str]:
    """`git http-backend` behind a small server, in a process of its own; gives its address."""
    for repository in directory.iterdir():
        _run("git", "--git-dir", str(repository), "config", "uploadpack.allowFilter", "true")
    words = [sys.executable, "-m", "bench.gitplane", "serve", str(directory)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


def _serve(directory: Path) -> None:
    from tests.extensions.git.places import http_server

    with http_server(directory, dict(os.environ)) as port:
        print(port, flush=True)
        sys.stdin.read()


# --- looking and verifying


def listing(home: Path, count: int, finished: bool) -> Result:
    """All jobs with their states, against `git for-each-ref` on the same repository, with names and ids and no more."""
    _repository(home / "jobs.git", count, finished)
    words = ["git", "--git-dir", str(home / "jobs.git"), "for-each-ref", "--format=%(objectname) %(refname)", ROOT]
    with closing(_plane(home / "jobs.git", home)) as plane:
        _run(*words)
        start = time.perf_counter()
        listed = git_jobs.listing(plane)
        between = time.perf_counter()
        _run(*words)
        raw_seconds = time.perf_counter() - between
    seconds = between - start
    if [job.state for job in listed] != ["succeeded" if finished else "pending"] * count:
        raise RuntimeError(f"not {count} jobs in the right state")
    return {"seconds": seconds, "raw_seconds": raw_seconds, "ratio": seconds / raw_seconds}


def verifying(home: Path, count: int) -> Result:
    """Results verified a second by one thread, each with its job, its three claims and its files; and the checks of the
    same proofs alone.
    """
    proofs = _repository(home / "jobs.git", count, finished=True)
    with closing(_plane(home / "jobs.git", home)) as plane:
        start = time.perf_counter()
        found = list(verify.verify(plane))
        between = time.perf_counter()
        for proof in proofs:
            check(proof)
        proof_seconds = time.perf_counter() - between
    if len(found) != count or not all(not each.findings and each.execution for each in found):
        raise RuntimeError(f"not {count} sound results")
    return {"rate": count / (between - start), "proof_rate": count / proof_seconds}


# --- repositories to measure on


class _Aside:
    """A plane that takes every change and makes none, so that thousands can be made at once afterwards."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._changes: dict[str, Change] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plane, name)

    def refs(self, below: str = ROOT) -> dict[str, str]:
        return {}

    def write(self, kind: Kind, data: bytes) -> str:
        return self._plane.write(kind, data)

    def swap(self, changes: Sequence[Change]) -> bool:
        for change in changes:
            first = self._changes.get(change.ref, change)
            self._changes[change.ref] = Change(change.ref, first.old, change.new)
        return True

    def swap_each(self, swaps: Iterable[Sequence[Change]]) -> list[bool]:
        return [self.swap(changes) for changes in swaps]

    def make(self) -> None:
        assert self._plane.swap(list(self._changes.values()))
        self._changes = {}


def _plane(repository: Path, home: Path) -> Plane:
    return open_plane(str(repository), home / "cache", os.environ)


def _repository(place: Path, count: int, finished: bool = False) -> list[Proof]:
    """A bare repository with so many jobs, pending or done; gives the proofs."""
    place.parent.mkdir(exist_ok=True)
    _run("git", "init", "--quiet", "--bare", str(place))
    proofs = []
    with closing(_plane(place, place.parent)) as plane:
        aside = _Aside(plane)
        for number in range(count):
            text = b'command: ["/bin/echo"]\nargs: ["%d"]\ntimeout: 30\n' % number
            made = git_jobs.submit(aside, text, NOW_MS)
            if finished:
                proofs.append(_finish(aside, made, number))
            if number % SUBMIT_STEP == SUBMIT_STEP - 1 or number == count - 1:
                aside.make()
    os.sync()
    return proofs


def _finish(plane: Plane, made: git_jobs.GitSubmitted, number: int) -> Proof:
    held = holding.claim(plane, GitJob(git_jobs.JobRefs(made.content_id, made.commit), "pending"), ME, NOW_MS)
    assert held is not None
    running = holding.run(plane, held, ME, NOW_MS)
    assert running is not None
    contents = {content_hash(data): data for data in (b"made %d\n" % number, b"%d\n" % number, b"")}
    proof = _proof(running, number, list(contents))
    assert holding.finish(plane, running, ME, proof, contents, NOW_MS + 2000)
    return proof


def _proof(held: HeldClaim, number: int, hashes: Sequence[bytes]) -> Proof:
    made, said, nothing = hashes
    size = len(str(number)) + 1
    execution = Execution(
        content_id=held.refs.content_id,
        argv=("/bin/echo", str(number)),
        exit_code=0,
        signal=None,
        timed_out=False,
        started_at_ms=NOW_MS,
        finished_at_ms=NOW_MS + 1500,
        inputs=(),
        outputs=(Output("outputs/made", made, size + 5),),
        resources=Resources(wall_s=1.5, cpu_s=0.25),
        fence=held.claim.fence,
        job="01JBZ8Q0000000000000000000",
        runner=RunnerProgram(content_hash(b"the runner"), "0.1.0", "linux/x86_64"),
        stdout=Stream(said, size, size),
        stderr=Stream(nothing, 0, 0),
    )
    return prove(execution, ME.key)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words[:6])}: {done.stderr.decode(errors='replace')}")


if __name__ == "__main__":
    _serve(Path(sys.argv[2]))
