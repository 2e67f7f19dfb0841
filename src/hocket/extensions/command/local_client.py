"""The fast path of `hocket run`: sends the command line to the local server of a worker of this node, and prints what
comes back. It imports as little as possible. If no worker answers, `hocket run` starts the whole program with the same
arguments.
"""

import _socket
import os
import sys

SUFFIX = ".socket"
HELLO = b"hocket run 2\n"
# The request: the arguments, the directory and the environment, preceded by the length of each list in bytes.
LISTS, LENGTH_BYTES = 3, 4
STRING_END = b"\0"
STDOUT, STDERR, END, LONG_WAY = b"o", b"e", b"x", b"l"
HEADER_BYTES = 1 + LENGTH_BYTES
READ_BYTES = 65_536
INTERRUPTED = 130
_INT_BYTES = 4
_LONG_WAY = ("-h", "--help", "--json", "--on")


def ask_worker(words: list[str]) -> int | None:
    """The command's exit code; None if the whole program must run it."""
    options = words[: words.index("--")] if "--" in words else words
    if any(word.partition("=")[0] in _LONG_WAY for word in options):
        return None
    home = _home(options)
    try:
        directory = os.open(os.path.join(home, "processes"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Send nothing if other users could have put a socket here; the whole program reports the problem.
        if not (_is_ours(os.stat(home)) and _is_ours(os.fstat(directory))):
            return None
    except OSError:
        return None
    for name in os.listdir(directory):
        if name.endswith(SUFFIX):
            line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            try:
                # A socket's path must be short; the home's path may be long.
                line.connect(f"/proc/self/fd/{directory}/{name}")
                if peer_user(line) != os.geteuid():
                    raise PermissionError
                line.sendall(HELLO + _lists(words))
            except ConnectionRefusedError:
                # The worker was killed.
                os.unlink(name, dir_fd=directory)
            except OSError:
                pass
            else:
                return _listen(line)
            line.close()
    return None


def peer_user(line: _socket.socket) -> int:
    """The user id of the process at the other end."""
    credentials = line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 3 * _INT_BYTES)
    return int.from_bytes(credentials[_INT_BYTES : 2 * _INT_BYTES], sys.byteorder)


def _is_ours(state: os.stat_result) -> bool:
    """Whether this user owns the directory and no other user can write into it."""
    return state.st_uid == os.geteuid() and not state.st_mode & 0o022


def _home(options: list[str]) -> str:
    for place, word in enumerate(options):
        if word == "--home" and place + 1 < len(options):
            return options[place + 1]
        if word.startswith("--home="):
            return word[len("--home=") :]
    return os.environ.get("HOCKET_HOME") or os.path.expanduser("~/.hocket")


def _lists(words: list[str]) -> bytes:
    environment = [name + b"=" + value for name, value in os.environb.items()]
    lists = [
        b"".join([each + STRING_END for each in some])
        for some in ([os.fsencode(word) for word in words], [os.getcwdb()], environment)
    ]
    return b"".join([len(each).to_bytes(LENGTH_BYTES, "big") for each in lists] + lists)


def _listen(line: _socket.socket) -> int | None:
    try:
        while header := _read(line, HEADER_BYTES):
            body = _read(line, int.from_bytes(header[1:], "big"))
            kind = header[:1]
            if kind == LONG_WAY:
                return None
            if kind == END:
                return _ended(body)
            _write(1 if kind == STDOUT else 2, body)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        line.close()
    print("hocket: the worker has exited; the job is on the log, see `hocket jobs`", file=sys.stderr)
    return 5


def _read(line: _socket.socket, size: int) -> bytes:
    """Reads that many bytes, or fewer if the other side closes."""
    parts = []
    while size > 0 and (part := line.recv(min(size, READ_BYTES))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _ended(body: bytes) -> int:
    """The last frame: the exit code, then a sentence for stderr, if there is one."""
    if len(body) > 1:
        _write(2, b"hocket: " + body[1:] + b"\n")
    return body[0]


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
