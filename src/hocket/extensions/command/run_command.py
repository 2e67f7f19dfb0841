"""`hocket run`: runs a command as a job, with a proof. A worker of this node runs it, or this process if there is no
worker; `--on` or a route sends it to another node. Output appears as the command prints it, and the exit code is the
command's.
"""

import asyncio
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.declarations import App
from hocket.cli.options import RUN, RunOptions, job_options
from hocket.cli.printing import emit, notice, say
from hocket.cli.settings import deliver, open_service, settings
from hocket.errors import NotAuthorised, Usage
from hocket.kernel.ids import node_text
from hocket.system import NO_COMMANDS, has_process_control

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hocket.api import Service
    from hocket.cli.long_running import WaitLine
    from hocket.events import Event
    from hocket.extensions.command.following import Following
    from hocket.extensions.command.job import Commands
    from hocket.extensions.command.local_server import Asked, LocalServer
    from hocket.extensions.command.proofs import CommandOutcome
    from hocket.extensions.command.request import PackedRequest
    from hocket.node.node import Node
    from hocket.node.runtime import Runtime
    from hocket.work.worker import Worker

# A command that no worker allows is given up after so many looks, a second apart.
REFUSED_LOOKS = 3

app = App()


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[--] CMD [ARG...]", help="The program and its arguments.", show_default=False),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="DURATION", help="Kill it and all its children after this long; 0: never."),
    ] = "1h",
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="NAME[=VALUE]",
            help="Set a variable. NAME alone passes the value set here as a secret, off the log.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="[NAME=]PATH", help="A file, or all files of a directory, to copy there."),
    ] = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="PATTERN", help="Files to keep, like 'dist/**'; default `outputs/**`."),
    ] = None,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Run it with a read-only system, a private /tmp and no network.")
    ] = False,
    network: Annotated[bool, typer.Option("--network", help="Run it in the sandbox, but with network access.")] = False,
    on: Annotated[
        str | None, typer.Option("--on", metavar="NODE", help="Run it on this node: a name, or the beginning of an id.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit it and return at once.")] = False,
    *,
    options: RunOptions,
) -> None:
    """Run a command as a job, and keep a proof of what ran.

    \b
      hocket run -- make test
      hocket run --input scene.blend --output 'frames/*.png' --timeout 20m -- blender -b scene.blend -a
      hocket run --network --env TOKEN -- sh -c 'curl --oauth2-bearer "$TOKEN" https://example.org/'
      hocket run --on gpu-box --input src -- nvcc src/main.cu -o outputs/main

    The command runs in an empty directory of its own that holds only the inputs, with empty standard input. The exit
    code is the command's; 124 if it timed out, 127 if it could not be started. `hocket proof show JOB` shows the proof.
    With --json, the output of the command is in the answer. --on sends it to another node, whose worker must allow it.
    """
    asked = read(context.params, Path.cwd(), dict(os.environ))
    with open_service() as service:
        from hocket.extensions.cost.costs import check_budgets

        runtime, target = service.runtime, None if on is None else _target(service, on)
        packed = asked.request._replace(on=target).prepared(runtime)
        check_budgets(runtime, [packed.draft])
        if asked.warning:
            notice(asked.warning)
        if detach:
            _detached(runtime, packed)
            return
        output = CollectedOutput() if settings.as_json else None
        is_here = target in (None, node_text(runtime.log.node))
        if is_here and not has_process_control():
            raise Usage(f"{NO_COMMANDS}; send it to a node with --on, or submit it with --detach")
        ended, job_id = asyncio.run(_attached(runtime, packed, output.add if output else _print, is_here))
    if output is not None:
        emit({"job_id": job_id, "exit_code": ended.code, **output.texts(), "error": ended.sentence or None})
    if ended.sentence:
        notice(ended.sentence)
    raise typer.Exit(ended.code)


def local_server(node: "Node", worker: "Worker", commands: "Commands") -> "LocalServer":
    """The server beside a worker that runs the commands of this program without loading it."""
    from hocket.extensions.command.local_server import LocalServer

    return LocalServer(node, worker, commands, parse, node.environment.name("commands"))


def parse(words: list[str], directory: Path, environment: dict[str, str]) -> "Asked":
    """Parses a command line that a client sent to a worker's local server. The home is the worker's own."""
    before = settings.home, settings.as_json
    try:
        with _command().make_context("run", words) as context:
            return read(context.params, directory, environment)
    finally:
        settings.home, settings.as_json = before


@cache
def _command() -> Any:
    from typer.main import get_command

    return get_command(app.typer())


def read(params: dict[str, Any], directory: Path, environment: dict[str, str]) -> "Asked":
    from hocket.extensions.command.local_server import Asked
    from hocket.extensions.command.request import command, named_inputs
    from hocket.extensions.command.secrets import named_values

    if not params["command"]:
        raise Usage("name a command, like `hocket run -- make test`")
    variables = params["env"] or ()
    public = [each for each in variables if "=" in each]
    request = command(
        *params["command"],
        timeout=params["timeout"],
        env=dict(_split(each) for each in public),
        secrets=named_values([each for each in variables if "=" not in each], environment),
        inputs=named_inputs(params["inputs"] or (), directory),
        outputs=params["outputs"] or (),
        sandbox=params["sandbox"],
        network=params["network"],
        **job_options({name: params[name] for name in RUN}, str(directory)),
    )
    return Asked(request, bool(params["detach"]), _exposed(request.env))


def _exposed(names: "Mapping[str, str]") -> str | None:
    """A warning about variables whose values are on the command line, if there are any."""
    if not names:
        return None
    said = ", ".join(names)
    return f"every node that can read the job sees the value of {said}; for a secret, set it here and give --env NAME"


def _split(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def _target(service: "Service", text: str) -> str:
    """The id of the node that shall run the command. Raises NotAuthorised if it may not."""
    from hocket.api import rights
    from hocket.extensions.command.request import KIND

    answer = rights.may(service, text, "claim", KIND)
    if answer.may:
        return answer.node
    why = f"{KIND} is routed to {answer.routed_to}" if answer.routed_to else f"no delegation lets it claim {KIND}"
    raise NotAuthorised(f"{text} may not run commands: {why}")


class CollectedOutput:
    """What a command printed, as text for a JSON answer."""

    def __init__(self) -> None:
        self._chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}

    def add(self, stream: str, chunk: bytes) -> None:
        self._chunks[stream].append(chunk)

    def texts(self) -> dict[str, str]:
        """Bytes that are not UTF-8 are escaped."""
        return {name: b"".join(chunks).decode(errors="backslashreplace") for name, chunks in self._chunks.items()}


def _detached(runtime: "Runtime", packed: "PackedRequest") -> None:
    from hocket.extensions.command import request
    from hocket.kernel.ids import ulid_text

    job_id = ulid_text(runtime.log.run(lambda tx: packed.submit(tx, runtime)))
    emit({"job_id": job_id})
    say(f"submitted {request.KIND} {job_id}")
    deliver(runtime)


async def _attached(
    runtime: "Runtime", packed: "PackedRequest", pass_on: "Callable[[str, bytes], None]", is_here: bool
) -> "tuple[CommandOutcome, str]":
    """Submits the command, and waits until it has ended. Unless it goes to another node, a worker runs it here."""
    from contextlib import ExitStack

    from hocket.cli.long_running import WaitLine
    from hocket.extensions.command.following import Following
    from hocket.extensions.command.job import command_runner
    from hocket.extensions.cost.run_meter import price
    from hocket.families.jobs import requests as jobs
    from hocket.kernel.ids import ulid_text
    from hocket.node.node import Node
    from hocket.node.signals import stopped_by_signals
    from hocket.work.environment import WorkerOptions
    from hocket.work.handlers import Handlers
    from hocket.work.presence import Serving
    from hocket.work.worker import Worker

    node = Node(runtime)
    stack = ExitStack()
    commands = stack.enter_context(command_runner(runtime))
    job_id = await node.run(lambda tx: packed.submit(tx, runtime))
    name = ulid_text(job_id)
    line = WaitLine(name)

    def heard(stream: str, chunk: bytes) -> None:
        line.clear()
        pass_on(stream, chunk)

    following = Following(node, job_id, heard)
    commands.listeners.listen(name, following)
    interrupted = asyncio.Event()

    def tell(event: "Event") -> None:
        if not interrupted.is_set() and not event.routine:
            notice(str(event))

    handlers = Handlers([commands.job_type(job_id, following.is_over)] if is_here else ())
    options = WorkerOptions(
        *(handlers, 1),
        grace=0.0,
        emit=tell,
        finished=following.finished,
        serving=Serving(),
    )
    price(runtime, options)
    worker = Worker(node, node.environment, options)
    try:
        with stopped_by_signals(interrupted.set):
            async with node.in_touch(tell):
                working = asyncio.create_task(worker.run())
                stop = asyncio.create_task(interrupted.wait())
                end = asyncio.create_task(following.end())
                refusal = asyncio.create_task(_refusal(node, job_id, following, line))
                await asyncio.wait((stop, end, refusal), return_when=asyncio.FIRST_COMPLETED)
                refused = refusal.result() if refusal.done() and not end.done() else None
                refusal.cancel()
                if not end.done():
                    await node.decide(lambda tx: jobs.call_off(tx, job_id, refused or "interrupted"))
                worker.stop()
                await working
                if interrupted.is_set():
                    raise KeyboardInterrupt
                if refused is not None:
                    end.cancel()
                    raise NotAuthorised(f"{refused}; job {name} was cancelled")
                return await end, name
    finally:
        stack.close()
        await node.finish()


async def _refusal(node: "Node", job_id: bytes, following: "Following", line: "WaitLine") -> str:
    """Says what the command waits for until it runs. Returns only if no worker that is known will run it."""
    from hocket.extensions.command.request import KIND
    from hocket.families.jobs.view import WaitReason
    from hocket.mesh.waiting import HERE
    from hocket.node.delivery import TELL_S
    from hocket.work.presence import Serving

    refused = 0
    with line:
        while True:
            await asyncio.sleep(TELL_S)
            waiting = None if following.is_heard else await node.waiting(job_id, [Serving((KIND,))])
            is_here = waiting is not None and waiting.reason is WaitReason.HELD and waiting.about == HERE
            line.show(None if is_here else waiting)
            # The first answers of other nodes may still be on their way.
            refused = refused + 1 if waiting is not None and waiting.reason is WaitReason.NOT_ALLOWED else 0
            if waiting is not None and refused >= REFUSED_LOOKS:
                return waiting.sentence


def _print(stream: str, chunk: bytes) -> None:
    out = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    out.write(chunk)
    out.flush()
