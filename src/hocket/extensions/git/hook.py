"""`hocket git hook` and `hocket git received`: a repository announces the jobs that are pushed to it with plain git,
and a push to one of its refs can start a job.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from hocket.cli.declarations import Option
from hocket.cli.options import read_file
from hocket.cli.printing import emit, say
from hocket.errors import Conflict, Usage
from hocket.extensions.git.access import Repository, announce_elsewhere, home_here, now_ms, opened_plane

MARK = "# Installed by `hocket git hook`."
# The refs of one push, a line each.
LINES_BYTES_MAX = 16 * 1024 * 1024

On = Annotated[
    list[str] | None,
    Option("--on", metavar="REF=FILE", help="Submit the manifest FILE when REF is pushed; may be repeated."),
]


def hook(repo: Repository, on: On = None) -> None:
    """Install a post-receive hook in a repository of this machine: it announces jobs that are pushed with plain git,
    and starts a job when one of the refs changes. The command of such a job finds the change in the variables
    GATOS_REF, GATOS_OLD and GATOS_NEW.

    \b
      hocket git hook jobs.git
      hocket git hook project.git --on refs/heads/main=test.yaml
    """
    home_here().check()
    rules = [f"{ref}={Path(file).expanduser().resolve()}" for ref, file in map(_rule, on or ())]
    for rule in rules:
        _manifest(_rule(rule)[1], {})
    file = _hooks(repo) / "post-receive"
    if file.exists() and MARK not in file.read_text("utf-8", "replace"):
        raise Conflict(f"{file} is another hook; let it call `hocket git received {repo}` with its standard input")
    command = [sys.executable, "-m", "hocket", "--home", str(home_here().path), "git", "received"]
    command += [str(Path(repo).expanduser().resolve()), *(word for rule in rules for word in ("--on", rule))]
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{MARK}\nunset $(git rev-parse --local-env-vars)\nexec {shlex.join(command)}\n")
    file.chmod(0o755)
    emit({"hook": str(file)})
    say(f"installed {file}")


def received(repo: Repository, on: On = None) -> None:
    """Announce what a push has brought. The hook calls this; standard input has a line `OLD NEW REF` for each ref.

    \b
      echo "$old $new refs/heads/main" | hocket git received project.git --on refs/heads/main=test.yaml
    """
    from hocket.extensions.git import git_jobs
    from hocket.extensions.git.announcements import wake_workers
    from hocket.kernel.ids import hash_text

    text = read_file("-", LINES_BYTES_MAX).decode(errors="replace")
    lines = [line.split() for line in text.splitlines()]
    if any(len(line) != 3 for line in lines):
        raise Usage("standard input must have lines of the form `OLD NEW REF`")
    changes = [(old, new, ref) for old, new, ref in lines if set(new) != {"0"}]
    rules = list(map(_rule, on or ()))
    with opened_plane(repo) as plane:
        pushed = [job for job, refs in git_jobs.group({ref: new for _, new, ref in changes}).items() if refs.job]
        orders = git_jobs.orders_of(
            plane, [refs for job, refs in git_jobs.group(plane.refs()).items() if job in pushed]
        )
        found = [job for job, order in orders.items() if not isinstance(order, str)]
        for old, new, ref in changes:
            told = {"GATOS_REF": ref, "GATOS_OLD": old, "GATOS_NEW": new}
            found += [
                git_jobs.submit(plane, _manifest(file, told), now_ms()).content_id for on, file in rules if on == ref
            ]
    for content_id in found:
        wake_workers(home_here().processes, content_id)
        announce_elsewhere(repo, content_id)
    emit({"announced": [hash_text(each) for each in found]})
    for content_id in found:
        say(f"announced {hash_text(content_id)}")


def _rule(text: str) -> tuple[str, str]:
    ref, equals, file = text.partition("=")
    if not equals or not file or not ref.startswith("refs/"):
        raise Usage(f"bad --on {text!r}: write it like refs/heads/main=test.yaml")
    return ref, file


def _manifest(file: str, environment: dict[str, str]) -> bytes:
    """The manifest in a file, with these variables in its environment."""
    from msgspec.structs import replace

    from hocket.extensions.command.manifest import BadManifest, canonical, read_manifest
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    try:
        manifest = read_manifest(read_file(file, TEXT_BYTES_MAX))
    except BadManifest as error:
        raise Usage(f"bad manifest {file}: {error}") from None
    return canonical(replace(manifest, env={**(manifest.env or {}), **environment}, ulid=None))


def _hooks(repo: str) -> Path:
    """Where the repository has its hooks."""
    place = Path(repo).expanduser()
    asked = subprocess.run(
        ["git", "-C", str(place), "rev-parse", "--git-path", "hooks"], capture_output=True, text=True, env=os.environ
    )
    if asked.returncode:
        raise Usage(f"{repo} is not a git repository on this machine; install the hook where the repository is")
    return (place / asked.stdout.strip()).resolve()
