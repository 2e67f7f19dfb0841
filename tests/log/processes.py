"""Starting the processes of child.py, and waiting for what other threads and processes do."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CHILD = Path(__file__).parent / "child.py"
PATIENCE_S = 60.0


def start(*arguments: object) -> subprocess.Popen[str]:
    """A child that has opened its home; it begins to write when it is told `go`."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def rest(child: subprocess.Popen[str]) -> list[str]:
    """What it said until its end, which was a good one."""
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    return said.split()


def eventually(look: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.005)
