"""Runs a command of which no process outlives the process that started it. This runs on a bare interpreter between the
two. Linux makes it the parent of every orphan below it. It reads a pipe, the leash, whose other end the starting
process holds: when that end is closed, be it by the death of its holder, this kills every process of the command.
Only then does it end, and with it the OS lock of the starting process, which it has inherited.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import select
import time

from hocket.work.child_processes.process_tree import Tree, adopt_orphans, die_with_parent, name_process

# What the leash carries: the command and everything below it must end.
STOP = b"s"
# The process group of the command.
OWN, SHARED = "own", "shared"
# How often the processes of a command that must end are looked at.
LOOK_S = 0.02
_IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
# Python ignores these, and a program would go on ignoring them.
_RESET = (signal.SIGPIPE, signal.SIGXFSZ)


def main(leash: str, report: str, group: str, grace_s: str, *command: str) -> None:
    """`report` is a pipe that gets the error number if the command cannot be started, and is closed when it has. The
    command gets a process `group` of its own, or stays in this one. The exit code is that of the command.
    """
    adopt_orphans()
    name_process(b"hocket-bound")
    for fd in (int(leash), int(report)):
        os.set_inheritable(fd, False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, *_IGNORED)}
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    parent, child = os.getpid(), 0
    signal.signal(signal.SIGTERM, lambda number, _: _pass_on(child, number))
    child = os.fork()
    if child == 0:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if handler is signal.SIG_IGN else signal.SIG_DFL)
        _become(parent, int(report), group == OWN, [os.fsencode(word) for word in command])
    os.close(int(report))
    os._exit(_BoundCommand(int(leash), child, float(grace_s)).wait())


def _become(parent: int, report: int, has_own_group: bool, command: list[bytes]) -> None:
    """In the new process: becomes the command, or reports why it cannot."""
    try:
        if has_own_group:
            os.setpgid(0, 0)
        die_with_parent()
        if os.getppid() == parent:
            for number in _RESET:
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)
    except OSError as error:
        os.write(report, b"%d" % (error.errno or 0))
    finally:
        os._exit(127)


def _pass_on(child: int, number: int) -> None:
    """To the command, and to everything in its group if it has one of its own."""
    try:
        if child:
            (os.killpg if os.getpgid(child) == child else os.kill)(child, number)
    except ProcessLookupError:
        pass


class _BoundCommand:
    def __init__(self, leash: int, child: int, grace_s: float) -> None:
        self._leash, self._child, self._grace_s = leash, child, grace_s
        self._tree = Tree((child,))
        self._status: int | None = None

    def wait(self) -> int:
        """Until the command has ended, or everything below it if it must. Returns the exit code."""
        poller = select.poll()
        poller.register(self._leash, select.POLLIN)
        poller.register(os.pidfd_open(self._child), select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self._leash in ready:
                self._end(is_gentle=os.read(self._leash, len(STOP)) == STOP)
            self._reap()
            if self._status is not None:
                code = os.waitstatus_to_exitcode(self._status)
                return code if code >= 0 else 128 - code

    def _end(self, *, is_gentle: bool) -> None:
        if is_gentle:
            # A suspended process would not receive it.
            self._tree.tell(signal.SIGTERM, signal.SIGCONT)
            poller, until = select.poll(), time.monotonic() + self._grace_s
            poller.register(self._leash, select.POLLIN)
            while self._reap() and time.monotonic() < until and not poller.poll(LOOK_S * 1000):
                continue
        # Some processes hang in the kernel until a disk answers; they are killed however long it takes.
        while not self._tree.kill(self._reap):
            continue

    def _reap(self) -> bool:
        """Reaps the processes that have ended. False if there are none left."""
        while True:
            try:
                number, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if number == 0:
                return True
            if number == self._child:
                self._status = status
