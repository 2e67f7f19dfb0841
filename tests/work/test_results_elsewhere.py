"""What becomes of a job's result when the artifact that holds it does not count, or may not be read, on some node."""

from typing import Any

import msgspec
import pytest

from hocket.errors import Failed
from hocket.extensions.sim.node import Clocks
from hocket.families.jobs import claiming, view
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Held
from hocket.families.jobs.rules import Outcome
from hocket.kernel.authority import revoke_root
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import CreateArtifact, DesignateCoordinator
from hocket.log.transaction import GAPS
from tests.work.test_offers import USER, Home, virtually


class Pair:
    """The coordinator and another node, which have heard of each other."""

    def __init__(self) -> None:
        self.arbiter, self.other = Home(1, Clocks(1.0, 0.0)), Home(2, Clocks(1.0, 0.0))
        self.arbiter.log.run(lambda tx: tx.author(DesignateCoordinator(tx.node)))
        self.exchange()

    def exchange(self) -> None:
        self.arbiter.take(self.other.bodies())
        self.other.take(self.arbiter.bodies())

    def completed(self, by: Home, **policy: Any) -> bytes:
        """A job that one of them has done, with a result."""
        job_id = self.arbiter.submit("a", **policy)
        self.exchange()
        by.log.run(lambda tx: claiming.claim(tx, 1, 1, {"a": 60_000}.get, offering=True))
        self.exchange()
        held = Held(job_id, by.job(job_id).claim_op or b"")
        by.log.run(lambda tx: jobs.complete(tx, held, b'"paid"', 1))
        return job_id

    def revoke(self) -> None:
        other = self.other.log.node.to_bytes(8, "big")
        with self.arbiter.store.read() as session:
            cids = [each.cid for each in session.delegations() if each.hlc[12:] == other]
        self.arbiter.log.run(lambda tx: [tx.author(revoke_root(USER, cid)) for cid in cids])


def result(home: Home, job_id: bytes) -> Any:
    with home.store.read() as session:
        return view.result(session, home.job(job_id))


@virtually
async def test_a_result_that_is_not_here_is_not_taken_for_none() -> None:
    pair = Pair()
    job_id = pair.completed(pair.other)
    pair.exchange()
    assert result(pair.arbiter, job_id) == "paid"
    with pair.arbiter.store.read() as session:
        job = msgspec.structs.replace(pair.arbiter.job(job_id), artifacts=(bytes(16),))
        with pytest.raises(Failed, match="not on this log"):
            view.result(session, job)


@pytest.mark.req("LW-39")
@virtually
async def test_a_result_stands_with_the_completion_that_the_arbiter_accepted() -> None:
    pair = Pair()
    job_id = pair.completed(pair.other)
    pair.exchange()
    pair.revoke()
    assert pair.arbiter.job(job_id).outcome is Outcome.SUCCEEDED
    assert result(pair.arbiter, job_id) == "paid"


@virtually
async def test_a_node_that_may_not_read_artifacts_hears_of_completions_all_the_same() -> None:
    pair = Pair()
    job_id = pair.completed(pair.arbiter, open=True)
    bodies = pair.arbiter.bodies()
    with pair.other.store.write() as session:
        session.set_meta(GAPS, b"1")
    pair.other.take([body for body in bodies if not isinstance(decode(body).payload, CreateArtifact)])
    assert pair.other.job(job_id).outcome is Outcome.SUCCEEDED
