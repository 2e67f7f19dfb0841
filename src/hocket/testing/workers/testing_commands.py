"""`hocket testing`: tries out programs of yours against a real server on a temporary home."""

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import App, CommandContext, Option
from hocket.cli.printing import emit_line, say
from hocket.errors import Failed, Usage

if TYPE_CHECKING:
    from hocket.testing.workers import Finding

LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 60_000
AT_ONCE_MAX = 32

app = App()


@app.callback()
def testing() -> None:
    """Try out programs of yours against a real server on a temporary home.

    \b
      hocket testing worker -- ./my-worker
    """


@app.command(cls="typer_program:RunCommand")
def worker(
    ctx: CommandContext,
    only: Annotated[list[str] | None, Option("--only", "PROMISE", "Try this promise alone; may be repeated.")] = None,
    lease_ms: Annotated[
        int, Option("--lease-ms", "MS", "The lease that the worker asks for.", min=LEASE_MS_MIN, max=LEASE_MS_MAX)
    ] = 5_000,
    at_once: Annotated[
        int, Option("--at-once", "N", "How many promises are tried at the same time.", min=1, max=AT_ONCE_MAX)
    ] = 6,
) -> None:
    """Try out a worker in any language: which promises of the worker protocol does it keep?

    Write `--` and then the command that starts the worker. It starts many times, each time with a kind of its own,
    against a real server on a temporary home and through a proxy that loses, cuts and delays answers. The worker is
    killed, frozen, cut off, cancelled and drained, and the server is killed, too. Prints a line for each promise with
    what was seen. The exit code is 0 only if the worker keeps all of them. Ctrl-C leaves nothing behind.

    The worker finds in its environment HOCKET_URL, HOCKET_TOKEN, HOCKET_KINDS (with commas between them),
    HOCKET_LEASE_MS (the lease to ask for) and HOCKET_WAIT_MS (how long a claim may wait). The payload of each job is an
    object: the worker works for `ms` milliseconds, a wait is enough, and then completes the job with the value of
    `echo` as its result (null without one). If the payload has `fail`, it fails the job with that text, and not to be
    retried.

    \b
      hocket testing worker -- ./my-worker
      hocket testing worker --only renews --only cancel -- node worker.ts
      hocket testing worker --json -- python worker.py
    """
    from hocket.cli.typer_program import COMMAND
    from hocket.testing.workers import try_worker

    command: list[str] = ctx.meta.get(COMMAND, [])
    if not command:
        raise Usage("no worker: write `--` and the command that starts it after the options")
    # Like Ctrl-C this cancels the trial. An exception in the middle of a start would leave the started process behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    findings = asyncio.run(
        try_worker(command, tuple(only or ()), lease_s=lease_ms / 1000, at_once=at_once, report=_show)
    )
    broken = [finding.promise for finding in findings if not finding.kept]
    if broken:
        raise Failed(f"{len(broken)} of {len(findings)} promises broken: {', '.join(broken)}")
    say(f"all {len(findings)} promises kept")


def _show(finding: "Finding") -> None:
    emit_line(finding._asdict())
    word, style = ("kept  ", None) if finding.kept else ("BROKEN", "red")
    say(f"{word}  {finding.promise:<14} {finding.seen}", style)
    if not finding.kept:
        say(f"        {'':<14} it should have: {finding.text}")
        if finding.printed:
            say(f"        {'':<14} it printed last: {finding.printed}")
