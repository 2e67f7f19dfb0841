"""Workers, manifests and proofs for the tests of the git plane."""

import hashlib
import os

from hocket.extensions.command.execution import Execution, Output, Resources, RunnerProgram, Stream
from hocket.extensions.command.proof import Proof, prove
from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.git_jobs import GitJob
from hocket.extensions.git.holding import GitWorkerKey, HeldClaim
from hocket.extensions.git.plane import Plane
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey

NOW_MS = 1_762_600_000_123
CONTENTS = {content_hash(data): data for data in (b"made\n", b"said\n", b"")}
MADE, SAID, NOTHING = (content_hash(data) for data in (b"made\n", b"said\n", b""))


def worker(name: str = "one", process: str = "worker-1", lease_s: int = 60) -> GitWorkerKey:
    return GitWorkerKey(SigningKey(hashlib.sha256(name.encode()).digest()), process, lease_s, os.urandom)


def manifest(number: int = 0) -> bytes:
    return b'command: ["/bin/echo"]\nargs: ["%d"]\ntimeout: 30\n' % number


def submitted(plane: Plane, number: int = 0) -> GitJob:
    made = git_jobs.submit(plane, manifest(number), NOW_MS)
    return seen(plane, made.content_id)


def seen(plane: Plane, content_id: bytes) -> GitJob:
    job = git_jobs.look(plane, content_id)
    assert job is not None
    return job


def proof(held: HeldClaim, by: GitWorkerKey, number: int = 0, exit_code: int = 0, fence: int | None = None) -> Proof:
    return prove(
        Execution(
            content_id=held.refs.content_id,
            argv=("/bin/echo", str(number)),
            exit_code=exit_code,
            signal=None,
            timed_out=False,
            started_at_ms=NOW_MS,
            finished_at_ms=NOW_MS + 1500,
            inputs=(),
            outputs=(Output("outputs/made", MADE, 5),),
            resources=Resources(wall_s=1.5, cpu_s=0.25),
            fence=held.claim.fence if fence is None else fence,
            job="01JBZ8Q0000000000000000000",
            runner=RunnerProgram(content_hash(b"the runner"), "0.1.0", "linux/x86_64"),
            stdout=Stream(SAID, 5, 5),
            stderr=Stream(NOTHING, 0, 0),
        ),
        by.key,
    )


def finished(plane: Plane, number: int = 0, by: GitWorkerKey | None = None, exit_code: int = 0) -> GitJob:
    """A job that went all the way."""
    by = by or worker()
    job = submitted(plane, number)
    held = holding.claim(plane, job, by, NOW_MS)
    assert held is not None
    held = holding.run(plane, held, by, NOW_MS)
    assert held is not None
    assert holding.finish(plane, held, by, proof(held, by, number, exit_code), CONTENTS, NOW_MS + 2000)
    return seen(plane, job.refs.content_id)
