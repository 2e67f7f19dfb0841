"""`hocket proof` shows, verifies and exports proofs of execution; `hocket manifest` checks command manifests. A proof
named by its job is checked against the log; a file needs no home and no network.
"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.options import ArchiveOption, read_file, write_file
from hocket.cli.printing import emit, fields, on_terminal, say, table
from hocket.cli.settings import open_service, settings
from hocket.errors import Failed, NotAuthorised, Usage
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from hocket.extensions.command.execution import Execution
    from hocket.extensions.command.manifest import Manifest
    from hocket.extensions.command.proof import Attestation, Proof

proof_app = App()

ProofArgument = Annotated[
    str,
    Argument(
        metavar="JOB|FILE",
        help="A job id or a unique beginning of one, or a file with a proof; - reads stdin, ./NAME is always a file.",
    ),
]


class Format(StrEnum):
    IN_TOTO = "in-toto"
    HOCKET = "hocket"


@proof_app.callback()
def proof_group() -> None:
    """Proofs of execution: which command ran, where, how it ended and what it produced, signed by the node that ran it.

    \b
      hocket proof verify 01J9ZC
      hocket proof export 01J9ZC --format in-toto -o attestation.json
    """


@proof_app.command()
def show(proof: ProofArgument, archive: ArchiveOption = None) -> None:
    """Show the content of a proof, and whether its signatures are good.

    \b
      hocket proof show 01J9ZC
      hocket proof show proof.json --json | jq .resources
    """
    from hocket.extensions.command.proof import BadProof, check, read_envelope

    settings.archive = archive
    found = _find(proof)
    fault = None
    try:
        execution = read_envelope(found.envelope)
    except BadProof as error:
        raise Failed(f"{proof}: {error}") from None
    try:
        check(found)
    except BadProof as error:
        fault = str(error)
    told = _told(found, execution) | {"signatures_good": fault is None}
    emit(told)
    names = ("job", "content_id", "proof", "worker", "node", "fence", "started_at", "finished_at")
    fields(
        [
            ("signatures", "good" if fault is None else f"BAD: {fault}"),
            ("ended", _ending(execution)),
            ("command", _command_line(execution)),
            *((name.replace("_", " "), told[name]) for name in names),
            ("runner", " ".join(told["runner"][name] for name in ("version", "platform", "program"))),
            *((name.replace("_", " "), value) for name, value in _used(told["resources"])),
            *_charged(execution),
            *(("input", each) for each in told["inputs"]),
        ]
    )
    say()
    table(("file", "bytes", "hash"), [(each["path"], each["size"], each["hash"]) for each in _files(told)], "no files")


@proof_app.command()
def verify(
    proof: ProofArgument,
    offline: Annotated[bool, Option("--offline", help="Do not fetch missing files from other nodes.")] = False,
    manifest: Annotated[
        str | None, Option("--manifest", metavar="FILE", help="The manifest that the proof must be for.")
    ] = None,
    worker: Annotated[
        str | None,
        Option("--worker", metavar="KEY", help="The key that must have signed it: ed25519:<hex> or did:key:z…."),
    ] = None,
    archive: ArchiveOption = None,
) -> None:
    """Verify a proof: exit code 0 if it is good, 4 if nothing says that its signer is trusted, otherwise 1 with what is
    wrong.

    For a file, in either format of `export`, this checks the signatures, and the manifest and the key if given. A
    signature shows who has signed, not that you trust that key: name it with --worker. For a job, this also checks the
    proof against the log: the requested command, the node that held the job, its fence, and the digests of all files;
    and it hashes the files again. Missing files are listed.

    \b
      hocket proof verify 01J9ZC
      hocket proof verify proof.json --manifest job.yaml --worker did:key:z6Mk…
    """
    from hocket.extensions.command.manifest import content_id
    from hocket.extensions.command.proof import PROOF_BYTES_MAX, BadProof, check, check_dsse, is_dsse
    from hocket.kernel.keys import did_key

    settings.archive = archive
    expected = None if manifest is None else content_id(_manifest(manifest))
    key = None if worker is None else _key(worker)
    problems: list[str] = []
    notes: list[str] = []
    stored: Proof | None = None
    found: Proof | Attestation | None = None
    ran: Execution | Attestation | None = None
    if is_job := _is_job(proof):
        from hocket.extensions.command import proofs

        with open_service() as service:
            stored, problems, notes = proofs.examined(service, proof, offline)
    try:
        if not is_job and is_dsse(raw := read_file(proof, PROOF_BYTES_MAX)):
            found = ran = check_dsse(raw, expected, key)
        else:
            found = sound = stored or _decoded(proof, raw)
            ran = check(sound, expected, key)
    except BadProof as error:
        problems += [] if str(error) in problems else [str(error)]
    signer = None if found is None else did_key(found.worker)
    is_trusted = key is not None or is_job
    emit({"good": not problems, "problems": problems, "notes": notes, "signer": signer, "trusted": is_trusted})
    for note in notes:
        say(note, "yellow")
    if problems or found is None or ran is None:
        for problem in problems[1:]:
            say(problem)
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Failed(f"the proof is not good: {problems[0]}{more}")
    said = f"{_command_line(ran)}: {_ending(ran)}, by {_node(found)}"
    if not is_trusted:
        raise NotAuthorised(
            f"the signatures are good, but no key is trusted: {said}; signed by {signer}. If you expect that key, give"
            " it with --worker"
        )
    say(f"good: {said}")


@proof_app.command()
def export(
    proof: ProofArgument,
    format: Annotated[
        Format, Option("--format", help="in-toto: a Statement in a DSSE envelope; hocket: our own file.")
    ] = Format.IN_TOTO,
    output: Annotated[
        Path | None, Option("--output -o", metavar="FILE", help="The file to write; default standard output.")
    ] = None,
    archive: ArchiveOption = None,
) -> None:
    """Export a proof. Checks its signatures first; needs no key.

    \b
      hocket proof export 01J9ZC --format in-toto -o attestation.json
      hocket proof export 01J9ZC --format hocket -o proof.json
    """
    from hocket.extensions.command.proof import BadProof, check, dsse, encode_proof
    from hocket.kernel.jws import canonical_plain

    settings.archive = archive
    found = _find(proof)
    try:
        check(found)
    except BadProof as error:
        raise Failed(f"the proof is not good and was not exported: {error}") from None
    data = encode_proof(found) if format is Format.HOCKET else canonical_plain(dsse(found))
    if output is None:
        sys.stdout.buffer.write(data + (b"\n" if on_terminal() else b""))
        return
    write_file(output, data)
    emit({"file": str(output), "size": len(data), "format": format.value})
    say(f"{counted(len(data), 'byte')} written to {output}")


def _is_job(name: str) -> bool:
    from hocket.kernel.ids import ulid_prefix_range

    try:
        ulid_prefix_range(name)
    except ValueError:
        return False
    if not name:
        raise Usage("give a job id or a file with a proof")
    return True


def _find(name: str) -> "Proof":
    from hocket.extensions.command.proof import PROOF_BYTES_MAX

    if _is_job(name):
        from hocket.extensions.command import proofs

        with open_service() as service:
            return proofs.of_job(service, name)
    return _decoded(name, read_file(name, PROOF_BYTES_MAX))


def _decoded(name: str, raw: bytes) -> "Proof":
    from hocket.extensions.command.proof import BadProof, decode_proof

    try:
        return decode_proof(raw)
    except BadProof as error:
        raise Failed(f"{'standard input' if name == '-' else name}: {error}") from None


def _told(proof: "Proof", execution: "Execution") -> dict[str, Any]:
    """A proof as plain values. Fields of the envelope are copied unchanged."""
    import msgspec

    from hocket.extensions.command.proof import digest
    from hocket.kernel.ids import hash_text
    from hocket.kernel.keys import did_key

    said = msgspec.json.decode(proof.envelope)
    *outputs, run = said["outputs"]
    told = {"content_id": said["job_id"], "proof": hash_text(digest(proof)), "worker": did_key(proof.worker)}
    told |= {"node": _node(proof), **run, "runner": said["runner"], "outputs": outputs}
    return told | {"started_at": said["started_at"], "finished_at": said["finished_at"]}


def _used(resources: dict[str, Any]) -> list[tuple[str, str]]:
    """The measured resources, GPU time by class."""
    classes = {f"gpu_s {name}": value for name, value in resources["gpu_s"].items()}
    plain = {name: value for name, value in resources.items() if name != "gpu_s" and value is not None}
    return [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in (plain | classes).items()
    ]


def _charged(execution: "Execution") -> list[tuple[str, str]]:
    charge = execution.charge
    if charge is None:
        return []
    return [("cost", f"{charge.cost:.6g} {charge.currency}"), *([("stopped", charge.over)] if charge.over else [])]


def _files(told: dict[str, Any]) -> list[dict[str, Any]]:
    streams = [{"path": name, **told[name]} for name in ("stdout", "stderr") if told[name] is not None]
    return [*told["outputs"], *streams]


def _ending(execution: "Execution | Attestation") -> str:
    if execution.timed_out:
        return "out of time"
    if execution.signal is not None:
        return f"signal {execution.signal}"
    return "not started" if execution.exit_code is None else f"exit code {execution.exit_code}"


def _command_line(execution: "Execution | Attestation") -> str:
    import shlex

    return shlex.join(execution.argv)


def _node(proof: "Proof | Attestation") -> str:
    from hocket.kernel.ids import node_id, node_text

    return node_text(node_id(proof.worker))


def _key(text: str) -> bytes:
    from hocket.kernel.keys import parse_did_key, parse_key

    try:
        return parse_did_key(text) if text.startswith("did:") else parse_key(text)
    except ValueError as error:
        raise Usage(f"bad --worker: {error}") from None


def _manifest(file: str) -> "Manifest":
    from hocket.extensions.command.manifest import BadManifest, read_manifest
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    try:
        return read_manifest(read_file(file, TEXT_BYTES_MAX))
    except BadManifest as error:
        raise Usage(f"bad --manifest {file}: {error}") from None


manifest_app = App()

FileArgument = Annotated[str, Argument(metavar="FILE", help="A manifest in YAML or JSON; - reads stdin.")]


@manifest_app.callback()
def manifest_group() -> None:
    """Command manifests: command, args and timeout; optionally env, cwd, inputs, policy_root and ulid.

    \b
      hocket manifest check job.yaml
      hocket manifest canonical job.yaml | b3sum
    """


@manifest_app.command()
def id(file: FileArgument) -> None:
    """Print the content id: the BLAKE3 hash of the canonical form. It names the job in git.

    \b
      hocket manifest id job.yaml
    """
    from hocket.extensions.command.manifest import content_id
    from hocket.kernel.ids import hash_text

    found = hash_text(content_id(_read(file)))
    emit({"content_id": found})
    say(found)


@manifest_app.command()
def canonical(file: FileArgument) -> None:
    """Print the canonical form, the exact bytes that are hashed: JSON with sorted keys and without the ulid.

    \b
      hocket manifest canonical job.yaml | jq .
    """
    from hocket.extensions.command import manifest

    sys.stdout.buffer.write(manifest.canonical(_read(file)) + (b"\n" if on_terminal() else b""))


@manifest_app.command()
def check(file: FileArgument) -> None:
    """Check a manifest: exit code 0 if it is good, otherwise 1 with the wrong field.

    \b
      hocket manifest check job.yaml
      git show HEAD:job.yaml | hocket manifest check -
    """
    from hocket.extensions.command.manifest import content_id, manifest_json
    from hocket.kernel.ids import hash_text

    found = _read(file)
    told = {"good": True, "content_id": hash_text(content_id(found)), "manifest": manifest_json(found)}
    emit(told)
    say(f"good: {told['content_id']}")


def _read(file: str) -> "Manifest":
    from hocket.extensions.command.manifest import BadManifest, read_manifest
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    try:
        return read_manifest(read_file(file, TEXT_BYTES_MAX))
    except BadManifest as error:
        if settings.as_json:
            emit({"good": False, "field": error.field or None, "problem": str(error)})
        raise Failed(f"{'standard input' if file == '-' else file}: {error}") from None
