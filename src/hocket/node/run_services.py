"""What the runs of jobs need of their node: blobs, ids, times and quotas for a handler."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hocket.kernel.roster import Job
from hocket.log.output_quota import output_room
from hocket.node.runtime import Runtime
from hocket.rhythm.score_keeper import keeper_alone
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

    physical = runtime.log.physical
    tempo = runtime.tempo or partial(keeper_alone, clock_ms=physical)
    return RunServices(
        runtime.blobs,
        runtime.log.reading,
        runtime.log.new_id,
        monotonic,
        audited,
        read,
        output=runtime.output,
        tempo=tempo,
        room=room,
        beat_ms=lambda: runtime.home_beat_ms if runtime.heard_beat_ms is None else runtime.heard_beat_ms(),
    )
