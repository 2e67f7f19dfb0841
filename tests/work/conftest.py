from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.work.mesh import Mesh, mesh_in


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[Mesh]:
    with mesh_in(tmp_path) as made:
        yield made
