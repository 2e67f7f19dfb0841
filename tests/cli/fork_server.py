"""Runs commands of the program without importing it for each: a process that has imported it forks for every command.
The fork is a process of its own, with its own arguments, environment, directory and standard streams. What Python and
the libraries read while they start is that of the server, so a command with other `STARTUP` variables is started anew.
Tests about how the program starts, or how its interpreter ends, use `PROGRAM`.
"""

import atexit
import gc
import importlib
import marshal
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import NoReturn

from tests.cli import fork_client

ROOT = Path(__file__).resolve().parents[2]
MODULE = "hocket.cli"
PROGRAM = (sys.executable, "-m", MODULE)
# Where a command writes its output and its errors: two descriptors.
Outputs = tuple[int, int]
# Besides all modules of the commands and of the service: what these import when they first need it.
LOADED = (
    "hocket.bus.nats_messages",
    "hocket.log.intake",
    "hocket.families.locks.projector",
    "hocket.families.inbox.projector",
    "hocket.log.sealing",
    "hocket.mesh.http",
    "hocket.mesh.loop",
    "hocket.mesh.services",
    "hocket.mesh.waiting",
    "hocket.extensions.command.job",
    "hocket.node.job_stream",
    "hocket.node.kept_requests",
    "hocket.node.local_node",
    "hocket.extensions.git.pending_jobs",
    "hocket.extensions.command.local_client",
    "hocket.server.monitoring.monitor",
    "hocket.server.openai",
    "hocket.server.running",
    "hocket.server.routes",
    "hocket.store.postgres",
    "hocket.store.sqlite",
    "hocket.families.jobs.cron",
    "hocket.work.handler_processes",
    "encodings.ascii",
    "encodings.utf_16_be",
    "importlib.resources.readers",
    "nacl.pwhash",
    "random",
    "subprocess",
    "typer._click.decorators",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.auto",
)
STARTUP = ("PYTHON", "LANG", "LC_", "TZ", "COLUMNS", "LINES", "TERM", "NO_COLOR", "FORCE_COLOR", "PY_COLORS", "SSL_")
# Where modules and their compiled form lie: the server sees to the first, and needs no other.
FREE = ("PYTHONPATH", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")


class ForkServer:
    """It ends with the process that made it, and with this object. It has loaded `modules` besides what all commands
    need.
    """

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str] = ()) -> None:
        self._startup = _startup(environment)
        self._directory = tempfile.mkdtemp()
        self.path = f"{self._directory}/socket"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(self.path)
            listener.listen(64)
            # Pipes, since Python looks at its streams when it starts.
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), self._directory, *modules],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env=environment,
                cwd=ROOT,
            )
        self._process.wait()

    def fits(self, environment: Mapping[str, str]) -> bool:
        customised = any(Path(each, "sitecustomize.py").exists() for each in _paths(environment))
        return _startup(environment) == self._startup and not customised

    def run(
        self, words: Sequence[str], given: bytes | None, environment: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> "subprocess.CompletedProcess[bytes]":
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe()
        theirs = (read_in, write_out, write_err)
        asked = self.ask(words, environment, cwd, theirs)
        for each in theirs:
            os.close(each)
        feeder = threading.Thread(target=_feed, args=(write_in, given or b""), daemon=True)
        feeder.start()
        with asked, open(read_out, "rb") as out, open(read_err, "rb") as err:
            late = threading.Timer(timeout_s, os.kill, (fork_client.number(asked), signal.SIGKILL))
            late.start()
            found: list[bytes] = []
            reader = threading.Thread(target=lambda: found.append(err.read()), daemon=True)
            reader.start()
            said = out.read()
            reader.join()
            code = fork_client.number(asked)
            late.cancel()
        feeder.join()
        return subprocess.CompletedProcess(words, code, said, found[0])

    def ask(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        streams: tuple[int, int, int],
        module: str = MODULE,
        group: int | None = None,
    ) -> socket.socket:
        """Starts a command; the socket gives its process id, and then its exit code."""
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asked.connect(self.path)
        fork_client.ask(asked, list(words), dict(environment), str(cwd), streams, module, group)
        return asked


class ForkedProgram(subprocess.Popen[str]):
    """A command that stays, for whoever would start it with Popen. Its stdin is at its end. Without `outputs`, its
    outputs are pipes.
    """

    def __init__(
        self,
        server: ForkServer,
        words: Sequence[str],
        environment: Mapping[str, str],
        cwd: Path,
        outputs: Outputs | None,
        module: str,
        group: int | None,
    ) -> None:
        read_out, write_out = os.pipe() if outputs is None else (None, os.dup(outputs[0]))
        read_err, write_err = os.pipe() if outputs is None else (None, os.dup(outputs[1]))
        theirs = (os.open(os.devnull, os.O_RDONLY), write_out, write_err)
        self._asked = server.ask(words, environment, cwd, theirs, module, group)
        for each in theirs:
            os.close(each)
        self.args, self.pid, self.returncode = list(words), fork_client.number(self._asked), None  # type: ignore[assignment]
        self.stdin = None
        self.stdout, self.stderr = (None if each is None else os.fdopen(each) for each in (read_out, read_err))
        self.text_mode, self.encoding, self.errors, self._input = True, None, None, None
        self._communication_started = self._child_created = False  # it is no child, and Popen need not mind it

    def _internal_poll(self, *_: object) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0.0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._asked], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = fork_client.number(self._asked)
            self._asked.close()
        return self.returncode


def _feed(fd: int, given: bytes) -> None:
    try:
        with open(fd, "wb") as stream:
            stream.write(given)
    except BrokenPipeError:
        pass  # the command did not read everything


def _startup(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(STARTUP) and not name.startswith(FREE)
    }


@cache
def fork_server(*modules: str) -> ForkServer:
    return ForkServer(os.environ, modules)


def run_command(
    words: Sequence[str], given: bytes | None, environment: Mapping[str, str], cwd: Path, timeout_s: float
) -> "subprocess.CompletedProcess[bytes]":
    """Runs `hocket` with these words to its end. Without input, stdin is at its end."""
    server = fork_server()
    if server.fits(environment):
        return server.run(words, given, environment, cwd, timeout_s)
    stdin = subprocess.DEVNULL if given is None else None
    return subprocess.run(
        [*PROGRAM, *words], input=given, stdin=stdin, capture_output=True, env=environment, cwd=cwd, timeout=timeout_s
    )


def start_command(
    words: Sequence[str],
    environment: Mapping[str, str],
    cwd: Path,
    outputs: Outputs | None = None,
    *,
    module: str = MODULE,
    group: int | None = None,
) -> "subprocess.Popen[str]":
    """Starts `hocket`, or the `main` of another module, with these words and leaves it running. Without `outputs`, its
    outputs are pipes. `group` is its process group, where 0 is a new one.
    """
    server = fork_server()
    if server.fits(environment):
        return ForkedProgram(server, words, environment, cwd, outputs, module, group)
    out, err = outputs or (subprocess.PIPE, subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-m", module, *words],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        text=True,
        env=environment,
        cwd=cwd,
        process_group=group,
    )


def forked_program(server: ForkServer) -> list[str]:
    """The program as words for a shell."""
    return [sys.executable, "-I", "-S", fork_client.__file__, server.path]


# In the server.


def _serve(listener: socket.socket, modules: Sequence[str]) -> None:
    import hocket.api
    import hocket.cli

    for package in (hocket.cli, hocket.api):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name != "hocket.cli.__main__":
                importlib.import_module(module.name)
    for name in (*LOADED, *modules):
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    _Commands(listener).serve()


class _Commands:
    """The commands that run. Each costs one fork of this large process, which takes longer than many a command."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        for each in (listener.fileno(), sys.stdin.fileno()):
            self._poll.register(each, select.POLLIN)
        self._running: set[int] = set()
        # What to do when a descriptor is ready, and the descriptor.
        self._waits: dict[int, tuple[Callable[[], None], socket.socket | int]] = {}

    def serve(self) -> None:
        while True:
            for ready, _ in self._poll.poll():
                if ready == sys.stdin.fileno():
                    for pid in self._running:
                        os.kill(pid, signal.SIGKILL)
                    return
                if ready == self._listener.fileno():
                    self._start()
                elif ready in self._waits:
                    self._waits[ready][0]()

    def _start(self) -> None:
        """Runs a command in a process of its own, and tells its number."""
        asked, _ = self._listener.accept()
        _, fds, _, _ = socket.recv_fds(asked, 1, 4)
        if not fds:
            asked.close()  # its client was killed
            return
        request, *streams = fds
        module, words, environment, cwd, group = marshal.loads(os.pread(request, os.fstat(request).st_size, 0))
        os.close(request)
        pid = os.fork()
        if pid == 0:
            for each in (self._listener, asked, *(kept for _, kept in self._waits.values())):
                os.close(each) if isinstance(each, int) else each.close()
            _run(module, words, environment, cwd, streams)
        if group is not None:
            os.setpgid(pid, group)
        for each in streams:
            os.close(each)
        self._running.add(pid)
        watched = os.pidfd_open(pid)
        self._wait(watched, partial(self._ended, pid, watched, asked))
        # A client that is killed takes its command with it.
        self._wait(asked, partial(self._left, pid, asked))
        with suppress(OSError):
            asked.sendall(b"%d\n" % pid)

    def _wait(self, on: socket.socket | int, then: Callable[[], None]) -> None:
        number = on if isinstance(on, int) else on.fileno()
        self._waits[number] = then, on
        self._poll.register(number, select.POLLIN)

    def _forget(self, number: int) -> None:
        self._poll.unregister(number)
        del self._waits[number]

    def _ended(self, pid: int, watched: int, asked: socket.socket) -> None:
        """Tells how a command ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._running.discard(pid)
        self._forget(watched)
        os.close(watched)
        if asked.fileno() in self._waits:
            self._forget(asked.fileno())
        with suppress(OSError):
            asked.sendall(b"%d\n" % code)
        asked.close()

    def _left(self, pid: int, asked: socket.socket) -> None:
        self._forget(asked.fileno())
        os.kill(pid, signal.SIGKILL)


def _run(module: str, words: list[str], environment: dict[str, str], cwd: str, streams: list[int]) -> NoReturn:
    main = importlib.import_module(module).main
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    before = len(_paths(os.environ))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[: 1 + before] = [cwd, *_paths(environment)]
    sys.argv[1:] = words
    sys.orig_argv[:] = [sys.executable, "-m", module, *words]
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    assert isinstance(code, int)
    _end(code)


def _end(code: int) -> NoReturn:
    """Ends like an interpreter: waits for the threads, calls what was registered, and flushes. It does not take the
    modules apart. That copies most of the memory which the fork shares with the server, and takes longer than a short
    command.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _paths(environment: Mapping[str, str]) -> list[str]:
    return [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]


if __name__ == "__main__":
    # No child of the process that made it: some tests look at all children of theirs.
    if os.fork() > 0:
        os._exit(0)
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        _serve(listening, sys.argv[3:])
    shutil.rmtree(sys.argv[2])
