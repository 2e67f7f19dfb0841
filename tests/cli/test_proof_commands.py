"""`hocket proof` on a home with command jobs that have ended, and on files."""

import base64
import json
from pathlib import Path

import pytest
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from hocket.extensions.command.proof import decode_proof, encode_proof, prove, read_envelope
from hocket.kernel.ids import ulid_text
from hocket.kernel.keys import SigningKey, did_key, key_text
from hocket.node.runtime import Runtime
from tests.work.proven import FILES, MANIFEST, asked, ran, saying

from .conftest import PATIENCE_S, Program

pytestmark = pytest.mark.touches("GT-12")

OTHER = SigningKey(b"o" * 32)


class Proven(Program):
    """A home with a job that succeeded, one that failed, and one that waits."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "home")
        with Runtime.init(self.home) as runtime:
            self.good = ulid_text(ran(runtime).id)
            self.failed = ulid_text(ran(runtime, MANIFEST | {"timeout": 61}, exit_code=3).id)
            self.wrong_key = ulid_text(ran(runtime, MANIFEST | {"timeout": 62}, key=OTHER).id)
            self.wrong = ulid_text(ran(runtime, MANIFEST | {"timeout": 63}, change=saying(fence=7, argv=("x",))).id)
            self.waiting = ulid_text(asked(runtime))
            self.key = runtime.home.node_key()
        (directory / "job.yaml").write_text(json.dumps(MANIFEST))
        (directory / "other.yaml").write_text(json.dumps(MANIFEST | {"timeout": 1}))
        self.file = directory / "proof.json"
        self("proof", "export", self.good, "--format", "hocket", "-o", "proof.json", code=0)


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    return Proven(tmp_path_factory.mktemp("proven"))


@pytest.mark.req("GT-12")
def test_a_good_proof_is_verified_by_its_job(proven: Proven) -> None:
    done = proven("proof", "verify", proven.good, code=0)
    assert done.out.startswith("good: sh -c 'make dist': exit code 0, by ")
    told = proven("proof", "verify", proven.good, "--offline", "--json", code=0).json
    signer = did_key(proven.key.public)
    assert told == {"good": True, "problems": [], "notes": [], "signer": signer, "trusted": True}
    assert "exit code 3" in proven("proof", "verify", proven.failed, code=0).out


@pytest.mark.req("GT-12")
def test_a_proof_is_verified_as_a_file_without_a_home(proven: Proven, tmp_path: Path) -> None:
    nowhere = {"home": tmp_path / "nowhere"}
    raw = proven.file.read_bytes()
    assert encode_proof(decode_proof(raw)) == raw
    for done in (
        proven("proof", "verify", "proof.json", **nowhere, code=4),
        proven("proof", "verify", "-", input=raw, **nowhere, code=4),
    ):
        assert "no key is trusted" in done.sentence and did_key(proven.key.public) in done.sentence
    for key in (key_text(proven.key.public), did_key(proven.key.public)):
        proven("proof", "verify", "proof.json", "--worker", key, "--manifest", "job.yaml", **nowhere, code=0)
    assert not (tmp_path / "nowhere").exists()


def test_a_proof_of_something_else_than_was_named_fails(proven: Proven) -> None:
    done = proven("proof", "verify", "proof.json", "--manifest", "other.yaml", code=1)
    assert "the proof is of blake3:" in done.sentence
    done = proven("proof", "verify", proven.good, "--worker", key_text(OTHER.public), code=1)
    assert f"not by {key_text(OTHER.public)}" in done.sentence
    assert "bad --worker" in proven("proof", "verify", "proof.json", "--worker", "me", code=2).sentence
    assert "bad --manifest" in proven("proof", "verify", "proof.json", "--manifest", "proof.json", code=2).sentence
    assert "cannot read" in proven("proof", "verify", "proof.json", "--manifest", "none.yaml", code=2).sentence


def test_a_proof_by_another_key_or_with_other_facts_fails(proven: Proven) -> None:
    assert "held the job" in proven("proof", "verify", proven.wrong_key, code=1).sentence
    done = proven("proof", "verify", proven.wrong, code=1)
    assert "another command line" in done.sentence and done.sentence.endswith("(1 more)")
    assert "fence 7" in done.out
    told = proven("proof", "verify", proven.wrong, "--json", code=1).json
    assert told["good"] is False and len(told["problems"]) == 2
    # By itself it is sound: only the log tells.
    raw = proven("proof", "export", proven.wrong_key, "--format", "hocket", code=0).out
    proven("proof", "verify", "-", "--worker", key_text(OTHER.public), input=raw, code=0)


@pytest.mark.req("GT-12")
def test_a_tampered_file_fails(proven: Proven) -> None:
    raw = proven.file.read_bytes()
    proof = decode_proof(raw)
    forged = prove(read_envelope(proof.envelope), OTHER)
    for damaged, why in (
        (raw.replace(b'"exit_code":0', b'"exit_code":1'), "is not signed by"),
        (raw.replace(b"make dist", b"make lost"), "is not signed by"),
        (
            encode_proof(forged).replace(OTHER.public.hex().encode(), proven.key.public.hex().encode()),
            "is not signed by",
        ),
        (raw.replace(b'"kind":"run"', b'"kind":"ran"'), "kind"),
        (raw[:-1], "not a proof"),
        (raw + b"\n", "not a proof"),
        (b"", "not a proof"),
        (b"\x7fELF\xff" * 1000, "not a proof"),
        (b" " * (5 * 1024 * 1024), "longer than 4194304 bytes"),
        (b"[" * 100_000, "not a proof"),
    ):
        assert damaged != raw
        assert why in proven("proof", "verify", "-", input=damaged, code=1).sentence
        assert why in proven("proof", "export", "-", input=damaged, code=1).sentence


def test_a_file_that_is_not_here_is_said(proven: Proven) -> None:
    [blob] = [path for path in (proven.home / "blobs").rglob("*") if path.is_file()]
    aside = blob.with_name("aside")
    blob.rename(aside)
    try:
        for offline in ((), ("--offline",)):
            done = proven("proof", "verify", proven.good, *offline, code=0)
            assert "the output 'dist/large.bin' was not checked" in done.out and "good: " in done.out
        assert len(proven("proof", "verify", proven.good, "--json", code=0).json["notes"]) == 1
        aside.chmod(0o600)
        blob.write_bytes(b"damaged")
        assert "dist/large.bin" in proven("proof", "verify", proven.good, code=1).sentence
    finally:
        aside.rename(blob)


def test_a_file_on_another_node_is_fetched(tmp_path: Path) -> None:
    worker = Proven(tmp_path)
    server = worker.start("serve", "--port", "0", "--json")
    try:
        assert server.stdout is not None and server.stdout.readline()
        other = Program(tmp_path / "other" / "home")
        other.home.parent.mkdir()
        other("join", worker("invite", "other", "--may", "job:schedule", "--json", code=0).json["token"], code=0)
        other("sync", code=0)
        offline = other("proof", "verify", worker.good, "--offline", "--json", code=0).json
        assert len(offline["notes"]) == 1 and "on another node" in offline["notes"][0]
        assert other("proof", "verify", worker.good, "--json", code=0).json["notes"] == []
        # Now it is here.
        assert other("proof", "verify", worker.good, "--offline", "--json", code=0).json["notes"] == []
    finally:
        server.kill()
        server.communicate(timeout=PATIENCE_S)


def test_what_a_proof_says_is_shown(proven: Proven) -> None:
    for name in (proven.good, "proof.json"):
        out = proven("proof", "show", name, code=0).out
        for line in (
            "signatures\tgood",
            "ended\texit code 0",
            "command\tsh -c 'make dist'",
            f"job\t{proven.good}",
            f"worker\t{did_key(proven.key.public)}",
            "fence\t1",
            "started at\t2025-11-15T08:09:53.123Z",
            "cpu s\t0.25",
        ):
            assert line in out.splitlines()
        assert [line for line in out.splitlines() if line.startswith("dist/large.bin\t100000\tblake3:")]
    told = proven("proof", "show", proven.good, "--json", code=0).json
    assert told["signatures_good"] is True and told["resources"]["wall_s"] == 0.884
    assert [each["path"] for each in told["outputs"]] == list(FILES)


def test_a_bad_signature_is_shown_as_bad(proven: Proven) -> None:
    damaged = proven.file.read_bytes().replace(b'"exit_code":0', b'"exit_code":1')
    done = proven("proof", "show", "-", input=damaged, code=0)
    assert done.out.startswith("signatures\tBAD: the envelope is not signed by")
    assert proven("proof", "show", "-", "--json", input=damaged, code=0).json["signatures_good"] is False


@pytest.mark.req("GT-12")
def test_what_is_exported_is_verified_by_others(proven: Proven, tmp_path: Path) -> None:
    out = tmp_path / "attestation.json"
    assert "written to" in proven("proof", "export", proven.good, "--format", "in-toto", "-o", out, code=0).out
    enclosed = json.loads(out.read_bytes())
    assert json.loads(proven("proof", "export", "proof.json", code=0).out) == enclosed
    said = json.loads(base64.b64decode(enclosed["payload"]))
    assert [each["name"] for each in said["subject"]] == ["job", *FILES]
    key = SSlibKey(did_key(proven.key.public), "ed25519", "ed25519", {"public": proven.key.public.hex()})
    assert Envelope.from_dict(enclosed).verify([key], 1)
    told = proven("proof", "export", "proof.json", "-o", out, "--json", code=0).json
    assert told == {"file": str(out), "size": out.stat().st_size, "format": "in-toto"}


@pytest.mark.req("GT-12")
def test_what_is_exported_is_verified_here_in_either_format(proven: Proven, tmp_path: Path) -> None:
    nowhere = {"home": tmp_path / "nowhere"}
    signer = did_key(proven.key.public)
    for format in ("in-toto", "hocket"):
        raw = proven("proof", "export", proven.good, "--format", format, code=0).out
        unknown = proven("proof", "verify", "-", input=raw, **nowhere, code=4)
        assert signer in unknown.sentence and "make dist" in unknown.sentence
        told = proven("proof", "verify", "-", "--json", input=raw, **nowhere, code=4).json
        assert told["signer"] == signer and told["good"] is True and told["trusted"] is False
        good = proven("proof", "verify", "-", "--worker", signer, "--manifest", "job.yaml", input=raw, code=0)
        assert good.out.startswith("good: sh -c 'make dist': exit code 0, by ")
        proven("proof", "verify", "-", "--worker", key_text(OTHER.public), input=raw, code=1)
        proven("proof", "verify", "-", "--worker", signer, "--manifest", "other.yaml", input=raw, code=1)
    enclosed = json.loads(proven("proof", "export", proven.good, code=0).out)
    said = base64.b64decode(enclosed["payload"]).replace(b"make dist", b"make test")
    changed = json.dumps(enclosed | {"payload": base64.b64encode(said).decode()})
    assert "not signed by" in proven("proof", "verify", "-", "--worker", signer, input=changed, code=1).sentence
    for bad in (
        '{"payloadType": 1}',
        json.dumps(enclosed | {"signatures": []}),
        '{"payloadType": "x", "payload": "!"}',
    ):
        proven("proof", "verify", "-", input=bad, code=1)


def test_what_is_no_proof_or_no_job_is_refused(proven: Proven) -> None:
    for command in ("show", "verify", "export"):
        assert "has no proof" in proven("proof", command, proven.waiting, code=1).sentence
        assert "no job" in proven("proof", command, "7" + "Z" * 25, code=2).sentence
        assert proven("proof", command, "none.json", code=2).sentence == (
            "cannot read none.json: No such file or directory"
        )
        assert "Is a directory" in proven("proof", command, ".", code=2).sentence
        assert "not a proof" in proven("proof", command, "job.yaml", code=1).sentence
        assert "give a job id" in proven("proof", command, "", code=2).sentence
    assert "format" in proven("proof", "export", proven.good, "--format", "pdf", code=2).sentence
    assert "cannot write" in proven("proof", "export", proven.good, "-o", "no/such/file", code=2).sentence
