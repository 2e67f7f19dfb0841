"""The owner says which nodes may follow the coordinator, and what it cannot say."""

from pathlib import Path

import pytest

from hocket.api.checks import _integrity
from hocket.errors import Conflict, NotAuthorised, Usage
from hocket.kernel.arbitration import Reason
from hocket.kernel.capabilities import sharing
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.succession.chain import Chain, vote_text
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, TakeOver
from hocket.mesh import membership
from hocket.node.runtime import Runtime

from .people import Mesh, exchange

AFTER = 30_000


@pytest.fixture
def three(mesh: Mesh) -> list[str]:
    """The names of the coordinator and of two members."""
    for name in ("gpu", "rack"):
        exchange(mesh.join(mesh.invite(name, ["all"]), name), mesh.owner)
    return ["here", "gpu", "rack"]


def name_successors(mesh: Mesh, names: list[str], quorum: int = 2, by: Runtime | None = None) -> Chain:
    named = [mesh.member(each, by) for each in names]
    return membership.set_succession((by or mesh.owner).log, named, quorum, AFTER if names else 0)


def test_a_succession_is_set_changed_and_ended(mesh: Mesh, three: list[str]) -> None:
    chain = name_successors(mesh, three)
    assert chain.succession is not None and chain.root is not None and not chain.faults
    assert chain.succession.nodes == tuple(mesh.member(each).node for each in three)
    assert (chain.succession.quorum, chain.succession.after_ms) == (2, AFTER)
    with pytest.raises(Conflict, match="in force already"):
        name_successors(mesh, three)
    with pytest.raises(Conflict, match="mesh succession --none"):
        membership.designate(mesh.owner.log, mesh.member("gpu").node)
    changed = name_successors(mesh, ["gpu", "here", "rack"]).succession
    assert changed is not None and changed.nodes[0] == mesh.member("gpu").node
    gpu = next(each for each in mesh.runtimes if each.log.node == mesh.member("gpu").node)
    exchange(gpu, mesh.owner)
    assert gpu.log.permissions().chain.succession == changed
    assert name_successors(mesh, [], 0).succession is None
    with pytest.raises(Conflict, match="no succession is in force"):
        name_successors(mesh, [], 0)
    membership.designate(mesh.owner.log, mesh.member("gpu").node)
    assert mesh.member("gpu").roles[0] == "coordinator"


@pytest.mark.parametrize(
    "names, quorum, words",
    [
        (["here", "gpu", "rack"], 4, "a quorum of 4 can never be met by 3 nodes"),
        (["here", "gpu", "rack"], 3, "a quorum of 3 can never be met by 3 nodes"),
        (["here", "gpu"], 2, "name more nodes, 3 at least"),
        (["here", "gpu", "rack"], 1, "a quorum of 1 is always met"),
        (["here", "gpu", "rack"], 0, "a quorum of 0 is always met"),
        (["gpu", "rack"], 2, "the coordinator must be one of the named nodes"),
        (["here", "gpu", "gpu"], 2, "a node is named twice"),
        (["here"], 1, "always met"),
        (["here", "nobody"], 2, "no node 'nobody' in this mesh"),
    ],
)
def test_a_succession_that_could_not_work_is_refused(
    mesh: Mesh, three: list[str], names: list[str], quorum: int, words: str
) -> None:
    with pytest.raises(Usage, match=words):
        name_successors(mesh, names, quorum)
    assert mesh.owner.log.permissions().chain.successions == ()


def test_only_the_owner_names_successors_and_only_nodes_that_can_decide(mesh: Mesh, three: list[str]) -> None:
    gpu = next(each for each in mesh.runtimes if each.log.node == mesh.member("gpu").node)
    exchange(gpu, mesh.owner)
    with pytest.raises(NotAuthorised, match="only the owner's node may say who follows"):
        name_successors(mesh, [node_text(mesh.owner.log.node), "gpu", "rack"], by=gpu)
    exchange(mesh.join(mesh.invite("narrow", ["job:read:acme.", "job:claim:acme."]), "narrow"), mesh.owner)
    with pytest.raises(Conflict, match="narrow may not read the jobs of every kind"):
        name_successors(mesh, ["here", "gpu", "narrow"])
    membership.revoke(mesh.owner.log, "rack", mesh.owner.home.user_key)
    with pytest.raises(Conflict, match="rack is revoked"):
        name_successors(mesh, three)


def test_a_node_that_shares_a_store_cannot_be_named(mesh: Mesh, three: list[str]) -> None:
    key = mesh.owner.home.user_key()
    runtime = next(each for each in mesh.runtimes if each.log.node == mesh.member("gpu").node)
    token = issue(key, runtime.home.node_key().public, (*ROOT, sharing(mesh.owner.log.node)), 0, None, name="gpu")
    mesh.owner.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
    with pytest.raises(Conflict, match="shares its store with other nodes"):
        name_successors(mesh, three)


def test_a_strict_mesh_knows_no_successions(tmp_path: Path) -> None:
    with Runtime.init(tmp_path / "home", strict=True) as runtime, pytest.raises(Usage, match="strict mesh"):
        membership.set_succession(runtime.log, (), 0, 0)


def test_the_doctor_names_a_node_that_voted_twice(mesh: Mesh, three: list[str]) -> None:
    chain = name_successors(mesh, three)
    assert chain.succession is not None and chain.head is not None
    owner, *others = mesh.runtimes
    for each in others:
        exchange(each, owner)
        text = vote_text(chain.succession.op_id, chain.head.op_id, 1, each.log.node)
        votes = tuple((voter.log.node, voter.home.node_key().sign(text)) for voter in (owner, each))
        payload = TakeOver(1, chain.succession.op_id, chain.head.op_id, votes)
        written = each.log.run(lambda tx, payload=payload: tx.author(payload, about=owner.log.node))  # type: ignore[misc]
        assert not isinstance(written, Reason)
    with owner.read() as session:
        assert not any("voted" in text for _, text in _integrity(owner.home, session))
    for each in others:
        exchange(each, owner)
    with owner.read() as session:
        found = [text for state, text in _integrity(owner.home, session) if state == "bad"]
    assert len(found) == 1 and f"node {node_text(owner.log.node)} has voted for two nodes" in found[0]
    assert mesh.member("here").roles[:2] == ("owner", "coordinator")
