"""A node's name is what its inviter calls it, and means that node and nothing else."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import Conflict, Usage
from hocket.kernel.ids import content_hash, node_id, node_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
from hocket.mesh import enrolment, membership, tickets
from hocket.mesh.membership import Member
from hocket.mesh.names import is_name, likeness
from hocket.mesh.wire import Request
from hocket.node.runtime import Runtime

from .people import INVITER, Mesh, exchange

pytestmark = pytest.mark.touches("LW-01")

CLAIM = (Capability("Job", "Claim", {"kind_prefix": ["acme."]}),)
IMPOSSIBLE = [
    *("", "-x", "a b", "ä", "gpu\u200b", "x" * 65, "ev\x1bil", "a\n", "a/b", "a;b"),
    *("here", "Here", "none", "ALL", "owner", "coordinator", "self"),
    *("0123456789abcdef", "cafe", "CAFE", "beef01", "1234", "0123456789abcdef00"),
]


@pytest.mark.parametrize(
    "name", ["gpu-box", "a", "rack.1", "A_b", "x" * 64, "abc", "cafe-1", "123", "hereby", "0xcafe"]
)
def test_what_can_be_a_name(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_cannot_be_a_name_is_refused_at_invite_and_at_join(mesh: Mesh, name: str):
    assert not is_name(name)
    with pytest.raises(Usage, match="cannot be a node's name"):
        mesh.invite(name)
    ticket = tickets.parse_token(mesh.invite("other"))
    body = tickets.make_request(ticket, SigningKey(os.urandom(32)), name)
    assert mesh.answer(Request("POST", enrolment.JOIN, body=body)).status in (403, 409)


def test_a_node_that_asks_for_a_name_of_its_own_is_refused(mesh: Mesh):
    """As a node of an older version, or of somebody who holds an invitation and wants to be another."""
    ticket = tickets.parse_token(mesh.invite("gpu"))
    key = SigningKey(os.urandom(32))
    for name, status in (("rack-1", 409), ("here", 409), ("gpu", 200)):
        body = tickets.make_request(ticket, key, name)
        assert mesh.answer(Request("POST", enrolment.JOIN, body=body)).status == status


@pytest.mark.parametrize("name", ["RACK-1", "rack-l", "rack.1", "rack_i"])
def test_a_name_that_looks_like_one_in_the_mesh_is_refused(mesh: Mesh, name: str):
    mesh.join(mesh.invite("rack-1"))
    with pytest.raises(Conflict, match=r"looks too much like rack-1"):
        mesh.invite(name)
    mesh.invite("rack-2")
    with pytest.raises(Conflict, match=r"rack-2 is already invited, and RACK-2 looks"):
        mesh.invite("RACK-2")


def test_a_name_that_was_taken_since_the_invitation_is_refused_at_join(mesh: Mesh):
    other = mesh.join(mesh.invite("other", INVITER), "other")
    early, late = mesh.invite("rack-1"), mesh.invite("rack-l", ["job:claim:acme."], by=other)
    mesh.join(late, "impostor", by=other)
    exchange(other, mesh.owner)
    with pytest.raises(Conflict, match="another node already has this name, or one like it"):
        mesh.join(early, "rack")


@given(st.text(max_size=8))
def test_names_that_differ_in_case_alone_look_alike(text: str) -> None:
    if is_name(text):
        assert likeness(text) == likeness(text.upper()) == likeness(text.lower())
        assert is_name(text.upper()) and is_name(text.lower())


# Whose word counts.


def tell(runtime: Runtime, issuer: SigningKey, to: bytes, name: str, proof: bytes, nbf: int) -> None:
    """Writes a delegation that no command would write."""
    token = issue(issuer, to, CLAIM, nbf, None, [proof], name)
    runtime.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))


def own(runtime: Runtime) -> bytes:
    return runtime.log.authority().held(runtime.log.node)[0].cid


def test_a_node_does_not_rename_itself(mesh: Mesh):
    """Seen: a node became the coordinator by a documented command, because it had called itself `here`."""
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    key = gpu.home.node_key()
    for name in ("here", "rack-1", node_text(mesh.owner.log.node)):
        tell(gpu, key, key.public, name, own(gpu), int(mesh.clock.now))
    exchange(gpu, mesh.owner)
    assert mesh.member(node_text(gpu.log.node)).name == "gpu"
    assert mesh.member("here").node == mesh.owner.log.node
    with pytest.raises(Usage, match="no node 'rack-1'"):
        mesh.member("rack-1")


def test_neither_does_a_later_issuer_rename_it(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    mesh.clock.advance(5)
    rack = mesh.join(mesh.invite("rack"), "rack")
    exchange(gpu, mesh.owner)
    # Dated as far back as its own delegation allows.
    begins = gpu.log.authority().held(gpu.log.node)[0].not_before
    tell(gpu, gpu.home.node_key(), rack.home.node_key().public, "elsewhere", own(gpu), begins)
    exchange(gpu, mesh.owner)
    exchange(rack, mesh.owner)
    for runtime in (mesh.owner, gpu, rack):
        assert mesh.member("rack", runtime).node == rack.log.node
        with pytest.raises(Usage, match="no node 'elsewhere'"):
            mesh.member("elsewhere", runtime)


def test_neither_does_an_earlier_issuer_that_is_further_from_the_user(mesh: Mesh):
    """Time can be made up, and a place in the chain cannot."""
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    rack = SigningKey(os.urandom(32))
    tell(gpu, gpu.home.node_key(), rack.public, "elsewhere", own(gpu), int(mesh.clock.now))
    mesh.clock.advance(5)
    tell(mesh.owner, mesh.owner.home.node_key(), rack.public, "rack", own(mesh.owner), int(mesh.clock.now))
    exchange(gpu, mesh.owner)
    for runtime in (mesh.owner, gpu):
        assert mesh.member(node_text(node_id(rack.public)), runtime).name == "rack"


def test_a_node_without_a_name_does_not_name_itself(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    key = SigningKey(os.urandom(32))
    right = Capability("Registration", "Write", {})
    first = issue(gpu.home.node_key(), key.public, (*CLAIM, right), int(mesh.clock.now), None, [own(gpu)])
    itself = issue(key, key.public, CLAIM, int(mesh.clock.now), None, [content_hash(first)], "rack-1")
    for token in (first, itself):
        gpu.log.run(lambda tx, token=token: tx.author(DelegateUcan(content_hash(token), token)))  # type: ignore[misc]
    exchange(gpu, mesh.owner)
    assert mesh.member(node_text(node_id(key.public))).name is None


def test_the_issuer_renames_it_and_so_does_one_closer_to_the_user(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    helper = mesh.join(mesh.invite("helper", ["job:claim:acme."], by=gpu), "helper", by=gpu)
    exchange(helper, mesh.owner)
    mesh.clock.advance(5)
    to = helper.home.node_key().public
    tell(gpu, gpu.home.node_key(), to, "assistant", own(gpu), int(mesh.clock.now))
    exchange(gpu, mesh.owner)
    assert mesh.member("assistant").node == helper.log.node
    tell(mesh.owner, mesh.owner.home.node_key(), to, "rack-3", own(mesh.owner), int(mesh.clock.now))
    tell(gpu, gpu.home.node_key(), to, "again", own(gpu), int(mesh.clock.now))
    exchange(gpu, mesh.owner)
    assert mesh.member("rack-3", gpu).node == mesh.member("rack-3").node == helper.log.node


def test_a_name_that_cannot_be_is_not_shown(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER))
    rogue = SigningKey(os.urandom(32))
    tell(gpu, gpu.home.node_key(), rogue.public, "here", own(gpu), int(mesh.clock.now))
    exchange(gpu, mesh.owner)
    with mesh.owner.read() as session:
        assert [each.name for each in membership.members(mesh.owner.log, session)][1:] == ["gpu", None]
    assert mesh.member("here").is_here


# What a name finds.


def member(node: int, name: str | None, standing: str = "active", is_here: bool = False) -> Member:
    return Member(node, name, standing, (), (), None, 0, None, is_here)


OWNER = member(0xCAFE_0000_0000_0001, "rack-1", is_here=True)


def test_here_is_here_even_if_another_is_called_that() -> None:
    assert membership.find([member(2, "here"), OWNER, member(3, "HERE")], "here") is OWNER
    assert membership.find([OWNER], "HERE") is OWNER


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (member(2, "cafe"), "cafe"),
        (member(2, "rack-l"), "rack-1"),
        (member(2, "rack-1"), "rack-1"),
        (member(2, "Rack-1", "suspended"), "rack-1"),
        (member(0xCAFE_0000_0000_0002, None, "revoked"), "cafe"),
    ],
)
def test_a_text_that_could_be_two_nodes_is_asked_back(other: Member, text: str) -> None:
    with pytest.raises(Usage, match="name it by its id") as caught:
        membership.find([OWNER, other], text)
    assert OWNER.id in str(caught.value) and other.id in str(caught.value)
    assert membership.find([OWNER, other], other.id) is other


def test_a_revoked_namesake_stands_back() -> None:
    gone = member(2, "rack-1", "revoked")
    assert membership.find([gone, OWNER], "rack-1") is OWNER
    assert membership.find([gone], "rack-1") is gone


def test_case_does_not_matter_and_lookalikes_are_not_taken_for_a_name() -> None:
    assert membership.find([OWNER], "RACK-1") is OWNER
    for text in ("rack-l", "rack.1", "rack-", "caf"):
        with pytest.raises(Usage, match="no node"):
            membership.find([OWNER], text)
