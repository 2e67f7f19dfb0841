"""`hocket lock run`: runs a command under a lock, and stops the command when the lock is lost."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hocket.cli.settings import open_runtime, warn
from hocket.coordination.locks import LockLost
from hocket.errors import Usage
from hocket.node.node import Node
from hocket.node.opening import delivery
from hocket.node.signals import stopped_by_signals
from hocket.work.command.process import die_with_parent

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from hocket.node.locks import LockOptions

FENCE = "HOCKET_FENCE"
# How long a command has to end by itself after its lock was lost.
GRACE_S = 1.0


def run_locked(keys: Sequence[str], command: Sequence[str], agent: str | None, options: "LockOptions") -> int:
    """The exit code of the command."""
    if not command:
        raise Usage("no command; write it after --, like: hocket lock run file:notes.txt -- ./edit notes.txt")
    return asyncio.run(_run(keys, command, agent or f"run-{os.getpid()}", options))


async def _run(keys: Sequence[str], command: Sequence[str], agent: str, options: "LockOptions") -> int:
    runtime = open_runtime()
    node = Node(runtime)
    node.delivery = delivery(runtime, warn)
    try:
        async with node.lock(*keys, agent=agent, **options) as held:
            process = await _start(command, os.environ | {FENCE: str(held.fence)})
            with stopped_by_signals(lambda: _signal(process, signal.SIGTERM)):
                lost = asyncio.create_task(held.lost.wait())
                ended = asyncio.create_task(process.wait())
                await asyncio.wait((lost, ended), return_when=asyncio.FIRST_COMPLETED)
                lost.cancel()
                if not ended.done():
                    await _stop(process, ended)
                    raise LockLost(f"{', '.join(held.keys)}: the lock was lost, so the command was stopped")
    finally:
        await node.close()
    code = ended.result()
    return code if code >= 0 else 128 - code


async def _start(command: Sequence[str], environment: dict[str, str]) -> "Process":
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)

    # On a terminal the command stays in the foreground group, so that it can read and gets Ctrl-C.
    group = None if sys.stdin is not None and sys.stdin.isatty() else 0
    try:
        return await asyncio.create_subprocess_exec(*command, env=environment, preexec_fn=prepare, process_group=group)
    except (FileNotFoundError, PermissionError) as error:
        raise Usage(f"cannot run {command[0]}: {error.strerror}") from None


async def _stop(process: "Process", ended: "asyncio.Task[int]") -> None:
    _signal(process, signal.SIGTERM)
    done, _ = await asyncio.wait([ended], timeout=GRACE_S)
    if not done:
        _signal(process, signal.SIGKILL)
        await ended


def _signal(process: "Process", number: signal.Signals) -> None:
    """To the command, and to everything in its group if it has one of its own."""
    try:
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    except ProcessLookupError:
        pass
