"""A node whose home was restored from a backup, and that wrote before its first exchange: it gets back what it lost,
writes its own again behind that, and no node has two histories of it.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hocket.api.checks import Check, examine
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft, Held
from hocket.families.jobs.rules import Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, just_before, pack, unpack
from hocket.kernel.frontier import parse_frontier
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.policy import Policy
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import CancelJob
from hocket.log import Transaction
from hocket.log.lost_past import own_history, rewind
from hocket.mesh import gate_requests, peer_exchange, wire
from hocket.node.runtime import Runtime
from hocket.store import OpRow
from tests.mesh.world import READ, WORKER, Place, enrolled, received, since

ACME = (
    *(Capability("Job", action, {"kind_prefix": ["acme."]}) for action in ("Schedule", "Claim", "Complete", "Read")),
    Capability("Artifact", "Write", {}),
    *(Capability(resource, "Read", {}) for resource in READ[1:]),
)


class Mesh:
    """A coordinator and another node. One of them, the `victim`, is restored from a backup."""

    def __init__(self, directory: Path, owner: Place, other: Place, victim: str) -> None:
        self.directory, self.owner, self.other = directory, owner, other
        self.is_owner = victim == "owner"
        self.port = int(owner.address.rpartition(":")[2])

    @property
    def victim(self) -> Place:
        return self.owner if self.is_owner else self.other

    @property
    def peer(self) -> Place:
        return self.other if self.is_owner else self.owner

    async def exchange(self, times: int = 3) -> None:
        for _ in range(times):
            await self.other.exchanges.visit(self.owner.address)

    def back_up(self) -> None:
        self.victim.log.seal()
        home = self.victim.runtime.home.path
        shutil.copytree(home, self.directory / "backup", ignore=shutil.ignore_patterns("processes"))

    async def restore(self) -> None:
        home = self.victim.runtime.home.path
        await self.victim.close()
        shutil.rmtree(home)
        shutil.move(self.directory / "backup", home)
        restored = Place(Runtime.open(home))
        if self.is_owner:
            self.owner = restored
            await restored.serve(port=self.port)
        else:
            self.other = restored

    def agree(self) -> None:
        assert self.owner.digest() == self.other.digest()
        for place in (self.owner, self.other):
            with place.runtime.read() as session:
                assert not session.forks() and Reason.WAITING not in session.refusal_counts()
            assert place.runtime.verify().findings == []
            assert place.runtime.rebuild().unchanged


@asynccontextmanager
async def mesh(directory: Path, victim: str, other: str) -> AsyncIterator[Mesh]:
    owner = Place(await asyncio.to_thread(Runtime.init, directory / "owner"))
    await owner.serve()
    if other == "whole":
        second = Place(await asyncio.to_thread(Runtime.init, directory / "other", directory / "owner" / "user.key"))
        second.befriend(owner.address)
    else:
        second = await enrolled(directory / "other", owner, ACME if other == "narrow" else WORKER)
    made = Mesh(directory, owner, second, victim)
    try:
        await made.exchange()
        made.back_up()
        yield made
    finally:
        await made.other.close()
        await made.owner.close()


def findings(place: Place) -> dict[str, Check]:
    return {each.check: each for each in examine(place.runtime.home)}


CASES = [("owner", "whole"), ("owner", "worker"), ("owner", "narrow"), ("other", "whole"), ("other", "worker")]


@pytest.mark.req("LW-22", "LW-43")
@pytest.mark.parametrize(("victim", "other"), CASES)
def test_a_restored_node_that_writes_first_gets_back_what_it_lost(tmp_path: Path, victim: str, other: str) -> None:
    async def scene() -> None:
        async with mesh(tmp_path, victim, other) as here:
            here.victim.submit_bundle(10, "acme.before")
            await here.exchange()
            await here.restore()
            here.victim.submit_bundle(2, "acme.after")
            await here.exchange(4)
            here.agree()
            with here.peer.runtime.read() as session:
                kinds = [entry.job.kind for entry in session.each_job()]
            assert sorted(kinds) == ["acme.after"] * 2 + ["acme.before"] * 10
            assert any("wrote 2 later ops again" in each for each in here.victim.notices)
            assert findings(here.victim)["history"].verdict == "warn"
            assert findings(here.peer)["history"].verdict == "ok"
            here.victim.submit(1, "acme.later")
            await here.exchange()
            here.agree()

    asyncio.run(scene())


@pytest.mark.req("LW-22", "LW-43")
def test_a_restored_coordinator_knows_again_what_its_worker_did(tmp_path: Path) -> None:
    """The jobs were submitted, claimed and completed after the backup. The worker may read only their kinds."""

    async def scene() -> None:
        async with mesh(tmp_path, "owner", "narrow") as here:
            here.owner.submit(10, "acme.job")
            await here.exchange()
            worker = here.other.log
            claims = worker.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: 600_000, offering=True)).wanted
            assert len(claims) == 10
            await here.exchange()
            for claim in claims:
                worker.run(lambda tx, claim=claim: complete(tx, claim.offer.job_id))  # type: ignore[misc]
            await here.exchange()
            await here.restore()
            here.owner.submit(1, "acme.fresh")
            await here.exchange(4)
            here.agree()
            with here.owner.runtime.read() as session:
                done = [entry for entry in session.each_job() if entry.job.outcome is Outcome.SUCCEEDED]
            assert len(done) == 10

    asyncio.run(scene())


def complete(tx: Transaction, job_id: bytes) -> None:
    entry = tx.projection.jobs.entry(job_id)
    assert entry is not None and entry.job.claim_op is not None
    jobs.complete(tx, Held(entry.job.id, entry.job.claim_op), None, 1)


@pytest.mark.req("LW-43")
def test_what_was_written_meanwhile_still_belongs_together(tmp_path: Path) -> None:
    """A job, one after it, and a cancellation: the new ids stand in all three."""

    async def scene() -> None:
        async with mesh(tmp_path, "other", "whole") as here:
            here.victim.submit(3)
            await here.exchange()
            await here.restore()
            log = here.victim.log
            first = log.run(lambda tx: jobs.submit(tx, [Draft("acme.first", b"{}", Policy(priority=3))]))[0].job_id
            second = Draft("acme.second", b"{}", Policy(after=(ulid_text(first),)))
            log.run(lambda tx: jobs.submit(tx, [second]))
            log.run(lambda tx: tx.author(CancelJob(first, "enough")))
            await here.exchange()
            here.agree()
            with here.owner.runtime.read() as session:
                known = {entry.job.kind: entry.job for entry in session.each_job()}
            assert known["acme.first"].id != first and known["acme.first"].policy.priority == 3
            assert known["acme.second"].policy.after == (ulid_text(known["acme.first"].id),)
            assert known["acme.first"].outcome is Outcome.CANCELLED

    asyncio.run(scene())


@pytest.mark.req("LW-43")
def test_a_node_that_cannot_have_all_of_it_back_says_so_and_sends_nothing(tmp_path: Path) -> None:
    """The only other node may not read all of what was lost."""

    async def scene() -> None:
        async with mesh(tmp_path, "owner", "narrow") as here:
            here.owner.submit(2, "secret.kind")
            here.owner.submit(2, "acme.kind")
            await here.exchange()
            await here.restore()
            here.owner.submit(1, "acme.fresh")
            for _ in range(2):
                await here.exchange()
                found = findings(here.owner)["history"]
                assert found.verdict == "bad" and "older than what other nodes have of it" in found.says
                with here.other.runtime.read() as session:
                    assert sorted(entry.job.kind for entry in session.each_job()) == ["acme.kind"] * 2

    asyncio.run(scene())


@pytest.mark.req("LW-43")
def test_a_recovery_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    async def scene() -> None:
        async with mesh(tmp_path, "other", "whole") as here:
            here.victim.submit(5)
            await here.exchange()
            await here.restore()
            here.victim.submit(2)

            log, lost = here.victim.log, [(row.body, decode(row.body)) for row in own_rows(here.peer, here.victim.id)]
            branch = log.admit(lost).branch
            assert branch is not None
            with here.victim.runtime.store.read() as session:
                assert own_history(session, log.node) == (True, False)
            rewind(log, branch)
            assert log.admit(lost).branch is None
            with here.victim.runtime.store.read() as session:
                assert own_history(session, log.node) == (False, True)
            assert "wait to be written again" in findings(here.victim)["history"].says
            await here.exchange()
            here.agree()
            with here.owner.runtime.read() as session:
                assert len(list(session.each_job())) == 7

    asyncio.run(scene())


def own_rows(place: Place, node: int) -> list[OpRow]:
    with place.runtime.store.read() as session:
        return session.entries_of_author(node.to_bytes(8, "big"), bytes(20), 1_000)


@pytest.mark.req("LW-43")
def test_another_process_of_the_node_writes_meanwhile(tmp_path: Path) -> None:
    async def scene() -> None:
        async with mesh(tmp_path, "other", "whole") as here:
            here.victim.submit(5)
            await here.exchange()
            await here.restore()
            here.victim.submit(1)
            beside = Runtime.open(here.victim.runtime.home.path)
            try:
                beside.log.append_plain("acme.beside", b"{}")
                await here.exchange()
                for _ in range(3):
                    beside.log.append_plain("acme.more", b"{}")
                await here.exchange()
            finally:
                beside.close()
            here.agree()

    asyncio.run(scene())


def test_the_mere_word_of_a_caller_changes_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        async with mesh(tmp_path, "other", "whole") as here:
            here.owner.submit(3)
            before = here.owner.ids()
            ahead = Hlc(here.owner.log.physical() + 1, 0, here.owner.id)
            reply = await here.other.ask(here.owner, query=since({here.owner.id: ahead}))
            assert parse_frontier(reply.headers[wire.FRONTIER])[here.owner.id] == Hlc(0, 0, here.owner.id)
            assert not [op for op in received(reply) if op.node_id == here.owner.id]
            assert here.owner.ids() == before and findings(here.owner)["history"].verdict == "ok"
            # A question for the last op once more is none.
            with here.owner.runtime.store.read() as session:
                last = session.entries_of_author(here.owner.id.to_bytes(8, "big"), bytes(20), 1_000)[-1].hlc
            at = just_before(unpack(last))
            frontier = {here.owner.id: at, here.other.id: at._replace(node=here.other.id)}
            (again,) = received(await here.other.ask(here.owner, query=since(frontier)))
            assert pack(again.timestamp) == last

    asyncio.run(scene())


@pytest.mark.req("LW-43")
@pytest.mark.parametrize("victim", ["owner", "other"])
def test_what_others_have_is_never_taken_off_the_log(
    tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second history of a node whose key was stolen is a fork, and no reason to rewrite the first."""
    monkeypatch.setattr(peer_exchange, "SHARED_S", 0.0)
    monkeypatch.setattr(gate_requests, "SHARED_S", 0.0)

    async def scene() -> None:
        async with mesh(tmp_path, victim, "whole") as here:
            stolen = shutil.copytree(tmp_path / "backup", tmp_path / "stolen")
            here.victim.submit(3)
            await here.exchange()
            before = here.victim.ids()
            with Runtime.open(stolen) as thief:
                thief.log.append_plain("evil.kind", b"{}")
                with thief.store.read() as session:
                    forged = thief.log.signed(session.last_ops(1)[0].body)
            admission = here.victim.log.admit([(forged, decode(forged))])
            assert admission.branch is None and admission.forked == {here.victim.id}
            assert before <= here.victim.ids()
            assert any("two histories" in each.says for each in examine(here.victim.runtime.home))

    asyncio.run(scene())
