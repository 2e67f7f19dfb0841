from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.node.runtime import Runtime
from tests.server.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of a home with one node, for all tests of a module."""
    home: Path = tmp_path_factory.mktemp("page") / "home"
    Runtime.init(home, name="box").close()
    with serving(home) as running:
        yield running
