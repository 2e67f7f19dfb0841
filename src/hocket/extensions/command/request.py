"""A request for a command, and its job: the files that it needs become artifacts on the log, and everything else
becomes its manifest, whose hash the proof covers.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.errors import Usage
from hocket.extensions.command import KIND as KIND
from hocket.extensions.command.manifest import (
    INPUTS_NAME,
    ON_NAME,
    OUTPUTS_NAME,
    SANDBOX_NAME,
    BadManifest,
    Manifest,
    canonical,
    parse_manifest,
)
from hocket.extensions.command.secrets import SECRETS_NAME, check_values, named_values, secrets_of
from hocket.families import artifacts
from hocket.families.blobs import Blobs
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.drafts import Duration, policy
from hocket.families.jobs.requests import Content, Draft
from hocket.kernel.ids import hash_text
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.texts import duration_ms
from hocket.log import Transaction

if TYPE_CHECKING:
    from hocket.node.runtime import Runtime

INPUT_TYPE = "hocket.input"
TIMEOUT_S_DEFAULT = 3_600
INPUTS_MAX = 1_000


class CommandRequest(NamedTuple):
    """`inputs` are local files by their names in the command's directory; `outputs` are patterns of files to keep;
    `secrets` are variables whose values stay off the log; `on` is the id of the one node that should run it.
    """

    argv: tuple[str, ...]
    timeout_s: int = TIMEOUT_S_DEFAULT
    env: Mapping[str, str] = {}
    inputs: Mapping[str, Path] = {}
    outputs: tuple[str, ...] = ()
    sandbox: str = "off"
    policy: Policy = DEFAULT
    secrets: Mapping[str, str] = {}
    on: str | None = None

    def prepared(self, runtime: "Runtime") -> "PackedRequest":
        return pack(self, runtime.blobs)


def command(
    *argv: str,
    timeout: Duration = "1h",
    env: Mapping[str, str] | None = None,
    inputs: Mapping[str, str | PathLike[str]] | Iterable[str | PathLike[str]] = (),
    outputs: Iterable[str] = (),
    secrets: Mapping[str, str] | Iterable[str] = (),
    sandbox: bool = False,
    network: bool = False,
    **options: Any,
) -> CommandRequest:
    """A command to submit, as a job with a proof. `inputs` are local files and directories, by their names in the
    command's directory or under their own; `outputs` are patterns of files to keep; in a `sandbox` it has network
    access only with `network`. Values in `env` go on the log, where other nodes can read them; `secrets` do not:
    variables with their values, or names of variables that are set here. The other options are those of `job`.
    """
    try:
        timeout_ms = duration_ms(timeout)
    except ValueError as error:
        raise Usage(f"bad timeout {timeout!r}: {error}") from None
    if timeout_ms % 1000:
        raise Usage(f"bad timeout {timeout!r}: give whole seconds")
    if isinstance(inputs, Mapping):
        named = _placed((name, name, Path(path)) for name, path in inputs.items())
    else:
        named = named_inputs(map(str, inputs), Path.cwd())
    wish = "network" if network else "on" if sandbox else "off"
    hidden = dict(secrets) if isinstance(secrets, Mapping) else named_values(secrets, os.environ)
    return CommandRequest(
        argv,
        timeout_ms // 1000,
        dict(env or {}),
        named,
        tuple(outputs),
        wish,
        policy(DEFAULT, **options),
        hidden,
    )


class PackedRequest(NamedTuple):
    """A request that is ready for the log."""

    manifest: Manifest
    contents: list[Content]
    policy: Policy
    secrets: Mapping[str, str] = {}

    @property
    def draft(self) -> Draft:
        return Draft(KIND, canonical(self.manifest), self.policy)

    def submit(self, tx: Transaction, runtime: "Runtime") -> bytes:
        """Puts the inputs and the job on the log together; returns the job's id."""
        submitted = jobs.submit(tx, [self.draft])[0]
        for content in self.contents:
            artifacts.put(tx, runtime.blobs, INPUT_TYPE, content, None, submitted.job_id)
        if self.secrets and submitted.created:
            secrets_of(runtime.home).keep(submitted.job_id, self.secrets)
        return submitted.job_id


def pack(request: CommandRequest, blobs: Blobs) -> PackedRequest:
    """Reads the inputs and writes the manifest. Raises Usage with the name of the bad field."""
    # Always as blobs, however small: they are found by their hash.
    staged = [blobs.stage(path) for path in request.inputs.values()]
    contents = [Content(each.hash, each.size, None, each) for each in staged]
    env = dict(request.env)
    if request.inputs:
        env[INPUTS_NAME] = ":".join(request.inputs)
    if request.outputs:
        env[OUTPUTS_NAME] = ":".join(request.outputs)
    if request.sandbox != "off":
        env[SANDBOX_NAME] = request.sandbox
    if request.on is not None:
        env[ON_NAME] = request.on
    if request.secrets:
        check_values(request.secrets)
        if both := request.secrets.keys() & env.keys():
            raise Usage(f"the variable {min(both)} is both secret and plain; give it once")
        env[SECRETS_NAME] = ":".join(request.secrets)
    asked: dict[str, object] = {"command": list(request.argv), "args": [], "timeout": request.timeout_s}
    if env:
        asked["env"] = env
    if contents:
        asked["inputs"] = [
            {"kind": "blobptr", "algo": "blake3", "hash": hash_text(each.hash), "size": each.size} for each in contents
        ]
    try:
        # Their names must be valid in a manifest.
        parse_manifest({"command": ["true"], "timeout": 0, "env": dict.fromkeys(request.secrets, "")})
        return PackedRequest(parse_manifest(asked), contents, request.policy, request.secrets)
    except BadManifest as error:
        raise Usage(str(error)) from None


def named_inputs(given: Iterable[str], directory: Path) -> dict[str, Path]:
    """Inputs as people write them, PATH or NAME=PATH. A path below the directory keeps its relative name."""

    def named(text: str) -> tuple[str, str, Path]:
        name, equals, file = text.partition("=")
        path = directory / (file if equals else text)
        if not equals:
            inside = path.resolve().is_relative_to(directory.resolve())
            name = str(path.resolve().relative_to(directory.resolve())) if inside else path.name
        return text, name, path

    return _placed(map(named, given))


def _placed(named: Iterable[tuple[str, str, Path]]) -> dict[str, Path]:
    """The files by their names in the command's directory. A directory stands for all files below it."""
    found: dict[str, Path] = {}
    for text, name, path in named:
        for place, source in _files(name, path):
            if not place or place in found or PurePosixPath(place).is_absolute() or ":" in place:
                raise Usage(f"bad input {text!r}: give each file its own relative name without a colon, like NAME=FILE")
            found[place] = source
            if len(found) > INPUTS_MAX:
                raise Usage(f"bad input {text!r}: more than {INPUTS_MAX} files; pack them into one archive")
    return found


def _files(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """A file, or every file below a directory, with its name there."""
    if not path.is_dir():
        yield name, path
        return
    for below, directories, files in os.walk(path):
        if link := next((each for each in sorted(directories) if Path(below, each).is_symlink()), None):
            raise Usage(f"bad input {str(path)!r}: {Path(below, link)} is a link to a directory; name that itself")
        directories.sort()
        for file in sorted(files):
            yield str(PurePosixPath(name, Path(below, file).relative_to(path))), Path(below, file)
