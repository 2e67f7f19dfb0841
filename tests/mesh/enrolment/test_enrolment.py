"""How a node gets in, and how nobody else does. Every refusal leaves both sides as they were."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from hocket.errors import Conflict, Failed, NotAuthorised, Unreachable, Usage
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Standing
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.mesh_rules import rules_hash
from hocket.kernel.ops import decode
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.mesh import enrolment, tickets
from hocket.mesh.wire import Reply, Request
from hocket.node.home import Home
from hocket.node.opening import join
from hocket.node.runtime import Runtime

from .people import ADDRESS, INVITER, Mesh, exchange


def ops(runtime: Runtime) -> int:
    with runtime.read() as session:
        return session.head().seq


def status(reply: Reply) -> tuple[int, str]:
    return reply.status, msgspec.json.decode(reply.body).get("error", "")


@pytest.mark.req("LW-23", "LW-24")
def test_a_node_joins(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    with gpu.read() as session:
        first = decode(session.entry(1).body)
        assert isinstance(first.payload, DelegateUcan) and first.node_id == gpu.log.node
        delegation = read_ucan(first.payload.ucan_bytes)
        (peer,) = session.peers()
    # Its own key, made there; issued by the inviting node, and leading back to the user.
    assert delegation.public == gpu.home.node_key().public and delegation.name == "gpu"
    assert delegation.issuer == did_key(mesh.owner.home.node_key().public)
    assert gpu.log.user == mesh.owner.log.user == gpu.home.user_did()
    assert gpu.log.authority().fault(delegation) is None
    assert not gpu.home.has_user_key() and not (gpu.home.path / "user.key").exists()
    assert (peer.address, peer.node) == (ADDRESS, mesh.owner.log.node.to_bytes(8, "big"))
    assert rules_hash(gpu.log.rules) == rules_hash(mesh.owner.log.rules)
    # Both know what it may do, before anything was exchanged.
    for runtime in (gpu, mesh.owner):
        authority = runtime.log.authority()
        assert authority.standing(gpu.log.node, runtime.log.physical()) is Standing.ACTIVE
        assert authority.may(gpu.log.node, "Job", "Claim", "acme.render", runtime.log.physical()) is not None
        assert authority.may(gpu.log.node, "Job", "Claim", "other", runtime.log.physical()) is None
        assert not authority.is_owner(gpu.log.node, runtime.log.physical())


@pytest.mark.req("LW-23")
def test_a_third_node_follows_the_chain_from_the_joiners_ops_alone(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    phone = mesh.join(mesh.invite("phone", ["job:schedule"]), "phone")
    exchange(gpu, phone)
    for one, other in ((gpu, phone), (phone, gpu)):
        assert one.log.authority().standing(other.log.node, one.log.physical()) is Standing.ACTIVE
    exchange(gpu, mesh.owner)
    assert mesh.member("gpu").standing == "active" and mesh.member("phone").standing == "active"


@pytest.mark.req("LW-24")
def test_an_invited_node_hands_on_what_it_holds_and_no_more(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER, lifetime_s=86_400))
    token = mesh.invite("helper", ["job:claim:acme.small."], by=gpu)
    helper = mesh.join(token, "helper", by=gpu)
    chain = helper.log.authority().may(helper.log.node, "Job", "Claim", "acme.small.x", helper.log.physical())
    assert [each.node for each in chain or ()] == [mesh.owner.log.node, gpu.log.node, helper.log.node]
    # No longer than the node that invited it, without being told.
    assert chain is not None and chain[2].expires == chain[1].expires
    exchange(helper, mesh.owner)
    assert mesh.member("helper").inviter == gpu.log.node
    for may, sentence in (
        (["job:claim:other."], "claim jobs of kind other"),
        (["job:claim"], "claim jobs"),
        (["all"], "do everything"),
        (["job:schedule:acme."], "submit jobs"),
    ):
        with pytest.raises(NotAuthorised, match=f"cannot let another node {sentence}"):
            mesh.invite("wide", may, by=gpu)
    with pytest.raises(NotAuthorised, match=r"ends in 1\.0 days"):
        mesh.invite("long", ["job:claim:acme."], by=gpu, lifetime_s=2 * 86_400)


@pytest.mark.req("LW-25")
def test_what_the_inviter_must_put_on_record_its_guests_must(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER, audit=True))
    with pytest.raises(NotAuthorised):
        mesh.invite("helper", ["job:claim:acme."], by=gpu)
    assert mesh.invite("helper", ["job:claim:acme."], by=gpu, audit=True)


def test_a_revoked_or_expired_node_invites_nobody(mesh: Mesh):
    gpu = mesh.join(mesh.invite("gpu", INVITER, lifetime_s=3600))
    token = mesh.invite("helper", ["job:claim:acme."], by=gpu, valid_ms=10_000_000)
    mesh.clock.advance(3601)
    with pytest.raises(NotAuthorised):
        mesh.invite("other", ["job:claim:acme."], by=gpu)
    # Nor does an invitation outlive the authority behind it.
    with pytest.raises(NotAuthorised, match="no longer"):
        mesh.join(token, "helper", by=gpu)


def test_delegations_last_from_the_joining_on(mesh: Mesh):
    token = mesh.invite(lifetime_s=1000)
    mesh.clock.advance(600)
    gpu = mesh.join(token)
    assert mesh.member("gpu").expires == int(mesh.clock.now) + 1000
    mesh.clock.advance(1001)
    assert mesh.member("gpu").standing == "suspended"
    assert mesh.owner.log.authority().standing(gpu.log.node, mesh.owner.log.physical()) is Standing.SUSPENDED


# One node, once.


def test_an_invitation_is_used_once(mesh: Mesh):
    token = mesh.invite()
    mesh.join(token)
    before = ops(mesh.owner)
    with pytest.raises(Conflict, match="another node has already used"):
        mesh.join(token, "second")
    assert ops(mesh.owner) == before
    assert not Home(mesh.directory / "second").is_complete()


def test_asking_again_with_the_same_key_gives_the_same_answer(mesh: Mesh):
    """As when the answer was lost on the way: the node's key is there, nothing else is."""
    token = mesh.invite()

    def lost(address: str, request: Request) -> Reply:
        mesh.answer(request)
        raise Unreachable("the line went dead")

    with pytest.raises(Unreachable, match=r"line went dead.*Join again with the same token"):
        join(mesh.directory / "gpu", token, lost)
    key = (mesh.directory / "gpu" / "node.key").read_text()
    before = ops(mesh.owner)
    mesh.clock.advance(7200)
    gpu = mesh.join(token)
    assert gpu.home.node_key().seed.hex() in key and ops(mesh.owner) == before
    assert mesh.member("gpu").standing == "pending"


@pytest.mark.parametrize("kept", [("node.key",), ("node.key", "user.did"), ("node.key", "user.did", "log.db")])
def test_a_join_that_was_killed_anywhere_is_repeated(mesh: Mesh, kept: tuple[str, ...]):
    token = mesh.invite()
    gpu = mesh.join(token)
    gpu.close()
    mesh.runtimes.remove(gpu)
    for path in gpu.home.path.iterdir():
        if path.is_file() and path.name not in kept:
            path.unlink()
    with pytest.raises(Usage, match="has not joined yet; run `hocket mesh join`"):
        Home(gpu.home.path).check()
    with pytest.raises(Conflict, match="has begun to join"):
        Runtime.init(gpu.home.path)
    again = mesh.join(token)
    assert again.log.node == gpu.log.node
    assert ops(again) == 2
    exchange(again, mesh.owner)
    assert mesh.member("gpu").standing == "active"


def test_joining_again_with_everything_done_changes_nothing(mesh: Mesh):
    token = mesh.invite()
    gpu = mesh.join(token)
    before = ops(gpu), ops(mesh.owner)
    mesh.join(token)
    assert (ops(gpu), ops(mesh.owner)) == before


def test_a_further_invitation_by_the_same_name_adds_to_what_a_node_may(mesh: Mesh):
    gpu = mesh.join(mesh.invite(lifetime_s=3600))
    exchange(mesh.join(mesh.invite("gpu", ["job:claim:more."], lifetime_s=7200)), mesh.owner)
    mesh.clock.advance(3601)
    member = mesh.member("gpu")
    assert member.node == gpu.log.node and member.standing == "active"
    assert [each.caveats for each in member.capabilities if each.action == "Claim"] == [{"kind_prefix": ["more."]}]


@pytest.mark.parametrize("wait", [3_601, 40 * 86_400])
def test_an_invitation_expires(mesh: Mesh, wait: int):
    token = mesh.invite()
    mesh.clock.advance(wait)
    with pytest.raises(NotAuthorised, match="has expired; ask for a new one"):
        mesh.join(token)
    assert mesh.member(node_text(mesh.owner.log.node)).is_here
    with pytest.raises(Usage, match="no node 'gpu'"):
        mesh.member("gpu")


def test_a_cancelled_invitation(mesh: Mesh):
    token = mesh.invite()
    with pytest.raises(Conflict, match="already invited"):
        mesh.invite()
    enrolment.cancel(mesh.owner.log, "gpu")
    with pytest.raises(NotAuthorised, match="was cancelled"):
        mesh.join(token)
    with pytest.raises(Usage, match="no open invitation for 'gpu'"):
        enrolment.cancel(mesh.owner.log, "gpu")
    mesh.join(mesh.invite(), "other")


def test_a_node_that_was_let_in_and_revoked_is_not_let_in_again_by_its_old_token(mesh: Mesh):
    from hocket.mesh import membership

    token = mesh.invite()
    gpu = mesh.join(token)
    membership.revoke(mesh.owner.log, "gpu")
    with pytest.raises(NotAuthorised, match="later revoked"):
        mesh.join(token)
    assert gpu.home.is_complete()


def test_many_at_once_with_one_token(mesh: Mesh):
    ticket = tickets.parse_token(mesh.invite())
    bodies = [tickets.make_request(ticket, SigningKey(os.urandom(32)), None) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda body: mesh.answer(Request("POST", enrolment.JOIN, body=body)), bodies))
    assert sorted(reply.status for reply in replies) == [200] + [410] * 7
    with mesh.owner.read() as session:
        assert len(session.delegations()) == 2


# What is not let in.


@pytest.mark.parametrize("text", ["", "hello", "hocket-1-", "hocket-2-abc", "hocket-1-" + "A" * 5000])
def test_what_is_no_token(mesh: Mesh, text: str):
    with pytest.raises(Usage, match="bad invitation"):
        mesh.join(text)
    assert not (mesh.directory / "gpu").exists()


def test_a_cut_token_is_told_from_an_expired_one(mesh: Mesh):
    token = mesh.invite()
    for cut in (token[:-1], token[:-20], token[:40], token + "A", token[:50] + token[51:]):
        with pytest.raises(Usage, match="copy the whole token again"):
            mesh.join(cut)
    assert not mesh.asked


@pytest.mark.req("LW-24")
def test_a_forged_request_is_refused_and_learns_nothing(mesh: Mesh):
    ticket = tickets.parse_token(mesh.invite())
    before = ops(mesh.owner)
    stranger = SigningKey(os.urandom(32))
    guesses = [
        tickets.make_request(msgspec.structs.replace(ticket, secret=os.urandom(16)), stranger, None),
        msgspec.json.encode(
            msgspec.json.decode(tickets.make_request(ticket, stranger, None)) | {"mac": bytes(32).hex()}
        ),
        b"",
        b"{}",
        b"\xff" * 100,
        b"[" * 100_000,
    ]
    replies = [mesh.answer(Request("POST", enrolment.JOIN, body=body)) for body in guesses]
    assert {status(reply) for reply in replies} == {(403, "unknown")}
    assert len({reply.body for reply in replies}) == 1
    too_long = mesh.answer(Request("POST", enrolment.JOIN, body=b" " * (tickets.MESSAGE_BYTES_MAX + 1)))
    assert too_long.status == 413
    assert ops(mesh.owner) == before


def test_two_nodes_with_one_key(mesh: Mesh):
    """A second machine with a copy of a node's key would be taken for the first."""
    gpu = mesh.join(mesh.invite())
    (mesh.directory / "clone").mkdir()
    (mesh.directory / "clone" / "node.key").write_text((gpu.home.path / "node.key").read_text())
    before = ops(mesh.owner)
    with pytest.raises(Conflict, match="a node with this home's key is already in the mesh"):
        mesh.join(mesh.invite("clone"), "clone")
    (mesh.directory / "owners").mkdir()
    (mesh.directory / "owners" / "node.key").write_text((mesh.owner.home.path / "node.key").read_text())
    with pytest.raises(Conflict, match="a node with this home's key is already in the mesh"):
        mesh.join(mesh.invite("owners"), "owners")
    assert ops(mesh.owner) == before


def test_two_nodes_with_one_name(mesh: Mesh):
    mesh.join(mesh.invite())
    token = mesh.invite("gpu")
    with pytest.raises(Conflict, match="another node already has this name"):
        mesh.join(token, "reinstalled")
    enrolment.cancel(mesh.owner.log, "gpu")
    renamed = mesh.join(mesh.invite("gpu-2"), "reinstalled")
    assert mesh.member("gpu-2").node == renamed.log.node


def test_the_right_to_let_others_in_is_not_handed_out_unasked(mesh: Mesh):
    gpu = mesh.join(mesh.invite())
    with pytest.raises(NotAuthorised, match="registration:write"):
        mesh.invite("helper", ["job:claim:acme."], by=gpu)
    # Granted by a second invitation, it counts for what the first one gave.
    mesh.clock.advance(1)
    mesh.join(mesh.invite("gpu", ["registration:write"]))
    exchange(gpu, mesh.owner)
    helper = mesh.join(mesh.invite("helper", ["job:claim:acme."], by=gpu), "helper", by=gpu)
    exchange(helper, mesh.owner)
    chain = mesh.owner.log.authority().may(helper.log.node, "Job", "Claim", "acme.x", helper.log.physical())
    assert chain is not None and [each.node for each in chain[1:]] == [gpu.log.node, helper.log.node]


def test_a_node_can_be_given_only_so_many_delegations(mesh: Mesh, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(enrolment, "DELEGATIONS_MAX", 3)
    for _ in range(3):
        mesh.join(mesh.invite())
        mesh.clock.advance(1)
    with pytest.raises(Conflict, match="gpu already holds 3 delegations; revoke it"):
        mesh.invite()
    # Neither does an invitation that was made before it held so many.
    monkeypatch.setattr(enrolment, "DELEGATIONS_MAX", 4)
    token = mesh.invite()
    monkeypatch.setattr(enrolment, "DELEGATIONS_MAX", 3)
    with pytest.raises(Conflict, match="the most delegations that a node may"):
        mesh.join(token)


@pytest.mark.parametrize(
    "wrong",
    [
        {"valid_ms": 0},
        {"valid_ms": enrolment.VALID_MS_MAX + 1},
        {"lifetime_s": 0},
        {"lifetime_s": -5},
    ],
)
def test_impossible_terms(mesh: Mesh, wrong: dict[str, int]):
    with pytest.raises(Usage):
        mesh.invite(**wrong)


def test_more_than_a_token_can_hold(mesh: Mesh):
    with pytest.raises(Usage, match="cannot grant that"):
        mesh.invite("gpu", [f"job:claim:{'x' * 250}{n}" for n in range(80)])


# What the joining side believes.


class Impostor:
    """Answers in the inviting node's place, with whatever it can make."""

    def __init__(self, mesh: Mesh, token: str) -> None:
        self.mesh, self.ticket = mesh, tickets.parse_token(token)

    def answers(self, **changes: object) -> enrolment.Send:
        def send(address: str, request: Request) -> Reply:
            real = self.mesh.answer(request)
            asked = tickets.read_request(request.body)
            welcome = tickets.read_answer(self.ticket, asked.public, real.body)
            made = msgspec.structs.replace(welcome, **{k: v(welcome) for k, v in changes.items()})  # type: ignore[operator]
            return Reply(200, {}, tickets.make_answer(tickets.key_of(self.ticket.secret), asked.public, made))

        return send


def forged(mesh: Mesh, issuer: SigningKey, node: bytes, *, proofs: tuple[bytes, ...] = (), wide: bool = False) -> str:
    att = ROOT if wide else (Capability("Job", "Claim", {"kind_prefix": ["acme."]}),)
    return issue(issuer, node, att, int(mesh.clock.now), None, proofs).decode()


@pytest.mark.req("LW-24")
@pytest.mark.parametrize("how", ["widened", "circular", "no chain", "other node", "cut", "another user", "not issued"])
def test_an_answer_that_does_not_hold(mesh: Mesh, how: str):
    """The one who answers knows the secret, and still cannot give what does not lead back to the user."""
    token = mesh.invite()
    impostor = Impostor(mesh, token)
    home = mesh.directory / "gpu"
    key = mesh.owner.home.node_key()

    def node(_: tickets.Welcome) -> bytes:
        return Home(home).node_key().public

    def root(welcome: tickets.Welcome) -> bytes:
        return content_hash(welcome.chain[0].encode())

    changes: dict[str, dict[str, object]] = {
        "widened": {
            "chain": lambda w: (
                (
                    *w.chain,
                    weak := forged(mesh, key, key.public, proofs=(root(w),)),
                )
                and (w.chain[0], weak)
            ),
            "ucan": lambda w: forged(
                mesh,
                key,
                node(w),
                proofs=(content_hash(forged(mesh, key, key.public, proofs=(root(w),)).encode()),),
                wide=True,
            ),
        },
        "circular": {"ucan": lambda w: forged(mesh, key, node(w), proofs=(b"\1" * 32,)), "chain": lambda w: ()},
        "no chain": {"chain": lambda w: ()},
        "other node": {"ucan": lambda w: forged(mesh, key, bytes(range(32)), proofs=(root(w),))},
        "cut": {"ucan": lambda w: w.ucan[:-5]},
        "another user": {
            "ucan": lambda w: forged(mesh, SigningKey(b"x" * 32), node(w)),
            "chain": lambda w: (),
        },
        "not issued": {"ucan": lambda w: w.chain[0]},
    }
    with pytest.raises(NotAuthorised):
        join(home, token, impostor.answers(**changes[how]))
    assert not Home(home).is_complete() and not (home / "log.db").exists() and not (home / "user.did").exists()
    # The real one still can.
    mesh.join(token)


def test_an_answer_of_somebody_else(mesh: Mesh):
    token = mesh.invite()
    other = tickets.Welcome("x", (), "", 0)

    def send(address: str, request: Request) -> Reply:
        public = tickets.read_request(request.body).public
        return Reply(200, {}, tickets.make_answer(os.urandom(32), public, other))

    with pytest.raises(NotAuthorised, match="not from the node that made the invitation"):
        join(mesh.directory / "gpu", token, send)
    for reply in (Reply(200, {}, b"<html>"), Reply(404, {}, b"not found"), Reply(403, {}, b"")):
        with pytest.raises(NotAuthorised):
            join(mesh.directory / "gpu", token, lambda _, __, reply=reply: reply)
    mesh.join(token)


def test_clocks_too_far_apart_are_said_before_anything_is_written(mesh: Mesh):
    token = mesh.invite()
    mesh.clock.advance(3000)
    with pytest.raises(Failed, match=r"clock.*seconds apart; correct them"):
        join(mesh.directory / "gpu", token, mesh.send)
    assert not (mesh.directory / "gpu" / "log.db").exists()


def test_nobody_answers(mesh: Mesh):
    token = mesh.invite()

    def silent(address: str, request: Request) -> Reply:
        raise Unreachable(f"{address} cannot be reached: connection refused")

    with pytest.raises(Unreachable, match=r"http://owner:7315 cannot be reached.*mesh serve.*Join again") as caught:
        join(mesh.directory / "gpu", token, silent)
    assert caught.value.exit_code == 5
    with pytest.raises(Unreachable, match="answered with status 503"):
        join(mesh.directory / "gpu", token, lambda *_: Reply(503))
    mesh.join(token)


def test_every_address_is_tried(mesh: Mesh):
    made = enrolment.invite(
        mesh.owner.log,
        mesh.owner.home.node_key(),
        "gpu",
        ROOT,
        addresses=["http://gone:1", "http://owner:2"],
    )

    def send(address: str, request: Request) -> Reply:
        if "gone" in address:
            raise Unreachable("gone")
        return mesh.answer(request)

    with join(mesh.directory / "gpu", made.token, send) as runtime, runtime.read() as session:
        assert [peer.address for peer in session.peers()] == ["http://owner:2"]
    with pytest.raises(Usage, match="1 to 8 addresses"):
        enrolment.invite(mesh.owner.log, mesh.owner.home.node_key(), "x", ROOT, addresses=[])


# Homes that are taken.


def test_a_home_that_is_somebodys(mesh: Mesh, tmp_path: Path):
    token = mesh.invite()
    Runtime.init(tmp_path / "stranger").close()
    with pytest.raises(Conflict, match="belongs to another user"):
        mesh.join(token, "stranger")
    with pytest.raises(Conflict, match="is the owner's"):
        mesh.join(token, "owner")
    half = Home(tmp_path / "half")
    half.path.mkdir()
    half.put_user_key(SigningKey(os.urandom(32)), None)
    with pytest.raises(Conflict, match="belongs to another user"):
        mesh.join(token, "half")
    assert not mesh.asked


def test_a_home_that_began_to_join_another_mesh(mesh: Mesh, tmp_path: Path):
    other = Mesh(tmp_path / "others")
    home = mesh.directory / "gpu"
    gpu = Home(home)
    with gpu.creation():
        gpu.ensure_node_key()
        gpu.note_user(other.owner.log.user)
    (home / "complete").unlink()
    with pytest.raises(Conflict, match="belongs to another user"):
        mesh.join(mesh.invite())
    other.close()


@pytest.mark.req("LW-26")
def test_a_joiner_whose_clock_is_behind_writes_nothing_older_than_its_delegation(mesh: Mesh):
    token = mesh.invite()
    mesh.clock.advance(200)
    gpu = mesh.join(token)
    with gpu.read() as session:
        assert session.head().wall >= int(mesh.clock.now - 1) * 1000
        assert {row.reason for row in session.ops_after(0, 10)} == {0}
    exchange(gpu, mesh.owner)
    with mesh.owner.read() as session:
        assert session.refusal_counts() == {}
        assert all(row.reason == 0 for row in session.ops_of_author(gpu.log.node.to_bytes(8, "big"), bytes(20), 10))


@pytest.mark.req("LW-23", "LW-26")
def test_a_node_may_write_what_it_was_granted_and_nothing_else_counts(mesh: Mesh):
    from hocket.kernel.vocabulary import RouteKind

    phone = mesh.join(mesh.invite("phone", ["job:schedule:acme."]), "phone")
    job = phone.log.append_plain("acme.render", b"{}")
    with pytest.raises(NotAuthorised):
        phone.log.append_plain("other.kind", b"{}")
    assert phone.log.run(lambda tx: tx.author(RouteKind("acme.render", phone.log.node))) is Reason.OWNER_ONLY
    exchange(phone, mesh.owner)
    with mesh.owner.read() as session:
        assert session.job(job) is not None


def test_the_invitation_keeps_no_secret(mesh: Mesh):
    ticket = tickets.parse_token(mesh.invite())
    mesh.clock.advance(1)
    mesh.join(mesh.invite("second"), "second")
    data = b"".join(path.read_bytes() for path in mesh.owner.home.path.glob("log.db*"))
    assert ticket.secret not in data
    with mesh.owner.read() as session:
        assert [each.name for each in session.invitations()] == ["gpu", "second"]
        assert [each.used_by is None for each in session.invitations()] == [True, False]
