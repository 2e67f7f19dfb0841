"""Nightly builds across three machines: a desk that decides and publishes, and two builders that were invited.

Each machine is a home and processes of its own here, and they talk HTTP over loopback. The schedule is set,
and its job is also submitted at once.

python examples/nightly/run.py
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from builds import nightly, publish

import hocket

HERE = Path(__file__).parent
TARGETS = ("linux-a", "linux-b")
PATIENCE_S = 120


def hocket_command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "hocket", "--home", str(home), *words]


def answer(home: Path, *words: str) -> dict[str, str]:
    done = subprocess.run(hocket_command(home, "--json", *words), capture_output=True, text=True, check=True)
    value: dict[str, str] = json.loads(done.stdout.splitlines()[0])
    return value


def start(running: ExitStack, home: Path, *words: str) -> Path:
    """Starts a command that stays until the example ends; returns the file that gets what it prints."""
    out = home.parent / f"{home.name}-{words[0]}.txt"
    with open(out, "w") as file, open(home.parent / f"{home.name}-{words[0]}.log", "w") as log:
        process = subprocess.Popen(hocket_command(home, *words), stdout=file, stderr=log)
    running.callback(process.wait)
    running.callback(process.terminate)
    return out


def make_repository(folder: Path) -> None:
    folder.mkdir()
    (folder / "adder.py").write_text("def add(a, b):\n    return a + b\n")
    (folder / "test_adder.py").write_text(
        "import unittest\nfrom adder import add\n\n\nclass Adds(unittest.TestCase):\n"
        "    def test_it(self):\n        self.assertEqual(add(2, 3), 5)\n"
    )
    author = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    for words in (("init", "--quiet"), ("add", "."), (*author, "commit", "--quiet", "-m", "An adder")):
        subprocess.run(["git", *words], cwd=folder, check=True)


def address_in(out: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (lines := [line for line in out.read_text().splitlines() if line.startswith("address")]):
        if time.monotonic() > deadline:
            raise SystemExit("the server did not start")
        time.sleep(0.05)
    return lines[0].split()[-1]


def play(base: Path, running: ExitStack) -> None:
    desk = base / "desk"
    repository = base / "repository"
    make_repository(repository)
    answer(desk, "init", "--name", "desk")
    address = address_in(start(running, desk, "serve", "--port", "0"))
    for target in TARGETS:
        token = answer(desk, "invite", target, "--worker", "build.")["token"]
        answer(base / target, "join", token)
        start(
            running, base / target, "work", str(HERE / "builds.py"), "--kinds", "build.", "--label", f"target={target}"
        )
    print(f"the desk serves at {address}; {' and '.join(TARGETS)} have joined")
    with hocket.open(desk) as node, node.working([nightly, publish]):
        payload = {"repository": str(repository), "targets": list(TARGETS)}
        hocket.admin(node).schedule("nightly", "30 2 * * *", nightly, payload, timezone="Europe/Vienna")
        tonight = node.submit(nightly, **payload)  # what the schedule does at half past two
        released = node.job(tonight.result(timeout=PATIENCE_S)).result(timeout=PATIENCE_S)
        if sorted(released) != sorted(TARGETS):
            raise SystemExit(f"the release has {released}")
        sizes = [len(hocket.admin(node).content(archive)) for archive in released.values()]
    print(f"{len(released)} targets are built from one commit and published, {min(sizes)} bytes each")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        play(Path(folder), stack)
