"""A real nats-server for tests, in a process of its own, on a port of its own that it keeps when it is restarted."""

import asyncio
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

from hocket.bus.nats_messages import NatsMessages
from tests.ports import free_port

PATIENCE_S = 60.0
_BESIDE = Path(sys.executable).parent / "nats-server"
PROGRAM = str(_BESIDE) if _BESIDE.exists() else shutil.which("nats-server")


class NatsServer:
    """`configuration` is more of the server's configuration file, and `space` what JetStream may keep. The system
    refuses to let the server's files grow over `file_bytes_max`, like a disk that is full. Use it in a `with` block.
    """

    def __init__(
        self,
        directory: Path,
        configuration: str = "",
        *,
        jetstream: bool = True,
        name: str = "one",
        scheme: str = "nats",
        space: str = "256MB",
        file_bytes_max: int | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.name, self.data = name, directory / f"nats-{name}"
        self._file = directory / f"nats-{name}.conf"
        stored = f'jetstream {{ store_dir: "{self.data}", max_file_store: {space} }}\n' if jetstream else ""
        self._file.write_text(f'server_name: {name}\nlisten: "127.0.0.1:{self.port}"\n{stored}{configuration}\n')
        self._output = directory / f"nats-{name}.log"
        self._file_bytes_max = file_bytes_max
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "NatsServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        assert PROGRAM is not None, "no nats-server; run `make setup`"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen([PROGRAM, "-c", str(self._file)], stdout=output, stderr=output)
        if self._file_bytes_max is not None:
            limits = (self._file_bytes_max, self._file_bytes_max)
            resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, limits)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self._process.poll() is None, self._output.read_text()
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1.0):
                    return
            except OSError:
                assert time.monotonic() < deadline, self._output.read_text()
                time.sleep(0.01)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def lose_data(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None


async def connected(bus: NatsMessages, wanted: bool = True) -> None:
    """Waits until the bus is connected, or away."""
    async with asyncio.timeout(PATIENCE_S):
        while bus.state.is_connected is not wanted:
            await bus.changed.wait()


class Cable:
    """A connection between two servers that can be cut."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def join(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)

    async def cut(self) -> None:
        assert self._server is not None
        self._server.close()
        for end in self._ends:
            end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        self._ends |= {writer, other_writer}
        await asyncio.wait(
            [asyncio.create_task(_pump(reader, other_writer)), asyncio.create_task(_pump(other_reader, writer))]
        )


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def two_halves(directory: Path) -> AsyncIterator[tuple[NatsServer, NatsServer, Cable]]:
    """Two servers of one cluster, and the only connection between them."""
    one_port, two_port, cable_port = (free_port() for _ in range(3))

    def cluster(port: int, *routes: int) -> str:
        named = ", ".join(f'"nats://127.0.0.1:{each}"' for each in routes)
        return f'cluster {{ name: c, no_advertise: true, listen: "127.0.0.1:{port}", routes: [{named}] }}'

    cable = Cable(cable_port, one_port)
    await cable.join()
    with (
        NatsServer(directory, cluster(one_port), jetstream=False, name="one") as one,
        NatsServer(directory, cluster(two_port, cable_port), jetstream=False, name="two") as two,
    ):
        yield one, two, cable
    await cable.cut()


@contextmanager
def three_servers(directory: Path) -> Iterator[list[NatsServer]]:
    """A cluster of three servers with JetStream."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                NatsServer(
                    directory,
                    f'cluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{routes}] }}',
                    name=f"server-{number}",
                )
            )
            for number, port in enumerate(ports)
        ]
