"""Every test of the log and of the roster runs over every store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.log.succession.leading import CoordinatorLead
from tests import stores
from tests.stores import STORES, StoreKind

# The modules that run over each store in CI. All others do so over the first one, and over the rest with `make soak`.
OVER_EACH = (
    "test_admit",
    "test_arguments",
    "test_changes",
    "test_clock",
    "test_commit",
    "test_locks",
    "test_machine_clock",
)
# Those that take long run over one server alone.
OVER_POSTGRES = ("test_kills", "test_pruning", "test_pruning_plants")
# The modules about a log that only one node writes.
OF_ONE_NODE = ("test_sealing", "test_snapshot_bytes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    first, *rest = STORES
    module = metafunc.module.__name__.rpartition(".")[2]
    rest = [] if module in OF_ONE_NODE else rest
    some = rest if module in OVER_EACH else ["postgres"] if module in OVER_POSTGRES else []
    kinds = [first, *(pytest.param(name, marks=() if name in some else pytest.mark.soak) for name in rest)]
    metafunc.parametrize("store_kind", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def store_kind(request: pytest.FixtureRequest) -> Iterator[StoreKind]:
    kind = STORES[request.param]
    stores.use(kind)
    yield kind
    stores.use(next(iter(STORES.values())))


@pytest.fixture
def store_url(store_kind: StoreKind, tmp_path: Path) -> str:
    """Where a store is kept that can be opened again."""
    return store_kind.address(tmp_path)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator decides without asking the nodes that may follow it: these tests are about what is on the log."""
    monkeypatch.setattr(CoordinatorLead, "bound_by", lambda self, session, permissions: ())
