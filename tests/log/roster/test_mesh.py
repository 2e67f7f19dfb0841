"""Several nodes that each write their own ops and hear of the others' now and then: in the end all of them, and the
model, say the same of every job and every op, and an op that its author saw count is on every log.
"""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Conflict
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.postponing import NOW as NOW_AT_ONCE
from hocket.families.jobs.postponing import StartTime, postpone_pending
from hocket.families.jobs.rules import Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import Policy
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, RouteKind
from hocket.log import Log, Transaction
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild, roster_digest
from tests.log.roster.model import Mesh
from tests.log.roster.test_model import check
from tests.log.roster.world import KEYS, NODES, NOW, USER, Clock, new_log

KINDS = ("a", "b")
LEASE = 1_000


class Node:
    def __init__(self, number: int) -> None:
        self.clock = Clock()
        self.log = new_log(key=KEYS[number], wall=self.clock)
        self.held: list[jobs.Held] = []
        token = issue(USER, KEYS[number].public, ROOT, 0, None)
        self.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))

    def do(self, act: str, choice: int) -> None:
        run = self.log.run
        if act == "plain":
            self.log.append_plain(KINDS[choice % 2], b"{}")
        elif act == "submit":
            run(lambda tx: jobs.submit(tx, [jobs.Draft(KINDS[choice % 2], b"{}", self.policy(tx, choice))]))
        elif act == "claim":
            for claim in run(lambda tx: claiming.claim(tx, 1, 1 + choice % 3, lambda kind: LEASE)).taken:
                assert claim.job.claim_op is not None
                self.held.append(jobs.Held(claim.job.id, claim.job.claim_op))
        elif act == "expire":
            run(lambda tx: rescue.expire(tx, 10))
        elif act == "route":
            route = (None, *NODES)[choice % 4]
            run(lambda tx: tx.author(RouteKind(KINDS[choice % 2], route)))
        elif act == "wait":
            self.clock.now += (1, 300, LEASE, 5_000)[choice % 4]
        elif act == "move":
            run(lambda tx: self.move(tx, choice))
        elif act in ("cancel", "retry"):
            # A job cannot be tried anew before the one that it comes after; being told so writes nothing.
            with suppress(Conflict):
                run(lambda tx: self.end(tx, act, choice))
        elif self.held:
            self.speak(act, self.held[choice % len(self.held)])

    def policy(self, tx: Transaction, choice: int) -> Policy:
        tx.settle()
        tx.projection.flush()
        fit = [e.job.id for e in tx.session.each_job() if e.job.outcome in (None, Outcome.SUCCEEDED)]
        after = (ulid_text(fit[choice % len(fit)]),) if fit and choice % 3 == 0 else ()
        return Policy(retries=choice % 3, backoff_ms=100, after=after, priority=choice % 2)

    def end(self, tx: Transaction, act: str, choice: int) -> None:
        tx.settle()
        tx.projection.flush()
        stands = [e.job for e in tx.session.each_job()]
        if act == "cancel":
            open_jobs = [job.id for job in stands if job.outcome is None]
            if open_jobs:
                jobs.cancel(tx, open_jobs[choice % len(open_jobs)], "")
        else:
            ended = [job.id for job in stands if job.outcome in (Outcome.FAILED, Outcome.CANCELLED)]
            if ended:
                jobs.retry(tx, ended[choice % len(ended)], "")

    def move(self, tx: Transaction, choice: int) -> None:
        tx.settle()
        tx.projection.flush()
        pending = [e.job.id for e in tx.session.each_job() if e.job.state is State.PENDING]
        if pending:
            start = (NOW_AT_ONCE, StartTime(delay_ms=300), StartTime(tx.now + LEASE))[choice % 3]
            postpone_pending(tx, pending[choice % len(pending)], start, "")

    def speak(self, act: str, held: jobs.Held) -> None:
        requests: dict[str, Any] = {
            "complete": lambda tx: jobs.complete(tx, held, b"1", 1),
            "fail": lambda tx: jobs.fail(tx, held, "e", "t", True),
            "yield": lambda tx: jobs.hand_back(tx, held, ""),
            "renew": lambda tx: jobs.renew(tx, held, LEASE),
            "report": lambda tx: jobs.report(tx, held, b"50"),
        }
        result = self.log.run(requests[act])
        if isinstance(result, Reason) or act in ("complete", "fail", "yield"):
            self.held.remove(held)

    def ops(self) -> list[tuple[bytes, Op]]:
        with self.log.store.read() as session:
            return [
                (raw, decode(raw)) for row in session.entries_after(0, 10_000) if (raw := self.log.signed(row.body))
            ]

    def hear(self, other: "Node") -> None:
        self.log.admit(other.ops())


ACTS = (
    *("plain", "submit", "claim", "complete", "claim", "complete", "fail", "yield", "renew", "report", "expire"),
    *("wait", "cancel", "retry", "move", "route"),
)
CHOICES = st.integers(0, 11)
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from((*ACTS, "hear", "hear")), CHOICES), min_size=5, max_size=40
)


def all_the_same(logs: list[Log]) -> bytes:
    digests = set()
    for log in logs:
        log.settle()
        with log.store.read() as session:
            digests.add(roster_digest(session))
    (digest,) = digests
    return digest


@pytest.mark.req("LW-32", "LW-33", "LW-41")
@given(STEPS)
def test_nodes_that_have_heard_everything_agree(steps: list[tuple[int, str, int]]) -> None:
    nodes = [Node(number) for number in range(3)]
    for number, act, choice in steps:
        if act == "hear":
            nodes[number].hear(nodes[choice % 3])
        else:
            nodes[number].do(act, choice)
    own = {id(node): [op.id for _, op in node.ops() if op.node_id == node.log.node] for node in nodes}
    for node in nodes:
        for other in nodes:
            node.hear(other)
    every = {op.id: op for _, op in nodes[0].ops()}
    assert set(every) == {op_id for ids in own.values() for op_id in ids}
    digest = all_the_same([node.log for node in nodes])
    mesh = Mesh(every.values())
    for node in nodes:
        check(node.log, mesh, introductions=False)
        assert verify(node.log.store, user=node.log.user).findings == []
        assert rebuild(node.log.store, node.log.permissions_reader, NOW).unchanged
        check(node.log, mesh, introductions=False)
    assert all_the_same([node.log for node in nodes]) == digest


@pytest.mark.req("LW-32", "LW-33")
@given(st.lists(st.tuples(st.sampled_from(ACTS), CHOICES), min_size=5, max_size=40))
def test_what_a_node_wrote_alone_counts_and_another_reads_the_same(steps: list[tuple[str, int]]) -> None:
    """It refuses to write what would not count; so on its own log, and on everybody's, all of it counts."""
    node, other = Node(0), new_log()
    for act, choice in steps:
        node.do(act, choice)
    first, *rest = node.ops()
    other.admit([first])
    for item in reversed(rest):
        other.admit([item])
    with other.store.read() as session:
        assert session.refusal_counts() == {}
    all_the_same([node.log, other])
    check(other, Mesh(op for _, op in node.ops()), introductions=False)
