"""The log: what has happened, the newest first, as far as the visitor may read it."""

from collections.abc import Mapping
from typing import Any

from hocket.errors import Usage
from hocket.node.log_events import EventNeed, events_of
from hocket.page.views import PageView, ViewCall

# Ops of one page. One that the visitor may not read, or that does not count, has no line.
OPS = 100


def log(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    before = _place(call.query.get("before", ""))
    is_strict = service.runtime.log.rules.is_strict
    with service.read() as session:
        head = session.head()
        end = head.seq if before is None else min(head.seq, before - 1)
        start = max(0, end - OPS)
        rows = [each for each in session.ops_after(start, OPS) if each.seq <= end]
        events = [each.event for each in events_of(session, rows, is_strict) if _may_read(call, each.need)]
    return {
        "title": "Log",
        "events": events[::-1],
        "head": f"{head.seq}:{head.chain.hex()}",
        "before": start + 1 if start else None,
        "is_newest": before is None,
        "names": service.names(),
        "check": call.log_check.state if call.may("Mesh", "Read") else None,
        "may_check": call.may("Mesh", "Write"),
        "changes": "/changes?check",
    }


def _place(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or len(text) > 16 or not int(text):
        raise Usage(f"{text!r} is no place of the log; it is a number above 0")
    return int(text)


def _may_read(call: ViewCall, need: EventNeed) -> bool:
    return call.service.may(need.resource, "Read", *need.words, scope=need.scope)


LOG_VIEW = PageView("/log", "log.html", log, "Log")
