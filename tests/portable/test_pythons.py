"""The other Pythons of this machine run Hocket: a job, a lock, a message and a log that another home reads. `make
pythons` runs all tests on them.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.pythons import NAMES, ROOT, smoke_folder, without

PATIENCE_S = 120

PROGRAM = """
import subprocess, sys
import hocket

assert "src" in hocket.__file__

@hocket.job("acme.add", retries=1)
def add(ctx, left: int, right: int) -> int:
    return left + right

@hocket.job("acme.twice")
async def twice(ctx: hocket.Context, text: str) -> str:
    return text * 2

def run(*words):
    done = subprocess.run([sys.executable, "-m", "hocket", *words], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr

if __name__ == "__main__":
    hocket.init("one")
    with hocket.open("one") as node:
        handles = [node.submit(add, left=4, right=number) for number in range(20)]
        word = node.submit(twice.using(after=handles[0]), text="ab")
        with node.lock("file:a.txt", agent="editor", wait="10s") as lock:
            fence = lock.fence
        node.send("editor", "please review")
        node.work([add, twice], until_idle=True)
        results = [handle.result(timeout=10) for handle in handles]
        assert results == list(range(4, 24)) and word.result(timeout=10) == "abab"
        (message,) = node.inbox("editor").claim()
        message.ack()
    run("--home", "one", "log", "export", "one.ops")
    run("--home", "two", "init", "--user-key", "one/user.key", "--name", "two")
    run("--home", "two", "log", "import", "one.ops")
    run("--home", "two", "log", "verify")
    with hocket.open("two") as node:
        assert len(hocket.admin(node).jobs(outcome="succeeded").items) == 21
    print(fence)
"""


@pytest.mark.parametrize("name", NAMES)
def test_another_python_runs_hocket(name: str, tmp_path: Path) -> None:
    folder = smoke_folder(name)
    if not (folder / ".ready").exists():
        pytest.skip(f"no environment of Python {name}: `make test` makes one where it finds the interpreter")
    (tmp_path / "program.py").write_text(PROGRAM)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOCKET", "PYTHON"))}
    environment = kept | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [folder / "bin" / "python", "-W", "error::DeprecationWarning:hocket", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_a_package_is_left_out_with_its_hashes() -> None:
    pins = "apsw==3.1 \\\n    --hash=sha256:1\n    # via hocket\nblake3[all]==1.0 \\\n    --hash=sha256:2\n"
    assert without(pins, "apsw") == "blake3[all]==1.0 \\\n    --hash=sha256:2\n"
    assert without(pins, "blake3") == "apsw==3.1 \\\n    --hash=sha256:1\n    # via hocket\n"
    assert without(pins, "aps") == pins
