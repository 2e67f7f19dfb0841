"""Runs the git program. It gets an environment of its own, so that no user's aliases, hooks or prompts interfere, and a
time limit. Its errors become one sentence that says what to do.
"""

import io
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from typing import NamedTuple

from hocket.errors import Failed, HocketError, NotAuthorised, StoreError, Unreachable, Usage

PATIENCE_S = 120.0
# A server that cuts off a connection may be busy or restarting: a request that only reads is sent again, after a rest
# that doubles each time.
ASK_TRIES = 5
ASK_REST_S = 0.1
COMPLAINT_CHARS_MAX = 400
# Begins git's own words in a message of ours.
QUOTE = " (git said: "

# Variables that a user sets to reach a server or to find git's parts. Every other variable that begins with GIT_ would
# point git at another repository.
_KEPT = {
    *("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSH_VARIANT", "GIT_ASKPASS", "GIT_PROXY_COMMAND", "GIT_EXEC_PATH"),
    *("GIT_SSL_NO_VERIFY", "GIT_SSL_CERT", "GIT_SSL_KEY", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_SSL_VERSION"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT", "GIT_HTTP_USER_AGENT"),
}
_KEPT_BEGINNINGS = ("GIT_CONFIG_KEY_", "GIT_CONFIG_VALUE_")

# Settings of a user or a machine that would change our results. Credentials, proxies and the like are kept.
_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "push.gpgSign": "false",
    "push.followTags": "false",
    "push.recurseSubmodules": "no",
    "push.negotiate": "false",
    "fetch.recurseSubmodules": "no",
    "fetch.prune": "false",
    "fetch.writeCommitGraph": "false",
    "fetch.output": "compact",
    "protocol.ext.allow": "never",
    "advice.detachedHead": "false",
    "log.showSignature": "false",
    "credential.interactive": "false",
}

_NO_PASSWORDS = re.compile(r"(?<=://)[^/@\s]*@")


class Done(NamedTuple):
    """A finished run of git."""

    code: int
    out: bytes
    complaint: str

    @property
    def was_cut_off(self) -> bool:
        """Whether the connection to the server broke. The server may have carried the request out, or not."""
        return self.code != 0 and any(
            sign in self.complaint for sign in ("Connection reset", "Empty reply from server")
        )


class GitGone(Exception):
    """A long-lived git process has exited; the argument is its error output."""


def git_environment(outside: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in outside.items()
        if not name.startswith("GIT_") or name in _KEPT or name.startswith(_KEPT_BEGINNINGS)
    }
    kept.pop("SSH_ASKPASS", None)
    return kept | {
        "LC_ALL": "C",
        "LANGUAGE": "",
        "GIT_TERMINAL_PROMPT": "0",
        "SSH_ASKPASS_REQUIRE": "never",
        "GCM_INTERACTIVE": "never",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",  # a replaced object would be shown instead of the requested one
        "GIT_NO_LAZY_FETCH": "1",  # we fetch missing objects ourselves, many at a time
    }


def without_password(where: str) -> str:
    """An address without its password, for display."""
    return _NO_PASSWORDS.sub("", where)


def _options(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]


class Git:
    """The git program, and the repository that it works on; `where` is its name for people."""

    def __init__(
        self,
        where: str,
        directory: str | None = None,
        outside: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        patience_s: float = PATIENCE_S,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.where = without_password(where)
        self.patience_s = patience_s
        self._environment = git_environment(os.environ if outside is None else outside) | dict(more or {})
        self._command = ["git"]
        if directory is not None:
            self._command += ["--git-dir", directory]
        self._directory = directory
        self._command += _options(_SETTINGS | dict(settings or {}))

    def attempt(
        self,
        command: str,
        *arguments: str,
        given: bytes = b"",
        more: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Done:
        """Runs a git command once; `more` are variables and `settings` are git's settings for this run. Raises if git
        cannot be started or takes too long, not if it fails.
        """
        options = _options(settings or {})
        process = self._start((*options, command, *arguments), subprocess.PIPE, more)
        try:
            out, complaint = process.communicate(given, timeout=self.patience_s)
        except subprocess.TimeoutExpired:
            raise Unreachable(self._too_long(command)) from None
        finally:
            if process.returncode is None:
                end(process)
        return Done(process.returncode, out, complaint.decode("utf-8", "replace"))

    def run(self, command: str, *arguments: str, given: bytes = b"") -> bytes:
        """The output of git. Raises if git fails."""
        done = self.attempt(command, *arguments, given=given)
        if done.code:
            raise self.explain(done.complaint, command)
        return done.out

    def ask(
        self, command: str, *arguments: str, given: bytes = b"", settings: Mapping[str, str] | None = None
    ) -> bytes:
        """The output of a git command that only reads from a server. Raises if git fails."""
        done = self.attempt(command, *arguments, given=given, settings=settings)
        for failures in range(ASK_TRIES - 1):
            if not done.was_cut_off:
                break
            time.sleep(ASK_REST_S * 2**failures)
            done = self.attempt(command, *arguments, given=given, settings=settings)
        if done.code:
            raise self.explain(done.complaint, command)
        return done.out

    def talk(self, *arguments: str) -> "Talk":
        """Starts a git process that answers many requests."""
        complaints = tempfile.TemporaryFile()  # noqa: SIM115 (the talk closes it)
        return Talk(self, self._start(arguments, complaints.fileno()), complaints)

    def explain(self, complaint: str, doing: str) -> HocketError:
        return explain(complaint, self.where, doing)

    def too_long(self, doing: str) -> Unreachable:
        return Unreachable(self._too_long(doing))

    def _too_long(self, doing: str) -> str:
        return f"git {doing} on {self.where} did not end within {self.patience_s:g} s; try again when it is less busy"

    def _start(
        self, arguments: tuple[str, ...], complaints: int, more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        if self._directory is not None and not os.path.isdir(self._directory):
            raise StoreError(f"the repository {self.where} is gone; restore it or name another one")
        try:
            # In a session of its own, git has no terminal to prompt on, and can be killed with all its children.
            return subprocess.Popen(
                [*self._command, *arguments],
                env=self._environment | dict(more or {}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                start_new_session=True,
                cwd="/",
            )
        except FileNotFoundError:
            raise Usage("git is not installed, or not in PATH; install git 2.36 or newer") from None
        except OSError as error:
            raise StoreError(f"cannot start git: {error.strerror}") from error


class Talk:
    """A git process that answers on its standard output. Not safe to use from several threads."""

    def __init__(self, git: Git, process: subprocess.Popen[bytes], complaints: io.BufferedRandom) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._complaints = process, complaints
        self._to = process.stdin.fileno()
        self._patient = _Patient(process.stdout.fileno(), git)
        self._from = io.BufferedReader(self._patient, 1 << 17)

    def say(self, words: bytes) -> None:
        try:
            while words:
                words = words[os.write(self._to, words) :]
        except OSError:
            raise self._ended() from None

    def line(self) -> bytes:
        line = self._from.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        return line[:-1]

    def exactly(self, size: int) -> bytes:
        found = self._from.read(size)
        if len(found) != size:
            raise self._ended()
        return found

    def close(self) -> str:
        """Ends the process; returns its error output."""
        self._process.stdin.close()  # type: ignore[union-attr]
        end(self._process)
        self._complaints.seek(0)
        complaint = self._complaints.read(1 << 16).decode("utf-8", "replace")
        self._complaints.close()
        self._process.stdout.close()  # type: ignore[union-attr]
        return complaint

    def _ended(self) -> GitGone:
        # It closed its output or stopped reading; its exit and its last error output follow at once.
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pass
        return GitGone(self.close())


class _Patient(io.RawIOBase):
    """The reading end of a pipe, with a time limit for each read."""

    def __init__(self, fd: int, git: Git) -> None:
        self._fd, self._git = fd, git
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN | select.POLLHUP)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        if not self._poll.poll(self._git.patience_s * 1000):
            raise self._git.too_long("reading")
        return os.readv(self._fd, [buffer])  # type: ignore[list-item]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that we started, with all its children."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


_MEANINGS: tuple[tuple[str, type[HocketError], str], ...] = (
    (r"not our ref|unadvertised object", Failed, "{where} refuses to serve a requested object"),
    (
        r"could not read (Username|Password)|Authentication failed|terminal prompts disabled"
        r"|Permission denied \(publick|Host key verification failed|error: 401|\b401 Unauthorized",
        NotAuthorised,
        "{where} asks for credentials; give git a credential helper or an ssh key that works without a prompt",
    ),
    (
        r"error: 403|\b403 Forbidden|service not enabled|access denied or repository not exported|not allowed to push"
        r"|Write access to repository not granted|read-only repository",
        NotAuthorised,
        "these credentials do not allow writing to {where}, or not even reading it",
    ),
    (
        r"hook declined|hidden ref|protected|prohibited|refusing to (create|update)|deny (creating|updating|deleting)",
        NotAuthorised,
        "{where} refuses changes below refs/gatos; ask its owner to allow them",
    ),
    (
        r"dubious ownership",
        Usage,
        "{where} belongs to another user; if you trust it: git config --global --add safe.directory DIRECTORY",
    ),
    (
        r"not a git repository|does not appear to be a git repository|[Rr]epository.*not found"
        r"|No such file or directory.*repository|not found: did you run git update-server-info",
        Usage,
        "there is no git repository at {where}",
    ),
    (r"[Rr]ead-only file system", StoreError, "{where} is on a read-only disk"),
    (r"No space left", StoreError, "there is no space left on the disk of {where}"),
    (
        r"[Pp]ermission denied|insufficient permission|unable to create temporary file",
        StoreError,
        "this user may not write to {where}",
    ),
    (
        r"Could not resolve|Connection (refused|reset|timed out)|unable to (access|connect)|Could not read from remote"
        r"|hung up|early EOF|Network is unreachable|No route to host|error: 5\d\d|Broken pipe|unexpected disconnect"
        r"|Operation timed out|[Tt]imed out",
        Unreachable,
        "{where} does not answer",
    ),
    (r"unable to find remote helper|transport '.*' not allowed", Usage, "git does not know how to reach {where}"),
    (r"corrupt|bad object|unable to read|loose object|packfile", StoreError, "the repository {where} is damaged"),
)


def explain(complaint: str, where: str, doing: str) -> HocketError:
    """What git's error means for the user, with git's own words added."""
    said = [line.strip() for line in without_password(complaint).splitlines() if line.strip()]
    said = [line.removeprefix("fatal: ").removeprefix("error: ") for line in said if not line.startswith("hint:")]
    quote = "; ".join(said)[:COMPLAINT_CHARS_MAX]
    for pattern, kind, sentence in _MEANINGS:
        if re.search(pattern, complaint):
            return kind(f"{sentence.format(where=where)}{QUOTE}{quote})")
    return Failed(f"git {doing} on {where} failed: {quote or 'without an error message'}")
