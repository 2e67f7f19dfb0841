"""The API of a node for programs. `async with hocket.open() as node` gives a `Node`, `with hocket.open() as node` a
`SyncNode`. Both submit jobs, return handles and run workers, over the same runtime.
"""

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from hocket.bus.changes import ANYTHING, Changes
from hocket.errors import Failed, StoreAway, Unreachable, Usage
from hocket.events import Emit, ignore, sentences
from hocket.families.inbox import requests as messages
from hocket.kernel.ids import ulid_text
from hocket.kernel.parts import Part
from hocket.kernel.policy import DEFAULT
from hocket.kernel.rate_card import Estimate
from hocket.kernel.roster import Job
from hocket.log import Transaction
from hocket.mesh.window_tokens import TOKEN_BARS
from hocket.node import cost_reports as reports
from hocket.node import handles
from hocket.node.delivery import Delivery
from hocket.node.embedded import Started, beside, on_a_thread
from hocket.node.estimates import check_budgets, estimate_of
from hocket.node.handles import Handle, SyncHandle
from hocket.node.help import helper
from hocket.node.inbox import (
    Attached,
    Body,
    Duration,
    Inbox,
    MessageData,
    ReceivedMessage,
    SyncInbox,
    ask,
    draft_of,
    node_of,
)
from hocket.node.kept_requests import keep_jobs, keep_message, send_kept, written_or_kept
from hocket.node.local_node import LOOK_AGAIN_S, LocalNode, fetch_for, still_open
from hocket.node.locks import HeldLock, LockOptions, NodeLock, locked_on_a_thread
from hocket.node.rates import rates_of
from hocket.node.requests import accepted, drafts_of, id_of, kept, pairs_of
from hocket.node.rows import RowTable, SyncRowTable
from hocket.node.run_services import run_services
from hocket.node.runtime import Runtime
from hocket.node.signals import held_interrupts, stopped_by_signals
from hocket.node.stream_news import StreamNews
from hocket.node.tempo_policy import tempo_policy
from hocket.node.window_secret import ProjectSecret, project_secret
from hocket.node.worker_tempo import hold_length, in_tempo
from hocket.store import Session
from hocket.work import bulk, chains, jobs
from hocket.work.bulk import CANCEL, RETRY, BulkChange, Changed, Which
from hocket.work.command import request
from hocket.work.command.request import CommandRequest
from hocket.work.costs import CostRow, Costs, CostsBy
from hocket.work.event_logging import logged
from hocket.work.handlers import Handlers, JobType, named_kind
from hocket.work.jobs import Draft, Offer, Result, Submitted
from hocket.work.output_capture import catching
from hocket.work.pending_decisions import Decision
from hocket.work.process_plan import ProcessPlan, plan
from hocket.work.roster_queries import RosterAsk, claimable, overdue
from hocket.work.run_outputs import RunServices
from hocket.work.serving import serving
from hocket.work.tracing import tracer
from hocket.work.worker import Worker, WorkerOptions

if TYPE_CHECKING:
    from hocket.node.requests import Pairs, Step

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

SubmitDrafts = Callable[[Transaction, list[Draft]], list[Submitted]]

WORKERS_OWN = "this node belongs to the worker, which closes it"


def handler_processes(runtime: Runtime, count: int, handlers: Handlers) -> ProcessPlan:
    """How a worker of this node runs these handlers in processes. Raises Usage if a process could not import them."""
    return plan(count, "hocket.node.handler_process", runtime.home.path, handlers.served())


def _chain(count: int) -> list[range]:
    """Which of so many jobs each comes after, by their places: the one before it."""
    return [range(max(0, at - 1), at) for at in range(count)]


class Node(LocalNode):
    """The async API."""

    @overload
    async def submit(self, job: JobType[P, R], /, *args: P.args, **payload: P.kwargs) -> Handle[R]: ...
    @overload
    async def submit(self, job: str | CommandRequest, /, **payload: Any) -> Handle[Any]: ...
    async def submit(self, job: JobType[Any, Any] | str | CommandRequest, /, *args: Any, **payload: Any) -> Handle[Any]:
        """Submits one job. The members of its payload are the handler's arguments. A `command` has none."""
        if not isinstance(job, JobType | str):
            blobs, secrets = self.runtime.blobs, self.runtime.secrets
            packed = await self.call(lambda: request.pack(job, blobs))
            await self._check_budgets([packed.draft])
            job_id = await self.run(lambda tx: request.submit(tx, blobs, secrets, packed))
            self.wrote()
            return Handle(self, job_id, created=True)
        job_type, log = named_kind(job), self.runtime.log
        draft = job_type.draft(payload, args)
        if job_type.policy is not DEFAULT or tracer() is not None:
            return (await self._submit([job_type], [draft], jobs.submit))[0]
        # The job has no special options, so it takes the fast path, unless other submits wait to share a commit.
        submit: Callable[[Transaction], bytes] = lambda tx: jobs.submit(tx, [draft])[0].job_id  # noqa: E731
        alone = lambda: log.append_plain(draft.kind, draft.payload) or log.run(submit, beside=True)  # noqa: E731

        async def write() -> list[Submitted]:
            return [Submitted(await self._committer.run(submit, alone=alone, beside=True), created=True)]

        made = await self._written_or_kept(write, lambda error: keep_jobs(self.runtime, error, [draft]))
        return Handle(self, *made[0], job_type.signature)

    async def submit_many(self, pairs: "Pairs") -> list[Handle]:
        """Submits many jobs in one transaction: all or none."""
        types, drafts = drafts_of(pairs)
        return await self._submit(types, drafts, jobs.submit)

    async def chain(self, *steps: "Step") -> list[Handle]:
        """Submits jobs that run one after the other, each when the one before it has succeeded: all or none. A step is
        a job with its payload, or without one; `ctx.results` has the result of the step before.
        """
        types, drafts = drafts_of(pairs_of(steps))
        return await self._submit(types, drafts, chains.submit)

    async def _submit(self, types: list[JobType], drafts: list[Draft], submit: SubmitDrafts) -> list[Handle]:
        async def write() -> list[Submitted]:
            await self._check_budgets(drafts)
            return await self.run(lambda tx: submit(tx, drafts), beside=True)

        cited = _chain(len(drafts)) if submit is chains.submit else ()
        made = await self._written_or_kept(write, lambda error: keep_jobs(self.runtime, error, drafts, cited))
        return [Handle(self, *each, type.signature) for type, each in zip(types, made, strict=True)]

    async def _written_or_kept(
        self, write: Callable[[], Awaitable[T]], keep: Callable[[StoreAway], T], to: int | None = None
    ) -> T:
        """Writes, after all that was kept before, and tells the other nodes. If the database is away, calls `keep`."""
        runtime = self.runtime
        try:
            if runtime.spool is not None and runtime.spool.is_waiting:
                await self.call(lambda: send_kept(runtime))
            made = await write()
        except StoreAway as error:
            reason = error
            return await self.call(lambda: keep(reason))
        runtime.kept = None
        self.wrote(to)
        return made

    async def _check_budgets(self, drafts: list[Draft]) -> None:
        if any(each.policy.budget is not None for each in drafts):
            await self.call(lambda: check_budgets(self.runtime, drafts))

    async def cost(self, job_id: str) -> CostRow:
        """What a job used and cost so far, by this node's rate card."""
        return await self.call(lambda: reports.job_cost(self.runtime, job_id))

    async def costs(self, by: CostsBy | str = CostsBy.KIND, *, since_ms: int = 0) -> Costs:
        """What the runs cost that ended since that time, by "kind", "node" or "account"."""
        return await self.call(lambda: reports.costs(self.runtime, by, since_ms))

    async def estimate(self, kind: str) -> Estimate | None:
        """What a job of this kind is expected to cost, from those that succeeded; None without any."""
        return await self.call(lambda: estimate_of(self.runtime, kind))

    async def gather(self, *waited: Handle[R], timeout: float | None = None) -> list[R]:
        """Waits for all of the jobs and returns their results in this order. Raises JobFailed or JobCancelled when one
        of them ends so, and TimeoutError.
        """
        found = await handles.results(self, [each._id for each in waited], timeout)
        return [handles.typed(each._signature, each._id, value) for each, value in zip(waited, found, strict=True)]

    def rows(self, table: str, *, agent: str = "") -> RowTable:
        """The rows of a table, which several agents may write. `agent` is the name under which this one does."""
        return RowTable(self, table, agent)

    def job(self, job_id: str) -> Handle:
        """A handle on an existing job, by its full id."""
        return Handle(self, id_of(job_id), created=False)

    async def claimable(self, kind: str | None = None, *, limit: int = 50) -> list[Handle]:
        """The pending jobs of a kind (`acme.` for all kinds below acme) that this node may claim now, the oldest
        first.
        """
        found = await self.call(lambda: _asked(self.runtime, claimable, kind, limit))
        return [Handle(self, each, created=False) for each in found]

    async def overdue(self, kind: str | None = None, *, limit: int = 50) -> list[Handle]:
        """The claimed jobs of a kind that are past their deadline, the oldest first."""
        found = await self.call(lambda: _asked(self.runtime, overdue, kind, limit))
        return [Handle(self, each, created=False) for each in found]

    async def cancel_many(self, **which: Unpack[Which]) -> Changed:
        """Cancels every job of a `kind` (`acme.` means all kinds below it), in a `state` (`waiting` or `running`; both
        if not given), submitted longer ago than `older_than`. Each transaction writes a bounded number of jobs.
        """
        return await self._change(CANCEL, **which)

    async def retry_many(self, **which: Unpack[Which]) -> Changed:
        """Retries every job that `which` selects, as in `cancel_many`. The state is `failed`, if not given, or
        `cancelled`.
        """
        return await self._change(RETRY, **which)

    async def _change(self, change: BulkChange, **which: Unpack[Which]) -> Changed:
        try:
            return await bulk.change_which(self, change, **which)
        except Unreachable as error:
            raise kept(error) from error
        finally:
            self.wrote()

    def secret(self, project: str, role: str, *, bars: int = TOKEN_BARS) -> ProjectSecret:
        """The secret of a project and a role, which changes on each downbeat of the tempo in force. Its tokens are void
        `bars` bars later.
        """
        return project_secret(self.runtime.home, project, role, self.runtime.log.physical, bars)

    def lock(self, *keys: str, agent: str, **options: Unpack[LockOptions]) -> NodeLock:
        """Holds these keys, all at once, in an `async with` block. See `LockOptions`."""
        return NodeLock(self, self.lock_processes, keys, agent, partial(hold_length, self.runtime), **options)

    async def send(
        self,
        to: str,
        body: Body,
        *,
        agent: str | None = None,
        type: str = "",
        thread: str | None = None,
        reply_to: str | None = None,
        priority: int = 0,
        ttl: Duration | None = None,
        attachments: Iterable[Attached] = (),
    ) -> str:
        """Sends a message to an agent (`editor`, `editor@gpu-box`), a group (`team/`) or `all`, and returns its id. The
        body is text, bytes or anything that can be JSON; an attachment is a path, or a name with bytes or a path.
        """
        runtime, attached = self.runtime, list(attachments)
        given: dict[str, Any] = {"type": type, "thread": thread, "reply_to": reply_to, "priority": priority, "ttl": ttl}
        given |= {"agent": agent, "attachments": attached}

        async def write() -> bytes:
            draft = await self.call(lambda: draft_of(runtime.log, runtime.blobs, to, body, **given))
            message_id = await self.run(lambda tx: messages.send(tx, runtime.blobs, draft))
            self.wrote(node_of(draft))
            return message_id

        return ulid_text(
            await self._written_or_kept(write, lambda error: keep_message(runtime, error, to, body, **given))
        )

    def inbox(self, agent: str | None = None) -> Inbox:
        """The messages of an agent of this node; default $HOCKET_AGENT, else this machine's user."""
        return Inbox(self, agent)

    async def ask(
        self, to: str, body: Body, *, wait: Duration = "30s", agent: str | None = None, **options: Any
    ) -> ReceivedMessage:
        """Sends a message and returns the reply. Raises TimeoutError if none comes in time."""
        return await ask(self, to, body, wait, agent, options)

    async def work(
        self,
        handlers: Handlers | Iterable[JobType],
        *,
        allow: Iterable[str] | None = None,
        allow_any: bool = False,
        allow_env: Iterable[str] = (),
        processes: int | None = None,
        events: Emit = ignore,
        notice: Callable[[str], None] | None = None,
        signals: bool = True,
        started: Started = lambda worker: None,
        tempo: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Worker:
        """Runs a worker in this process until SIGTERM or SIGINT; a second signal stops it at once. With `signals=False`
        it leaves the signals to the program. If the task that runs it is cancelled, it hands its jobs back. With
        `allow` or `allow_any` it also runs commands: this node's own, and those of other nodes that match a pattern
        and set only variables in `allow_env`.

        With `processes` the handlers run in that many processes, which import the handlers' modules; a handler that
        does not stop at its timeout is killed with its process.

        `tempo` is the file of a tempo policy; default `tempo.yaml` in the home, if there is one.

        Options: `concurrency` (how many jobs run at once, 4), `until_idle` (return when no job is left), `grace`
        (seconds that handlers may run after the first signal, 10), `ahead` (how many jobs it claims beyond the running
        ones, 256), `labels` (what jobs may need, like "gpu=a100"), `weight` (its share of the
        jobs that go by rank, 1), `finished` (called with each run and its outcome), `started` (called with the worker
        when it begins; its `stop` does what a signal does).

        `events` is called with every event, `notice` with a sentence about each event that is not routine. Both are
        called in the event loop's thread or in one that talks to other nodes, and must not block. Events also go to the
        logger `hocket`. What handlers print and log is kept for `hocket logs`.

        Raises Failed if as many handlers are stuck as there are slots: then only a new process helps.
        """
        served = handlers if isinstance(handlers, Handlers) else Handlers(handlers)
        if processes is not None:
            if processes < 1:
                raise Usage(f"{processes} processes are too few; give at least 1")
            options = (
                {"concurrency": processes} | options | {"processes": handler_processes(self.runtime, processes, served)}
            )
        commands = None
        with ExitStack() as stack:
            if allow is not None or allow_any:
                # It loads 40 modules, and most programs' workers run no commands.
                from hocket.node.command_runner import command_runner

                commands = command_runner(self.runtime, fetch_for(self.runtime), allow or (), allow_any, allow_env)
                stack.callback(commands.close)
                served = served.plus(commands.job_type())
            emit = logged(events if notice is None else sentences(notice, also=events))
            told = serving(served.topics(), None if commands is None else commands.allowance)
            options = {"rates": rates_of(self.runtime.home)} | options
            chosen = WorkerOptions(served, emit=emit, serving=told, **options)
            chosen.messages = chosen.messages or await self.mesh_messages(emit)
            if commands is not None:
                for warning in commands.warnings():
                    emit(warning)
            async with in_tempo(self, chosen, tempo_policy(self.runtime.home, tempo)):
                worker = Worker(self, self.environment, chosen)
                if signals:
                    stack.enter_context(stopped_by_signals(worker.stop))
                stack.enter_context(catching())
                async with self.in_touch(emit):
                    started(worker)
                    await worker.run()
        if worker.is_spent:
            raise Failed("every slot has a handler that does not end; only a new process is rid of them, so restart it")
        return worker

    def holding(self, shortest_lease_s: Callable[[], float]) -> AbstractContextManager[None]:
        breaker = self.runtime.store_breaker
        return nullcontext() if breaker is None else breaker.holding(shortest_lease_s)

    def kit(self, kind: str) -> RunServices:
        loop = asyncio.get_running_loop()

        def node(is_async: bool) -> Node | SyncNode:
            executor = self._mesh_executor
            return AsyncHandlerNode(self, executor, loop) if is_async else PlainHandlerNode(self.runtime, executor)

        kit = run_services(self.runtime, kind, self.environment.monotonic)
        asking = helper(lambda: AsyncHandlerNode(self, self._mesh_executor, loop), self.runtime.promises)
        return kit._replace(node=node, stream=self.part_sender().tell, ask_help=asking)

    def working(self, handlers: Handlers | Iterable[JobType], **options: Any) -> AbstractAsyncContextManager[Worker]:
        """Runs a worker beside an `async with` block. At its end the worker stops, as after a first signal; if the
        block is cancelled, it hands its jobs back at once. Signals stay the program's; the other options are those of
        `work`.
        """
        return beside(lambda started: self.work(handlers, signals=False, started=started, **options))


class SyncNode:
    """The synchronous API, for scripts. Safe to use from several threads."""

    def __init__(self, runtime: Runtime, delivery: Delivery | None = None) -> None:
        self._runtime: Runtime | None = runtime
        self._delivery = delivery

    @property
    def runtime(self) -> Runtime:
        return still_open(self._runtime)

    def close(self) -> None:
        """Closes the node. A node that is closed already stays as it is."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if self._delivery is not None:
                self._delivery.close()
            runtime.close()

    def wrote(self, to: int | None = None) -> None:
        """Something is on the log that others must get, above all node `to`."""
        if self._delivery is not None:
            self._delivery.wrote(to)

    def call(self, work: Callable[[], T]) -> T:
        """Runs a function that touches the store."""
        return work()

    @overload
    def submit(self, job: JobType[P, R], /, *args: P.args, **payload: P.kwargs) -> SyncHandle[R]: ...
    @overload
    def submit(self, job: str | CommandRequest, /, **payload: Any) -> SyncHandle[Any]: ...
    def submit(self, job: JobType[Any, Any] | str | CommandRequest, /, *args: Any, **payload: Any) -> SyncHandle[Any]:
        """Submits one job. The members of its payload are the handler's arguments. A `command` has none."""
        runtime = self.runtime
        if not isinstance(job, JobType | str):
            packed = request.pack(job, runtime.blobs)
            self.call(lambda: check_budgets(runtime, [packed.draft]))
            submit = lambda tx: request.submit(tx, runtime.blobs, runtime.secrets, packed)  # noqa: E731
            job_id = self.call(lambda: runtime.log.run(submit))
            self.wrote()
            return SyncHandle(self, job_id, True)
        job_type = named_kind(job)
        draft = job_type.draft(payload, args)
        if job_type.policy is DEFAULT and tracer() is None:
            # The job has no special options, so it takes the fast path, unless its kind has some.
            append = lambda: runtime.log.append_plain(draft.kind, draft.payload)  # noqa: E731
            keep = lambda error: keep_jobs(runtime, error, [draft])[0].job_id  # noqa: E731
            plain = self._written_or_kept(append, keep)
            if plain is not None:
                return SyncHandle(self, plain, True, job_type.signature)
        return self._submit([job_type], [draft], jobs.submit)[0]

    def _written_or_kept(self, write: Callable[[], T], keep: Callable[[StoreAway], T]) -> T:
        """Writes, after all that was kept before, and tells the other nodes. If the database is away, calls `keep`."""
        runtime = self.runtime
        made = self.call(lambda: written_or_kept(runtime, write, keep))
        if runtime.kept is None:
            self.wrote()
        return made

    def submit_many(self, pairs: "Pairs") -> list[SyncHandle]:
        """Submits many jobs in one transaction: all or none."""
        types, drafts = drafts_of(pairs)
        return self._submit(types, drafts, jobs.submit)

    def chain(self, *steps: "Step") -> list[SyncHandle]:
        """Submits jobs that run one after the other, each when the one before it has succeeded: all or none. A step is
        a job with its payload, or without one; `ctx.results` has the result of the step before.
        """
        types, drafts = drafts_of(pairs_of(steps))
        return self._submit(types, drafts, chains.submit)

    def cost(self, job_id: str) -> CostRow:
        """What a job used and cost so far, by this node's rate card."""
        return self.call(lambda: reports.job_cost(self.runtime, job_id))

    def costs(self, by: CostsBy | str = CostsBy.KIND, *, since_ms: int = 0) -> Costs:
        """What the runs cost that ended since that time, by "kind", "node" or "account"."""
        return self.call(lambda: reports.costs(self.runtime, by, since_ms))

    def estimate(self, kind: str) -> Estimate | None:
        """What a job of this kind is expected to cost, from those that succeeded; None without any."""
        return self.call(lambda: estimate_of(self.runtime, kind))

    def _submit(self, types: list[JobType], drafts: list[Draft], submit: SubmitDrafts) -> list[SyncHandle]:
        runtime = self.runtime

        def write() -> list[Submitted]:
            check_budgets(runtime, drafts)
            return runtime.log.run(lambda tx: submit(tx, drafts), beside=True)

        cited = _chain(len(drafts)) if submit is chains.submit else ()
        made = self._written_or_kept(write, lambda error: keep_jobs(runtime, error, drafts, cited))
        return [SyncHandle(self, *each, type.signature) for type, each in zip(types, made, strict=True)]

    def gather(self, *waited: SyncHandle[R], timeout: float | None = None) -> list[R]:
        """Waits for all of the jobs and returns their results in this order. Raises JobFailed or JobCancelled when one
        of them ends so, and TimeoutError.
        """
        found = handles.sync_results(self, [each._id for each in waited], timeout)
        return [handles.typed(each._signature, each._id, value) for each, value in zip(waited, found, strict=True)]

    def rows(self, table: str, *, agent: str = "") -> SyncRowTable:
        """The rows of a table, as `Node.rows` gives them."""
        return SyncRowTable(self, table, agent)

    def job(self, job_id: str) -> SyncHandle:
        """A handle on an existing job, by its full id."""
        return SyncHandle(self, id_of(job_id), created=False)

    def claimable(self, kind: str | None = None, *, limit: int = 50) -> list[SyncHandle]:
        """The jobs that this node may claim now, as `Node.claimable` gives them."""
        found = self.call(lambda: _asked(self.runtime, claimable, kind, limit))
        return [SyncHandle(self, each, created=False) for each in found]

    def overdue(self, kind: str | None = None, *, limit: int = 50) -> list[SyncHandle]:
        """The running jobs that are past their deadline, as `Node.overdue` gives them."""
        found = self.call(lambda: _asked(self.runtime, overdue, kind, limit))
        return [SyncHandle(self, each, created=False) for each in found]

    def cancel_many(self, **which: Unpack[Which]) -> Changed:
        """Cancels every job that matches, as `Node.cancel_many` does."""
        return self._change(lambda node: node.cancel_many(**which))

    def retry_many(self, **which: Unpack[Which]) -> Changed:
        """Retries every job that matches, as `Node.retry_many` does."""
        return self._change(lambda node: node.retry_many(**which))

    def _change(self, act: Callable[[Node], Awaitable[Changed]]) -> Changed:
        try:
            return self.with_node(act)
        finally:
            self.wrote()

    def work(self, handlers: Handlers | Iterable[JobType], **options: Any) -> Worker:
        """Runs a worker in this thread until a signal stops it. The options are those of `Node.work`."""
        return self.with_node(lambda node: node.work(handlers, **options))

    def working(self, handlers: Handlers | Iterable[JobType], **options: Any) -> AbstractContextManager[Worker]:
        """Runs a worker on a thread of its own beside a `with` block. At its end the worker stops, as after a first
        signal. The options are those of `Node.work`.
        """
        return on_a_thread(lambda started: self.work(handlers, signals=False, started=started, **options))

    def secret(self, project: str, role: str, *, bars: int = TOKEN_BARS) -> ProjectSecret:
        """The secret of a project and a role, which changes on each downbeat of the tempo in force. Its tokens are void
        `bars` bars later.
        """
        return project_secret(self.runtime.home, project, role, self.runtime.log.physical, bars)

    def lock(
        self, *keys: str, agent: str, **options: Unpack[LockOptions]
    ) -> AbstractContextManager[HeldLock[threading.Event]]:
        """Holds these keys, all at once, in a `with` block. See `LockOptions`; such a block cannot be cancelled."""
        if options.get("cancel"):
            raise Usage("a plain block cannot be cancelled; look at `held.lost`")

        @asynccontextmanager
        async def held() -> AsyncIterator[HeldLock[asyncio.Event]]:
            node = self._new_node()
            try:
                async with node.lock(*keys, agent=agent, **options) as lock:
                    yield lock
            finally:
                await node.finish()

        return locked_on_a_thread(held())

    def _new_node(self) -> Node:
        node = Node(self.runtime)
        node.delivery = self._delivery
        return node

    def decide(self, request: Callable[[Transaction], Result]) -> Job:
        """The job after a request on it was decided. Raises Conflict if the request was not accepted."""
        log = self.runtime.log
        result = self.call(lambda: log.run(request))
        if isinstance(result, Offer):
            offer = result
            try:
                (result,) = self.call(lambda: self.with_node(lambda node: node.consult([offer])))
            except Unreachable as error:
                raise kept(error) from error
        else:
            self.wrote()
        return accepted(result)

    def consult(self) -> None:
        """Exchanges ops with the coordinator, so that it decides on what was offered. Raises Unreachable."""
        self.with_node(lambda node: node.consult(()))

    def send(self, to: str, body: Body, **options: Any) -> str:
        """Sends a message, as `Node.send` does."""
        runtime = self.runtime

        def write() -> bytes:
            draft = draft_of(runtime.log, runtime.blobs, to, body, **options)
            message_id = runtime.log.run(lambda tx: messages.send(tx, runtime.blobs, draft))
            self.wrote(node_of(draft))
            return message_id

        keep = lambda error: keep_message(runtime, error, to, body, **options)  # noqa: E731
        return ulid_text(self._written_or_kept(write, keep))

    def inbox(self, agent: str | None = None) -> SyncInbox:
        """The messages of an agent of this node; default $HOCKET_AGENT, else this machine's user."""
        return SyncInbox(self, agent)

    def ask(
        self, to: str, body: Body, *, wait: Duration = "30s", agent: str | None = None, **options: Any
    ) -> MessageData:
        """Sends a message and returns the reply. Raises TimeoutError if none comes in time."""

        async def asked(node: Node) -> MessageData:
            node.delivery = self._delivery
            return (await node.ask(to, body, wait=wait, agent=agent, **options)).data

        return self.with_node(asked)

    def parts(self, job_id: bytes, news: StreamNews) -> Generator[Part, None, None]:
        """The parts of a job's result, as `Node.parts` gives them, on an event loop of its own."""

        async def begin() -> tuple[Node, AsyncGenerator[Part, None]]:
            node = self._new_node()
            return node, node.parts(job_id, news)

        async def end() -> None:
            await _close(source)
            await node.finish()

        with asyncio.Runner() as runner:
            node, source = runner.run(begin())
            try:
                while (part := runner.run(_next(source))) is not None:
                    yield part
            finally:
                # A Ctrl-C just when a run has ended leaves the stop of its loop behind, for the next run.
                with suppress(RuntimeError):
                    runner.run(asyncio.sleep(0))
                runner.run(end())

    def with_node(self, act: Callable[[Node], Awaitable[T]]) -> T:
        """Runs a function on an event loop of its own."""

        async def run() -> T:
            node = self._new_node()
            try:
                return await act(node)
            finally:
                await node.finish()

        return asyncio.run(run())

    def until(
        self, look: Callable[[Session], tuple[bool, T]], timeout: float | None = None, topics: Changes = ANYTHING
    ) -> T:
        """Calls `look` now and after each change of the topics, until it returns a value. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout

        def read() -> tuple[bool, T]:
            with self.runtime.read() as session:
                return look(session)

        with held_interrupts() as interrupts, closing(self.runtime.bus.subscribe(topics)) as changes:
            if self._delivery is not None:
                self._delivery.start()
            while True:
                found, value = self.call(read)
                if found:
                    return value
                left = LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError
                with interrupts.let_in():
                    changes.wait(left)


def _asked(runtime: Runtime, ask: RosterAsk, kind: str | None, limit: int) -> list[bytes]:
    with runtime.read() as session:
        return [entry.job.id for entry in ask(runtime.log, session, kind, limit)]


async def _next(source: AsyncGenerator[Part, None]) -> Part | None:
    return await anext(source, None)


async def _close(source: AsyncGenerator[Part, None]) -> None:
    await source.aclose()


# `ctx.node`: the worker's own node, for its handlers. They run on other threads than the worker, and one that is
# stopped gets an exception at any point. So all work on the store is done on threads that no exception reaches.


class PlainHandlerNode(SyncNode):
    """The worker's node for a plain handler."""

    def __init__(self, runtime: Runtime, executor: Executor) -> None:
        super().__init__(runtime)
        self._executor = executor

    def call(self, work: Callable[[], T]) -> T:
        return self._executor.submit(work).result()

    def close(self) -> None:
        raise Usage(WORKERS_OWN)


class AsyncHandlerNode(Node):
    """The worker's node for a coroutine. All waiting is done on `loop`, the event loop of the worker's node."""

    def __init__(self, node: LocalNode, executor: Executor, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(node.runtime, executor, node.environment)
        self._worker_node = node
        self._loop = loop

    async def consult(self, offers: Sequence[Offer], *, is_urgent: bool = False) -> list[Decision]:
        return await self._there(self._worker_node.consult(offers, is_urgent=is_urgent))

    async def until(
        self, look: Callable[[], Awaitable[tuple[bool, T]]], timeout: float | None, topics: Changes = ANYTHING
    ) -> T:
        return await self._there(self._worker_node.until(look, timeout, topics))

    async def parts(self, job_id: bytes, news: StreamNews) -> AsyncGenerator[Part, None]:
        source = self._worker_node.parts(job_id, news)
        try:
            while (part := await self._there(_next(source))) is not None:
                yield part
        finally:
            await self._there(_close(source))

    async def close(self) -> None:
        raise Usage(WORKERS_OWN)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
