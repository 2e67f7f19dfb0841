"""Command jobs as a worker runs them: the command runs in a directory of its own, its output and its files become
evidence on the log, and the worker signs what ran. A command that fails makes the job fail; there is a proof all the
same.
"""

import hashlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from platform import machine
from typing import Any, NamedTuple

import msgspec

from hocket.errors import Failed, OverBudget, Unreachable, Usage
from hocket.events import Emit, Event, ignore
from hocket.events.workers import AllowanceIsRisky, GpusUnpriced
from hocket.extensions.command.allowance import OBSTACLES, Allowance, configured
from hocket.extensions.command.apart import ApartManifests, CommandAnswer
from hocket.extensions.command.command_runs import Gpus, ResourceLimits
from hocket.extensions.command.execute import CommandLimits, CommandResult, CommandRunner, Heard, RunTerms, order_for
from hocket.extensions.command.execution import Execution, Output, RunnerProgram, Stream
from hocket.extensions.command.following import OutputListeners
from hocket.extensions.command.manifest import ON_NAME, BadManifest, Manifest, content_id, parse_manifest
from hocket.extensions.command.outputs import Kept
from hocket.extensions.command.proof import PROOF_TYPE, Proof, encode_proof, prove
from hocket.extensions.command.proofs import NOTHING, OUTPUT_TYPE
from hocket.extensions.command.request import KIND
from hocket.extensions.command.secrets import Secrets, sealed_since, secret_names, secrets_of, unseal
from hocket.extensions.command.workdir import Content, Workdir, Workdirs
from hocket.extensions.cost.budgets import BudgetGuard, beat_in_force, over_budget
from hocket.extensions.cost.costs import rates_of, spent_on
from hocket.extensions.cost.rate_card import USAGE_TYPE, RateCard, UsageRecord, usage_of
from hocket.families import artifacts
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs, chunks_of
from hocket.families.jobs.authorship import is_own
from hocket.families.jobs.rules import Job
from hocket.kernel import __version__
from hocket.kernel.ids import content_hash, hash_text, node_text, parse_ulid, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import decode
from hocket.kernel.policy import decode_policy
from hocket.kernel.texts import counted
from hocket.kernel.vocabulary import ScheduleJob
from hocket.node import variables
from hocket.node.home import DATABASE_ENDS, Home
from hocket.node.local_node import fetch_for
from hocket.node.message_bus import credentials_path
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.work.context import Context, claim_of, job_of, products_of, schedule_of, set_cost
from hocket.work.handlers import JobType
from hocket.work.output_files import STREAM_TYPES, OutputFiles
from hocket.work.run_outputs import INLINE_BYTES_MAX, RunOutputs

# The worker's limits where a manifest has none: the time of a command, how much of its output is kept, its files.
RUN_S_MAX = 24 * 3_600
GRACE_S = 5.0
PRINTED_BYTES_MAX = 8 * 1024 * 1024
FREE_BYTES_MIN = 256 * 1024 * 1024
FILE_BYTES_MAX = 64 * 1024**3
# How long after a command its workdir is removed, and the next one is prepared.
TIDY_AFTER_S = 0.01
# How long another node may take to hand over the secrets of its command, and how often to check.
HANDED_S = 30.0
HANDED_LOOK_S = 0.1
BOUNDS = CommandLimits(RUN_S_MAX, GRACE_S, PRINTED_BYTES_MAX, FREE_BYTES_MIN, FILE_BYTES_MAX)
# What the drivers of databases, git and ssh read by themselves.
_IN_HOME = (
    ".pgpass",
    ".pg_service.conf",
    ".postgresql",
    ".ssh",
    ".netrc",
    ".git-credentials",
    ".config/git/credentials",
)
_NAMED = ("PGPASSFILE", "PGSERVICEFILE", "PGSSLKEY")


class Premises(NamedTuple):
    """What commands need from their node. `fetch` gets content from other nodes; `rates` price what commands use;
    `hidden` are the paths of secrets, which no sandbox shows.
    """

    key: SigningKey
    node: int
    runs: Path
    secrets: Secrets
    blobs: Blobs
    read: Callable[[], AbstractContextManager[Session]]
    fetch: Fetch
    now_ms: Callable[[], int]
    output: OutputFiles
    rates: RateCard | None = None
    hidden: tuple[str, ...] = ()


class Performed(NamedTuple):
    """A command that ran, and its proof."""

    execution: Execution
    ended: CommandResult
    proof: Proof
    proof_id: bytes
    left_out: "LeftOut"


class LeftOut(NamedTuple):
    """What of a command's outputs was not kept, because its submitter may store no more here."""

    paths: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()


class Commands:
    """Runs command jobs. Close it when no more will come."""

    kind = KIND

    def __init__(self, premises: Premises, allowance: Allowance) -> None:
        self._premises = premises
        self.allowance, self.limit = allowance, allowance.limit
        gpus = Gpus.find()
        priced = None if premises.rates is None else premises.rates.rate_gpu_sec or {}
        unpriced = () if gpus is None or priced is None else (name for name in gpus.classes if name not in priced)
        self._unpriced = tuple(unpriced)
        self._runner = CommandRunner(gpus)
        self._workdirs = Workdirs(premises.runs)
        self._caretaker = ThreadPoolExecutor(1, "hocket-caretaker")
        self._fetcher = ThreadPoolExecutor(1, "hocket-manifests")
        self._apart = ApartManifests(premises.blobs, premises.fetch, self._judged, self._fetcher.submit, time.monotonic)
        self._is_untidy = False
        self._closing = threading.Event()
        self.listeners = OutputListeners()

    def warnings(self) -> list[Event]:
        """What the owner should know before commands run."""
        risks: list[Event] = [AllowanceIsRisky(each) for each in self.allowance.warnings()]
        return [*risks, GpusUnpriced(self._unpriced)] if self._unpriced else risks

    def close(self) -> None:
        self._closing.set()
        self._runner.close()
        self._fetcher.shutdown(cancel_futures=True)
        self._caretaker.shutdown()
        self._workdirs.close()
        self._sweep()

    def job_type(self, only: bytes | None = None, is_over: Callable[[], bool] = lambda: False) -> JobType:
        """The job type for a worker: all commands that it may run, or only this job, until it `is_over`."""

        def wants(session: Session, schedule: bytes) -> bool:
            payload = decode(schedule).payload
            assert isinstance(payload, ScheduleJob)
            if only is not None:
                return payload.job_id == only and not is_over()
            apart = None if payload.payload else decode_policy(payload.policy_envelope).content
            answer = self._judged(payload.payload) if apart is None else self._apart.answer(apart)
            if answer is None or not answer.is_for_here:
                return False
            return answer.is_allowed or is_own(session, self._premises.node, schedule)

        return JobType(
            KIND, function=self.serve, give_up_on=(OverBudget,), keeps_budget=True, is_isolated=True, wants=wants
        )

    def _judged(self, payload: bytes) -> CommandAnswer:
        return CommandAnswer(self._is_for_here(payload), self._allows(payload))

    def _is_for_here(self, payload: bytes) -> bool:
        """Whether a command names no node to run on, or this one."""
        if ON_NAME.encode() not in payload:
            return True
        try:
            return parse_manifest(msgspec.json.decode(payload)).on in (None, node_text(self._premises.node))
        except (BadManifest, msgspec.MsgspecError, RecursionError):
            return True

    def _allows(self, payload: bytes) -> bool:
        try:
            return self.allowance.allows(parse_manifest(msgspec.json.decode(payload)))
        except (BadManifest, msgspec.MsgspecError, RecursionError):
            # A worker that runs anything reports a bad manifest when it runs it.
            return self.allowance.anything

    def serve(self, ctx: Context, /, **payload: Any) -> dict[str, Any]:
        """The handler of a command job."""
        try:
            manifest = parse_manifest(payload)
        except BadManifest as error:
            raise Usage(f"not a command manifest: {error}") from None
        with self._premises.read() as session:
            own = is_own(session, self._premises.node, schedule_of(ctx))
        return result(manifest, self.perform(ctx, manifest, self.content, is_own=own))

    def perform(self, ctx: Context, manifest: Manifest, content: Content, *, is_own: bool = False) -> "Performed":
        """Runs the command and keeps its output, its files and the proof as evidence. `content` gives inputs. Commands
        of other nodes run under the limits that the owner has set for them.
        """
        id_of = content_id(manifest)
        told = {
            "HOCKET_JOB": ctx.job_id,
            "HOCKET_FENCE": str(ctx.fence),
            "HOCKET_CONTENT_ID": hash_text(id_of),
        }
        for name in STREAM_TYPES:
            self.listeners.tell(ctx.job_id, name, b"")
        guard = self._guard(job_of(ctx), products_of(ctx).kit.beat_ms())
        with self._tidied(), self._live(ctx) as heard, self._workdirs.workdir(ctx.job_id) as workdir:
            workdir.furnish(manifest, content)
            ended = self._runner.run(
                order_for(manifest, workdir, told, BOUNDS, self._terms(ctx, manifest, is_own)),
                heard=heard,
                should_stop=lambda: ctx.cancelled,
                now_ms=self._premises.now_ms,
                budget=guard if guard.watches else None,
            )
            products = products_of(ctx)
            outputs, unkept = _outputs(products, workdir, manifest)
            streams = {name: _stream(products, name, getattr(ended, name)) for name in STREAM_TYPES}
            lost = tuple(name for name, stream in streams.items() if stream.size == 0 and stream.written > 0)
            left_out = LeftOut(unkept, lost)
        execution = Execution(
            content_id=id_of,
            argv=manifest.argv,
            exit_code=ended.exit_code,
            signal=ended.signal,
            timed_out=ended.why == "timeout",
            started_at_ms=ended.started_ms,
            finished_at_ms=ended.finished_ms,
            inputs=tuple(each.hash for each in manifest.inputs or ()),
            outputs=outputs,
            resources=ended.resources,
            fence=ctx.fence,
            job=ctx.job_id,
            runner=_runner(),
            **streams,
            charge=guard.charged(ended.resources, ended.detail if ended.why == "over budget" else ""),
        )
        if products.kit.beat_ms() is not None and (guard.watches or execution.charge is not None):
            record = UsageRecord(guard.beat_ms, usage_of(ended.resources, guard.beat_ms))
            products.evidence(msgspec.json.encode(record), USAGE_TYPE, is_free=True)
        if execution.charge is not None:
            set_cost(ctx, execution.charge.cost)
        self.listeners.tell_end(ctx.job_id, execution)
        proof = prove(execution, self._premises.key)
        kept = products.evidence(encode_proof(proof), PROOF_TYPE, is_free=True)
        return Performed(execution, ended, proof, kept.id, left_out)

    def _guard(self, job: Job, tempo_ms: int | None) -> BudgetGuard:
        """Raises Failed if the job's budget is used up already, or cannot be kept here."""
        premises, budget = self._premises, job.policy.budget
        beat_ms = beat_in_force(tempo_ms, premises.rates)
        if budget is None:
            return BudgetGuard(job.kind, None, premises.rates, beat_ms)
        if budget.is_priced and premises.rates is None:
            raise Failed("this worker has no rate card, and the job is capped by its price; see docs/costs.md")
        with premises.read() as session:
            spent = spent_on(session, premises.blobs, job, premises.rates, beat_ms, premises.now_ms())
        if over := over_budget(budget, spent.beats + 1, spent.cost):
            raise OverBudget(over)
        return BudgetGuard(job.kind, budget, premises.rates, beat_ms, spent)

    @contextmanager
    def _live(self, ctx: Context) -> Iterator[Heard]:
        """Passes the output of a running command on to its listeners, and to files that anyone may follow."""
        files = {name: self._premises.output.file(ctx.job_id, ctx.fence, name) for name in STREAM_TYPES}

        def heard(stream: str, chunk: bytes) -> None:
            files[stream].write(chunk)
            self.listeners.tell(ctx.job_id, stream, chunk)

        try:
            yield heard
        finally:
            for file in files.values():
                file.close()

    def _terms(self, ctx: Context, manifest: Manifest, is_own: bool) -> RunTerms:
        allowance = self.allowance
        if not is_own and (obstacle := allowance.obstacle()):
            raise Failed(f"commands of other nodes do not run here: {OBSTACLES[obstacle]}")
        box = manifest.sandbox if is_own else allowance.sandbox_for(manifest)
        return RunTerms(
            is_own,
            box,
            allowance.environment,
            allowance.paths,
            self._secrets(ctx, manifest),
            self._premises.hidden,
            ResourceLimits() if is_own else allowance.limits,
        )

    def _secrets(self, ctx: Context, manifest: Manifest) -> dict[str, str]:
        """The values of the secret variables that the manifest names: from this home, or handed over by the node that
        submitted the job, which must be up for that.
        """
        names = secret_names(manifest)
        if not names:
            return {}
        author = decode(schedule_of(ctx)).node_id
        values = self._premises.secrets.values(parse_ulid(ctx.job_id))
        if values is None and author != self._premises.node:
            values = self._received(ctx, author)
        for name in names:
            if name not in (values or {}):
                raise Failed(f"the secret {name} is not here; only the node that submitted the job has it")
        return {name: value for name, value in (values or {}).items() if name in names}

    def _received(self, ctx: Context, author: int) -> dict[str, str] | None:
        """What that node seals for this one when it sees the claim. None if it does not in time."""
        premises, until = self._premises, time.monotonic() + HANDED_S
        while not ctx.cancelled and time.monotonic() < until:
            with premises.read() as session:
                for artifact in sealed_since(session, claim_of(ctx), author):
                    with suppress(Unreachable):
                        data = artifacts.content(session, premises.blobs, artifact, premises.fetch)
                        values = unseal(data, parse_ulid(ctx.job_id), ctx.fence, premises.key)
                        if values is not None:
                            return values
            self._closing.wait(HANDED_LOOK_S)
        return None

    @contextmanager
    def _tidied(self) -> Iterator[None]:
        """Tidies up after the block, but not before the worker had time to report the outcome of the job."""
        try:
            yield
        finally:
            if not (self._is_untidy or self._closing.is_set()):
                self._is_untidy = True
                self._caretaker.submit(self._tidy)

    def _tidy(self) -> None:
        self._closing.wait(TIDY_AFTER_S)
        self._is_untidy = False
        self._workdirs.tidy()
        self._runner.prepare()

    def _sweep(self) -> None:
        """Deletes secrets of jobs that have ended."""
        premises = self._premises
        if not premises.secrets.is_empty():
            with premises.read() as session:
                premises.secrets.sweep(session, premises.now_ms() / 1000)

    def content(self, hash: bytes) -> bytes:
        """An input, from the log, from a blob, or from another node."""
        premises = self._premises
        with premises.read() as session:
            found = session.artifacts_of_hash(hash)
            for artifact in found:
                if not session.is_evicted(artifact.id):
                    return artifacts.content(session, premises.blobs, artifact, premises.fetch)
        content = premises.blobs.read(hash)
        if content is None:
            state = "was evicted" if found else "is not known here"
            raise Failed(f"the input {hash_text(hash)} {state}; put it on the log with `hocket run --input`")
        return content


def result(manifest: Manifest, performed: Performed) -> dict[str, Any]:
    """The job's result. Raises Failed if the command failed."""
    execution, ended = performed.execution, performed.ended
    if ended.why == "over budget":
        raise OverBudget(f"{manifest.argv[0]}: {ended.detail}")
    if ended.why != "exited" or ended.exit_code != 0:
        raise Failed(_complaint(manifest, ended))
    return {
        "exit_code": ended.exit_code,
        "content_id": hash_text(execution.content_id),
        "outputs": [{"path": each.path, "hash": hash_text(each.hash), "size": each.size} for each in execution.outputs],
        "proof": ulid_text(performed.proof_id),
    } | _left_out(performed.left_out)


def _left_out(left_out: LeftOut) -> dict[str, Any]:
    if left_out == LeftOut():
        return {}
    why = "the node that submitted the job may store no more here; see its quota in `hocket mesh nodes`"
    return {"left_out": {"outputs": list(left_out.paths), "streams": list(left_out.streams), "why": why}}


def _outputs(products: RunOutputs, workdir: Workdir, manifest: Manifest) -> tuple[tuple[Output, ...], tuple[str, ...]]:
    """The kept files, and the paths of those for which the submitter's quota has no room."""
    made, left_out = [], []
    for path, file in workdir.collect(manifest.output_patterns).items():
        if products.has_room(file.stat().st_size):
            kept = products.evidence(file, OUTPUT_TYPE)
            made.append(Output(path, kept.hash, kept.size, _sha256(file)))
        else:
            left_out.append(path)
    return tuple(made), tuple(left_out)


def _sha256(file: Path) -> bytes:
    found = hashlib.sha256()
    for chunk in chunks_of(file):
        found.update(chunk)
    return found.digest()


def _stream(products: RunOutputs, name: str, kept: Kept) -> Stream:
    """An empty stream has no artifact, nor has one for which the submitter's quota has no room."""
    if kept.size == 0 or not products.has_room(kept.size):
        return Stream(NOTHING, 0, kept.total)
    content = kept.path.read_bytes() if kept.size <= INLINE_BYTES_MAX else kept.path
    evidence = products.evidence(content, STREAM_TYPES[name])
    return Stream(evidence.hash, evidence.size, kept.total)


def _complaint(manifest: Manifest, ended: CommandResult) -> str:
    program = manifest.argv[0]
    if ended.why == "timeout":
        limit = min(manifest.timeout or RUN_S_MAX, RUN_S_MAX)
        return f"{program} timed out after {counted(limit, 'second')}"
    if ended.why != "exited":
        return f"{program}: {ended.why}: {ended.detail}" if ended.detail else f"{program}: {ended.why}"
    if ended.signal is not None:
        return f"{program} was killed by {signal.Signals(ended.signal).name}"
    return f"{program} ended with exit code {ended.exit_code}"


@cache
def _runner() -> RunnerProgram:
    """The program that runs commands here: the hash covers all of Hocket's own files, by name."""
    root = Path(__file__).parents[2]
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    hashes = b"".join(content_hash(name.encode()) + content_hash((root / name).read_bytes()) for name in files)
    return RunnerProgram(content_hash(hashes), __version__, f"linux/{machine()}")


def secret_paths(home: Home, also: Iterable[str] = ()) -> tuple[str, ...]:
    """Without symbolic links, and without what is below another one. `also` are paths that the owner named."""
    named = [home.path, *(Path(os.path.expanduser("~"), name) for name in _IN_HOME), *map(Path, also)]
    named += [Path(value).expanduser() for name in _NAMED if (value := variables.given(name))]
    databases = [home.database, *filter(None, [variables.replica_path(home.server, home.replica)])]
    named += [database.with_name(database.name + end) for database in databases for end in DATABASE_ENDS]
    named += filter(None, [credentials_path(home), home.tls_key()])
    whole = {Path(os.path.realpath(path)) for path in named}
    return tuple(sorted(str(path) for path in whole if whole.isdisjoint(path.parents)))


@contextmanager
def command_runner(
    runtime: Runtime,
    emit: Emit = ignore,
    allow: Iterable[str] | None = None,
    allow_any: bool = False,
    allow_env: Iterable[str] | None = None,
) -> Iterator[Commands]:
    """The runner of commands on this node: its own, and those of other nodes that the home's configuration or these
    patterns allow, with variables of these names. Warns of what it may not do here.
    """
    allowance = configured(runtime.home.configuration).extended(allow or (), allow_any, allow_env or ())
    key, runs = runtime.home.node_key(), runtime.home.runs
    premises = Premises(
        key,
        runtime.log.node,
        runs,
        secrets_of(runtime.home),
        runtime.blobs,
        runtime.read,
        fetch_for(runtime),
        runtime.log.physical,
        runtime.output,
        rates_of(runtime.home),
        secret_paths(runtime.home, allowance.hide),
    )
    with closing(Commands(premises, allowance)) as commands:
        for warning in commands.warnings():
            emit(warning)
        yield commands
