"""Results that other programs wrote, as far as GATOS specifies them: three trailers, and somewhere in the tree the
envelope of a proof that follows GATOS' schema. GATOS does not specify which bytes a signature covers; the known ways
are tried in turn.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from hocket.extensions.command.proof import PROOF_BYTES_MAX, BadProof, read_envelope
from hocket.extensions.git.results import Result
from hocket.extensions.git.trailers import BadTrailer, hash_of
from hocket.kernel.decoding import json_decoder
from hocket.kernel.ids import content_hash, hash_text
from hocket.kernel.keys import key_text, verify

Signed = Literal["proof", "job", "nothing"]


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
    for message, what in messages.items():
        if verify(result.worker, result.signature, message):
            return what
    raise BadTrailer(f"its Attest-Sig is not by {key_text(result.worker)} over the proof in any known way")
