"""Schedules: who may set, replace and clear one, and which jobs are its ticks. A schedule belongs to the node that set
it, and its ticks run with that node's authority, whichever node writes them. So a tick must be exactly what the
schedule's author asked for: the same job, at one of the schedule's times, while the schedule was in force. `authority`
decides what the delegations allow; the log reads cron expressions and keeps each name's history.
"""

from collections.abc import Callable

import msgspec

from hocket.kernel.clock import Hlc
from hocket.kernel.ids import derived_ulid, ulid_ms, ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy, decode_policy, encode_policy, readable_policy
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import KIND_LENGTH_MAX
from hocket.kernel.vocabulary import Payload, ScheduleJob, SetSchedule

NAME_LENGTH_MAX = 128
CRON_LENGTH_MAX = 256
_TICK = b"hocket.tick"
# Whether, for a cron expression and a timezone, this can be the newest tick at that time.
Ticks = Callable[[str, str, int, int], bool]


def tick_id(schedule_op: bytes, tick_ms: int) -> bytes:
    """The id of the job of one tick: every node derives the same one, and no other job has it."""
    return derived_ulid(tick_ms, _TICK, schedule_op)


def is_tick(payload: Payload) -> bool:
    """Whether this schedules the job of a tick, or says so."""
    policy = readable_policy(payload.policy_envelope) if isinstance(payload, ScheduleJob) else None
    return policy is not None and policy.schedule_op is not None


def tick_policy(policy: Policy, name: str, schedule_op: bytes) -> Policy:
    """The policy of a tick's job: the schedule's, with the schedule named."""
    return msgspec.structs.replace(policy, schedule=name, schedule_op=ulid_text(schedule_op))


def change_fault(op: Op, before: Op | None, may_schedule: Callable[[str], bool]) -> Reason | None:
    """Why this SetSchedule or ClearSchedule does not count, if so. `before` is the last op about the name that counts;
    `may_schedule` tells whether the op's author may schedule jobs of a kind at the op's time. A schedule can be changed
    by the node that set it, or by one that could have set it.
    """
    if isinstance(op.payload, SetSchedule) and (fault := _set_fault(op.payload)):
        return fault
    if before is None or not isinstance(before.payload, SetSchedule) or before.node_id == op.node_id:
        return None
    return None if may_schedule(before.payload.kind) else Reason.OTHERS_SCHEDULE


def _set_fault(payload: SetSchedule) -> Reason | None:
    """A schedule must be able to make jobs. Its ticks are identified by their times, so it has no unique key; and jobs
    in an `after` would have to be retried before every tick.
    """
    if not 0 < len(payload.name) <= NAME_LENGTH_MAX or not payload.name.isprintable():
        return Reason.BAD_SCHEDULE
    if len(payload.cron) > CRON_LENGTH_MAX:
        return Reason.BAD_SCHEDULE
    if not 0 < len(payload.kind) <= KIND_LENGTH_MAX or not payload.kind.isprintable():
        return Reason.BAD_KIND
    policy = readable_policy(payload.policy_envelope)
    if (
        policy is None
        or policy.after
        or any(each is not None for each in (policy.unique, policy.schedule, policy.schedule_op))
    ):
        return Reason.BAD_POLICY
    return None


def tick_fault(op: Op, schedule: Op | None, ended: Hlc | None, is_newest: Ticks) -> Reason | None:
    """NOT_A_TICK unless this ScheduleJob is a tick of that schedule: the op cites it, has its content, and has the id
    of a tick that fell after the schedule was set and not after it `ended`. It must be the newest tick at the op's
    time, so that no node can make up all the ticks that were missed. A tick at the very millisecond at which another
    schedule takes the name belongs to the old one, since the new one's come after it.
    """
    payload = op.payload
    assert isinstance(payload, ScheduleJob)
    if schedule is None or schedule.id not in op.cited or not isinstance(schedule.payload, SetSchedule):
        return Reason.NOT_A_TICK
    asked = schedule.payload
    tick = ulid_ms(payload.job_id)
    is_ours = (
        payload.job_id == tick_id(schedule.id, tick)
        and (payload.kind, payload.payload) == (asked.kind, asked.payload)
        and payload.policy_envelope == _tick_envelope(asked.policy_envelope, asked.name, schedule.id)
        and schedule.timestamp.wall < tick <= op.timestamp.wall
        and (ended is None or tick <= ended.wall)
        and is_newest(asked.cron, asked.timezone, tick, op.timestamp.wall)
    )
    return None if is_ours else Reason.NOT_A_TICK


def _tick_envelope(envelope: bytes, name: str, schedule_op: bytes) -> bytes:
    return encode_policy(tick_policy(decode_policy(envelope), name, schedule_op))
