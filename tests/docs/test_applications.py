"""The web applications among the examples, where their frameworks are installed: a request, a worker, its result."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs import reader
from tests.docs.test_examples import EXAMPLES

FASTAPI = """
import subprocess
from app import app
from starlette.testclient import TestClient

with TestClient(app) as client:
    answer = client.post("/reports?day=today")
    job = answer.json()["job"]
    again = client.post("/reports?day=today").json()["job"]
    subprocess.run(["hocket", "work", "reports.py", "--until-idle"], check=True)
    print(answer.status_code, again == job, client.get(f"/reports/{job}").json()["result"])
    print(client.get("/reports/none").status_code)
"""

DJANGO = """
import subprocess
import shop
from django.test import Client

shop.create_table()
client = Client()
answer = client.get("/orders")
subprocess.run(["hocket", "work", "shop.py", "--until-idle"], check=True)
print(answer.status_code, client.get("/orders/1").json(), client.get("/orders/2").status_code)
"""


def play(tmp_path: Path, folder: str, script: str) -> str:
    """What the script prints, in the example's folder and with a home of its own."""
    env = reader.environment(tmp_path)
    env |= {"SHOP_DATABASE": str(tmp_path / "shop.db"), "PYTHONPATH": os.pathsep.join([".", env["PYTHONPATH"]])}
    subprocess.run(["hocket", "init"], env=env, check=True, stdout=subprocess.DEVNULL, timeout=reader.PATIENCE_S)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=EXAMPLES / folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=reader.PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(find_spec("fastapi") is None, reason="FastAPI is not installed")
def test_fastapi(tmp_path: Path) -> None:
    out = play(tmp_path, "fastapi_app", FASTAPI)
    assert "202 True report of today" in out and out.endswith("404\n")


@pytest.mark.skipif(find_spec("django") is None, reason="Django is not installed")
def test_django(tmp_path: Path) -> None:
    assert play(tmp_path, "django_app", DJANGO).endswith("202 {'state': 'settled'} 404\n")
