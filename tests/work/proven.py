"""Command jobs as they lie on the log when they have ended, made without running anything, so that each part of them
can be made wrong.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

from msgspec.structs import replace

from hocket.extensions.command.execution import Execution, Output, Resources, RunnerProgram, Stream
from hocket.extensions.command.manifest import canonical, content_id, parse_manifest
from hocket.extensions.command.proof import PROOF_TYPE, Proof, encode_proof, prove
from hocket.extensions.command.proofs import OUTPUT_TYPE, STREAM_TYPES
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import NOTHING, Draft, Held
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.policy import DEFAULT, Policy
from hocket.node.local_node import run_services
from hocket.node.runtime import Runtime
from hocket.work.run_outputs import RunOutputs

KIND = "hocket.run"
MANIFEST: dict[str, Any] = {"command": ["sh", "-c"], "args": ["make dist"], "timeout": 60, "env": {"CI": "1"}}
FILES = {"dist/small.txt": b"small", "dist/large.bin": b"x" * 100_000}

Change = Callable[[Execution], Execution]


def asked(
    runtime: Runtime, manifest: dict[str, Any] = MANIFEST, policy: Policy = DEFAULT, payload: bytes | None = None
) -> bytes:
    """A command job that waits; gives its id."""
    draft = Draft(KIND, canonical(parse_manifest(manifest)) if payload is None else payload, policy)
    return runtime.log.run(lambda tx: jobs.submit(tx, [draft]))[0].job_id


def ran(
    runtime: Runtime,
    manifest: dict[str, Any] = MANIFEST,
    *,
    change: Change = lambda execution: execution,
    exit_code: int = 0,
    key: SigningKey | None = None,
    proof: Callable[[Proof], bytes] = encode_proof,
    retry: bool = False,
) -> Job:
    """Claims the job that waits, or a new one, and ends it. `change` makes the proof say something else, `key` signs
    it instead of the node's, and `proof` spells it."""
    taken = runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    if not taken:
        asked(runtime, manifest, Policy(retries=3))
        taken = runtime.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    job = taken[0].job
    products = RunOutputs(run_services(runtime, KIND, monotonic), job)
    files = {path: products.evidence(data, OUTPUT_TYPE) for path, data in FILES.items()}
    streams = {name: products.evidence(name.encode(), type) for name, type in STREAM_TYPES.items()}
    parsed = parse_manifest(manifest)
    execution = Execution(
        content_id=content_id(parsed),
        argv=parsed.argv,
        exit_code=exit_code,
        signal=None,
        timed_out=False,
        started_at_ms=1_763_194_193_123,
        finished_at_ms=1_763_194_194_007,
        inputs=tuple(each.hash for each in parsed.inputs or ()),
        outputs=tuple(Output(path, kept.hash, kept.size) for path, kept in files.items()),
        resources=Resources(wall_s=0.884, cpu_s=0.25, memory_peak_bytes=1 << 20),
        fence=job.fence,
        job=ulid_text(job.id),
        runner=RunnerProgram(bytes(32), "0.1.0", "linux/aarch64"),
        **{name: Stream(kept.hash, kept.size, kept.size) for name, kept in streams.items()},
    )
    made = prove(change(execution), key or runtime.home.node_key())
    products.evidence(proof(made), PROOF_TYPE)

    def end(tx: Any) -> Any:
        written = products.write(tx, whole=exit_code == 0)
        assert not isinstance(written, Reason)
        held = Held(job.id, job.claim_op)
        if exit_code == 0:
            return jobs.complete(tx, held, b"{}", 1, written)
        assert written is not NOTHING
        return jobs.fail(tx, held, f"sh ended with exit code {exit_code}", "", retry=retry)

    ended = runtime.log.run(end)
    assert isinstance(ended, Job)
    return ended


def saying(**fields: Any) -> Change:
    return lambda execution: replace(execution, **fields)
