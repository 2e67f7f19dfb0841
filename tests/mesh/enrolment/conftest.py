from collections.abc import Iterator
from pathlib import Path

import pytest

from .people import Mesh


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(tmp_path)
    yield made
    made.close()
