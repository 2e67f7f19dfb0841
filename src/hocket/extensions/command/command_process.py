"""The first process of a command. The supervisor forks it before there is an order, because forking takes longer than
the rest of a start; the process waits, and becomes the command when the order arrives. It runs inside the fork server,
so it imports little.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import resource

from hocket.work.child_processes.bare_interpreter import receive_fds, send_fds
from hocket.work.child_processes.process_tree import die_with_parent, forgo_new_rights, keep_to_own_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMPLAINT_BYTES_MAX = 4_096
# The descriptors at which a sandbox reports its first process, and waits until that one is limited.
GATE = (206, 207)
_SIZE_BYTES = 8
# A signal that the worker's parent ignored would stay ignored.
_RESET = (
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGTSTP"),
    *("SIGTTIN", "SIGTTOU", "SIGXCPU", "SIGXFSZ"),
)


class CommandProcess:
    """The supervisor's side of it. Raises OSError if no further process can be created."""

    def __init__(self) -> None:
        self._line, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        supervisor = os.getpid()
        self.number = os.fork()
        if self.number == 0:
            self._line.close()
            _become(theirs, supervisor)
        theirs.close()

    def begin(self, order: bytes, streams: list[int]) -> tuple[str, int] | None:
        """Makes it become the command. If that fails, returns the step and the error number. Raises OSError if the
        process has died.
        """
        send_fds(self._line, len(order).to_bytes(_SIZE_BYTES, "big"), streams)
        self._line.sendall(order)
        # The other end closes automatically when the program begins.
        said = self._line.recv(COMPLAINT_BYTES_MAX)
        self._line.close()
        return marshal.loads(said) if said else None


def _become(line: _socket.socket, supervisor: int) -> None:
    """In the new process: becomes the command, or reports why it cannot."""
    step = "prepare"
    try:
        os.setsid()
        die_with_parent()
        if os.getppid() != supervisor:
            os._exit(127)
        for name in _RESET:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), 0)
        _rehearse()
        head, streams = receive_fds(line, _SIZE_BYTES)
        if not head:
            os._exit(0)
        order = _order(line, int.from_bytes(head, "big"))
        if order["no_new_rights"] or order["is_scoped"]:
            forgo_new_rights()
        if order["is_scoped"]:
            keep_to_own_sockets()
        for number, content in order["files"].items():
            _put(number, content)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        for number, stream in zip(GATE, streams[2:], strict=False):
            os.dup2(stream, number)
        _limit(order)
        step = "directory"
        os.chdir(order["directory"])
        step = "program"
        _begin(order["argv"], order["env"])
    except OSError as error:
        line.send(marshal.dumps((step, error.errno)))
    except BaseException as error:
        line.send(marshal.dumps((f"{step}: {error!r}"[:1000], 0)))
    finally:
        os._exit(127)


def _limit(order: dict[str, Any]) -> None:
    """If memory runs out nevertheless, the kernel kills a limited command before others."""
    limits = {
        resource.RLIMIT_FSIZE: order["file_bytes_max"],
        resource.RLIMIT_DATA: order["memory_bytes_max"],
        resource.RLIMIT_NOFILE: order["open_files_max"],
    }
    for kind, most in limits.items():
        hard = resource.getrlimit(kind)[1]
        if most and (hard == resource.RLIM_INFINITY or most < hard):
            resource.setrlimit(kind, (most, most))
    if order["memory_bytes_max"]:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")


def _put(number: int, content: bytes) -> None:
    """Has the program find this content at a descriptor."""
    fd = os.memfd_create("hocket")
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, number)
    os.close(fd)


def _rehearse() -> None:
    """Does what the supervisor does, with programs that cannot exist: a directory, and one inside a file."""
    for argv in ([b"/"], [b"none"]):
        order = marshal.loads(marshal.dumps({"argv": argv, "env": {b"PATH": b"/dev/null"}}))
        try:
            _begin(order["argv"], order["env"])
        except OSError:
            pass


def _order(line: _socket.socket, size: int) -> dict[str, Any]:
    parts = bytearray()
    while len(parts) < size:
        part = line.recv(size - len(parts))
        if not part:
            os._exit(0)
        parts += part
    return marshal.loads(parts)  # type: ignore[no-any-return]


def _begin(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """If the program's name has no slash, it is searched on the command's PATH."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    worst = FileNotFoundError(2, "not found")
    for directory in env.get(b"PATH", os.defpath.encode()).split(b":"):
        program = os.path.join(directory, argv[0])
        # Looking first is much cheaper than failing.
        if not os.path.exists(program):
            continue
        try:
            os.execve(program, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            worst = error if worst.errno == 2 else worst  # type: ignore[assignment]
    raise worst
