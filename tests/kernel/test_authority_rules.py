"""The rules of authority one by one, by hand: what a delegation may hand down, and what each caveat asks of an op."""

from typing import Any

import pytest
from msgspec.structs import replace

from hocket.families.availability.facts import SetAvailability
from hocket.families.kinds.facts import DefineKind
from hocket.families.locks.facts import AcquireLocks, BreakLock, LockMode, RenewLocks
from hocket.families.retention.facts import SetRetention
from hocket.kernel import capabilities
from hocket.kernel import vocabulary as v
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority, Standing, counting_revocations
from hocket.kernel.capabilities import CHAIN_MAX, READERS, sharing
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.mesh_rules import STRICT
from hocket.kernel.sanitise import parse_rule
from hocket.kernel.ucan import ROOT, Capability, Delegation, issue, read
from hocket.kernel.vocabulary import JUDGED
from tests.kernel import naive_authority as naive
from tests.kernel.naive_authority import ID, PLACE, USER, cid, did, payloads


def made(
    number: int, issuer: str, node: int, *granted: Capability, nbf: int = 0, exp: int | None = None, prf: Any = ()
) -> Delegation:
    return Delegation(cid(number), issuer, did(node), granted, nbf, exp, tuple(map(cid, prf)), node, bytes(32))


def job(action: str, **caveats: Any) -> Capability:
    return Capability("Job", action, caveats)


PASS_ON = Capability("Registration", "Write", {})
CLAIM = v.ClaimWork(ID, 2, 1000)
OWNER = made(1, USER, 1, *ROOT)


def refusal(granted: Capability, payload: v.Payload = CLAIM, kind: str | None = None, at: int = 5) -> Reason | None:
    worker = made(2, did(1), 2, granted, prf=[1])
    return Authority(USER, [OWNER, worker], ()).refusal(2, payload, at, kind)


@pytest.mark.req("LW-24")
def test_the_caveats_are_those_of_the_rules() -> None:
    assert tuple(READERS) == (*STRICT.caveats, "key_prefix", "scopes"), "the last two are ours"
    for rule in STRICT.sanitize:
        assert parse_rule("TruncateContent(9)" if rule == "TruncateContent" else rule).name == rule


@pytest.mark.req("LW-26")
def test_every_payload_has_its_place() -> None:
    judged = {type(op) for op in payloads("a")}
    assert judged == {codec.cls for codec in v.VARIANTS.values()}
    for op in payloads("a"):
        inner = op.payload if isinstance(op, v.Sanitised) else op
        resource, action = PLACE[type(inner).__name__]
        need = JUDGED[type(inner)]
        assert need.action == (action or None) and (not action or need.resource == resource)


@pytest.mark.req("LW-24")
def test_a_root_delegation_is_the_users_and_needs_no_proof() -> None:
    authority = Authority(USER, [OWNER, made(2, naive.FOREIGN, 2, *ROOT), made(3, did(1), 3, *ROOT)], ())
    assert authority.fault(OWNER) is None
    assert authority.fault(made(2, naive.FOREIGN, 2, *ROOT)) is Reason.FOREIGN_USER
    assert authority.fault(made(3, did(1), 3, *ROOT)) is Reason.FOREIGN_USER
    assert [authority.is_owner(node, 5) for node in (1, 2, 3)] == [True, False, False]


@pytest.mark.req("LW-24")
def test_real_tokens_make_a_chain() -> None:
    user, first, second, third = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
    root = read(issue(user, first.public, ROOT, 0, None))
    child = read(issue(first, second.public, [job("Claim", kind_prefix=["a."]), PASS_ON], 10, 100, [root.cid], "box"))
    last = read(issue(second, third.public, [job("Claim", kind_prefix=["a.b."])], 10, 50, [child.cid]))
    authority = Authority(did_key(user.public), [last, child, root], ())
    assert [authority.fault(d) for d in (root, child, last)] == [None, None, None]
    assert authority.may(last.node, "Job", "Claim", "a.b.c", 20_000) == [root, child, last]
    assert authority.refusal(last.node, CLAIM, 20_000, "a.b.c") is None
    assert authority.refusal(last.node, CLAIM, 20_000, "a.c") is Reason.UNAUTHORISED
    assert authority.refusal(last.node, CLAIM, 9_999, "a.b.c") is Reason.UNAUTHORISED
    assert authority.refusal(last.node, CLAIM, 10_000, "a.b.c") is None
    assert authority.refusal(last.node, CLAIM, 50_000, "a.b.c") is Reason.UNAUTHORISED


@pytest.mark.req("LW-24")
@pytest.mark.parametrize("length", [CHAIN_MAX, CHAIN_MAX + 1, 5000])
def test_chains_are_bounded_and_no_length_breaks_them(length: int) -> None:
    chain = [OWNER] + [made(n, did(n - 1), n, *ROOT, prf=[n - 1]) for n in range(2, length + 1)]
    authority = Authority(USER, reversed(chain), ())
    faults = [authority.fault(d) for d in chain]
    assert faults[:CHAIN_MAX] == [None] * CHAIN_MAX
    assert set(faults[CHAIN_MAX:]) <= {Reason.UNRESOLVED}
    assert len(authority.may(CHAIN_MAX, "Job", "Claim", None, 5) or ()) == CHAIN_MAX
    assert authority.may_revoke(1, chain[-1].cid, 5)
    revoked = Authority(USER, chain, [OWNER.cid])
    assert {revoked.fault(d) for d in chain[:CHAIN_MAX]} == {Reason.REVOKED}


@pytest.mark.req("LW-24")
def test_circles_and_cut_chains_are_unresolved() -> None:
    circle = [made(2, did(3), 2, *ROOT, prf=[3]), made(3, did(2), 3, *ROOT, prf=[2]), made(4, did(4), 4, prf=[4])]
    cut = [made(5, did(1), 5, *ROOT, prf=[1, 9]), made(6, did(5), 6, *ROOT, prf=[5])]
    authority = Authority(USER, [OWNER, *circle, *cut], ())
    for delegation in circle + cut:
        assert authority.fault(delegation) is Reason.UNRESOLVED
        assert authority.standing(delegation.node, 5) is Standing.UNKNOWN
    assert authority.refusal(6, CLAIM, 5, None) is Reason.UNRESOLVED
    healed = Authority(USER, [OWNER, *cut, made(9, USER, 1, *ROOT)], ())
    assert healed.refusal(6, CLAIM, 5, None) is None


@pytest.mark.req("LW-24")
def test_a_wide_graph_is_built_in_time() -> None:
    layers = [[made(n, USER, 1, *ROOT) for n in range(1, 17)]]
    for depth in range(1, CHAIN_MAX):
        first = 100 * depth
        layers.append(
            [
                made(first + n, did(1), 1, *ROOT, prf=[int.from_bytes(d.cid, "big") for d in layers[-1]])
                for n in range(16)
            ]
        )
    graph = [d for layer in layers for d in layer]
    authority = Authority(USER, graph, [graph[0].cid])
    assert authority.fault(graph[-1]) is Reason.REVOKED
    assert authority.may(1, "Job", "Claim", None, 5) is not None


@pytest.mark.req("LW-24")
@pytest.mark.parametrize(
    ("parent", "child", "stands"),
    [
        (Capability("Ops", "*", {}), Capability("Mesh", "Write", {}), True),
        (Capability("Ops", "Write", {}), Capability("Evidence", "Write", {}), True),
        (Capability("Ops", "Write", {}), Capability("Evidence", "Read", {}), False),
        (Capability("Ops", "Write", {}), Capability("Evidence", "*", {}), False),
        (Capability("Ops", "Write", {}), job("Schedule"), True),
        (Capability("Ops", "Write", {}), job("Claim"), True),
        (Capability("Ops", "Write", {}), job("Complete"), True),
        (Capability("Ops", "Write", {}), job("Read"), False),
        (Capability("Ops", "Read", {}), job("Claim"), False),
        (Capability("Evidence", "Write", {}), Capability("Ops", "Write", {}), False),
        (job("*"), job("Claim"), True),
        (job("*"), Capability("Claim", "Write", {}), False),
        (job("Claim"), job("Complete"), False),
        (job("Claim"), job("*"), False),
        (job("Claim", unknown=1), job("Claim"), False),
        (job("Claim"), job("Claim", unknown=1), True),
        (job("Claim"), job("Complete", unknown=1), True),
        (job("Claim", kind_prefix=7), job("Claim", kind_prefix=["a"]), False),
    ],
)
def test_a_child_is_within_its_parent(parent: Capability, child: Capability, stands: bool) -> None:
    above, below = made(1, USER, 1, parent, PASS_ON), made(2, did(1), 2, child, prf=[1])
    assert Authority(USER, [above, below], ()).fault(below) is (None if stands else Reason.WIDENED)


@pytest.mark.req("LW-24")
@pytest.mark.parametrize("new", [Capability("Moon", "Write", {}), job("Fly"), job("Claim", gravity=1)])
@pytest.mark.parametrize("held", [(), ("parent",)])
def test_what_a_newer_program_knows_grants_nothing_here_and_spoils_nothing(new: Capability, held: tuple[str]) -> None:
    """It does so whether or not the issuer holds it: that only the newer program can tell."""
    above = made(1, USER, 1, job("Claim"), PASS_ON, *(new for _ in held))
    below = made(2, did(1), 2, job("Claim", kind_prefix=["a."]), new, prf=[1])
    authority = Authority(USER, [above, below], ())
    assert authority.fault(above) is authority.fault(below) is None
    assert authority.refusal(2, CLAIM, 5, "a.b") is None
    assert authority.refusal(2, CLAIM, 5, "b") is Reason.UNAUTHORISED
    assert authority.may(2, new.resource, "Fly" if new.action == "Fly" else "Write", "b", 5) is None


@pytest.mark.req("LW-24")
def test_programs_that_know_more_and_less_agree_on_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capability of a new resource that its issuer does not hold is emptied by those who know the resource, as it is
    by those who do not; and what the issuer holds can be passed on where it is known.
    """
    moon = Capability("Moon", "Write", {})
    above = made(1, USER, 1, job("Claim"), PASS_ON)
    whole = made(3, USER, 3, *ROOT)
    children = made(2, did(1), 2, job("Claim"), moon, prf=[1]), made(4, did(3), 4, job("Claim"), moon, prf=[3])
    for knows in (False, True):
        if knows:
            monkeypatch.setattr(capabilities, "RESOURCES", capabilities.RESOURCES | {"Moon"})
        authority = Authority(USER, [above, whole, *children], ())
        assert [authority.fault(child) for child in children] == [None, None]
        assert [authority.refusal(node, CLAIM, 5, "a") for node in (2, 4)] == [None, None]
        granted = [authority.may(node, "Moon", "Write", None, 5) is not None for node in (2, 4)]
        assert granted == [False, knows]


@pytest.mark.req("LW-24", "LW-26")
@pytest.mark.parametrize(
    ("parent", "stands"),
    [
        ([job("*")], False),
        ([job("*"), Capability("Registration", "Read", {})], False),
        ([job("*"), Capability("Registration", "Write", {"x.unknown": True})], False),
        ([job("*"), Capability("Mesh", "*", {}), Capability("Ops", "Read", {})], False),
        ([job("*"), Capability("Registration", "Write", {})], True),
        ([job("*"), Capability("Registration", "*", {})], True),
        ([Capability("Ops", "Write", {})], True),
        ([Capability("Ops", "*", {})], True),
        ([job("*"), Capability("Registration", "Write", {"time_range": [2000, 9000]})], True),
        ([job("*"), Capability("Registration", "Write", {"time_range": [2001, 9000]})], False),
        ([job("*"), Capability("Registration", "Write", {"time_range": [2000, 8999]})], False),
    ],
)
@pytest.mark.parametrize("to", [1, 2])
def test_a_node_passes_on_what_it_holds_only_with_registration_write(
    parent: list[Capability], stands: bool, to: int
) -> None:
    """To itself no more than to others, or it could issue delegations without end."""
    above = made(1, USER, 1, *parent)
    below = made(2, did(1), to, job("Claim"), nbf=2, exp=9, prf=[1])
    authority = Authority(USER, [above, below], ())
    assert authority.fault(below) is (None if stands else Reason.UNAUTHORISED)
    # The user's own hand needs nobody's leave.
    assert Authority(USER, [above, made(3, USER, 2, job("Claim"), prf=[1])], ()).standing(2, 5) is Standing.ACTIVE


@pytest.mark.req("LW-24")
def test_the_right_to_pass_on_may_come_from_another_parent_and_is_passed_on_itself() -> None:
    claim, right = made(2, did(1), 2, job("Claim"), prf=[1]), made(3, did(1), 2, PASS_ON, prf=[1])
    child = made(4, did(2), 4, job("Claim"), PASS_ON, prf=[2, 3])
    last = made(5, did(4), 5, job("Claim"), prf=[4])
    authority = Authority(USER, [OWNER, claim, right, child, last], ())
    assert [authority.fault(each) for each in (child, last)] == [None, None]
    # Held beside the chain and not cited, it counts for nothing.
    uncited = made(6, did(2), 6, job("Claim"), prf=[2])
    assert Authority(USER, [OWNER, claim, right, uncited], ()).fault(uncited) is Reason.UNAUTHORISED


@pytest.mark.req("LW-25")
@pytest.mark.parametrize(
    ("caveat", "parent", "within", "beyond"),
    [
        ("source_types", ["a", "b"], [["a"], ["b", "a"], []], [None, ["c"], ["a", "c"]]),
        ("predicates", ["a", "b"], [["a"], ["b", "a"], []], [None, ["c"], ["a", "c"]]),
        ("kind_prefix", ["a.", "b"], [["a."], ["a.b", "bc"], []], [None, ["a"], ["a.", ""], ["c"]]),
        ("time_range", [10, 20], [[10, 20], [12, 15], [10, 10]], [None, [9, 20], [10, 21]]),
        ("sanitize", ["StripGeo"], [["StripGeo"], ["TruncateContent(1)", "StripGeo"]], [None, ["TruncateContent(1)"]]),
        ("sanitize", ["TruncateContent(9)"], [["TruncateContent(9)", "TruncateContent(5)"]], [["TruncateContent(5)"]]),
        ("audit_inference", True, [True], [None, False]),
        ("audit_inference", False, [True, False, None], []),
        ("sanitize", [], [None, [], ["StripGeo"]], []),
    ],
)  # fmt: skip
def test_each_caveat_narrows_by_a_rule_of_its_own(
    caveat: str, parent: Any, within: list[Any], beyond: list[Any]
) -> None:
    above = made(1, USER, 1, Capability("Ops", "*", {caveat: parent}))
    for value in within + beyond:
        child = made(2, did(1), 2, Capability("Ops", "*", {} if value is None else {caveat: value}), prf=[1])
        fault = Authority(USER, [above, child], ()).fault(child)
        assert fault is (Reason.WIDENED if value in beyond else None), value


@pytest.mark.req("LW-24")
@pytest.mark.parametrize(
    ("parent", "child", "stands"),
    [
        ((5, 10), (5, 10), True),
        ((5, 10), (6, 9), True),
        ((5, 10), (4, 9), False),
        ((5, 10), (6, 11), False),
        ((5, 10), (6, None), False),
        ((5, None), (5, None), True),
        ((5, None), (6, 9), True),
    ],
)
def test_a_child_stays_within_its_parents_times(
    parent: tuple[int, int | None], child: tuple[int, int | None], stands: bool
) -> None:
    above = made(1, USER, 1, *ROOT, nbf=parent[0], exp=parent[1])
    below = made(2, did(1), 2, *ROOT, nbf=child[0], exp=child[1], prf=[1])
    assert Authority(USER, [above, below], ()).fault(below) is (None if stands else Reason.WIDENED)


@pytest.mark.req("LW-24")
def test_several_parents_must_all_stand_and_one_must_cover_each_capability() -> None:
    claim, complete = (
        made(2, did(1), 2, job("Claim"), PASS_ON, prf=[1]),
        made(3, did(1), 2, job("Complete"), exp=9, prf=[1]),
    )
    both = made(4, did(2), 4, job("Claim"), job("Complete"), exp=9, prf=[2, 3])
    graph = [OWNER, claim, complete]
    assert Authority(USER, [*graph, both], ()).fault(both) is None
    assert Authority(USER, [*graph, both], [complete.cid]).fault(both) is Reason.REVOKED
    assert Authority(USER, [OWNER, claim, both], ()).fault(both) is Reason.UNRESOLVED
    longer = made(5, did(2), 4, job("Claim"), exp=10, prf=[2, 3])
    assert Authority(USER, [*graph, longer], ()).fault(longer) is Reason.WIDENED
    more = made(6, did(2), 4, job("Claim"), job("Schedule"), exp=9, prf=[2, 3])
    assert Authority(USER, [*graph, more], ()).fault(more) is Reason.WIDENED
    stolen = made(7, did(4), 4, job("Claim"), exp=9, prf=[2])
    assert Authority(USER, [*graph, stolen], ()).fault(stolen) is Reason.UNAUTHORISED


@pytest.mark.req("LW-24")
def test_what_the_vocabulary_does_not_know() -> None:
    assert refusal(job("Claim")) is None
    assert refusal(job("Claim", moon=True)) is Reason.UNAUTHORISED
    mixed = made(2, did(1), 2, job("Claim", moon=True), job("Claim", kind_prefix=["a"]), prf=[1])
    assert Authority(USER, [OWNER, mixed], ()).refusal(2, CLAIM, 5, "a") is None


@pytest.mark.req("LW-24", "LW-25")
@pytest.mark.parametrize(
    ("caveat", "good", "bad"),
    [
        ("source_types", ["a"], [None, "a", 7, {}, ["a", 7], [None]]),
        ("predicates", ["a"], [None, "a", 7, {}, ["a", 7], [None]]),
        ("kind_prefix", ["a"], [None, "a", 7, {}, ["a", 7], [None]]),
        ("time_range", [0, 9], [None, 9, [0], [0, 9, 9], [0, "9"], [0, 9.5], [False, 9], [0, None], {}]),
        ("sanitize", ["StripGeo"], [None, "StripGeo", ["Blur"], ["StripGeo", "Blur"], ["TruncateContent"], [7]]),
        ("audit_inference", True, [None, 0, 1, "true", []]),
    ],
)
def test_a_caveat_with_a_strange_value_grants_nothing(caveat: str, good: object, bad: list[object]) -> None:
    assert refusal(Capability("Job", "Claim", {caveat: good}), kind="a") is None
    for value in bad:
        granted = Capability("Job", "Claim", {caveat: value})
        assert refusal(granted, kind="a") is Reason.UNAUTHORISED, value
        reader = made(2, did(1), 2, Capability("Ops", "Read", {caveat: value}), prf=[1])
        assert Authority(USER, [OWNER, reader], ()).reading(2, CLAIM, 5, "a", 5) is None, value


@pytest.mark.req("LW-26")
def test_a_delegation_without_an_end_has_none() -> None:
    assert refusal(job("Claim"), at=2**64 - 1) is None
    assert Authority(USER, [OWNER], ()).standing(1, 2**64 - 1) is Standing.ACTIVE


@pytest.mark.req("LW-24")
def test_defining_a_kind_is_a_right_of_its_own() -> None:
    define = DefineKind("acme.render", b"")
    for lesser in (Capability("Ops", "Write", {}), job("Schedule"), job("Claim"), job("Complete"), job("Write")):
        assert refusal(lesser, define) is Reason.UNAUTHORISED, lesser
    for right in (Capability("Ops", "*", {}), job("*"), job("Define")):
        assert refusal(right, define) is None, right
    narrow = Capability("Job", "Define", {"kind_prefix": ["acme."]})
    assert refusal(narrow, define) is None
    assert refusal(narrow, DefineKind("other", b"")) is Reason.UNAUTHORISED
    assert refusal(narrow, DefineKind("acme.", b"")) is None, "all kinds below the prefix"


@pytest.mark.req("LW-25")
def test_what_cannot_be_judged_is_not_admitted() -> None:
    sources = Capability("Ops", "Write", {"source_types": ["a"]})
    predicates = Capability("Ops", "Write", {"predicates": ["a"]})
    kinds = Capability("Ops", "Write", {"kind_prefix": ["a"]})
    by_name = {type(op).__name__: op for op in payloads("a")}
    for granted, resource in ((sources, "Evidence"), (predicates, "Claim"), (kinds, "Job")):
        for name_, op in by_name.items():
            if isinstance(op, v.DelegateUcan | v.RevokeUcan | v.DesignateCoordinator | v.RouteKind | v.AcceptWork):
                continue
            if isinstance(op, SetRetention | v.SetSuccession):
                continue
            if isinstance(op, DefineKind | BreakLock | SetAvailability | v.ApproveJob | v.RefuseJob | v.EraseContent):
                continue  # rights of their own
            told = ("IngestEvidence", "CreateClaim", "Sanitised", "ScheduleJob", "SetSchedule", "ClearSchedule")
            narrowed = PLACE.get(name_, ("Claim",))[0] == resource and name_ not in told
            assert refusal(granted, op) is (Reason.UNAUTHORISED if narrowed else None), name_
    assert refusal(kinds, CLAIM, "ab") is None
    assert refusal(kinds, CLAIM, "b") is Reason.UNAUTHORISED
    assert refusal(kinds, v.ScheduleJob(ID, "b", b"", b""), "a") is Reason.UNAUTHORISED


@pytest.mark.req("LW-25")
def test_a_time_range_holds_its_start_and_not_its_end() -> None:
    granted = job("Claim", time_range=[10, 20])
    refused = [refusal(granted, at=at) for at in (9, 10, 19, 20)]
    assert refused == [Reason.UNAUTHORISED, None, None, Reason.UNAUTHORISED]


SHARES = sharing(1)


@pytest.mark.req("LW-24", "LW-39")
def test_only_owners_and_those_who_share_a_store_let_others_share_it() -> None:
    everything = (Capability("Ops", "*", {}),)
    chain = [
        OWNER,
        made(2, did(1), 2, *everything, SHARES, prf=[1]),
        made(3, did(2), 3, *everything, SHARES, prf=[2]),
        made(4, did(1), 4, *everything, prf=[1]),
        made(5, did(4), 5, *everything, SHARES, prf=[4]),
        made(6, did(2), 6, *everything, sharing(4), prf=[2]),
    ]
    authority = Authority(USER, chain, ())
    assert all(authority.fault(each) is None for each in chain)
    assert [authority.share_store(1, node, 5) for node in range(1, 7)] == [True, True, True, False, False, False]
    assert authority.stores(6, 5) == {node_text(6)}


@pytest.mark.req("LW-39")
def test_a_store_is_shared_as_long_as_the_delegation_is_in_force() -> None:
    worker = made(2, did(1), 2, SHARES, prf=[1], nbf=10, exp=20)
    times = (9_999, 10_000, 19_999, 20_000)
    assert [Authority(USER, [OWNER, worker], ()).share_store(1, 2, at) for at in times] == [False, True, True, False]
    assert not Authority(USER, [OWNER, worker], {worker.cid}).share_store(1, 2, 15_000)
    assert not Authority(USER, [OWNER], ()).share_store(1, 2, 15_000)


@pytest.mark.req("LW-26")
def test_only_the_owner_routes_and_designates() -> None:
    mesh = made(2, USER, 2, Capability("Mesh", "Write", {}))
    passed_on = made(3, did(1), 3, *ROOT, prf=[1])
    limited = made(4, USER, 4, Capability("Ops", "*", {"time_range": [0, 9]}))
    authority = Authority(USER, [OWNER, mesh, passed_on, limited], ())
    for op in (v.RouteKind("a"), v.DesignateCoordinator(1)):
        assert [authority.refusal(node, op, 5, None) for node in (1, 2, 3, 4)] == [None, *[Reason.OWNER_ONLY] * 3]
    gone = Authority(USER, [OWNER], [OWNER.cid])
    assert gone.refusal(1, v.RouteKind("a"), 5, None) is Reason.REVOKED


@pytest.mark.req("LW-26")
def test_an_acceptance_needs_any_delegation_in_force() -> None:
    bare = made(2, did(1), 2, nbf=1, exp=2, prf=[1])
    authority = Authority(USER, [OWNER, bare], ())
    accept = v.AcceptWork(ID, ID)
    assert [authority.refusal(2, accept, at, None) for at in (999, 1000, 1999, 2000)] == [
        *(Reason.UNAUTHORISED, None, None, Reason.UNAUTHORISED),
    ]
    assert authority.refusal(77, accept, 1000, None) is Reason.UNAUTHORISED


@pytest.mark.req("LW-27")
def test_a_revocation_reaches_what_was_made_below() -> None:
    middle = made(2, did(1), 2, job("*"), PASS_ON, prf=[1])
    last = made(3, did(2), 3, job("Claim"), prf=[2])
    other = made(4, did(1), 3, job("Claim", kind_prefix=["a"]), prf=[1])
    graph = [OWNER, middle, last, other]
    before, after = Authority(USER, graph, ()), Authority(USER, graph, [middle.cid])
    assert before.refusal(3, CLAIM, 5, "b") is None
    assert after.refusal(3, CLAIM, 5, "b") is Reason.REVOKED
    assert after.refusal(3, CLAIM, 5, "a") is None
    assert after.refusal(3, v.EvictArtifact(ID), 5, None) is Reason.UNAUTHORISED
    assert [after.standing(node, 5) for node in (1, 2, 3)] == [Standing.ACTIVE, Standing.REVOKED, Standing.ACTIVE]


@pytest.mark.req("LW-27")
def test_who_may_revoke() -> None:
    middle = made(2, did(1), 2, job("*"), exp=9, prf=[1])
    last = made(3, did(2), 3, job("Claim"), exp=9, prf=[2])
    owners = made(5, USER, 5, *ROOT)

    def revoked(is_bound: bool) -> set[tuple[int, int]]:
        authority = Authority(USER, [OWNER, middle, last, owners], (), is_bound)
        pairs = [(node, d) for node in (1, 2, 3, 5) for d in (OWNER, middle, last)]
        return {(node, d.cid[-1]) for node, d in pairs if authority.may_revoke(node, d.cid, 5)}

    # Its issuer, or one above it; what the user's key issued, no node.
    assert revoked(is_bound=True) == {(1, 2), (1, 3), (2, 3)}
    # In a strict mesh every owner, too.
    assert revoked(is_bound=False) == {(1, 1), (1, 2), (1, 3), (2, 3), (5, 1), (5, 2), (5, 3)}
    strict = Authority(USER, [OWNER, middle, last, owners], (), is_bound=False)
    assert strict.may_revoke(1, bytes(32), 5)
    assert not strict.may_revoke(2, bytes(32), 5)
    assert not strict.may_revoke(2, last.cid, 9000)


@pytest.mark.req("LW-27")
def test_of_two_owners_of_a_strict_mesh_who_revoke_each_other_the_earlier_stays() -> None:
    second = made(2, USER, 2, *ROOT)
    graph = [OWNER, second]
    first_word, late_word = (Hlc(10, 0, 2), 2, OWNER.cid), (Hlc(10, 1, 1), 1, second.cid)
    for order in ([first_word, late_word], [late_word, first_word]):
        assert counting_revocations(USER, graph, order, is_bound=False) == [first_word]
        assert counting_revocations(USER, graph, order) == []
    again = counting_revocations(USER, graph, [first_word, late_word, first_word], is_bound=False)
    assert {cid for _, _, cid in again} == {OWNER.cid}


@pytest.mark.req("LW-25")
def test_who_owes_snapshots() -> None:
    caveat = {"kind_prefix": ["a."], "audit_inference": True}
    graph = [
        OWNER,
        made(2, did(1), 2, Capability("Job", "Complete", caveat), prf=[1]),
        made(3, did(1), 3, Capability("Job", "Complete", {"kind_prefix": ["a."]}), prf=[1]),
        made(4, did(1), 4, Capability("Claim", "Write", {"audit_inference": True}), prf=[1]),
        made(5, did(1), 5, Capability("Job", "Schedule", {"audit_inference": True}), exp=1, prf=[1]),
        made(6, did(1), 6, *ROOT, prf=[1]),
        made(7, did(1), 7, Capability("Artifact", "Write", caveat), prf=[1]),
    ]
    authority = Authority(USER, graph, ())
    for kind, owing in (("a.b", {1, 2, 4, 7}), ("b", {1, 4, 7}), (None, {1, 2, 4, 7})):
        assert {node for node in range(1, 9) if authority.audited(node, 5, kind)} == owing


@pytest.mark.req("LW-29")
def test_who_reads_what_and_how() -> None:
    rules = ["StripGeo", "StripCustomMetadata"]
    graph = [
        OWNER,
        made(2, did(1), 2, Capability("Ops", "Read", {"sanitize": rules}), job("Read"), exp=9, prf=[1]),
        made(3, did(1), 3, Capability("Ops", "Read", {"audit_inference": True}), prf=[1]),
        made(4, did(1), 4, Capability("Ops", "Read", {"time_range": [0, 10]}), prf=[1]),
        made(5, did(1), 5, Capability("Ops", "Write", {"sanitize": rules}), prf=[1]),
    ]
    authority = Authority(USER, graph, ())
    claim = payloads("a")[7]
    assert [authority.reading(node, claim, 20, None, 5) for node in range(1, 7)] == [
        *((), tuple(rules), (), None, None, None),
    ]
    assert authority.reading(2, CLAIM, 20, "a", 5) == ()
    assert authority.reading(2, CLAIM, 20, "a", 9000) is None
    assert authority.reading(4, claim, 9, None, 50) == ()
    assert [authority.reads_everything(node, 5) for node in range(1, 7)] == [True, False, True, False, False, False]
    assert authority.sanitizes(2, tuple(rules), 5)
    assert not authority.sanitizes(2, tuple(rules), 9000)
    assert not authority.sanitizes(2, tuple(reversed(rules)), 5)
    assert not authority.sanitizes(2, (), 5)
    assert not authority.sanitizes(5, tuple(rules), 5)


def test_an_acceptance_is_read_by_those_who_may_read_what_it_accepts() -> None:
    def reads(granted: Capability, family: str, key: bytes) -> bool:
        reader = made(2, did(1), 2, granted, prf=[1])
        return Authority(USER, [OWNER, reader], ()).reading(2, v.AcceptOffer(family, key, ID), 5, None, 5) == ()

    memories = Capability("Row", "Read", {"key_prefix": ["memories/"]})
    assert reads(memories, "row", b"memories/sky")
    assert not reads(memories, "row", b"secrets/sky") and not reads(memories, "row", b"\xff")
    assert not reads(memories, "lock", b"") and not reads(memories, "counter", b"memories/sky")
    assert reads(Capability("Lock", "Read", {}), "lock", b"") and reads(Capability("Inbox", "Read", {}), "message", ID)
    assert reads(Capability("Ops", "Read", {}), "counter", b"any")


@pytest.mark.req("LW-49")
def test_a_grant_about_locks_may_name_scopes() -> None:
    def acquire(scope: str) -> AcquireLocks:
        return AcquireLocks(scope, ("k",), "agent", LockMode.EXCLUSIVE, 10, 0)

    grant = Capability("Lock", "*", {"scopes": ["repo"]})
    for payload in (acquire("repo"), RenewLocks("repo", "agent", 1, 10), BreakLock("repo", "k", "why")):
        assert refusal(grant, payload) is None
        assert refusal(grant, replace(payload, scope="repository")) is Reason.UNAUTHORISED
    both = Capability("Lock", "Acquire", {"scopes": ["repo", ""], "key_prefix": ["k"]})
    assert refusal(both, acquire("")) is None
    assert refusal(both, replace(acquire(""), keys=("other",))) is Reason.UNAUTHORISED
    everything = Capability("Ops", "*", {"scopes": ["repo"]})
    assert refusal(everything, acquire("repo")) is None and refusal(everything) is None, "it restricts only locks"
    assert refusal(everything, acquire("")) is Reason.UNAUTHORISED
    assert refusal(Capability("Lock", "*", {"scopes": "repo"}), acquire("repo")) is Reason.UNAUTHORISED


@pytest.mark.req("LW-49")
def test_who_has_some_scopes_reads_and_passes_on_these_alone() -> None:
    def grants(*scopes: str) -> Capability:
        return Capability("Lock", "Acquire", {"scopes": list(scopes)})

    def passed_on(child: Capability) -> Reason | None:
        inviting = Capability("Registration", "Write", {})
        worker = made(2, did(1), 2, grants("a", "b"), inviting, prf=[1])
        guest = made(3, did(2), 3, child, prf=[2])
        payload = AcquireLocks("a", ("k",), "agent", LockMode.EXCLUSIVE, 10, 0)
        return Authority(USER, [OWNER, worker, guest], ()).refusal(3, payload, 5, None)

    assert passed_on(grants("a")) is None
    assert passed_on(grants("a", "c")) is Reason.UNAUTHORISED
    assert passed_on(Capability("Lock", "Acquire", {})) is Reason.UNAUTHORISED
    reader = made(2, did(1), 2, Capability("Lock", "Read", {"scopes": ["a"]}), prf=[1])
    authority = Authority(USER, [OWNER, reader], ())
    for scope, rules in (("a", ()), ("b", None), ("", None)):
        assert authority.reading(2, v.AcceptOffer("lock", scope.encode(), ID), 5, None, 5) == rules
        assert authority.reading(2, RenewLocks(scope, "agent", 1, 10), 5, None, 5) == rules
