"""A worker inside a web application under a real uvicorn: one SIGINT ends both, and no job waits for its lease."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


class Web:
    """`examples/web.py` on a free port, as its docstring says to start it."""

    def __init__(self, home: Path) -> None:
        self.address = f"http://127.0.0.1:{free_port()}"
        words = [sys.executable, "-m", "uvicorn", "--app-dir", "examples", "web:app", "--port"]
        env = os.environ | {"HOCKET_HOME": str(home)}
        self.process = subprocess.Popen([*words, self.address.rpartition(":")[2]], cwd=ROOT, env=env)

    def ask(self, path: str, method: str = "GET") -> tuple[int, Any]:
        request = urllib.request.Request(self.address + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def until(self, path: str, **expected: object) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None and time.monotonic() < deadline, f"{path} never shows {expected}"
            try:
                if expected.items() <= self.ask(path)[1].items():
                    return
            except urllib.error.URLError:
                pass  # it is starting
            time.sleep(0.02)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    hocket.init(tmp_path / "home")
    made = Web(tmp_path / "home")
    try:
        made.until("/status", running=0)
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def test_one_sigint_ends_the_server_and_its_worker(web: Web, tmp_path: Path) -> None:
    code, quick = web.ask("/thumbnails?src=cat.png", "POST")
    assert code == 202
    web.until(f"/thumbnails/{quick['job_id']}", outcome="succeeded", result="small-cat.png")
    assert web.ask("/thumbnails/nonsense")[0] == 404
    soon = web.ask("/thumbnails?src=dog.png&seconds=3", "POST")[1]["job_id"]
    never = web.ask("/thumbnails?src=cow.png&seconds=600", "POST")[1]["job_id"]
    web.until(f"/thumbnails/{never}", state="running")

    web.process.send_signal(signal.SIGINT)
    web.process.wait(PATIENCE_S)
    with hocket.open(tmp_path / "home") as node:
        assert node.job(soon).status()["result"] == "small-dog.png"  # it ended within the grace
        handed_back = node.job(never).status()
        assert (handed_back["state"], handed_back["ops"][-1]["type"]) == ("pending", "YieldWork")
        assert hocket.admin(node).status().workers == []
    assert list((tmp_path / "home" / "processes").iterdir()) == []
