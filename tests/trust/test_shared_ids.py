"""Where ids are anybody's, in a strict mesh, an op is known by its author and its id: nobody's op keeps another's out,
and what a shared id means does not depend on the order in which its ops arrive.
"""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.families.jobs import requests as jobs
from hocket.families.jobs import view
from hocket.families.jobs.rules import Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, derived_ulid
from hocket.kernel.keys import did_key
from hocket.kernel.mesh_rules import STRICT, encode_rules
from hocket.kernel.ops import Op
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import (
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    ExpireWork,
    Payload,
    RevokeUcan,
    RouteKind,
    ScheduleJob,
    Telemetry,
    YieldWork,
)
from hocket.log import RULES, Log
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild, roster_digest
from hocket.store import MEMORY
from hocket.store import open as open_store
from tests.log.roster.world import INTRODUCTIONS, NODES, NOW, READER, USER, new_log, op_id, sent
from tests.log.roster.world import START as BEGIN
from tests.log.roster.world import Script as Writing
from tests.trust.members import START, Forger, Member, key
from tests.trust.members import USER as OWNER

pytestmark = pytest.mark.touches("LW-20")

MANY = settings(max_examples=settings().max_examples * 5 // 3)
SQUATTED = op_id(1_000)


def strict_log() -> Log:
    store = open_store(MEMORY)
    with store.write() as session:
        session.set_meta(RULES, encode_rules(STRICT))
    return new_log(store)


def counting(log: Log) -> dict[tuple[int, bytes], int]:
    """The reason of each op by author and id."""
    log.settle()
    with log.store.read() as session:
        rows = session.ops_after(0, 10_000)
        return {(int.from_bytes(row.hlc[12:], "big"), row.id[:16]): row.reason for row in rows}


@pytest.mark.req("LW-42", "LW-46")
def test_a_squatted_revocation_still_gets_in() -> None:
    """An op with the id of a revocation kept that revocation from a server for ever."""
    first, server, forger = (Member(name, STRICT) for name in ("owner", "server", "forger"))
    for member in (first, server):
        member.enter(issue(OWNER, key(member.name).public, ROOT, START // 1000 - 10, None))
    forger.enter(first.invite(forger), first.token)
    first.pull(forger)
    revocation = first.say(RevokeUcan(content_hash(forger.token)))
    hand = Forger("forger")
    squat = hand.say(RouteKind("x", None), first.clock.now, op_id=revocation.id)
    server.pull(forger)
    assert server.receive([squat]).appended == 1
    assert server.pull(first).refused == {}
    assert counting(server.log)[first.node, revocation.id] == 0
    with server.log.store.read() as session:
        assert [each.cid for each in session.revocations()] == [content_hash(forger.token)]
    assert counting(server.log)[forger.node, revocation.id] == Reason.OWNER_ONLY
    assert server.pull(first)[:2] == (0, len([op for _, op in first.ops()])), "what is here is a duplicate"
    assert server.rebuilt()
    assert verify(server.log.store, user=server.log.user).findings == []


@pytest.mark.req("LW-42", "LW-46")
@pytest.mark.parametrize("batches", ["one", "two", "backwards"])
def test_both_ops_with_one_id_count(batches: str) -> None:
    writing = Writing()
    first = writing.say(0, 10, ScheduleJob(op_id(501), "test.a", b"{}", b""), number=1_000)
    second = writing.say(1, 20, ScheduleJob(op_id(502), "test.b", b"{}", b""), number=1_000)
    assert first.id == second.id
    log = strict_log()
    log.admit(sent(INTRODUCTIONS))
    order = {"one": [[first, second]], "two": [[first], [second]], "backwards": [[second], [first]]}[batches]
    for batch in order:
        assert log.admit(sent(batch)).appended == len(batch)
    with log.store.read() as session:
        shown = [view.full(session, entry) for entry in session.each_job()]
    assert sorted(each["kind"] for each in shown) == ["test.a", "test.b"]
    assert {op["id"] for each in shown for op in each["ops"]} == {view.ulid_text(first.id)}
    assert log.admit(sent([first, second]))[:2] == (0, 2)


@pytest.mark.req("LW-42", "LW-46")
def test_nobody_comes_between_an_author_and_its_own_ops() -> None:
    """An earlier op with the id of a claim does not make the claimer's completion, which cites the claim, void."""
    writing = Writing()
    job = op_id(501)
    schedule = writing.say(0, 10, ScheduleJob(job, "test.a", b"{}", b""))
    claim = writing.say(0, 20, ClaimWork(job, NODES[0], 1_000))
    done = writing.say(0, 30, CompleteJob(job, (), (), Telemetry(1)), (claim.id,))
    squat = writing.say(1, 5, YieldWork(op_id(502), NODES[1], "?"))
    squat = msgspec.structs.replace(squat, id=claim.id)
    for order in ([squat, schedule, claim, done], [schedule, claim, done, squat]):
        log = strict_log()
        log.admit(sent(INTRODUCTIONS))
        for op in order:
            log.admit(sent([op]))
        with log.store.read() as session:
            entry = session.job(job)
        assert entry is not None and entry.job.outcome is Outcome.SUCCEEDED


@pytest.mark.req("LW-42", "LW-46", "LW-32")
def test_a_citation_within_a_job_is_asked_again_when_its_id_turns_out_to_be_shared() -> None:
    """Somebody else's citation of an id means the earliest op that has it, in whatever order they arrive."""
    writing = Writing()
    job = op_id(501)
    schedule = writing.say(0, 10, ScheduleJob(job, "test.a", b"{}", b""))
    claim = writing.say(0, 20, ClaimWork(job, NODES[0], 10))
    expiry = writing.say(1, 50, ExpireWork(job, NODES[0], "deadline_passed"), (claim.id,))
    squat = msgspec.structs.replace(writing.say(2, 5, YieldWork(op_id(502), NODES[2], "?")), id=claim.id)
    found = []
    for order in ([squat, schedule, claim, expiry], [schedule, claim, expiry, squat]):
        log = strict_log()
        log.admit(sent(INTRODUCTIONS))
        for op in order:
            log.admit(sent([op]))
        found.append(counting(log))
    assert found[0] == found[1]
    assert found[0][NODES[1], expiry.id] == Reason.DEPENDENCY_REJECTED


@pytest.mark.req("LW-42", "LW-46", "LW-23")
@pytest.mark.parametrize("earlier", [True, False])
def test_an_introduction_gets_in_beside_an_op_with_its_id(earlier: bool) -> None:
    """In one batch: the verdict on one of them is not taken for that on the other."""
    log = strict_log()
    log.admit(sent(INTRODUCTIONS[:2]))
    third = INTRODUCTIONS[2]
    squat = Writing().say(1, 5 if earlier else 50, ScheduleJob(op_id(501), "test.a", b"{}", b""))
    squat = msgspec.structs.replace(squat, id=third.id)
    moved = Hlc(BEGIN + 20, 0, third.node_id)
    admission = log.admit(sent([msgspec.structs.replace(third, timestamp=moved), squat]))
    assert (admission.appended, admission.refused) == (2, {})
    assert counting(log)[third.node_id, third.id] == counting(log)[NODES[1], third.id] == 0
    forged = sent([msgspec.structs.replace(squat, timestamp=Hlc(BEGIN + 60, 0, NODES[0]), node_id=NODES[0])])
    unsigned = [(raw[:-1] + bytes([raw[-1] ^ 1]), op) for raw, op in forged]
    assert log.admit(unsigned).refused == {Reason.BAD_SIGNATURE: 1}


@pytest.mark.req("LW-46")
def test_the_next_id_of_a_node_can_be_taken_and_it_writes_on() -> None:
    """Within a millisecond ids follow each other, so others can guess the next one."""
    log = strict_log()
    log.admit(sent(INTRODUCTIONS))
    token = issue(USER, READER.public, ROOT, 0, None)
    log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
    last = log.append_plain("test.a", b"{}")
    guesses = [(int.from_bytes(last, "big") + more).to_bytes(16, "big") for more in (1, 2, 3)]
    writing = Writing()
    squats = [
        writing.say(1, 10, RouteKind("x", None)),
        writing.say(1, 11, ScheduleJob(guesses[1], "test.evil", b"{}", b"")),
        writing.say(1, 12, RouteKind("y", None)),
    ]
    taken = [msgspec.structs.replace(squats[i], id=guesses[i]) for i in (0, 2)]
    log.admit(sent([*taken, squats[1]]))
    plain = log.append_plain("test.b", b"{}")
    submitted = log.run(lambda tx: jobs.submit(tx, [jobs.Draft("test.c", b"{}", jobs.Policy())]))[0].job_id
    log.settle()
    with log.store.read() as session:
        kinds = [entry.job.kind if (entry := session.job(each)) else None for each in (last, plain, submitted)]
    assert kinds == ["test.a", "test.b", "test.c"]
    assert not {plain, submitted} & set(guesses)


@pytest.mark.req("LW-42")
def test_of_two_ops_of_one_author_with_one_id_neither_counts_whoever_else_has_it() -> None:
    writing = Writing()
    other = writing.say(0, 1, RouteKind("w", NODES[0]), number=1_000)
    twins = [writing.say(1, wall, RouteKind("x", NODES[1]), number=1_000) for wall in (10, 20)]
    for order in ([other, *twins], [*twins, other]):
        log = strict_log()
        log.admit(sent(INTRODUCTIONS))
        refused = [log.admit(sent([op])).refused for op in order]
        assert refused.count({Reason.OTHER_BYTES: 1}) == 1
        assert counting(log)[NODES[1], SQUATTED] == Reason.INTEGRITY
        assert counting(log)[NODES[0], SQUATTED] == 0


# The same history with ids of their own says what a history with shared ids must say.

JOBS = [op_id(500 + number) for number in range(3)]
IDS = [op_id(1_000 + number) for number in range(6)]
CIDS = [op.payload.ucan_cid for op in INTRODUCTIONS[1:]]  # type: ignore[union-attr]


def payloads(node: int) -> st.SearchStrategy[Payload]:
    job = st.sampled_from(JOBS)
    return st.one_of(
        st.builds(ScheduleJob, job, st.sampled_from(["test.a", "test.b"]), st.just(b"{}"), st.just(b"")),
        st.builds(ClaimWork, job, st.just(NODES[node]), st.sampled_from([5, 50, 500])),
        st.builds(CompleteJob, job, st.just(()), st.just(()), st.just(Telemetry(1))),
        st.builds(YieldWork, job, st.just(NODES[node]), st.just("?")),
        st.builds(RouteKind, st.sampled_from(["test.a", "test.b"]), st.sampled_from([None, *NODES])),
        st.builds(
            CreateArtifact,
            *(st.sampled_from(JOBS), st.just("t"), st.none(), st.just(()), st.just(bytes(32)), st.just(b"")),
            *(st.none(), st.none(), st.just(0)),
        ),
        st.builds(RevokeUcan, st.sampled_from(CIDS)),
    )


@st.composite
def shared(draw: st.DrawFn) -> list[Op]:
    """A history in which authors use the same few ids, each of them once."""
    places = draw(
        st.lists(st.tuples(st.sampled_from(range(3)), st.sampled_from(IDS)), min_size=2, max_size=14, unique=True)
    )
    return [
        Op(
            identity,
            Hlc(BEGIN + 10 * index, 0, NODES[node]),
            NODES[node],
            tuple(draw(st.lists(st.sampled_from(IDS), max_size=2, unique=True))),
            draw(payloads(node)),
        )
        for index, (node, identity) in enumerate(places)
    ]


def own_name(op: Op) -> bytes:
    return derived_ulid(BEGIN, op.node_id.to_bytes(8, "big"), op.id)


def told_apart(history: Sequence[Op]) -> list[Op]:
    """Gives each op of a history an id of its own, and each citation the id of the op that it means."""

    def meant(dep: bytes, op: Op) -> bytes:
        found = sorted((each for each in history if each.id == dep), key=lambda each: each.timestamp)
        before = [each for each in found if each.timestamp < op.timestamp] or found
        own = [each for each in before if each.node_id == op.node_id]
        return own_name((own or before)[0]) if found else dep

    return [
        msgspec.structs.replace(op, id=own_name(op), causal_deps=tuple(meant(dep, op) for dep in op.causal_deps))
        for op in history
    ]


def told(log: Log) -> dict[bytes, tuple[str, State, Outcome | None, int, int]]:
    with log.store.read() as session:
        found = [entry.job for entry in session.each_job()]
        return {job.id: (job.kind, job.state, job.outcome, job.fence, job.returns) for job in found}


@pytest.mark.req("LW-42", "LW-46", "LW-32")
@given(history=shared(), data=st.data())
@MANY
def test_shared_ids_say_the_same_in_every_order(history: list[Op], data: st.DataObject) -> None:
    apart = told_apart(history)
    expected = strict_log()
    expected.admit(sent(INTRODUCTIONS))
    expected.admit(sent(apart))
    verdicts = counting(expected)
    digests = set()
    for _ in range(2):
        log = strict_log()
        log.admit(sent(INTRODUCTIONS))
        rest = data.draw(st.permutations(history))
        while rest:
            size = data.draw(st.integers(1, len(rest)))
            assert log.admit(sent(rest[:size])).refused == {}
            rest = rest[size:]
        found = counting(log)
        for op, named in zip(history, apart, strict=True):
            assert found[op.node_id, op.id] == verdicts[op.node_id, named.id], (op, named)
        assert told(log) == told(expected)
        with log.store.read() as session:
            digests.add(roster_digest(session))
        assert rebuild(log.store, log.permissions_reader, NOW).unchanged
        assert counting(log) == found
        assert verify(log.store, user=did_key(USER.public)).findings == []
    assert len(digests) == 1
