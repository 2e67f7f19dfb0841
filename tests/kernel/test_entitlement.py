"""Which quota a node has by its delegations: the issuer's word, the default, and never more than those above."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.authority import Authority, ceiling, payers, quota_of, sharing
from hocket.kernel.ids import content_hash, node_id
from hocket.kernel.keys import SigningKey, did_key
from hocket.kernel.mesh_rules import Bounds
from hocket.kernel.ucan import NO_QUOTA, ROOT, Capability, Delegation, Quota, issue, read, read_quota, strictest, widest

pytestmark = pytest.mark.touches("LW-45")

USER, OWNER, ONE, TWO, THREE = (SigningKey(bytes([n]) * 32) for n in range(1, 6))
BOUNDS = Bounds()
READS = (Capability("Job", "Read", {}),)
WRITES = (*READS, Capability("Job", "Claim", {}), Capability("Registration", "Write", {}))
NUMBERS = st.none() | st.integers(0, 9)
QUOTAS = st.builds(Quota, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


def delegation(
    by: SigningKey,
    to: SigningKey,
    grants: tuple[Capability, ...],
    quota: Quota = NO_QUOTA,
    above: Iterable[Delegation] = (),
    ends: int | None = None,
) -> Delegation:
    return read(issue(by, to.public, grants, 0, ends, [each.cid for each in above], None, quota))


ROOTS = delegation(USER, OWNER, ROOT)


def permissions(*delegations: Delegation, revoked: Iterable[Delegation] = ()) -> Authority:
    return Authority(did_key(USER.public), (ROOTS, *delegations), [each.cid for each in revoked])


def node(key: SigningKey) -> int:
    return node_id(key.public)


@pytest.mark.req("LW-45")
def test_a_node_that_may_only_read_stores_much_less_than_one_that_writes() -> None:
    reader = delegation(OWNER, ONE, READS, above=[ROOTS])
    writer = delegation(OWNER, TWO, WRITES, above=[ROOTS])
    authority = permissions(reader, writer)
    assert quota_of(authority, node(ONE), 1, BOUNDS) == BOUNDS.readers
    assert quota_of(authority, node(TWO), 1, BOUNDS) == BOUNDS.writers
    assert quota_of(authority, node(OWNER), 1, BOUNDS) == NO_QUOTA
    assert quota_of(authority, node(THREE), 1, BOUNDS) == BOUNDS.readers
    assert strictest((BOUNDS.readers, BOUNDS.writers)) == BOUNDS.readers


@pytest.mark.req("LW-45")
def test_an_invitation_sets_a_quota_and_the_default_fills_it() -> None:
    given = delegation(OWNER, ONE, READS, Quota(ops_per_s=5, bytes=10**12), [ROOTS])
    quota = quota_of(permissions(given), node(ONE), 1, BOUNDS)
    assert quota == Quota(5, BOUNDS.readers.bytes_per_s, BOUNDS.readers.ops, 10**12)


@pytest.mark.req("LW-45")
def test_nobody_hands_on_more_than_it_has() -> None:
    one = delegation(OWNER, ONE, WRITES, Quota(ops_per_s=5), [ROOTS])
    two = delegation(ONE, TWO, WRITES, Quota(ops_per_s=500, ops=7), [one])
    # Nor does it give itself more.
    again = delegation(ONE, ONE, WRITES, Quota(ops_per_s=500, bytes_per_s=10**9), [one])
    three = delegation(TWO, THREE, WRITES, Quota(ops=1000), [two])
    authority = permissions(one, two, again, three)
    assert quota_of(authority, node(ONE), 1, BOUNDS).ops_per_s == 5
    assert quota_of(authority, node(ONE), 1, BOUNDS).bytes_per_s == BOUNDS.writers.bytes_per_s
    assert quota_of(authority, node(TWO), 1, BOUNDS).ops_per_s == 5
    assert quota_of(authority, node(THREE), 1, BOUNDS).ops == 7


@pytest.mark.req("LW-45")
def test_a_node_shares_its_quota_with_those_that_it_lets_in() -> None:
    one = delegation(OWNER, ONE, WRITES, above=[ROOTS])
    two = delegation(ONE, TWO, WRITES, above=[one])
    three = delegation(TWO, THREE, READS, above=[two])
    authority = permissions(one, two, three)
    assert payers(authority, node(THREE), 1) == (node(THREE), node(TWO), node(ONE))
    assert payers(authority, node(ONE), 1) == (node(ONE),)
    shared = sharing(authority, (ROOTS, one, two, three))
    assert shared[node(ONE)] == {node(ONE), node(TWO), node(THREE)}
    assert shared[node(THREE)] == {node(THREE)}


def test_the_widest_of_several_counts_while_it_is_in_force() -> None:
    narrow = delegation(OWNER, ONE, READS, Quota(ops=5), [ROOTS])
    wide = delegation(OWNER, ONE, READS, Quota(ops=50), [ROOTS], ends=10)
    authority = permissions(narrow, wide)
    assert quota_of(authority, node(ONE), 9_999, BOUNDS).ops == 50
    assert quota_of(authority, node(ONE), 10_000, BOUNDS).ops == 5
    assert ceiling(authority, node(ONE), BOUNDS).ops == 50
    # What was stored under a delegation that was revoked since may still come from elsewhere.
    assert ceiling(permissions(narrow, wide, revoked=[wide]), node(ONE), BOUNDS).ops == 50
    # One that leads nowhere gives nothing.
    forged = delegation(TWO, ONE, READS, Quota(ops=5000), [narrow])
    assert ceiling(permissions(narrow, forged), node(ONE), BOUNDS).ops == 5


@given(st.lists(QUOTAS, min_size=1, max_size=4))
def test_strictest_and_widest_bound_each_other(quotas: list[Quota]) -> None:
    for name in Quota.__struct_fields__:
        bounds = [getattr(each, name) for each in quotas]
        said = [each for each in bounds if each is not None]
        assert getattr(strictest(quotas), name) == (min(said) if said else None)
        assert getattr(widest(quotas), name) == (None if None in bounds else max(said))


@given(QUOTAS)
def test_a_quota_comes_back_from_a_token(quota: Quota) -> None:
    assert delegation(OWNER, ONE, READS, quota, [ROOTS]).quota == quota


@pytest.mark.parametrize(
    "facts",
    [None, 7, [], {}, {"quota": 7}, {"quota": None}, {"quota": {"ops": "9"}}, {"quota": {"ops": True}}]
    + [{"quota": {"ops": -1}}, {"quota": {"ops": 1.5}}, {"quota": {"ops": 2**60}}, {"quota": {"more": 9}}],
)
def test_facts_that_set_no_quota_are_no_quota(facts: object) -> None:
    assert read_quota(facts) == NO_QUOTA


def test_a_token_without_a_quota_has_the_bytes_that_it_always_had() -> None:
    assert issue(OWNER, ONE.public, READS, 0, None) == issue(OWNER, ONE.public, READS, 0, None, quota=NO_QUOTA)
    assert content_hash(issue(OWNER, ONE.public, READS, 0, None, quota=Quota(ops=1))) != content_hash(
        issue(OWNER, ONE.public, READS, 0, None)
    )
