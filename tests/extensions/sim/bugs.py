"""Mistakes that can be planted in the real code, each of which the simulator has to find."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hocket.errors import StoreError
from hocket.families.inbox import requests as inbox
from hocket.families.inbox import rules as messages
from hocket.families.inbox.projector import messages_of
from hocket.families.jobs import claiming as accepting
from hocket.families.jobs import requests as jobs
from hocket.families.jobs import rescue
from hocket.families.jobs import rules as roster
from hocket.families.jobs.rules import State
from hocket.families.locks import projector as lock_projector
from hocket.families.locks import rules as locks
from hocket.families.rows import rules as rows
from hocket.families.rows.requests import RowConflict
from hocket.kernel.arbitration import Reason
from hocket.kernel.vocabulary import ClaimWork
from hocket.log import Committed, Log, Transaction, limits
from hocket.log.intake import Intake
from hocket.mesh.quotas import Quotas
from hocket.node.rows import RowTable

Plant = Callable[[pytest.MonkeyPatch], None]


def late_claim_wins(patch: pytest.MonkeyPatch) -> None:
    """A claim on a job that somebody holds is not refused, by the fold or by the arbiter: it takes the job away."""
    renew, is_good = roster._renew, accepting._Deciding._is_good

    def take_over(job: Any, op: Any, payload: Any, context: Any) -> Any:
        if payload.claimer == job.claimer:
            return renew(job, op, payload, context)
        deadline = op.timestamp.wall + payload.lease_duration_ms
        taken = {"claimer": payload.claimer, "claim_op": op.id, "deadline": deadline, "last": op.timestamp}
        return replace(job, fence=job.fence + 1, **taken)

    def always_good(self: Any, op: Any, subject: Any) -> bool:
        entry = self._tx.projection.jobs.entry(subject.key) if isinstance(op.payload, ClaimWork) else None
        return (entry is not None and entry.job.state is State.CLAIMED) or is_good(self, op, subject)

    patch.setattr(roster, "_renew", take_over)
    patch.setattr(accepting._Deciding, "_is_good", always_good)


def fence_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Whoever once held a job may end it while somebody else does: an end does not name the claim that it is under."""
    speak = jobs._speak

    def held(job: Any, op: Any, claimer: int, context: Any) -> Reason | None:
        if job.state is State.COMPLETED:
            return Reason.COMPLETED
        return Reason.NOT_CLAIMED if job.state is State.PENDING else None

    def stale(tx: Transaction, held: Any) -> Reason | None:
        entry = tx.projection.jobs.entry(held.job_id)
        return None if entry is not None and entry.job.state is State.CLAIMED else Reason.STALE_CLAIM

    def uncited(tx: Transaction, held: Any, payload: Any, deps: tuple[bytes, ...] = ()) -> Any:
        if isinstance(payload, ClaimWork):
            return speak(tx, held, payload, deps)
        refused = stale(tx, held)
        op = refused or jobs.author(tx, payload, deps)
        return op if isinstance(op, Reason) else jobs.decided_job(tx, op, held.job_id)

    patch.setattr(roster, "_held", held)
    patch.setattr(jobs, "stale_claim", stale)
    patch.setattr(jobs, "_speak", uncited)


def clock_not_advanced(patch: pytest.MonkeyPatch) -> None:
    """An op that does not count does not move the clock of whoever hears of it."""
    admit = Intake._admit

    def deaf(self: Intake, raw: bytes, op: Any, facts: Any) -> None:
        before = self._heard
        admit(self, raw, op, facts)
        if any(self._tx.projection.reason(each.id) != 0 for each in facts):
            self._heard = before

    patch.setattr(Intake, "_admit", deaf)


def expiry_by_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """The arbiter ends leases by a clock that others can move."""
    expire = rescue.expire

    def hasty(tx: Transaction, *more: Any) -> int:
        tx.projection._physical = tx.now
        return expire(tx, *more)

    patch.setattr(rescue, "expire", hasty)


def lost_group_commit(patch: pytest.MonkeyPatch) -> None:
    """Of several requests in one commit the answers go out although nothing was kept."""
    commit = Log.commit_unconfirmed

    class Undone(Exception):
        pass

    def careless(self: Log, requests: Sequence[Any], *, beside: bool = False) -> Committed:
        if len(requests) < 2:
            return commit(self, requests, beside=beside)
        results: list[Any] = []

        def all_of_them(tx: Transaction) -> None:
            results.extend(request(tx) for request in requests)
            raise Undone

        try:
            self.run(all_of_them)
        except Undone:
            pass
        except StoreError:
            raise
        except Exception:
            return commit(self, requests)
        return Committed(results, {})

    patch.setattr(Log, "commit_unconfirmed", careless)


def fence_from_the_row(patch: pytest.MonkeyPatch) -> None:
    """The next fence is counted from the locks that are held: after a release it begins again."""
    served = locks._served

    def from_the_row(changed: Any, at: Any, fence: int) -> Any:
        return served(changed, at, max((hold.fence for hold in changed.holds), default=0))

    patch.setattr(locks, "_served", from_the_row)


def locks_end_by_the_merged_clock(patch: pytest.MonkeyPatch) -> None:
    """The arbiter ends locks by a clock that others can move."""
    patch.setattr(lock_projector, "ends_early", lambda *_: None)


def ack_without_lease(patch: pytest.MonkeyPatch) -> None:
    """Whoever once had a message may end its delivery, whoever holds it now."""

    def in_the_fold(message: Any, op: Any, agent: str) -> Any:
        delivery = message.delivery(agent, op.node_id)
        return delivery if delivery.state is messages.DeliveryState.LEASED else Reason.NOT_LEASED

    def in_the_request(tx: Transaction, message_id: bytes, agent: str, claim_op: bytes | None) -> Any:
        message = messages_of(tx.projection).state(message_id)
        return Reason.UNKNOWN_MESSAGE if message is None else message.delivery(agent, tx.node).op or claim_op

    patch.setattr(messages, "_held", in_the_fold)
    patch.setattr(inbox, "_held", in_the_request)


def version_compared_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """A writer compares versions before it writes, and the write itself compares nothing."""
    put, write = rows._put, RowTable._write

    def uncompared(state: Any, op: Any, payload: Any, context: Any) -> Any:
        return put(state, op, replace(payload, base=None if state is None else state.op), context)

    async def compared_before(self: Any, key: str, value: bytes | None, version: str | None, strategy: str) -> Any:
        row = await self.get(key)
        if version != (None if row is None else row.version):
            raise RowConflict(row, None)
        return await write(self, key, value, version, strategy)

    patch.setattr(rows, "_put", uncompared)
    patch.setattr(RowTable, "_write", compared_before)


def work_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    """A member's batch is admitted in one go, however long it takes."""
    patch.setattr(limits, "SLICE_S", float("inf"))
    patch.setattr(Quotas, "charge", lambda *_: None)


def refused_ops_move_the_clock(patch: pytest.MonkeyPatch) -> None:
    """An op that does not count moves the clock by which locks end, as far ahead as it is dated."""
    patch.setattr(Intake, "_is_idle_ahead", lambda *_: False)


# What costly members gain by.
COSTS: dict[str, Plant] = {
    "work is not charged": work_is_not_charged,
    "refused ops move the clock": refused_ops_move_the_clock,
}

BUGS: dict[str, Plant] = {
    "late claim wins": late_claim_wins,
    "fence not checked": fence_not_checked,
    "clock not advanced on refused ops": clock_not_advanced,
    "expiry by wall clock": expiry_by_wall_clock,
    "lost group commit": lost_group_commit,
    "fence from the row": fence_from_the_row,
    "locks end by the merged clock": locks_end_by_the_merged_clock,
    "ack without lease": ack_without_lease,
    "version compared outside the transaction": version_compared_outside_the_transaction,
}
