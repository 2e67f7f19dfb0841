"""`hocket manifest`: checks command manifests and prints their content id and canonical form. Needs no home."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.files import read_file
from hocket.cli.output import emit, on_terminal, say
from hocket.cli.settings import settings
from hocket.errors import Failed

if TYPE_CHECKING:
    from hocket.kernel.manifest import Manifest

app = new_app()

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A manifest in YAML or JSON; - reads stdin.")]


@app.callback()
def manifest_group() -> None:
    """Command manifests: command, args and timeout; optionally env, cwd, inputs, policy_root and ulid.

    \b
      hocket manifest check job.yaml
      hocket manifest canonical job.yaml | b3sum
    """


@app.command()
def id(file: FileArgument) -> None:
    """Print the content id: the BLAKE3 hash of the canonical form. It names the job in git.

    \b
      hocket manifest id job.yaml
    """
    from hocket.kernel.ids import hash_text
    from hocket.kernel.manifest import content_id

    found = hash_text(content_id(_read(file)))
    emit({"content_id": found})
    say(found)


@app.command()
def canonical(file: FileArgument) -> None:
    """Print the canonical form, the exact bytes that are hashed: JSON with sorted keys and without the ulid.

    \b
      hocket manifest canonical job.yaml | jq .
    """
    from hocket.kernel import manifest

    sys.stdout.buffer.write(manifest.canonical(_read(file)) + (b"\n" if on_terminal() else b""))


@app.command()
def check(file: FileArgument) -> None:
    """Check a manifest: exit code 0 if it is good, otherwise 1 with the wrong field.

    \b
      hocket manifest check job.yaml
      git show HEAD:job.yaml | hocket manifest check -
    """
    from hocket.kernel.ids import hash_text
    from hocket.kernel.manifest import content_id, manifest_json

    found = _read(file)
    told = {"good": True, "content_id": hash_text(content_id(found)), "manifest": manifest_json(found)}
    emit(told)
    say(f"good: {told['content_id']}")


def _read(file: str) -> "Manifest":
    from hocket.kernel.manifest import BadManifest, read_manifest
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    try:
        return read_manifest(read_file(file, TEXT_BYTES_MAX))
    except BadManifest as error:
        if settings.as_json:
            emit({"good": False, "field": error.field or None, "problem": str(error)})
        raise Failed(f"{'standard input' if file == '-' else file}: {error}") from None
