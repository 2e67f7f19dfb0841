"""What one member can make others keep: whoever hands its ops on, on jobs of others, and by inviting itself."""

import pytest
from msgspec.structs import replace

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.mesh_rules import HOCKET, Bounds
from hocket.kernel.ops import NO_ID, Op, encode, link_to, sign
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import ROOT, Capability, Quota, issue, read
from hocket.kernel.vocabulary import ClaimWork, IngestEvidence, ReportProgress, RevokeUcan, ScheduleJob
from hocket.log import intake
from hocket.log.limits import HANDED_ON_FACTOR
from hocket.mesh.quotas import BURST_S, Quotas
from hocket.store import WrittenTotals
from tests.bundled import bundled
from tests.trust.members import READS, START, USER, WORKER, Forger, Member, key, meet, owner

Received = tuple[bytes, Op]


def quota(first: Member, forger: Forger, quota: Quota, grants: tuple[Capability, ...] = WORKER + READS) -> bytes:
    return issue(first.key, forger.key.public, grants, START // 1000 - 10, None, [read(first.token).cid], quota=quota)


def evidence(forger: Forger, count: int, wall: int = START + 10) -> list[Received]:
    return [forger.say(IngestEvidence(bytes(16), bytes(32), "note", "x"), wall, n) for n in range(count)]


def written(member: Member, node: int) -> WrittenTotals:
    packed = node.to_bytes(8, "big")
    with member.log.store.read() as session:
        return session.written((packed,)).get(packed, WrittenTotals())


def second(first: Member, name: str = "second") -> Member:
    """Another node of the owner's."""
    return Member(name).enter(issue(USER, key(name).public, ROOT, START // 1000 - 10, None))


@pytest.mark.req("LW-45")
def test_what_others_hand_on_is_not_slowed_down_but_ends_at_the_same_op_everywhere() -> None:
    first, other, forger = owner(), second(owner()), Forger("forger")
    meet(first, other)
    ops = forger.enter(quota(first, forger, Quota(ops=10)), first.token) + evidence(forger, 100)
    cap = 10 * HANDED_ON_FACTOR
    one = first.receive(ops, other.node)
    assert one.appended == cap and one.refused == {Reason.QUOTA: len(ops) - cap}
    assert one.limited == {forger.node: len(ops) - cap}
    # What is missing has to be sent again, should there be room.
    assert one.curable == {forger.node: ops[cap][1].timestamp}
    for part in (ops[:30], ops[30:60], ops[60:], ops):
        other.receive(part, first.node)
    meet(first, other)
    assert written(first, forger.node) == written(other, forger.node)
    assert written(first, forger.node) == WrittenTotals(cap, sum(len(raw) for raw, _ in ops[:cap]))
    assert first.receive(ops).appended == len(ops) - cap  # the operator may bring what he likes


def test_a_revoked_members_history_is_still_handed_on() -> None:
    """A node that comes later must end with the same log as those that were there."""
    first, late, forger = owner(), second(owner(), "late"), Forger("forger")
    token = quota(first, forger, Quota(ops=200_000), READS)
    first.receive(forger.enter(token, first.token), forger.node)
    first.receive(evidence(forger, 50), forger.node)
    first.say(RevokeUcan(read(token).cid), about=forger.node)
    meet(first, late)
    assert (
        written(late, forger.node)
        == written(first, forger.node)
        == WrittenTotals(52, written(first, forger.node).bytes)
    )


def test_the_counts_are_made_anew_from_the_log() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token) + evidence(forger, 20), forger.node)
    first.submit()
    before = written(first, forger.node)
    assert before.ops == 22
    assert first.rebuilt() and written(first, forger.node) == before
    assert written(first, first.node) == WrittenTotals()


@pytest.mark.req("LW-45")
def test_ops_that_do_not_count_on_one_job_are_bounded() -> None:
    """They are read again whenever that job is folded again."""
    first, forger = Member("owner", replace(HOCKET, bounds=Bounds(idle_ops=20))), Forger("forger")
    first.enter(issue(USER, key("owner").public, ROOT, START // 1000 - 10, None))
    job_id = first.submit()
    first.receive(forger.enter(first.invite(forger), first.token, wall=first.clock.now), forger.node)
    bad = [forger.say(ReportProgress(job_id, forger.node, b"x"), first.clock.now + 1, n) for n in range(100)]
    taken = [first.receive(bad[start : start + 10], forger.node) for start in range(0, 100, 10)]
    assert [each.appended for each in taken] == [10, 10, *[0] * 8]
    assert all(each.refused == {Reason.IDLE: 10} for each in taken[2:3])
    assert taken[2].limited == {forger.node: 10}
    # An author that writes about other jobs is not concerned.
    other = Forger("other")
    first.receive(other.enter(first.invite(other), first.token, wall=first.clock.now), other.node)
    assert first.receive([other.say(ReportProgress(job_id, other.node, b"x"), first.clock.now + 2)]).appended == 1


def test_renewals_that_the_arbiter_accepts_are_not_idle() -> None:
    first, worker = owner(), Forger("worker")
    first.log.permissions_reader.rules = replace(HOCKET, bounds=Bounds(idle_ops=5))
    job_id = first.submit()
    first.receive(worker.enter(first.invite(worker), first.token, wall=first.clock.now), worker.node)
    for _ in range(30):
        first.clock.now += 10
        renewal = worker.say(ClaimWork(job_id, worker.node, 60_000), first.clock.now)
        assert first.receive([renewal], worker.node).appended == 1
    entry = first.entry(job_id)
    assert entry is not None and entry.job.claimer == worker.node


@pytest.mark.req("LW-45")
def test_one_author_does_not_take_the_room_of_all_held_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "HELD_PER_AUTHOR_MAX", 10)
    first, forger, other = owner(), Forger("forger"), Forger("other")
    for each in (forger, other):
        first.receive(each.enter(first.invite(each), first.token), each.node)
    ahead = START + 3_600_000
    taken = first.receive(evidence(forger, 30, ahead), forger.node)
    assert (taken.held, taken.refused) == (10, {Reason.HELD_FULL: 20})
    assert first.receive(evidence(other, 5, ahead), other.node).held == 5


@pytest.mark.req("LW-45")
def test_held_ops_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on no log yet, so that the quota of their author does not count them."""
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token), forger.node)
    ahead = evidence(forger, 30, START + 3_600_000)
    monkeypatch.setattr(intake, "HELD_BYTES_PER_AUTHOR_MAX", sum(len(raw) for raw, _ in ahead[:10]))
    taken = [first.receive(ahead[start : start + 5], forger.node) for start in range(0, 30, 5)]
    assert [each.held for each in taken] == [5, 5, 0, 0, 0, 0]
    assert taken[2].refused == {Reason.HELD_FULL: 5}


@pytest.mark.req("LW-22", "LW-45")
@pytest.mark.parametrize("in_bundle", [False, True])
def test_a_member_cannot_use_up_the_counter_of_a_node_that_it_has_set_ahead(in_bundle: bool) -> None:
    """An op that counts moves the clock by minutes. If nothing could follow it there, nobody could write meanwhile."""
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token), forger.node)
    ahead, schedule = first.clock.now + 250_000, ScheduleJob(NO_ID, "acme.x", b"{}", b"")
    if in_bundle:
        op, _ = bundled(Hlc(ahead, U32_MAX - 3, forger.node), (link_to(forger.last),), [((), schedule)] * 3)
        signed = sign(op, forger.key)
        sent = encode(signed), signed
    else:
        sent = forger.say(schedule, ahead, U32_MAX)
    assert first.receive([sent], forger.node).held == 1
    made = [first.submit() for _ in range(5)]
    assert all(first.entry(job_id) for job_id in made)
    first.clock.now = ahead + 1
    first.receive([], forger.node)
    assert first.submit() and written(first, forger.node).ops == 2 + (3 if in_bundle else 1)


@pytest.mark.req("LW-45")
def test_inviting_oneself_multiplies_nothing() -> None:
    """A member that may let others in shares its quota with all of them."""
    first, inviter = owner(), Member("inviter")
    grants = (*WORKER, *READS, Capability("Registration", "Write", {}))
    token = issue(
        first.key,
        inviter.key.public,
        grants,
        START // 1000 - 10,
        None,
        [read(first.token).cid],
        quota=Quota(ops_per_s=10, ops=500),
    )
    inviter.enter(token, first.token)
    first.pull(inviter)
    guests = [Forger(f"guest {n}") for n in range(5)]
    for guest in guests:
        first.receive(guest.enter(inviter.invite(guest, *WORKER), token, first.token), guest.node)
    now = 0.0
    quotas = Quotas(lambda: now)

    def admitted(node: int, count: int) -> int:
        meter = quotas.meter(first.log, node)
        assert meter is not None
        return sum(meter.admits(bytes(100), Malformed()) for _ in range(count))

    assert sum(admitted(each.node, 60) for each in (*guests, inviter)) == 10 * BURST_S
    # In all as well: what they have stored together counts.
    for guest in guests:
        first.receive(evidence(guest, 95, first.clock.now), guest.node)
    now += 1_000
    stored = sum(written(first, each.node).ops for each in (*guests, inviter))
    assert admitted(guests[0].node, 100) == 500 - stored
    assert quotas.meter(first.log, first.node) is None
