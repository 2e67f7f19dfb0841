"""No order of requests, answers, votes and takeovers loses a decision that was told, or lets two nodes lead at once."""

import pytest

from tests.succession.explorer import Explorer, Faults

# The first coordinator has decided something, another has taken over and leads, and the first one does not know it.
HANDED_OVER = (
    "0 pushes to 1",
    "0 decides",
    "0 pushes to 1",
    "0 tells",
    "the lease of 1 ends",
    "1 stands in term 1",
    "2 votes for 1 in term 1",
    "1 takes over in term 1",
    "1 pushes to 2",
)


# The owner has named two other nodes, the coordinator has acted under that, and the new nodes may vote.
CHANGED = (
    "0 hears of the change",
    "0 pushes to 1",
    "0 pushes to 3",
    "0 settles the change",
    "0 decides",
    "the lease of 1 ends",
    "the lease of 3 ends",
)


@pytest.mark.slow
@pytest.mark.parametrize("nodes, depth", [(3, 10), (5, 7)])
def test_nothing_is_lost(nodes: int, depth: int) -> None:
    explorer = Explorer(nodes, decisions=2, terms=2)
    assert explorer.explore(depth) is None
    assert explorer.states > 10_000


@pytest.mark.slow
def test_nothing_is_lost_after_a_hand_over() -> None:
    explorer = Explorer(3, decisions=3, terms=3)
    assert explorer.explore(8, explorer.along(HANDED_OVER)) is None
    assert explorer.states > 5_000


@pytest.mark.slow
def test_nothing_is_lost_while_the_succession_changes() -> None:
    explorer = Explorer(4, decisions=1, terms=1, change=(0, 2, 3))
    assert explorer.explore(7) is None
    assert explorer.states > 20_000
    explorer = Explorer(5, decisions=1, terms=1, change=(0, 3, 4))
    assert explorer.explore(7, explorer.along(CHANGED)) is None
    assert explorer.states > 4_000


@pytest.mark.soak
def test_nothing_is_lost_while_the_succession_changes_in_longer_runs() -> None:
    assert Explorer(4, decisions=1, terms=2, change=(0, 2, 3)).explore(9) is None
    assert Explorer(5, decisions=1, terms=1, change=(0, 3, 4)).explore(8) is None


@pytest.mark.soak
@pytest.mark.parametrize("nodes, decisions, terms, depth", [(3, 2, 2, 14), (3, 3, 3, 12), (5, 2, 2, 9)])
def test_nothing_is_lost_in_longer_runs(nodes: int, decisions: int, terms: int, depth: int) -> None:
    assert Explorer(nodes, decisions=decisions, terms=terms).explore(depth) is None


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("fault", Faults._fields)
def test_a_broken_rule_is_found(fault: str, nodes: int) -> None:
    decisions = int(fault in ("accepts_alone", "short_tail"))
    change = {3: (0, 2, 3), 5: (0, 3, 4)}[nodes] if fault == "changes_at_once" else ()
    faults = Faults()._replace(**{fault: True})
    if fault == "changes_at_once" and nodes == 3:
        nodes = 4
    explorer = Explorer(nodes, decisions=decisions, terms=1, faults=faults, change=change)
    found = explorer.explore(11)
    assert found is not None
    assert ("was told" in found.what) == bool(decisions), found
