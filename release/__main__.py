"""`make release`: builds the packages and the list of their parts of the last commit with `hocket run`, and checks the
proof with in-toto's own library. `python -m release OUT` does both, `python -m release OUT --key KEY` only checks.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from release.check import PROOF, check

ROOT = Path(__file__).resolve().parents[1]
PARTS = [
    "src",
    "bin",
    "release",
    "requirements",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "MANIFEST.in",
]
STEPS = (
    "tar xf source.tar && python3 release/build.py source.tar outputs"
    " && python3 release/sbom.py outputs/hocket.cdx.json"
)


class Home:
    """The node that proves: that of HOCKET_HOME, or a new one whose key proves this release alone."""

    def __init__(self, folder: Path) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._environment = {"HOCKET_HOME": str(folder / "home"), **os.environ, "PATH": path}
        self._folder = folder
        if "HOCKET_HOME" not in os.environ:
            self("init", "--name", "release")

    def __call__(self, *words: str) -> Any:
        command = [sys.executable, "-m", "hocket", "--json", *words]
        done = subprocess.run(command, cwd=self._folder, env=self._environment, stdout=subprocess.PIPE)
        if done.returncode:
            raise SystemExit(done.returncode)
        return json.loads(done.stdout)


def make(out: Path) -> str:
    """Builds into `out`, with the proof. Gives the key that signed it."""
    out.mkdir(parents=True, exist_ok=True)
    git = ["git", "-C", str(ROOT)]
    epoch = subprocess.run(
        [*git, "log", "-1", "--format=%ct"], check=True, capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([*git, "archive", "-o", str(folder / "source.tar"), "HEAD", "--", *PARTS], check=True)
        home = Home(folder)
        # What a run needs is on the command line, so that the proof has it.
        words = ["sh", "-ec", f"export SOURCE_DATE_EPOCH={epoch}; {STEPS}"]
        ended = home("run", "--input", "source.tar", "--output", "outputs/*", "--", *words)
        if ended["exit_code"]:
            raise SystemExit(ended["stderr"])
        job = home("show", ended["job_id"])
        wanted = [each for each in job["artifacts"] if each["type"] == "hocket.output"]
        for place, artifact in zip(job["result"]["outputs"], wanted, strict=True):
            home("artifacts", "get", artifact["artifact_id"], "-o", str(out.absolute() / Path(place["path"]).name))
        home("proof", "export", ended["job_id"], "--format", "in-toto", "-o", str(out.absolute() / PROOF))
        return str(home("proof", "show", ended["job_id"])["worker"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--key", help="the did:key of the node that proves; then nothing is built")
    given = parser.parse_args()
    key = given.key or make(given.out)
    for name, digest in check(given.out, key).items():
        print(f"{digest}  {name}")
    print(f"proved by {key}")


if __name__ == "__main__":
    main()
