"""What the runs of jobs need of their node: blobs, ids, times and quotas for a handler."""

from collections.abc import Callable
from typing import Any

from hocket.families.jobs.rules import Job
from hocket.log.limits import output_room
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.work.run_outputs import RunServices


def run_services(runtime: Runtime, kind: str, monotonic: Callable[[], float]) -> RunServices:
    """What a run of a job of that kind needs."""

    def audited() -> bool:
        permissions = runtime.log.permissions_reader.latest
        return permissions is None or permissions.authority.audited(runtime.log.node, runtime.log.reading().wall, kind)

    def read(query: Callable[[Session], Any]) -> Any:
        def run() -> Any:
            with runtime.read() as session:
                return query(session)

        return run() if runtime.helpers is None else runtime.helpers.submit(run).result()

    def room(job: Job) -> int | None:
        if job.scheduled.node == runtime.log.node and job.policy.schedule_op is None:
            return None
        now_ms = runtime.log.physical()
        found: int | None = read(lambda s: output_room(s, runtime.log.permissions(s), job, now_ms))
        return found

    return RunServices(
        runtime.blobs,
        runtime.log.reading,
        runtime.log.new_id,
        monotonic,
        audited,
        read,
        output=runtime.output,
        room=room,
        clock_ms=runtime.log.physical,
        pacers=runtime.pacers,
        beat_ms=lambda: None if runtime.beat_ms is None else runtime.beat_ms(),
    )
