"""The commands that start the example workers on this machine, or why one cannot run here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import npm
from tests.docs.reader import ROOT

WORKERS = ROOT / "examples" / "workers"
# Node runs TypeScript itself from here on.
NODE_WITH_TYPES = (22, 18)
# What Node strips types with, for older ones.
AMARO = "amaro@0.1.9"
AMARO_SHA512 = "qNWW9clA6hzyyc1vrffgwYPYG4GZPom0MHvZQM4QQPzxTWwuYp7pOiZTAOXTlkWcyiTtHM5t/Ypw9sAVhoqbdg=="
STRIP = """
const { transformSync } = require(process.argv[1]);
const { code } = transformSync(require("fs").readFileSync(0, "utf8"), { mode: "strip-only" });
process.stdout.write(code);
"""
BUILD_S = 250


def command(language: str, directory: Path) -> list[str]:
    """The command of the example in a language. What has to be built is put into the directory."""
    return {"python": _python, "shell": _shell, "typescript": _typescript, "go": _go}[language](directory)


def _python(directory: Path) -> list[str]:
    return [sys.executable, str(WORKERS / "worker.py")]


def _shell(directory: Path) -> list[str]:
    _program("curl")
    _program("jq")
    return [_program("sh"), str(WORKERS / "worker.sh")]


def _typescript(directory: Path) -> list[str]:
    node, source = _program("node"), WORKERS / "worker.ts"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) >= NODE_WITH_TYPES:
        return [node, str(source)]
    amaro = npm.CACHE / "amaro" / f"{AMARO}.js"
    if (reason := npm.fetch(AMARO, AMARO_SHA512, "dist/index.js", amaro)) is not None:
        pytest.skip(f"Node {version.strip()} does not run TypeScript, and what strips types is not here: {reason}")
    plain = directory / "worker.mjs"
    stripped = subprocess.run(
        [node, "-e", STRIP, str(amaro)], input=source.read_text("utf-8"), capture_output=True, text=True, check=True
    )
    plain.write_text(stripped.stdout, "utf-8")
    return [node, str(plain)]


def _go(directory: Path) -> list[str]:
    program = directory / "worker"
    build = [_program("go"), "build", "-o", str(program), str(WORKERS / "worker.go")]
    subprocess.run(build, cwd=directory, check=True, timeout=BUILD_S)
    return [str(program)]


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path
