"""A proof of execution in in-toto's format: a Statement with a SLSA provenance, in a DSSE envelope. Everything in it
comes from the execution, so it can be derived again from the proof alone; only its signature must be kept.
"""

from base64 import b64encode
from typing import Any

from hocket.extensions.command.execution import Execution
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import hash_text
from hocket.kernel.jws import canonical_plain
from hocket.kernel.keys import did_key

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
# A name and not an address: decision 0025 defines what a build of this type is.
BUILD_TYPE = "urn:hocket:command:1"


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
