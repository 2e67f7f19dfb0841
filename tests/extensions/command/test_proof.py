"""Proofs of execution: what is proven can be read, nothing of it can be changed, and others can verify it, too."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import rfc8785
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement
from msgspec.structs import replace
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

from hocket.extensions.command.execution import AMOUNT_MAX, Execution, Output, Resources, RunnerProgram, Stream
from hocket.extensions.command.proof import (
    BUILD_TYPE,
    PROOF_BYTES_MAX,
    BadProof,
    Proof,
    check,
    decode_proof,
    digest,
    dsse,
    encode_proof,
    prove,
    read_envelope,
)
from hocket.kernel.ids import content_hash, hash_text, ulid_text
from hocket.kernel.jws import canonical_json, canonical_plain
from hocket.kernel.keys import SigningKey, did_key, key_text, verify

pytestmark = pytest.mark.touches("GT-10")

KEY = SigningKey(b"w" * 32)
OTHER = SigningKey(b"o" * 32)
EXECUTION = Execution(
    content_id=bytes(range(32)),
    argv=("/usr/bin/env", "bash", "-lc", "echo", "hello"),
    exit_code=0,
    signal=None,
    timed_out=False,
    started_at_ms=1_763_194_193_123,
    finished_at_ms=1_763_194_194_007,
    inputs=(b"i" * 32,),
    outputs=(Output("dist/a.txt", b"a" * 32, 17), Output("job", b"b" * 32, 0)),
    resources=Resources(0.884, 0.25, 1 << 20, 1e-7, 4096, 512, None, {"A100": 1.0}),
    fence=3,
    job="01J9ZC0000000000000000000A",
    runner=RunnerProgram(b"r" * 32, "0.1.0", "linux/aarch64"),
    stdout=Stream(b"s" * 32, 6, 6),
    stderr=Stream(b"e" * 32, 0, 0),
)
PROOF = prove(EXECUTION, KEY)

HASHES = st.binary(min_size=32, max_size=32)
COUNTS = st.integers(0, 2**53 - 1)
AMOUNTS = st.floats(0, AMOUNT_MAX) | st.integers(0, 1000).map(float)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
STEPS = TEXTS.filter(lambda step: step not in ("", ".", "..") and "/" not in step)
PATHS = st.lists(STEPS, min_size=1, max_size=3).map("/".join)
STREAMS = st.none() | st.builds(Stream, HASHES, COUNTS, COUNTS)
EXECUTIONS = st.builds(
    Execution,
    content_id=HASHES,
    argv=st.lists(TEXTS, min_size=1, max_size=4).map(tuple),
    exit_code=st.integers(0, 255),
    signal=st.none(),
    timed_out=st.booleans(),
    started_at_ms=st.integers(0, 10**12),
    finished_at_ms=st.integers(10**12, 253_402_300_799_999),
    inputs=st.lists(HASHES, max_size=3).map(tuple),
    outputs=st.lists(st.builds(Output, PATHS, HASHES, COUNTS), max_size=3, unique_by=lambda each: each.path).map(tuple),
    resources=st.builds(
        Resources,
        AMOUNTS,
        AMOUNTS,
        COUNTS,
        AMOUNTS,
        COUNTS,
        COUNTS,
        st.none() | COUNTS,
        st.dictionaries(TEXTS, AMOUNTS),
    ),
    fence=COUNTS,
    job=st.binary(min_size=16, max_size=16).map(lambda b: ulid_text(bytes([b[0] & 0x7F]) + b[1:])),
    runner=st.builds(RunnerProgram, HASHES, TEXTS.filter(bool), TEXTS.filter(bool)),
    stdout=STREAMS,
    stderr=STREAMS,
)


def fits_the_schema(value: Any) -> bool:
    """The rules of GATOS' envelope schema: which fields there are, which must be, and how digests and times look."""
    digest = re.compile("blake3:[0-9a-f]{64}")
    moment = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
    runner = value["runner"]
    return (
        {"job_id", "runner", "outputs"} <= value.keys()
        and value.keys() <= {"job_id", "runner", "outputs", "started_at", "finished_at"}
        and digest.fullmatch(value["job_id"]) is not None
        and runner.keys() == {"program", "version", "platform"}
        and digest.fullmatch(runner["program"]) is not None
        and all(isinstance(runner[name], str) for name in ("version", "platform"))
        and isinstance(value["outputs"], list)
        and all(isinstance(each, dict) for each in value["outputs"])
        and all(moment.fullmatch(value[name]) for name in ("started_at", "finished_at"))
    )


# What is proven is read.


@pytest.mark.req("GT-10")
@given(EXECUTIONS, HASHES)
def test_what_is_proven_comes_back(execution: Execution, seed: bytes) -> None:
    key = SigningKey(seed)
    proof = prove(execution, key)
    assert check(proof, execution.content_id, key.public) == execution
    assert decode_proof(encode_proof(proof)) == proof
    assert fits_the_schema(json.loads(proof.envelope))
    assert digest(proof) == content_hash(proof.envelope)
    # A second writer of canonical JSON spells the envelope, the file and the statement in the same way.
    for data in (proof.envelope, encode_proof(proof), base64.b64decode(dsse(proof)["payload"])):
        assert rfc8785.dumps(json.loads(data, parse_int=number)) == data


def number(digits: str) -> int | float:
    # Great floats are spelled without a point, so only the size tells them from integers.
    return int(digits) if abs(int(digits)) < 2**53 else float(digits)


@pytest.mark.req("GT-10")
def test_an_envelope_by_its_json() -> None:
    assert json.loads(PROOF.envelope) == {
        "job_id": hash_text(bytes(range(32))),
        "runner": {"program": hash_text(b"r" * 32), "version": "0.1.0", "platform": "linux/aarch64"},
        "started_at": "2025-11-15T08:09:53.123Z",
        "finished_at": "2025-11-15T08:09:54.007Z",
        "outputs": [
            {"kind": "blobptr", "algo": "blake3", "hash": hash_text(b"a" * 32), "size": 17, "path": "dist/a.txt"},
            {"kind": "blobptr", "algo": "blake3", "hash": hash_text(b"b" * 32), "size": 0, "path": "job"},
            {
                "kind": "run",
                "argv": ["/usr/bin/env", "bash", "-lc", "echo", "hello"],
                "exit_code": 0,
                "signal": None,
                "timed_out": False,
                "fence": 3,
                "job": "01J9ZC0000000000000000000A",
                "inputs": [hash_text(b"i" * 32)],
                "resources": {
                    "wall_s": 0.884,
                    "cpu_s": 0.25,
                    "memory_peak_bytes": 1 << 20,
                    "memory_gb_s": 1e-7,
                    "disk_read_bytes": 4096,
                    "disk_written_bytes": 512,
                    "network_bytes": None,
                    "gpu_s": {"A100": 1},
                },
                "stdout": {"hash": hash_text(b"s" * 32), "size": 6, "written": 6},
                "stderr": {"hash": hash_text(b"e" * 32), "size": 0, "written": 0},
            },
        ],
    }
    assert list(json.loads(encode_proof(PROOF))) == ["envelope", "format", "signature", "statement_signature", "worker"]


@pytest.mark.req("GT-10")
def test_the_signature_is_over_the_content_id_and_the_envelope() -> None:
    message = b"hocket proof 1\0" + EXECUTION.content_id + content_hash(PROOF.envelope)
    assert verify(KEY.public, PROOF.signature, message)


@pytest.mark.parametrize(
    ("exit_code", "signal", "timed_out"), [(0, None, False), (3, None, False), (None, 9, True), (None, None, False)]
)
def test_every_way_to_end_can_be_proven(exit_code: int | None, signal: int | None, timed_out: bool) -> None:
    ended = replace(EXECUTION, exit_code=exit_code, signal=signal, timed_out=timed_out, outputs=(), stdout=None)
    assert check(prove(ended, KEY)) == ended


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-(2**53) + 1, 2**53 - 1))
def test_the_quick_canonical_form_is_the_canonical_form(text: str, whole: int) -> None:
    value = {"b": [text, None, True], "a": {"z": whole, "A": text}}
    assert canonical_plain(value) == canonical_json(value)


# Nothing of it can be changed.


@pytest.mark.req("GT-10")
@given(st.data())
def test_a_changed_byte_of_the_file_is_found(data: st.DataObject) -> None:
    raw = bytearray(encode_proof(PROOF))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadProof):
        check(decode_proof(bytes(raw)))


@pytest.mark.req("GT-10")
@given(st.data())
def test_a_changed_byte_of_any_part_is_found(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(("envelope", "worker", "signature", "statement_signature")))
    raw = bytearray(getattr(PROOF, name))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadProof):
        check(replace(PROOF, **{name: bytes(raw)}))


@pytest.mark.req("GT-10")
@given(st.data())
def test_another_content_id_or_worker_is_found(data: st.DataObject) -> None:
    for name, right in (("content_id", EXECUTION.content_id), ("worker", KEY.public)):
        wrong = bytearray(right)
        wrong[data.draw(st.integers(0, 31))] ^= data.draw(st.integers(1, 255))
        assert check(PROOF, **{name: right}) == EXECUTION
        with pytest.raises(BadProof, match=r"not of|not by"):
            check(PROOF, **{name: bytes(wrong)})


@pytest.mark.req("GT-10")
@given(EXECUTIONS)
def test_parts_of_two_proofs_make_no_third(execution: Execution) -> None:
    other = prove(execution, KEY)
    for name in ("envelope", "signature", "statement_signature"):
        with pytest.raises(BadProof):
            check(replace(PROOF, **{name: getattr(other, name)}))


@pytest.mark.req("GT-10")
def test_only_the_worker_can_sign() -> None:
    forged = prove(EXECUTION, OTHER)
    with pytest.raises(BadProof, match="the envelope is not signed by"):
        check(replace(forged, worker=KEY.public))
    with pytest.raises(BadProof, match="the envelope is not signed by"):
        check(replace(PROOF, signature=forged.signature))
    with pytest.raises(BadProof, match="the in-toto statement is not signed by"):
        check(replace(PROOF, statement_signature=forged.statement_signature))
    with pytest.raises(BadProof, match=r"by ed25519:.*, not by ed25519:"):
        check(forged, worker=KEY.public)
    with pytest.raises(BadProof):
        check(replace(PROOF, statement_signature=PROOF.signature))


@pytest.mark.parametrize("part", ["worker", "signature", "statement_signature"])
def test_keys_and_signatures_of_other_lengths_are_found(part: str) -> None:
    for wrong in (b"", getattr(PROOF, part)[1:], getattr(PROOF, part) + b"\0"):
        with pytest.raises(BadProof):
            check(replace(PROOF, **{part: wrong}))


# What is no proof is refused.


def changed(change: Callable[[dict[str, Any], dict[str, Any]], object]) -> bytes:
    value = json.loads(PROOF.envelope)
    change(value, value["outputs"][-1])
    return rfc8785.dumps(value)


@pytest.mark.parametrize(
    "change",
    [
        *(lambda e, r, name=name: e.pop(name) for name in ("job_id", "runner", "outputs", "started_at", "finished_at")),
        *(lambda e, r, name=name: r.pop(name) for name in ("argv", "exit_code", "fence", "job", "resources", "stdout")),
        lambda e, r: e.update(more=1),
        lambda e, r: r.update(more=1),
        lambda e, r: e["runner"].update(more="x"),
        lambda e, r: e["outputs"][0].update(more="x"),
        lambda e, r: e.update(outputs=[]),
        lambda e, r: e["outputs"].reverse(),
        lambda e, r: e["outputs"].append(r),
        lambda e, r: e["outputs"].append({"kind": "blobptr"}),
        lambda e, r: e.update(job_id="ab" * 32),
        lambda e, r: e.update(job_id="blake3:" + "AB" * 32),
        lambda e, r: e.update(job_id="sha256:" + "ab" * 32),
        lambda e, r: e["runner"].update(program="x"),
        lambda e, r: e["runner"].update(version=""),
        lambda e, r: e["runner"].update(platform="x" * 257),
        lambda e, r: e.update(started_at="2025-11-15T08:09:53Z"),
        lambda e, r: e.update(started_at="2025-02-30T08:09:53.123Z"),
        lambda e, r: e.update(started_at="2025-11-15T08:09:53.123+01:00"),
        lambda e, r: e.update(started_at=1_763_194_193_123),
        lambda e, r: e.update(finished_at="2025-11-15T08:09:53.122Z"),
        lambda e, r: e["outputs"][0].update(algo="sha256"),
        lambda e, r: e["outputs"][0].update(hash="ab" * 32),
        lambda e, r: e["outputs"][0].update(size=-1),
        lambda e, r: e["outputs"][0].update(size=1.5),
        *(
            lambda e, r, path=path: e["outputs"][0].update(path=path)
            for path in ("", "/a", "..", "a/../b", "./a", "a//b", "a/", "job")
        ),
        lambda e, r: r.update(argv=[]),
        lambda e, r: r.update(argv="echo"),
        lambda e, r: r.update(exit_code=-1),
        lambda e, r: r.update(signal=9),
        lambda e, r: r.update(timed_out=0),
        lambda e, r: r.update(fence=-1),
        lambda e, r: r.update(job="01j9zc0000000000000000000a"),
        lambda e, r: r.update(job="job"),
        lambda e, r: r.update(inputs=["ab" * 32]),
        lambda e, r: r["resources"].update(wall_s=-0.5),
        lambda e, r: r["resources"].update(wall_s=1e308),
        lambda e, r: r["resources"].update(gpu_s={f"device {number}": 1 for number in range(257)}),
        lambda e, r: r["resources"].update(wall_s="1"),
        lambda e, r: r["resources"].update(gpu_s={"A100": -1}),
        lambda e, r: r["resources"].update(more=1),
        lambda e, r: r["resources"].pop("wall_s"),
        lambda e, r: r.update(stdout={"hash": hash_text(bytes(32)), "size": 1}),
    ],
)
def test_an_envelope_that_says_anything_else_is_refused(
    change: Callable[[dict[str, Any], dict[str, Any]], object],
) -> None:
    raw = changed(change)
    assert raw != PROOF.envelope
    with pytest.raises(BadProof):
        read_envelope(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        PROOF.envelope + b"\n",
        json.dumps(json.loads(PROOF.envelope)).encode(),
        PROOF.envelope.replace(b'"fence":3', b'"fence":2,"fence":3'),
        PROOF.envelope.replace(b'"fence":3', b'"fence":3.0'),
        PROOF.envelope.replace(b'"wall_s":0.884', b'"wall_s":0.8840'),
        PROOF.envelope.replace(b"echo", rb"\u0065cho"),
        b" " * (PROOF_BYTES_MAX + 1),
    ],
)
def test_a_second_spelling_of_an_envelope_is_refused(raw: bytes) -> None:
    with pytest.raises(BadProof):
        read_envelope(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"\x7fELF\xff",
        b"[" * 100_000,
        encode_proof(PROOF) + b"\n",
        encode_proof(PROOF).replace(b"hocket proof 1", b"hocket proof 2"),
        encode_proof(PROOF).replace(b'"envelope":{', b'"envelope": {'),
        encode_proof(PROOF).replace(b'"worker":"ed25519:', b'"worker":"ed25519:00'),
        encode_proof(PROOF).replace(b'"worker":"ed25519:', b'"worker":"'),
        encode_proof(PROOF)[:-1] + b',"x":1}',
        PROOF.envelope,
        b" " * (PROOF_BYTES_MAX + 1),
    ],
)
def test_a_file_that_is_no_proof_is_refused(raw: bytes) -> None:
    with pytest.raises(BadProof):
        decode_proof(raw)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_proof(data: bytes) -> None:
    for read in (decode_proof, read_envelope):
        with pytest.raises(BadProof):
            read(data)


@pytest.mark.parametrize(
    "change",
    [
        {"content_id": bytes(31)},
        {"argv": ()},
        {"argv": ("\ud800",)},
        {"exit_code": -9},
        {"exit_code": 0, "signal": 9},
        {"started_at_ms": -1},
        {"finished_at_ms": 10**15},
        {"started_at_ms": EXECUTION.finished_at_ms + 1},
        {"inputs": (b"short",)},
        {"outputs": (Output("/etc/passwd", bytes(32), 1),)},
        {"outputs": (Output("a", bytes(32), 1), Output("a", bytes(32), 1))},
        {"outputs": (Output("\udcff", bytes(32), 1),)},
        {"outputs": (Output("a", bytes(32), 2**53),)},
        {"resources": Resources(wall_s=float("nan"))},
        {"resources": Resources(wall_s=float("inf"))},
        {"resources": Resources(cpu_s=-1.0)},
        {"resources": Resources(disk_read_bytes=2**53)},
        {"fence": -1},
        {"job": "no ulid"},
        {"runner": RunnerProgram(bytes(32), "", "linux")},
    ],
)
def test_what_nobody_could_read_is_not_proven(change: dict[str, Any]) -> None:
    with pytest.raises(BadProof):
        prove(replace(EXECUTION, **change), KEY)


# Others verify it, too.


def in_toto(proof: Proof) -> tuple[Envelope, SSlibKey]:
    enclosed = json.loads(json.dumps(dsse(proof)))
    keyid = enclosed["signatures"][0]["keyid"]
    key = SSlibKey(keyid, "ed25519", "ed25519", {"public": proof.worker.hex()})
    return Envelope.from_dict(enclosed), key


@pytest.mark.req("GT-12")
@given(EXECUTIONS)
def test_in_totos_own_packages_read_and_verify_the_statement(execution: Execution) -> None:
    sealed, key = in_toto(prove(execution, KEY))
    assert sealed.payload_type == "application/vnd.in-toto+json"
    assert list(sealed.verify([key], 1)) == [did_key(KEY.public)]
    said = json_format.Parse(sealed.payload, statement_pb2.Statement())
    Statement.copy_from_pb(said).validate()
    assert said.predicate_type == "https://slsa.dev/provenance/v1"
    # Fields that a provenance does not have are an error here.
    predicate = json_format.ParseDict(json_format.MessageToDict(said.predicate), provenance_pb2.Provenance())
    definition, details = predicate.build_definition, predicate.run_details
    assert definition.build_type == BUILD_TYPE and definition.external_parameters
    assert details.builder.id == did_key(KEY.public)
    assert details.metadata.started_on.ToMilliseconds() == execution.started_at_ms
    assert details.metadata.finished_on.ToMilliseconds() == execution.finished_at_ms
    for each in (*definition.resolved_dependencies, *details.byproducts):
        ResourceDescriptor.copy_from_pb(each).validate()
        assert each.digest["blake3"]
    subjects = {each.name: each.digest["blake3"] for each in said.subject}
    assert len(subjects) == len(execution.outputs) + 1
    assert subjects["job"] == execution.content_id.hex()
    assert all(subjects["./job" if each.path == "job" else each.path] == each.hash.hex() for each in execution.outputs)


@pytest.mark.req("GT-12")
def test_the_statement_says_what_the_envelope_says() -> None:
    enclosed = dsse(PROOF)
    assert enclosed.keys() == {"payloadType", "payload", "signatures"}
    said = json.loads(base64.b64decode(enclosed["payload"]))
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert [each["name"] for each in said["subject"]] == ["job", "dist/a.txt", "./job"]
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"] == {
        "content_id": hash_text(EXECUTION.content_id),
        "argv": list(EXECUTION.argv),
    }
    assert definition["internalParameters"] == {"job": EXECUTION.job, "fence": 3}
    assert definition["resolvedDependencies"] == [{"digest": {"blake3": (b"i" * 32).hex()}}]
    assert details["metadata"] == {
        "invocationId": "01J9ZC0000000000000000000A/3",
        "startedOn": "2025-11-15T08:09:53.123Z",
        "finishedOn": "2025-11-15T08:09:54.007Z",
    }
    assert details["byproducts"] == [
        {
            "name": "proof",
            "digest": {"blake3": digest(PROOF).hex()},
            "annotations": {"exit_code": 0, "signal": None, "timed_out": False},
        },
        {"name": "stdout", "digest": {"blake3": (b"s" * 32).hex()}},
        {"name": "stderr", "digest": {"blake3": (b"e" * 32).hex()}},
    ]


@pytest.mark.req("GT-12")
@given(st.data())
def test_in_totos_own_packages_find_a_changed_byte(data: st.DataObject) -> None:
    sealed, key = in_toto(PROOF)
    payload = bytearray(sealed.payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    sealed.payload = bytes(payload)
    with pytest.raises(VerificationError):
        sealed.verify([key], 1)


def test_the_text_forms_of_keys_are_those_of_the_trailers() -> None:
    kept = msgspec.json.decode(encode_proof(PROOF))
    assert kept["worker"] == key_text(KEY.public) and kept["signature"] == key_text(PROOF.signature)


@pytest.mark.req("GT-12")
def test_outputs_have_a_sha256_for_the_tools_of_others() -> None:
    outputs = (Output("dist/a.txt", b"a" * 32, 17, b"s" * 32), Output("b", b"b" * 32, 0))
    made = prove(replace(EXECUTION, outputs=outputs), KEY)
    assert check(decode_proof(encode_proof(made))).outputs == outputs
    said = msgspec.json.decode(base64.b64decode(dsse(made)["payload"]))
    assert [each["digest"].get("sha256") for each in said["subject"]] == [None, (b"s" * 32).hex(), None]
    for bad in (b"AB" * 32, b"ab" * 31):
        damaged = made.envelope.replace(b"73" * 32, bad)
        with pytest.raises(BadProof, match="sha256"):
            read_envelope(damaged)
