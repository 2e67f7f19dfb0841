"""Who is in the mesh, and what its owner decides: revocations with all that leans on them, routes, coordinators."""

import os

import pytest

from hocket.errors import Conflict, NotAuthorised, Unreachable, Usage
from hocket.families.jobs import claiming
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import U32_MAX, Hlc
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, DelegateUcan, DesignateCoordinator, RouteKind, Telemetry
from hocket.mesh import membership
from hocket.node.runtime import Runtime

from .people import INVITER, Mesh, exchange


def answers(runtime: Runtime, node: int, action: str, kind: str | None, resource: str = "Job") -> membership.MayAnswer:
    with runtime.read() as session:
        return membership.may(runtime.log, session, node, resource, action, kind)


@pytest.mark.req("LW-01")
def test_the_roles(mesh: Mesh):
    (owner,) = [mesh.member(node_text(mesh.owner.log.node))]
    assert owner.roles == ("owner", "coordinator", "worker") and owner.is_here and owner.inviter is None
    gpu = mesh.join(mesh.invite())
    assert mesh.member("gpu").roles == ("worker",) and mesh.member("gpu").standing == "pending"
    mesh.join(mesh.invite("phone", ["job:schedule"]), "phone")
    assert mesh.member("phone").roles == ("peer",)
    exchange(gpu, mesh.owner)
    assert mesh.member("gpu").standing == "active" and mesh.member("gpu").seen > 0
    assert mesh.member("gpu", gpu).is_here and mesh.member(owner.id, gpu).roles == owner.roles
    # Everything, but by a node's hand and not the user's: that is not the owner.
    mesh.join(mesh.invite("twin", ["all"]), "twin")
    assert mesh.member("twin").roles == ("worker",)
    membership.designate(mesh.owner.log, gpu.log.node)
    assert mesh.member("gpu").roles == ("coordinator", "worker")
    assert mesh.member(owner.id).roles == ("owner", "worker")


def test_nodes_are_found_by_name_and_id(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    for text in ("gpu", node_text(gpu.log.node), node_text(gpu.log.node)[:6].upper()):
        assert mesh.member(text).node == gpu.log.node
    assert mesh.member("here").node == mesh.owner.log.node and mesh.member("here", gpu).node == gpu.log.node
    for text in ("", "gp", "nobody", "zzzz", node_text(gpu.log.node)[:3]):
        with pytest.raises(Usage, match="hocket mesh nodes"):
            mesh.member(text)


def test_a_name_that_two_nodes_have_is_asked_back(mesh: Mesh):
    """As with two homes that `init` made on one machine."""
    Runtime.init(mesh.directory / "second", mesh.owner.home.path / "user.key").close()
    second = mesh.open("second")
    exchange(second, mesh.owner)
    name = mesh.member(node_text(second.log.node)).name
    if name is not None:
        with pytest.raises(Usage, match="name it by its id"):
            mesh.member(name)
        membership.revoke(mesh.owner.log, node_text(second.log.node), mesh.owner.home.user_key)
        assert mesh.member(name).node == mesh.owner.log.node


@pytest.mark.req("LW-01", "LW-13")
def test_a_second_root_node_is_an_owner_and_not_the_coordinator(mesh: Mesh):
    Runtime.init(mesh.directory / "second", mesh.owner.home.path / "user.key").close()
    second = mesh.open("second")
    assert [each.roles for each in [mesh.member(node_text(second.log.node), second)]] == [("owner", "worker")]
    exchange(second, mesh.owner)
    with second.read() as session:
        assert membership.coordinator(second.log, session) == mesh.owner.log.node
    membership.designate(second.log, second.log.node)
    exchange(second, mesh.owner)
    with mesh.owner.read() as session:
        assert membership.coordinator(mesh.owner.log, session) == second.log.node


# May.


@pytest.mark.req("LW-26")
def test_may_tells_the_chain(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    chain = answers(mesh.owner, gpu.log.node, "Claim", "acme.x").chain
    assert chain is not None and [each.node for each in chain] == [mesh.owner.log.node, gpu.log.node]
    assert chain[0].issuer == mesh.owner.log.user
    for action, kind in (("Claim", "other"), ("Schedule", "acme.x"), ("Claim", None)):
        assert answers(mesh.owner, gpu.log.node, action, kind).chain is None
    twin = mesh.join(mesh.invite("twin", ["all"]), "twin")
    assert answers(mesh.owner, twin.log.node, "Claim", None).chain is not None
    assert answers(mesh.owner, twin.log.node, "Write", None, "Mesh").chain is None
    assert answers(mesh.owner, mesh.owner.log.node, "Write", None, "Mesh").chain is not None
    membership.route(mesh.owner.log, "acme.x", twin.log.node)
    assert answers(mesh.owner, gpu.log.node, "Claim", "acme.x").routed == twin.log.node
    assert answers(mesh.owner, twin.log.node, "Claim", "acme.x").routed is None


# Revocation.


@pytest.mark.req("LW-27")
def test_revocation_reaches_down(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    helper = mesh.join(mesh.invite("helper", ["job:claim:acme."], by=gpu), "helper", by=gpu)
    mesh.join(mesh.invite("phone", ["job:schedule"]), "phone")
    exchange(helper, mesh.owner)
    planned = membership.revocable(mesh.owner.log, "gpu")
    assert [each.name for each in planned.cascade] == ["helper"] and planned.delegations == 1
    assert mesh.member("gpu").standing == "pending"
    assert membership.revoke(mesh.owner.log, "gpu") == planned
    for name, standing in (("gpu", "revoked"), ("helper", "revoked"), ("phone", "pending")):
        assert mesh.member(name).standing == standing
    assert mesh.member("gpu").roles == ("peer",) and mesh.member("gpu").capabilities == ()
    with pytest.raises(Conflict, match="has no rights left"):
        membership.revoke(mesh.owner.log, "gpu")
    assert answers(mesh.owner, helper.log.node, "Claim", "acme.x").chain is None
    # They hear of it, and know.
    exchange(gpu, mesh.owner)
    assert mesh.member("gpu", gpu).standing == "revoked"


@pytest.mark.req("LW-27")
def test_what_a_revoked_node_wrote_drops_out_and_stays_logged(mesh: Mesh):
    phone = mesh.join(mesh.invite("phone", ["job:schedule"]), "phone")
    job = phone.log.append_plain("acme.render", b"{}")
    exchange(phone, mesh.owner)
    with mesh.owner.read() as session:
        assert session.job(job) is not None
    membership.revoke(mesh.owner.log, "phone")
    with mesh.owner.read() as session:
        assert session.job(job) is None
        row = session.op(job)
        assert row is not None and row.reason == Reason.REVOKED
    exchange(phone, mesh.owner)
    with phone.read() as session:
        assert session.job(job) is None
    with pytest.raises(NotAuthorised):
        phone.log.append_plain("acme.render", b"{}")


@pytest.mark.req("LW-27")
def test_all_delegations_of_a_node_go_together(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    mesh.join(mesh.invite("gpu", ["job:claim:more."]))
    assert membership.revoke(mesh.owner.log, "gpu").delegations == 2
    assert mesh.owner.log.authority().held(gpu.log.node)
    assert mesh.member("gpu").standing == "revoked"


@pytest.mark.req("LW-27")
def test_revoking_a_node_with_many_delegations_of_its_own_takes_a_few_ops(mesh: Mesh):
    """Seen: a node that delegated to itself over and over could hardly be revoked."""
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    mesh.clock.advance(1)
    mesh.join(mesh.invite("gpu", ["job:claim:more."]))
    helper = mesh.join(mesh.invite("helper", INVITER, by=gpu), "helper", by=gpu)
    key, grant = gpu.home.node_key(), Capability("Job", "Claim", {"kind_prefix": ["acme."]})
    (top, *_), (middle,) = gpu.log.authority().held(gpu.log.node), helper.log.authority().held(helper.log.node)
    made = [issue(key, key.public, (grant,), middle.not_before + n, None, [top.cid]) for n in range(200)]
    # One that leans on its own by way of another node.
    made.append(issue(helper.home.node_key(), key.public, (grant,), middle.not_before, None, [middle.cid]))
    gpu.log.run(lambda tx: [tx.author(DelegateUcan(content_hash(token), token)) for token in made])
    exchange(gpu, mesh.owner)
    assert len(mesh.owner.log.authority().held(gpu.log.node)) == 203
    assert len(mesh.member("gpu").capabilities) < 10
    planned = membership.revocable(mesh.owner.log, "gpu")
    assert planned.delegations == 2 and [each.name for each in planned.cascade] == ["helper"]
    membership.revoke(mesh.owner.log, "gpu")
    with mesh.owner.read() as session:
        assert len(session.revocations()) == 2
    assert mesh.member("gpu").standing == "revoked"


def test_more_delegations_than_can_be_revoked_at_once_are_told_with_their_issuer(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
):
    """They go with the node that issued them."""
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    phone = mesh.join(mesh.invite("phone"), "phone")
    exchange(gpu, mesh.owner)
    key, to = gpu.home.node_key(), phone.home.node_key().public
    grant = Capability("Job", "Claim", {"kind_prefix": ["acme."]})
    (top,) = gpu.log.authority().held(gpu.log.node)
    made = [issue(key, to, (grant,), top.not_before + n, None, [top.cid]) for n in range(5)]
    gpu.log.run(lambda tx: [tx.author(DelegateUcan(content_hash(token), token)) for token in made])
    exchange(gpu, mesh.owner)
    monkeypatch.setattr(membership, "REVOKED_AT_ONCE_MAX", 4)
    with pytest.raises(Conflict, match="phone holds 6 delegations, 5 of them by gpu; revoke that node first"):
        membership.revoke(mesh.owner.log, "phone")
    membership.revoke(mesh.owner.log, "gpu")
    assert membership.revoke(mesh.owner.log, "phone").delegations == 1


def test_who_may_revoke(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    helper = mesh.join(mesh.invite("helper", ["job:claim:acme."], by=gpu), "helper", by=gpu)
    phone = mesh.join(mesh.invite("phone", ["all"]), "phone")
    for runtime in (helper, phone):
        exchange(runtime, mesh.owner)
        exchange(runtime, gpu)
    owner = node_text(mesh.owner.log.node)
    for runtime, target in ((gpu, owner), (helper, "gpu"), (phone, "gpu"), (phone, owner)):
        with pytest.raises(NotAuthorised, match="only the node that invited"):
            membership.revoke(runtime.log, target)
    for runtime in (mesh.owner, gpu):
        with pytest.raises(Usage, match="cannot revoke itself"):
            membership.revoke(runtime.log, node_text(runtime.log.node))
    # The one that invited it may.
    membership.revoke(gpu.log, "helper")
    exchange(gpu, mesh.owner)
    assert mesh.member("helper").standing == "revoked" and mesh.member("gpu").standing == "active"


def test_a_revoked_machine_is_invited_anew(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    membership.revoke(mesh.owner.log, "gpu")
    # In the same second it would be the same delegation.
    token = mesh.invite()
    with pytest.raises(Unreachable, match="answered with status 503"):
        mesh.join(token)
    mesh.clock.advance(1)
    again = mesh.join(token)
    assert again.log.node == gpu.log.node
    exchange(again, mesh.owner)
    assert mesh.member("gpu").standing == "active"
    # Or another machine takes the name.
    membership.revoke(mesh.owner.log, "gpu")
    other = mesh.join(mesh.invite(), "replacement")
    assert mesh.member("gpu").node == other.log.node


# Routes and the coordinator.


@pytest.mark.req("LW-12")
def test_routes_are_the_owners(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", ["all"]))
    exchange(gpu, mesh.owner)
    membership.route(mesh.owner.log, "acme.render", gpu.log.node)
    with mesh.owner.read() as session:
        assert membership.route_of(session, "acme.render") == gpu.log.node
    mesh.owner.log.append_plain("acme.render", b"{}")
    assert mesh.owner.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 10_000)).taken == []
    membership.route(mesh.owner.log, "acme.render", mesh.owner.log.node)
    membership.route(mesh.owner.log, "acme.render", None)
    with mesh.owner.read() as session:
        assert membership.route_of(session, "acme.render") is None
    with pytest.raises(NotAuthorised, match="only the owner's node may route a kind"):
        membership.route(gpu.log, "acme.render", gpu.log.node)
    for kind in ("", "x" * 256, "a\nb"):
        with pytest.raises(Usage):
            membership.route(mesh.owner.log, kind, None)


@pytest.mark.req("LW-12", "LW-13")
def test_owners_ops_of_another_node_reach_no_projection(mesh: Mesh):
    """Its own software may not ask; its ops are refused all the same."""
    gpu = mesh.join(mesh.invite("gpu", ["all"]))
    exchange(gpu, mesh.owner)
    permissions_reader = gpu.log.permissions_reader
    gpu.log.permissions_reader = type(
        "Lawless",
        (),
        {"read": lambda self, *known: _Free(permissions_reader.read(*known)), "rules": permissions_reader.rules},
    )()  # type: ignore[assignment]
    for payload in (RouteKind("acme.render", gpu.log.node), DesignateCoordinator(gpu.log.node)):
        gpu.log.run(lambda tx, payload=payload: tx.author(payload))  # type: ignore[misc]
    gpu.log.permissions_reader = permissions_reader
    exchange(gpu, mesh.owner)
    with mesh.owner.read() as session:
        assert membership.route_of(session, "acme.render") is None
        assert membership.coordinator(mesh.owner.log, session) == mesh.owner.log.node
        assert session.refusal_counts()[Reason.OWNER_ONLY] == 2


class _Free:
    """A permissions that forbids nothing."""

    def __init__(self, permissions: object) -> None:
        self._permissions = permissions

    def refusal(self, *_: object) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        return getattr(self._permissions, name)


@pytest.mark.req("LW-13")
def test_the_coordinator_is_designated(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    owner = mesh.owner.log
    with mesh.owner.read() as session:
        assert membership.coordinator(owner, session) == owner.node
    before = owner.permissions()
    mesh.clock.advance(1)
    done = membership.designate(owner, gpu.log.node)
    assert (done.previous, done.hears) == (owner.node, True)
    # It holds from its own time on.
    assert owner.permissions().coordinator(Hlc(int(mesh.clock.now * 1000) - 500, U32_MAX, 0)) == owner.node
    assert owner.permissions().coordinator(Hlc(int(mesh.clock.now * 1000) + 500, 0, 0)) == gpu.log.node
    assert before.coordinators == owner.permissions().coordinators[:1]
    with pytest.raises(Conflict, match="is already the coordinator"):
        membership.designate(owner, gpu.log.node)
    # From the one before nothing was heard, so nobody knows whether it knows.
    done = membership.designate(owner, owner.node)
    assert (done.previous, done.hears) == (gpu.log.node, False)
    exchange(gpu, mesh.owner)
    with pytest.raises(NotAuthorised, match="only the owner's node may designate"):
        membership.designate(gpu.log, gpu.log.node)


@pytest.mark.req("LW-13")
def test_a_coordinator_that_was_met_lately_will_hear_of_it(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    membership.designate(mesh.owner.log, gpu.log.node)
    now = mesh.owner.log.physical()
    with mesh.owner.store.write() as session:
        from hocket.mesh import peers

        peer = peers.add(session, "http://gpu:7315", now, gpu.log.node)
        session.put_peer(peer._replace(node=gpu.log.node.to_bytes(8, "big"), seen=now, state=peers.OK))
    assert membership.designate(mesh.owner.log, mesh.owner.log.node).hears


# The user's own hand.


@pytest.mark.req("LW-24")
def test_a_new_root_delegation_after_the_node_was_revoked(mesh: Mesh):
    Runtime.init(mesh.directory / "second", mesh.owner.home.path / "user.key").close()
    second = mesh.open("second")
    exchange(second, mesh.owner)
    with pytest.raises(NotAuthorised, match="the user's key"):
        membership.revoke(second.log, node_text(mesh.owner.log.node))
    membership.revoke(second.log, node_text(mesh.owner.log.node), mesh.owner.home.user_key)
    exchange(second, mesh.owner)
    assert not membership.is_owner(mesh.owner.log)
    with pytest.raises(NotAuthorised):
        mesh.owner.log.append_plain("acme.render", b"{}")
    with pytest.raises(NotAuthorised, match="another user"):
        membership.reissue(mesh.owner.log, SigningKey(os.urandom(32)), mesh.owner.home.node_key().public, None)
    node_key = mesh.owner.home.node_key().public
    made = [membership.reissue(mesh.owner.log, mesh.owner.home.user_key(), node_key, "phoenix") for _ in range(3)]
    assert len({each.cid for each in made}) == 3, "delegations of one second are different ones"
    assert membership.is_owner(mesh.owner.log) and {each.name for each in made} == {"phoenix"}
    assert mesh.owner.log.append_plain("acme.render", b"{}")
    exchange(second, mesh.owner)
    assert mesh.member("phoenix", second).roles[0] == "owner"


def test_what_the_coordinator_accepted_stands(mesh: Mesh):
    """The promise that `revoke` makes to people."""
    from hocket.families.jobs.claiming import accept

    gpu = mesh.join(mesh.invite())
    job = mesh.owner.log.append_plain("acme.render", b"{}")
    mesh.owner.log.settle()
    exchange(gpu, mesh.owner)
    claim = gpu.log.run(lambda tx: tx.author(ClaimWork(job, tx.node, 60_000)))
    assert not isinstance(claim, Reason)
    _offer(gpu, mesh.owner, accept)
    done = gpu.log.run(lambda tx: tx.author(CompleteJob(job, (), (), Telemetry(5))))
    assert not isinstance(done, Reason)
    _offer(gpu, mesh.owner, accept)
    with mesh.owner.read() as session:
        before = session.job(job)
    assert before is not None and before.job.outcome is not None
    membership.revoke(mesh.owner.log, "gpu")
    with mesh.owner.read() as session:
        after = session.job(job)
    assert after is not None and after.job.outcome == before.job.outcome


def _offer(worker: Runtime, arbiter: Runtime, decide: object) -> None:
    import io

    from hocket.log.copies import OpReader, export_ops

    file = io.BytesIO()
    export_ops(worker.log, file)
    file.seek(0)
    arbiter.log.admit(OpReader(file), decide)  # type: ignore[arg-type]
    exchange(arbiter, worker)
