"""Strict v0.1 meshes: other software that knows Likewise v0.1 works in one beside our nodes, and our nodes write
nothing in it that such software does not know.
"""

import asyncio
import secrets
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import UnionType
from typing import Any, get_origin, get_type_hints

import pytest

from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Held
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.mesh_rules import STRICT, rules_hash
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import EXTENSIONS, VARIANTS, CreateArtifact, FailWork
from hocket.node.runtime import Runtime
from tests.mesh.likewise import RULES_HASH, Op, Other
from tests.mesh.world import WORKER, Guest, Place, artifact, ask, delegation, enrolled, introduced, received, since

DONE = {"duration_ms": 5, "prompt_tokens": None, "completion_tokens": None, "model_latency_ms": None}


def strictly(directory: Path, test: Callable[[Place], Any]) -> None:
    """A strict mesh of one node with a server."""

    async def inside() -> None:
        place = Place(await asyncio.to_thread(lambda: Runtime.init(directory / "a", strict=True)))
        await place.serve()
        try:
            await test(place)
        finally:
            await place.close()

    asyncio.run(inside())


def job(place: Place, job_id: bytes | str) -> Job:
    with place.runtime.read() as session:
        entry = session.job(bytes.fromhex(job_id) if isinstance(job_id, str) else job_id)
    assert entry is not None
    return entry.job


def claimed(place: Place, kind: str) -> Held:
    (claim,) = place.log.run(lambda tx: claiming.claim(tx, 1, 1, {kind: 60_000}.get)).taken
    assert claim.job.claim_op is not None
    return Held(claim.job.id, claim.job.claim_op)


def variants(place: Place) -> set[int]:
    with place.runtime.store.read() as session:
        return {row.variant for row in session.ops_after(0, 10_000)}


def head(place: Place) -> int:
    with place.runtime.store.read() as session:
        return session.head().wall


def admit(a: Place, other: Other, granted: tuple[Capability, ...] = WORKER) -> None:
    """The owner delegates to the other node, which introduces itself by that delegation."""
    payload = delegation(a, other.public, granted)
    a.log.run(lambda tx: tx.author(payload))
    other.tell("DelegateUcan", ucan_cid=payload.ucan_cid.hex(), ucan_bytes=payload.ucan_bytes.hex())


def named(ops: list[Op], type: str, **fields: Any) -> Op:
    (found,) = [op for op in ops if op["payload"]["type"] == type and fields.items() <= op["payload"].items()]
    return found


@pytest.mark.req("LW-46")
def test_the_rules_are_those_of_the_page(tmp_path: Path) -> None:
    assert rules_hash(STRICT).hex() == RULES_HASH
    Runtime.init(tmp_path / "a", strict=True).close()
    with Runtime.open(tmp_path / "a") as runtime:
        assert runtime.log.rules == STRICT


@pytest.mark.req("LW-46", "LW-08")
def test_a_likewise_node_works_in_our_mesh(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        other = Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            # A job of ours: the other node claims it, renews by a fresh claim that cites nothing, and completes it.
            a.submit(1, "test.for-other")
            ours = named(other.pull(), "ScheduleJob", kind="test.for-other")["payload"]["job_id"]
            other.tell("ClaimWork", job_id=ours, claimer=other.node, lease_duration_ms=60_000)
            deadline = job(a, ours).deadline
            other.tell("ClaimWork", job_id=ours, claimer=other.node, lease_duration_ms=120_000)
            assert (job(a, ours).fence, job(a, ours).claimer) == (1, other.node)
            assert (job(a, ours).deadline or 0) > (deadline or 0)
            other.tell("CompleteJob", job_id=ours, output_claims=[], output_artifacts=[], telemetry=DONE)
            assert job(a, ours).outcome is Outcome.SUCCEEDED
            # A job of the other's: ours claims it, renews, notes progress, fails; the other yields; ours completes.
            theirs = secrets.token_bytes(16).hex()
            other.tell("ScheduleJob", job_id=theirs, kind="test.for-us", payload=b"{}".hex(), policy_envelope="")
            held = claimed(a, "test.for-us")
            assert isinstance(a.log.run(lambda tx: jobs.renew(tx, held, 90_000)), Job)
            assert a.log.run(lambda tx: jobs.report(tx, held, b'"half"')) is Reason.STRICT
            assert isinstance(a.log.run(lambda tx: jobs.fail(tx, held, "it broke", "Traceback", False)), Job)
            assert named(other.pull(), "YieldWork", job_id=theirs)["payload"]["reason"] == "it broke"
            assert (job(a, theirs).state, job(a, theirs).outcome) == (State.PENDING, None)
            claim = other.tell("ClaimWork", job_id=theirs, claimer=other.node, lease_duration_ms=60_000)
            other.tell("YieldWork", (claim["id"],), job_id=theirs, claimer=other.node, reason="going down")
            again = claimed(a, "test.for-us")
            assert isinstance(a.log.run(lambda tx: jobs.complete(tx, again, b'"done"', 5)), Job)
            completion = named(other.pull(), "CompleteJob", job_id=theirs)
            (result,) = completion["payload"]["output_artifacts"]
            made = named(other.log, "CreateArtifact", artifact_id=result)
            assert bytes.fromhex(made["payload"]["content_inline"]) == b'"done"'
            assert (job(a, theirs).fence, job(a, theirs).outcome) == (3, Outcome.SUCCEEDED)

        await asyncio.to_thread(act)
        assert max(variants(a)) < 1024
        assert {op["node_id"] for op in other.log} == {a.id, other.node}
        with a.runtime.read() as session:
            assert [row.reason for row in session.ops_after(0, 1_000) if row.reason] == []

    strictly(tmp_path, test)


@pytest.mark.req("LW-46")
def test_an_invited_node_takes_over_the_strict_rules(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        b = await enrolled(tmp_path / "b", a, (Capability("Ops", "Read", {}), *WORKER))
        try:
            assert b.log.rules == STRICT
            a.submit(2)
            await b.exchanges.exchange(a.address)
            held = await asyncio.to_thread(claimed, b, "test.kind")
            b.log.run(lambda tx: jobs.fail(tx, held, "it broke", "", True))
            again = await asyncio.to_thread(claimed, b, "test.kind")
            b.log.run(lambda tx: jobs.complete(tx, again, None, 5))
            await b.exchanges.exchange(a.address)
            assert a.digest() == b.digest()
            assert max(variants(a) | variants(b)) < 1024
        finally:
            await b.close()

    strictly(tmp_path, test)


@pytest.mark.req("LW-46")
def test_none_of_our_payloads_gets_in_or_is_written(tmp_path: Path) -> None:
    """A v0.1 node would refuse them, so a node of ours in its mesh does, too."""

    async def test(a: Place) -> None:
        guest = Guest(7)
        introduced(a, guest)
        payload = delegation(a, guest.key.public, WORKER)
        wall = a.log.physical()
        await ask(a, guest, method="POST", query="", body=b"\x01" + guest.op(payload, wall))
        failure = guest.op(FailWork(bytes(16), guest.id, "", "", True), wall)
        reply = await ask(a, guest, method="POST", query="", body=b"\x01" + failure)
        assert b'"rejected":1' in reply.body
        with a.runtime.store.read() as session:
            assert [each.reason for each in session.refusals(10)] == [Reason.UNKNOWN_VARIANT]
        for number in EXTENSIONS - {1031}:
            assert a.log.run(lambda tx, n=number: tx.author(anything(n))) is Reason.STRICT  # type: ignore[misc]
        assert max(variants(a)) < 1024

    strictly(tmp_path, test)


def anything(number: int) -> Any:
    """Some payload of that number."""
    codec = VARIANTS[number]
    values = {str: "x", bytes: bytes(32), int: 1, bool: True}

    def some(kind: Any) -> Any:
        if get_origin(kind) is tuple:
            return ()
        if isinstance(kind, UnionType):
            return None
        return next(iter(kind)) if issubclass(kind, IntEnum) else values[kind]

    return codec.cls(**{name: some(kind) for name, kind in get_type_hints(codec.cls).items()})


@pytest.mark.req("LW-46", "LW-29")
def test_what_would_have_to_be_sanitised_is_not_sent(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        guest = Guest(8)
        introduced(a, guest, (Capability("Artifact", "Read", {"sanitize": ["TruncateContent(10)"]}),))
        a.log.run(lambda tx: tx.author(artifact(b"\x01" * 16, b"x" * 100)))
        a.log.run(lambda tx: tx.author(artifact(b"\x02" * 16, b"short")))
        found = received(await ask(a, guest, query=since({})))
        payloads = [op.payload for op in found if isinstance(op.payload, CreateArtifact)]
        assert [payload.content_inline for payload in payloads] == [b"short"]
        assert all(op.signature is not None for op in found)

    strictly(tmp_path, test)


def scheduled(other: Other, policy: bytes = b"", kind: str = "test.theirs") -> str:
    job_id = secrets.token_bytes(16).hex()
    other.tell("ScheduleJob", job_id=job_id, kind=kind, payload="", policy_envelope=policy.hex())
    return job_id


@pytest.mark.req("LW-02")
@pytest.mark.parametrize("ending", ["YieldWork", "ExpireWork"])
def test_a_job_can_be_claimed_again_at_once_however_often_it_came_back(tmp_path: Path, ending: str) -> None:
    async def test(a: Place) -> None:
        other = Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            job_id = scheduled(other)
            for times in range(1, 31):
                other.tell("ClaimWork", job_id=job_id, claimer=other.node, lease_duration_ms=1)
                assert (job(a, job_id).state, job(a, job_id).fence) == (State.CLAIMED, times)
                if ending == "YieldWork":
                    other.tell("YieldWork", job_id=job_id, claimer=other.node, reason="")
                else:
                    other.wait(2)
                    other.tell("ExpireWork", job_id=job_id, expired_claimer=other.node, reason="")
                assert (job(a, job_id).state, job(a, job_id).outcome) == (State.PENDING, None)
            other.tell("ClaimWork", job_id=job_id, claimer=other.node, lease_duration_ms=60_000)
            other.tell("CompleteJob", job_id=job_id, output_claims=[], output_artifacts=[], telemetry=DONE)
            assert job(a, job_id).outcome is Outcome.SUCCEEDED

        await asyncio.to_thread(act)

    strictly(tmp_path, test)


NO_JOB = "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"
POLICIES = {
    "bytes": b"\xff\x00 of another program",
    "other JSON": b'{"audit": true}',
    "not_before": b'{"not_before": 9000000000000}',
    "ttl": b'{"ttl_ms": 1}',
    "after": b'{"after": ["%s"]}' % NO_JOB.encode(),
    "tick": b'{"schedule": "nightly", "schedule_op": "%s"}' % NO_JOB.encode(),
}


@pytest.mark.req("LW-03")
@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_envelope_is_opaque(tmp_path: Path, policy: str) -> None:
    async def test(a: Place) -> None:
        other = Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            job_id = scheduled(other, POLICIES[policy])
            other.wait(100)
            other.tell("ClaimWork", job_id=job_id, claimer=other.node, lease_duration_ms=60_000)
            assert (job(a, job_id).state, job(a, job_id).claimer) == (State.CLAIMED, other.node)
            other.tell("CompleteJob", job_id=job_id, output_claims=[], output_artifacts=[], telemetry=DONE)
            before = job(a, job_id)
            assert before.outcome is Outcome.SUCCEEDED
            assert a.runtime.rebuild().unchanged
            assert job(a, job_id) == before

        await asyncio.to_thread(act)

    strictly(tmp_path, test)


@pytest.mark.req("LW-34")
def test_good_ops_behind_an_unknown_variant_are_taken(tmp_path: Path) -> None:
    async def test(a: Place) -> None:
        other = Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            ids = [secrets.token_bytes(16).hex() for _ in range(3)]
            for each in ids:
                other.say("ScheduleJob", job_id=each, kind="test.theirs", payload="", policy_envelope="")
                other.say_unknown(900, secrets.token_bytes(40))
            counts = other.send()
            assert (counts["appended"], counts["rejected"]) == (3, 3)
            assert [job(a, each).kind for each in ids] == ["test.theirs"] * 3

        await asyncio.to_thread(act)
        with a.runtime.store.read() as session:
            assert {each.reason for each in session.refusals(10)} == {Reason.UNKNOWN_VARIANT}

    strictly(tmp_path, test)


@pytest.mark.req("LW-34")
def test_ops_that_cannot_be_found_behind_an_unknown_variant_are_counted(tmp_path: Path) -> None:
    """A part of the payload looks like the end of the op."""

    async def test(a: Place) -> None:
        other = Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            other.say_unknown(900, b"")
            inner = other.unsent.pop()
            other.say_unknown(900, b"x" * 20 + inner[-150:] + b"\xff" * 30)
            for _ in range(4):
                other.say("RouteKind", kind="", route=None)
            counts = other.send()
            assert (counts["appended"], counts["duplicated"], counts["rejected"]) == (0, 0, 5)

        await asyncio.to_thread(act)

    strictly(tmp_path, test)


FAR_MS = 8_000_000_000_000


@pytest.mark.req("LW-22")
def test_only_what_a_member_has_signed_moves_the_clock(tmp_path: Path) -> None:
    """Whatever is wrong with an op besides: a later version's payload, no authority, another node's name."""

    async def test(a: Place) -> None:
        other, stranger = Other(a.address, a.id), Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            for one in (other, stranger):
                one.wait(FAR_MS)
            other.say_unknown(900, b"what", is_signed=False)
            other.say_unknown(1024, b"what", is_signed=False)
            other.say("RouteKind", kind="", route=None)
            other.unsent[-1] = other.unsent[-1][:-1] + b"A"
            stranger.say("RouteKind", kind="", route=None)
            other.unsent += [*stranger.unsent, other.unsent[-1][:90]]
            counts = other.send()
            assert (counts["appended"], counts["rejected"]) == (0, 5)
            a.submit(1)
            assert head(a) < FAR_MS
            other.say_unknown(900, b"what")
            assert other.send()["rejected"] == 1
            a.submit(1)
            assert head(a) > FAR_MS

        await asyncio.to_thread(act)

    strictly(tmp_path, test)


@pytest.mark.req("LW-22")
@pytest.mark.parametrize("is_signed", [False, True])
def test_what_a_reader_brings_of_others_moves_the_clock_only_if_they_have_signed_it(
    tmp_path: Path, is_signed: bool
) -> None:
    async def test(a: Place) -> None:
        other, reader = Other(a.address, a.id), Other(a.address, a.id)

        def act() -> None:
            admit(a, other)
            admit(a, reader, (Capability("Job", "Read", {}),))
            other.wait(FAR_MS)
            other.say_unknown(900, b"what", is_signed)
            reader.unsent += other.unsent
            assert reader.send()["rejected"] == 1
            a.submit(1)
            assert (head(a) > FAR_MS) == is_signed

        await asyncio.to_thread(act)

    strictly(tmp_path, test)
