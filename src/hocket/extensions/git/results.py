"""Result commits: the proof of an execution, pointers to its outputs, and as many of the outputs as fit. The proof
determines every file of a result, so that any reader can tell whether one was changed.

Also reads results that other programs wrote, as far as GATOS specifies them: three trailers, and somewhere in the tree
the envelope of a proof that follows GATOS' schema. GATOS does not specify which bytes a signature covers; the known
ways are tried in turn.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from hocket.extensions.command.execution import Execution
from hocket.extensions.command.proof import (
    PROOF_BYTES_MAX,
    BadProof,
    Proof,
    check,
    digest,
    dsse,
    enclose,
    read_envelope,
    statement,
)
from hocket.extensions.git.claim_commits import IDENTITY
from hocket.extensions.git.objects import Commit, commit_data
from hocket.extensions.git.trailers import BadTrailer, any_key_of, find_trailers, hash_of, message
from hocket.kernel.decoding import json_decoder
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.jws import canonical_plain
from hocket.kernel.keys import SIGNATURE_BYTES, key_text, verify

BLOBS_BYTES_MAX = 32 * 1024 * 1024
PROOF, OUTPUTS, ATTESTATION, BLOBS = "proof.json", "outputs.json", "attestation.dsse.json", "blobs"
ResultState = Literal["succeeded", "failed"]
_STATES = get_args(ResultState)
_POLICY_ROOT = re.compile("sha256:[0-9a-f]{64}")
_NEEDED = frozenset({"Job-Id", "Proof-Of-Execution", "Worker-Id"})
_TRAILERS = _NEEDED | {"Attest-Program", "Attest-Sig", "State", "Policy-Code-Root"}
Signed = Literal["proof", "job", "nothing"]


class Result(NamedTuple):
    """The trailers of a result commit. Other writers may leave out the last four; ours have a policy root if the
    manifest has one, and always the others.
    """

    job: bytes
    proof: bytes
    worker: bytes
    program: bytes | None
    signature: bytes | None
    state: ResultState | None
    policy_root: str | None = None


class _Signature(msgspec.Struct, forbid_unknown_fields=True):
    keyid: str
    sig: str


class _Dsse(msgspec.Struct, forbid_unknown_fields=True):
    payload: str
    payloadType: str
    signatures: list[_Signature]


_attestations = json_decoder(_Dsse)


def state_of(execution: Execution) -> ResultState:
    return "succeeded" if execution.exit_code == 0 and not execution.timed_out else "failed"


def result_of(proof: Proof, execution: Execution, policy_root: str | None) -> Result:
    return Result(
        job=execution.content_id,
        proof=digest(proof),
        worker=proof.worker,
        program=execution.runner.program,
        signature=proof.signature,
        state=state_of(execution),
        policy_root=policy_root,
    )


def result_data(result: Result, finished_ms: int, tree: str, job: str) -> bytes:
    """The bytes of a result commit; its one parent is the job's commit."""
    trailers = [
        ("Job-Id", hash_text(result.job)),
        ("Proof-Of-Execution", hash_text(result.proof)),
        ("Worker-Id", key_text(result.worker)),
    ]
    trailers += [("Attest-Program", hash_text(result.program))] if result.program is not None else []
    trailers += [("Attest-Sig", key_text(result.signature))] if result.signature is not None else []
    trailers += [("State", result.state)] if result.state is not None else []
    trailers += [("Policy-Code-Root", result.policy_root)] if result.policy_root is not None else []
    text = message(f"{result.state} {result.job.hex()[:12]}", trailers)
    return commit_data(tree, [job], IDENTITY, finished_ms // 1000, text)


def read_result(commit: Commit) -> Result:
    """Parses a result of any writer. Raises Malformed."""
    found = find_trailers(commit.message, _TRAILERS)
    if not found.keys() >= _NEEDED:
        raise BadTrailer(f"the trailer {min(_NEEDED - found.keys())} is missing")
    state, policy_root = found.get("State"), found.get("Policy-Code-Root")
    if state is not None and state not in _STATES:
        raise BadTrailer(f"State is none of {', '.join(_STATES)}: {state!r}")
    if policy_root is not None and _POLICY_ROOT.fullmatch(policy_root) is None:
        raise BadTrailer(f"Policy-Code-Root is not sha256: and 64 lower-case hex digits: {policy_root[:160]!r}")
    program, signature = found.get("Attest-Program"), found.get("Attest-Sig")
    return Result(
        job=hash_of("Job-Id", found["Job-Id"]),
        proof=hash_of("Proof-Of-Execution", found["Proof-Of-Execution"]),
        worker=any_key_of("Worker-Id", found["Worker-Id"]),
        program=None if program is None else hash_of("Attest-Program", program),
        signature=None if signature is None else any_key_of("Attest-Sig", signature, SIGNATURE_BYTES),
        state=state,  # type: ignore[arg-type]
        policy_root=policy_root,
    )


def result_files(proof: Proof, execution: Execution) -> dict[str, bytes]:
    """The files of a result besides its blobs."""
    return {PROOF: proof.envelope, OUTPUTS: pointers(execution), ATTESTATION: canonical_plain(dsse(proof))}


def pointers(execution: Execution) -> bytes:
    """The outputs as GATOS' pointers: the files by path, then the two streams by name."""
    found: list[dict[str, object]] = [
        {"kind": "blobptr", "algo": "blake3", "hash": hash_text(each.hash), "size": each.size, "path": each.path}
        for each in execution.outputs
    ]
    for name, stream in (("stdout", execution.stdout), ("stderr", execution.stderr)):
        if stream is not None:
            found.append(
                {
                    "kind": "blobptr",
                    "algo": "blake3",
                    "hash": hash_text(stream.hash),
                    "size": stream.size,
                    "stream": name,
                }
            )
    return canonical_plain(found)


def made_by(execution: Execution) -> dict[bytes, int]:
    """The hash and the size of every output."""
    found = {each.hash: each.size for each in execution.outputs}
    for stream in (execution.stdout, execution.stderr):
        if stream is not None:
            found[stream.hash] = stream.size
    return found


def travelling(execution: Execution, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The contents that go into git: each available one, in order, up to a total limit."""
    found: dict[bytes, bytes] = {}
    left = BLOBS_BYTES_MAX
    for hash in made_by(execution):
        if hash in contents and len(contents[hash]) <= left:
            found[hash] = contents[hash]
            left -= len(contents[hash])
    return found


def checked_proof(result: Result, envelope: bytes, attestation: bytes) -> Execution:
    """What a result's files prove. Raises Malformed or BadProof."""
    proof = read_proof(result, envelope, attestation)
    execution = check(proof, result.job, result.worker)
    # The attestation has one spelling, and the proof determines everything in it.
    said = statement(execution, result.proof, result.worker)
    if canonical_plain(enclose(said, proof.worker, proof.statement_signature)) != attestation:
        raise BadTrailer(f"{ATTESTATION} is not what follows from the proof")
    return execution


def read_proof(result: Result, envelope: bytes, attestation: bytes) -> Proof:
    """Assembles a proof from the parts of a result: the signature of the statement is in the attestation."""
    try:
        found = _attestations.decode(attestation)
        if len(found.signatures) != 1:
            raise BadTrailer(f"{ATTESTATION} has {len(found.signatures)} signatures and not one")
        signature = b64decode(found.signatures[0].sig, validate=True)
    except (msgspec.MsgspecError, NotBase64, UnicodeDecodeError, RecursionError) as error:
        raise BadTrailer(f"{ATTESTATION} is not a DSSE envelope: {error}") from None
    if result.signature is None:
        raise BadTrailer("the trailer Attest-Sig is missing")
    return Proof(envelope, result.worker, result.signature, signature)


class _ForeignRunner(msgspec.Struct, forbid_unknown_fields=True):
    program: str
    version: str | None = None
    platform: str | None = None


class _ForeignEnvelope(msgspec.Struct, forbid_unknown_fields=True):
    job_id: str
    runner: _ForeignRunner
    outputs: list[dict[str, Any]]
    started_at: str | None = None
    finished_at: str | None = None


_envelopes = json_decoder(_ForeignEnvelope)


class ForeignProof(NamedTuple):
    """The content of an envelope: the job, the program, and its pointers as a map from hash to size."""

    job: bytes
    program: bytes
    pointers: dict[bytes, int | None]


def is_hockets(envelope: bytes) -> bool:
    """Whether Hocket wrote an envelope. Hocket's results must meet stricter rules, so that removing Hocket's own parts
    cannot get a result judged by the rules here.
    """
    try:
        read_envelope(envelope)
    except BadProof:
        return False
    return True


def read_other_envelope(raw: bytes) -> ForeignProof:
    """Raises Malformed."""
    if len(raw) > PROOF_BYTES_MAX:
        raise BadTrailer(f"the proof has {len(raw)} bytes, more than {PROOF_BYTES_MAX}")
    try:
        found = _envelopes.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTrailer(f"the proof is not a GATOS envelope: {error}") from None
    pointers = {}
    for output in found.outputs:
        hash, size = output.get("hash"), output.get("size")
        if output.get("kind") == "blobptr" and output.get("algo") == "blake3" and isinstance(hash, str):
            # GATOS' schema has the algorithm's name before the digits; its example leaves it out.
            digest = hash_of("hash", hash if ":" in hash else f"blake3:{hash}")
            pointers[digest] = size if isinstance(size, int) else None
    return ForeignProof(hash_of("job_id", found.job_id), hash_of("runner.program", found.runner.program), pointers)


def signed(result: Result, envelope: bytes) -> Signed:
    """What the worker signed: the proof; only the job's content id, which does not cover the outcome; or nothing, so
    that anyone could have written the worker's name. Raises Malformed if the signature is not the worker's.
    """
    if result.signature is None:
        return "nothing"
    digest = content_hash(envelope)
    messages: dict[bytes, Signed] = {
        envelope: "proof",
        digest: "proof",
        b"hocket proof 1\0" + result.job + digest: "proof",
        result.job: "job",
        hash_text(result.job).encode(): "job",
    }
    for signed_bytes, what in messages.items():
        if verify(result.worker, result.signature, signed_bytes):
            return what
    raise BadTrailer(f"its Attest-Sig is not by {key_text(result.worker)} over the proof in any known way")
