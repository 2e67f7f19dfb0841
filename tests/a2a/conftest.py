from collections.abc import Iterator

import pytest

from tests.a2a.clients import KIND, OTHER_KIND, A2aClient
from tests.mcp.agents import new_home
from tests.server.served import Served, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(new_home(tmp_path_factory.mktemp("a2a")), "--a2a", KIND, "--a2a", OTHER_KIND) as running:
        yield running


@pytest.fixture(scope="module")
def ann(served: Served) -> A2aClient:
    return A2aClient(served, "ann", "all")


@pytest.fixture(scope="module")
def bob(served: Served) -> A2aClient:
    return A2aClient(served, "bob", "all")
