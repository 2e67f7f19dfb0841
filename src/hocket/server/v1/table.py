"""Every route of the API, made from the operations."""

from typing import Any

from hocket.api import agents, artifacts, claims, inbox, jobs, kinds, locks, nodes, rows, schedules
from hocket.api.operation import Operation
from hocket.server.v1.routes import ApiRoute, route_of

OPERATIONS: tuple[Operation[..., Any], ...] = (
    *(locks.acquire, locks.listing, locks.show, locks.renew, locks.release, locks.break_),
    *(inbox.send_message, inbox.list_messages, inbox.claim_messages, inbox.dead),
    *(inbox.ack, inbox.nack, inbox.retry, inbox.thread),
    *(rows.listing, rows.get, rows.put, rows.delete),
    *(rows.conflicts, rows.conflict, rows.resolve),
    *(nodes.listing, nodes.live, nodes.find, nodes.drain, nodes.quarantine, nodes.resume),
    *(nodes.routes, nodes.route, nodes.coordinator),
    *(agents.listing, agents.beat),
    *(jobs.listing, jobs.show, jobs.history, jobs.result_of, jobs.cancel, jobs.retry, claims.explain),
    *(artifacts.page, artifacts.show, kinds.listing, schedules.listing, schedules.remove),
)

ROUTES: tuple[ApiRoute, ...] = tuple(map(route_of, OPERATIONS))
