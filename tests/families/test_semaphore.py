"""A family that one file adds: semaphores, of whose units agents hold some. The payloads, the rules, the record and two
operations are all that it takes: its ops are folded, synced, judged by grants, sanitised and rebuilt, and programs use
it from Python, from the shell and over HTTP.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from hocket.api import Service, ServiceAnswer, programs
from hocket.api.admin import Admin, Method
from hocket.api.operation import InShell, TokenNeed, operation
from hocket.api.views import Line
from hocket.cli.declarations import App, call, chosen
from hocket.cli.derived import add_operations
from hocket.cli.settings import settings
from hocket.errors import Conflict
from hocket.kernel.arbitration import Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.family import FAMILIES, Family, FamilyPayload, Judged, Resource, Subject, Variant
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import Op
from hocket.kernel.postcard import STR, U64
from hocket.kernel.postcard import struct as fields
from hocket.kernel.sanitise import sanitised
from hocket.kernel.ucan import issue
from hocket.kernel.vocabulary import AcceptOffer, DelegateUcan, DesignateCoordinator, RevokeUcan
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from hocket.mesh import wire
from hocket.mesh.grants import parse_grants, words
from hocket.mesh.wire import Reply, Request
from hocket.node.node import Node, SyncNode
from hocket.node.runtime import Runtime
from hocket.server.api import Api
from hocket.server.routes import route_of
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, USER, Script, new_log, sent
from tests.log.test_families import Node as LogNode
from tests.registered import registered

A, B, C = 0, 1, 2
SEMAPHORE = "semaphore"

# Facts.


class AcquireUnits(FamilyPayload, frozen=True):
    """The agent wants so many units `of` all."""

    name: str
    agent: str
    units: int
    of: int
    note: str = ""


class ReleaseUnits(FamilyPayload, frozen=True):
    name: str
    agent: str


ACQUIRE = Judged("Semaphore", "Acquire", "key_prefix", "name")

# Rules.


class Holder(msgspec.Struct, frozen=True, array_like=True):
    node: int
    agent: str
    units: int


class Semaphore(msgspec.Struct, frozen=True, array_like=True):
    of: int
    holders: tuple[Holder, ...]
    last: Hlc

    @property
    def taken(self) -> int:
        return sum(each.units for each in self.holders)


class Semaphores(SubjectRules[Semaphore]):
    decided = frozenset((AcquireUnits, ReleaseUnits))

    def apply_decided(self, state: Semaphore | None, op: Op, context: Any, author: int) -> Semaphore | Reason:
        payload, holders = op.payload, () if state is None else state.holders
        assert isinstance(payload, AcquireUnits | ReleaseUnits)
        others = tuple(each for each in holders if (each.node, each.agent) != (author, payload.agent))
        if isinstance(payload, ReleaseUnits):
            return (
                Reason.NOT_LOCKED if state is None or others == holders else Semaphore(state.of, others, op.timestamp)
            )
        wanted = Semaphore(payload.of, (*others, Holder(author, payload.agent, payload.units)), op.timestamp)
        return wanted if payload.units > 0 and wanted.taken <= payload.of else Reason.LOCK_HELD

    def apply(self, state: Semaphore | None, op: Op, context: Any) -> Semaphore | Reason:
        return self.apply_decided(state, op, context, op.node_id)


RULES = Semaphores(Semaphore)
FAMILY = Family(
    SEMAPHORE,
    (
        Variant(2010, fields(AcquireUnits, STR, STR, U64, U64, STR), ACQUIRE, texts=("note",)),
        Variant(2011, fields(ReleaseUnits, STR, STR), ACQUIRE),
    ),
    lambda payload: payload.name.encode(),
    lambda: RULES,
    resource=Resource("Semaphore", "name", "semaphores", {"acquire": "Acquire"}, frozenset({"Acquire"}), is_put=False),
    accepted=AcquireUnits,
)

# Operations.

Name = Annotated[str, Meta(min_length=1, description="The semaphore.")]
NEED = TokenNeed("Semaphore", "Acquire", lambda service, asked: [asked["name"]])


class SemaphoreShown(ServiceAnswer, frozen=True):
    name: str
    taken: int


def _write(service: Service, payload: AcquireUnits | ReleaseUnits) -> SemaphoreShown:
    def write(tx: Any) -> Any:
        written = tx.author(payload)
        return written if isinstance(written, Reason) else tx.state(Subject(SEMAPHORE, payload.name.encode()))

    state = service.runtime.log.run(write)
    if isinstance(state, Reason):
        raise Conflict(f"{payload.name}: {state.sentence}")
    return SemaphoreShown(payload.name, state.taken)


def _show(answer: SemaphoreShown) -> list[Line]:
    return [Line(f"{answer.name}: {answer.taken} taken")]


@operation("acquire_units", "POST /v1/semaphores/{name}/units", NEED, command="semaphore acquire", show=_show)
def acquire(
    service: Service,
    name: Name,
    of: Annotated[int, Meta(ge=1), InShell("--of")],
    units: Annotated[int, Meta(ge=1)] = 1,
    agent: str | None = None,
) -> SemaphoreShown:
    """Take units of a semaphore."""
    return _write(service, AcquireUnits(name, service.agent(agent), units, of))


@operation("release_units", "DELETE /v1/semaphores/{name}/units", NEED, command="semaphore release", show=_show)
def release(service: Service, name: Name, agent: str | None = None) -> SemaphoreShown:
    """Give back the units of a semaphore."""
    return _write(service, ReleaseUnits(name, service.agent(agent)))


@pytest.fixture(autouse=True, scope="module")
def semaphores() -> Iterator[None]:
    with registered(FAMILY):
        yield


def state(log: Log, name: bytes = b"gpu") -> Semaphore | None:
    with log.store.read() as session:
        data = session.subject_state(Subject(SEMAPHORE, name))
    return None if data is None else RULES.decode(data)


def held(log: Log) -> list[tuple[str, int]]:
    found = state(log)
    return [] if found is None else [(each.agent, each.units) for each in found.holders]


def test_it_is_folded_in_the_order_of_time() -> None:
    script = Script()
    first = script.say(A, 10, AcquireUnits("gpu", "ann", 2, 3))
    too_many = script.say(B, 20, AcquireUnits("gpu", "bob", 2, 3))
    fits = script.say(C, 30, AcquireUnits("gpu", "cy", 1, 3))
    free = script.say(A, 40, ReleaseUnits("gpu", "ann"))
    log = everywhere_the_same(script.ops)
    assert held(log) == [("cy", 1)]
    assert [reason(log, op) for op in (first, too_many, fits, free)] == [0, Reason.LOCK_HELD, 0, 0]


def test_the_arbiter_decides() -> None:
    script = Script()
    script.say(A, 1, DesignateCoordinator(NODES[A]))
    one = script.say(B, 10, AcquireUnits("gpu", "bob", 2, 2))
    other = script.say(C, 11, AcquireUnits("gpu", "cy", 2, 2))
    script.say(A, 20, AcceptOffer(SEMAPHORE, b"gpu", other.id))
    log = everywhere_the_same(script.ops)
    assert held(log) == [("cy", 2)] and reason(log, one) == Reason.OFFERED


def test_it_needs_a_grant_of_its_own() -> None:
    assert words(parse_grants(["semaphore:acquire:gpu"], of_node=False)) == [
        "acquire semaphores with name gpu*",
        "read semaphores with name gpu*",
    ]
    token = issue(USER, KEYS[B].public, parse_grants(["semaphore:acquire:gpu"]), 0, None)
    script = Script()
    cid = INTRODUCTIONS[B].payload.ucan_cid  # type: ignore[union-attr]
    script.say(B, 1, DelegateUcan(content_hash(token), token))
    script.say(A, 2, RevokeUcan(cid))
    allowed = script.say(B, 10, AcquireUnits("gpu/one", "bob", 1, 2))
    refused = script.say(B, 20, AcquireUnits("disk", "bob", 1, 2))
    log = everywhere_the_same(script.ops)
    assert reason(log, allowed) == 0 and reason(log, refused) in (Reason.UNAUTHORISED, Reason.REVOKED)


def test_its_texts_are_sanitised() -> None:
    payload = AcquireUnits("gpu", "ann", 1, 2, "ask ann@example.org")
    assert sanitised(payload, ["RedactParticipants"]) == AcquireUnits("gpu", "ann", 1, 2, "ask participant-1")
    assert sanitised(payload, ["TruncateContent(3)"]) == AcquireUnits("gpu", "ann", 1, 2, "ask")


def test_it_is_synced_and_rebuilt() -> None:
    one, other = LogNode(A), LogNode(B)
    other.pull(one)
    one.log.run(lambda tx: tx.author(AcquireUnits("gpu", "ann", 2, 3)))
    other.pull(one)
    one.log.run(lambda tx: tx.author(ReleaseUnits("gpu", "ann")))
    one.log.run(lambda tx: tx.author(AcquireUnits("gpu", "ann", 1, 3)))
    other.pull(one)
    assert held(one.log) == held(other.log) == [("ann", 1)]
    for node in (one, other):
        assert not verify(node.log.store, user=node.log.user, is_bound=False).findings
        before = state(node.log)
        assert rebuild(node.log.store, node.log.permissions_reader, NOW).unchanged
        assert state(node.log) == before is not None


def test_a_program_that_does_not_know_it_keeps_its_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    script.say(A, 10, AcquireUnits("gpu", "ann", 2, 3))
    log = new_log()
    with monkeypatch.context() as patch:
        patch.delitem(FAMILIES, SEMAPHORE)
        log.admit(sent([*INTRODUCTIONS, *script.ops]))
        assert state(log) is None
    rebuild(log.store, log.permissions_reader, NOW)
    assert held(log) == [("ann", 2)]


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    with Runtime.init(tmp_path / "home", name="box") as runtime:
        yield runtime


def test_programs_reach_it_from_python_and_the_shell(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(settings, "home", runtime.home.path)
    monkeypatch.setattr(settings, "as_json", False)
    monkeypatch.setenv("HOCKET_AGENT", "me")
    method = Method(acquire).__get__(Admin(SyncNode(runtime)), Admin)
    assert method("gpu", 3, units=2) == SemaphoreShown("gpu", 2)
    app = App()
    app.callback()(lambda: None)
    add_operations(app, acquire, release)

    def run(line: str) -> str:
        for function, values in chosen(app, line.split()):
            call(function, values)
        return capsys.readouterr().out

    assert run("acquire gpu --of 3 --agent you") == "gpu: 3 taken\n"
    with pytest.raises(Conflict):
        run("acquire gpu --of 3 --agent they")
    assert run("release gpu --agent you") == "gpu: 2 taken\n"


def test_programs_reach_it_over_http(runtime: Runtime) -> None:
    token = programs.create(Service(runtime), "miner", ["semaphore:acquire:gpu"]).token

    async def test() -> None:
        node = Node(runtime)
        api = Api(node, routes=[route_of(acquire), route_of(release)])

        async def ask(method: str, name: str, body: object) -> Reply:
            headers = {"authorization": f"Bearer {token}", "content-type": wire.JSON}
            content = b"" if body is None else msgspec.json.encode(body)
            return await api.answer(Request(method, f"/v1/semaphores/{name}/units", "", headers, content))

        try:
            taken = await ask("POST", "gpu", {"of": 2, "units": 2})
            assert (taken.status, msgspec.json.decode(taken.body)) == (200, {"name": "gpu", "taken": 2})
            assert (await ask("POST", "disk", {"of": 2})).status == 403, "the grant is for another"
            freed = await ask("DELETE", "gpu", None)
            assert (freed.status, msgspec.json.decode(freed.body)) == (200, {"name": "gpu", "taken": 0})
            assert (await ask("DELETE", "gpu", None)).status == 409
        finally:
            api.close()
            await node.finish()

    asyncio.run(test())
