"""What the runs of jobs need of their node: blobs, ids, times and quotas for a handler, and the runner of commands."""

from collections.abc import Callable, Iterable
from typing import Any

from hocket.kernel.roster import Job
from hocket.log.output_quota import output_room
from hocket.node.rates import rates_of
from hocket.node.runtime import Runtime
from hocket.node.secret_paths import secret_paths
from hocket.rhythm.score_keeper import keeper_alone
from hocket.store import Session
from hocket.work.artifacts import Fetch
from hocket.work.command.allowance import configured
from hocket.work.command.job import Commands, Premises
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
    tempo = runtime.tempo or (lambda job: keeper_alone(job, physical))
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


def command_runner(
    runtime: Runtime, fetch: Fetch, allow: Iterable[str] = (), allow_any: bool = False, allow_env: Iterable[str] = ()
) -> Commands:
    """The runner of commands on this node: its own, and those of other nodes that the home's configuration or these
    patterns allow, with variables of these names. `fetch` gets content from other nodes.
    """
    allowance = configured(runtime.home.configuration).extended(allow, allow_any, allow_env)
    key, runs = runtime.home.node_key(), runtime.home.runs
    premises = Premises(
        key,
        runtime.log.node,
        runs,
        runtime.secrets,
        runtime.blobs,
        runtime.read,
        fetch,
        runtime.log.physical,
        runtime.output,
        rates_of(runtime.home),
        secret_paths(runtime.home, allowance.hide),
    )
    return Commands(premises, allowance)
