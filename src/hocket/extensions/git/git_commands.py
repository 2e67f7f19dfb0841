"""`hocket git`: any git repository as a queue of commands, with claims, leases and proofs, and no server of ours."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

from hocket.api.views import ago
from hocket.cli.declarations import App, Argument, Option
from hocket.cli.options import BusOption, LogFormatOption, QuietOption, VerboseOption, read_file, seconds
from hocket.cli.printing import emit, fields, notice, on_terminal, progress, say, table
from hocket.cli.settings import open_runtime, open_service
from hocket.errors import Failed, HocketError, NotAuthorised, Usage
from hocket.extensions.git import access as git_access
from hocket.extensions.git import hook as git_hook
from hocket.extensions.git.access import Repository, announce_elsewhere, home_here, now_ms, opened_plane
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from hocket.extensions.git.git_jobs import GitJob
    from hocket.extensions.git.plane import Plane
    from hocket.extensions.git.runs import GitRun

CONCURRENCY_MAX = 1_000
SHORT_ID_CHARS = 12

app = App()
app.add_group(git_access.trust_app, "trust")
app.command()(git_hook.hook)
app.command()(git_hook.received)

JobArgument = Annotated[
    str, Argument(metavar="JOB", help="A content id, a unique beginning of one, or the ULID in its manifest.")
]


@app.callback()
def git_group() -> None:
    """Commands as jobs in a git repository. Anyone who can push can submit and work; git alone is enough to read and
    verify everything.

    \b
      hocket git submit git@example.org:jobs.git job.yaml
      hocket git work git@example.org:jobs.git --allow 'make *'
      hocket git verify git@example.org:jobs.git
    """


@app.command()
def submit(
    repo: Repository,
    manifest: Annotated[str, Argument(metavar="FILE", help="A manifest, in YAML or JSON; - reads stdin.")],
    inputs: Annotated[
        list[str] | None,
        Option("--input", metavar="FILE", help="An input to send with the job; the manifest has its hash."),
    ] = None,
    again: Annotated[
        bool, Option("--again", help="If the job is there already, submit it as a new one, to run it again.")
    ] = False,
) -> None:
    """Put a job into a repository. Submitting the same manifest again gives the same job, unless --again asks for a new
    one, which has HOCKET_AGAIN=2 in its environment, then 3, and so on.

    \b
      hocket git submit jobs.git job.yaml
      hocket git submit jobs.git job.yaml --again
    """
    from hocket.extensions.git import git_jobs
    from hocket.extensions.git.announcements import wake_workers
    from hocket.kernel.ids import hash_text
    from hocket.kernel.yaml_subset import TEXT_BYTES_MAX

    text = read_file(manifest, TEXT_BYTES_MAX)
    contents = [read_file(path, git_jobs.INPUTS_BYTES_MAX) for path in inputs or ()]
    with opened_plane(repo) as plane:
        made = (git_jobs.submit_again if again else git_jobs.submit)(plane, text, now_ms(), contents)
    wake_workers(home_here().processes, made.content_id)
    announce_elsewhere(repo, made.content_id)
    content_id = hash_text(made.content_id)
    emit({"content_id": content_id, "commit": made.commit, "created": made.is_new})
    say(f"{'submitted' if made.is_new else 'already there'} {content_id}")


@app.command()
def work(
    repo: Repository,
    until_idle: Annotated[
        bool, Option("--until-idle", help="Exit when no job is left that this worker could run.")
    ] = False,
    concurrency: Annotated[
        int, Option("--concurrency", metavar="N", min=1, max=CONCURRENCY_MAX, help="How many jobs run at once.")
    ] = 2,
    lease: Annotated[
        str, Option("--lease", metavar="DURATION", help="How long a claim lasts unless the worker renews it.")
    ] = "60s",
    allow: Annotated[
        list[str] | None, Option("--allow", metavar="PATTERN", help="Run matching commands, like 'ffmpeg -i *'.")
    ] = None,
    allow_any: Annotated[bool, Option("--allow-any", help="Run every command.")] = False,
    allow_env: Annotated[
        list[str] | None, Option("--allow-env", metavar="NAME", help="Let commands set this variable.")
    ] = None,
    bus: BusOption = None,
    verbose: VerboseOption = 0,
    quiet: QuietOption = 0,
    log_format: LogFormatOption = None,
) -> None:
    """Claim jobs in a repository, run them, and push the results.

    \b
      hocket git work jobs.git --allow 'ffmpeg -i * *.mp4' --until-idle
      hocket git work https://example.org/jobs.git --allow-any --concurrency 4

    A repository does not tell who submitted a job, so the worker runs only commands that --allow, --allow-any or the
    home's config.toml permits. The first SIGTERM or Ctrl-C lets running commands finish; the second stops them and
    returns their jobs to the queue.
    """
    from hocket.cli.long_running import start_logging
    from hocket.events.event_logging import log_event
    from hocket.extensions.command.job import command_runner
    from hocket.extensions.command.proofs import GIT_KIND
    from hocket.extensions.git import holding
    from hocket.extensions.git.announcements import hearing, listening
    from hocket.extensions.git.worker import GitWorker, Parts
    from hocket.kernel.ids import hash_text
    from hocket.node.local_node import run_services
    from hocket.node.message_bus import bus_settings
    from hocket.node.signals import stopped_by_signals
    from hocket.work.environment import MachineEnvironment

    lease_s = seconds(lease, "--lease")
    assert lease_s is not None
    start_logging(verbose, quiet, log_format)
    with ExitStack() as stack:
        runtime = stack.enter_context(open_runtime())
        plane = stack.enter_context(opened_plane(repo))
        commands = stack.enter_context(command_runner(runtime, log_event, allow, allow_any, allow_env))
        if commands.allowance.is_empty:
            raise Usage("no command is allowed here; give --allow PATTERN or --allow-any")
        environment = MachineEnvironment(runtime.home.processes, runtime.bus, runtime.time_of_day)
        me = holding.GitWorkerKey(runtime.home.node_key(), environment.name("git"), int(lease_s), os.urandom)
        parts = Parts(runtime.log, environment, run_services(runtime, GIT_KIND, environment.monotonic), commands)

        def finished(content_id: bytes, state: str, job_id: str) -> None:
            emit({"content_id": hash_text(content_id), "state": state, "job_id": job_id or None})
            say(f"{state} {hash_text(content_id)}")

        worker = GitWorker(
            plane,
            parts,
            me,
            concurrency=concurrency,
            until_idle=until_idle,
            emit=log_event,
            finished=finished,
        )
        servers = bus_settings(runtime.home, bus)
        stack.enter_context(hearing(runtime, servers, worker.wake, log_event, repo))
        with listening(runtime.bus, worker.wake), stopped_by_signals(worker.stop) as received:
            worker.run()
    say(f"done: {worker.succeeded} succeeded, {worker.failed} failed, {worker.lost} lost to other workers")
    if received.is_interrupt:
        raise KeyboardInterrupt


@app.command("jobs")
def list_jobs(repo: Repository) -> None:
    """List the jobs of a repository with their states.

    \b
      hocket git jobs jobs.git
    """
    from hocket.extensions.git import git_jobs
    from hocket.kernel.ids import hash_text

    with opened_plane(repo) as plane:
        found = git_jobs.listing(plane)
        now = now_ms()
        if hint := git_jobs.how_to_fetch(plane, found):
            notice(f"no jobs in {plane.where}: {hint}")
    emit([_brief(job) for job in found])
    rows = [
        (
            job.refs.content_id.hex()[:SHORT_ID_CHARS] if on_terminal() else hash_text(job.refs.content_id),
            job.state,
            "-" if job.claim is None else job.claim.fence,
            "-" if job.claim is None else ago(job.claim.claimed_ms, now),
        )
        for job in found
    ]
    table(("job", "state", "fence", "since"), rows, "no jobs")


@app.command()
def show(repo: Repository, job: JobArgument) -> None:
    """Show what a job asks for, who holds or held it, how its command ended, and what it printed.

    \b
      hocket git show jobs.git 5d0f
    """
    import shlex

    from hocket.extensions.command.manifest import manifest_json
    from hocket.extensions.git import git_jobs, runs
    from hocket.kernel.ids import hash_text
    from hocket.kernel.keys import key_text

    with opened_plane(repo) as plane:
        found = _find(plane, job)
        order = git_jobs.order_of(plane, found.refs)
        run = runs.read_run(plane, found)
    emit(_brief(found) | {"manifest": manifest_json(order.manifest), "run": None if run is None else _run_json(run)})
    pairs: list[tuple[str, object]] = [
        ("job", hash_text(found.refs.content_id)),
        ("state", found.state if found.trouble is None else f"{found.state}: {found.trouble}"),
        ("command", shlex.join(order.manifest.argv)),
        ("timeout", f"{order.manifest.timeout} s"),
        ("job commit", found.refs.job),
    ]
    if found.claim is not None:
        pairs += [
            ("worker", key_text(found.claim.worker)),
            ("fence", found.claim.fence),
            ("lease", f"{found.claim.lease_s} s"),
            ("claim commit", found.refs.claim),
        ]
    elif found.other is not None:
        by = found.other.name if found.other.worker is None else key_text(found.other.worker)
        pairs += [("worker", by), ("claimed by", "another program, without a lease")]
    if found.result is not None:
        pairs += [("result commit", found.refs.result), ("proof", hash_text(found.result.proof))]
    if run is not None:
        pairs.append(("exit code", _ended(run)))
        pairs += [("output", f"{each.path} ({counted(each.size, 'byte')})") for each in run.execution.outputs]
    fields(pairs)
    for name, data in (("stdout", run.stdout), ("stderr", run.stderr)) if run is not None else ():
        if data != b"":
            say()
            say(f"{name}:", "bold")
            say("not in this repository" if data is None else _text(data).rstrip("\n"), lines=True)


def _ended(run: "GitRun") -> str:
    from hocket.extensions.command.proofs import exit_code

    execution = run.execution
    why = "timed out" if execution.timed_out else "" if execution.signal is None else f"signal {execution.signal}"
    return f"{exit_code(execution)}{f' ({why})' if why else ''}"


def _run_json(run: "GitRun") -> dict[str, Any]:
    from hocket.extensions.command.proofs import exit_code
    from hocket.kernel.ids import hash_text

    execution = run.execution
    return {
        "exit_code": exit_code(execution),
        "timed_out": execution.timed_out,
        "signal": execution.signal,
        "started_ms": execution.started_at_ms,
        "finished_ms": execution.finished_at_ms,
        "stdout": None if run.stdout is None else _text(run.stdout),
        "stderr": None if run.stderr is None else _text(run.stderr),
        "outputs": [{"path": each.path, "hash": hash_text(each.hash), "size": each.size} for each in execution.outputs],
    }


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


@app.command()
def verify(
    repo: Repository,
    job: Annotated[str | None, Argument(metavar="[JOB]", help="Only this job.", show_default=False)] = None,
    worker: Annotated[
        list[str] | None, Option("--worker", metavar="KEY", help="Trust only this key; may be repeated.")
    ] = None,
) -> None:
    """Check jobs, claims and results against each other, with every signature and every hash. This needs only the
    repository.

    \b
      hocket git verify jobs.git
      hocket git verify jobs.git --worker ed25519:5d0f…

    A signature shows which key made a result, not whose key it is. --worker names the trusted keys. Without it, the
    trusted keys are this node's, those of mesh nodes that may complete jobs, and those of `hocket git trust`.

    Exit codes: 0 everything is good and trusted keys signed every result; 4 everything is good, but some results are
    unsigned or by unknown keys; 1 something is wrong or could not be checked.
    """
    from hocket.extensions.git import verify as checks
    from hocket.extensions.git.git_jobs import group, how_to_fetch, named
    from hocket.extensions.git.trust import parse_worker, verdict
    from hocket.kernel.ids import hash_text
    from hocket.kernel.keys import key_text

    trusted = {parse_worker(each) for each in worker} if worker else _trusted()
    with opened_plane(repo) as plane, progress("verifying") as bar:
        chosen = None if job is None else named(plane, job).content_id
        total = 1 if job is not None else len(group(plane.refs()))
        found = []
        for each in checks.verify(plane, chosen):
            found.append(each)
            bar(len(found), total)
    findings = [(each.content_id, finding) for each in found for finding in each.findings]
    verdicts = {each.content_id: verdict(each, trusted) for each in found}
    emit(
        {
            "jobs": len(found),
            "verdicts": [
                {
                    "content_id": hash_text(each.content_id),
                    "verdict": verdicts[each.content_id],
                    "result": each.has_result,
                    "signer": None if each.signer is None else key_text(each.signer),
                }
                for each in found
            ],
            "problems": [
                {"content_id": hash_text(content_id), **finding._asdict()} for content_id, finding in findings
            ],
        }
    )
    for content_id, finding in findings:
        say(f"{hash_text(content_id)}\t{finding.commit}\t{finding.what}", "yellow" if finding.is_gap else "red")
    unknown = [each for each in found if verdicts[each.content_id] == "unknown"]
    for each in unknown:
        by = "the result is not signed" if each.signer is None else f"signed by {key_text(each.signer)}"
        say(f"{hash_text(each.content_id)}\tunknown\t{by}", "yellow")
    if findings:
        gaps = sum(finding.is_gap for _, finding in findings)
        told = [f"{counted(len(findings) - gaps, 'problem')} in {plane.where}"] if len(findings) > gaps else []
        told += [f"{gaps} could not be checked, because this clone does not have them"] if gaps else []
        raise Failed("; ".join(told))
    if hint := how_to_fetch(plane, found):
        raise Failed(f"nothing to verify: there are no jobs in {plane.where}: {hint}")
    if unknown:
        raise NotAuthorised(
            f"{len(unknown)} of {len(found)} jobs have a result that is unsigned or signed by an untrusted key; if"
            " you know whose key it is, give it with --worker, or add it with `hocket git trust add`"
        )
    say(f"good: {counted(len(found), 'job')}")


@app.command()
def abort(
    repo: Repository,
    job: JobArgument,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why; recorded in the repository.")] = "",
) -> None:
    """Cancel a job. A worker that runs it finds out when it renews its claim, and stops.

    \b
      hocket git abort jobs.git 5d0f --reason 'wrong branch'
    """
    from hocket.extensions.git import holding
    from hocket.kernel.ids import hash_text

    with open_runtime() as runtime, opened_plane(repo) as plane:
        found = _find(plane, job)
        name = f"abort-{os.getpid()}"
        me = holding.GitWorkerKey(runtime.home.node_key(), name, holding.LEASE_S_DEFAULT, os.urandom)
        commit = holding.abort(plane, found.refs.content_id, me, now_ms(), reason)
    emit({"content_id": hash_text(found.refs.content_id), "commit": commit})
    say(f"aborted {hash_text(found.refs.content_id)}")


@app.command()
def gc(
    repo: Repository,
    older: Annotated[
        str, Option("--older", metavar="DURATION", help="Only jobs that ended longer ago than this.")
    ] = "30d",
) -> None:
    """Remove the refs of jobs that have ended. Git later deletes their objects.

    \b
      hocket git gc jobs.git --older 7d
    """
    from hocket.extensions.git import git_jobs
    from hocket.kernel.ids import hash_text

    age_s = seconds(older, "--older")
    assert age_s is not None
    with opened_plane(repo) as plane:
        gone = git_jobs.clear(plane, now_ms() - int(age_s * 1000))
    emit([hash_text(each) for each in gone])
    say(f"removed {counted(len(gone), 'job')}")


def _trusted() -> set[bytes]:
    """The keys that this home trusts; none if the home is missing or unreadable, since verifying needs no home."""
    from hocket.extensions.git import trust

    if not home_here().is_complete():
        return set()
    try:
        with open_service() as service:
            return trust.trusted(service)
    except HocketError as error:
        notice(f"cannot read the keys that this home trusts: {error}")
        return set()


def _find(plane: "Plane", text: str) -> "GitJob":
    from hocket.extensions.git import git_jobs

    return git_jobs.describe(plane, [git_jobs.named(plane, text)])[0]


def _brief(job: "GitJob") -> dict[str, Any]:
    from hocket.kernel.ids import hash_text
    from hocket.kernel.keys import key_text

    worker = job.claim.worker if job.claim is not None else job.other.worker if job.other is not None else None
    return {
        "content_id": hash_text(job.refs.content_id),
        "state": job.state,
        "trouble": job.trouble,
        "job_commit": job.refs.job,
        "claim_commit": job.refs.claim,
        "result_commit": job.refs.result,
        "worker": None if worker is None else key_text(worker),
        "fence": None if job.claim is None else job.claim.fence,
        "proof": None if job.result is None else hash_text(job.result.proof),
    }
