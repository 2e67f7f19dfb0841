"""Hypothesis profiles, chosen by HYPOTHESIS_PROFILE: `default`, `quick` with half of the examples, `soak` with sixty
times as many, or `shrink`, which looks for the smallest example that fails. Every run draws other examples, but for
those in CI: there a change is judged by what it changes.

Also where the files of tests lie, and what the programs that tests start inherit.
"""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.conformance import COLLECTED
from tests.libsql_server import end_servers
from tests.memory import IN_MEMORY
from tests.postgres_server import end_databases

pytest_itemcollected = COLLECTED.pytest_itemcollected

EXAMPLES = 20

# No deadline: on a busy machine a slow example is not a wrong one. A failing example is neither shrunk nor explained:
# that takes longer than a test may take, which would then be killed before it says what has failed.
settings.register_profile(
    "default",
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.register_profile("shrink", settings.get_profile("default"), phases=[*Phase])
settings.register_profile("quick", settings.get_profile("default"), max_examples=EXAMPLES // 2)
settings.register_profile("soak", settings.get_profile("default"), max_examples=EXAMPLES * 60)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Hundreds of programs are started: each module is compiled once, for all of them, even where Python was told not to.
COMPILED = str(Path(__file__).parents[1] / ".cache" / "compiled")
sys.dont_write_bytecode, sys.pycache_prefix = False, COMPILED
os.environ["PYTHONPYCACHEPREFIX"] = COMPILED
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests may run as root, and run commands of other nodes; those about root's workers unset it.
os.environ["HOCKET_COMMANDS_AS_ROOT"] = "1"


if IN_MEMORY is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))

# Whoever starts the tests in the background may have told them to ignore SIGINT, and they would hand that on to the
# programs that they start. A handler is not handed on: those programs begin with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)


# What is collected stays: no search for garbage looks at it, then or later, which takes 0.2 s each time.
gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each process begins with its share of the slow tests: a run whose last test takes a minute takes a minute longer.
    At first xdist gives each an equal part of the list.
    """
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    slow = [each for each in items if each.get_closest_marker("slow")]
    others = [each for each in items if not each.get_closest_marker("slow")]
    left, items[:] = len(items), []
    for number in range(processes):
        begins = slow[number::processes]
        rest = max(0, (left - len(items)) // (processes - number) - len(begins))
        items += begins + others[:rest]
        del others[:rest]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def no_bus_of_another_test() -> None:
    """No test uses the message server of an earlier one, whatever that has left behind."""
    os.environ.pop("HOCKET_BUS", None)


@pytest.fixture(autouse=True)
def databases_end() -> Iterator[None]:
    """A test's own libSQL servers, and databases of PostgreSQL, end with it."""
    yield
    end_servers()
    end_databases()
