"""Derivations: however the passes are cut, the same ops are derived; a repetition finds what is not pure."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.api import Service
from hocket.api.ops import PassVerdict, passes
from hocket.errors import Usage
from hocket.kernel.ids import content_hash
from hocket.kernel.vocabulary import AddEntityAlias, CreateEntity, IngestEvidence, Payload
from hocket.log import Transaction
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime
from hocket.work import derivation as derivations
from hocket.work.derivation import LoggedOp, derivation
from hocket.work.handlers import REGISTRY
from tests.work.mesh import wait_for

NAME = "test.sources"
KIND = "likewise.derive." + NAME


def sources(known: dict[str, Any], op: LoggedOp) -> Iterator[Payload]:
    """An entity for the first evidence of each source, and a name for it after each third."""
    source = op.payload.source_type
    known[source] = known.get(source, 0) + 1
    if known[source] == 1:
        yield CreateEntity(op.derived_id(), "source", source)
    if known[source] % 3 == 0:
        yield AddEntityAlias(op.derived_id("alias"), f"{source} {known[source]}")


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    derivation(NAME, over=(IngestEvidence,))(sources)
    yield
    del derivations.REGISTERED[KIND], REGISTRY[KIND]


def ingest(source: str) -> Callable[[Transaction], object]:
    return lambda tx: tx.author(IngestEvidence(bytes(16), content_hash(source.encode()), source, "test"))


def derived(node: SyncNode) -> list[Payload]:
    with node.runtime.read() as session:
        rows = session.ops_after(0, 100_000)
    found = [derivations.decode(row.body).payload for row in rows if row.reason == 0]
    return [payload for payload in found if isinstance(payload, CreateEntity | AddEntityAlias)]


def run_passes(node: SyncNode) -> None:
    """Asks for passes and runs them until every op is read."""
    [made] = derivations.registered([NAME])
    while True:
        with node.runtime.read() as session:
            before = derivations.next_pass(session, made).record.read
        if not before:
            return
        # The worker of the turn before may have asked already.
        node.runtime.log.run(lambda tx: derivations.ask(tx, made))
        node.work([REGISTRY[KIND]], until_idle=True, signals=False)


def expected(told: list[str]) -> list[tuple[str, str]]:
    """What the function derives from these sources, in order."""
    known: dict[str, int] = {}
    found = []
    for source in told:
        known[source] = known.get(source, 0) + 1
        if known[source] == 1:
            found.append(("CreateEntity", source))
        if known[source] % 3 == 0:
            found.append(("AddEntityAlias", f"{source} {known[source]}"))
    return found


def shown(payloads: list[Payload]) -> list[tuple[str, str]]:
    return [
        (type(each).__name__, each.initial_label if isinstance(each, CreateEntity) else each.alias)
        for each in payloads
        if isinstance(each, CreateEntity | AddEntityAlias)
    ]


@pytest.mark.req("LW-47")
@given(
    turns=st.lists(st.lists(st.sampled_from(("mail", "chat", "file")), max_size=6), min_size=1, max_size=4),
    step=st.integers(1, 4),
)
def test_however_the_passes_are_cut_the_same_is_derived(
    turns: list[list[str]], step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home") / "home"
    with pytest.MonkeyPatch.context() as patch, Runtime.init(home) as runtime:
        patch.setattr(derivations, "OPS_MAX", step)
        node = SyncNode(runtime)
        for sources_told in turns:
            for source in sources_told:
                runtime.log.run(ingest(source))
            run_passes(node)
        assert shown(derived(node)) == expected([source for turn in turns for source in turn])
        lines = passes(Service(runtime), derivations.registered([NAME]), check=True)
        assert {line.verdict for line in lines} <= {PassVerdict.same}
        assert sum(line.read for line in lines) == sum(map(len, turns))


@pytest.mark.req("LW-47")
def test_a_repetition_finds_a_function_that_is_not_pure(tmp_path: Path) -> None:
    with Runtime.init(tmp_path / "home") as runtime:
        runtime.log.run(ingest("mail"))
        run_passes(SyncNode(runtime))
        [made] = derivations.registered([NAME])

        def other(known: dict[str, Any], op: LoggedOp) -> list[Payload]:
            return [CreateEntity(op.derived_id(), "source", "another")]

        def forgetful(known: dict[str, Any], op: LoggedOp) -> list[Payload]:
            return [CreateEntity(op.derived_id(), "source", op.payload.source_type)]

        for function in (other, forgetful):
            [line] = passes(Service(runtime), [made._replace(function=function)], check=True)
            assert line.verdict is PassVerdict.differs and "not pure" in line.detail


@pytest.mark.req("LW-47")
def test_a_pass_that_failed_is_not_repeated_until_somebody_retries_it(tmp_path: Path) -> None:
    def broken(known: dict[str, Any], op: LoggedOp) -> list[Payload]:
        raise ValueError("it broke")

    REGISTRY.pop(KIND)
    derivation(NAME, over=(IngestEvidence,))(broken)
    with Runtime.init(tmp_path / "home") as runtime:
        node = SyncNode(runtime)
        runtime.log.run(ingest("mail"))
        [made] = derivations.registered([NAME])
        assert runtime.log.run(lambda tx: derivations.ask(tx, made))
        node.work([REGISTRY[KIND]], until_idle=True, signals=False)
        with runtime.read() as session:
            [entry] = session.jobs(derivations.JobFilter(kind=KIND), 10)
        assert entry.job.outcome is derivations.Outcome.FAILED
        assert not runtime.log.run(lambda tx: derivations.ask(tx, made))
        assert derived(node) == []


@pytest.mark.req("LW-47")
def test_a_worker_asks_for_passes_by_itself_and_a_pass_reads_what_came_while_it_ran(tmp_path: Path) -> None:
    with Runtime.init(tmp_path / "home") as runtime:
        node = SyncNode(runtime)
        runtime.log.run(ingest("mail"))
        stop: list[Any] = []
        thread = threading.Thread(
            target=node.work, args=([REGISTRY[KIND]],), kwargs={"signals": False, "started": stop.append}
        )
        thread.start()
        try:
            wait_for(lambda: shown(derived(node)) == expected(["mail"]), "the first pass")
            runtime.log.run(ingest("chat"))
            wait_for(lambda: shown(derived(node)) == expected(["mail", "chat"]), "the second pass")
        finally:
            stop[0].stop()
            thread.join()


@pytest.mark.req("LW-47")
@pytest.mark.parametrize(
    ("over", "yields", "sentence"),
    [
        ((), None, "must say over which ops"),
        ((int,), None, "int is not the payload of an op"),
        ((IngestEvidence,), IngestEvidence(bytes(16), bytes(32), "x", "y"), "would never end"),
        ((IngestEvidence,), "text", "may not derive str"),
    ],
)
def test_a_bad_derivation_gets_a_sentence(over: Any, yields: Any, sentence: str) -> None:
    with pytest.raises(Usage, match=sentence):
        derivation("test.bad", over=over)(lambda known, op: [yields])
        try:
            made = derivations.REGISTERED["likewise.derive.test.bad"]
            made.calls({}, LoggedOp(bytes(16), 1, derivations.Hlc(1, 0, 1), None))
        finally:
            derivations.REGISTERED.pop("likewise.derive.test.bad", None)
            REGISTRY.pop("likewise.derive.test.bad", None)


@pytest.mark.req("LW-47")
def test_what_a_function_keeps_must_be_json(tmp_path: Path) -> None:
    def keeps(known: dict[str, Any], op: LoggedOp) -> list[Payload]:
        known["object"] = object()
        return []

    with Runtime.init(tmp_path / "home") as runtime:
        runtime.log.run(ingest("mail"))
        [made] = derivations.registered([NAME])
        with runtime.read() as session, pytest.raises(Usage, match="keeps something that is not JSON"):
            derivations.next_pass(session, made._replace(function=keeps))


@pytest.mark.req("LW-47")
def test_an_unknown_name_gets_a_sentence() -> None:
    with pytest.raises(Usage, match=f"no derivation 'test.typo' in these modules; there are {NAME}"):
        derivations.registered(["test.typo"])
