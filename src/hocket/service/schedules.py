"""Schedules: set, list, remove."""

import time
from typing import Any

import msgspec

from hocket.kernel.ids import node_text
from hocket.kernel.policy import decode_policy
from hocket.mesh import membership
from hocket.service import Service, ServiceAnswer
from hocket.store import Session
from hocket.work import cron, view
from hocket.work.cron import NewSchedule


class ScheduleShown(ServiceAnswer, frozen=True):
    """A schedule in force. `allowed` is whether its author may still schedule such jobs; if not, it submits none."""

    name: str
    cron: str | None
    timezone: str
    kind: str
    payload: Any
    options: dict[str, Any]
    next_ms: int | None
    last_ms: int | None
    author: str
    author_name: str | None
    allowed: bool


def listing(service: Service) -> list[ScheduleShown]:
    with service.read() as session:
        return _shown(service, session)


def add(service: Service, plan: NewSchedule) -> ScheduleShown | None:
    """Sets a schedule; returns None if it is not in force afterwards."""
    service.check_writer()
    checked = cron.check(plan)
    service.runtime.log.run(lambda tx: cron.add(tx, checked))
    return next((each for each in listing(service) if each.name == plan.name), None)


def remove(service: Service, name: str) -> None:
    service.check_writer()
    service.runtime.log.run(lambda tx: cron.remove(tx, name))


def _shown(service: Service, session: Session) -> list[ScheduleShown]:
    log = service.runtime.log
    permissions = log.permissions(session)
    now = max(session.head().wall, log.physical())
    names = {member.node: member.name for member in membership.members(log, session)}
    return [
        ScheduleShown(
            each.name,
            each.cron,
            each.timezone,
            each.kind,
            view.readable(each.payload),
            msgspec.to_builtins(decode_policy(each.policy)),
            cron.next_tick(each, int(time.time() * 1000)),
            each.last_tick,
            node_text(each.author),
            names.get(each.author),
            permissions.may_schedule(each.author, each.kind, now),
        )
        for each in session.schedules()
    ]
