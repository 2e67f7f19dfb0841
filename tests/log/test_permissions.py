"""The permissions of a log at work: what a node may write is judged at the op's own time, by the delegations on the
log, in whatever order they come; a revocation looks back; coordinators decide; and what comes from too far ahead is
held.
"""

from collections.abc import Iterable

import pytest

from hocket.bus.hints import ANYTHING, CLAIM, LOG, about
from hocket.families.jobs import claiming, cron, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.capabilities import sharing
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import SigningKey
from hocket.kernel.mesh_rules import STRICT, UNBOUND, Extensions, Rules, encode_rules
from hocket.kernel.ops import Op, encode
from hocket.kernel.policy import DEFAULT, Policy
from hocket.kernel.ucan import ROOT, Capability, issue, read
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    ClaimWork,
    CompleteJob,
    DelegateUcan,
    DesignateCoordinator,
    IngestEvidence,
    Metadata,
    Payload,
    RevokeUcan,
    RouteKind,
    Sanitised,
    ScheduleJob,
    SetSchedule,
    Telemetry,
)
from hocket.log import RULES, Log
from hocket.log.audit import verify
from hocket.log.intake import Admission
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import (
    INTRODUCTIONS,
    KEYS,
    NODES,
    NOW,
    READER,
    START,
    USER,
    Clock,
    Script,
    introduction,
    job_id,
    new_log,
    op_id,
    sent,
    signed,
)
from tests.stores import new_store

OWNER, OTHER = 0, 1
J = job_id(1)
WORKER = SigningKey(b"work" * 8)
WORKER_NODE = node_id(WORKER.public)
RENDER = {"kind_prefix": ["acme.render."]}
GRANTS = (
    Capability("Job", "Schedule", RENDER),
    Capability("Job", "Claim", RENDER),
    Capability("Job", "Complete", RENDER),
    Capability("Ops", "Read", {}),
)
ROOT_CID = read(INTRODUCTIONS[OWNER].payload.ucan_bytes).cid  # type: ignore[union-attr]


def token(
    grants: Iterable[Capability] = GRANTS,
    issuer: SigningKey = KEYS[OWNER],
    audience: SigningKey = WORKER,
    proofs: tuple[bytes, ...] = (ROOT_CID,),
    expires: int | None = None,
) -> bytes:
    return issue(issuer, audience.public, grants, 0, expires, proofs)


class Mesh:
    """The owner, another of the user's own nodes, and a worker that the owner has invited."""

    def __init__(self, granted: bytes | None = None) -> None:
        self.ops: list[Op] = []
        self.granted = granted or token()
        self.joined = self.worker(0, self.delegation(self.granted))

    def delegation(self, ucan: bytes) -> DelegateUcan:
        return DelegateUcan(content_hash(ucan), ucan)

    def worker(self, wall: int, payload: Payload, deps: tuple[bytes, ...] = ()) -> Op:
        return self._say(WORKER_NODE, wall, payload, deps)

    def owner(self, wall: int, payload: Payload, deps: tuple[bytes, ...] = ()) -> Op:
        return self._say(NODES[OWNER], wall, payload, deps)

    def other(self, wall: int, payload: Payload, deps: tuple[bytes, ...] = ()) -> Op:
        return self._say(NODES[OTHER], wall, payload, deps)

    def _say(self, node: int, wall: int, payload: Payload, deps: tuple[bytes, ...]) -> Op:
        op = Op(op_id(500 + len(self.ops)), Hlc(START + wall, 0, node), node, deps, payload)
        self.ops.append(op)
        return op


@pytest.fixture(autouse=True)
def worker_can_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.log.roster import world

    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)


def admitted(*batches: Iterable[Op], rules: Rules = UNBOUND) -> Log:
    store = new_store()
    with store.write() as session:
        session.set_meta(RULES, encode_rules(rules))
    log = new_log(store)
    log.admit(sent(INTRODUCTIONS))
    for batch in batches:
        log.admit(sent(batch))
    return log


def last(log: Log, ops: Iterable[Op]) -> Admission:
    return log.admit(sent(ops))


# What a node may write.


@pytest.mark.req("LW-24", "LW-26", "LW-12", "LW-01")
def test_an_op_that_its_author_may_not_write_is_on_the_log_and_reaches_nothing() -> None:
    mesh = Mesh()
    allowed = mesh.worker(1, ScheduleJob(J, "acme.render.frame", b"", b""))
    other_kind = mesh.worker(2, ScheduleJob(job_id(2), "acme.mail", b"", b""))
    route = mesh.worker(3, RouteKind("acme.render.frame", WORKER_NODE))
    coordinator = mesh.worker(4, DesignateCoordinator(WORKER_NODE))
    log = everywhere_the_same(mesh.ops[1:], before=[*INTRODUCTIONS, mesh.joined])
    assert reason(log, allowed) == 0
    assert reason(log, other_kind) == Reason.UNAUTHORISED
    assert reason(log, route) == reason(log, coordinator) == Reason.OWNER_ONLY
    with log.store.read() as session:
        assert session.job(job_id(2)) is None
        assert session.coordinators() == [] and not session.has_routes()


@pytest.mark.req("LW-26", "LW-32")
def test_a_delegation_that_comes_late_lets_what_was_written_under_it_count() -> None:
    mesh = Mesh(token((Capability("Ops", "Read", {}),)))
    wider = mesh.worker(1, mesh.delegation(token()))
    job = mesh.worker(2, ScheduleJob(J, "acme.render.x", b"", b""))
    claim = mesh.worker(3, ClaimWork(J, WORKER_NODE, 1_000))
    log = everywhere_the_same(mesh.ops[1:], before=[*INTRODUCTIONS, mesh.joined])
    assert reason(log, wider) == reason(log, job) == reason(log, claim) == 0


@pytest.mark.req("LW-26")
def test_authority_is_judged_at_the_ops_own_time() -> None:
    until = START // 1000 + 5
    mesh = Mesh(token(expires=until))
    early = mesh.worker(4_000, ScheduleJob(J, "acme.render.x", b"", b""))
    late = mesh.worker(5_000, ScheduleJob(job_id(2), "acme.render.x", b"", b""))
    log = everywhere_the_same(mesh.ops[1:], before=[*INTRODUCTIONS, mesh.joined])
    assert reason(log, early) == 0
    assert reason(log, late) == Reason.UNAUTHORISED


@pytest.mark.req("LW-26")
def test_a_nodes_own_ops_are_judged_too() -> None:
    log = new_log(key=WORKER)
    log.admit(sent(INTRODUCTIONS))
    mesh = Mesh()
    log.admit(sent(mesh.ops))
    said = log.run(lambda tx: tx.author(ScheduleJob(J, "acme.mail", b"", b"")))
    assert said is Reason.UNAUTHORISED
    assert isinstance(log.run(lambda tx: tx.author(ScheduleJob(J, "acme.render.x", b"", b""))), Op)


# Introductions.


@pytest.mark.req("LW-23", "LW-24")
def test_a_chain_that_is_cut_is_refused_until_the_missing_part_comes() -> None:
    mesh = Mesh()
    log = new_log()
    admission = log.admit(sent(mesh.ops))
    assert admission.refused == {Reason.UNRESOLVED: 1} and admission.curable == {WORKER_NODE: mesh.joined.timestamp}
    log.admit(sent(INTRODUCTIONS))
    assert log.admit(sent(mesh.ops)).appended == 1


@pytest.mark.req("LW-23", "LW-24")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (token((Capability("Ops", "Write", {}),), issuer=WORKER, audience=SigningKey(b"sub." * 8)), "cut"),
        (issue(SigningKey(b"else" * 8), WORKER.public, ROOT, 0, None), "foreign"),
        (issue(SigningKey(b"else" * 8), WORKER.public, ROOT, 0, None, (ROOT_CID,)), "not to its issuer"),
        (token(proofs=(content_hash(b"nowhere"),)), "cut"),
        (token()[:-4] + b"AAAA", "forged"),
    ],
)
def test_bad_delegations_introduce_nobody(bad: bytes, why: str) -> None:
    audience = SigningKey(b"sub." * 8) if why == "cut" and b"sub." in bad else WORKER
    node = node_id(audience.public)
    op = Op(op_id(700), Hlc(START, 0, node), node, (), DelegateUcan(content_hash(bad), bad))
    log = admitted()
    admission = log.admit([signed(op, audience)])
    assert admission.appended == 0 and admission.rejected == 1
    with log.store.read() as session:
        assert node.to_bytes(8, "big") not in session.nodes()
        assert len(session.delegations()) == len(INTRODUCTIONS)


@pytest.mark.req("LW-24")
def test_a_delegation_wider_than_its_parent_is_refused() -> None:
    mesh = Mesh(token((*GRANTS, Capability("Registration", "Write", {}))))
    sub = SigningKey(b"sub." * 8)
    cid = content_hash(mesh.granted)
    wider = token((Capability("Job", "Claim", {"kind_prefix": ["acme."]}),), WORKER, sub, (cid,))
    narrower = token((Capability("Job", "Claim", {"kind_prefix": ["acme.render.big."]}),), WORKER, sub, (cid,))
    node = node_id(sub.public)
    log = admitted(mesh.ops)
    for ucan, expected in ((wider, {Reason.WIDENED: 1}), (narrower, {})):
        op = Op(op_id(710), Hlc(START + 9, 0, node), node, (), DelegateUcan(content_hash(ucan), ucan))
        assert log.admit([signed(op, sub)]).refused == expected


# Revocation.


@pytest.mark.req("LW-27", "LW-32", "LW-33")
def test_what_leans_on_a_revoked_delegation_leaves_the_roster_and_stays_on_the_log() -> None:
    mesh = Mesh()
    job = mesh.owner(1, ScheduleJob(J, "acme.render.x", b"", b'{"open":true}'))
    claim = mesh.worker(2, ClaimWork(J, WORKER_NODE, 1_000))
    done = mesh.worker(3, CompleteJob(J, (), (), Telemetry(1)), (claim.id,))
    revoked = mesh.owner(4, RevokeUcan(content_hash(mesh.granted)))
    log = everywhere_the_same(mesh.ops[1:], before=[*INTRODUCTIONS, mesh.joined])
    assert reason(log, job) == reason(log, revoked) == 0
    assert reason(log, claim) == Reason.REVOKED
    assert reason(log, done) in (Reason.REVOKED, Reason.DEPENDENCY_REJECTED)
    with log.store.read() as session:
        entry = session.job(J)
        assert entry is not None and entry.job.state is State.PENDING
        assert session.op(done.id) is not None


def test_whoever_holds_a_job_hears_that_a_revocation_took_it_away() -> None:
    mesh = Mesh()
    mesh.worker(1, ScheduleJob(J, "acme.render.x", b"", b'{"open":true}'))
    log = admitted(mesh.ops)
    log.run(lambda tx: tx.author(introduction(READER).payload))
    assert len(log.run(lambda tx: claiming.claim(tx, 7, 1, lambda kind: 60_000)).taken) == 1
    heard = log._bus.subscribe(ANYTHING)
    revoked = mesh.owner(0, RevokeUcan(content_hash(mesh.granted)))
    last(log, [revoked])
    with log.store.read() as session:
        assert session.job(J) is None
    assert heard.wait(0) == about(LOG) | about(JOB, J) | about(CLAIM, J)


@pytest.mark.req("LW-27")
def test_a_revocation_cascades_to_what_was_delegated_further() -> None:
    mesh = Mesh(token((*GRANTS, Capability("Registration", "Write", {}))))
    sub = SigningKey(b"sub." * 8)
    node = node_id(sub.public)
    further = token((Capability("Job", "Schedule", RENDER),), WORKER, sub, (content_hash(mesh.granted),))
    first = Op(op_id(720), Hlc(START + 1, 0, node), node, (), DelegateUcan(content_hash(further), further))
    job = Op(op_id(721), Hlc(START + 2, 0, node), node, (), ScheduleJob(J, "acme.render.x", b"", b""))
    log = admitted(mesh.ops)
    assert log.admit([signed(first, sub), signed(job, sub)]).appended == 2
    assert reason(log, job) == 0
    last(log, [mesh.owner(3, RevokeUcan(content_hash(mesh.granted)))])
    assert reason(log, job) == Reason.REVOKED
    with log.store.read() as session:
        assert session.job(J) is None


@pytest.mark.req("LW-27")
def test_of_two_owners_who_revoke_each_other_the_earlier_is_heard() -> None:
    mesh = Mesh()
    roots = [read(each.payload.ucan_bytes).cid for each in INTRODUCTIONS]  # type: ignore[union-attr]
    first = mesh.owner(5, RevokeUcan(roots[OTHER]))
    second = mesh.other(6, RevokeUcan(roots[OWNER]))
    job = mesh.owner(7, ScheduleJob(J, "k", b"", b""))
    log = everywhere_the_same(mesh.ops[1:])
    assert reason(log, first) == reason(log, job) == 0
    assert reason(log, second) != 0


@pytest.mark.req("LW-27")
def test_only_its_issuer_and_the_owner_can_revoke() -> None:
    mesh = Mesh()
    job = mesh.worker(2, ScheduleJob(J, "acme.render.x", b"", b""))
    stranger = mesh.worker(3, RevokeUcan(ROOT_CID))
    log = everywhere_the_same(mesh.ops[1:], before=[*INTRODUCTIONS, mesh.joined])
    assert reason(log, stranger) != 0 and reason(log, job) == 0


# The coordinator.


@pytest.mark.req("LW-39", "LW-32")
def test_the_arbiter_decides_and_its_word_outlives_the_workers_delegation() -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "acme.render.x", b"", b""))
    claim = mesh.worker(3, ClaimWork(J, WORKER_NODE, 1_000))
    accepted = mesh.owner(4, AcceptWork(J, claim.id))
    done = mesh.worker(5, CompleteJob(J, (), (), Telemetry(1)), (accepted.id,))
    ended = mesh.owner(6, AcceptWork(J, done.id))
    revoked = mesh.owner(7, RevokeUcan(content_hash(mesh.granted)))
    log = everywhere_the_same([claim, accepted, done, ended, revoked], [*INTRODUCTIONS, *mesh.ops[:3]])
    assert reason(log, accepted) == reason(log, ended) == 0
    with log.store.read() as session:
        entry = session.job(J)
        assert entry is not None and entry.job.outcome is Outcome.SUCCEEDED
        assert entry.job.claim_op == accepted.id and entry.job.fence == 1


@pytest.mark.req("LW-39")
def test_a_back_dated_claim_displaces_nobody() -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "k", b"", b""))
    held = mesh.owner(10, ClaimWork(J, NODES[OWNER], 1_000))
    log = admitted(mesh.ops)
    back_dated = mesh.other(3, ClaimWork(J, NODES[OTHER], 1_000))
    last(log, [back_dated])
    assert reason(log, back_dated) == Reason.OFFERED and reason(log, held) == 0


@pytest.mark.req("LW-39")
@pytest.mark.parametrize("rules", [STRICT, UNBOUND])
def test_a_strict_mesh_has_no_arbiter(rules: Rules) -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "k", b"", b""))
    claim = mesh.other(3, ClaimWork(J, NODES[OTHER], 1_000))
    log = admitted(mesh.ops, rules=rules)
    assert reason(log, claim) == (0 if rules is STRICT else Reason.OFFERED)


@pytest.mark.req("LW-39")
def test_an_acceptance_by_anybody_else_is_void() -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "k", b"", b""))
    claim = mesh.other(3, ClaimWork(J, NODES[OTHER], 1_000))
    own = mesh.other(4, AcceptWork(J, claim.id))
    log = everywhere_the_same(mesh.ops[1:])
    assert reason(log, own) == Reason.NOT_ARBITER


SHARED = token((*GRANTS, sharing(NODES[OWNER])))


@pytest.mark.req("LW-39", "VX-18")
def test_a_node_that_shares_the_coordinators_store_decides_whenever_its_delegation_arrives() -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "acme.render.x", b"", b""))
    before = [*INTRODUCTIONS, *mesh.ops]
    shared = mesh.owner(3, mesh.delegation(SHARED))
    claim = mesh.worker(4, ClaimWork(J, WORKER_NODE, 1_000))
    offered = mesh.other(5, ClaimWork(J, NODES[OTHER], 1_000))
    ended = mesh.worker(6, CompleteJob(J, (), (), Telemetry(1)), (claim.id,))
    log = everywhere_the_same([shared, claim, offered, ended], before)
    assert reason(log, claim) == reason(log, ended) == 0 and reason(log, offered) == Reason.OFFERED


@pytest.mark.req("LW-39", "VX-18")
def test_a_node_that_shares_the_store_accepts_what_others_offer() -> None:
    mesh = Mesh(SHARED)
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "acme.render.x", b"", b""))
    before = [*INTRODUCTIONS, *mesh.ops]
    offered = mesh.other(3, ClaimWork(J, NODES[OTHER], 1_000))
    accepted = mesh.worker(4, AcceptWork(J, offered.id))
    late = mesh.owner(5, ClaimWork(J, NODES[OWNER], 1_000))
    log = everywhere_the_same([offered, accepted, late], before)
    assert reason(log, accepted) == 0 and reason(log, late) == Reason.ALREADY_CLAIMED


@pytest.mark.req("LW-39", "VX-18")
def test_a_coordinator_elsewhere_ends_the_decisions_of_those_who_share_a_store() -> None:
    mesh = Mesh(SHARED)
    mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mesh.owner(2, ScheduleJob(J, "acme.render.x", b"", b""))
    before = [*INTRODUCTIONS, *mesh.ops]
    held = mesh.worker(3, ClaimWork(J, WORKER_NODE, 1_000))
    moved = mesh.owner(4, DesignateCoordinator(NODES[OTHER]))
    ended = mesh.worker(5, CompleteJob(J, (), (), Telemetry(1)), (held.id,))
    log = everywhere_the_same([held, moved, ended], before)
    assert reason(log, held) == 0 and reason(log, ended) == Reason.OFFERED


@pytest.mark.req("LW-13", "LW-01")
def test_derivation_counts_only_from_the_coordinator_in_force() -> None:
    extensions = UNBOUND.extensions
    assert extensions is not None
    rules = Rules(
        extensions=Extensions(extensions.variants, True, extensions.skew_ms, ("IngestEvidence",), ("acme.derive.",))
    )
    evidence = IngestEvidence(job_id(9), bytes(32), "photo", "a", None)
    mesh = Mesh()
    first = mesh.owner(1, DesignateCoordinator(NODES[OWNER]))
    mine, theirs = mesh.owner(2, evidence), mesh.other(3, evidence)
    handed_over = mesh.owner(4, DesignateCoordinator(NODES[OTHER]))
    then_mine, then_theirs = mesh.owner(5, evidence), mesh.other(6, evidence)
    mesh.other(7, ScheduleJob(J, "acme.derive.x", b"", b'{"open":true}'))
    not_by_me = mesh.owner(8, ClaimWork(J, NODES[OWNER], 1_000))
    for order in (mesh.ops, list(reversed(mesh.ops)), [*mesh.ops[3:], *mesh.ops[:3]]):
        log = admitted(*([op] for op in order), rules=rules)
        counts = [reason(log, op) for op in (first, mine, theirs, handed_over, then_mine, then_theirs, not_by_me)]
        assert counts == [
            *(0, 0, Reason.NOT_COORDINATOR, 0),
            *(Reason.NOT_COORDINATOR, 0, Reason.NOT_COORDINATOR),
        ]


# Sanitised ops, clocks far ahead, twins.


@pytest.mark.req("LW-29")
def test_only_who_may_read_no_more_takes_in_a_sanitised_op() -> None:
    rules = ("StripGeo",)
    reader = Mesh(token((Capability("Ops", "Read", {"sanitize": list(rules)}),)))
    left = Sanitised(rules, IngestEvidence(job_id(9), bytes(32), "photo", "a", Metadata()))
    op = Op(op_id(730), Hlc(START + 5, 0, NODES[OWNER]), NODES[OWNER], (), left)
    for log, expected in ((new_log(key=WORKER), {}), (new_log(), {Reason.BAD_MARKER: 1})):
        log.admit(sent(INTRODUCTIONS))
        log.admit(sent(reader.ops))
        assert log.admit([(encode(op), op)]).refused == expected
        assert not verify(log.store, user=log.user).findings
    other_rules = Op(op_id(731), op.timestamp, op.node_id, (), Sanitised(("StripCustomMetadata",), left.payload))
    plain = Op(op_id(732), op.timestamp, op.node_id, (), left.payload)
    log = new_log(key=WORKER)
    log.admit(sent([*INTRODUCTIONS, *reader.ops]))
    assert log.admit([(encode(other_rules), other_rules)]).refused == {Reason.BAD_MARKER: 1}
    assert log.admit([(encode(plain), plain)]).refused == {Reason.BAD_SIGNATURE: 1}
    assert log.admit([signed(op)]).refused == {Reason.BAD_SIGNATURE: 1}


@pytest.mark.req("LW-38", "LW-07")
def test_ops_from_a_clock_too_far_ahead_are_held_until_their_time() -> None:
    clock = Clock()
    log = new_log(key=KEYS[2], wall=clock)
    log.admit(sent(INTRODUCTIONS))
    skew = UNBOUND.extensions.skew_ms  # type: ignore[union-attr]
    script = Script()
    far = script.say(OWNER, NOW - START + skew + 1, ScheduleJob(J, "k", b"", b""))
    near = script.say(OTHER, NOW - START + skew, ScheduleJob(job_id(2), "k", b"", b""))
    admission = log.admit(sent(script.ops))
    assert (admission.appended, admission.held, admission.rejected) == (1, 1, 0)
    assert log.admit(sent([far])).held == 1
    with log.store.read() as session:
        assert session.op(near.id) is not None and session.op(far.id) is None
        assert session.held() == (1, far.timestamp.wall)
        assert session.head().wall < far.timestamp.wall
    assert log.release() is None
    clock.now += 1
    released = log.release()
    assert released is not None and released.appended == 1
    assert reason(log, far) == 0 and log.release() is None
    with log.store.read() as session:
        assert session.held() == (0, None)


@pytest.mark.req("LW-38")
def test_no_more_is_held_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hocket.log.intake.HELD_MAX", 2)
    log = new_log(key=KEYS[2])
    log.admit(sent(INTRODUCTIONS))
    script = Script()
    far = [script.say(OWNER, NOW - START + 10**9 + n, ScheduleJob(job_id(n), "k", b"", b"")) for n in range(3)]
    admission = log.admit(sent(far))
    assert admission.held == 2 and admission.refused == {Reason.HELD_FULL: 1}
    assert admission.curable == {NODES[OWNER]: far[2].timestamp}


@pytest.mark.req("LW-10")
def test_a_node_hears_of_it_when_another_writes_with_its_key() -> None:
    log = new_log(key=KEYS[2])
    log.admit(sent(INTRODUCTIONS))
    twin = Op(op_id(740), Hlc(START, 0, NODES[2]), NODES[2], (), ScheduleJob(J, "k", b"", b""))
    assert log.admit(sent([twin])).appended == 1
    with log.store.read() as session:
        assert session.refusals(9)[0].reason == Reason.TWIN


def test_a_users_other_node_introduced_late_is_heard() -> None:
    """A root delegation needs no parent, whichever home issued it."""
    key = SigningKey(b"home" * 8)
    log = admitted()
    assert log.admit([signed(introduction(key, USER, wall=START), key)]).appended == 1


@pytest.mark.req("LW-38", "LW-39")
def test_a_fast_clock_ends_nobodys_lease_with_the_arbiter() -> None:
    """What it hears moves the arbiter's log ahead of its machine; leases go by the machine."""
    clock = Clock()
    log = new_log(key=KEYS[OWNER], wall=clock)
    log.admit(sent(INTRODUCTIONS))
    log.run(lambda tx: tx.author(DesignateCoordinator(log.node)))
    log.run(lambda tx: jobs.submit(tx, [jobs.Draft("k", b"{}", DEFAULT), jobs.Draft("k", b"{}", Policy(open=True))]))
    arbitrated, opened = log.run(lambda tx: claiming.claim(tx, 1, 2, lambda kind: 30_000)).taken
    fast = Op(op_id(800), Hlc(NOW + 240_000, 0, NODES[OTHER]), NODES[OTHER], (), RouteKind("other", None))
    log.admit(sent([fast]))

    def renewed(claim: jobs.Claim) -> object:
        held = jobs.Held(claim.job.id, claim.job.claim_op or b"")
        return log.run(lambda tx: jobs.renew(tx, held, 30_000))

    assert log.run(lambda tx: rescue.expire(tx, 9)) == 1  # the open one: there the log's clock is all there is
    assert isinstance(renewed(opened), Reason)
    again = renewed(arbitrated)
    assert isinstance(again, Job) and again.fence == 1 and again.deadline == NOW + 270_000
    clock.now += 270_000
    assert isinstance(renewed(arbitrated), Job)
    clock.now += 300_001
    assert renewed(arbitrated) is Reason.LEASE_PASSED
    assert log.run(lambda tx: rescue.expire(tx, 9)) == 1


@pytest.mark.req("LW-44")
def test_a_node_makes_the_ticks_of_schedules_whose_jobs_it_could_not_submit() -> None:
    mesh = Mesh()
    mesh.owner(10, SetSchedule("mail", "* * * * *", "UTC", "acme.mail", b"{}", b""))
    mesh.owner(11, SetSchedule("render", "* * * * *", "UTC", "acme.render.x", b"{}", b""))
    clock = Clock()
    log = new_log(key=WORKER, wall=clock)
    log.admit(sent(INTRODUCTIONS))
    log.admit(sent(mesh.ops))
    clock.now += 120_000
    assert log.run(cron.make_due) == 2
    with log.store.read() as session:
        assert sorted(entry.job.kind for entry in session.each_job()) == ["acme.mail", "acme.render.x"]
