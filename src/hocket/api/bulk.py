"""Many jobs at once: count those that match, cancel or retry them."""

import asyncio
from collections.abc import Callable

from hocket.api import Service
from hocket.api.jobs import REASON_CHARS_MAX
from hocket.errors import Usage
from hocket.families.jobs import bulk
from hocket.families.jobs.bulk import CANCEL as CANCEL
from hocket.families.jobs.bulk import RETRY as RETRY
from hocket.families.jobs.bulk import BulkChange, Changed, Selection
from hocket.node.node import Node


def select(
    service: Service, change: BulkChange, state: str | None, kind: str | None, older_than: str | None
) -> Selection:
    """The jobs that these options name."""
    now_ms = service.runtime.log.reading().wall
    return bulk.select(change, now_ms, state=state, kind=kind, older_than=older_than)


def count(service: Service, wanted: Selection) -> int:
    with service.read() as session:
        return bulk.count(session, wanted)


def change_all(
    service: Service, change: BulkChange, wanted: Selection, reason: str, progress: Callable[[int], None]
) -> Changed:
    """Cancels or retries all jobs that match, in transactions of bounded size."""
    service.check_writer()
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")

    async def run() -> Changed:
        node = Node(service.runtime)
        try:
            return await bulk.change_all(node, change, wanted, reason, progress)
        finally:
            await node.finish()

    try:
        return asyncio.run(run())
    finally:
        service.wrote()
