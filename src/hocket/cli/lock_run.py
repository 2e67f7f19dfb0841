"""`hocket lock run`: runs a command under a lock, and stops the command when the lock is lost."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hocket.cli.settings import open_runtime, warn
from hocket.errors import Usage
from hocket.families.locks.requests import LockLost
from hocket.node.node import Node
from hocket.node.opening import delivery
from hocket.node.signals import stopped_by_signals
from hocket.work.bare_interpreter import bare_interpreter
from hocket.work.bound_command import OWN, SHARED, STOP

if TYPE_CHECKING:
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
            environment = os.environ | {FENCE: str(held.fence)}
            with Leash() as leash:
                process = await _start(command, environment, leash, node.lock_processes.fd)
                with stopped_by_signals(process.terminate):
                    lost = asyncio.create_task(held.lost.wait())
                    ended = asyncio.create_task(process.wait())
                    await asyncio.wait((lost, ended), return_when=asyncio.FIRST_COMPLETED)
                    lost.cancel()
                    if not ended.done():
                        leash.stop()
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
        os.write(self._end, STOP)


async def _start(
    command: Sequence[str], environment: dict[str, str], leash: Leash, lock: int | None
) -> "asyncio.subprocess.Process":
    """On a terminal the command stays in the foreground group, so that it can read and gets Ctrl-C."""
    is_on_terminal = sys.stdin is not None and sys.stdin.isatty()
    reading, report = os.pipe()
    passed = (leash.far_end, report, *(() if lock is None else (lock,)))
    settings = (str(leash.far_end), str(report), SHARED if is_on_terminal else OWN, str(GRACE_S))
    words = bare_interpreter("work.bound_command", *settings, *command)
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
