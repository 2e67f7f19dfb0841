"""Bundles among members: what is written as one, who gets it, what it costs its author, and what a forged one does."""

from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.candidates import Candidates, worker_id
from hocket.families.jobs.requests import Completion, Held
from hocket.families.jobs.rules import Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.bundles import FACTS_MAX, count_of, facts_of
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.mesh_rules import HOCKET
from hocket.kernel.ops import NO_ID, Op, bound, encode, link_to, schedule_payload, sign
from hocket.kernel.signing import is_marked
from hocket.kernel.ucan import ROOT, Capability, Quota, issue
from hocket.kernel.vocabulary import (
    Bundle,
    ClaimWork,
    IngestEvidence,
    Payload,
    RouteKind,
    ScheduleJob,
)
from hocket.log.audit import verify
from hocket.log.limits import HANDED_ON_FACTOR
from hocket.mesh.outgoing import page, reader
from hocket.mesh.quotas import Quotas
from hocket.work.claim_order import ClaimOrder, HeardClaims
from tests.bundled import bundled
from tests.trust.members import DID, READS, START, USER, WORKER, Forger, Member, job, key, meet, owner
from tests.trust.test_quotas import quota, written

pytestmark = pytest.mark.touches("LW-51")

Received = tuple[bytes, Op]


def entries(member: Member) -> list[tuple[str, int]]:
    """What is on the log, entry by entry: of a bundle what it carries, and how often."""
    found = []
    for raw, op in member.ops():
        if isinstance(op.payload, Bundle):
            found.append((type(next(facts_of(op)).op.payload).__name__, count_of(raw, op)))
        else:
            found.append((type(op.payload).__name__, 1))
    return found


def claimed(member: Member, limit: int = 50) -> claiming.Claims:
    return member.log.run(lambda tx: claiming.claim(tx, 0, limit, lambda kind: 60_000, offering=True))


def completed(member: Member, claims: claiming.Claims) -> list[jobs.Result]:
    ends = [Completion(Held(each.job.id, each.job.claim_op or b""), b"7", 1) for each in claims.taken]
    return member.log.run(lambda tx: jobs.complete_all(tx, ends))


def is_sound(member: Member) -> bool:
    log = member.log
    log.settle()
    return member.rebuilt() and not verify(log.store, user=DID, marks=log.signer, is_bound=True).findings


def worker(first: Member, name: str = "worker", *granted: Capability) -> Member:
    member = Member(name)
    member.enter(first.invite(member, *granted), first.token)
    meet(first, member)
    return member


@pytest.mark.req("LW-51")
def test_a_turn_writes_a_bundle_for_each_type_and_kind() -> None:
    first = owner()
    ids = [first.submit(kind) for kind in ("a.one", "a.two", "a.one", "a.one", "a.two")]
    before = len(entries(first))
    taken = claimed(first)
    assert sorted(entries(first)[before:]) == [("ClaimWork", 2), ("ClaimWork", 3)]
    assert all(isinstance(each, jobs.Job) for each in completed(first, taken))
    said = sorted(entries(first)[before + 2 :])
    assert said == [("CompleteJob", 2), ("CompleteJob", 3), ("CreateArtifact", 2), ("CreateArtifact", 3)]
    ended = [first.entry(each) for each in ids]
    assert all(entry is not None and entry.job.outcome is Outcome.SUCCEEDED for entry in ended)
    assert is_sound(first)
    other = Member("second").enter(issue(USER, key("second").public, ROOT, START // 1000 - 10, None))
    meet(first, other)
    assert other.digest() == first.digest() and is_sound(other)


@pytest.mark.parametrize("size", [10, 20_000, 60_000, 100_000])
def test_a_bundle_has_a_moderate_size(size: int) -> None:
    first = owner()
    before = len(entries(first))
    drafts = [jobs.Draft("a.big", b'"%s"' % (b"x" * size), jobs.Policy()) for _ in range(8)]
    made = first.log.run(lambda tx: jobs.submit(tx, drafts))
    sizes = {10: [8], 20_000: [3, 3, 2], 60_000: [1] * 8, 100_000: [1] * 8}
    assert [count for _, count in entries(first)[before:]] == sizes[size]
    first.log.settle()
    with first.log.store.read() as session:
        ready = {entry.job.id: schedule for entry, schedule in session.ready("a.big", 10)}
    assert [schedule_payload(ready[each.job_id] or b"") for each in made] == [draft.payload for draft in drafts]
    assert is_sound(first)


@pytest.mark.req("LW-51")
def test_jobs_that_are_submitted_together_keep_their_order() -> None:
    first = owner()
    before = len(entries(first))
    drafts = [jobs.Draft(kind, b"{}", jobs.Policy()) for kind in ("a.one", "a.one", "a.two", "a.one", "a.two", "a.two")]
    made = first.log.run(lambda tx: jobs.submit(tx, drafts))
    assert [count for _, count in entries(first)[before:]] == [2, 1, 1, 2]
    found = [entry.job.scheduled for each in made if (entry := first.entry(each.job_id)) is not None]
    assert found == sorted(found) and len(found) == 6
    assert [each.job.id for each in claimed(first).taken] == [each.job_id for each in made]


RANKED, PLAIN = jobs.Policy(claim="rendezvous"), jobs.Policy()


def submitted(member: Member, *policies: jobs.Policy, payload: bytes = b"{}") -> list[tuple[int, bool]]:
    """What the log then has of these jobs: for each entry how many they are, and whether it is signed."""
    before = len(entries(member))
    member.log.run(lambda tx: jobs.submit(tx, [jobs.Draft("a.one", payload, each) for each in policies]))
    with member.log.store.read() as session:
        rows = session.entries_after(0, 100_000)[before:]
    return [(count, not is_marked(row.body)) for row, (_, count) in zip(rows, entries(member)[before:], strict=True)]


@pytest.mark.req("GR-01", "LW-51")
def test_ranked_jobs_submitted_together_are_a_bundle_that_is_signed_at_once() -> None:
    first = owner()
    assert submitted(first, *[RANKED] * 40) == [(40, True)]
    assert submitted(first, *[PLAIN] * 3) == [(3, False)]
    sticky = jobs.Policy(claim="sticky", sticky="key")
    mixed = PLAIN, PLAIN, RANKED, sticky, RANKED, PLAIN, RANKED
    assert submitted(first, *mixed) == [(2, False), (3, True), (1, False), (1, True)]
    assert submitted(first, RANKED, RANKED, payload=b'"%s"' % (b"x" * 70_000)) == [(1, True), (1, True)]
    unbundled = Member("alone", replace(HOCKET, bundles=False))
    unbundled.enter(issue(USER, key("alone").public, ROOT, START // 1000 - 10, None))
    assert submitted(unbundled, RANKED, RANKED, PLAIN) == [(1, True), (1, True), (1, False)]
    assert is_sound(first)


@pytest.mark.req("GR-01", "LW-51")
def test_two_nodes_rank_the_jobs_of_a_bundle_alike() -> None:
    first = owner()
    other = worker(first)
    submitted(first, *[RANKED] * 30)
    other.pull(first)
    names = [worker_id(number, "w") for number in (1, 2, 3)]
    members: Any = SimpleNamespace(
        refresh=lambda *told: None, candidates=lambda *asked: Candidates("a.one", 0, dict.fromkeys(names, 1.0))
    )

    def turns(member: Member) -> dict[bytes, tuple[int | None, ...]]:
        orders = [ClaimOrder(name, members, HeardClaims(lambda: START)) for name in names]

        def ranks(tx: Any) -> dict[bytes, tuple[int | None, ...]]:
            ready = tx.session.ready("a.one", 100)
            return {entry.job.id: tuple(each.rank(tx, entry.job, body) for each in orders) for entry, body in ready}

        member.log.settle()
        return member.log.run(ranks)

    found = turns(first)
    assert len(found) == 30 and found == turns(other)
    assert set(found.values()) <= set(permutations(range(3))) and len(set(found.values())) > 2


def test_a_single_op_is_no_bundle() -> None:
    first = owner()
    first.submit()
    completed(first, claimed(first))
    assert [count for _, count in entries(first)] == [1] * len(entries(first))


@pytest.mark.req("LW-39")
def test_offers_and_their_acceptances_come_in_bundles() -> None:
    first = owner()
    gpu = worker(first)
    ids = [first.submit() for _ in range(4)]
    gpu.pull(first)
    offered = claimed(gpu)
    assert len(offered.wanted) == 4 and entries(gpu)[-1] == ("ClaimWork", 4)
    # One of them is gone when the offers arrive.
    first.log.run(lambda tx: jobs.cancel(tx, ids[1], ""))
    first.pull(gpu)
    assert entries(first)[-1] == ("AcceptWork", 3)
    gpu.pull(first)
    holders = [entry.job.claimer for each in ids if (entry := gpu.entry(each)) is not None]
    assert holders == [gpu.node, None, gpu.node, gpu.node]
    assert gpu.digest() == first.digest() and is_sound(first) and is_sound(gpu)


def test_two_offers_on_one_job_in_one_batch_have_one_winner() -> None:
    first = owner()
    one, two = worker(first, "one"), worker(first, "two")
    for _ in range(3):
        first.submit()
    for later, each in enumerate((one, two)):
        each.pull(first)
        each.clock.now = first.clock.now + later
        claimed(each)
    own = [item for each in (one, two) for item in each.ops() if item[1].node_id == each.node]
    first.receive(own)
    for entry in (first.entry(op.payload.job_id) for _, op in first.ops() if isinstance(op.payload, ScheduleJob)):
        assert entry is not None and entry.job.claimer == one.node, "the earlier offer"
    assert is_sound(first)


# Who gets a bundle.


def test_where_a_reader_gets_ops_in_part_nothing_is_bundled() -> None:
    first = owner()
    worker(first, "guest", Capability("Artifact", "Read", {"sanitize": ["TruncateContent(10)"]}))
    for _ in range(3):
        first.submit()
    completed(first, claimed(first))
    assert all(count == 1 for _, count in entries(first))


@pytest.mark.req("LW-51")
def test_a_reader_gets_a_bundle_whole_or_not_at_all() -> None:
    first = owner()
    some = worker(first, "some", job("Read", "a."), job("Claim", "a."))
    for kind in ("a.x", "b.x", "a.x", "b.x"):
        first.submit(kind)
    claimed(first)
    sent = page(first.log, reader(first.log, some.node), {}, limit=100).bodies
    bundles = [op for raw, op in first.ops() if isinstance(op.payload, Bundle)]
    assert len(bundles) == 2
    assert [any(raw.startswith(op.id) for raw in sent) for op in bundles] == [True, False]
    # A bundle of both kinds: nobody writes one but a forger.
    forger = Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token))
    ids = [first.submit(kind) for kind in ("a.x", "b.x")]
    raw, op = bundle(forger, [ClaimWork(each, forger.node, 60_000) for each in ids])
    assert first.receive([(raw, op)]).appended == 2
    sent = page(first.log, reader(first.log, some.node), {}, limit=100).bodies
    assert not any(each.startswith(op.id) for each in sent)


# What it costs.


def bundle(forger: Forger, payloads: Sequence[Payload], wall: int = START + 10, logical: int = 0) -> Received:
    facts = [((), payload) for payload in payloads]
    op, _ = bundled(Hlc(wall, logical, forger.node), (link_to(forger.last),), facts)
    op = sign(op, forger.key)
    forger.last = op.id
    return encode(op), op


@pytest.mark.req("LW-45", "LW-51")
def test_the_facts_count_not_the_bundle() -> None:
    first, forger = owner(), Forger("forger")
    entering = forger.enter(quota(first, forger, Quota(ops=10)), first.token)
    made = [bundle(forger, [ScheduleJob(NO_ID, "k", b"", b"")] * 15, START + n) for n in range(10, 14)]
    admission = first.receive(entering + made, owner("other").node)
    # Two ops and two bundles: a third would be more than four times ten.
    assert admission.appended == 2 + 30 and admission.refused == {Reason.QUOTA: 2} and 10 * HANDED_ON_FACTOR == 40
    assert admission.limited == {forger.node: 30}
    assert written(first, forger.node).ops == 32
    assert is_sound(first) and written(first, forger.node).ops == 32


@pytest.mark.req("LW-45")
def test_a_member_that_pushes_a_bundle_pays_for_each_fact() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(quota(first, forger, Quota(ops=20)), first.token))
    meter = Quotas(lambda: 0.0).meter(first.log, forger.node)
    assert meter is not None
    for count, is_let_in in ((10, True), (9, False)):
        raw, op = bundle(forger, [ScheduleJob(NO_ID, "k", b"", b"")] * count)
        assert meter.admits(raw, op) is is_let_in


# Forged ones.


@pytest.mark.parametrize("fault", ["no rule", "strange payload", "empty", "cut", "misnamed", "depends", "too many"])
def test_a_bad_bundle_is_refused_whole(fault: str) -> None:
    rules = replace(HOCKET, bundles=False) if fault == "no rule" else HOCKET
    first, forger = Member("owner", rules), Forger("forger")
    first.enter(issue(USER, first.key.public, ROOT, START // 1000 - 10, None))
    assert first.receive(forger.enter(first.invite(forger), first.token)).appended == 2
    before = first.digest(), len(entries(first))
    payloads: list[Payload] = [ScheduleJob(NO_ID, "k", b"", b"")] * 2
    if fault == "strange payload":
        payloads = [RouteKind("k", None)] * 2
    if fault == "misnamed":
        payloads = [ScheduleJob(b"\1" * 16, "k", b"", b""), *payloads]
    if fault == "too many":
        payloads *= FACTS_MAX
    _, op = bundle(forger, payloads)
    payload, deps = op.payload, op.causal_deps
    assert isinstance(payload, Bundle)
    if fault in ("empty", "cut"):
        payload = replace(payload, facts=b"" if fault == "empty" else payload.facts[:-1])
    if fault == "depends":
        deps = (b"\1" * 16, *deps)
    op = sign(bound(op.timestamp, deps, payload)[0], forger.key)
    reason = {"no rule": Reason.UNKNOWN_VARIANT, "misnamed": Reason.UNBOUND}.get(fault, Reason.MALFORMED)
    assert first.receive([(encode(op), op)]).refused == {reason: 1}
    assert (first.digest(), len(entries(first))) == before


@pytest.mark.req("LW-51")
def test_an_honest_fact_beside_hostile_ones_counts() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger, *WORKER[:2], *READS), first.token))
    mine, others = first.submit(open=True), first.submit(open=True)
    first.log.run(lambda tx: jobs.cancel(tx, others, ""))
    claims = [
        ClaimWork(others, forger.node, 60_000),  # it is cancelled
        ClaimWork(mine, forger.node + 1, 60_000),  # for another node
        ClaimWork(mine, forger.node, 60_000),
        ClaimWork(b"\1" * 16, forger.node, 60_000),  # no such job
    ]
    raw, op = bundle(forger, claims, START + 1_000)
    first.clock.now = START + 2_000
    assert first.receive([(raw, op)]).appended == 4
    assert [first.reason(each.op) == 0 for each in facts_of(op)] == [False, False, True, False]
    entry = first.entry(mine)
    assert entry is not None and entry.job.claimer == forger.node and is_sound(first)


@pytest.mark.req("LW-51")
def test_an_op_at_the_time_of_a_fact_proves_a_fork() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token))
    made = bundle(forger, [ScheduleJob(NO_ID, "k", b"", b"")] * 3)
    late = forger.say(IngestEvidence(bytes(16), bytes(32), "note", "x"), START + 10, 2)
    admission = first.receive([made, late])
    assert admission.forked == {forger.node}
    facts = list(facts_of(made[1]))
    assert first.reason(facts[1].op) != 0 and is_sound(first)


@pytest.mark.parametrize(
    "change",
    ["key = x'00'", "hlc = zeroblob(20)", "place = 1", "variant = 12", "id = zeroblob(16)", "DELETE"],
)
def test_an_audit_compares_the_rows_of_facts_with_their_bundle(change: str) -> None:
    first = owner()
    for _ in range(3):
        first.submit()
    claimed(first)
    assert is_sound(first)
    with first.log.store.write() as session:
        sql = "DELETE FROM ops" if change == "DELETE" else f"UPDATE ops SET {change}"
        session._sql(f"{sql} WHERE place = 2")  # type: ignore[attr-defined]
    findings = verify(first.log.store, user=DID, marks=first.log.signer, is_bound=True).findings
    assert "its facts are not those of its bytes" in {finding.what for finding in findings}


def test_a_fact_is_found_by_its_id_its_time_and_its_subject() -> None:
    first = owner()
    for _ in range(3):
        first.submit()
    claimed(first)
    (made,) = [op for _, op in first.ops() if isinstance(op.payload, Bundle)]
    with first.log.store.read() as session:
        head = session.head()
        for place, each in enumerate(facts_of(made)):
            row = session.op(each.op.id)
            assert row is not None and row.body == each.body and row.place == place
            assert [row.id for row in session.ops_at(pack(each.op.timestamp))] == [each.op.id]
            assert [row.id for row in session.entries_at(pack(each.op.timestamp))] == [made.id]
            assert each.op.id in {row.id for row in session.ops_of_author(pack(each.op.timestamp)[12:], b"", 100)}
        assert head.last == made.id and session.latest_of(pack(made.timestamp)[12:])[1] == made.id
        entry = session.entry(head.seq)
        assert entry is not None and entry.id == made.id
        assert session.entry_count() == head.seq - 3 == len(session.entries_after(0, 100))
        assert session.frontier()[pack(made.timestamp)[12:]] == pack(list(facts_of(made))[-1].op.timestamp)
