"""A handler process: runs handlers for a worker, which is another process, and reports to it. It writes nothing to the
log but what a handler asks of `ctx.node`. It stops a handler whose lease ends, also if the worker is suspended and does
not say so, and it ends when the worker ends, with every process that its handlers have started in its session.
"""

import fcntl
import importlib.util
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from hocket.errors import HocketError, Usage
from hocket.families.jobs.rules import Job
from hocket.families.lease import run_out
from hocket.kernel.clock import Hlc
from hocket.kernel.extension import loaded
from hocket.node.home import ENVIRONMENT
from hocket.node.local_node import run_services
from hocket.node.node import Node, SyncNode, handler_node
from hocket.node.process_loop import process_loop
from hocket.node.runtime import Runtime
from hocket.work.context import Context
from hocket.work.handler_processes import (
    Channel,
    Close,
    Ended,
    Made,
    Noted,
    Paced,
    PartAdded,
    Ready,
    Renewed,
    Saved,
    Setup,
    Start,
    StuckAt,
    Take,
)
from hocket.work.handler_threads import HandlerThreads
from hocket.work.handlers import REGISTRY, load
from hocket.work.output_capture import catching
from hocket.work.pacing import Limit, Pacer
from hocket.work.run_outputs import RunOutput, RunOutputs, RunServices
from hocket.work.runner import Run, Step

Send = Callable[[NamedTuple], None]

# Threads for what handlers ask of the node; no exception for a handler reaches them.
HELPERS = 4


def main(line: int, lifeline: int) -> None:
    """`line` is the channel's descriptor; `lifeline` is a pipe whose other end the worker has."""
    _end_with(lifeline)
    channel = Channel(Connection(line))
    try:
        setup: Setup = channel.receive()
        sys.argv = list(setup.argv)
        os.environ[ENVIRONMENT] = str(setup.home)
        with Runtime.open(setup.home) as runtime:
            _load(setup)
            channel.send(Ready(None))
            with catching():
                HandlerProcess(channel, runtime, setup.slots).run()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)
    except HocketError as error:
        channel.send(Ready(str(error)))
        channel.close()


def _end_with(lifeline: int) -> None:
    """Has the kernel kill this process group when the pipe's other end is closed. No Python code has to run for that:
    a handler may hold the interpreter's lock.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _load(setup: Setup) -> None:
    """Imports the handlers. Raises Usage if one is not there."""
    load(name if _is_importable(name, file) else file for name, file in setup.modules)
    missing = [kind for kind in setup.kinds if kind not in REGISTRY]
    if missing:
        files = ", ".join(file for _, file in setup.modules)
        raise Usage(
            f"no handler of {', '.join(missing)} after the import of {files}; define it at the top level of its module"
        )


def _is_importable(name: str, file: str) -> bool:
    """Whether the import of this name loads this file."""
    if name == "__main__":
        return False
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None and str(Path(spec.origin).resolve()) == file
    return False


class HandlerProcess:
    def __init__(self, channel: Channel, runtime: Runtime, slots: int) -> None:
        self._channel = channel
        self._runtime = runtime
        self._threads = HandlerThreads(slots, self._finished, time.monotonic)
        self._runs: dict[int, _RemoteRun] = {}
        self._helpers = ThreadPoolExecutor(HELPERS, "hocket-handler-helper")
        self._waiting_node = Node(runtime, self._helpers)

    def run(self) -> None:
        """Until the worker closes the channel."""
        while True:
            message = self._channel.receive(self._patience_s())
            # If a handler has held the interpreter's lock, what came meanwhile counts first.
            message = message or self._channel.receive(0)
            if isinstance(message, Close):
                return
            if message is not None:
                self._heard(message)
                continue
            for run in run_out([run for run in list(self._runs.values()) if not run.stopped], time.monotonic()):
                run.stop()

    def _patience_s(self) -> float | None:
        """How long until the first lease ends."""
        until = min((run.lease.ends_at for run in list(self._runs.values()) if not run.stopped), default=math.inf)
        return None if until == math.inf else max(0.0, until - time.monotonic())

    def _heard(self, message: Any) -> None:
        if isinstance(message, Start):
            kit = run_services(self._runtime, message.claim.job.kind, time.monotonic)._replace(node=self._node)
            run = _RemoteRun(message, kit, self._channel.send)
            self._runs[message.run] = run
            self._threads.start(run)
            if run.started_at is None:  # its lease has ended on the way
                run.stopped = True
                self._finished(run)
            return
        found = self._runs.get(message.run)
        if found is None:
            return
        if isinstance(message, Renewed):
            found.lease.ends_at, found.deadline_ms = message.ends_at, message.deadline_ms
        elif isinstance(message, Take):
            if message.step is None:
                found.stop()
                return
            if message.step is Step.INTERRUPT:
                self._channel.send(StuckAt(found.number, found.stack()))
            found.take(message.step)

    def _node(self, is_async: bool) -> Node | SyncNode:
        """The node for a handler. It is this process's own, and so is the loop on which it waits."""
        return handler_node(self._waiting_node, process_loop(), self._helpers, is_async=is_async)

    def _finished(self, run: Run) -> None:
        assert isinstance(run, _RemoteRun)
        self._runs.pop(run.number, None)
        self._channel.send(Ended(run.number, run.ending(), run.stopped))


class _RemoteRun(Run):
    """A run whose notes and outputs go to the worker."""

    def __init__(self, start: Start, kit: RunServices, send: Send) -> None:
        self.number, self._send, self._twins = start.run, send, start.twins
        super().__init__(start.claim, REGISTRY[start.kind], start.lease_ms, start.claimed_at, kit, Context)

    def _new_pacers(self) -> Mapping[str, Pacer]:
        made: dict[str, Pacer] = {}
        for name, (place, made_of) in self._twins.items():
            made[name] = loaded(place)(made_of, self.job, self.job_type, self._kit, lambda: self.products)
            made[name].tell = partial(self._tell_pacer, name)
        return made

    def _tell_pacer(self, name: str, message: Any) -> None:
        self._send(Paced(self.number, name, message))

    def _new_outputs(self, is_sealed: bool) -> RunOutputs:
        return _Outputs(self.number, self._kit, self.job, self._send)

    def report(self, note: bytes) -> None:
        self._send(Noted(self.number, note))

    def save(self, checkpoint: bytes) -> None:
        self._send(Saved(self.number, checkpoint))

    def _end_at(self, limit: Limit, state: str) -> None:
        """The worker says how the job ends."""

    def add_part(self, written: bytes, is_bytes: bool) -> None:
        super().add_part(written, is_bytes)
        self._send(PartAdded(self.number, written, is_bytes))


class _Outputs(RunOutputs):
    """Outputs that the worker gets as soon as they are made, so that they are kept if this process is killed."""

    def __init__(self, number: int, kit: RunServices, job: Job, send: Send) -> None:
        super().__init__(kit, job)
        self._number = number
        self._send = send

    def add(self, product: RunOutput) -> None:
        super().add(product)
        self._send(Made(self._number, product))

    def begin(self, call_id: bytes, unanswered: Callable[[Hlc], RunOutput]) -> None:
        super().begin(call_id, unanswered)
        self._send(Made(self._number, unanswered(self.kit.now()), call_id, begun=True))

    def end(self, call_id: bytes, record: RunOutput) -> None:
        super().end(call_id, record)
        self._send(Made(self._number, record, call_id))
