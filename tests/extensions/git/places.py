"""Git repositories in every way that git reaches one: on this disk, by a file address, from git's own daemon, over
smart HTTP and over ssh (with a stand-in for the program, so that the protocol is the real one).
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hocket.extensions.git.plane import Plane
from hocket.extensions.git.planes import open_plane
from tests.ports import free_port
from tests.waiting import wait_for

KINDS = ("bare", "worktree", "file", "daemon", "http", "ssh")
PATIENCE_S = 60


@dataclass
class Place:
    """Where the plane is reached, and where it really lies."""

    kind: str
    address: str
    directory: Path
    outside: dict[str, str] = field(repr=False)
    cache: Path
    planes: list[Plane] = field(default_factory=list)

    def open(self, patience_s: float = PATIENCE_S) -> Plane:
        plane = open_plane(self.address, self.cache, self.outside, patience_s)
        self.planes.append(plane)
        return plane

    def git(self, *arguments: str, given: str | bytes = b"") -> str:
        data = given.encode() if isinstance(given, str) else given
        ran = subprocess.run(
            ["git", "-C", str(self.directory), *arguments], env=self.outside, input=data, capture_output=True
        )
        assert ran.returncode == 0, (arguments, ran.stderr.decode())
        return ran.stdout.decode()


def outside(home: Path) -> dict[str, str]:
    """The environment of a user without settings."""
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | {
        "HOME": str(home),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "somebody",
        "GIT_AUTHOR_EMAIL": "somebody@localhost",
        "GIT_COMMITTER_NAME": "somebody",
        "GIT_COMMITTER_EMAIL": "somebody@localhost",
    }


@contextmanager
def place(kind: str, directory: Path, object_format: str = "sha1") -> Iterator[Place]:
    env = outside(directory / "user")
    bare = kind != "worktree"
    repository = directory / "served" / ("jobs.git" if bare else "jobs")
    options = ["--bare"] if bare else []
    subprocess.run(
        ["git", "init", "--quiet", f"--object-format={object_format}", *options, str(repository)], env=env, check=True
    )
    if bare:
        subprocess.run(["git", "-C", str(repository), "config", "uploadpack.allowFilter", "true"], env=env, check=True)
    with _address(kind, repository, env, directory) as address:
        here = Place(kind, address, repository, env, directory / "cache")
        try:
            yield here
        finally:
            for plane in here.planes:
                plane.close()


@contextmanager
def _address(kind: str, repository: Path, env: dict[str, str], directory: Path) -> Iterator[str]:
    if kind in ("bare", "worktree"):
        yield str(repository)
    elif kind == "file":
        yield f"file://{repository}"
    elif kind == "daemon":
        with _daemon(repository.parent, env) as port:
            yield f"git://127.0.0.1:{port}/{repository.name}"
    elif kind == "http":
        with http_server(repository.parent, env) as port:
            yield f"http://127.0.0.1:{port}/{repository.name}"
    else:
        script = directory / "ssh"
        # Like ssh: options, a host, and a command line for the shell over there.
        script.write_text('#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\nshift\nexec sh -c "$*"\n')
        script.chmod(0o755)
        env |= {"GIT_SSH_COMMAND": str(script), "GIT_SSH_VARIANT": "ssh"}
        yield f"worker@host:{repository}"


@contextmanager
def _daemon(root: Path, env: dict[str, str]) -> Iterator[int]:
    port = free_port()
    served = ["--export-all", "--enable=receive-pack", f"--base-path={root}", str(root)]
    daemon = subprocess.Popen(
        ["git", "daemon", "--reuseaddr", "--listen=127.0.0.1", f"--port={port}", *served],
        env=env,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:

        def answers() -> bool:
            assert daemon.poll() is None
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        wait_for(answers, "the daemon")
        yield port
    finally:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


@contextmanager
def http_server(
    root: Path, env: dict[str, str], code: int | None = None, cuts: list[tuple[str, bool]] | None = None
) -> Iterator[int]:
    """`git http-backend` behind a small server; with a code, a server that answers everything with that. Each of the
    `cuts` is a part of a request's path and whether the request is carried out before its connection is cut off.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def log_request(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            body = self._body()
            if code is not None:
                self.send_response(code)
                if code == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="jobs"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            is_cut = bool(cuts) and cuts[0][0] in self.path
            if is_cut and not cuts[0][1]:
                cuts.pop(0)
                self._cut_off()
                return
            ran = subprocess.run(
                ["git", "http-backend"],
                env=env
                | {
                    "GIT_PROJECT_ROOT": str(root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "REMOTE_USER": "somebody",
                },
                input=body,
                capture_output=True,
            )
            if is_cut:
                cuts.pop(0)
                self._cut_off()
                return
            head, _, data = ran.stdout.partition(b"\r\n\r\n")
            lines = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
            status = next((value for name, value in lines if name == "Status"), "200 OK")
            self.send_response(int(status.split()[0]))
            for name, value in lines:
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _cut_off(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

        def get_request(self) -> tuple[socket.socket, Any]:
            try:
                return super().get_request()
            except OSError as error:
                print(f"a connection could not be accepted: {error}", file=sys.stderr)
                raise

        def shutdown_request(self, request: Any) -> None:
            """Reads what the client still sends. The kernel resets a connection that is closed before that, and the
            client loses the answer.
            """
            with suppress(OSError):
                request.shutdown(socket.SHUT_WR)
                request.settimeout(PATIENCE_S)
                while request.recv(1 << 16):
                    pass
            self.close_request(request)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
