"""Jobs that wait for an approval: who may give it, what it lets happen, and what a reply by mail decides."""

from collections.abc import Iterator
from itertools import permutations

import pytest

import hocket
import hocket.testing
from hocket.errors import Conflict, HocketError, NotAuthorised, Usage
from hocket.families.jobs import approval_mail, claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import node_text, parse_ulid
from hocket.kernel.ops import Op
from hocket.kernel.policy import UNAPPROVED_MS
from hocket.kernel.vocabulary import AcceptWork, ApproveJob, ClaimWork, DesignateCoordinator, ScheduleJob
from hocket.node.inbox import SyncReceivedMessage
from hocket.testing import MemorySyncNode
from tests.log.roster import world
from tests.log.roster.world import NODES, job_id
from tests.log.test_permissions import WORKER, WORKER_NODE, Mesh, admitted

pytestmark = pytest.mark.touches("LW-41")


@pytest.fixture(autouse=True)
def worker_can_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)


@pytest.fixture
def node() -> Iterator[MemorySyncNode]:
    with hocket.testing.node() as made:
        yield made


def claimed(node: MemorySyncNode) -> list[Job]:
    return [each.job for each in claims(node).taken]


def claims(node: MemorySyncNode) -> claiming.Claims:
    return node.runtime.log.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: 60_000))


def job(node: MemorySyncNode, job_id: str) -> Job:
    with node.runtime.read() as session:
        entry = session.job(parse_ulid(job_id))
    assert entry is not None
    return entry.job


def types(node: MemorySyncNode, job_id: str) -> list[str]:
    return [op["type"] for op in node.runtime.show(job_id)["ops"]]


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"claim": "rendezvous"}, {"open": True}, {"not_before": 1}])
def test_a_job_runs_only_once_it_is_approved(node: MemorySyncNode, options: dict[str, object]) -> None:
    handle = node.submit(hocket.kind("acme.deploy", approval_by="alice", **options))  # type: ignore[arg-type]
    node.submit("acme.other")
    assert [each.kind for each in claimed(node)] == ["acme.other"]
    assert claims(node).again_at is None, "no time is worth waiting for"
    node.clock.advance(10**9)
    assert claimed(node) == []
    status = handle.status()
    assert (status["stage"], status["wait_reason"], status["ready_at_ms"]) == ("delayed", "approval", None)
    assert status["waits_for"].startswith("waits for approval by alice since ")
    handle.approve("checked", agent="alice")
    assert [each.kind for each in claimed(node)] == ["acme.deploy"]
    assert handle.status()["ops"][1]["detail"] == "approved by alice: checked"


def test_only_the_named_agent_approves_and_a_refused_answer_leaves_no_op(node: MemorySyncNode) -> None:
    here, elsewhere = f"alice@{node_text(node.runtime.log.node)}", "alice@00000000000000aa"
    mine = node.submit(hocket.kind("a", approval_by=here))
    others = node.submit(hocket.kind("a", approval_by=elsewhere))
    for handle, agent in ((mine, "bob"), (mine, "alice/helper"), (others, "alice"), (others, "bob")):
        for answer in (handle.approve, handle.refuse):
            with pytest.raises(NotAuthorised, match="waits for the approval of alice@"):
                answer(agent=agent)
    assert types(node, mine.job_id) == ["ScheduleJob"] and claimed(node) == []
    mine.approve(agent="alice")
    assert [each.id for each in claimed(node)] == [parse_ulid(mine.job_id)]


def test_a_refused_job_is_cancelled_with_the_name_and_what_comes_after_it_too(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice"))
    after = node.submit(hocket.kind("b", after=handle))
    handle.refuse("not before the release", agent="alice")
    assert job(node, handle.job_id).outcome is job(node, after.job_id).outcome is Outcome.CANCELLED
    with pytest.raises(hocket.JobCancelled) as raised:
        handle.result(timeout=1)
    assert raised.value.reason == "refused by alice: not before the release"
    for again in (handle.approve, handle.refuse):
        with pytest.raises(Conflict, match="waits for no approval: it is cancelled"):
            again(agent="alice")


def test_a_retry_asks_anew_and_a_try_after_a_failure_does_not(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice", retries=1, backoff="0s"))
    handle.approve(agent="alice")
    for is_last in (False, True):
        (taken,) = claims(node).taken
        assert taken.job.claim_op is not None
        held = jobs.Held(taken.job.id, taken.job.claim_op)
        node.runtime.log.run(lambda tx, held=held: jobs.fail(tx, held, "no", "", retry=True))  # type: ignore[misc]
        assert (job(node, handle.job_id).state is State.COMPLETED) is is_last
    handle.retry()
    assert job(node, handle.job_id).ready_at == UNAPPROVED_MS and claimed(node) == []
    with node.runtime.read() as session:
        assert session.busy_kinds() == set(), "a worker that ends when it is idle does not wait for a person"
    handle.approve(agent="alice")
    assert len(claimed(node)) == 1


def test_nothing_else_moves_the_start(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice"))
    for delay in (0, "1h"):
        with pytest.raises(Conflict, match="waits for an approval, which alone lets it start"):
            handle.postpone(delay=delay)
    with pytest.raises(Conflict, match="waits for no approval: it is pending"):
        node.submit("b").approve(agent="alice")
    handle.approve(agent="alice")
    handle.postpone(delay="1h")
    assert [each.kind for each in claimed(node)] == ["b"]


def test_without_an_answer_in_time_the_job_is_cancelled(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice", approval_within="1h", ttl="1m"))
    assert ", until " in handle.status()["waits_for"]
    node.clock.advance(3_599)
    assert node.runtime.log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 0
    node.clock.advance(2)
    with pytest.raises(Conflict, match="the time for the approval of the job has passed"):
        handle.approve(agent="alice")
    assert node.runtime.log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 1
    assert handle.status()["error"] == "alice did not approve it within 3600 seconds"


def test_the_ttl_counts_from_the_approval(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice", ttl="1m"))
    node.clock.advance(3_600)
    assert node.runtime.log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 0
    handle.approve(agent="alice")
    node.clock.advance(61)
    assert node.runtime.log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 1


@pytest.mark.parametrize(
    "options", [{"approval_by": "two words"}, {"approval_by": "a@box"}, {"approval_by": ""}, {"approval_within": "1h"}]
)
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(Usage, match="approval_"):
        hocket.kind("a", **options)  # type: ignore[arg-type]


# By mail.


def mail(node: MemorySyncNode) -> SyncReceivedMessage:
    (message,) = node.inbox("alice").claim()
    return message


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [("approve", None), ("Approved, thanks", None), ("refuse: not today", "cancelled"), ("NO", "cancelled")],
)
def test_a_reply_to_the_request_is_the_answer(node: MemorySyncNode, reply: str, outcome: str | None) -> None:
    handle = node.submit(hocket.kind("acme.deploy", approval_by="alice"), version=7)
    message = mail(node)
    assert message.data.type == approval_mail.APPROVAL_TYPE and '"version":7' in message.text
    assert handle.job_id in message.text and "acme.deploy" in message.text
    message.reply(reply)
    message.ack()
    assert node.runtime.show(handle.job_id)["outcome"] == outcome
    assert len(claimed(node)) == (outcome is None)
    assert types(node, handle.job_id)[1] == ("RefuseJob" if outcome else "ApproveJob")


def test_a_reply_that_is_no_answer_is_only_a_message(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice"))
    mail(node).reply("what does it change?")
    assert types(node, handle.job_id) == ["ScheduleJob"] and claimed(node) == []


def test_a_reply_of_another_agent_decides_nothing_and_is_not_sent(node: MemorySyncNode) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice"))
    message = mail(node)
    before = len(types(node, handle.job_id))
    with pytest.raises(NotAuthorised, match="waits for the approval of alice, not of bob"):
        message.reply("approve", agent="bob")
    assert len(types(node, handle.job_id)) == before
    with node.runtime.read() as session:
        assert session.replies(parse_ulid(message.id)) == []


def test_a_request_that_says_something_else_than_the_job_is_not_answered(node: MemorySyncNode) -> None:
    """Else anyone could have a harmless job approved under the name of another one."""
    handle = node.submit(hocket.kind("acme.deploy", approval_by="alice"), version=7)
    real = mail(node)
    forged = real.text.replace('"version":7', '"version":1')
    sent = node.direct(lambda each: each.send("alice", forged, agent="hocket", type=approval_mail.APPROVAL_TYPE))
    message = mail(node)
    assert sent and message.text == forged
    with pytest.raises(Conflict, match="does not say what it is"):
        message.reply("approve")
    assert types(node, handle.job_id) == ["ScheduleJob"]
    stray = node.direct(lambda each: each.send("alice", "Job 7ZZZ", agent="x", type=approval_mail.APPROVAL_TYPE))
    assert stray
    with pytest.raises(HocketError, match="not known here"):
        mail(node).reply("approve")


@pytest.mark.parametrize("payload", ["x" * 5_000, "\u202e", "é" * 1_999 + "x"])
def test_a_long_payload_is_cut_and_can_be_answered(node: MemorySyncNode, payload: str) -> None:
    handle = node.submit(hocket.kind("a", approval_by="alice"), text=payload)
    message = mail(node)
    assert len(message.text) < approval_mail.PAYLOAD_CHARS_MAX + 400
    message.reply("yes")
    assert types(node, handle.job_id) == ["ScheduleJob", "ApproveJob"]


# On the log of other nodes.


def reasons(ops: list[Op], *asked: Op) -> list[Reason | None]:
    with admitted(ops).store.read() as session:
        rows = [session.op(each.id) for each in asked]
    return [Reason(row.reason) if row is not None and row.reason else None for row in rows]


@pytest.mark.req("LW-41")
@pytest.mark.parametrize("order", [*permutations(range(4))])
def test_an_approval_by_whoever_may_not_give_it_counts_on_no_node(order: tuple[int, ...]) -> None:
    """In every order of arrival: the member has no grant, the other node has another agent, and a claim of before the
    approval does not count after it.
    """
    mesh = Mesh()
    mesh.owner(10, ScheduleJob(job_id(1), "acme.render.x", b"", b'{"approval_by":"alice"}'))
    said = [
        mesh.worker(11, ApproveJob(job_id(1), "alice", "")),
        mesh.other(12, ApproveJob(job_id(1), "bob", "")),
        mesh.other(13, ClaimWork(job_id(1), NODES[1], 1_000)),
        mesh.other(14, ApproveJob(job_id(1), "alice", "")),
    ]
    before = [each for each in mesh.ops if each not in said]
    assert reasons([*before, *(said[place] for place in order)], *said) == [
        *(Reason.UNAUTHORISED, Reason.NOT_APPROVER, Reason.NOT_APPROVED, None)
    ]


@pytest.mark.req("LW-41", "LW-39")
def test_the_coordinator_decides_on_an_answer_and_no_claim_comes_before() -> None:
    mesh = Mesh()
    mesh.owner(1, DesignateCoordinator(NODES[0]))
    mesh.owner(10, ScheduleJob(job_id(1), "acme.render.x", b"", b'{"approval_by":"alice@%016x"}' % NODES[1]))
    own = mesh.owner(11, ApproveJob(job_id(1), "alice", "the coordinator is not alice's node"))
    offer = mesh.other(12, ApproveJob(job_id(1), "alice", ""))
    early = mesh.owner(13, ClaimWork(job_id(1), NODES[0], 1_000))
    accepted = mesh.owner(14, AcceptWork(job_id(1), offer.id))
    claim = mesh.owner(15, ClaimWork(job_id(1), NODES[0], 1_000))
    assert reasons(mesh.ops, own, offer, early, accepted, claim) == [
        *(Reason.NOT_APPROVER, Reason.OFFERED, Reason.NOT_APPROVED, None, None)
    ]
