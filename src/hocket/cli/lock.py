"""`hocket lock`: locks with fences, for agents that share files. `run` holds a lock while a command runs."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from hocket.api import locks
from hocket.cli.declarations import App, Argument, CommandContext, Option
from hocket.cli.derived import add_operations
from hocket.cli.options import Agent, ProcessAgent
from hocket.cli.printing import emit, say
from hocket.cli.settings import open_runtime, open_service, warn
from hocket.errors import Usage

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from hocket.node.locks import LockOptions

FENCE = "HOCKET_FENCE"
# How long a command has to end by itself after its lock was lost.
GRACE_S = 1.0

app = App()

Lease = Annotated[
    str | None,
    Option("--lease", "DURATION", "How long it lasts unless renewed, or 4b in beats; default 30s for file:, else 5m."),
]
# The earlier name of --lease.
OldLease = Annotated[str | None, Option("--ttl", hidden=True)]
Shared = Annotated[bool, Option("--shared", help="Hold it together with other shared holders.")]
Wait = Annotated[str | None, Option("--wait", "DURATION", "How long to wait for it; default: not at all.")]
Scope = Annotated[str, Option("--scope", "REPO", "What the keys belong to, such as a repository.", show_default=False)]


@app.callback()
def lock_group() -> None:
    """Lock files and other things that several agents use. Every lock has a fence, a number that rises with each
    holder: pass it on to what you write, so that a late write of an earlier holder can be refused.

    \b
      hocket lock run file:src/lib.rs -- ./edit src/lib.rs
      hocket lock acquire file:src/** --agent editor --wait 10s
      hocket lock list
    """


add_operations(app, locks.acquire, locks.renew)


@app.command()
def release(
    key: Annotated[str | None, Argument("KEY", "What is locked, like file:src/lib.rs.", show_default=False)] = None,
    fence: Annotated[int | None, Option("--fence", "N", "The fence that `lock acquire` gave.")] = None,
    everything: Annotated[bool, Option("--all", help="All locks that the agent holds on this node.")] = False,
    agent: Agent = None,
    scope: Scope = "",
) -> None:
    """Release a lock, together with everything that was acquired with it, or all locks of an agent. --all releases the
    locks of every scope unless --scope names one.

    \b
      hocket lock release file:src/lib.rs --fence 7 --agent editor
      hocket lock release --all --agent editor
    """
    from hocket.families.inbox.requests import default_agent

    agent = agent or default_agent()
    if everything:
        if key is not None or fence is not None:
            raise Usage("give either a key and its fence, or --all")
        with open_service() as service:
            released = locks.release_all(service, agent, scope=scope or None)
        emit(released)
        for each in released:
            say(f"{', '.join(each.keys)} released")
        if not released:
            say(f"{agent} holds no locks here")
        return
    if key is None or fence is None:
        raise Usage("give a key and its --fence, or --all")
    with open_service() as service:
        locks.release(service, key, fence, agent, scope)
    emit({"key": key, "agent": agent, "fence": fence, "released": True})
    say(f"{key} released")


add_operations(app, locks.listing, locks.show, locks.break_)


@app.command(cls="typer_program:RunCommand")
def run(
    context: CommandContext,
    keys: Annotated[list[str], Argument("KEY... -- CMD [ARG...]", "What to lock; the command to run stands after --.")],
    agent: ProcessAgent = None,
    lease: Lease = None,
    ttl: OldLease = None,
    shared: Shared = False,
    wait: Wait = None,
    scope: Scope = "",
) -> None:
    """Hold a lock while a command runs. The command gets the fence as HOCKET_FENCE, and its exit code becomes this
    one's. The lock is renewed meanwhile and released at the end. If this process is killed, the command is killed with
    it and the lock is released. If the lock is lost, the command is stopped and the exit code is 3.

    \b
      hocket lock run file:src/lib.rs --wait 1m -- ./edit src/lib.rs
      hocket lock run 'file:src/**' --shared -- cargo test
    """
    import asyncio

    import typer

    from hocket.cli.typer_program import COMMAND

    command = context.meta[COMMAND]
    if not command:
        raise Usage("no command; write it after --, like: hocket lock run file:notes.txt -- ./edit notes.txt")
    options: LockOptions = {"ttl": lease or ttl, "shared": shared, "wait": wait or 0, "scope": scope}
    raise typer.Exit(asyncio.run(_run(keys, command, agent or f"run-{os.getpid()}", options)))


async def _run(keys: Sequence[str], command: Sequence[str], agent: str, options: "LockOptions") -> int:
    """Runs a command under a lock, and stops it when the lock is lost. Returns its exit code."""
    import asyncio

    from hocket.families.locks.requests import LockLost
    from hocket.node.node import Node
    from hocket.node.opening import delivery
    from hocket.node.signals import stopped_by_signals

    runtime = open_runtime()
    node = Node(runtime)
    node.delivery = delivery(runtime, warn)
    try:
        async with node.lock(*keys, agent=agent, **options) as held:
            environment = os.environ | {FENCE: str(held.fence)}
            with Leash() as leash:
                process = await _start(command, environment, leash, node.lock_processes.fd)
                with stopped_by_signals(process.terminate):
                    lost = asyncio.create_task(held.lost.wait())
                    ended = asyncio.create_task(process.wait())
                    await asyncio.wait((lost, ended), return_when=asyncio.FIRST_COMPLETED)
                    lost.cancel()
                    if not ended.done():
                        await _stop(process, leash)
                        await ended
                        raise LockLost(f"{', '.join(held.keys)}: the lock was lost, so the command was stopped")
    finally:
        await node.close()
    code = ended.result()
    return code if code >= 0 else 128 - code


class Leash:
    """This end of it. When it is let go of, `bound_command` kills what is left of the command."""

    def __init__(self) -> None:
        self.far_end, self._end = os.pipe()

    def __enter__(self) -> "Leash":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.far_end)
        os.close(self._end)

    def stop(self) -> None:
        from hocket.work.child_processes.bound_command import STOP

        os.write(self._end, STOP)


async def _start(command: Sequence[str], environment: dict[str, str], leash: Leash, lock: int | None) -> "Process":
    """On a terminal the command stays in the foreground group, so that it can read and gets Ctrl-C."""
    import asyncio

    from hocket.system import has_process_control
    from hocket.work.child_processes.bare_interpreter import bare_interpreter
    from hocket.work.child_processes.bound_command import OWN, SHARED

    is_on_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not has_process_control():
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                pass_fds=() if lock is None else (lock,),
                process_group=None if is_on_terminal else 0,
            )
        except OSError as error:
            raise Usage(f"cannot run {command[0]}: {error.strerror}") from None
    reading, report = os.pipe()
    passed = (leash.far_end, report, *(() if lock is None else (lock,)))
    settings = (str(leash.far_end), str(report), SHARED if is_on_terminal else OWN, str(GRACE_S))
    words = bare_interpreter("work.child_processes.bound_command", *settings, *command)
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=environment, pass_fds=passed, process_group=None if is_on_terminal else 0
            )
        finally:
            os.close(report)
        failure = await asyncio.to_thread(os.read, reading, 16)
    finally:
        os.close(reading)
    if failure:
        await process.wait()
        raise Usage(f"cannot run {command[0]}: {os.strerror(int(failure))}")
    return process


async def _stop(process: "Process", leash: Leash) -> None:
    """Ends the command and everything below it. Where the system cannot bind processes, it ends those in its group."""
    import asyncio
    import signal
    from contextlib import suppress

    from hocket.system import has_process_control

    if has_process_control():
        leash.stop()
        return
    has_own_group = os.getpgid(process.pid) == process.pid
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            (os.killpg if has_own_group else os.kill)(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_S)
