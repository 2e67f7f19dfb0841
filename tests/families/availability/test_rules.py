"""What a node may still do while it drains or is quarantined."""

import pytest

from hocket.families.availability.facts import Availability
from hocket.families.availability.rules import allows
from hocket.families.inbox.facts import ClaimMessage
from hocket.families.locks.facts import AcquireLocks, LockMode, ReleaseLocks
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, Payload, Telemetry, YieldWork

ACTIVE, DRAINING, QUARANTINED = Availability
JOB = bytes(16)
CLAIM = ClaimWork(JOB, 1, 1_000)
END = CompleteJob(JOB, (), (), Telemetry(1, None, None, None))
LOCKS = AcquireLocks("", ("file:a",), "editor", LockMode.EXCLUSIVE, 1_000, 0)


@pytest.mark.parametrize(
    ("availability", "payload", "is_held", "is_allowed"),
    [
        (ACTIVE, CLAIM, False, True),
        (DRAINING, CLAIM, False, False),
        (DRAINING, CLAIM, True, True),
        (DRAINING, END, True, True),
        (DRAINING, LOCKS, False, True),
        (QUARANTINED, CLAIM, True, False),
        (QUARANTINED, END, True, False),
        (QUARANTINED, LOCKS, False, False),
        (QUARANTINED, ClaimMessage(JOB, "editor", 1_000), False, False),
        (QUARANTINED, YieldWork(JOB, 1, ""), True, True),
        (QUARANTINED, ReleaseLocks("", "editor", 1), False, True),
    ],
)
def test_what_is_accepted_of_a_node(
    availability: Availability, payload: Payload, is_held: bool, is_allowed: bool
) -> None:
    assert allows(availability, payload, is_held=is_held) is is_allowed
