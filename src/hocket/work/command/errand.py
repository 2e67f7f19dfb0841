"""A command as somebody asks for it, and the job that is made of it: files that it needs become artifacts on the log,
and everything that it is about becomes its manifest, whose hash is what the proof will be about.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hocket.errors import Usage
from hocket.kernel.ids import hash_text
from hocket.kernel.manifest import (
    INPUTS_NAME,
    OUTPUTS_NAME,
    SANDBOX_NAME,
    BadManifest,
    Manifest,
    canonical,
    parse_manifest,
)
from hocket.kernel.policy import DEFAULT, Policy
from hocket.log import Transaction
from hocket.work import artifacts, jobs
from hocket.work.blobs import Blobs
from hocket.work.jobs import Draft
from hocket.work.products import Content

KIND = "hocket.run"
INPUT_TYPE = "hocket.input"
TIMEOUT_S_DEFAULT = 3_600


class Errand(NamedTuple):
    """`inputs` are files here by the names that they have there; `outputs` are patterns of what to keep."""

    argv: tuple[str, ...]
    timeout_s: int = TIMEOUT_S_DEFAULT
    env: Mapping[str, str] = {}
    inputs: Mapping[str, Path] = {}
    outputs: tuple[str, ...] = ()
    sandbox: str = "off"
    policy: Policy = DEFAULT


class Packed(NamedTuple):
    """An errand that is ready to be put on the log."""

    manifest: Manifest
    contents: list[Content]
    policy: Policy


def pack(errand: Errand, blobs: Blobs) -> Packed:
    """Reads the inputs and writes the manifest. Raises Usage, with the field named."""
    # Always as blobs, however small: they are found by their hash.
    staged = [blobs.stage(path) for path in errand.inputs.values()]
    contents = [Content(each.hash, each.size, None, each) for each in staged]
    env = dict(errand.env)
    if errand.inputs:
        env[INPUTS_NAME] = ":".join(errand.inputs)
    if errand.outputs:
        env[OUTPUTS_NAME] = ":".join(errand.outputs)
    if errand.sandbox != "off":
        env[SANDBOX_NAME] = errand.sandbox
    asked: dict[str, object] = {"command": list(errand.argv), "args": [], "timeout": errand.timeout_s}
    if env:
        asked["env"] = env
    if contents:
        asked["inputs"] = [
            {"kind": "blobptr", "algo": "blake3", "hash": hash_text(each.hash), "size": each.size} for each in contents
        ]
    try:
        return Packed(parse_manifest(asked), contents, errand.policy)
    except BadManifest as error:
        raise Usage(str(error)) from None


def submit(tx: Transaction, blobs: Blobs, packed: Packed) -> bytes:
    """Puts the inputs and the job on the log together; gives the job's id."""
    for content in packed.contents:
        artifacts.put(tx, blobs, INPUT_TYPE, content, None)
    return jobs.submit(tx, [Draft(KIND, canonical(packed.manifest), packed.policy)])[0].job_id


def named_inputs(given: Iterable[str], directory: Path) -> dict[str, Path]:
    """Inputs as people write them, FILE or NAME=FILE. A file below the directory keeps its place there."""
    found: dict[str, Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        path = directory / (file if equals else text)
        if not equals:
            inside = path.resolve().is_relative_to(directory.resolve())
            name = str(path.resolve().relative_to(directory.resolve())) if inside else path.name
        if not name or name in found or PurePosixPath(name).is_absolute() or ":" in name:
            raise Usage(f"bad --input {text!r}: give each file its own relative name without a colon, like NAME=FILE")
        found[name] = path
    return found
