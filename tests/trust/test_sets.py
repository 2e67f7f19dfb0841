"""Submits, claims and completions that are judged as a set: the log and the roster are, byte for byte, those of ops
that are judged one by one, whatever routes, permissions, limits and other holders say.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hocket.families.availability.facts import Availability, SetAvailability
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Conflict, Usage
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import NO_ID
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import CancelJob, ClaimWork, CompleteJob, RouteKind, ScheduleJob, Telemetry, YieldWork
from hocket.log import set_judges
from hocket.log.set_judges import WrittenOp
from hocket.log.transaction import Transaction
from hocket.store import Session
from tests.trust.members import READS, START, Member, job, meet, owner, remembering

MANY = settings(max_examples=settings().max_examples * 4)
KINDS = ("acme.a", "acme.b", "other.c")
MINUTE_MS = 60_000
UNKNOWN = b"\x01" * 16
# What a job may have besides its kind.
OPTIONS: tuple[dict[str, Any], ...] = (
    *({} for _ in range(4)),
    {"open": True},
    {"ttl_ms": 30},
    {"not_before": START + 60},
    {"concurrency": 1},
    {"after": "known"},
    *({"after": "known", "open": True} for _ in range(3)),
    *({"after": "unknown"} for _ in range(2)),
    {"priority": 3},
)
# What follows a claim in the same transaction.
FOLLOWING = ("complete", "complete others", "yield", "cancel", "read")
numbers = st.integers(0, 9)
chosen = st.lists(numbers, min_size=2, max_size=8)
# Mostly of one kind, so that many belong together.
drawn_jobs = st.lists(st.tuples(st.sampled_from((*KINDS, *KINDS[:1] * 4)), st.sampled_from(OPTIONS)), max_size=6)
steps = st.one_of(
    st.tuples(st.just("submit"), drawn_jobs),
    st.tuples(st.just("submit together"), drawn_jobs),
    st.tuples(st.just("submit together and cite"), drawn_jobs),
    *(st.tuples(st.just("claim"), chosen) for _ in range(3)),
    st.tuples(st.just("claim and cite the first claim"), chosen),
    st.tuples(st.just("others claim"), chosen),
    *(st.tuples(st.just("complete"), chosen) for _ in range(2)),
    st.tuples(st.just("complete and cite more"), chosen),
    st.tuples(st.just("complete the first claim"), chosen),
    st.tuples(st.just("complete uncited"), chosen),
    st.tuples(st.just("yield"), chosen),
    *(st.tuples(st.just("in one transaction"), chosen, st.sampled_from(FOLLOWING)) for _ in range(2)),
    st.tuples(st.just("define"), st.sampled_from(KINDS), st.sampled_from([None, 1, 5])),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("route"), st.sampled_from(KINDS), st.booleans()),
    st.tuples(st.just("available"), st.sampled_from(Availability)),
    st.tuples(st.just("meet")),
    st.tuples(st.just("wait"), st.sampled_from([1, 40, 100_000])),
)
histories = st.tuples(
    drawn_jobs,
    st.lists(steps, min_size=3, max_size=12),
    st.sampled_from(["owner", "guest", "sharing", "sharing"]),
)


class Scene:
    """The coordinator and a worker. `writer` writes the sets."""

    def __init__(self, writer: str) -> None:
        self.owner = owner()
        self.worker = Member("worker")
        granted = (*(job(each, "acme.") for each in ("Schedule", "Claim", "Complete")), *READS)
        store = Capability("Store", "Decide", {"key_prefix": [node_text(self.owner.node)]})
        shared = (store,) if writer == "sharing" else ()
        self.worker.enter(self.owner.invite(self.worker, *granted, *shared), self.owner.token)
        meet(self.owner, self.worker)
        self.writer = self.owner if writer == "owner" else self.worker
        self.jobs: list[bytes] = []
        self.claims: dict[bytes, list[bytes]] = {}
        self.said: list[object] = []

    def submit(self, drawn: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, options in drawn:
            told = options | self._after(options)
            with_errors(lambda kind=kind, told=told: self.jobs.append(self.owner.submit(kind, **told)))  # type: ignore[misc]

    def submit_together(self, drawn: list[tuple[str, dict[str, Any]]], *cited: bytes) -> None:
        """By the writer, which may not submit all kinds."""
        asked = [
            (ScheduleJob(NO_ID, kind, b"{}", encode_policy(Policy(**(options | self._after(options))))), cited)
            for kind, options in drawn
        ]
        found = self.run(lambda tx: tx.author_all(asked))
        self.jobs += [op.id for op in found if isinstance(op, WrittenOp)]

    def _after(self, options: dict[str, Any]) -> dict[str, Any]:
        if "after" not in options:
            return {}
        return {"after": tuple(map(ulid_text, self.jobs[:1] if options["after"] == "known" else [UNKNOWN]))}

    def ids(self, numbers: list[int]) -> list[bytes]:
        return [self.jobs[number % len(self.jobs)] for number in numbers]

    def run(self, request: Callable[[Transaction], list[Any]]) -> list[Any]:
        """Runs a request of the writer, and notes what it answers and whom it wakes."""

        def noted(tx: Transaction) -> list[Any]:
            found = request(tx)
            tx.projection.flush()
            self.said += [*found, tx.changes]
            return found

        self.writer.clock.now += 1
        return self.writer.log.run(noted)

    def write(self, asked: list[tuple[Any, tuple[bytes, ...]]]) -> None:
        self._note_claims(asked, self.run(lambda tx: tx.author_all(asked)))

    def _note_claims(self, asked: list[tuple[Any, tuple[bytes, ...]]], found: list[Any]) -> None:
        for (payload, _), op in zip(asked, found, strict=True):
            if isinstance(op, WrittenOp) and isinstance(payload, ClaimWork):
                self.claims.setdefault(payload.job_id, []).append(op.id)

    def claim(self, numbers: list[int], *, citing: bool = False) -> None:
        cited = {each: tuple(self.claims.get(each, ())[:1]) if citing else () for each in self.ids(numbers)}
        self.write([(ClaimWork(each, self.writer.node, MINUTE_MS), cited[each]) for each in self.ids(numbers)])

    def others_claim(self, numbers: list[int]) -> None:
        asked = [(ClaimWork(each, self.owner.node, MINUTE_MS), ()) for each in self.ids(numbers)]
        self._note_claims(asked, self.owner.log.run(lambda tx: tx.author_all(asked)))
        meet(self.owner, self.worker)

    def complete(self, numbers: list[int], which: int | None = -1, *more: bytes) -> None:
        asked: list[tuple[Any, tuple[bytes, ...]]] = []
        for each in self.ids(numbers):
            claims = self.claims.get(each, [])
            cited = (claims[which], *more) if claims and which is not None else ()
            asked.append((completion(each), cited))
        self.write(asked)

    def claim_and(self, numbers: list[int], following: str) -> None:
        """Claims, and does something else with the same jobs before the transaction ends."""
        ids, node = self.ids(numbers), self.writer.node

        def request(tx: Transaction) -> list[Any]:
            claimed = tx.author_all([(ClaimWork(each, node, MINUTE_MS), ()) for each in ids])
            held = [(each, op.id) for each, op in zip(ids, claimed, strict=True) if isinstance(op, WrittenOp)]
            if following == "read":
                return [*claimed, *(tx.body(op_id) for _, op_id in held), *(tx.counts(op_id) for _, op_id in held)]
            if following == "cancel":
                return [*claimed, *(tx.author(CancelJob(each, "")) for each, _ in held)]
            if following == "yield":
                return [*claimed, *(tx.author(YieldWork(each, node, "no"), (op_id,)) for each, op_id in held)]
            ends = held if following == "complete" else [(self.ids([9])[0], op_id) for _, op_id in held]
            return [*claimed, *tx.author_all([(completion(each), (op_id,)) for each, op_id in ends])]

        self.run(request)

    def take(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("submit", drawn):
                self.submit(drawn)
            case ("submit together", drawn):
                self.submit_together(drawn)
            case ("submit together and cite", drawn):
                self.submit_together(drawn, UNKNOWN)
            case ("claim", numbers):
                self.claim(numbers)
            case ("claim and cite the first claim", numbers):
                self.claim(numbers, citing=True)
            case ("others claim", numbers):
                self.others_claim(numbers)
            case ("complete", numbers):
                self.complete(numbers)
            case ("complete the first claim", numbers):
                self.complete(numbers, 0)
            case ("complete and cite more", numbers):
                self.complete(numbers, -1, UNKNOWN)
            case ("complete uncited", numbers):
                self.complete(numbers, None)
            case ("yield", numbers):
                self.write([(YieldWork(each, self.writer.node, "no"), ()) for each in self.ids(numbers)])
            case ("in one transaction", numbers, following):
                self.claim_and(numbers, following)
            case ("define", kind, concurrency):
                self.owner.say(DefineKind(kind, encode_policy(Policy(concurrency=concurrency))))
                meet(self.owner, self.worker)
            case ("cancel", number):
                with_errors(lambda: self.owner.log.run(lambda tx: jobs.cancel(tx, self.ids([number])[0], "")))
            case ("route", kind, is_here):
                node = self.writer.node if is_here else self.owner.node ^ 1
                self.owner.say(RouteKind(kind, node))
                meet(self.owner, self.worker)
            case ("available", availability):
                self.owner.say(SetAvailability(self.writer.node, availability, ""))
                meet(self.owner, self.worker)
            case ("meet",):
                meet(self.owner, self.worker)
            case ("wait", ms):
                self.owner.clock.now += ms
                self.worker.clock.now += ms


def completion(job_id: bytes) -> CompleteJob:
    return CompleteJob(job_id, (), (), Telemetry(1, None, None, None))


def with_errors(request: Any) -> None:
    try:
        request()
    except (Conflict, Usage):
        pass


def rows(session: Session) -> Iterator[object]:
    yield from session.ops_after(0, 10_000)
    yield from session.each_job()


def played(history: Any) -> list[object]:
    submitted, taken, writer = history
    scene = Scene(writer)
    scene.submit([("acme.a", {}), *submitted])
    meet(scene.owner, scene.worker)
    for step in taken:
        scene.take(step)
    found: list[object] = [*scene.said]
    for member in (scene.owner, scene.worker):
        member.log.settle()
        with member.log.store.read() as session:
            found += rows(session)
        assert member.rebuilt()
    return found


PLAIN: list[tuple[str, dict[str, Any]]] = [("acme.a", {})] * 3


@pytest.mark.req("LW-51")
@MANY
@given(histories)
@example((PLAIN, [("route", "acme.a", False), ("claim", [0, 1, 2])], "owner"))
@example((PLAIN, [("available", Availability.DRAINING), ("claim", [0, 1, 2])], "owner"))
@example(([("acme.a", {"after": "known", "open": True})] * 3, [("claim", [1, 2, 3])], "owner"))
@example(([("other.c", {})] * 3, [("meet",), ("claim", [1, 2, 3])], "sharing"))
@example((PLAIN, [("claim", [0, 1, 2]), ("complete and cite more", [0, 1])], "owner"))
@example((PLAIN, [("submit together", [("acme.a", {}), ("acme.a", {"after": "unknown"})])], "owner"))
@example((PLAIN, [("claim", [0, 1]), ("yield", [0, 1]), ("claim", [0, 1]), ("complete the first claim", [0])], "owner"))
@example((PLAIN, [("define", "acme.a", 1), ("claim", [0, 1, 2]), ("complete", [0, 1, 2])], "owner"))
@example(([("acme.a", {"concurrency": 1})] * 3, [("claim", [1, 2, 3]), ("complete", [1, 2, 3])], "owner"))
@example(([("acme.a", {"not_before": START + MINUTE_MS})] * 3, [("claim", [1, 2, 3])], "owner"))
@example(([("acme.a", {"open": True})] * 3, [("claim", [1, 2, 3]), ("complete", [1, 2, 3])], "owner"))
@example((PLAIN, [("claim", [0, 1]), ("yield", [0, 1]), ("claim and cite the first claim", [0, 1])], "owner"))
@example((PLAIN, [("submit together and cite", PLAIN)], "owner"))
@example((PLAIN, [("others claim", [0, 1, 2]), ("complete", [0, 1, 2])], "sharing"))
def test_a_set_is_judged_as_its_ops_one_by_one(history: Any) -> None:
    with remembering():
        together = played(history)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(set_judges, "judge_of", lambda *_, **__: None)
            assert played(history) == together
