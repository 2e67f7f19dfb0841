"""Several nodes with homes of their own on one store in PostgreSQL."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hocket.errors import Conflict, Usage
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.claiming import Claim, claim
from hocket.families.jobs.requests import Draft, Held
from hocket.families.jobs.rescue import expire
from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import revoke_root
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import NO_ID, decode, link_to
from hocket.kernel.policy import DEFAULT
from hocket.log.audit import verify
from hocket.log.lost_past import rewind
from hocket.log.machine_clock import MachineClock
from hocket.mesh.membership import members, reissue, revoke
from hocket.node import home_store
from hocket.node.runtime import Runtime
from hocket.store import open as open_store
from tests.node.sharers import Sharers
from tests.postgres_server import server
from tests.stores import raw
from tests.waiting import wait_for


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Sharers]:
    made = Sharers(tmp_path)
    yield made
    made.close()


def submit(runtime: Runtime, kind: str = "acme.render") -> bytes:
    return runtime.submit([Draft(kind, b'{"n":1}', DEFAULT)])[0].job_id


def take(runtime: Runtime, lease_ms: int = 60_000, limit: int = 1) -> list[Claim]:
    return runtime.log.run(lambda tx: claim(tx, 1, limit, lambda kind: lease_ms)).taken


def finish(runtime: Runtime, taken: Claim, result: bytes = b'"done"') -> Job:
    assert taken.job.claim_op is not None
    held = Held(taken.job.id, taken.job.claim_op)
    done = runtime.log.run(lambda tx: jobs.complete(tx, held, result, 1))
    assert isinstance(done, Job)
    return done


def job_of(runtime: Runtime, job_id: bytes) -> Job:
    with runtime.read() as session:
        entry = session.job(job_id)
    assert entry is not None
    return entry.job


@pytest.mark.req("VX-18")
def test_a_job_of_one_node_runs_on_another_and_is_seen_on_the_third(nodes: Sharers) -> None:
    for submitter, worker, reader in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        job_id = submit(nodes.all[submitter])
        taken = take(nodes.all[worker])
        assert [each.job.id for each in taken] == [job_id]
        finish(nodes.all[worker], taken[0])
        seen = job_of(nodes.all[reader], job_id)
        assert (seen.state, seen.outcome) == (State.COMPLETED, Outcome.SUCCEEDED)
        assert nodes.all[reader].show(ulid_text(job_id))["result"] == "done"


@pytest.mark.req("VX-18")
@pytest.mark.touches("VX-07")
def test_every_op_is_signed_by_its_author_and_linked_when_it_is_committed(nodes: Sharers) -> None:
    for runtime in nodes.all:
        submit(runtime)
    finish(nodes.second, take(nodes.second)[0])
    with nodes.founder.store.read() as session:
        head, rows = session.head(), session.ops_after(0, 100)
    assert head.seq == len(rows)
    assert {row.hlc[12:] for row in rows} == {each.log.node.to_bytes(8, "big") for each in nodes.all}
    assert [row.hlc for row in rows] == sorted(row.hlc for row in rows)
    last: dict[int, bytes] = {}
    for op in (decode(row.body) for row in rows):
        assert op.link == link_to(last.get(op.node_id, NO_ID)), "each author's ops are one sequence"
        last[op.node_id] = op.id
    for runtime in nodes.all:
        # Without `signed`, which signs what this node has only marked.
        audit = verify(runtime.store, user=runtime.log.user, is_bound=True)
        assert not audit.findings and audit.ops == len(rows)


@pytest.mark.req("LW-39")
def test_a_claim_that_many_nodes_want_is_decided_once(nodes: Sharers) -> None:
    wanted = {submit(nodes.founder) for _ in range(12)}
    first = [taken for each in nodes.all for taken in take(each)]
    won = [(number, taken.job.id) for number, taken in enumerate(first)]
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while taken := take(nodes.all[number]):
                won.append((number, taken[0].job.id))
                finish(nodes.all[number], taken[0])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not failed and len(first) == 3
    assert sorted(job_id for _, job_id in won) == sorted(wanted)
    assert {job_of(nodes.third, job_id).fence for job_id in wanted} == {1}
    with nodes.founder.read() as session:
        assert not session.ops_refused_for((Reason.OFFERED,))


@pytest.mark.req("LW-39")
def test_leases_go_by_the_stores_clock_on_machines_an_hour_apart(
    nodes: Sharers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of each home believes another time of day."""
    real = time.time

    def reopened(name: str, off_s: int) -> Runtime:
        monkeypatch.setattr(time, "time", lambda: real() + off_s)
        monkeypatch.setitem(MachineClock.__init__.__kwdefaults__, "clock", time.time)
        return Runtime.open(nodes.directory / name)

    submit(nodes.founder)
    nodes.second.close()
    nodes.third.close()
    ahead = nodes.second = reopened("second", 3600)
    behind = nodes.third = reopened("third", -3600)
    assert abs(ahead.log.physical() - behind.log.physical()) < 60_000
    taken = take(behind, lease_ms=30_000)
    assert len(taken) == 1
    # The node that is ahead does not end a lease that has begun just now.
    assert ahead.log.run(lambda tx: expire(tx, 10)) == 0 and not take(ahead)
    finish(behind, taken[0])
    # The node that is behind ends one that has run out.
    submit(nodes.founder)
    assert take(ahead, lease_ms=1)
    wait_for(lambda: behind.log.run(lambda tx: expire(tx, 10)), "the end of the lease")
    assert len(take(behind)) == 1


@pytest.mark.req("VX-18")
def test_a_tamperer_with_the_password_is_found_on_every_node_and_a_rebuild_undoes_it(nodes: Sharers) -> None:
    job_id = submit(nodes.founder)
    finish(nodes.second, take(nodes.second)[0])
    raw(nodes.founder.store, "UPDATE jobs SET outcome = 1, fence = 99")
    assert job_of(nodes.third, job_id).outcome is Outcome.FAILED
    rebuilt = nodes.third.rebuild()
    assert not rebuilt.unchanged
    assert all(job_of(each, job_id).outcome is Outcome.SUCCEEDED for each in nodes.all)
    assert all(not each.verify().findings for each in nodes.all)
    raw(
        nodes.founder.store,
        "UPDATE ops SET body = overlay(body PLACING 'gone' FROM position('done' IN body))"
        " WHERE position('done' IN body) > 0",
    )
    for each in nodes.all:
        assert "its signature does not fit" in each.verify().findings[0].what


@pytest.mark.req("VX-18")
def test_any_node_rebuilds_what_all_have_written(nodes: Sharers) -> None:
    for runtime in nodes.all:
        submit(runtime)
        finish(runtime, take(runtime)[0])
    for runtime in nodes.all:
        assert runtime.rebuild().unchanged


@pytest.mark.req("VX-18")
def test_a_node_takes_nothing_off_a_log_that_others_share(nodes: Sharers) -> None:
    job_id = submit(nodes.founder)
    submit(nodes.second)
    with nodes.founder.store.read() as session:
        before = session.head()
    rewind(nodes.founder.log, job_id)
    with nodes.founder.store.read() as session:
        assert session.head() == before


@pytest.mark.req("VX-18")
def test_a_revoked_node_decides_no_more_and_its_decisions_are_undone(nodes: Sharers, tmp_path: Path) -> None:
    job_id = submit(nodes.founder)
    finish(nodes.third, take(nodes.third)[0])
    third = node_text(nodes.third.log.node)
    with nodes.founder.read() as session:
        roles = {each.id: each.roles for each in members(nodes.founder.log, session)}
    assert "sharer" in roles[third] and "sharer" not in roles[node_text(nodes.founder.log.node)]
    revoke(nodes.founder.log, third)
    assert job_of(nodes.second, job_id).state is State.PENDING
    assert "may not share the store" in refused(lambda: Runtime.open(tmp_path / "third"))
    assert len(take(nodes.second)) == 1 and nodes.second.rebuild().unchanged


@pytest.mark.req("VX-18")
def test_a_node_with_a_new_root_delegation_still_shares_the_store(nodes: Sharers) -> None:
    second = nodes.second
    old = second.log.authority().held(second.log.node)[0]
    user = second.home.user_key()
    reissue(second.log, user, second.home.node_key().public, "renamed")
    second.log.run(lambda tx: tx.author(revoke_root(user, old.cid)))
    second.close()
    nodes.second = Runtime.open(nodes.directory / "second")
    submit(nodes.founder)
    assert len(take(nodes.second)) == 1


# Who may use the store.


def refused(call: Callable[[], Runtime], kind: type[Exception] = Conflict) -> str:
    with pytest.raises(kind) as caught:
        call().close()
    return str(caught.value)


@pytest.mark.req("VX-18")
def test_a_home_that_does_not_belong_to_the_store_is_refused(nodes: Sharers, tmp_path: Path) -> None:
    address = nodes.address
    assert "has the log of node" in refused(lambda: Runtime.init(tmp_path / "new", server=address))
    Runtime.init(tmp_path / "other", server=server().new_database()).close()
    (tmp_path / "other" / "store").write_text(address)
    assert "has the log of another user" in refused(lambda: Runtime.open(tmp_path / "other"))
    key = nodes.founder.home.path / "user.key"
    Runtime.init(tmp_path / "apart", key, server=server().new_database()).close()
    (tmp_path / "apart" / "store").write_text(address)
    assert "this home's key is not in it" in refused(lambda: Runtime.open(tmp_path / "apart"))
    ops = len(list(raw(nodes.founder.store, "SELECT seq FROM ops")))
    submit(nodes.founder)
    assert len(list(raw(nodes.founder.store, "SELECT seq FROM ops"))) == ops + 1


@pytest.mark.req("VX-18")
def test_a_member_that_was_not_told_to_share_is_refused(nodes: Sharers, tmp_path: Path) -> None:
    token = nodes.invite("apart", shares=False)
    with nodes.join("apart", token, server=None) as apart:
        node = apart.log.node
    (tmp_path / "apart" / "store").write_text(nodes.address)
    assert f"node {node_text(node)} may not share the store" in refused(lambda: Runtime.open(tmp_path / "apart"))


@pytest.mark.req("VX-18")
def test_an_invitation_says_whether_the_store_is_shared_and_never_where_it_is(nodes: Sharers) -> None:
    token = nodes.invite("fourth")
    assert token.startswith("hocket-store-1-")
    assert "give its address with --store" in refused(lambda: nodes.join("fourth", token, server=None), Usage)
    elsewhere = server().new_database()
    open_store(elsewhere, create=True).close()
    assert "does not have the inviting node's log" in refused(lambda: nodes.join("fourth", token, server=elsewhere))
    with nodes.join("fourth", token) as fourth:
        submit(fourth)
        assert len(take(fourth)) == 1
    plain = nodes.invite("fifth", shares=False)
    assert "a store of its own" in refused(lambda: nodes.join("fifth", plain), Usage)


@pytest.mark.req("VX-18")
def test_two_homes_with_one_key_are_refused_until_the_first_one_is_gone(
    nodes: Sharers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(nodes.third.home.path, tmp_path / "copy")
    assert f"from another home, {nodes.third.home.path}" in refused(lambda: Runtime.open(tmp_path / "copy"))
    monkeypatch.setattr(home_store, "LEFT_MS", -1)
    Runtime.open(tmp_path / "copy").close()
    monkeypatch.undo()
    assert f"from another home, {tmp_path / 'copy'}" in refused(lambda: Runtime.open(nodes.third.home.path))
