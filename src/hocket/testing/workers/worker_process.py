"""The worker under test as a process group of its own, which can be frozen, killed and asked to stop."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hocket.errors import Usage

OUTPUT_BYTES_MAX = 4_096


class WorkerProcess:
    """`log` gets what the worker prints."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def start(cls, command: Sequence[str], variables: Mapping[str, str], log: Path) -> "WorkerProcess":
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOCKET_")}
        with log.open("ab") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=kept | dict(variables),
                    start_new_session=True,
                )
            except OSError as error:
                raise Usage(f"cannot start {command[0]}: {error.strerror}") from None
        return cls(process, log)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; minus the signal that killed it."""
        return self._process.returncode

    def freeze(self) -> None:
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_group(signal.SIGCONT)

    def terminate(self) -> None:
        """Sends SIGTERM to the worker alone, as a supervisor does."""
        if self.exit_code is None:
            self._process.terminate()

    async def kill(self) -> None:
        """Kills the worker with all its children."""
        self._signal_group(signal.SIGKILL)
        await self._process.wait()

    async def ended(self) -> int:
        return await self._process.wait()

    def last_line(self) -> str:
        """What the worker printed last."""
        with suppress(OSError), self._log.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - OUTPUT_BYTES_MAX))
            lines = output.read().decode(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
