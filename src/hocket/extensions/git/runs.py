"""How the command of an ended job ran, and what it printed, read from the result in the repository. This checks hashes;
`verify` checks who signed.
"""

from typing import NamedTuple

from hocket.errors import Failed
from hocket.extensions.command.execution import Execution, Stream
from hocket.extensions.command.proof import PROOF_BYTES_MAX, BadProof, read_envelope
from hocket.extensions.git.git_jobs import GitJob
from hocket.extensions.git.plane import Plane, Tree, commit_at, directory_below, file_at, tree_at
from hocket.extensions.git.results import BLOBS, PROOF
from hocket.extensions.git.trailers import BadTrailer
from hocket.kernel.ids import content_hash


class GitRun(NamedTuple):
    """An output that the repository does not have is None: it was too large, or this clone lacks it."""

    execution: Execution
    stdout: bytes | None
    stderr: bytes | None


def read_run(plane: Plane, job: GitJob) -> GitRun | None:
    """None if the job has no result, or one of another program, which need not say how the command ran. Raises Failed
    if the result is damaged.
    """
    if job.result is None or job.refs.result is None:
        return None
    try:
        entries = tree_at(plane, commit_at(plane, job.refs.result).tree)
        if PROOF not in entries:
            return None
        envelope = file_at(plane, entries[PROOF].oid, PROOF_BYTES_MAX)
        blobs = directory_below(plane, entries, [BLOBS])
        if content_hash(envelope) != job.result.proof:
            raise BadTrailer(f"{PROOF} does not match its hash")
        execution = read_envelope(envelope)
    except BadProof:
        return None
    except BadTrailer as error:
        raise Failed(f"the result {job.refs.result} in {plane.where} cannot be read: {error}") from None
    return GitRun(execution, *(_printed(plane, blobs, each) for each in (execution.stdout, execution.stderr)))


def _printed(plane: Plane, blobs: Tree, stream: Stream | None) -> bytes | None:
    if stream is None:
        return b""
    entry = blobs.get(stream.hash.hex())
    try:
        data = b"" if entry is None else file_at(plane, entry.oid)
    except BadTrailer:
        return None
    return data if content_hash(data) == stream.hash else None
