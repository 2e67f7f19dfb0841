"""A worker's server for `hocket run` on the same machine: a Unix socket in the home. A client sends a command line and
receives the output of the command, as it is printed, and its exit code. Hanging up before the end cancels the job.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hocket.errors import HocketError
from hocket.extensions.command import request
from hocket.extensions.command.following import Following
from hocket.extensions.command.job import Commands
from hocket.extensions.command.local_client import (
    END,
    HELLO,
    LENGTH_BYTES,
    LISTS,
    LONG_WAY,
    STDERR,
    STDOUT,
    STRING_END,
    SUFFIX,
    peer_user,
)
from hocket.extensions.command.proofs import CommandOutcome
from hocket.extensions.command.request import CommandRequest, PackedRequest
from hocket.extensions.cost.costs import check_budgets
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.texts import clean
from hocket.log import Transaction
from hocket.node.delivery import TELL_S
from hocket.node.node import Node
from hocket.work.runner import Run
from hocket.work.worker import Worker

REQUEST_BYTES_MAX = 16 * 1024 * 1024
REQUEST_S = 5.0


class Asked(NamedTuple):
    """The command to run, whether to detach it, and a warning for the caller."""

    request: CommandRequest
    detach: bool
    warning: str | None = None


# Parses a command line, given the arguments, the directory and the environment of the caller.
Read = Callable[[list[str], Path, dict[str, str]], Asked]


class LocalServer:
    """Serves while it is entered. `read` parses command lines."""

    def __init__(self, node: Node, worker: Worker, commands: Commands, read: Read, name: str) -> None:
        self._node = node
        self._worker = worker
        self._commands = commands
        self._read = read
        self._path = node.runtime.home.processes / f"{name}{SUFFIX}"
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.Task[None]] = set()
        self._following: dict[bytes, Following] = {}

    async def __aenter__(self) -> "LocalServer":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket's path must be short; the home's path may be long.
        directory = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        before = os.umask(0o177)
        try:
            listener.bind(f"/proc/self/fd/{directory}/{self._path.stem}")
            listener.listen()
            # The socket gets its name once it listens: a client removes a socket that refuses it, as one of a dead
            # worker.
            os.rename(self._path.stem, self._path.name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            os.umask(before)
            os.close(directory)
        self._server = await asyncio.start_unix_server(self._answer, sock=listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._path.unlink(missing_ok=True)
        for caller in self._callers:
            caller.cancel()
        if self._callers:
            await asyncio.wait(self._callers)

    def finished(self, run: Run, outcome: Job | Reason) -> None:
        """The worker calls this for every run that has ended."""
        if (following := self._following.get(run.job.id)) is not None:
            following.finished(run, outcome)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if peer_user(writer.get_extra_info("socket")) != os.geteuid():
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._callers.add(task)
        try:
            ended = await self._serve(reader, writer)
            if ended is None:
                await _send(writer, LONG_WAY, b"")
            else:
                await _send(writer, END, bytes([ended.code]) + clean(ended.sentence).encode(errors="backslashreplace"))
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            self._callers.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> CommandOutcome | None:
        """Returns None if the client must run the whole program, which reports what is wrong with the arguments."""
        async with asyncio.timeout(REQUEST_S):
            if await reader.readexactly(len(HELLO)) != HELLO:
                return None
            words, directory, environment = await _lists(reader)
        try:
            asked = self._read(words, Path(*directory), dict(each.split("=", 1) for each in environment))
        except Exception:
            return None
        try:
            packed = await self._pack(asked.request)
            if packed.policy.budget is not None:
                await self._node.call(lambda: check_budgets(self._node.runtime, [packed.draft]))
            if self._worker.is_stopping:
                return None
            if asked.warning:
                await _send(writer, STDERR, f"hocket: {clean(asked.warning)}\n".encode(errors="backslashreplace"))
            job_id = await self._worker.bring(lambda tx: self._submit(tx, packed))
            if job_id is None:
                return None
            if asked.detach:
                await _send(writer, STDOUT, f"submitted {request.KIND} {ulid_text(job_id)}\n".encode())
                return CommandOutcome(0, "")
            return await self._follow(job_id, reader, writer)
        except HocketError as error:
            return CommandOutcome(error.exit_code, str(error))

    def _submit(self, tx: Transaction, packed: PackedRequest) -> bytes | None:
        """None, and nothing is submitted, if this worker may not run commands: they are routed to another node, say."""
        return packed.submit(tx, self._node.runtime) if tx.admits(request.KIND) else None

    async def _pack(self, asked: CommandRequest) -> PackedRequest:
        """Packs a request; off the event loop only if it has files."""
        blobs = self._node.runtime.blobs
        return await self._node.call(lambda: request.pack(asked, blobs)) if asked.inputs else request.pack(asked, blobs)

    async def _follow(
        self, job_id: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> CommandOutcome:
        """Forwards the output of the job until it ends, or cancels it when the caller hangs up."""
        loop = asyncio.get_running_loop()

        def tell(stream: str, chunk: bytes) -> None:
            kind = STDOUT if stream == "stdout" else STDERR
            with suppress(ConnectionError):
                asyncio.run_coroutine_threadsafe(_send(writer, kind, chunk), loop).result()

        following = Following(self._node, job_id, tell)
        name = ulid_text(job_id)
        self._following[job_id] = following
        self._commands.listeners.listen(name, following)
        end = asyncio.create_task(following.end())
        gone = asyncio.create_task(reader.read(1))
        telling = asyncio.create_task(self._tell_waiting(job_id, following, writer))
        try:
            await asyncio.wait((end, gone), return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                await self._node.decide(lambda tx: jobs.call_off(tx, job_id, "its caller hung up"))
                raise ConnectionResetError
            return end.result()
        finally:
            self._commands.listeners.leave(name)
            del self._following[job_id]
            end.cancel()
            gone.cancel()
            telling.cancel()

    async def _tell_waiting(self, job_id: bytes, following: Following, writer: asyncio.StreamWriter) -> None:
        """Tells the caller what the command waits for, until it runs."""
        said: tuple[str, str] | None = None
        while not following.is_heard:
            await asyncio.sleep(TELL_S)
            waiting = await self._node.waiting(job_id)
            if waiting is not None and not following.is_heard and waiting.key != said:
                said = waiting.key
                text = f"hocket: waiting: {clean(waiting.sentence)}\n"
                await _send(writer, STDERR, text.encode(errors="backslashreplace"))


async def _lists(reader: asyncio.StreamReader) -> list[list[str]]:
    """The lists of strings that a client sends."""
    head = await reader.readexactly(LISTS * LENGTH_BYTES)
    sizes = [int.from_bytes(head[at : at + LENGTH_BYTES], "big") for at in range(0, len(head), LENGTH_BYTES)]
    if sum(sizes) > REQUEST_BYTES_MAX:
        raise ConnectionResetError
    lists = [await reader.readexactly(size) for size in sizes]
    return [[os.fsdecode(each) for each in some.split(STRING_END)[:-1]] for some in lists]


async def _send(writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
    writer.write(kind + len(body).to_bytes(LENGTH_BYTES, "big") + body)
    await writer.drain()
