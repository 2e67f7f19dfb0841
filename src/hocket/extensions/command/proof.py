"""Proof of execution: which command ran, on which runner, how it ended, what it used and produced, signed by the worker
that ran it. The envelope is canonical JSON in GATOS' schema; data without a field there is in one object of kind `run`
among the outputs. A proof has one spelling, and checking it needs nothing else.

The worker also signs the proof in in-toto's format: a Statement with a SLSA provenance, in a DSSE envelope. Everything
in it comes from the execution, so it can be derived again from the proof alone; only its signature must be kept.
"""

import re
from base64 import b64decode, b64encode
from typing import Annotated, Any

import msgspec

from hocket.extensions.command.execution import (
    Charged,
    Cost,
    Count,
    Execution,
    Output,
    Resources,
    RunnerProgram,
    Stream,
)
from hocket.kernel.clock import Hlc, hlc_text, parse_hlc
from hocket.kernel.decoding import convert, json_decoder
from hocket.kernel.ids import content_hash, hash_text, parse_ulid, ulid_text
from hocket.kernel.jws import canonical_json, canonical_plain
from hocket.kernel.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    SigningKey,
    did_key,
    key_text,
    parse_did_key,
    parse_key,
    verify,
)

PROOF_TYPE = "hocket.proof"
PROOF_BYTES_MAX = 4 * 1024 * 1024
_FORMAT = "hocket proof 1"
_DOMAIN = b"hocket proof 1\0"
_MOMENT_CHARS = len("2025-11-15T08:09:53.123Z")
_HASH = re.compile("blake3:([0-9a-f]{64})")
_SHA256 = re.compile("[0-9a-f]{64}")
Words = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
# A name and not an address: decision 0025 defines what a build of this type is.
BUILD_TYPE = "urn:hocket:command:1"


class BadProof(ValueError):
    """Not a proof, or not a proof of what was expected."""


class Proof(msgspec.Struct, frozen=True):
    """`signature` is over the content id and the envelope, `statement_signature` over the same in in-toto's format."""

    envelope: bytes
    worker: bytes
    signature: bytes
    statement_signature: bytes


# The structs below are the JSON of an envelope; a missing or unknown field, or one of another type, is refused.


class _Runner(msgspec.Struct, forbid_unknown_fields=True):
    program: str
    version: Words
    platform: Words


class _Stream(msgspec.Struct, forbid_unknown_fields=True):
    hash: str
    size: Count
    written: Count


class _Charge(msgspec.Struct, forbid_unknown_fields=True):
    cost: Cost
    currency: Words
    rates: str
    over: Annotated[str, msgspec.Meta(max_length=256)]


class _Pointer(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="blobptr"):
    algo: str
    hash: str
    size: Count
    path: Annotated[str, msgspec.Meta(min_length=1)]


class _Run(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="run"):
    argv: Annotated[list[str], msgspec.Meta(min_length=1)]
    exit_code: Count | None
    signal: Count | None
    timed_out: bool
    fence: Count
    job: str
    inputs: list[str]
    resources: Resources
    stdout: _Stream | None
    stderr: _Stream | None
    charge: _Charge | None = None
    sha256: dict[str, str] = {}


class _Envelope(msgspec.Struct, forbid_unknown_fields=True):
    job_id: str
    runner: _Runner
    outputs: list[_Pointer | _Run]
    started_at: str
    finished_at: str


class _File(msgspec.Struct, forbid_unknown_fields=True):
    envelope: msgspec.Raw
    format: str
    signature: str
    statement_signature: str
    worker: str


class _Signed(msgspec.Struct):
    keyid: str
    sig: str


class _Enclosed(msgspec.Struct):
    payloadType: str
    payload: str
    signatures: Annotated[list[_Signed], msgspec.Meta(min_length=1, max_length=1)]


def envelope(execution: Execution) -> bytes:
    """The envelope's bytes; BadProof if reading them would not give the same execution."""
    made = _written(execution)
    if _read(made) != execution:
        raise BadProof("this execution cannot be encoded and read back")
    return made


def read_envelope(raw: bytes) -> Execution:
    """Parses an envelope. Does not check who signed it."""
    execution = _read(raw)
    # A repeated key or a second spelling could be read differently by two readers, so there is only one spelling.
    if _written(execution) != raw:
        raise BadProof("the envelope is not canonical JSON")
    return execution


def _read(raw: bytes) -> Execution:
    if len(raw) > PROOF_BYTES_MAX:
        raise BadProof(f"the envelope has {len(raw)} bytes; at most {PROOF_BYTES_MAX}")
    try:
        found = _envelopes.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadProof(f"not a proof envelope: {error}") from None
    if not found.outputs or not isinstance(run := found.outputs[-1], _Run):
        raise BadProof("the last of the envelope's outputs is not the run")
    execution = Execution(
        content_id=_hash("job_id", found.job_id),
        argv=tuple(run.argv),
        exit_code=run.exit_code,
        signal=run.signal,
        timed_out=run.timed_out,
        started_at_ms=_moment("started_at", found.started_at),
        finished_at_ms=_moment("finished_at", found.finished_at),
        inputs=tuple(_hash("inputs", each) for each in run.inputs),
        outputs=tuple(_output(each, run.sha256) for each in found.outputs[:-1]),
        resources=run.resources,
        fence=run.fence,
        job=run.job,
        runner=RunnerProgram(
            _hash("runner.program", found.runner.program), found.runner.version, found.runner.platform
        ),
        stdout=_stream("stdout", run.stdout),
        stderr=_stream("stderr", run.stderr),
        charge=None if run.charge is None else _charged(run.charge),
    )
    _check_sense(execution)
    return execution


def prove(execution: Execution, key: SigningKey) -> Proof:
    made = envelope(execution)
    digest = content_hash(made)
    said = statement(execution, digest, key.public)
    return Proof(made, key.public, key.sign(_signed(execution.content_id, digest)), key.sign(signing_bytes(said)))


def check(proof: Proof, content_id: bytes | None = None, worker: bytes | None = None) -> Execution:
    """What is proven, or BadProof. Checks the command and the worker against those given."""
    if worker is not None and proof.worker != worker:
        raise BadProof(f"the proof is by {key_text(proof.worker)}, not by {key_text(worker)}")
    execution = read_envelope(proof.envelope)
    if content_id is not None and execution.content_id != content_id:
        raise BadProof(f"the proof is of {hash_text(execution.content_id)}, not of {hash_text(content_id)}")
    digest = content_hash(proof.envelope)
    if not verify(proof.worker, proof.signature, _signed(execution.content_id, digest)):
        raise BadProof(f"the envelope is not signed by {key_text(proof.worker)}")
    said = statement(execution, digest, proof.worker)
    if not verify(proof.worker, proof.statement_signature, signing_bytes(said)):
        raise BadProof(f"the in-toto statement is not signed by {key_text(proof.worker)}")
    return execution


def digest(proof: Proof) -> bytes:
    """The name of a proof: the hash of its envelope."""
    return content_hash(proof.envelope)


def dsse(proof: Proof) -> dict[str, Any]:
    """The proof as an in-toto Statement in a DSSE envelope. Needs no key: the statement is already signed."""
    said = statement(read_envelope(proof.envelope), digest(proof), proof.worker)
    return enclose(said, proof.worker, proof.statement_signature)


_enclosed = json_decoder(_Enclosed)


_envelopes = json_decoder(_Envelope)


_files = json_decoder(_File)


class Attestation(msgspec.Struct, frozen=True):
    """What an exported in-toto statement says, and the key that has signed it."""

    worker: bytes
    content_id: bytes
    argv: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    timed_out: bool


def is_dsse(raw: bytes) -> bool:
    return raw.lstrip()[:1] == b"{" and b'"payloadType"' in raw


def check_dsse(raw: bytes, content_id: bytes | None = None, worker: bytes | None = None) -> Attestation:
    """What an exported statement proves, or BadProof. Checks the command and the worker against those given."""
    if len(raw) > PROOF_BYTES_MAX:
        raise BadProof(f"not a proof: longer than {PROOF_BYTES_MAX} bytes")
    try:
        found = _enclosed.decode(raw)
        (signed,) = found.signatures
        key, payload = parse_did_key(signed.keyid), b64decode(found.payload, validate=True)
        signature = b64decode(signed.sig, validate=True)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadProof(f"not an in-toto statement that Hocket has exported: {error}") from None
    if worker is not None and key != worker:
        raise BadProof(f"the statement is by {key_text(key)}, not by {key_text(worker)}")
    if found.payloadType != PAYLOAD_TYPE or not verify(key, signature, signing_bytes(payload)):
        raise BadProof(f"the in-toto statement is not signed by {key_text(key)}")
    try:
        said = msgspec.json.decode(payload)
        job, *_ = said["subject"]
        proven = bytes.fromhex(job["digest"]["blake3"])
        proof = said["predicate"]["runDetails"]["byproducts"][0]["annotations"]
        argv = said["predicate"]["buildDefinition"]["externalParameters"]["argv"]
        told = convert({"worker": b"", "content_id": b"", "argv": argv, **proof}, Attestation)
        is_ours = said["predicateType"] == PREDICATE_TYPE and job["name"] == "job" and len(proven) == len(key)
    except (KeyError, IndexError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise BadProof(f"the statement is not one of a Hocket proof: {error}") from None
    if not is_ours:
        raise BadProof("the statement is not one of a Hocket proof")
    if content_id is not None and proven != content_id:
        raise BadProof(f"the proof is of {hash_text(proven)}, not of {hash_text(content_id)}")
    return msgspec.structs.replace(told, worker=key, content_id=proven)


def encode_proof(proof: Proof) -> bytes:
    """A proof as a file: one line of canonical JSON."""
    return b'{"envelope":%b,"format":"%b","signature":"%b","statement_signature":"%b","worker":"%b"}' % (
        proof.envelope,
        _FORMAT.encode(),
        key_text(proof.signature).encode(),
        key_text(proof.statement_signature).encode(),
        key_text(proof.worker).encode(),
    )


def decode_proof(raw: bytes) -> Proof:
    """The proof in a file. Checks only its form; `check` verifies it."""
    if len(raw) > PROOF_BYTES_MAX:
        raise BadProof(f"not a proof: longer than {PROOF_BYTES_MAX} bytes")
    try:
        found = _files.decode(raw)
        if found.format != _FORMAT:
            raise BadProof(f"unknown proof format {found.format!r}; known is {_FORMAT!r}")
        proof = Proof(
            bytes(found.envelope),
            parse_key(found.worker, KEY_BYTES),
            parse_key(found.signature, SIGNATURE_BYTES),
            parse_key(found.statement_signature, SIGNATURE_BYTES),
        )
    except BadProof:
        raise
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise BadProof(f"not a proof: {error}") from None
    if encode_proof(proof) != raw:
        raise BadProof("not a proof: it is not in canonical form")
    return proof


def _signed(content_id: bytes, digest: bytes) -> bytes:
    return _DOMAIN + content_id + digest


def _written(execution: Execution) -> bytes:
    """The one spelling of an execution."""
    try:
        return canonical_plain(_as_json(execution))
    except (ValueError, TypeError, AttributeError) as error:
        raise BadProof(f"an execution that has no canonical JSON: {error}") from None


def _as_json(execution: Execution) -> dict[str, Any]:
    used = {name: getattr(execution.resources, name) for name in execution.resources.__struct_fields__}
    outputs: list[dict[str, Any]] = [
        {"kind": "blobptr", "algo": "blake3", "hash": hash_text(each.hash), "size": each.size, "path": each.path}
        for each in execution.outputs
    ]
    run = {
        "kind": "run",
        "argv": list(execution.argv),
        "exit_code": execution.exit_code,
        "signal": execution.signal,
        "timed_out": execution.timed_out,
        "fence": execution.fence,
        "job": execution.job,
        "inputs": [hash_text(each) for each in execution.inputs],
        # Only this part has floats, which have a spelling of their own, and names that need not be ASCII.
        "resources": msgspec.Raw(canonical_json(used)),
        "stdout": _stream_json(execution.stdout),
        "stderr": _stream_json(execution.stderr),
    }
    if others := {each.path: each.sha256.hex() for each in execution.outputs if each.sha256 is not None}:
        run["sha256"] = msgspec.Raw(canonical_json(others))
    if (charge := execution.charge) is not None:
        priced = {
            "cost": charge.cost,
            "currency": charge.currency,
            "rates": hash_text(charge.rates),
            "over": charge.over,
        }
        run["charge"] = msgspec.Raw(canonical_json(priced))
    runner = execution.runner
    return {
        "job_id": hash_text(execution.content_id),
        "runner": {"program": hash_text(runner.program), "version": runner.version, "platform": runner.platform},
        "outputs": [*outputs, run],
        "started_at": moment_text(execution.started_at_ms),
        "finished_at": moment_text(execution.finished_at_ms),
    }


def _check_sense(execution: Execution) -> None:
    """Checks what the types alone do not express."""
    if execution.finished_at_ms < execution.started_at_ms:
        raise BadProof("the command ended before it began")
    if execution.exit_code is not None and execution.signal is not None:
        raise BadProof("the command ended with an exit code and by a signal")
    try:
        if ulid_text(parse_ulid(execution.job)) != execution.job:
            raise BadProof(f"the job {execution.job!r} is not a canonical ULID")
    except ValueError as error:
        raise BadProof(f"the job: {error}") from None
    paths = [each.path for each in execution.outputs]
    if len(set(paths)) < len(paths):
        raise BadProof("two outputs have the same path")
    for path in paths:
        if path.startswith("/") or any(step in ("", ".", "..") for step in path.split("/")):
            raise BadProof(f"the output {path!r} is not inside the job's directory")


def _hash(field: str, text: str) -> bytes:
    if (found := _HASH.fullmatch(text)) is None:
        raise BadProof(f"{field}: {text[:80]!r} is not a BLAKE3 hash")
    return bytes.fromhex(found[1])


def _moment(field: str, text: str) -> int:
    try:
        if len(text) != _MOMENT_CHARS:
            raise ValueError
        return parse_hlc(f"{text}+0", 0).wall
    except ValueError:
        raise BadProof(f"{field}: {text[:80]!r} is not a UTC time with milliseconds") from None


def _output(found: _Pointer | _Run, others: dict[str, str]) -> Output:
    if not isinstance(found, _Pointer) or found.algo != "blake3":
        raise BadProof("an output is not a pointer with a BLAKE3 hash")
    other = others.get(found.path)
    if other is not None and _SHA256.fullmatch(other) is None:
        raise BadProof(f"sha256: {other[:80]!r} is not a SHA-256 hash")
    return Output(found.path, _hash("outputs", found.hash), found.size, None if other is None else bytes.fromhex(other))


def _stream(field: str, found: _Stream | None) -> Stream | None:
    return None if found is None else Stream(_hash(field, found.hash), found.size, found.written)


def _charged(found: _Charge) -> Charged:
    return Charged(found.cost, found.currency, _hash("charge.rates", found.rates), found.over)


def _stream_json(stream: Stream | None) -> dict[str, Any] | None:
    return None if stream is None else {"hash": hash_text(stream.hash), "size": stream.size, "written": stream.written}


def statement(execution: Execution, envelope_digest: bytes, worker: bytes) -> bytes:
    """The statement's bytes. Its subjects are the job, by its content id, and then the outputs by their paths."""
    subjects = [_resource("job", execution.content_id)]
    # `job` names the job, so a file of the same name gets another path to it.
    subjects += [
        _resource("./job" if each.path == "job" else each.path, each.hash, each.sha256) for each in execution.outputs
    ]
    streams = (("stdout", execution.stdout), ("stderr", execution.stderr))
    ended = {"exit_code": execution.exit_code, "signal": execution.signal, "timed_out": execution.timed_out}
    return canonical_plain(
        {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "content_id": hash_text(execution.content_id),
                        "argv": list(execution.argv),
                    },
                    "internalParameters": {"job": execution.job, "fence": execution.fence},
                    "resolvedDependencies": [{"digest": {"blake3": each.hex()}} for each in execution.inputs],
                },
                "runDetails": {
                    "builder": {"id": did_key(worker), "version": {"hocket": execution.runner.version}},
                    "metadata": {
                        "invocationId": f"{execution.job}/{execution.fence}",
                        "startedOn": moment_text(execution.started_at_ms),
                        "finishedOn": moment_text(execution.finished_at_ms),
                    },
                    "byproducts": [
                        _resource("proof", envelope_digest) | {"annotations": ended},
                        *(_resource(name, stream.hash) for name, stream in streams if stream is not None),
                    ],
                },
            },
        }
    )


def _resource(name: str, digest: bytes, sha256: bytes | None = None) -> dict[str, Any]:
    others = {} if sha256 is None else {"sha256": sha256.hex()}
    return {"name": name, "digest": {"blake3": digest.hex()} | others}


def moment_text(ms: int) -> str:
    """A time with its milliseconds, in UTC."""
    return hlc_text(Hlc(ms, 0, 0)).removesuffix("+0")


def signing_bytes(payload: bytes) -> bytes:
    """What a DSSE signature covers: the payload's type and the payload, each after its length."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def enclose(payload: bytes, worker: bytes, signature: bytes) -> dict[str, Any]:
    """The DSSE envelope around a statement that the worker has signed."""
    return {
        "payloadType": PAYLOAD_TYPE,
        "payload": b64encode(payload).decode(),
        "signatures": [{"keyid": did_key(worker), "sig": b64encode(signature).decode()}],
    }
