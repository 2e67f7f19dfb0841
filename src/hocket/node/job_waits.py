"""What a job of this node waits for."""

from collections.abc import Sequence

from hocket.mesh.sync_lock import SyncLock
from hocket.mesh.waiting import Waiting, WaitReader
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.work.serving import Serving


def waiting_of(
    runtime: Runtime, job_id: bytes, here: Sequence[Serving] = (), *, is_connected: bool = False
) -> Waiting | None:
    """What a job waits for, as far as this node knows; None if it has ended or is not known. `here` are workers of this
    process that others are not told about; `is_connected` is whether this process syncs while it waits.
    """
    with runtime.read() as session:
        entry = session.job(job_id)
        return None if entry is None else wait_reader(runtime, session, here, is_connected=is_connected)(entry)


def wait_reader(
    runtime: Runtime, session: Session, here: Sequence[Serving] = (), *, is_connected: bool = False
) -> WaitReader:
    is_in_touch = is_connected or SyncLock.is_taken(runtime.home.processes)
    return WaitReader(runtime.log, session, runtime.liveness(), is_in_touch, here)
