"""Which jobs a claim takes: the most urgent that the worker wants, however many others stand before them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hocket.testing
from hocket.bus.hints import Changes
from hocket.families.jobs import claiming
from hocket.families.jobs.requests import Draft
from hocket.kernel.ops import decode
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import ScheduleJob
from hocket.work.handlers import Handlers, JobType

pytestmark = pytest.mark.touches("LW-41")


def number_of(schedule: bytes) -> int:
    payload = decode(schedule).payload
    assert isinstance(payload, ScheduleJob)
    return int(payload.payload)


@pytest.mark.req("LW-41")
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(-2, 2), st.booleans()), max_size=30),
    st.integers(0, 6),
)
def test_a_claim_takes_the_most_urgent_jobs_that_are_wanted(waiting: list[tuple[str, int, bool]], limit: int) -> None:
    with hocket.testing.node() as node:
        drafts = [
            Draft(kind, str(number).encode(), Policy(priority=priority))
            for number, (kind, priority, _) in enumerate(waiting)
        ]
        made = node.runtime.submit(drafts)
        log = node.runtime.log
        wants = lambda job, schedule: waiting[number_of(schedule)][2]  # noqa: E731
        claims = log.run(lambda tx: claiming.claim(tx, 1, limit, {"a": 1_000, "b": 1_000}.get, wants=wants))
    eligible = [
        (-priority, number, submitted.job_id)
        for number, ((kind, priority, wanted), submitted) in enumerate(zip(waiting, made, strict=True))
        if wanted and kind != "c"
    ]
    assert [claim.job.id for claim in claims.taken] == [job_id for _, _, job_id in sorted(eligible)[:limit]]


def test_a_worker_is_idle_when_only_jobs_are_left_that_it_does_not_want() -> None:
    done: list[int] = []

    def function(ctx: hocket.Context, n: int) -> None:
        done.append(n)

    picky = JobType("a", function=function, wants=lambda session, schedule: b'{"n":7}' in schedule)
    with hocket.testing.node() as node:
        node.submit_many([("a", {"n": n}) for n in range(40)])
        worker = node.work(Handlers([picky]), until_idle=True)
        assert done == [7] and worker.succeeded == 1


# What a worker listens for.

KINDS = ["a", "b", "ab", "a.b", "a.b.c", "a.bc", "a.b.c.d", "b.a", "c"]


@given(
    st.lists(st.sampled_from(KINDS), max_size=4),
    st.lists(st.sampled_from(["a.", "b.", "a.b."]), max_size=2),
    st.lists(st.sampled_from(["a", "a.", "b", "a.b", "a.b.", "c"]), max_size=2),
)
def test_a_worker_listens_for_every_kind_that_it_serves(exact: list[str], prefixes: list[str], only: list[str]) -> None:
    handlers = Handlers([JobType(each, function=print) for each in exact + prefixes], only)
    topics = Changes(handlers.topics())
    heard = {kind for kind in KINDS if Changes(frozenset((kind,))).matches(topics)}
    served = {kind for kind in KINDS if handlers.find(kind) is not None}
    assert heard >= served
    assert only or heard == served


@pytest.mark.req("LW-19")
@pytest.mark.parametrize(
    ("only", "served"),
    [
        (["acme."], {"acme.render", "acme.render.fast"}),
        (["acme"], {"acme"}),
        (["acme.render"], {"acme.render"}),
        (["acme.render."], {"acme.render.fast"}),
        (["acme", "acme."], {"acme", "acme.render", "acme.render.fast"}),
        ([], {"acme", "acme.render", "acme.render.fast", "acmes"}),
    ],
)
def test_a_name_with_a_dot_serves_the_kinds_below_it(only: list[str], served: set[str]) -> None:
    kinds = ("acme", "acme.render", "acme.render.fast", "acmes")
    handlers = Handlers([JobType(kind, function=print) for kind in kinds], only)
    assert {kind for kind in kinds if handlers.find(kind) is not None} == served
