"""Networks that can be cut and healed: a loopback proxy between two machines, or a pair of virtual devices between two
network namespaces. A proxy is cut in one of two ways. A silent one takes whatever is sent and holds it, as a network
does that drops packets which are sent again: when it heals, everything that was under way arrives, late. A broken one
resets every connection and refuses new ones.
"""

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

CHUNK = 256 * 1024


class Cable(Protocol):
    """The way from a machine to the owner's. `address` is where the owner answers on it."""

    address: str

    def cut(self, silent: bool) -> None: ...
    def heal(self) -> None: ...


class Proxy:
    def __init__(self, loop: asyncio.AbstractEventLoop, target: str) -> None:
        self._loop = loop
        self._target = urlsplit(target)
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_broken = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.carried = 0
        self.refused: tuple[bytes, ...] = ()
        """Requests that begin so end their connection."""

    async def open(self) -> "Proxy":
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=CHUNK)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self._drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, silent: bool) -> None:
        self._call(lambda: self._cut(silent))

    def heal(self) -> None:
        self._call(self._heal)

    def _call(self, act: Callable[[], None]) -> None:
        async def run() -> None:
            act()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _cut(self, silent: bool) -> None:
        self._flows.clear()
        self._is_broken = not silent
        if self._is_broken:
            self._drop()

    def _heal(self) -> None:
        self._is_broken = False
        self._flows.set()

    def _drop(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connected(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_broken:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await self._flows.wait()
            far_reader, far_writer = await asyncio.open_connection(
                self._target.hostname, self._target.port, limit=CHUNK
            )
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        try:
            await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))
        finally:
            for each in (writer, far_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _pipe(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (data := await source.read(CHUNK)) and not data.startswith(self.refused):
                await self._flows.wait()
                sink.write(data)
                await sink.drain()
                self.carried += len(data)
        with suppress(OSError):
            sink.write_eof()


@contextmanager
def proxies() -> Iterator[Callable[[str], Proxy]]:
    """Makes proxies to an address; they live in a thread of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    made: list[Proxy] = []

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    def make(target: str) -> Proxy:
        proxy: Proxy = run(Proxy(loop, target).open())
        made.append(proxy)
        return proxy

    try:
        yield make
    finally:
        for proxy in made:
            run(proxy.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


class Namespaces:
    """A star: one namespace for the owner, and one for each other machine, with a pair of devices between the two."""

    def __init__(self, owner: str, others: Sequence[str]) -> None:
        self._tag = f"hk{os.getpid() % 100_000}{os.urandom(1).hex()}"
        self._owner, self._others = owner, list(others)

    def name(self, machine: str) -> str:
        return f"{self._tag}-{machine}"

    def reached(self, machine: str) -> list[str]:
        return ["ip", "netns", "exec", self.name(machine)]

    def open(self) -> None:
        owner = self.name(self._owner)
        _ip("netns", "add", owner)
        _ip("-n", owner, "link", "set", "lo", "up")
        for number, machine in enumerate(self._others):
            there, near, far = self.name(machine), f"{self._tag}n{number}", f"{self._tag}f{number}"
            _ip("netns", "add", there)
            _ip("-n", there, "link", "set", "lo", "up")
            _ip("-n", owner, "link", "add", near, "type", "veth", "peer", "name", far, "netns", there)
            for space, device, last in ((owner, near, 1), (there, far, 2)):
                _ip("-n", space, "address", "add", f"10.77.{number}.{last}/24", "dev", device)
                _ip("-n", space, "link", "set", device, "up")
        _ip("netns", "exec", owner, "true")

    def close(self) -> None:
        for machine in (self._owner, *self._others):
            with suppress(OSError):
                _ip("netns", "delete", self.name(machine))

    def cable(self, machine: str, port: int) -> "Wire":
        number = self._others.index(machine)
        near, far = f"{self._tag}n{number}", f"{self._tag}f{number}"
        return Wire(self.name(self._owner), near, self.name(machine), far, f"http://10.77.{number}.1:{port}")


class Wire:
    """One pair of devices. With the owner's end down packets get lost on the way; with the other one down, the machine
    knows that there is no way.
    """

    def __init__(self, owner: str, near: str, there: str, far: str, address: str) -> None:
        self._near, self._far, self.address = (owner, near), (there, far), address

    def cut(self, silent: bool) -> None:
        self._set(self._near if silent else self._far, "down")

    def heal(self) -> None:
        self._set(self._near, "up")
        self._set(self._far, "up")

    def _set(self, end: tuple[str, str], state: str) -> None:
        _ip("-n", end[0], "link", "set", end[1], state)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def namespaces(owner: str, others: Sequence[str]) -> tuple[Namespaces | None, str]:
    """Namespaces with their devices; or None, and why they cannot be had here."""
    made = Namespaces(owner, others)
    try:
        made.open()
        return made, ""
    except OSError as error:
        made.close()
        return None, str(error)
