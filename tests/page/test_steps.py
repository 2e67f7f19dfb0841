"""What the first views ask the store costs about the same however many jobs wait and have ended."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hocket.api import Service, agents, locks, nodes, status
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.kernel.policy import DEFAULT
from hocket.log.evidence import signature_states
from hocket.node.runtime import Runtime
from tests.store.sqlite_steps import steps


def submit(runtime: Runtime, count: int) -> None:
    runtime.log.run(lambda tx: jobs.submit(tx, [Draft("acme.one", b"{}", DEFAULT)] * count))


def signatures(service: Service) -> None:
    with service.read() as session:
        signature_states(service.runtime.log, session, session.ops_after(0, 20))


@pytest.mark.parametrize(
    ("ask", "per_job"),
    [
        (status.status.function, 2.5),  # it counts the jobs that wait, by an index
        (nodes.live.function, 0),
        (nodes.listing.function, 0),
        (agents.listing.function, 0),
        (locks.queues, 0),
        (signatures, 0),
    ],
    ids=["status", "live nodes", "nodes", "agents", "locks", "signatures"],
)
def test_what_the_first_views_ask_costs_the_same_however_many_jobs_wait(
    tmp_path: Path, ask: Callable[[Service], object], per_job: float
) -> None:
    with closing(Runtime.init(tmp_path / "home", name="box")) as runtime:
        service, store = Service(runtime), runtime.store
        with store.write() as session:
            session.order_ops()  # as a server does when it starts
        submit(runtime, 40)
        ask(service)
        few = steps(store, lambda session: ask(service))
        submit(runtime, 3_000)
        ask(service)  # which also folds what was submitted
        assert 0 < steps(store, lambda session: ask(service)) <= few * 1.5 + 3_000 * per_job
