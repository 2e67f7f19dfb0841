"""`hocket work`: runs a worker in this process until a signal stops it. The first SIGTERM or SIGINT lets running
handlers finish within the grace; the second returns their jobs to the queue now; the third kills the process.
"""

import asyncio
import functools
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any

from hocket.api import Service, peers, rights
from hocket.cli import INTERRUPTED
from hocket.cli.declarations import Argument, Option
from hocket.cli.long_running import LogLines, MetricsOption, monitored, open_patiently, start_logging, until_answered
from hocket.cli.options import BusOption, LogFormatOption, QuietOption, VerboseOption, seconds
from hocket.cli.printing import console, emit, on_terminal, say
from hocket.cli.settings import settings
from hocket.errors import Failed, NotAuthorised, StoreError, Usage
from hocket.events import Emit
from hocket.events.event_logging import log_event
from hocket.events.workers import KindsNotClaimable, WorkerStarted, WorkerStopping
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.extension import extension_kinds, loaded
from hocket.kernel.texts import clean, counted
from hocket.node.home import ENVIRONMENT
from hocket.node.message_bus import BusSettings, bus_settings
from hocket.node.node import Node, handler_processes, worker_parts
from hocket.node.runtime import Runtime
from hocket.node.signals import stopped_by_signals
from hocket.work.environment import WorkerOptions
from hocket.work.handler_threads import PROCESSES_MAX
from hocket.work.handlers import Handlers, load
from hocket.work.output_capture import catching
from hocket.work.presence import WorkerPart
from hocket.work.runner import Run
from hocket.work.worker import Worker

if TYPE_CHECKING:
    from rich.status import Status

CONCURRENCY_MAX = 1_000
AHEAD_MAX = 1_000
# How often a worker checks whether its node was revoked.
RIGHTS_S = 5.0


def work(
    modules: Annotated[
        list[str] | None, Argument("MODULE...", "Modules with handlers: dotted names or .py files.", show_default=False)
    ] = None,
    concurrency: Annotated[
        int | None,
        Option(
            "--concurrency", "N", "How many jobs run at once. Default: 4, or one a process.", min=1, max=CONCURRENCY_MAX
        ),
    ] = None,
    processes: Annotated[
        int | None,
        Option(
            "--processes",
            "N",
            "Run handlers in N processes, which are killed if a handler does not stop.",
            min=1,
            max=PROCESSES_MAX,
        ),
    ] = None,
    kinds: Annotated[
        list[str] | None, Option("--kinds", "KIND", "Only this kind; `acme.` for all below acme. May be repeated.")
    ] = None,
    ahead: Annotated[
        int | None,
        Option("--ahead", "N", "How many jobs to claim beyond the running ones. Default: 256.", min=0, max=AHEAD_MAX),
    ] = None,
    label: Annotated[
        list[str] | None,
        Option("--label", "LABEL", "Also take jobs that need this label: gpu, or gpu=a100; may be repeated."),
    ] = None,
    weight: Annotated[
        float, Option("--weight", "N", "Its share of the jobs that go by rank: 2 gets twice the jobs of 1.")
    ] = 1.0,
    weigh_promises: Annotated[
        bool, Option("--weigh-promises", help="With a tempo: a lower weight after agents of this node broke promises.")
    ] = False,
    until_idle: Annotated[
        bool, Option("--until-idle", help="Exit when no job is left that this worker could run.")
    ] = False,
    fail: Annotated[
        bool, Option("--fail", help="With --until-idle: exit code 1 if a job has failed for good.")
    ] = False,
    grace: Annotated[str, Option("--grace", "DURATION", "How long handlers may run after the first signal.")] = "10s",
    allow: Annotated[
        list[str] | None, Option("--allow", "PATTERN", "Run matching commands of other nodes, like 'ffmpeg -i *'.")
    ] = None,
    allow_any: Annotated[bool, Option("--allow-any", help="Run every command of other nodes.")] = False,
    allow_env: Annotated[
        list[str] | None, Option("--allow-env", "NAME", "Let commands of other nodes set this variable.")
    ] = None,
    tempo: Annotated[
        str | None,
        Option(
            "--tempo",
            "POLICY",
            "Keep to the beats of this tempo policy. Default: tempo.yaml in the home, if there is one.",
            show_default=False,
        ),
    ] = None,
    bus: BusOption = None,
    metrics: MetricsOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
) -> None:
    """Run a worker: claim jobs, run their handlers, record the outcomes on the log.

    A handler is a function in one of the modules:

    \b
      import hocket
      @hocket.job("acme.render", retries=3)
      def render(ctx, frame):
          return {"file": f"{frame}.png"}

    \b
      hocket work tasks.py
      hocket work acme.tasks --concurrency 8 --kinds acme.render --until-idle
      hocket work tasks.py --processes 4
      hocket work acme.tasks --label gpu=a100
      hocket work --allow 'ffmpeg -i * *.mp4'
      hocket work tasks.py --metrics 9464

    Every worker runs the commands (`hocket run`) of its own node; a worker without modules runs nothing else. It runs
    commands of other nodes only if --allow, --allow-any or the home's config.toml permits them. A pattern is matched
    argument by argument; a last word ** matches any further arguments.

    SIGTERM or Ctrl-C lets handlers finish within the grace, then returns their jobs to the queue. A second one returns
    them at once. The exit code is 130 after Ctrl-C, 0 after SIGTERM.

    When as many handlers are stuck as there are slots, the worker starts itself anew under the same process id.
    """
    if fail and not until_idle:
        raise Usage("--fail is for --until-idle; give both, or neither")
    grace_s = seconds(grace, "--grace")
    assert grace_s is not None
    lines = start_logging(verbose, quiet, log_format)
    with open_patiently(log_event) as runtime:
        # A handler that opens a node gets this one.
        os.environ[ENVIRONMENT] = str(runtime.home.path)
        found = load(modules or ())
        lines.name_nodes(Service(runtime).names)
        lines.show_handlers()
        servers = bus_settings(runtime.home, bus)
        if modules and not any(each.function is not None for each in found):
            raise Usage(f"no handlers in {', '.join(modules)}; decorate a function with @hocket.job(kind)")
        with worker_parts(runtime, log_event, allow, allow_any, allow_env) as parts:
            types = [*found, *(each.job_type() for each in parts)]
            handlers = Handlers(types, kinds or ())
            if unmatched := handlers.unmatched():
                known = ", ".join(sorted(each.kind for each in types))
                raise Usage(f"--kinds {unmatched[0]} matches no handler; there are {known}")
            slots = concurrency or processes or 4
            options = WorkerOptions(handlers, slots, until_idle, grace_s, ahead, label or (), weight=weight)
            options.settings = {"tempo": tempo, "weighs_promises": weigh_promises}
            if served := Handlers(found):
                # Without a process that can import them, jobs that must be alone take the whole worker.
                with nullcontext() if processes else suppress(Usage):
                    options.processes = handler_processes(runtime, processes or 0, served)
            shift = Shift(runtime, options, parts, lines, servers, metrics)
            with catching(lines.show_print):
                asyncio.run(shift.run())
    shift.replace_process()
    shift.report(fail)


class Shift:
    """One run of a worker, with its signals and its counter."""

    def __init__(
        self,
        runtime: Runtime,
        options: WorkerOptions,
        parts: Sequence[WorkerPart],
        lines: LogLines,
        servers: BusSettings | None = None,
        metrics: str | None = None,
    ) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._servers = servers
        self._parts = parts
        self._options = options
        self._emit: Emit = log_event
        self._lines = lines
        self._worker: Worker | None = None
        self._signals = 0
        self._interrupted = False
        self._failed_jobs = 0
        self._rights_lost = ""
        self._status: Status | None = None

    async def run(self) -> None:
        node = Node(self._runtime)
        monitoring, self._emit = monitored(node, self._metrics, self._troubles)
        self._options.emit = self._emit
        try:
            if self._servers is not None:
                await node.message_bus(self._emit, self._servers)
            async with node.worker(self._options, self._parts) as self._worker:
                await self._work(node, self._worker, monitoring)
        finally:
            await node.finish()

    async def _work(self, node: Node, worker: Worker, monitoring: AbstractAsyncContextManager[object]) -> None:
        with stopped_by_signals(self._signalled) as received, self._counter(await self._served(node)):
            served = [each for each in self._parts if self._options.handlers.find(each.kind) is not None]
            places = {each.kind: each.server for each in extension_kinds()}
            servers = [loaded(places[each.kind])(node, worker, each) for each in served if places[each.kind]]
            self._options.finished = functools.partial(self._finished, servers)
            async with monitoring, node.in_touch(self._emit), AsyncExitStack() as stack:
                for server in servers:
                    await stack.enter_async_context(server)
                watching = asyncio.create_task(self._watch_rights(worker))
                await worker.run()
                watching.cancel()
            self._interrupted = received.is_interrupt

    async def _watch_rights(self, worker: Worker) -> None:
        """Stops the worker when its node has lost its rights. What the coordinator said before this process began may
        be out of date, so it must have said so twice.
        """
        before = None
        while True:
            await asyncio.sleep(RIGHTS_S)
            with suppress(StoreError):
                lost = await asyncio.to_thread(peers.rights_lost, Service(self._runtime))
                if lost is not None and before is not None:
                    self._rights_lost = lost
                    worker.stop()
                    return
                before = lost

    def _troubles(self) -> list[str]:
        return ["this worker stops"] if self._worker is not None and self._worker.is_stopping else []

    async def _served(self, node: Node) -> list[str]:
        """The kinds that this worker really serves: those of its handlers that its node may claim. It says which it may
        not, except kinds of extensions, which every worker would run.
        """
        kinds = self._options.handlers.kinds()
        worker = self._worker
        assert worker is not None
        denied = await until_answered(
            lambda: node.call(lambda: rights.not_claimable(Service(self._runtime), kinds)),
            self._emit,
            lambda: worker.is_stopping,
        )
        if denied is None:
            return kinds
        served = [each for each in kinds if each not in denied]
        if told := [each for each in denied if not served or each not in {part.kind for part in self._parts}]:
            log_event(KindsNotClaimable(tuple(told)))
        return served

    def _signalled(self) -> None:
        assert self._worker is not None
        self._signals += 1
        if self._signals == 1:
            log_event(WorkerStopping(self._options.grace))
        elif self._signals > 2:
            os._exit(1)
        self._worker.stop()

    def _counter(self, kinds: list[str]) -> Any:
        """Shows a status line with counts on a terminal."""
        started = WorkerStarted(os.getpid(), tuple(kinds))
        if settings.as_json or not on_terminal(sys.stderr) or os.environ.get("NO_COLOR"):
            log_event(started)
            return nullcontext()
        self._status = status = console(sys.stderr).status(f"serving {clean(started.served)}")
        self._lines.write = lambda line: status.console.print(line, markup=False)
        return status

    def _finished(self, servers: Iterable[Any], run: Run, outcome: Job | Reason) -> None:
        for each in servers:
            each.finished(run, outcome)
        self._failed_jobs += isinstance(outcome, Job) and outcome.outcome is Outcome.FAILED
        if self._status is not None:
            self._status.update(self._sum())

    def _sum(self) -> str:
        worker = self._worker
        assert worker is not None
        postponed = f", {worker.postponed} postponed" if worker.postponed else ""
        return f"{worker.succeeded} succeeded, {worker.failed} failed, {worker.handed_back} handed back{postponed}"

    def replace_process(self) -> None:
        """Starts this program anew in the same process if every slot has a stuck handler; otherwise returns."""
        assert self._worker is not None
        if self._worker.is_spent and not self._signals:
            sys.stdout.flush()
            sys.stderr.flush()
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def report(self, fail: bool) -> None:
        worker = self._worker
        assert worker is not None
        emit({"succeeded": worker.succeeded, "failed": worker.failed, "handed_back": worker.handed_back})
        say(f"done: {self._sum()}")
        if self._rights_lost:
            raise NotAuthorised(f"this node may no longer work in its mesh: {self._rights_lost}")
        if self._signals:
            # A handler that did not stop, or a thread that it started, must not delay the exit.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED if self._interrupted else 0)
        if fail and self._failed_jobs:
            raise Failed(f"{counted(self._failed_jobs, 'job')} failed; `hocket jobs --state failed` lists them")
