"""Every test of the log and of the roster runs over every store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import stores
from tests.stores import STORES, StoreKind


@pytest.fixture(scope="session", autouse=True, params=STORES)
def store_kind(request: pytest.FixtureRequest) -> Iterator[StoreKind]:
    kind = STORES[request.param]
    stores.use(kind)
    yield kind
    stores.use(next(iter(STORES.values())))


@pytest.fixture
def store_url(store_kind: StoreKind, tmp_path: Path) -> str:
    """Where a store is kept that can be opened again."""
    return store_kind.address(tmp_path)
