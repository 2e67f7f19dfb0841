"""A member that shares the store and has SQL can stop the service and delete, and can act as no other node: whatever it
writes into the tables, the owner's node runs, signs, grants and tells nothing because of it.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from hocket.errors import StoreError
from hocket.families.jobs import cron
from hocket.families.jobs.authorship import is_own
from hocket.families.jobs.cron import NewSchedule
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import Job, State
from hocket.families.kinds.facts import DefineKind
from hocket.families.kinds.rules import KINDS
from hocket.kernel.clock import pack
from hocket.kernel.ids import content_hash, node_text, ulid_text
from hocket.kernel.ops import NO_ID
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import ClaimWork, DelegateUcan, DesignateCoordinator, RouteKind, ScheduleJob, SetSchedule
from hocket.log.audit import verify
from hocket.log.copies import export_ops
from hocket.log.job_check import sound_job
from hocket.mesh.grants import parse_grants
from hocket.mesh.membership import revoke
from hocket.node.runtime import Runtime
from hocket.store import open as open_store
from tests.trust.sharer import ROLE, SharedMesh

pytestmark = [pytest.mark.slow, pytest.mark.touches("LW-48")]


@pytest.fixture(params=["postgres", "libsql"])
def mesh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SharedMesh]:
    made = SharedMesh(tmp_path, request.param)
    yield made
    made.close()


def other_command(mesh: SharedMesh, job_id: bytes) -> bytes:
    """The ScheduleJob op of a job with another command, and its author's signature on the first one."""
    ((body,),) = mesh.sql("SELECT body FROM ops WHERE id = ?", job_id)
    return bytes(body).replace(b'{"n":1}', b'{"n":2}')


@pytest.mark.req("LW-48")
def test_a_changed_command_is_not_run(mesh: SharedMesh) -> None:
    job_id, other = mesh.submit(), mesh.submit(payload=b'{"n":3}')
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", other_command(mesh, job_id), job_id)
    assert [each.job.id for each in mesh.taken()] == [other], "the rest goes on"
    assert mesh.tables_found() == {"ops"}


@pytest.mark.req("LW-48")
def test_a_changed_command_is_not_run_by_another_process_either(mesh: SharedMesh) -> None:
    job_id, other = mesh.submit(), mesh.submit(payload=b'{"n":3}')
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", other_command(mesh, job_id), job_id)
    mesh.reopened()
    assert [each.job.id for each in mesh.taken()] == [other]
    assert mesh.tables_found() == {"ops"}


@pytest.mark.req("LW-48")
def test_one_changed_command_in_front_does_not_hold_up_those_behind_it(mesh: SharedMesh) -> None:
    first = [mesh.submit(policy=Policy(priority=5)) for _ in range(3)]
    last = mesh.submit(payload=b'{"n":3}')
    for job_id in first:
        mesh.sql("UPDATE ops SET body = ? WHERE id = ?", other_command(mesh, job_id), job_id)
    assert [each.job.id for each in mesh.taken(limit=1)] == [last]


@pytest.mark.req("LW-48")
def test_the_sharers_signature_does_not_make_a_command_the_owners(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    _, body = mesh.op(ScheduleJob(NO_ID, "hocket.run", b'{"n":2}', b""))
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", body, job_id)
    assert mesh.taken() == []
    assert mesh.tables_found() == {"ops"}


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("kind", ["hocket.run", "acme.run"])
def test_a_job_whose_row_names_another_op_is_not_run(mesh: SharedMesh, kind: str) -> None:
    """The op is the sharer's own, well signed, and marked as one that counts."""
    job_id = mesh.submit()
    op, body = mesh.op(ScheduleJob(NO_ID, kind, b'{"n":2}', b""))
    mesh.put_op(op, body)
    mesh.sql("UPDATE jobs SET schedule_op = ? WHERE id = ?", op.id, job_id)
    assert mesh.taken() == []
    assert mesh.tables_found() == {"jobs"}


@pytest.mark.req("LW-48")
def test_a_job_that_its_author_may_not_submit_is_not_run(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    op, body = mesh.op(ScheduleJob(NO_ID, "hocket.run", b'{"n":2}', b""))
    mesh.put_op(op, body)
    mesh.sql(
        "UPDATE jobs SET id = ?, schedule_op = ?, scheduled = ?, last = ? WHERE id = ?",
        *(op.id, op.id, pack(op.timestamp), pack(op.timestamp), job_id),
    )
    assert mesh.taken() == []
    assert mesh.tables_found() == {"jobs"}


@pytest.mark.req("LW-48")
@pytest.mark.parametrize(
    ("column", "value"),
    [("kind", "acme.run"), ("policy", encode_policy(Policy(open=True))), ("policy", encode_policy(Policy(retries=9)))],
)
def test_a_job_with_another_kind_or_policy_than_its_op_is_not_run(mesh: SharedMesh, column: str, value: object) -> None:
    job_id = mesh.submit()
    mesh.sql(f"UPDATE jobs SET {column} = ? WHERE id = ?", value, job_id)
    assert mesh.taken() == mesh.taken(mesh.sharer) == []
    assert mesh.tables_found() == {"jobs"}


@pytest.mark.req("LW-48")
@pytest.mark.parametrize(("column", "value"), [("policy", b"?"), ("scheduled", b""), ("id", b"")])
def test_a_job_whose_row_cannot_be_read_holds_up_no_other(mesh: SharedMesh, column: str, value: bytes) -> None:
    job_id, other = mesh.submit(), mesh.submit()
    mesh.sql(f"UPDATE jobs SET {column} = ? WHERE id = ?", value, job_id)
    assert [each.job.id for each in mesh.taken(limit=1)] == [other]
    assert mesh.tables_found() == {"jobs"}


@pytest.mark.req("LW-48")
def test_a_command_is_its_signers_whatever_its_row_says(mesh: SharedMesh) -> None:
    """The row says that the job is a tick of the owner's schedule. It is read again after the claim."""
    friend = mesh.invite("friend", parse_grants(["job:schedule:hocket."]))
    job_id = friend.submit([Draft("hocket.run", b"{}", Policy())])[0].job_id
    plan = NewSchedule("nightly", "0 3 * * *", "UTC", Draft("hocket.run", b"{}", Policy()))
    mesh.owner.log.run(lambda tx: cron.add(tx, plan))
    with mesh.owner.read() as session:
        (schedule,) = session.schedules()
        row = session.op(job_id)
    assert row is not None
    policy = Policy(schedule="nightly", schedule_op=ulid_text(schedule.op))
    mesh.sql("UPDATE jobs SET policy = ? WHERE id = ?", encode_policy(policy), job_id)
    with mesh.owner.read() as session:
        assert not is_own(session, mesh.owner.log.node, row.body)
    friend.close()


@pytest.mark.req("LW-48")
def test_a_changed_schedule_ticks_no_job(mesh: SharedMesh) -> None:
    plan = NewSchedule("always", "* * * * *", "UTC", Draft("hocket.run", b'{"n":1}', Policy()))
    mesh.owner.log.run(lambda tx: cron.add(tx, plan))
    mesh.sql("UPDATE schedules SET payload = ?, last_tick = 0", b'{"n":2}')
    failed: list[str] = []
    assert mesh.owner.log.run(lambda tx: cron.make_due(tx, lambda each, why: failed.append(why))) == 0
    assert failed


@pytest.mark.req("LW-48")
def test_a_schedule_whose_op_was_changed_ticks_no_job(mesh: SharedMesh) -> None:
    plan = NewSchedule("always", "* * * * *", "UTC", Draft("hocket.run", b'{"n":1}', Policy()))
    mesh.owner.log.run(lambda tx: cron.add(tx, plan))
    with mesh.owner.read() as session:
        (schedule,) = session.schedules()
    ((body,),) = mesh.sql("SELECT body FROM ops WHERE id = ?", schedule.op)
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", bytes(body).replace(b'{"n":1}', b'{"n":2}'), schedule.op)
    mesh.sql("UPDATE schedules SET payload = ?, last_tick = 0", b'{"n":2}')
    assert mesh.owner.log.run(cron.make_due) == 0
    assert mesh.tables_found() == {"ops"}


@pytest.mark.req("LW-48")
def test_the_sharers_schedule_does_not_tick_as_the_owners(mesh: SharedMesh) -> None:
    op, body = mesh.op(SetSchedule("mine", "* * * * *", "UTC", "hocket.run", b"{}", b""))
    mesh.put_op(op, body)
    mesh.sql(
        "INSERT INTO schedules (name, hlc, cron, timezone, kind, payload, policy, last_tick, op, counts)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *("mine", pack(op.timestamp), "* * * * *", "UTC", "hocket.run", b"{}", b"", 0, op.id, 1),
    )
    assert mesh.owner.log.run(cron.make_due) == 0


# What grants.


def may_submit(runtime: Runtime, node: int) -> bool:
    authority = runtime.log.authority()
    return authority.may(node, "Job", "Schedule", "hocket.run", runtime.log.reading().wall) is not None


def stolen_root(mesh: SharedMesh) -> bytes:
    """A delegation of everything to the sharer, by its own key."""
    key = mesh.sharer.home.node_key()
    return issue(key, key.public, ROOT, 0, None)


@pytest.mark.req("LW-48")
def test_an_inserted_delegation_grants_nothing(mesh: SharedMesh) -> None:
    token = stolen_root(mesh)
    op, body = mesh.op(DelegateUcan(content_hash(token), token))
    mesh.put_op(op, body)
    mesh.sql("INSERT INTO delegations (op, cid, hlc, token) VALUES (?, ?, ?, ?)",
             op.id, content_hash(token), pack(op.timestamp), token)  # fmt: skip
    mesh.sql("UPDATE head SET law = law + 1")
    assert not may_submit(mesh.owner, mesh.sharer.log.node)
    assert not may_submit(mesh.reopened(), mesh.sharer.log.node)


@pytest.mark.req("LW-48")
def test_a_delegation_without_an_op_grants_nothing(mesh: SharedMesh) -> None:
    """The user's own token, which the user has never put on the log: a leaked one of a machine that was given up."""
    key = mesh.sharer.home.node_key()
    token = issue(mesh.owner.home.user_key(), key.public, ROOT, 0, None)
    mesh.sql("INSERT INTO delegations (op, cid, hlc, token) VALUES (?, ?, ?, ?)",
             bytes(16), content_hash(token), bytes(20), token)  # fmt: skip
    mesh.sql("UPDATE head SET law = law + 1")
    assert not may_submit(mesh.owner, mesh.sharer.log.node)
    assert mesh.tables_found() == {"delegations"}


def revoked(mesh: SharedMesh) -> int:
    """The owner revokes the sharer. Returns the number of the permissions before."""
    ((before,),) = mesh.sql("SELECT law FROM head")
    revoke(mesh.owner.log, node_text(mesh.sharer.log.node))
    assert not can_claim(mesh)
    return int(before)


def can_claim(mesh: SharedMesh) -> bool:
    log = mesh.owner.log
    return log.authority().may(mesh.sharer.log.node, "Job", "Claim", "acme.x", log.reading().wall) is not None


@pytest.mark.req("LW-48")
def test_a_deleted_revocation_still_counts(mesh: SharedMesh) -> None:
    revoked(mesh)
    mesh.sql("DELETE FROM revocations")
    mesh.sql("UPDATE head SET law = law + 1")
    assert not can_claim(mesh)
    assert mesh.tables_found() == {"revocations"}


@pytest.mark.req("LW-48")
def test_a_revocation_that_a_home_has_seen_counts_in_its_next_process(mesh: SharedMesh) -> None:
    """Its op is deleted, too, and the log is rebuilt without it."""
    revoked(mesh)
    ((op_id,),) = mesh.sql("SELECT op FROM revocations")
    mesh.sql("DELETE FROM revocations")
    mesh.sql("DELETE FROM ops WHERE id = ?", op_id)
    mesh.sql("UPDATE head SET law = law + 1")
    mesh.reopened()
    assert not can_claim(mesh)
    mesh.owner.rebuild()
    assert not can_claim(mesh)
    assert mesh.tables_found() == {"revocations"}


@pytest.mark.req("LW-48")
def test_a_revocation_whose_row_was_changed_counts(mesh: SharedMesh) -> None:
    revoked(mesh)
    (mesh.directory / "owner" / "revocations").unlink()
    mesh.sql("UPDATE revocations SET cid = ?", bytes(32))
    mesh.reopened()
    assert not can_claim(mesh)
    assert mesh.tables_found() == {"revocations"}


@pytest.mark.req("LW-48")
def test_a_process_that_knew_the_permissions_before_does_not_go_back_to_them(mesh: SharedMesh) -> None:
    before = revoked(mesh)
    mesh.sql("UPDATE head SET law = ?", before)
    assert not can_claim(mesh)


@pytest.mark.req("LW-48")
def test_a_process_that_was_not_told_of_a_revocation_finds_it(
    mesh: SharedMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sharer puts back the number of the permissions, before another process of the owner has looked."""
    other = Runtime.open(mesh.directory / "owner")
    ((before,),) = mesh.sql("SELECT law FROM head")
    assert other.log.permissions().delegations
    revoke(mesh.owner.log, node_text(mesh.sharer.log.node))
    mesh.sql("UPDATE head SET law = ?", before)
    monkeypatch.setattr("hocket.log.permissions.BELIEVED_S", 0.0)
    wall = other.log.reading().wall
    assert other.log.authority().may(mesh.sharer.log.node, "Job", "Claim", "acme.x", wall) is None
    other.close()


@pytest.mark.req("LW-48")
def test_the_sharer_does_not_become_the_coordinator(mesh: SharedMesh) -> None:
    node = mesh.sharer.log.node
    op, body = mesh.op(DesignateCoordinator(node))
    mesh.put_op(op, body)
    mesh.sql("INSERT INTO coordinators (hlc, op, node) VALUES (?, ?, ?)",
             pack(op.timestamp), op.id, node.to_bytes(8, "big"))  # fmt: skip
    mesh.sql("UPDATE head SET law = law + 1")
    assert {node for _, node in mesh.owner.log.permissions().coordinators} == {mesh.owner.log.node}
    mesh.sql("UPDATE coordinators SET node = ?", node.to_bytes(8, "big"))
    mesh.sql("UPDATE head SET law = law + 1")
    assert {node for _, node in mesh.owner.log.permissions().coordinators} <= {mesh.owner.log.node}


@pytest.mark.req("LW-48")
def test_an_inserted_proof_of_two_histories_proves_nothing(mesh: SharedMesh) -> None:
    mesh.sql("INSERT INTO forks (op, node, since) VALUES (?, ?, ?)",
             mesh.submit(), mesh.owner.log.node.to_bytes(8, "big"), bytes(20))  # fmt: skip
    mesh.sql("UPDATE head SET law = law + 1")
    assert not mesh.owner.log.permissions().forks
    assert mesh.tables_found() == {"forks"}


@pytest.mark.req("LW-48")
def test_a_node_has_the_key_of_its_delegation(mesh: SharedMesh) -> None:
    mesh.sql("UPDATE nodes SET public = ?", bytes(32))
    with mesh.owner.read() as session:
        assert session.nodes() == {}
    assert mesh.tables_found() == {"nodes"}


# What decides.


@pytest.mark.req("LW-48")
def test_the_options_of_a_kind_are_those_of_its_definition(mesh: SharedMesh) -> None:
    mesh.owner.log.run(lambda tx: tx.author(DefineKind("hocket.run", encode_policy(Policy(retries=1)))))
    ((state,),) = mesh.sql("SELECT state FROM subjects WHERE family = 'kind'")
    definition = KINDS.decode(bytes(state))
    forged = KINDS.encode(type(definition)(encode_policy(Policy(open=True)), definition.defined, definition.last))
    mesh.sql("UPDATE subjects SET state = ? WHERE family = 'kind'", forged)
    defaults = mesh.owner.log.run(lambda tx: tx.projection.defaults("hocket.run"))
    assert defaults == Policy(retries=1)
    assert mesh.tables_found() == {"subjects"}


@pytest.mark.req("LW-48")
def test_a_kind_goes_where_an_owner_has_routed_it(mesh: SharedMesh) -> None:
    owner, sharer = (each.log.node for each in (mesh.owner, mesh.sharer))
    mesh.owner.log.run(lambda tx: tx.author(RouteKind("acme.x", owner)))
    later = pack(mesh.owner.log.reading())
    mesh.sql("INSERT INTO routes (kind, hlc, node) VALUES (?, ?, ?)", "acme.x", later, sharer.to_bytes(8, "big"))
    routed = mesh.owner.log.run(lambda tx: tx.projection.jobs.route("acme.x", tx.latest))
    assert routed == owner
    assert mesh.tables_found() == {"routes"}


@pytest.mark.req("LW-48")
def test_a_claim_is_its_claimers_op(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    assert mesh.taken()
    sharer = mesh.sharer.log.node.to_bytes(8, "big")
    mesh.sql("UPDATE jobs SET claimer = ? WHERE id = ?", sharer, job_id)
    with mesh.owner.read() as session:
        assert sound_job(session, job_id) is None
    op, body = mesh.op(ClaimWork(job_id, mesh.sharer.log.node, 60_000))
    mesh.put_op(op, body)
    mesh.sql("UPDATE jobs SET claim_op = ? WHERE id = ?", op.id, job_id)
    with mesh.owner.read() as session:
        assert sound_job(session, job_id) is None, "the sharer may not claim such jobs"
    assert mesh.tables_found() == {"jobs"}


@pytest.mark.req("LW-48")
def test_the_sharer_claims_no_job_by_another_kind(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    mesh.sql("UPDATE jobs SET kind = ? WHERE id = ?", "acme.x", job_id)
    assert job_id not in [each.job.id for each in mesh.taken(mesh.sharer)]
    mesh.owner.log.run(lambda tx: tx.author(ClaimWork(job_id, tx.node, 60_000)))
    with mesh.owner.read() as session:
        entry = session.job(job_id)
    assert entry is not None and entry.job.kind == "hocket.run", "a transaction that writes about it puts it right"
    assert job_id not in [each.job.id for each in mesh.taken(mesh.sharer)]


@pytest.mark.req("LW-48")
def test_a_changed_op_is_not_folded(mesh: SharedMesh) -> None:
    """Another refold of the job, such as after a rebuild, does not take it in."""
    job_id = mesh.submit()
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", other_command(mesh, job_id), job_id)
    mesh.owner.rebuild()
    with mesh.owner.read() as session:
        assert session.job(job_id) is None


@pytest.mark.req("LW-48")
def test_a_changed_op_is_neither_exported_nor_sent(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", other_command(mesh, job_id), job_id)
    with pytest.raises(StoreError, match="not the one that its author signed"):
        export_ops(mesh.owner.log, io.BytesIO())
    with mesh.owner.read() as session:
        author = mesh.owner.log.node.to_bytes(8, "big")
        assert job_id not in {row.id for row in session.entries_since({}, 1_000)}
        assert job_id not in {row.id for row in session.ops_of_author(author, bytes(20), 1_000)}
        assert job_id not in {row.id for row in session.ops_after(0, 1_000)}
        assert session.known_ops([job_id]) == {job_id: b""}


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("column", ["hlc", "key", "variant"])
def test_an_op_with_other_columns_than_its_bytes_is_not_used(mesh: SharedMesh, column: str) -> None:
    job_id = mesh.submit()
    value: object = 1 if column == "variant" else bytes(16) if column == "key" else bytes(12) + b"12345678"
    mesh.sql(f"UPDATE ops SET {column} = ? WHERE id = ?", value, job_id)
    with mesh.owner.read() as session:
        assert session.op(job_id) is None


@pytest.mark.req("LW-48")
def test_an_audit_names_the_changed_op(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    mesh.sql("UPDATE ops SET body = ? WHERE id = ?", other_command(mesh, job_id), job_id)
    audit = verify(mesh.owner.store, user=mesh.owner.log.user, is_bound=True)
    assert "its signature does not fit its bytes and its author" in {each.what for each in audit.findings}


@pytest.mark.req("LW-48")
def test_an_audit_names_changed_rows(mesh: SharedMesh) -> None:
    job_id = mesh.submit()
    assert mesh.owner.verify().findings == []
    mesh.sql("UPDATE jobs SET kind = ? WHERE id = ?", "acme.x", job_id)
    mesh.sql("INSERT INTO delegations (op, cid, hlc, token) VALUES (?, ?, ?, ?)",
             bytes(16), bytes(32), bytes(20), b"?")  # fmt: skip
    assert {each.what.partition(",")[0] for each in mesh.owner.verify().findings} == {"jobs", "delegations"}


@pytest.mark.req("LW-48")
def test_an_op_that_a_sharer_puts_among_those_held_back_is_not_released(mesh: SharedMesh) -> None:
    op, body = mesh.op(ScheduleJob(NO_ID, "acme.x", b"{}", b""))
    owner, sharer = (each.log.node.to_bytes(8, "big") for each in (mesh.owner, mesh.sharer))
    mesh.sql("INSERT INTO held (of_node, id, wall, body, author, mac) VALUES (?, ?, ?, ?, ?, ?)",
             owner, op.id, 0, body, sharer, bytes(32))  # fmt: skip
    mesh.owner.log.release()
    with mesh.owner.store.read() as session:
        assert session.op(op.id) is None


@pytest.mark.req("LW-48")
def test_a_role_that_cannot_change_ops_is_enough_for_a_node(tmp_path: Path) -> None:
    """The rights that docs/security.md names."""
    mesh = SharedMesh(tmp_path)
    with psycopg.connect(mesh.address, autocommit=True) as connection:
        connection.execute(f"REVOKE UPDATE, DELETE ON hocket.ops FROM {ROLE}")
        connection.execute(f"GRANT UPDATE (reason, settled) ON hocket.ops TO {ROLE}")
    mesh.sharer.close()
    narrow = Runtime(mesh.sharer.home, open_store(mesh.address.replace("postgres@", f"{ROLE}@", 1)), None)
    mesh.sharer = narrow
    job_id = mesh.submit("acme.x")
    (taken,) = mesh.taken(narrow)
    assert taken.job.id == job_id
    done = mesh.finish(taken, narrow)
    assert isinstance(done, Job) and done.state is State.COMPLETED
    for statement in ("UPDATE ops SET body = body", "DELETE FROM ops"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mesh.sql(statement)
    mesh.close()
