"""Delegations that somebody made up. Whoever comes with one writes nothing that counts, the reason is on record, and
what the mesh holds is as before.
"""

import io
import os
from collections.abc import Callable, Iterator

import pytest

from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Standing
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.jws import detached
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import NO_ID, Op, decode, unsigned, with_signature
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import DelegateUcan, RouteKind, ScheduleJob
from hocket.log import Log
from hocket.log.copies import export_ops, import_ops
from hocket.mesh import membership
from hocket.node.runtime import Runtime
from hocket.store import MEMORY
from hocket.store import open as open_store

from .people import Mesh, exchange

SCHEDULE = (Capability("Job", "Schedule", {"kind_prefix": ["acme."]}),)


class Rogue:
    """A node whose software asks nobody. It signs with its own key whatever it likes."""

    def __init__(self, mesh: Mesh, key: SigningKey | None = None) -> None:
        self.key = key or SigningKey(os.urandom(32))
        self.store = open_store(MEMORY)
        self.log = Log(self.store, self.key, mesh.owner.log.user, wall=mesh.clock, randomness=os.urandom)

    def follow(self, runtime: Runtime) -> "Rogue":
        """Takes over the history of the node whose key it has."""
        file = io.BytesIO()
        export_ops(runtime.log, file)
        file.seek(0)
        import_ops(self.log, file)
        return self

    def says(self, *payloads: DelegateUcan | ScheduleJob | RouteKind) -> list[bytes]:
        """The ids of the ops."""
        return [self.log.run(lambda tx, payload=payload: self._author(tx, payload)) for payload in payloads]  # type: ignore[misc]

    def _author(self, tx: object, payload: object) -> bytes:
        tx.projection.permissions.refusal = lambda *_: None  # type: ignore[attr-defined]
        return tx.author(payload).id  # type: ignore[attr-defined,no-any-return]

    def tells(self, runtime: Runtime) -> dict[Reason, int]:
        """Sends all that it has; gives what was turned away at the door."""
        file = io.BytesIO()
        export_ops(self.log, file)
        file.seek(0)
        return import_ops(runtime.log, file).refused


def job(kind: str = "acme.render") -> ScheduleJob:
    return ScheduleJob(NO_ID, kind, b"{}", b"")


def said(token: bytes) -> DelegateUcan:
    return DelegateUcan(content_hash(token), token)


@pytest.fixture
def gpu(mesh: Mesh) -> Iterator[Runtime]:
    """An invited node, known to the owner, that may schedule acme jobs and let others in."""
    runtime = mesh.join(mesh.invite("gpu", ["job:schedule:acme.", "registration:write"]))
    exchange(runtime, mesh.owner)
    yield runtime


def own(mesh: Mesh, runtime: Runtime) -> bytes:
    return mesh.owner.log.authority().held(runtime.log.node)[0].cid


Make = Callable[[Mesh, Runtime, Rogue], bytes]

MADE_UP: dict[str, tuple[Make, set[Reason]]] = {
    "by itself": (lambda m, g, r: issue(r.key, r.key.public, ROOT, 0, None), {Reason.FOREIGN_USER}),
    "widened in what": (
        lambda m, g, r: issue(g.home.node_key(), r.key.public, ROOT, int(m.clock.now), None, [own(m, g)]),
        {Reason.WIDENED},
    ),
    "widened in kinds": (
        lambda m, g, r: issue(
            g.home.node_key(),
            r.key.public,
            (Capability("Job", "Schedule", {"kind_prefix": ["ac"]}),),
            int(m.clock.now),
            None,
            [own(m, g)],
        ),
        {Reason.WIDENED},
    ),
    "widened in time": (
        lambda m, g, r: issue(g.home.node_key(), r.key.public, SCHEDULE, 1, None, [own(m, g)]),
        {Reason.WIDENED},
    ),
    "by one who was not given it": (
        lambda m, g, r: issue(r.key, r.key.public, SCHEDULE, int(m.clock.now), None, [own(m, g)]),
        {Reason.UNAUTHORISED},
    ),
    "leaning on nothing": (
        lambda m, g, r: issue(g.home.node_key(), r.key.public, SCHEDULE, int(m.clock.now), None, [b"\1" * 32]),
        {Reason.UNRESOLVED},
    ),
    "another user's": (
        lambda m, g, r: issue(SigningKey(b"u" * 32), r.key.public, ROOT, int(m.clock.now), None),
        {Reason.FOREIGN_USER},
    ),
}


@pytest.mark.req("LW-24", "LW-26")
@pytest.mark.parametrize("how", MADE_UP)
def test_a_delegation_that_does_not_stand_lets_nobody_in(mesh: Mesh, gpu: Runtime, how: str):
    make, reasons = MADE_UP[how]
    rogue = Rogue(mesh)
    wanted = rogue.says(said(make(mesh, gpu, rogue)), job())[-1]
    before = roll_of(mesh)
    refused = rogue.tells(mesh.owner)
    assert refused and set(refused) <= reasons | {Reason.UNKNOWN_NODE}, refused
    assert set(refused) & reasons
    assert_nothing(mesh, wanted, before)


@pytest.mark.req("LW-24", "LW-26")
def test_one_who_may_not_pass_on_lets_nobody_in(mesh: Mesh):
    """Seen: every worker could delegate what it held, whatever its invitation said."""
    plain = mesh.join(mesh.invite("plain", ["job:schedule:acme."]), "plain")
    exchange(plain, mesh.owner)
    rogue = Rogue(mesh)
    token = issue(plain.home.node_key(), rogue.key.public, SCHEDULE, int(mesh.clock.now), None, [own(mesh, plain)])
    wanted = rogue.says(said(token), job())[-1]
    before = roll_of(mesh)
    assert rogue.tells(mesh.owner) == {Reason.UNAUTHORISED: 1, Reason.UNKNOWN_NODE: 1}
    assert_nothing(mesh, wanted, before)
    # Nor does it help to let the node say it that is known.
    assert plain.log.run(lambda tx: tx.author(said(token))) is not None
    exchange(plain, mesh.owner)
    assert_nothing(mesh, wanted, before)


def roll_of(mesh: Mesh) -> list[tuple[int, str]]:
    with mesh.owner.read() as session:
        return [(each.node, each.standing) for each in membership.members(mesh.owner.log, session)]


def assert_nothing(mesh: Mesh, wanted: bytes, before: list[tuple[int, str]]) -> None:
    with mesh.owner.read() as session:
        assert session.job(wanted) is None
        assert session.refusal_counts()
    assert roll_of(mesh) == before


@pytest.mark.req("LW-24")
def test_two_that_lean_on_each_other(mesh: Mesh, gpu: Runtime):
    """A circle would need a hash that is known before its text; the nearest thing to one never touches the user."""
    one, two = Rogue(mesh), Rogue(mesh)
    now = int(mesh.clock.now)
    first = issue(two.key, one.key.public, SCHEDULE, now, None, [b"\2" * 32])
    second = issue(one.key, two.key.public, SCHEDULE, now, None, [content_hash(first)])
    third = issue(two.key, one.key.public, SCHEDULE, now, None, [content_hash(second)])
    wanted = one.says(said(first), said(second), said(third), job())[-1]
    before = roll_of(mesh)
    assert set(one.tells(mesh.owner)) <= {Reason.UNRESOLVED, Reason.UNKNOWN_NODE}
    assert_nothing(mesh, wanted, before)


@pytest.mark.req("LW-23", "LW-24")
def test_a_delegation_that_was_cut_or_altered(mesh: Mesh, gpu: Runtime):
    rogue = Rogue(mesh)
    good = issue(gpu.home.node_key(), rogue.key.public, SCHEDULE, int(mesh.clock.now), None, [own(mesh, gpu)])
    head, payload, signature = good.split(b".")
    before = roll_of(mesh)
    for bad in (
        good[:-1],
        good[: len(good) // 2],
        b"",
        b".".join([head, payload, signature[::-1]]),
        b".".join([head, payload[:-4] + b"AAAA", signature]),
        b".".join([payload, head, signature]),
    ):
        assert_refused(mesh, rogue.key, said(bad))
    # The right bytes under another name.
    assert_refused(mesh, rogue.key, DelegateUcan(b"\3" * 32, good))
    assert roll_of(mesh) == before
    # As it is, it is good.
    rogue.says(said(good))
    assert rogue.tells(mesh.owner) == {} and len(roll_of(mesh)) == len(before) + 1


def assert_refused(mesh: Mesh, key: SigningKey, payload: DelegateUcan) -> None:
    """An op that is signed as it should be, with bytes that no log of ours would write."""
    node = node_id(key.public)
    op = Op(os.urandom(16), Hlc(int(mesh.clock.now * 1000), 0, node), node, (), payload)
    body = unsigned(op)
    whole = with_signature(body, detached(key.sign(body + b"\0"), node))
    assert mesh.owner.log.admit([(whole, decode(whole))]).refused == {Reason.MALFORMED: 1}


@pytest.mark.req("LW-23")
def test_a_delegation_of_somebody_else_is_no_introduction(mesh: Mesh, gpu: Runtime):
    """Tokens are on the log for all to see; saying one again gives nothing to whoever says it."""
    rogue = Rogue(mesh)
    with gpu.read() as session:
        token = session.delegations()[0].token
    wanted = rogue.says(said(token), job())[-1]
    before = roll_of(mesh)
    assert set(rogue.tells(mesh.owner)) == {Reason.UNKNOWN_NODE}
    assert_nothing(mesh, wanted, before)


@pytest.mark.req("LW-27")
def test_a_revoked_delegation_said_again_stays_revoked(mesh: Mesh, gpu: Runtime):
    membership.revoke(mesh.owner.log, "gpu")
    rogue = Rogue(mesh, gpu.home.node_key())
    with gpu.read() as session:
        tokens = [each.token for each in session.delegations()]
    mesh.clock.advance(10)
    wanted = rogue.says(*map(said, tokens), job())[-1]
    rogue.tells(mesh.owner)
    with mesh.owner.read() as session:
        assert session.job(wanted) is None
    assert mesh.member("gpu").standing == "revoked"


@pytest.mark.req("LW-26")
def test_an_expired_delegation_allows_only_what_was_written_in_its_time(mesh: Mesh):
    runtime = mesh.join(mesh.invite("gpu", ["job:schedule:acme."], lifetime_s=100))
    rogue = Rogue(mesh, runtime.home.node_key())
    with runtime.read() as session:
        tokens = [each.token for each in session.delegations()]
    early = rogue.says(*map(said, tokens), job())[-1]
    mesh.clock.advance(101)
    (late,) = rogue.says(job())
    rogue.tells(mesh.owner)
    with mesh.owner.read() as session:
        assert session.job(early) is not None
        assert session.job(late) is None
    standing = mesh.owner.log.authority().standing(runtime.log.node, mesh.owner.log.physical())
    assert standing is Standing.SUSPENDED


@pytest.mark.req("LW-26")
def test_what_goes_beyond_a_grant_is_logged_and_does_not_count(mesh: Mesh, gpu: Runtime):
    rogue = Rogue(mesh, gpu.home.node_key()).follow(gpu)
    mesh.clock.advance(1)
    outside, inside, _ = rogue.says(
        job("other.kind"), job("acme.render"), RouteKind("acme.render", node_id(rogue.key.public))
    )
    assert rogue.tells(mesh.owner) == {}
    with mesh.owner.read() as session:
        assert session.job(outside) is None and session.job(inside) is not None
        assert membership.route_of(session, "acme.render") is None
        counts = session.refusal_counts()
    assert counts[Reason.UNAUTHORISED] == 1 and counts[Reason.OWNER_ONLY] == 1
