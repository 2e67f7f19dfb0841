"""The mesh: its nodes with what each may do, has and runs; the coordinator, routes, peers, agents and invitations. And
what agents share: locks with their queues, messages that could not be delivered, their threads, and conflicts side by
side.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from hocket.api import agents, inbox, locks, nodes, peers, rights, rows, status
from hocket.kernel.ids import ulid_text
from hocket.page.own_actions import may_invite
from hocket.page.rendering import JSON_CHARS_MAX, whole_json
from hocket.page.views import PageView, ViewCall

# So many of each are shown.
LINES_MAX = 200
# Of so many of the newest messages the threads are shown, and so many threads.
MESSAGES_MAX, THREADS_MAX = 200, 30


def mesh(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    service.check("Mesh", "Read")
    with service.read() as session:
        outbox = status.outbox_status(service, session)
    return {
        "title": "Mesh",
        "outbox": outbox,
        "names": service.names(),
        "nodes": nodes.listing.function(service),
        "live": {each.node: each for each in nodes.live.function(service)},
        "coordinator": rights.coordinator.function(service),
        "routes": rights.routes.function(service),
        "peers": peers.listing.function(service).peers,
        "agents": agents.listing.function(service),
        "may_change": call.may("Mesh", "Write"),
        "may_invite": may_invite(call.program),
        "invitations": peers.invitations(service) if may_invite(call.program) else [],
    }


def coordination(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    held = [each for each in locks.queues(service) if _may_read(call, each.holders[0])]
    may_inbox = call.program.may_some("Inbox", "Read")
    may_rows = call.program.may_some("Row", "Read")
    return {
        "title": "Coordination",
        "locks": held[:LINES_MAX],
        "left_out": max(0, len(held) - LINES_MAX),
        "threads": _threads(call) if may_inbox else [],
        "dead": inbox.dead.function(service, LINES_MAX).items if may_inbox else [],
        "conflicts": rows.conflicts.function(service, limit=LINES_MAX).items if may_rows else [],
        "breakable": {
            (each.scope, each.key)
            for each in held[:LINES_MAX]
            if service.may("Lock", "Break", *each.holders[0].keys, scope=each.scope)
        },
        "retryable": call.may,
        "merged": merged,
    }


class ThreadLine(NamedTuple):
    """A thread: its newest message, and how many of the messages that were looked at are in it."""

    newest: inbox.MessageShown
    messages: int


def _threads(call: ViewCall) -> list[ThreadLine]:
    """The threads of the newest messages that the visitor may read, those with news first."""
    with call.service.read() as session:
        newest = (session.message(each) for each in session.newest_messages(MESSAGES_MAX))
        readable = [each for each in newest if each and call.service.may("Inbox", "Read", each.address.name)]
    newest_of = {each.thread or each.id: ulid_text(each.id) for each in reversed(readable)}
    threads = Counter(each.thread or each.id for each in readable)
    shown = islice(threads.items(), THREADS_MAX)
    return [ThreadLine(inbox.show(call.service, newest_of[id]), messages) for id, messages in shown]


def thread(call: ViewCall, message: str) -> Mapping[str, Any]:
    if not call.program.may_some("Inbox", "Read"):
        call.service.check("Inbox", "Read")
    found = inbox.thread.function(call.service, message, LINES_MAX)
    return {"title": "Thread", "messages": found.items, "is_cut": found.next is not None, "message": message}


def merged(conflict: rows.ConflictShown) -> str | None:
    """What a person begins a merge with; None if it is too long for a form, which would lose its end."""
    text = whole_json(proposal(conflict))
    return text if len(text) <= JSON_CHARS_MAX else None


def proposal(conflict: rows.ConflictShown) -> Any:
    """What both sides have changed, together; where both have changed the same member, it is that of the write."""
    left, right = conflict.left, conflict.right
    if not isinstance(left, dict) or not isinstance(right, dict):
        return left
    base = conflict.base if isinstance(conflict.base, dict) else {}
    gone = [name for name in base if name not in left and right.get(name) == base[name]]
    changed = {name: value for name, value in left.items() if name not in base or base[name] != value}
    return {name: value for name, value in {**right, **changed}.items() if name not in gone}


def _may_read(call: ViewCall, lock: locks.LockShown) -> bool:
    return call.service.may("Lock", "Read", *lock.keys, scope=lock.scope)


COORDINATION = PageView("/coordination", "coordination.html", coordination, "Coordination")
THREAD = PageView("/messages/{message}", "thread.html", thread)
MESH = PageView("/mesh", "mesh.html", mesh, "Mesh")
