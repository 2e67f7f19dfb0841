"""The official TypeScript client: every tool, resources, an error and a cancel, over stdio and HTTP, in both revisions
of the protocol. Needs node, and npm to fetch the client.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import npm
from tests.mcp.agents import new_home
from tests.mcp.test_http import token
from tests.server.served import ROOT, Served, environment, serving

HERE = Path(__file__).parent / "typescript_client"
# Some thirty calls, which take three seconds on a machine that does nothing else.
PATIENCE_S = 240


@pytest.fixture(scope="module")
def packages() -> Path:
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < 20:
        pytest.skip(f"the client needs node 20, and this is {version}")
    path, reason = npm.install(HERE)
    if reason is not None:
        pytest.skip(reason)
    return path


@pytest.fixture(scope="module")
def served(packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(new_home(tmp_path_factory.mktemp("typescript")), "--mcp") as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(("way", "revision"), [("stdio", "auto"), ("http", "auto"), ("http", "legacy")])
def test_the_typescript_client_does_all_that_agents_do(packages: Path, served: Served, way: str, revision: str):
    if way == "stdio":
        server = [sys.executable, "-m", "hocket", "--home", str(served.home), "mcp", "--agent", "typescript"]
    else:
        server = [f"{served.address}/mcp", token(served.home, f"typescript-{revision}")]
    words = ["node", str(HERE / "agent.mjs"), str(packages), revision, *server]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, env=environment({}), cwd=ROOT)
    assert done.returncode == 0 and f"did all in revision {revision}" in done.stdout, done.stdout + done.stderr
