"""Type checkers see what a handler takes and returns: the program passes but for the eight lines marked as wrong."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).resolve().parents[2]
WRONG = {n for n, line in enumerate(PROGRAM.read_text().splitlines(), start=1) if "# wrong: " in line}
PATIENCE_S = 280


def test_eight_lines_are_wrong() -> None:
    assert len(WRONG) == 8


def test_mypy_finds_them_and_nothing_else() -> None:
    # As `make lint` runs it, with what that has found out about the sources and the libraries.
    words = [sys.executable, "-m", "mypy", "--cache-dir", ".cache/mypy", "--no-error-summary", "--no-color-output"]
    done = subprocess.run([*words, str(PROGRAM)], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert {int(line.split(":")[1]) for line in lines} == WRONG, done.stdout + done.stderr


@pytest.mark.skipif(
    importlib.util.find_spec("pyright") is None or shutil.which("node") is None, reason="pyright or node is missing"
)
def test_pyright_finds_them_and_nothing_else(tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    # Its own copy needs no download.
    env = os.environ | {"PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT": "1", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=PATIENCE_S)
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    assert {each["range"]["start"]["line"] + 1 for each in found} == WRONG, [each["message"] for each in found]
