"""The mesh: its nodes with what each may do, has and runs; the coordinator, routes, peers and agents. And what agents
share: locks with their queues, messages that could not be delivered, and conflicts side by side.
"""

from collections.abc import Mapping
from typing import Any

from hocket.api import agents, inbox, locks, nodes, peers, rights, rows
from hocket.page.views import PageView, ViewCall

# So many of each are shown.
LINES_MAX = 200


def mesh(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    service.check("Mesh", "Read")
    return {
        "title": "Mesh",
        "nodes": nodes.listing.function(service),
        "live": {each.node: each for each in nodes.live.function(service)},
        "coordinator": rights.coordinator.function(service),
        "routes": rights.routes.function(service),
        "peers": peers.listing.function(service).peers,
        "agents": agents.listing.function(service),
        "may_change": call.may("Mesh", "Write"),
    }


def coordination(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    held = [each for each in locks.listing.function(service) if _may_read(call, each)]
    waiting = {
        (each.scope, each.key): locks.show.function(service, each.key, each.scope).waiting for each in held[:LINES_MAX]
    }
    may_inbox = call.program.may_some("Inbox", "Read")
    may_rows = call.program.may_some("Row", "Read")
    return {
        "title": "Coordination",
        "locks": held[:LINES_MAX],
        "waiting": waiting,
        "left_out": max(0, len(held) - LINES_MAX),
        "dead": inbox.dead.function(service, LINES_MAX).items if may_inbox else [],
        "conflicts": rows.conflicts.function(service, limit=LINES_MAX).items if may_rows else [],
        "breakable": {
            (each.scope, each.key) for each in held if service.may("Lock", "Break", *each.keys, scope=each.scope)
        },
        "retryable": call.may,
    }


def _may_read(call: ViewCall, lock: locks.LockShown) -> bool:
    return call.service.may("Lock", "Read", *lock.keys, scope=lock.scope)


COORDINATION = PageView("/coordination", "coordination.html", coordination, "Coordination")
MESH = PageView("/mesh", "mesh.html", mesh, "Mesh")
