"""What a named node promises, and that it does not forget it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hocket.kernel.keys import verify
from hocket.kernel.ops import decode
from hocket.kernel.succession.chain import Candidacy
from hocket.mesh.succession.witness import NamedWitness, Promised, read_promised
from hocket.mesh.succession.words import Settled, WitnessAsk, sequence_of
from tests.mesh.succession.successors import AFTER_MS, succeed
from tests.mesh.world import Place, world


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def named(directory: Path) -> AsyncIterator[tuple[Place, Place, Place, bytes]]:
    """The coordinator and two named nodes that know of the succession; nothing runs beside."""
    async with world(directory, "a", "b", "c") as (a, b, c):
        for other in (b, c):
            other.befriend(a.address)
            assert (await other.exchanges.visit(a.address)).state == "ok"
        succession = succeed([a, b, c])
        for other in (b, c):
            assert (await other.exchanges.visit(a.address)).state == "ok"
        yield a, b, c, succession


def candidacy(a: Place, by: Place, succession: bytes, term: int) -> Candidacy:
    head = a.log.permissions().chain.head
    assert head is not None
    return Candidacy(head.op_id, succession, head.op_id, term, by.id)


def ask(a: Place) -> WitnessAsk:
    head = a.log.permissions().chain.head
    assert head is not None
    return WitnessAsk(head.op_id)


def test_a_vote_is_given_once_a_term_and_outlives_the_process(tmp_path: Path) -> None:
    async def run() -> None:
        async with named(tmp_path) as (a, b, c, succession):
            clock = Clock()
            witness = NamedWitness(c.log, c.key, clock)
            wanted = candidacy(a, b, succession, 1)
            assert witness.vote(wanted).fault == "the coordinator holds the lead", "it has just started"
            clock.now += AFTER_MS / 1000
            answer = witness.vote(wanted)
            assert not answer.fault and verify(c.key.public, answer.signature, wanted.text)
            # The process was killed: another one has the same store, and the machine's clock goes on.
            again = NamedWitness(c.log, c.key, clock)
            clock.now += AFTER_MS / 1000
            assert again.vote(wanted).signature == answer.signature
            assert "it has voted in term 1" in again.vote(candidacy(a, c, succession, 1)).fault
            assert not again.vote(candidacy(a, c, succession, 2)).fault
            assert "it has voted in term 2" in again.vote(wanted).fault
            # It confirms nothing of the coordinator any more.
            assert "it has voted in term 2" in again.confirm(a.id, ask(a)).fault

    asyncio.run(run())


def test_an_answer_is_a_promise_not_to_vote(tmp_path: Path) -> None:
    async def run() -> None:
        async with named(tmp_path) as (a, b, c, succession):
            clock = Clock()
            witness = NamedWitness(c.log, c.key, clock)
            clock.now += 10 * AFTER_MS
            answer = witness.confirm(a.id, ask(a))
            assert not answer.fault and answer.after_ms == AFTER_MS and answer.succession == succession
            wanted = candidacy(a, b, succession, 1)
            # Another process of the node knows of the promise.
            other = NamedWitness(c.log, c.key, clock)
            other._started -= 10 * AFTER_MS
            clock.now += AFTER_MS / 1000 - 0.001
            assert other.vote(wanted).fault == "the coordinator holds the lead"
            clock.now += 0.002
            assert not other.vote(wanted).fault

    asyncio.run(run())


def test_entries_are_kept_beside_the_log_if_they_are_signed_and_follow_each_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with named(tmp_path) as (a, b, c, _):
            witness = NamedWitness(c.log, c.key, Clock())
            with a.log.store.read() as session:
                seq = session.head().seq
            a.submit(3)
            with a.log.store.read() as session:
                bodies = [a.log.signed(row.body) for row in session.entries_after(seq, 10)]
                last = session.latest_of(a.log.author)[0]
            before = c.count()
            gap = witness.confirm(a.id, WitnessAsk(ask(a).tenure, aside=sequence_of(bodies[1:])))
            assert "are missing before it" in gap.fault
            forged = [bodies[0][:-2] + b"xx", *bodies[1:]]
            assert (
                "is not signed by it"
                in witness.confirm(a.id, WitnessAsk(ask(a).tenure, aside=sequence_of(forged))).fault
            )
            assert "another coordinator" in witness.confirm(b.id, ask(a)).fault
            answer = witness.confirm(a.id, WitnessAsk(ask(a).tenure, aside=sequence_of(bodies)))
            assert not answer.fault and answer.has == last
            assert c.count() == before, "nothing is on the log"
            with c.log.store.read() as session:
                assert [row.body for row in session.witnessed((b"", b""), 10)] == bodies
            # Once they are on the log they are dropped.
            c.log.admit([(body, decode(body)) for body in bodies])
            assert witness.confirm(a.id, ask(a)).has == last
            with c.log.store.read() as session:
                assert not session.witnessed((b"", b""), 10)

    asyncio.run(run())


def test_only_the_coordinator_says_under_which_succession_it_acts(tmp_path: Path) -> None:
    async def run() -> None:
        async with named(tmp_path) as (a, b, c, succession):
            witness, tenure = NamedWitness(c.log, c.key, Clock()), ask(a).tenure
            forged = Settled.signed(b.key, tenure, succession)
            assert "not signed by the coordinator" in witness.confirm(a.id, WitnessAsk(tenure, settled=forged)).fault
            word = Settled.signed(a.key, tenure, succession)
            assert not witness.confirm(a.id, WitnessAsk(tenure, settled=word)).fault
            with c.log.store.read() as session:
                assert read_promised(session).words == (word,)

    asyncio.run(run())


def test_a_witness_that_forgets_its_vote_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the vote is answered and not kept."""
    monkeypatch.setattr(Promised, "with_vote", lambda self, vote: self)
    with pytest.raises(AssertionError):
        test_a_vote_is_given_once_a_term_and_outlives_the_process(tmp_path)
