"""The states of locks, messages, rows and nodes follow from signed ops. Whatever a sharer with SQL writes into their
rows, no node grants, gives or answers because of it: the ops decide, and the row is put right.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability, unavailable
from hocket.families.availability.rules import AVAILABILITIES, AvailabilityState
from hocket.families.inbox import requests as inbox
from hocket.families.inbox.requests import MessageDraft
from hocket.families.inbox.rules import MESSAGES, DeliveryState, Message
from hocket.families.locks.decisions import read_scope
from hocket.families.locks.facts import AcquireLocks, LockMode, ReleaseLocks
from hocket.families.locks.projector import waited_in
from hocket.families.locks.rules import LOCKS, Hold, Scope
from hocket.families.rows.facts import ROW, PutRow, Strategy
from hocket.families.rows.rules import ROWS, RowState
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import pack
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.ops import NO_ID, Op
from hocket.kernel.vocabulary import CreateArtifact, Subject
from hocket.log import state_check
from hocket.log.registers import artifact_of
from hocket.log.state_check import KEPT_FROM_OPS
from hocket.mesh.grants import parse_grants
from hocket.mesh.membership import revoke
from hocket.node.runtime import Runtime
from hocket.store import open as open_store
from tests.trust.sharer import ROLE, SharedMesh

pytestmark = [pytest.mark.slow, pytest.mark.touches("LW-48")]
LONG_MS = 600_000
Process = Callable[[SharedMesh], Runtime]


@pytest.fixture(params=["postgres", "libsql"])
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SharedMesh]:
    made = SharedMesh(tmp_path, request.param)
    yield made
    made.close()


def the_same(mesh: SharedMesh) -> Runtime:
    return mesh.owner


def another(mesh: SharedMesh) -> Runtime:
    return mesh.reopened()


both = pytest.mark.parametrize("process", [the_same, another])


def acquire(runtime: Runtime, agent: str, key: str = "k", scope: str = "", wait_ms: int = 0) -> Op | Reason:
    payload = AcquireLocks(scope, (key,), agent, LockMode.EXCLUSIVE, LONG_MS, wait_ms)
    return runtime.log.run(lambda tx: tx.author(payload))


def scope_of(runtime: Runtime, scope: str = "") -> Scope:
    with runtime.read() as session:
        found = read_scope(session, scope)
    assert found is not None
    return found


def stored(mesh: SharedMesh, family: str = "lock") -> bytes:
    ((state,),) = mesh.sql("SELECT state FROM subjects WHERE family = ?", family)
    return bytes(state)


def put(mesh: SharedMesh, state: bytes, family: str = "lock") -> None:
    mesh.sql("UPDATE subjects SET state = ? WHERE family = ?", state, family)


def member(mesh: SharedMesh) -> Runtime:
    return mesh.invite("second", parse_grants(["all"]))


# Locks.


@pytest.mark.req("LW-48")
@both
def test_a_hold_that_was_ended_with_sql_still_holds(mesh: SharedMesh, process: Process) -> None:
    assert isinstance(acquire(mesh.owner, "one"), Op)
    right = stored(mesh)
    put(mesh, LOCKS.encode(replace(LOCKS.decode(right), holds=())))
    owner = process(mesh)
    assert acquire(owner, "two") is Reason.LOCK_HELD
    assert [hold.agent for hold in scope_of(owner).holds] == ["one"]
    assert mesh.tables_found() == {"subjects"}
    assert isinstance(acquire(owner, "two", "other"), Op)
    assert [hold.agent for hold in LOCKS.decode(stored(mesh)).holds] == ["one", "two"], "the row is right again"


@pytest.mark.req("LW-48")
@both
def test_a_scope_that_was_deleted_is_still_there(mesh: SharedMesh, process: Process) -> None:
    assert isinstance(acquire(mesh.owner, "one"), Op)
    mesh.sql("DELETE FROM subjects WHERE family = 'lock'")
    assert acquire(process(mesh), "two") is Reason.LOCK_HELD


@pytest.mark.req("LW-48")
@both
def test_a_row_that_cannot_be_read_stops_nobody(mesh: SharedMesh, process: Process) -> None:
    assert isinstance(acquire(mesh.owner, "one"), Op)
    put(mesh, b"\xff")
    assert acquire(process(mesh), "two") is Reason.LOCK_HELD


@pytest.mark.req("LW-48")
@both
def test_a_fence_does_not_go_down(mesh: SharedMesh, process: Process) -> None:
    for agent in ("one", "two"):
        assert isinstance(acquire(mesh.owner, agent), Op)
        (hold,) = scope_of(mesh.owner).holds
        mesh.owner.log.run(lambda tx, hold=hold: tx.author(ReleaseLocks("", hold.agent, hold.fence)))  # type: ignore[misc]
    put(mesh, LOCKS.encode(replace(LOCKS.decode(stored(mesh)), fence=hold.fence - 1)))
    owner = process(mesh)
    assert isinstance(acquire(owner, "three"), Op)
    assert scope_of(owner).fence == hold.fence + 1


@pytest.mark.req("LW-48")
@both
def test_a_hold_that_nobody_asked_for_holds_nothing(mesh: SharedMesh, process: Process) -> None:
    assert isinstance(acquire(mesh.owner, "one", "other"), Op)
    scope, node = LOCKS.decode(stored(mesh)), mesh.sharer.log.node
    forged = Hold(("k",), LockMode.EXCLUSIVE, node, "mallory", 9, 0, scope.last.wall + LONG_MS, bytes(16))
    put(mesh, LOCKS.encode(replace(scope, holds=(*scope.holds, forged), fence=9)))
    owner = process(mesh)
    assert isinstance(acquire(owner, "two"), Op)
    assert {hold.agent for hold in scope_of(owner).holds} == {"one", "two"}


@pytest.mark.req("LW-48")
def test_a_row_from_before_another_nodes_op_is_not_believed(mesh: SharedMesh) -> None:
    """The owner's process has written the old row itself."""
    assert isinstance(acquire(mesh.owner, "one", "other"), Op)
    before, second = stored(mesh), member(mesh)
    assert isinstance(acquire(second, "two"), Op)
    put(mesh, before)
    assert acquire(mesh.owner, "three") is Reason.LOCK_HELD
    second.close()


@pytest.mark.req("LW-48")
@both
@pytest.mark.parametrize("column", [f"reason = {int(Reason.INTEGRITY)}", f"reason = {int(Reason.REVOKED)}"])
def test_an_op_that_is_called_bad_still_counts(mesh: SharedMesh, column: str, process: Process) -> None:
    assert isinstance(acquire(mesh.owner, "one", "other"), Op)
    before = stored(mesh)
    op = acquire(mesh.owner, "one")
    assert isinstance(op, Op)
    put(mesh, before)
    mesh.sql(f"UPDATE ops SET {column} WHERE id = ?", op.id)
    assert acquire(process(mesh), "two") is Reason.LOCK_HELD


@pytest.mark.req("LW-48")
@both
def test_a_node_that_may_change_no_op_hides_none(tmp_path: Path, process: Process) -> None:
    """With the rights that docs/security.md names."""
    mesh = SharedMesh(tmp_path)
    with psycopg.connect(mesh.address, autocommit=True) as connection:
        connection.execute(f"REVOKE UPDATE, DELETE ON hocket.ops FROM {ROLE}")
        connection.execute(f"GRANT UPDATE (reason, settled) ON hocket.ops TO {ROLE}")
    assert isinstance(acquire(mesh.owner, "one", "other"), Op)
    before = stored(mesh)
    op = acquire(mesh.owner, "one")
    assert isinstance(op, Op)
    put(mesh, before)
    mesh.sql("UPDATE ops SET settled = 0 WHERE id = ?", op.id)
    assert acquire(process(mesh), "two") is Reason.LOCK_HELD
    mesh.close()


@pytest.mark.req("LW-48")
def test_a_state_that_was_never_committed_is_not_believed(mesh: SharedMesh) -> None:
    assert isinstance(acquire(mesh.owner, "one"), Op)
    undone: list[bytes] = []

    def fails(tx: object) -> None:
        tx.author(ReleaseLocks("", "one", 1))  # type: ignore[attr-defined]
        tx.projection.flush()  # type: ignore[attr-defined]
        state = tx.state(Subject("lock", b""))  # type: ignore[attr-defined]
        undone.append(LOCKS.encode(state))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mesh.owner.log.run(fails)
    put(mesh, undone[0])
    assert acquire(mesh.owner, "two") is Reason.LOCK_HELD


@pytest.mark.req("LW-48")
def test_what_a_revoked_node_has_put_back_is_not_believed(mesh: SharedMesh) -> None:
    """Its ops count no more. Another process of the owner has checked the row when they did."""
    second, other = member(mesh), Runtime.open(mesh.directory / "owner")
    assert isinstance(acquire(mesh.owner, "one", "other"), Op)
    assert isinstance(acquire(second, "two"), Op)
    held = stored(mesh)
    assert [hold.agent for hold in scope_of(other).holds] == ["one", "two"]
    revoke(mesh.owner.log, node_text(second.log.node))
    put(mesh, held)
    taken = acquire(other, "three")
    other.close()
    second.close()
    assert taken is not Reason.LOCK_HELD


@pytest.mark.req("LW-48")
def test_false_and_unreadable_queues_make_no_deadlock(mesh: SharedMesh) -> None:
    assert isinstance(acquire(mesh.owner, "one", scope="a"), Op)
    assert isinstance(acquire(mesh.owner, "two", scope="b"), Op)
    assert isinstance(acquire(mesh.owner, "one", scope="b", wait_ms=LONG_MS), Op)
    for key, state in ((b"b", b"\xff"), (b"x", b"\x92\xc4\x01a\x91\x01"), (b"y", b"\x92\xc4\x01z\x91\x01")):
        mesh.sql("DELETE FROM subjects WHERE family = 'lock queue' AND key = ?", key)
        mesh.sql("INSERT INTO subjects (family, key, last, state) VALUES ('lock queue', ?, ?, ?)", key, b"", state)
    with mesh.owner.read() as session:
        assert [len(scope.waits) for scope in waited_in(session, b"q")] == [0]
    assert isinstance(acquire(mesh.owner, "three", scope="a", wait_ms=LONG_MS), Op)
    assert mesh.tables_found() == {"subjects"}


# Messages.


def send(runtime: Runtime, to: str = "editor") -> bytes:
    draft = MessageDraft(to, b"hello", "writer")
    return runtime.log.run(lambda tx: inbox.send(tx, None, draft))  # type: ignore[arg-type]


def claimed(runtime: Runtime, agent: str = "editor") -> list[bytes]:
    return [each.message_id for each in runtime.log.run(lambda tx: inbox.claim(tx, agent, 10, LONG_MS)).taken]


def message_row(mesh: SharedMesh, message_id: bytes) -> bytes:
    ((state,),) = mesh.sql("SELECT state FROM messages WHERE id = ?", message_id)
    return bytes(state)


def put_message(mesh: SharedMesh, message_id: bytes, state: bytes) -> None:
    mesh.sql("UPDATE messages SET state = ? WHERE id = ?", state, message_id)
    mesh.sql("UPDATE deliveries SET stage = 0 WHERE message = ?", message_id)


@pytest.mark.req("LW-48")
@both
def test_a_leased_message_is_not_given_again(mesh: SharedMesh, process: Process) -> None:
    message_id = send(mesh.owner)
    ready = message_row(mesh, message_id)
    assert claimed(mesh.owner) == [message_id]
    put_message(mesh, message_id, ready)
    owner = process(mesh)
    assert claimed(owner) == []
    assert mesh.tables_found() == {"messages"}
    assert mesh.sql("SELECT stage FROM deliveries WHERE message = ?", message_id) == [(1,)], "it rests again"
    with owner.read() as session:
        found = session.message(message_id)
    assert found is not None and found.deliveries[0].state is DeliveryState.LEASED


@pytest.mark.req("LW-48")
def test_a_message_that_another_node_has_leased_is_not_given_again(mesh: SharedMesh) -> None:
    """The owner's process has written the row that is put back."""
    message_id, second = send(mesh.owner), member(mesh)
    ready = message_row(mesh, message_id)
    assert claimed(second) == [message_id]
    put_message(mesh, message_id, ready)
    assert claimed(mesh.owner) == []
    second.close()


@pytest.mark.req("LW-48")
@both
def test_an_acknowledged_message_is_not_given_again(mesh: SharedMesh, process: Process) -> None:
    message_id = send(mesh.owner)
    ready = message_row(mesh, message_id)
    ((queue, thread, sent),) = mesh.sql("SELECT queue, thread, sent FROM deliveries")
    assert claimed(mesh.owner) == [message_id]
    assert isinstance(mesh.owner.log.run(lambda tx: inbox.acknowledge(tx, message_id, "editor")), Op)
    put_message(mesh, message_id, ready)
    mesh.sql("INSERT INTO deliveries (queue, message, stage, due, priority, sent, thread) VALUES (?, ?, 0, ?, 9, ?, ?)",
             queue, message_id, 2**50, sent, thread)  # fmt: skip
    assert claimed(process(mesh)) == []
    assert mesh.sql("SELECT 1 FROM deliveries") == []


@pytest.mark.req("LW-48")
@both
def test_a_message_does_not_reach_another_agent(mesh: SharedMesh, process: Process) -> None:
    message_id = send(mesh.owner)
    mesh.sql("UPDATE deliveries SET queue = 'mallory'")
    found = MESSAGES.decode(message_row(mesh, message_id))
    mesh.sql("UPDATE messages SET receiver = 'mallory', state = ?", MESSAGES.encode(replace(found, to="mallory")))
    assert claimed(process(mesh), "mallory") == []


@pytest.mark.req("LW-48")
def test_a_message_that_nobody_has_sent_is_not_shown(mesh: SharedMesh) -> None:
    message_id = send(mesh.owner)
    real = MESSAGES.decode(message_row(mesh, message_id))
    forged: Message = replace(real, id=bytes(16), reply_to=message_id, sender="boss")
    mesh.sql("INSERT INTO messages (id, receiver, thread, reply_to, depth, last, state) VALUES (?, ?, ?, ?, 0, ?, ?)",
             forged.id, forged.to, message_id, message_id, pack(forged.last), MESSAGES.encode(forged))  # fmt: skip
    mesh.sql("INSERT INTO deliveries (queue, message, stage, due, priority, sent, thread) VALUES (?, ?, 0, 0, 9, ?, ?)",
             forged.to, forged.id, pack(forged.sent), message_id)  # fmt: skip
    with mesh.owner.read() as session:
        assert session.replies(message_id) == []
        assert [each.id for each in session.thread(message_id, 10)] == [message_id]
    assert claimed(mesh.owner) == [message_id]


# Rows and nodes.


@pytest.mark.req("LW-48")
@both
def test_the_value_of_a_row_is_the_signed_one(mesh: SharedMesh, process: Process) -> None:
    written = mesh.owner.log.run(lambda tx: tx.author(PutRow("t/k", "one", None, b"1", Strategy.TAKE_LEFT)))
    assert isinstance(written, Op), written
    state = ROWS.decode(stored(mesh, "row"))
    put(mesh, ROWS.encode(replace(state, value=b"2")), "row")
    with process(mesh).read() as session:
        data = session.subject_state(Subject(ROW, b"t/k"))
    assert data is not None
    found: RowState = ROWS.decode(data)
    assert found.value == b"1"
    assert mesh.tables_found() == {"subjects"}


@pytest.mark.req("LW-48")
@both
def test_a_sharer_drains_no_other_node(mesh: SharedMesh, process: Process) -> None:
    node = mesh.owner.log.node
    at = mesh.owner.log.reading()
    state = AVAILABILITIES.encode(AvailabilityState(Availability.QUARANTINED, "", at, at))
    mesh.sql("INSERT INTO subjects (family, key, last, state) VALUES ('availability', ?, ?, ?)",
             node.to_bytes(8, "big"), pack(at), state)  # fmt: skip
    owner = process(mesh)
    assert owner.log.run(lambda tx: tx.admits("acme.x"))
    with owner.read() as session:
        assert unavailable(session) == {}


@pytest.mark.req("LW-48")
@both
@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_quarantined_sharer_stays_so(mesh: SharedMesh, process: Process, is_deleted: bool) -> None:
    node = mesh.sharer.log.node
    mesh.owner.log.run(lambda tx: set_availability(tx, node, Availability.QUARANTINED, ""))
    if is_deleted:
        mesh.sql("DELETE FROM subjects WHERE family = 'availability'")
    else:
        state = AVAILABILITIES.decode(stored(mesh, "availability"))
        put(mesh, AVAILABILITIES.encode(replace(state, availability=Availability.ACTIVE)), "availability")
    owner = process(mesh)
    assert owner.log.run(lambda tx: tx.projection.availability(node)) is Availability.QUARANTINED
    if not is_deleted:
        with owner.read() as session:
            assert node in unavailable(session)


# Artifacts.


def made_artifact(mesh: SharedMesh, content: bytes = b"real") -> bytes:
    payload = CreateArtifact(NO_ID, "note", None, (), content_hash(content), content, None, None, len(content))
    made = mesh.owner.log.run(lambda tx: tx.author(payload))
    assert isinstance(made, Op)
    return made.id


@pytest.mark.req("LW-48")
@both
@pytest.mark.parametrize(
    ("column", "value"),
    [("hash", content_hash(b"other")), ("expires", 1), ("type", "hocket.result"), ("made", bytes(20))],
)
def test_an_artifact_is_what_its_op_says(mesh: SharedMesh, column: str, value: object, process: Process) -> None:
    changed, other = made_artifact(mesh), made_artifact(mesh, b"more")
    mesh.sql(f"UPDATE artifacts SET {column} = ? WHERE id = ?", value, changed)
    with process(mesh).read() as session:
        assert session.artifact(changed) is None
        assert [each.id for each in session.artifacts(b"", 1)] == [other]
        assert session.expired_artifacts(2**50, 10, "") == []
    assert mesh.tables_found() == {"artifacts"}
    assert [each.what.partition(",")[0] for each in mesh.owner.verify().findings] == ["artifacts"]


@pytest.mark.req("LW-48")
def test_an_artifact_that_its_author_may_not_create_is_none(mesh: SharedMesh) -> None:
    op, body = mesh.op(CreateArtifact(NO_ID, "note", None, (), content_hash(b"x"), b"x", None, None, 1))
    mesh.put_op(op, body)
    row = artifact_of(op, op.payload)  # type: ignore[arg-type]
    columns = "id, op_id, type, source_job, hash, size, expires, inline, made"
    revoke(mesh.owner.log, node_text(mesh.sharer.log.node))
    mesh.sql(f"INSERT INTO artifacts ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
    with mesh.owner.read() as session:
        assert session.artifact(row.id) is None


# Settings.


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("name", ["gaps", "gaps {node}"])
def test_a_sharer_does_not_stop_the_check_that_ops_follow_each_other(mesh: SharedMesh, name: str) -> None:
    key = name.format(node=mesh.owner.log.node.to_bytes(8, "big").hex())
    mesh.sql("INSERT INTO meta (key, value) VALUES (?, ?)", key, b"1" * 33)
    assert mesh.owner.log.run(lambda tx: tx.holds_everything)


# What it costs, and what is told.


@pytest.mark.req("LW-48")
def test_an_audit_names_changed_states(mesh: SharedMesh) -> None:
    message_id = send(mesh.owner)
    assert isinstance(acquire(mesh.owner, "one"), Op)
    assert claimed(mesh.owner) == [message_id]
    assert mesh.owner.verify().findings == []
    put(mesh, LOCKS.encode(replace(LOCKS.decode(stored(mesh)), holds=())))
    mesh.sql("DELETE FROM messages")
    found = {each.what.partition(":")[0] for each in mesh.owner.verify().findings}
    assert {each.partition(",")[0] for each in found} == {"subjects", "messages"}
    mesh.owner.rebuild()
    assert mesh.owner.verify().findings == []


def history(runtime: Runtime, count: int) -> None:
    def request(tx: object) -> None:
        for number in range(count // 2):
            tx.author(AcquireLocks("", ("k",), "one", LockMode.EXCLUSIVE, LONG_MS, 0))  # type: ignore[attr-defined]
            tx.author(ReleaseLocks("", "one", number + 1))  # type: ignore[attr-defined]

    runtime.log.run(request)


@pytest.mark.req("LW-48")
def test_a_long_history_is_folded_once_for_a_home(mesh: SharedMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while another node goes on to use the scope."""
    history(mesh.owner, KEPT_FROM_OPS + 2)
    folded: list[int] = []
    whole = state_check._Fold.whole
    monkeypatch.setattr(state_check._Fold, "whole", lambda fold: folded.append(1) or whole(fold))  # type: ignore[func-returns-value]
    second = member(mesh)
    with mesh.reopened().read() as session:
        read_scope(session, "")
    assert len(folded) == 1
    assert isinstance(acquire(second, "two"), Op)
    folded.clear()
    assert acquire(mesh.reopened(), "three") is Reason.LOCK_HELD
    assert acquire(mesh.owner, "three") is Reason.LOCK_HELD
    assert isinstance(acquire(second, "two", "other"), Op)
    assert acquire(mesh.owner, "three", "other") is Reason.LOCK_HELD
    assert folded == []
    assert mesh.tables_found() == set()
    second.close()


@pytest.mark.req("LW-48")
def test_ordinary_work_of_two_nodes_is_never_doubted(mesh: SharedMesh) -> None:
    second = member(mesh)
    for number in range(4):
        for runtime in (mesh.owner, second):
            acquire(runtime, f"agent{number}", f"k{number}", wait_ms=LONG_MS)
            message_id = send(runtime, ("editor", "all", "team/")[number % 3])
            for agent in ("editor", "team/one"):
                claimed(runtime, agent)
            runtime.log.run(lambda tx, message_id=message_id: inbox.acknowledge(tx, message_id, "editor"))  # type: ignore[misc]
            runtime.log.run(lambda tx, n=number: tx.author(PutRow(f"t/{n}", "one", None, b"1", Strategy.TAKE_LEFT)))  # type: ignore[misc]
    for runtime in (mesh.owner, second):
        check = runtime.log.store_check
        assert check is not None and not check.findings
    assert mesh.owner.verify().findings == []
    second.close()


def test_other_processes_of_a_home_share_its_files(tmp_path: Path) -> None:
    """A file that is damaged is only work that is done again."""
    mesh = SharedMesh(tmp_path)
    history(mesh.owner, KEPT_FROM_OPS + 2)
    with mesh.reopened().read() as session:
        read_scope(session, "")
    (file,) = mesh.owner.home.checked_states.iterdir()
    file.write_bytes(b"?")
    assert isinstance(acquire(mesh.reopened(), "two"), Op)
    assert mesh.tables_found() == set()
    mesh.close()
    open_store(mesh.address).close()
