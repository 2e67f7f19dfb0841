"""Proofs of execution on the log: finding the proof of a job, checking it against everything else that is known about
the job, and how the job ended by it: an exit code as a shell reports it, and what it printed. `proof` checks a proof in
itself.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from hocket.api import Service
from hocket.errors import Conflict, Failed, HocketError, Unreachable
from hocket.extensions.command.execution import Execution, Stream
from hocket.extensions.command.manifest import BadManifest, Manifest, content_id, parse_manifest
from hocket.extensions.command.proof import (
    PROOF_TYPE,
    BadProof,
    Proof,
    check,
    decode_proof,
    encode_proof,
    read_envelope,
)
from hocket.families import artifacts
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs, Damaged
from hocket.families.jobs import view
from hocket.families.jobs.apart import payload_of
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.jobs.rules import Outcome as Ended
from hocket.kernel.ids import content_hash, hash_text, node_id, node_text, ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import AcceptWork, FailWork, ScheduleJob
from hocket.store import Artifact, ArtifactSession, OpSession, Session, Stage
from hocket.work.output_files import STREAM_TYPES

# Jobs whose holder a git repository decides; the repository counts the fences in their proofs.
GIT_KIND = "hocket.git"
OUTPUT_TYPE = "hocket.output"
NOTHING = content_hash(b"")
TIMED_OUT, NOT_STARTED, BY_SIGNAL = 124, 127, 128


class Examined(NamedTuple):
    """What is wrong with a proof, and what could not be checked."""

    problems: list[str]
    notes: list[str]


def find_proof(session: Session, blobs: Blobs, job: Job, fetch: Fetch | None = None) -> Proof | None:
    """The proof of the job's last run; None if there is none that can be read here. Ignores proofs from nodes other
    than the one that held the job.
    """
    for artifact in reversed(_by_the_holder(session, job)):
        try:
            return decode_proof(artifacts.content(session, blobs, artifact, fetch))
        except (HocketError, BadProof):
            continue
    return None


def need_proof(session: Session, blobs: Blobs, job: Job, fetch: Fetch | None = None) -> Proof:
    """The proof of the job's last run. Raises Failed with the reason if there is none."""
    found = _by_the_holder(session, job) or _of_type(session, job, PROOF_TYPE)
    if not found:
        state = job.state.name.lower() if job.outcome is None else job.outcome.name.lower()
        raise Failed(f"job {ulid_text(job.id)} ({job.kind}, {state}) has no proof; only ended commands have one")
    try:
        return decode_proof(artifacts.content(session, blobs, found[-1], fetch))
    except BadProof as error:
        raise Failed(f"artifact {ulid_text(found[-1].id)} of job {ulid_text(job.id)} is not a proof: {error}") from None


def proof_file(session: Session, blobs: Blobs, job: Job) -> bytes:
    return encode_proof(need_proof(session, blobs, job))


def _by_the_holder(session: Session, job: Job) -> list[Artifact]:
    """Proofs that were put on the log by the node whose claim was the last to end."""
    holder = _holder(session, job)
    found = _of_type(session, job, PROOF_TYPE)
    return [each for each in found if artifacts.creation_of(session, each)[0].node_id == holder]


def examine(session: Session, blobs: Blobs, job: Job, proof: Proof, fetch: Fetch | None = None) -> Examined:
    """Checks a proof against the log: the command, the worker and its claim, and every file that it names. Files that
    are here are hashed again; the others are fetched if possible.
    """
    try:
        execution = check(proof)
    except BadProof as error:
        return Examined([str(error)], [])
    examined = Examined([], [])
    examined.problems.extend(_about_the_command(session, blobs, job, execution, fetch))
    examined.problems.extend(_about_the_claim(session, job, execution, proof.worker))
    for name, size, hash, type in _named(execution):
        found = [each for each in _of_type(session, job, type) if each.hash == hash]
        if not found:
            examined.problems.append(f"{name} is {hash_text(hash)}, but no artifact of the job has that hash")
        elif found[-1].size != size:
            examined.problems.append(f"{name} has {size} bytes in the proof and {found[-1].size} on the log")
        else:
            _look_at(session, blobs, name, found[-1], fetch, examined)
    examined.problems.extend(_left_out(session, job, execution))
    return examined


def _about_the_command(
    session: Session, blobs: Blobs, job: Job, execution: Execution, fetch: Fetch | None
) -> Iterator[str]:
    manifest = _manifest(session, blobs, job, fetch)
    if isinstance(manifest, str):
        yield manifest
        return
    expected = content_id(manifest)
    if execution.content_id != expected:
        yield f"the proof is of {hash_text(execution.content_id)}, the job asks for {hash_text(expected)}"
    if execution.argv != manifest.argv:
        yield "the proof names another command line than the job"
    if execution.inputs != tuple(each.hash for each in manifest.inputs or ()):
        yield "the proof names other inputs than the job"


def _manifest(session: Session, blobs: Blobs, job: Job, fetch: Fetch | None) -> Manifest | str:
    row = session.op(job.schedule_op)
    payload = None if row is None else decode(row.body).payload
    if not isinstance(payload, ScheduleJob):
        return f"the request of job {ulid_text(job.id)} is not on this log"
    try:
        return parse_manifest(msgspec.json.decode(payload_of(session, blobs, job, payload.payload, fetch)))
    except (Conflict, Unreachable) as error:
        return str(error)
    except (BadManifest, msgspec.MsgspecError, RecursionError) as error:
        return f"job {ulid_text(job.id)} is not a command: {error}"


def _about_the_claim(session: Session, job: Job, execution: Execution, worker: bytes) -> Iterator[str]:
    if execution.job != ulid_text(job.id):
        yield f"the proof is of job {execution.job}, not of {ulid_text(job.id)}"
    if execution.fence != job.fence and job.kind != GIT_KIND:
        yield f"the proof was made under fence {execution.fence}, the job's last claim has fence {job.fence}"
    holder, node = _holder(session, job), node_id(worker)
    if holder is None:
        yield f"no claim on job {ulid_text(job.id)} has ended"
    elif node != holder:
        yield f"the proof is by node {node_text(node)}, but node {node_text(holder)} held the job"
    if job.outcome is Outcome.SUCCEEDED and (execution.exit_code != 0 or execution.timed_out):
        yield "the job succeeded, but the proof says that the command did not"


def _holder(session: OpSession, job: Job) -> int | None:
    """The node whose claim was the last to end; for a job that will be retried, the node whose run failed."""
    if job.outcome is not None or job.error_op is None:
        return job.claimer if job.outcome is not None else None
    row = session.op(job.error_op)
    payload = None if row is None else decode(row.body).payload
    if isinstance(payload, AcceptWork):
        row = session.op(payload.offer)
        payload = None if row is None else decode(row.body).payload
    return payload.claimer if isinstance(payload, FailWork) else None


def _named(execution: Execution) -> Iterator[tuple[str, int, bytes, str]]:
    """Every file in a proof: its name, size and hash, and the type of its artifact. An empty stream has none."""
    for each in execution.outputs:
        yield f"the output {each.path!r}", each.size, each.hash, OUTPUT_TYPE
    for name, type in STREAM_TYPES.items():
        stream: Stream | None = getattr(execution, name)
        if stream is not None and (stream.size, stream.hash) != (0, NOTHING):
            yield name, stream.size, stream.hash, type


def _left_out(session: Session, job: Job, execution: Execution) -> Iterator[str]:
    """Outputs that the job's completion names and the proof does not."""
    proven = {each.hash for each in execution.outputs}
    for artifact in _of_type(session, job, OUTPUT_TYPE):
        if artifact.id in job.artifacts and artifact.hash not in proven:
            yield f"the job's artifact {ulid_text(artifact.id)} is not in the proof"


def _look_at(
    session: Session, blobs: Blobs, name: str, artifact: Artifact, fetch: Fetch | None, examined: Examined
) -> None:
    """Hashes a file's bytes, wherever they are."""
    if session.is_evicted(artifact.id):
        examined.notes.append(f"{name} was evicted; its bytes were not checked")
        return
    inline = artifacts.creation_of(session, artifact)[1].content_inline
    try:
        if inline is not None:
            if content_hash(inline) != artifact.hash:
                examined.problems.append(f"{name}: artifact {ulid_text(artifact.id)} does not match its hash")
        elif blobs.has(artifact.hash):
            for _ in blobs.chunks(artifact.hash):
                pass
        else:
            artifacts.content(session, blobs, artifact, fetch)
    except Damaged as error:
        examined.problems.append(f"{name}: {error}")
    except HocketError as error:
        examined.notes.append(f"{name} was not checked: {error}")


def _of_type(session: ArtifactSession, job: Job, type: str) -> list[Artifact]:
    return [each for each in session.artifacts_of_job(job.id) if each.type == type]


class ExaminedProof(NamedTuple):
    """`problems` lists what is wrong with the proof, `notes` what could not be checked."""

    proof: Proof
    problems: list[str]
    notes: list[str]


def of_job(service: Service, job: str) -> Proof:
    """The proof of a job, fetched from another node if this one lacks it."""
    with service.view_of(job) as session:
        found = view.find(session, job).job
        return need_proof(session, service.runtime.blobs, found, service.fetch)


def examined(service: Service, job: str, offline: bool) -> ExaminedProof:
    """The proof of a job, checked against the log. With `offline`, no file is fetched from other nodes."""
    fetch = None if offline else service.fetch
    blobs = service.runtime.blobs
    with service.view_of(job) as session:
        found = view.find(session, job).job
        proof = need_proof(session, blobs, found, fetch)
        problems, notes = examine(session, blobs, found, proof, fetch)
    return ExaminedProof(proof, problems, notes)


class CommandOutcome(NamedTuple):
    code: int
    sentence: str


def plain_ending(job: Job, execution: Execution | None) -> CommandOutcome | None:
    """The ending of a job whose last run is known, without reading the log; None if the log has more to say."""
    if execution is None or execution.fence != job.fence or job.outcome in (None, Ended.CANCELLED):
        return None
    return CommandOutcome(exit_code(execution), "") if _is_plain(execution) else None


def ending(session: Session, blobs: Blobs, job_id: bytes) -> CommandOutcome | None:
    """None while the job has not ended."""
    entry = session.job(job_id)
    if entry is None or entry.stage is not Stage.DONE:
        return None
    job = entry.job
    if job.outcome is not Ended.CANCELLED:
        proof = find_proof(session, blobs, job)
        if proof is not None:
            execution = read_envelope(proof.envelope)
            return CommandOutcome(exit_code(execution), _sentence(session, job, execution))
    verb = "was cancelled" if job.outcome is Ended.CANCELLED else "failed"
    return CommandOutcome(1, f"job {ulid_text(job_id)} {verb}: {_error(session, job)}")


def exit_code(execution: Execution) -> int:
    if execution.timed_out:
        return TIMED_OUT
    if execution.signal is not None:
        return BY_SIGNAL + execution.signal
    return NOT_STARTED if execution.exit_code is None else execution.exit_code


def printed(session: Session, blobs: Blobs, job_id: bytes, stream: str, fetch: Fetch | None) -> bytes | None:
    """What was kept of a stream of the job's last run, as its proof names it; None if it is not available."""
    entry = session.job(job_id)
    proof = None if entry is None else find_proof(session, blobs, entry.job, fetch)
    if proof is None:
        return None
    named: Stream | None = getattr(read_envelope(proof.envelope), stream)
    if named is not None and named.size == 0:
        return b""
    found = [
        each
        for each in session.artifacts_of_job(job_id)
        if named is not None and each.type == STREAM_TYPES[stream] and each.hash == named.hash
    ]
    try:
        return artifacts.content(session, blobs, found[-1], fetch) if found else None
    except HocketError:
        return None


def _sentence(session: Session, job: Job, execution: Execution) -> str:
    return "" if _is_plain(execution) else _error(session, job)


def _is_plain(execution: Execution) -> bool:
    """Whether a command ended on its own, so that its output says everything."""
    is_stopped = execution.charge is not None and bool(execution.charge.over)
    return execution.exit_code is not None and not execution.timed_out and not is_stopped


def _error(session: Session, job: Job) -> str:
    entry = session.job(job.id)
    assert entry is not None
    return str(view.full(session, entry)["error"] or "no reason was recorded")
