"""Ids commit to content: nobody takes another's id, and the same id with other bytes is told and never a duplicate."""

import msgspec
import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash
from hocket.kernel.mesh_rules import UNBOUND
from hocket.kernel.ops import NO_ID, Op, artifact_id, encode, link_to, sign
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import (
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    ReportProgress,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    Telemetry,
)
from hocket.log.audit import verify
from tests.trust.members import START, USER, Forger, Member, key, owner

pytestmark = pytest.mark.touches("LW-20")


def artifact(content: bytes, name: bytes = NO_ID, job: bytes | None = None) -> CreateArtifact:
    return CreateArtifact(name, "hocket.result", job, (), content_hash(content), content, None, None, len(content))


@pytest.mark.req("LW-42")
def test_an_op_with_another_ops_id_does_not_keep_that_op_out() -> None:
    """A revocation was kept from a server for ever by an op that had its id."""
    first, server, forger = owner(), Member("server"), Forger("forger")
    server.enter(first.invite(server, *ROOT), first.token)
    entering = forger.enter(first.invite(forger), first.token)
    first.receive(entering)
    revocation = first.say(RevokeUcan(content_hash(entering[0][1].payload.ucan_bytes)))  # type: ignore[union-attr]
    squat = forger.say(RouteKind("x", None), first.clock.now, op_id=revocation.id)
    server.receive([*entering, squat])
    assert server.pull(first).refused == {}
    assert server.reason(revocation) == 0
    with server.log.store.read() as session:
        assert [each.reason for each in session.refusals(10) if each.op_id == revocation.id] == [Reason.UNBOUND]


@pytest.mark.req("LW-42")
def test_an_op_under_another_id_than_its_own_is_refused() -> None:
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token))
    for op_id in (bytes(16), content_hash(b"any")[:16], first.ops()[0][1].id):
        assert first.receive([forger.say(ReportProgress(NO_ID, 1, b""), START + 5, op_id=op_id)]).refused == {
            Reason.UNBOUND: 1
        }


@pytest.mark.req("LW-42")
def test_nobody_replaces_a_result() -> None:
    """An artifact with a foreign id, dated a millisecond earlier, replaced a result."""
    first, forger = owner(), Forger("forger")
    entering = forger.enter(first.invite(forger), first.token)
    first.receive(entering)
    made = first.say(artifact(b'"good"'))
    for name in (made.id, artifact_id(first.node, artifact(b'"evil"', made.id))):
        evil = forger.say(artifact(b'"evil"', name), made.timestamp.wall - 1)
        assert first.receive([evil]).refused == {Reason.UNBOUND: 1}
    with first.log.store.read() as session:
        found = session.artifact(made.id)
        assert found is not None and found.op_id == made.id


@pytest.mark.req("LW-42")
def test_nobody_makes_another_job_of_a_completed_one() -> None:
    """A ScheduleJob with a foreign job id, dated earlier, turned a completed `pay.*` job into another kind."""
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger), first.token))
    paid = first.submit("pay.salary")
    claim = first.say(ClaimWork(paid, first.node, 60_000))
    first.say(CompleteJob(paid, (), (), Telemetry(1)), (claim.id,))
    entry = first.entry(paid)
    assert entry is not None
    for policy in (b"", b'{"schedule":"x"}', b'{"schedule_op":"7ZZZZZZZZZZZZZZZZZZZZZZZZZ"}', b"?"):
        evil = forger.say(ScheduleJob(paid, "acme.x", b"{}", policy), entry.job.scheduled.wall - 1, after=forger.last)
        first.receive([evil])
        assert first.entry(paid) == entry
        assert first.reason(evil[1]) != 0
    assert entry.job.kind == "pay.salary" and entry.job.outcome is Outcome.SUCCEEDED


@pytest.mark.req("LW-42")
def test_the_same_id_with_other_bytes_is_told() -> None:
    """Where ids are anybody's, of two ops of one author with one id neither counts, whichever came first."""
    one, two = (Member(name, UNBOUND).enter(issue(USER, key(name).public, ROOT, 0, None)) for name in ("a", "b"))
    forger = Forger("forger")
    token = issue(USER, forger.key.public, ROOT, 0, None)
    entering = forger.enter(token)
    ops = [forger.say(RouteKind("x", node), START + node, op_id=content_hash(b"id")[:16]) for node in (1, 2)]
    for member, order in ((one, ops), (two, ops[::-1])):
        member.receive([*entering, order[0]])
        assert member.receive([order[1]]).refused == {Reason.OTHER_BYTES: 1}
        assert member.reason(order[0][1]) == Reason.INTEGRITY
        with member.log.store.read() as session:
            assert session.route("x", b"\xff" * 20) is None


@pytest.mark.req("LW-42")
def test_what_was_signed_again_is_the_same_op() -> None:
    first = owner()
    _, op = first.ops()[-1]
    resigned = msgspec.structs.replace(op, signature=None)
    again = sign(resigned, first.key)
    assert first.receive([(encode(again), again)])[:2] == (0, 1)


@pytest.mark.req("LW-42")
def test_jobs_results_and_inputs_are_named_by_their_ops() -> None:
    first = owner()
    job_id = first.submit()
    plain = first.log.append_plain("acme.y", b"{}")
    entries = [first.entry(each) for each in (job_id, plain)]
    assert [entry.job.schedule_op if entry else None for entry in entries] == [job_id, plain]
    draft = first.log.run(lambda tx: jobs.submit(tx, [jobs.Draft("k", b"{}", jobs.Policy(after=()))]))
    assert first.entry(draft[0].job_id) is not None


@pytest.mark.req("LW-42", "LW-21")
def test_a_good_delegation_does_not_vouch_for_an_unsigned_op_with_its_id() -> None:
    """The door remembered its verdict on a delegation by the id alone, and gave it to every op of the batch that had
    that id: so a member could put words into the owner's mouth.
    """
    first, forger = owner(), Forger("forger")
    first.receive(forger.enter(first.invite(forger, *ROOT), first.token))
    vouching = forger.say(DelegateUcan(content_hash(first.token), first.token), first.clock.now + 50)
    latest = [op for _, op in first.ops() if op.node_id == first.node][-1]
    stamp = Hlc(first.clock.now + 40, 0, first.node)
    forged = Op(vouching[1].id, stamp, first.node, (link_to(latest.id),), RouteKind("x", forger.node))
    forged = msgspec.structs.replace(forged, signature=sign(forged, forger.key).signature)
    admission = first.receive([vouching, (encode(forged), forged)], forger.node)
    assert admission.refused == {Reason.BAD_SIGNATURE: 1}
    assert admission.appended == 1
    assert all(op.signature != forged.signature for _, op in first.ops())


@pytest.mark.req("LW-23", "VX-08")
def test_the_log_of_an_invited_node_is_verified() -> None:
    """Its own delegation stands before those that it leans on."""
    first, worker = owner(), Member("worker")
    worker.enter(first.invite(worker), first.token)
    first.pull(worker)
    for member in (first, worker):
        assert verify(member.log.store, user=member.log.user).findings == []
