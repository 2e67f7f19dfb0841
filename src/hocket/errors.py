"""User errors, one class for each exit code. Every message is a sentence that says what was wrong, with which value,
and what to do. Bugs are not in this family: they keep their traceback.
"""


class HocketError(Exception):
    """Any error that a user sees as one sentence."""

    exit_code = 1


class Failed(HocketError):
    """The job or the check failed."""


class OverBudget(Failed):
    """The job has used up its budget, or is expected to."""


class Usage(HocketError, ValueError):
    """The request itself is wrong: an unknown job, a bad value, a home that is not there."""

    exit_code = 2


class NotFound(Usage):
    """Nothing has this name or id."""


class Conflict(HocketError):
    """Another actor was first: a lost race, a stale fence, a job whose state has changed."""

    exit_code = 3


class StaleFence(Conflict):
    """The resource has seen a higher fence, so this writer no longer holds it. Nothing was written."""

    resource: str
    fence: int
    newest: int

    def __init__(self, resource: str, fence: int, newest: int) -> None:
        super().__init__(
            f"fence {fence} is stale: {resource!a} has seen fence {newest}, so this writer no longer holds it"
        )
        self.resource, self.fence, self.newest = resource, fence, newest

    def __reduce__(self) -> tuple[type["StaleFence"], tuple[str, int, int]]:
        return StaleFence, (self.resource, self.fence, self.newest)


class StoreMoved(Conflict):
    """The store was moved, and takes no more changes. Nothing was written."""

    def __init__(self, store: str, address: str) -> None:
        super().__init__(
            f"{store} was moved to {address} and takes no more changes; use that store (HOCKET_STORE, HOCKET_DB_PATH or"
            " the home's file `store` name it)"
        )
        self.store, self.address = store, address

    def __reduce__(self) -> tuple[type["StoreMoved"], tuple[str, str]]:
        return StoreMoved, (self.store, self.address)


class NotAuthorised(HocketError):
    exit_code = 4


class Unreachable(HocketError):
    """The store or a peer does not answer."""

    exit_code = 5


class StoreError(Unreachable):
    """The database cannot be read or written: read-only, full, damaged, locked for too long, or too new."""


class StoreAway(StoreError):
    """The database does not answer, has no space left, or is locked. This may pass: a process that stays tries again,
    also when it starts.
    """


class StoreLocked(StoreAway):
    """Another process has held the write lock of the database for too long. This passes."""


class StoreStarting(StoreAway):
    """The database server is restarting. It will answer in a moment."""


class StoreWentBack(StoreAway):
    """The database lacks an op of this node that it had. Nothing was written, and the op is offered again."""


class CommitUnknown(StoreAway):
    """The connection broke during a commit, and the database could not be asked since whether it has the change."""


class Unconfirmed(StoreError):
    """The coordinator cannot decide, or its decision is not known to enough of the nodes that may follow it: to those
    it is written as to a store. `is_written`: it may still be confirmed.
    """

    def __init__(self, sentence: str, is_written: bool = False) -> None:
        super().__init__(sentence)
        self.is_written = is_written

    def __reduce__(self) -> tuple[type["Unconfirmed"], tuple[str, bool]]:
        return Unconfirmed, (str(self), self.is_written)


class OutboxFull(Unreachable):
    """The coordinator has been away for so long that no more ops may wait for it. Nothing was written."""


class CircuitOpen(Unreachable):
    """The last calls have failed, so none goes out now; the next one does in `wait_s` seconds."""

    def __init__(self, sentence: str, wait_s: float) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


class StoreCircuitOpen(CircuitOpen, StoreAway):
    """The last calls to the store have failed, so it is not asked now; nothing was written."""
