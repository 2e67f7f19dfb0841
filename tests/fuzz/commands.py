"""The targets about commands: manifests, which people write, and proofs, which only workers sign."""

import json
from random import Random
from typing import Any

import yaml

from hocket.extensions.command.execution import Execution, Output, Resources, RunnerProgram, Stream
from hocket.extensions.command.manifest import (
    BadManifest,
    Manifest,
    canonical,
    content_id,
    manifest_json,
    parse_manifest,
    read_manifest,
)
from hocket.extensions.command.proof import BadProof, check, decode_proof, encode_proof, envelope, prove, read_envelope
from hocket.kernel.jws import canonical_json
from hocket.kernel.keys import SigningKey
from tests.fuzz import mutate
from tests.fuzz.mutate import JSON_WORDS, Damage, JsonDamage, by_punctuation, repeated
from tests.fuzz.target import Target

# Manifests. PyYAML's own constructor, which reads YAML 1.1, is the second opinion.

_HASH = "ab" * 32
_WRITTEN: list[dict[str, Any]] = [
    {
        "command": ["/usr/bin/env", "bash", "-lc"],
        "args": ["echo", "hello"],
        "timeout": 30,
        "env": {"GREETING": "hello"},
    },
    {
        "command": ["make"],
        "timeout": "P1DT2H",
        "cwd": "a/b",
        "inputs": [
            {"kind": "blobptr", "algo": "blake3", "hash": _HASH, "size": 123},
            {"kind": "blobptr", "algo": "blake3", "hash": f"blake3:{_HASH}"},
        ],
        "env": {"HOCKET_INPUTS": "data/x:y", "HOCKET_OUTPUTS": "dist/**:*.log", "HOCKET_SANDBOX": "network", "B": ""},
        "policy_root": f"sha256:{_HASH}",
        "ulid": "01J9ZC0000000000000000000A",
    },
]
MANIFESTS = [
    by_punctuation(text)
    for value in _WRITTEN
    for text in (
        json.dumps(value).encode(),
        yaml.safe_dump(value, sort_keys=False).encode(),
        yaml.safe_dump(value, default_flow_style=True).encode(),
    )
] + [
    by_punctuation(
        b'# A remark.\ncommand: [sh, -c, "a\\tb"]\nargs:\n- |\n  one\n  two\n- >-\n  three\n\n  four\ntimeout: PT1M\n'
    )
]
_YAML_WORDS = (
    *(b"&a ", b"*a", b"!!str ", b"! ", b"---\n", b"...\n", b"%YAML 1.1\n", b"? ", b"- ", b": ", b"|\n", b">-\n", b"<<"),
    *(
        b"yes",
        b"010",
        b"1:30",
        b"1_0",
        b"0x1f",
        b"~",
        b"\t",
        b"\r\n",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"'",
        b"  ",
        b"#",
        b"../",
        b"/",
    ),
)


def _hold_manifest(data: bytes, manifest: Manifest) -> bool:
    try:
        says = json.loads(data)
    except ValueError:
        says = yaml.load(data, Loader=yaml.CSafeLoader)
    assert parse_manifest(says) == manifest, "another reader sees another manifest"
    plain = manifest_json(manifest)
    plain.pop("ulid", None)
    assert canonical_json(plain) == canonical(manifest)
    again = read_manifest(canonical(manifest))
    assert content_id(again) == content_id(manifest) and again.argv == manifest.argv
    assert len(manifest.input_paths) == len(manifest.inputs or ())
    assert all(map(_is_inside, (*manifest.input_paths, manifest.cwd or ".")))
    return True


def _is_inside(path: str) -> bool:
    return path != "" and not path.startswith("/") and ".." not in path.split("/")


def _manifests(rng: Random) -> mutate.Stream:
    text = Damage(rng, MANIFESTS, JSON_WORDS + _YAML_WORDS)
    values = JsonDamage(
        rng, _WRITTEN, lambda value: json.dumps(value).encode(), ("command", "env", "cwd", "timeout", "x")
    )
    return lambda: text() if rng.random() < 0.7 else values()


# Proofs. The worker has signed only what is listed here.

WORKER, OUTSIDER = SigningKey(b"\5" * 32), SigningKey(b"\6" * 32)
EXECUTIONS = [
    Execution(
        content_id=bytes(range(32)),
        argv=("sh", "-c", "echo é"),
        exit_code=0,
        signal=None,
        timed_out=False,
        started_at_ms=1_763_194_193_123,
        finished_at_ms=1_763_194_194_007,
        inputs=(b"i" * 32,),
        outputs=(Output("dist/a.txt", b"a" * 32, 17), Output("job", b"b" * 32, 0)),
        resources=Resources(0.884, 0.25, 1 << 20, 1e-7, 4096, 512, 7, {"A100": 1.0}),
        fence=3,
        job="01J9ZC0000000000000000000A",
        runner=RunnerProgram(b"r" * 32, "0.1.0", "linux/aarch64"),
        stdout=Stream(b"s" * 32, 6, 6),
    ),
    Execution(
        content_id=bytes(32),
        argv=("x",),
        exit_code=None,
        signal=9,
        timed_out=True,
        started_at_ms=0,
        finished_at_ms=0,
        inputs=(),
        outputs=(),
        resources=Resources(),
        fence=0,
        job="0" * 26,
        runner=RunnerProgram(bytes(32), "1", "x"),
    ),
]
_PROOFS = [prove(each, WORKER) for each in EXECUTIONS]
PROOFS = [by_punctuation(encode_proof(proof)) for proof in _PROOFS]
_SIGNED = frozenset(each.data for each in PROOFS)
ENVELOPES = [by_punctuation(proof.envelope) for proof in _PROOFS]
_WORDS = ("job_id", "runner", "outputs", "kind", "path", "size", "argv", "signal", "stdout", "gpu_s", "x")


def _proof(data: bytes) -> Execution:
    return check(decode_proof(data), worker=WORKER.public)


def _hold_proof(data: bytes, execution: Execution) -> bool:
    assert data in _SIGNED and execution in EXECUTIONS, "proven, and never signed"
    return True


def _proofs(rng: Random) -> mutate.Stream:
    text = Damage(rng, PROOFS, JSON_WORDS + repeated([(each.data, b"") for each in PROOFS]))
    edits = _envelopes(rng)

    def resealed() -> bytes:
        """Another envelope, with the worker's signatures or an outsider's."""
        proof = rng.choice(_PROOFS)
        if rng.random() < 0.2:
            proof = prove(rng.choice(EXECUTIONS), OUTSIDER)
        other = rng.choice(_PROOFS)
        swapped = {name: getattr(rng.choice((proof, other)), name) for name in ("signature", "statement_signature")}
        return encode_proof(type(proof)(edits() if rng.random() < 0.5 else other.envelope, WORKER.public, **swapped))

    return lambda: text() if rng.random() < 0.6 else resealed()


def _hold_envelope(data: bytes, execution: Execution) -> bool:
    assert envelope(execution) == data, "not the only spelling"
    says = json.loads(data)
    assert says["outputs"][-1]["kind"] == "run" and len(says["outputs"]) == len(execution.outputs) + 1
    assert all(_is_inside(each.path) for each in execution.outputs)
    assert execution.finished_at_ms >= execution.started_at_ms
    assert check(prove(execution, OUTSIDER)) == execution
    return True


def _envelopes(rng: Random) -> mutate.Stream:
    text = Damage(rng, ENVELOPES, JSON_WORDS + repeated([(each.data, b"") for each in ENVELOPES]))
    values = JsonDamage(rng, [json.loads(each.data) for each in ENVELOPES], _spelled, _WORDS)
    return lambda: text() if rng.random() < 0.6 else values()


def _spelled(value: Any) -> bytes:
    try:
        return canonical_json(value)
    except ValueError:
        return json.dumps(value).encode()


TARGETS = (
    Target("manifest", read_manifest, (BadManifest,), _hold_manifest, MANIFESTS, _manifests),
    Target("proof", _proof, (BadProof,), _hold_proof, PROOFS, _proofs),
    Target("envelope", read_envelope, (BadProof,), _hold_envelope, ENVELOPES, _envelopes),
)
