"""The tempo of a worker: its policy, which beats it follows, and what it tells others on each beat. A worker without a
policy has no tempo, and pays nothing for it.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import Usage
from hocket.events import Emit
from hocket.kernel.beats.file_fields import FILE_BYTES_MAX, BadField
from hocket.kernel.beats.phases import BeatsLong, parse_length
from hocket.kernel.beats.policy import TempoPolicy, read_policy
from hocket.kernel.candidates import worker_id
from hocket.kernel.ids import node_text
from hocket.kernel.policy import LEASE_MS_MIN
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from hocket.rhythm.beat_source import BeatSource, LocalBeats, hold_ms
from hocket.store import JobFilter, Session, Stage
from hocket.work.supervision import supervised
from hocket.work.worker import WorkerOptions

if TYPE_CHECKING:
    from hocket.node.local_node import LocalNode

FILE = "tempo.yaml"


def tempo_policy(home: Home, path: PathLike[str] | str | None = None) -> TempoPolicy | None:
    """The policy at `path`, or the home's own; None if it has none. Raises Usage with what is wrong in the file."""
    file = home.path / FILE if path is None else Path(path).expanduser()
    try:
        with file.open("rb") as opened:
            return read_policy(opened.read(FILE_BYTES_MAX + 1))
    except FileNotFoundError:
        if path is None:
            return None
        raise Usage(f"no tempo policy at {file}") from None
    except OSError as error:
        raise Usage(f"cannot read the tempo policy {file}: {error.strerror}") from None
    except BadField as error:
        raise Usage(f"bad tempo policy {file}: {error}") from None


def length_ms(runtime: Runtime, length: str | float) -> int:
    """How long a hold lasts that is taken now: a duration, or beats such as "4b" by the home's policy. Raises
    ValueError, and Usage if beats are given and the home has no policy.
    """
    found = parse_length(length)
    if not isinstance(found, BeatsLong):
        return found
    policy = tempo_policy(runtime.home)
    if policy is None:
        raise Usage(f"{length} is a length in beats, and this node has no tempo; write {runtime.home.path / FILE}")
    return hold_ms(LocalBeats(policy, runtime.log.physical).now(), policy.phases, found.beats)


@asynccontextmanager
async def worker_beats(node: "LocalNode", policy: TempoPolicy, emit: Emit) -> AsyncIterator[BeatSource]:
    """The beats that a worker follows."""
    yield LocalBeats(policy, node.runtime.log.physical)


@asynccontextmanager
async def in_tempo(node: "LocalNode", options: WorkerOptions, policy: TempoPolicy | None) -> AsyncIterator[None]:
    """A worker that is made with these options inside the block keeps to the tempo, and tells others what it runs."""
    if policy is None:
        yield
        return
    from hocket.node.help import answered_at
    from hocket.rhythm.promise_watch import PromiseWatch
    from hocket.rhythm.status_claims import StatusClaims
    from hocket.rhythm.tempo_messages import TempoMessages

    def ready(session: Session) -> int:
        return session.job_count(JobFilter((Stage.READY,)))

    async def answered(thread_id: str, agent_id: str) -> int | None:
        return await node.peek(lambda session: answered_at(session, thread_id, agent_id))

    log, emit = node.runtime.log, options.emit
    async with worker_beats(node, policy, emit) as beats:
        beats_now = beats.now
        agent_id = worker_id(log.node, node.environment.name("worker"))
        claims = StatusClaims(beats, agent_id, options.concurrency, log.reading, lambda: node.peek(ready))
        messages = None if options.messages is None else TempoMessages(options.messages, log.user)
        watch = PromiseWatch(messages, policy.cluster_id, log.reading, lambda: beats_now().at_ms, answered)
        tasks: list[tuple[str, Callable[[], Awaitable[None]]]] = []
        if messages is not None:
            tasks.append(("telling what runs", functools.partial(claims.send, messages)))
            tasks += [("telling of promises", watch.send), ("hearing of promises", watch.hear)]
        node.runtime.tempo, options.emit = claims.keeper, claims.listening(emit)
        node.runtime.promises = watch
        if options.weighs_promises:
            # A weight that changes by little all the time would only make others rank anew.
            options.reliability = lambda: round(watch.counts.of_node(node_text(log.node), beats_now().at_ms), 1)
        options.hold_ms = lambda beats: max(LEASE_MS_MIN, hold_ms(beats_now(), policy.phases, beats))
        running = [asyncio.create_task(supervised(name, make, emit, node.environment)) for name, make in tasks]
        try:
            yield
        finally:
            node.runtime.tempo = node.runtime.promises = None
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
