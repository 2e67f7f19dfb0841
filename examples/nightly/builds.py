"""The handlers of nightly builds: each builder clones the repository and runs its tests; the desk publishes."""

import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import hocket


def run(*words: str, folder: str) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise hocket.Fatal(f"{words[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


@hocket.job("build.test", timeout="30m", retries=1)
def build(ctx: hocket.Context, repository: str, target: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        run("git", "clone", "--quiet", "--depth=1", repository, "source", folder=folder)
        source = str(Path(folder) / "source")
        commit = run("git", "rev-parse", "HEAD", folder=source).strip()
        ctx.progress({"commit": commit, "step": "tests"})
        run(sys.executable, "-m", "unittest", "--quiet", folder=source)
        run("git", "archive", "--output=../built.tar", "HEAD", folder=source)
        built = ctx.artifact(Path(folder) / "built.tar", type="build.archive", ttl="14d")
    return {"target": target, "commit": commit, "archive": built, "machine": platform.machine()}


@hocket.job("release.publish")
def publish(ctx: hocket.Context) -> dict[str, str]:
    built = ctx.results_of(build)
    commits = {each["commit"] for each in built}
    if len(commits) != 1:
        raise hocket.Fatal(f"the builders have built {len(commits)} commits")
    return {each["target"]: each["archive"] for each in built}


@hocket.job("release.nightly")
def nightly(ctx: hocket.Context[hocket.SyncNode], repository: str, targets: list[str]) -> str:
    """What the schedule starts: a build for each target, and the release after all of them."""
    builds = [
        ctx.node.submit(
            build.using(needs=f"target={target}", unique=f"{ctx.job_id}-{target}"), repository=repository, target=target
        )
        for target in targets
    ]
    return ctx.node.submit(publish.using(after=builds, unique=ctx.job_id)).job_id
