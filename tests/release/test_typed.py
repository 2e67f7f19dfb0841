"""The wheel says that it is typed, and type checkers know the types of all that a program may use."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

import hocket
import hocket.testing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pyright") is None or shutil.which("node") is None,
        reason="pyright or node is missing",
    ),
]

# A class attribute with one of these calls is a method that is made from another one. Every checker infers the same.
MADE_METHODS = ("Blocking[", "Method[", "StreamMethod[")

PROGRAM = """
import hocket

@hocket.job("acme.resize", retries=2)
def resize(ctx: hocket.Context, path: str, width: int = 128) -> dict[str, int]:
    return {path: width * ctx.attempt}

with hocket.open() as node:
    sizes: dict[str, int] = node.submit(resize, path="a.png").result(timeout=10)
    node.submit(resize, path=7)  # wrong
"""


def pyright(clean: Path, *words: str) -> Any:
    """Runs pyright in this environment: with --verifytypes it takes no other one by an option."""
    env = os.environ | {
        "PATH": f"{clean / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT": "1",  # needs no download
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    }
    command = [sys.executable, "-m", "pyright", "--outputjson", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=clean.parent, timeout=240)
    return json.loads(done.stdout)


@pytest.fixture
def installed(wheel: Path, clean: Path) -> Path:
    """The wheel in a clean environment, with the packages of this one beside it."""
    site = clean / Path(sysconfig.get_path("purelib", "venv", {"base": "BASE"})).relative_to("BASE")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return clean


def public_names() -> set[str]:
    """The classes and functions that programs import, by where they stand, with the base classes of Hocket's own."""
    names = set()
    for module in (hocket, hocket.testing):
        for thing in (getattr(module, name) for name in module.__all__):
            parts = thing.__mro__ if isinstance(thing, type) else [thing]
            names |= {f"{each.__module__}.{each.__qualname__}" for each in parts}
    return {name for name in names if name.startswith("hocket.")}


def test_pyright_knows_the_types_of_the_wheel(installed: Path) -> None:
    report = pyright(installed, "--verifytypes", "hocket", "--ignoreexternal")["typeCompleteness"]
    assert report["pyTypedPath"].startswith(str(installed))
    assert report["exportedSymbolCounts"]["withKnownType"] > 10_000
    assert report["exportedSymbolCounts"]["withUnknownType"] == 0
    public = public_names()
    assert not {
        symbol["name"]: problem["message"]
        for symbol in report["symbols"]
        if symbol["name"] in public or symbol["name"].rpartition(".")[0] in public
        for problem in symbol["diagnostics"]
        if "missing type annotation" in problem["message"]
        and not problem["message"].rpartition('type is "')[2].startswith(MADE_METHODS)
    }


def test_a_strict_program_needs_no_parameter_for_its_context(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    words = ["--pythonpath", str(installed / "bin" / "python"), "-p", str(tmp_path)]
    errors = [each for each in pyright(installed, *words)["generalDiagnostics"] if each["severity"] == "error"]
    lines = {PROGRAM.splitlines()[each["range"]["start"]["line"]] for each in errors}
    assert len(lines) == 1 and lines.pop().endswith("# wrong")
