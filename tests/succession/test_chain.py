"""Which tenures are in force, from the ops alone."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import pin_to
from hocket.kernel.succession.chain import (
    AFTER_MS_MIN,
    Candidacy,
    Chain,
    Succession,
    TenureStart,
    chain_of,
    shape_fault,
    vote_text,
)
from hocket.kernel.succession.quorums import (
    agreed,
    binding,
    confirm_fault,
    highest_term,
    is_elected,
    is_quorum,
    lease_end,
    stands_after_ms,
    vote_fault,
)

A, B, C, D, E, OWNER = 1, 2, 3, 4, 5, 9


def is_signed(node: int, signature: bytes, text: bytes) -> bool:
    return signature == b"%d " % node + text


def op_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def root(at: int = 10, node: int = A) -> TenureStart:
    return TenureStart(op_id(at), Hlc(at, 0, OWNER), node)


def succession(
    at: int = 20, follows: int = 10, nodes: Sequence[int] = (A, B, C), quorum: int = 2, after_ms: int = 30_000
) -> Succession:
    return Succession(op_id(at), Hlc(at, 0, OWNER), op_id(follows), tuple(nodes), quorum, after_ms)


def takeover(
    at: int,
    node: int,
    term: int,
    voters: Sequence[int],
    *,
    follows: int = 10,
    under: int = 20,
    before: int = A,
    pinned: int | None = None,
) -> TenureStart:
    text = vote_text(op_id(under), op_id(follows), term, node)
    votes = tuple((each, b"%d " % each + text) for each in voters)
    pin = pin_to(Hlc(at - 1 if pinned is None else pinned, 0, before), op_id(7))
    return TenureStart(op_id(at), Hlc(at, 0, node), node, pin, term, op_id(under), op_id(follows), votes)


def chain(*ops: TenureStart | Succession) -> Chain:
    starts = [each for each in ops if isinstance(each, TenureStart)]
    return chain_of(starts, [each for each in ops if isinstance(each, Succession)], is_signed)


def in_force(*ops: TenureStart | Succession) -> list[tuple[int, int]]:
    return [(each.node, each.term) for each in chain(*ops).tenures]


def fault(of: TenureStart | Succession, *others: TenureStart | Succession) -> Reason | None:
    return chain(of, *others).faults.get(of.op_id)


def test_a_takeover_with_a_quorum_is_in_force() -> None:
    found = chain(root(), succession(), takeover(30, B, 1, (B, C)))
    assert [(each.node, each.term) for each in found.tenures] == [(A, 0), (B, 1)]
    assert not found.faults and found.succession == succession() and found.root == root()


def test_takeovers_follow_each_other_and_the_first_coordinator_may_return() -> None:
    second = takeover(40, A, 2, (A, C), follows=30, before=B)
    assert in_force(root(), succession(), takeover(30, B, 1, (B, C)), second) == [(A, 0), (B, 1), (A, 2)]


@pytest.mark.parametrize(
    "bad, reason",
    [
        (takeover(30, B, 1, (B,)), Reason.NO_QUORUM),
        (takeover(30, B, 1, (B, B)), Reason.NO_QUORUM),
        (takeover(30, B, 1, (B, D)), Reason.NO_QUORUM),
        (takeover(30, B, 1, (B, C))._replace(term=2), Reason.NO_QUORUM),
        (takeover(30, B, 1, (B, C))._replace(node=C, at=Hlc(30, 0, C)), Reason.NO_QUORUM),
        (takeover(30, D, 1, (B, C)), Reason.NO_SUCCESSOR),
        (takeover(15, B, 1, (B, C)), Reason.NO_SUCCESSOR),
        (takeover(30, B, 1, (B, C), under=21), Reason.WAITING),
        (takeover(30, B, 1, (B, C), follows=11), Reason.WAITING),
        (takeover(9, B, 1, (B, C)), Reason.OLD_TERM),
        (takeover(30, B, 1, (B, C))._replace(pin=None), Reason.NO_PIN),
        (takeover(30, B, 1, (B, C), pinned=31), Reason.NO_PIN),
    ],
)
def test_a_takeover_that_breaks_a_rule_has_no_effect(bad: TenureStart, reason: Reason) -> None:
    assert in_force(root(), succession(), bad) == [(A, 0)]
    assert fault(bad, root(), succession()) == reason


def test_a_term_must_rise_and_the_pin_must_belong_to_the_tenure_that_ends() -> None:
    first = takeover(30, B, 2, (B, C))
    for term in (1, 2):
        repeated = takeover(40, C, term, (A, C), follows=30, before=B)
        assert fault(repeated, root(), succession(), first) == Reason.OLD_TERM
    early = takeover(40, C, 3, (A, C), follows=30, before=B, pinned=25)
    assert fault(early, root(), succession(), first) == Reason.NO_PIN


def test_of_two_takeovers_of_one_tenure_the_higher_term_is_in_force() -> None:
    low, high = takeover(30, B, 1, (A, B)), takeover(25, C, 2, (A, C))
    assert in_force(root(), succession(), low, high) == [(A, 0), (C, 2)]
    assert fault(low, root(), succession(), high) == Reason.OUTVOTED
    child = takeover(50, A, 3, (A, B), follows=30, before=B)
    assert in_force(root(), succession(), low, high, child) == [(A, 0), (B, 1), (A, 3)]


def test_two_takeovers_of_one_term_are_void_and_the_double_voter_is_named() -> None:
    left, right = takeover(30, B, 1, (A, B)), takeover(31, C, 1, (A, C))
    found = chain(root(), succession(), left, right)
    assert [each.node for each in found.tenures] == [A] and found.double_voters == {A}
    assert set(found.faults.values()) == {Reason.OUTVOTED}
    followed = takeover(40, A, 2, (A, B), follows=31, before=C)
    assert in_force(root(), succession(), left, right, followed) == [(A, 0), (C, 1), (A, 2)]


def test_a_successor_that_writes_its_takeover_again_changes_nothing() -> None:
    first, again = takeover(30, B, 1, (B, C)), takeover(60, B, 1, (B, C))
    found = chain(root(), succession(), first, again)
    assert found.head == first and found.faults == {again.op_id: Reason.OUTVOTED} and not found.double_voters


def test_the_owners_designation_ends_the_takeovers_before_it() -> None:
    late = takeover(60, C, 2, (B, C), follows=30, before=B)
    found = chain(root(), succession(), takeover(30, B, 1, (B, C)), root(50, D), late)
    assert [each.node for each in found.tenures] == [A, B, D]
    assert found.faults == {late.op_id: Reason.OLD_TERM} and found.succession is None
    again = succession(70, 50, (D, A, B), 2)
    assert chain(root(), succession(), root(50, D), again).succession == again


def test_a_takeover_under_the_succession_before_goes_before_a_new_one() -> None:
    first, new = takeover(40, B, 1, (B, C)), succession(30, nodes=(A, D, E))
    found = chain(root(), succession(), new, first)
    assert found.succession == succession() and found.faults == {new.op_id: Reason.OUTVOTED}
    under_new = takeover(41, D, 2, (D, E), under=30)
    assert in_force(root(), succession(), new, under_new) == [(A, 0), (D, 2)]
    assert fault(takeover(50, D, 3, (D, E), under=30, follows=40, before=B), root(), succession(), new, first) == (
        Reason.NO_SUCCESSOR
    )


def test_a_succession_without_nodes_ends_it() -> None:
    end = succession(30, nodes=(), quorum=0, after_ms=0)
    found = chain(root(), succession(), end)
    assert found.succession is None and not found.faults and found.in_question == (succession(), end)


@pytest.mark.parametrize(
    "nodes, quorum, after_ms, words",
    [
        ((A, B, C), 4, 30_000, "can never be met"),
        ((A, B, C), 3, 30_000, "can never be met"),
        ((A, B), 2, 30_000, "can never be met"),
        ((A, B, C), 1, 30_000, "always met"),
        ((A, B, C), 0, 30_000, "always met"),
        ((A, B, C, D), 2, 30_000, "met twice"),
        ((A, B, B), 2, 30_000, "twice"),
        ((B, C), 2, 30_000, "coordinator"),
        ((A, B, C), 2, AFTER_MS_MIN - 1, "silence"),
        ((A, *range(100, 115)), 9, 30_000, "at most"),
        ((), 2, 0, "without nodes"),
    ],
)
def test_a_succession_that_could_not_work_does_not_count(
    nodes: tuple[int, ...], quorum: int, after_ms: int, words: str
) -> None:
    assert words in (shape_fault(nodes, quorum, after_ms, A) or "")
    bad = succession(nodes=nodes, quorum=quorum, after_ms=after_ms)
    assert fault(bad, root()) == Reason.BAD_SUCCESSION
    assert chain(root(), bad).succession is None


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from((A, B, C)), st.integers(1, 6)), max_size=8), st.randoms())
def test_the_order_of_arrival_does_not_matter(takeovers: list[tuple[int, int, int]], rng: random.Random) -> None:
    ops: list[TenureStart | Succession] = [root(), succession(), succession(200, nodes=(A, C, D)), root(10_000, D)]
    begun = [(10, A)]
    for index, (after, node, term) in enumerate(takeovers):
        follows, before = begun[after % len(begun)]
        at = 100 * (index + 1)
        under = 200 if term % 3 == 0 else 20
        ops.append(takeover(at + 1, node, term, (A, C), follows=follows, before=before, under=under))
        begun.append((at + 1, node))
    shuffled = rng.sample(ops, len(ops))
    assert chain(*shuffled) == chain(*ops)
    found = chain(*ops)
    # Terms and times rise from each tenure to the next, and each follows the one before.
    for one, other in zip(found.tenures, found.tenures[1:], strict=False):
        assert one.at < other.at
        assert not other.is_takeover or (other.follows == one.op_id and other.term > one.term)
    for each in ops:
        assert (each in found.tenures) or (each in found.successions) or each.op_id in found.faults


# Promises.


def candidacy(term: int = 1, node: int = B, follows: int = 10, under: int = 20) -> Candidacy:
    return Candidacy(op_id(10), op_id(under), op_id(follows), term, node)


def test_a_node_votes_once_in_a_term_and_never_in_a_lower_one() -> None:
    known = chain(root(), succession())
    assert vote_fault(known, candidacy(), None, is_leased=False) is None
    assert vote_fault(known, candidacy(), candidacy(), is_leased=False) is None
    assert vote_fault(known, candidacy(2), candidacy(), is_leased=False) is None
    assert vote_fault(known, candidacy(1, C), candidacy(), is_leased=False) == "it has voted in term 1"
    assert vote_fault(known, candidacy(1), candidacy(2), is_leased=False) == "it has voted in term 2"
    assert vote_fault(known, candidacy(1, D), None, is_leased=False) == "the successor is not named"
    assert vote_fault(known, candidacy(under=21), None, is_leased=False) == "it knows of another succession"
    assert vote_fault(known, candidacy(follows=11), None, is_leased=False) == "it knows of another coordinator"
    assert vote_fault(known, candidacy(), None, is_leased=True) == "the coordinator holds the lead"
    assert vote_fault(chain(root()), candidacy(), None, is_leased=False) == "it knows of no succession"


def test_a_node_confirms_nothing_below_the_term_in_which_it_voted() -> None:
    known = chain(root(), succession())
    assert confirm_fault(known, op_id(10), None) is None
    assert confirm_fault(known, op_id(10), candidacy()) == "it has voted in term 1"
    taken = chain(root(), succession(), takeover(30, B, 1, (B, C)))
    assert confirm_fault(taken, op_id(10), None) == "it knows of another coordinator"
    assert confirm_fault(taken, op_id(30), candidacy()) is None
    assert confirm_fault(taken, op_id(30), candidacy(1, C)) == "it has voted in term 1"
    assert confirm_fault(taken, op_id(30), candidacy(2, C)) == "it has voted in term 2"
    assert highest_term(taken, (candidacy(4), None)) == 4
    # The promises of another root bind no longer.
    anew = chain(root(), succession(), root(50, D), succession(60, 50, (D, A, B), 2))
    assert confirm_fault(anew, op_id(50), candidacy(9)) is None and highest_term(anew, (candidacy(9),)) == 0


def test_what_enough_nodes_have_reached() -> None:
    one, other = succession(), succession(30, nodes=(A, D, E, 6), quorum=3)
    assert agreed({A: 9, B: 5}, (one,)) == 5
    assert agreed({A: 9}, (one,)) is None and agreed({A: 9}, ()) is None
    assert agreed({A: 9, B: 5, D: 7, E: 3}, (one, other)) == 3
    assert is_quorum((one,), (A, C)) and not is_quorum((one, other), (A, C)) and not is_quorum((one,), (D, A))
    assert lease_end(100.0, 10_000) == pytest.approx(109.8)
    assert [stands_after_ms(one, A, each) for each in (B, C)] == [30_000, 37_500]


def test_a_change_needs_both_quorums_until_it_is_settled() -> None:
    new = succession(30, nodes=(A, D, E))
    known = chain(root(), succession(), new)
    assert binding(chain(root(), succession()), None) == (succession(),)
    assert binding(known, op_id(20)) == (succession(), new)
    assert binding(known, op_id(30)) == (new,)
    end = succession(40, nodes=(), quorum=0, after_ms=0)
    ended = chain(root(), succession(), end)
    assert binding(ended, op_id(20)) == (succession(),) and binding(ended, op_id(40)) == ()
    assert not is_elected(known, (D, E), None)
    assert is_elected(known, (D, E), op_id(30)) and not is_elected(known, (D, E), op_id(20))
    assert is_elected(known, (A, B, D), op_id(20))
    assert not is_elected(ended, (A, B, C), op_id(20))
    # After a takeover, the succession that it names is settled.
    taken = chain(root(), succession(), takeover(25, B, 1, (B, C)))
    assert is_elected(taken, (A, C), None) and binding(taken, None) == (succession(),)
