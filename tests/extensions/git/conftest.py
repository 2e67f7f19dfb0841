from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.git.places import KINDS, Place, place


@pytest.fixture(params=KINDS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A plane in each way that git reaches one."""
    with place(request.param, tmp_path) as here:
        yield here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A bare repository on this disk."""
    with place("bare", tmp_path) as bare:
        yield bare
