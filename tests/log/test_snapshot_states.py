"""For any history and any cut: the state from the snapshot of the cut and the rest of the log is the state from
everything.
"""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.families.retention.facts import Retained
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.loading import load_snapshot
from hocket.log.snapshots.writing import write_snapshot
from tests.log.pruning_world import HOUR, START, Member, World
from tests.log.test_pruning import Act, act, acts, is_sound, rebuilt, rules
from tests.stores import STORES

PARTS = 8


@pytest.mark.slow
@pytest.mark.req("LW-52")
@settings(deadline=None)
@given(
    st.booleans(), rules, st.lists(acts, min_size=12, max_size=40), st.lists(acts, max_size=15), st.integers(0, PARTS)
)
def test_the_state_from_a_snapshot_and_the_rest_is_that_from_everything(
    has_coordinator: bool,
    said: list[tuple[str, int | None, int | None]],
    before: list[Act],
    after: list[Act],
    cut: int,
) -> None:
    world = World(3, has_coordinator=has_coordinator)
    owner, other, whole = world.members
    for match, ms, count in said:
        owner.retain(match=match, ms=ms, count=count)
    owner.retain(Retained.MESSAGES, ms=HOUR)
    for each in before:
        act(world, each)
        world.wait(HOUR // 4)
        world.exchange(1)
    world.wait(HOUR)
    # Anywhere in the history; the rest lies behind it.
    if not owner.move_horizon(START + (world.now - START) * cut // PARTS):
        return
    world.exchange()
    for member in (owner, other):
        member.follow()
    with tempfile.TemporaryDirectory() as directory:
        write_snapshot(owner.log, Path(directory) / "snapshot")
        # A store in a server takes no snapshot.
        new = Member(world, 4, store=next(iter(STORES.values())).new())
        load_snapshot(new.log, SnapshotFolder(Path(directory) / "snapshot"))
    world.members.append(new)
    for each in after:
        act(world, each)
        world.wait(HOUR // 4)
    world.exchange()
    expected = whole.shown()
    for member in (owner, other, new):
        shown = member.shown()
        assert shown["subjects"] == expected["subjects"]
        for what in ("jobs", "messages"):
            assert shown[what] == {key: value for key, value in expected[what].items() if key in shown[what]}
        assert all(expected["jobs"][gone].done for gone in expected["jobs"].keys() - shown["jobs"].keys())
        assert is_sound(member)
    assert rebuilt(owner) == rebuilt(other) == rebuilt(new)
