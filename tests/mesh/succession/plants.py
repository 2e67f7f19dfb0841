"""Mistakes that can be planted in the real code of a succession, each of which the simulator has to find."""

from collections.abc import Callable

import pytest

from hocket.log.succession.leading import CoordinatorLead

Plant = Callable[[pytest.MonkeyPatch], None]


def told_before_confirmed(patch: pytest.MonkeyPatch) -> None:
    """An old coordinator goes on accepting, and says so: it asks nobody."""
    patch.setattr(CoordinatorLead, "fault", lambda self, session, permissions: None)
    patch.setattr(CoordinatorLead, "is_confirmed", lambda self, at: True)
    patch.setattr(CoordinatorLead, "served_to", lambda self, session, permissions: None)


PLANTS: dict[str, Plant] = {"told before it is confirmed": told_before_confirmed}
