"""The options of a handler hold for every submitter of its kind: a worker that starts puts them on the log, once, and
a submit takes what it does not say itself.
"""

import asyncio
import threading
from pathlib import Path

import msgspec
import pytest

import hocket
from hocket.events.jobs import KindsNotDefined
from hocket.families.jobs import claiming, cron
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.cron import NewSchedule
from hocket.families.jobs.drafts import draft, policy, said
from hocket.families.kinds.facts import DefineKind
from hocket.kernel.arbitration import Reason
from hocket.kernel.mesh_rules import HOCKET, STRICT
from hocket.kernel.ops import decode
from hocket.kernel.policy import DEFAULT, Policy, names_of
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import RevokeUcan
from hocket.log import Log, Transaction
from hocket.work import handlers as work_kinds
from hocket.work.handlers import Handlers, JobType
from tests.log.roster import world
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS
from tests.log.test_permissions import WORKER, WORKER_NODE, Mesh, token
from tests.trust import members
from tests.trust.members import START, USER, Member, key

KIND = "acme.render"


@pytest.fixture(autouse=True)
def all_can_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)


def handler(kind: str = KIND, **options: object) -> JobType:
    """As @job makes it, unregistered."""
    return JobType(kind, policy(DEFAULT, **options), lambda ctx: None, said=said(options))


def owner(name: str = "owner") -> Member:
    return Member(name).enter(issue(USER, key(name).public, ROOT, START // 1000 - 10, None))


def define(member: Member, *handlers: JobType) -> list[str]:
    return member.log.run(lambda tx: work_kinds.define_kinds(tx, Handlers(handlers)))


def submitted(member: Member, kind: str = KIND, **options: object) -> Policy:
    made = member.log.run(lambda tx: jobs.submit(tx, [draft(kind, {}, options)]))[0]
    entry = member.entry(made.job_id)
    assert entry is not None
    return entry.job.policy


def ops(log: Log, payload: type) -> int:
    with log.store.read() as session:
        return sum(isinstance(decode(row.body).payload, payload) for row in session.ops_after(0, 10_000))


@pytest.mark.req("LW-41")
def test_a_submit_takes_the_handlers_options_unless_it_says_otherwise() -> None:
    member = owner()
    options = {
        "concurrency": 1,
        "backoff": "5s",
        "retries": 4,
        "lease": "2m",
        "priority": 7,
        "rate": "10/s",
        "needs": "gpu",
    }
    assert define(member, handler(**options)) == []
    assert submitted(member) == policy(DEFAULT, **options)
    other = submitted(member, retries=0, priority=0, backoff="1s")
    assert (other.retries, other.priority, other.backoff_ms) == (0, 0, 1_000), "said, although it is the default"
    assert (other.concurrency, other.lease_ms) == (1, 120_000)
    assert submitted(member, "acme.other") == DEFAULT


def test_the_log_gets_an_op_only_when_the_options_have_changed() -> None:
    member = owner()
    for _ in range(3):
        define(member, handler(concurrency=1), handler("acme.plain"))
    assert ops(member.log, DefineKind) == 1, "none for a kind without options"
    define(member, handler(concurrency=2))
    assert submitted(member).concurrency == 2
    define(member, handler())
    assert submitted(member) == DEFAULT
    assert ops(member.log, DefineKind) == 3
    assert member.rebuilt()


def test_what_belongs_to_one_job_is_no_default_of_its_kind() -> None:
    member = owner()
    define(member, handler(unique="u", not_before=5, unique_for="1h", retries=1))
    assert submitted(member) == Policy(retries=1)


def test_a_prefix_is_defined_for_the_kinds_below_it_that_have_no_options_of_their_own() -> None:
    assert list(names_of("a.b.c")) == ["a.b.c", "a.b.", "a."] and list(names_of("a")) == ["a"]
    member = owner()
    define(member, handler("acme.", retries=1), handler("acme.render.", retries=2), handler("acme.x"))
    found = {kind: submitted(member, kind).retries for kind in ("acme.a", "acme.render.a.b", "acme.x", "acmes", "acme")}
    assert found == {"acme.a": 1, "acme.render.a.b": 2, "acme.x": None, "acmes": None, "acme": None}


@pytest.mark.parametrize("limit", [{"concurrency": 1}, {"rate": "1/1h"}])
def test_the_limits_of_a_kind_hold_for_jobs_that_were_submitted_before(limit: dict[str, object]) -> None:
    member = owner()
    for _ in range(4):
        submitted(member)
    define(member, handler(**limit))
    claims = member.log.run(lambda tx: claiming.claim(tx, 1, 4, lambda kind: 60_000))
    assert len(claims.taken) == 1


def test_the_end_of_a_job_wakes_workers_that_the_kinds_limit_holds_back() -> None:
    member = owner()
    submitted(member), submitted(member)
    define(member, handler(concurrency=1))
    (claim,) = member.log.run(lambda tx: claiming.claim(tx, 1, 4, lambda kind: 60_000)).taken
    assert claim.job.claim_op is not None
    held = jobs.Held(claim.job.id, claim.job.claim_op)

    def finish(tx: Transaction) -> set[str]:
        jobs.complete(tx, held, None, 1)
        return tx.projection.jobs.ready_kinds()

    assert member.log.run(finish) == {KIND}


def grid_owner(name: str = "grid") -> Member:
    rules = msgspec.structs.replace(HOCKET, ranked_open=True)
    return Member(name, rules).enter(issue(USER, key(name).public, ROOT, START // 1000 - 10, None))


@pytest.mark.req("GR-12")
def test_the_rules_of_a_mesh_can_open_ranked_jobs_by_default() -> None:
    member, ordinary = grid_owner(), owner()
    for options in ({"claim": "rendezvous"}, {"claim": "sticky", "sticky": "repository"}):
        assert submitted(member, **options).open is True
        assert not submitted(member, open=False, **options).open
        assert submitted(ordinary, **options).open is None, "as before there was such a rule"
    assert submitted(member) == DEFAULT, "a job that is not ranked is decided by the coordinator"
    assert submitted(member, open=True).open is True

    define(member, handler(claim="rendezvous"), handler("acme.decided", claim="rendezvous", open=False))
    assert submitted(member).open is True, "ranked by its kind"
    assert not submitted(member, claim="first").open
    assert not submitted(member, "acme.decided").open, "its kind says that it is not"
    assert submitted(member, "acme.decided", open=True).open is True


@pytest.mark.req("GR-12")
def test_ticks_of_ranked_jobs_are_open_where_the_mesh_says_so() -> None:
    member = grid_owner()
    plan = NewSchedule("nightly", "* * * * *", "UTC", draft(KIND, {}, {"claim": "rendezvous"}))
    member.log.run(lambda tx: cron.add(tx, cron.check(plan)))
    member.clock.now += 120_000
    assert member.log.run(cron.make_due) == 1, "the tick counts"
    with member.log.store.read() as session:
        (entry,) = session.each_job()
    assert entry.job.policy.open is True


def test_a_schedule_takes_the_options_of_its_kind() -> None:
    member = owner()
    define(member, handler(concurrency=1, retries=3))
    plan = NewSchedule("nightly", "* * * * *", "UTC", draft(KIND, {}, {"retries": 0}))
    member.log.run(lambda tx: cron.add(tx, cron.check(plan)))
    member.clock.now += 120_000
    assert member.log.run(cron.make_due) == 1, "the tick counts"
    with member.log.store.read() as session:
        (job,) = [entry.job for entry in session.each_job()]
    assert (job.policy.concurrency, job.policy.retries) == (1, 0)


@pytest.mark.req("LW-24")
def test_a_worker_without_the_right_is_told() -> None:
    granted = [Capability("Job", "Claim", {}), Capability("Job", "Define", {"kind_prefix": ["acme."]})]
    member = Member("limited").enter(issue(USER, key("limited").public, granted, START // 1000 - 10, None))
    handlers = handler(priority=1), handler("pay.out", priority=1), handler("pay.run", retries=1)
    assert define(member, *handlers) == ["pay.out"]
    assert "job:define" in str(KindsNotDefined(("pay.out",)))


@pytest.mark.req("LW-24")
def test_a_definition_without_the_right_does_not_count() -> None:
    granted = [Capability("Job", action, {}) for action in ("Schedule", "Claim", "Complete", "Read")]
    mesh = Mesh(token([*granted, Capability("Job", "Define", {"kind_prefix": ["acme."]})]))
    mine = mesh.worker(10, DefineKind("acme.render", b'{"concurrency":1}'))
    foreign = mesh.worker(11, DefineKind("pay.out", b'{"concurrency":1}'))
    log = everywhere_the_same(mesh.ops[1:], (*INTRODUCTIONS, *mesh.ops[:1]))
    assert (reason(log, mine), reason(log, foreign)) == (0, Reason.UNAUTHORISED)
    with log.store.read() as session:
        assert [row.subject.key for row in session.each_subject()] == [b"acme.render"]


@pytest.mark.req("LW-24", "LW-27")
def test_the_latest_definition_counts_in_every_order_and_a_revoked_one_gives_way() -> None:
    mesh = Mesh(token([Capability("Job", "Define", {})]))
    mesh.owner(10, DefineKind(KIND, b'{"retries":1}'))
    mesh.worker(20, DefineKind(KIND, b'{"retries":2}'))
    assert defined(mesh) == {"retries": 2}
    mesh.owner(30, RevokeUcan(mesh.ops[0].payload.ucan_cid))  # type: ignore[union-attr]
    assert defined(mesh) == {"retries": 1}


def defined(mesh: Mesh) -> dict[str, object]:
    log = everywhere_the_same(mesh.ops[1:], (*INTRODUCTIONS, *mesh.ops[:1]))

    def ask(tx: Transaction) -> Policy:
        return tx.projection.defaults(KIND)

    found = log.run(ask)
    return {
        name: getattr(found, name)
        for name in Policy.__struct_fields__
        if getattr(found, name) != getattr(DEFAULT, name)
    }


@pytest.mark.parametrize(
    ("kind", "envelope", "why"),
    [
        ("", b"", Reason.BAD_KIND),
        ("a\nb", b"", Reason.BAD_KIND),
        (KIND, b"[]", Reason.BAD_POLICY),
        (KIND, b'{"unknown":1}', Reason.BAD_POLICY),
        (KIND, b'{"unique":"x"}', Reason.BAD_POLICY),
        (KIND, b'{"needs":["a b"]}', Reason.BAD_POLICY),
    ],
)
def test_a_bad_definition_does_not_count(kind: str, envelope: bytes, why: Reason) -> None:
    member = owner()
    assert member.log.run(lambda tx: tx.author(DefineKind(kind, envelope))) is why


def test_a_strict_mesh_has_no_definitions() -> None:
    member = Member("strict", STRICT).enter(issue(USER, key("strict").public, ROOT, START // 1000 - 10, None))
    assert define(member, handler(concurrency=1)) == []
    assert ops(member.log, DefineKind) == 0


def test_only_what_a_worker_serves_is_defined() -> None:
    member = owner()
    some = [handler("a.x", retries=1), handler("b.x", retries=1)]
    member.log.run(lambda tx: work_kinds.define_kinds(tx, Handlers(some, only=["a."])))
    assert submitted(member, "a.x").retries == 1 and submitted(member, "b.x").retries is None


def test_a_worker_puts_its_options_on_the_log_before_it_claims(tmp_path: Path) -> None:
    """The peak of four jobs from a program that knows nothing of the handler: one at once."""
    running: set[str] = set()
    met = threading.Event()

    def render(ctx: hocket.Context) -> None:
        running.add(ctx.job_id)
        if len(running) > 1:
            met.set()
        met.wait(0.1)  # two at once would meet
        running.discard(ctx.job_id)

    hocket.init(tmp_path)
    with hocket.open(tmp_path) as node:
        before = [node.submit(KIND) for _ in range(4)]
        made = JobType(KIND, policy(DEFAULT, concurrency=1, retries=2), render)
        node.work([made], until_idle=True)
        after = [node.submit(KIND), *node.submit_many([(KIND, {})] * 3)]
        node.work([made], until_idle=True)
        assert not met.is_set()
        assert [each.status()["outcome"] for each in (*before, *after)] == ["succeeded"] * 8
        assert [each.status()["options"] for each in after] == [{"concurrency": 1, "retries": 2}] * 4
        assert [each.status()["options"] for each in before] == [{}] * 4


def test_the_async_node_takes_them_too(tmp_path: Path) -> None:
    hocket.init(tmp_path)

    async def submit() -> object:
        async with hocket.open(tmp_path) as node:
            await node.run(lambda tx: work_kinds.define_kinds(tx, Handlers([handler(retries=2)])))
            return (await (await node.submit(KIND)).status())["options"]

    assert asyncio.run(submit()) == {"retries": 2}


@pytest.mark.req("LW-39")
def test_a_definition_holds_for_the_claims_that_the_arbiter_gets_with_it() -> None:
    arbiter, worker = members.owner("arbiter"), Member("gpu")
    grants = (*members.WORKER, *members.READS, Capability("Job", "Define", {"kind_prefix": ["acme."]}))
    worker.enter(arbiter.invite(worker, *grants), arbiter.token)
    made = [arbiter.submit("acme.x") for _ in range(3)]
    members.meet(arbiter, worker)
    define(worker, handler("acme.x", concurrency=1))
    wanted = worker.log.run(lambda tx: claiming.claim(tx, 1, 3, lambda kind: 60_000, offering=True)).wanted
    assert len(wanted) == 3
    arbiter.pull(worker)
    held = [entry for each in made if (entry := arbiter.entry(each)) is not None and entry.job.claimer is not None]
    assert len(held) == 1
