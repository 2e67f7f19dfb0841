"""Mistakes that can be planted in the real code of a succession, each of which the simulator has to find."""

from collections.abc import Callable

import pytest

from hocket.kernel.succession import quorums
from hocket.log.succession.leading import CoordinatorLead
from hocket.mesh.succession import leading, standing, witness

Plant = Callable[[pytest.MonkeyPatch], None]


def told_before_confirmed(patch: pytest.MonkeyPatch) -> None:
    """An old coordinator goes on accepting, and says so: it asks nobody."""
    patch.setattr(CoordinatorLead, "fault", lambda self, session, permissions: None)
    patch.setattr(CoordinatorLead, "is_confirmed", lambda self, at: True)
    patch.setattr(CoordinatorLead, "served_to", lambda self, session, permissions: None)


def tail_left_behind(patch: pytest.MonkeyPatch) -> None:
    """A successor does not ask its voters what they keep."""

    def nothing(self: standing.Candidate, answer: object) -> None:
        pass

    patch.setattr(standing.Candidate, "_keep", nothing)


def vote_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A witness forgets its vote, and what it has promised the coordinator."""
    patch.setattr(witness.Promised, "with_vote", lambda self, vote: self)
    patch.setattr(witness.NamedWitness, "_is_leased", lambda *_: False)


def quorum_of_one(patch: pytest.MonkeyPatch) -> None:
    """The coordinator counts itself alone."""
    patch.setattr(leading, "agreed", lambda values, successions: max(values.values(), default=None))


PLANTS: dict[str, Plant] = {
    "told before it is confirmed": told_before_confirmed,
    "the tail is left behind": tail_left_behind,
    "a vote is forgotten": vote_forgotten,
    "a quorum of one": quorum_of_one,
}
assert quorums.agreed is not None
