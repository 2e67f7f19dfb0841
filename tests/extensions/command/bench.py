"""What the tests about commands share: orders with modest bounds, and finding out whether a command left anything
behind. Commands carry a mark in their environment, by which each process of theirs is found, wherever it hides.
"""

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hocket.extensions.command.execute import CommandOrder, CommandResult, CommandRunner
from hocket.extensions.command.fork_server import READY
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import wait_for as wait_for

T = TypeVar("T")

MARK = "HOCKET_TEST_MARK"
MIB = 1024 * 1024


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def never() -> bool:
    return False


class Bench:
    """A runner and a directory."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work"
        self.streams = root / "streams"
        for each in (self.work, self.streams):
            each.mkdir()
        self.runner = CommandRunner()
        self.mark = os.urandom(8).hex()
        self.heard: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def order(self, *argv: str, **fields: Any) -> CommandOrder:
        env = {"PATH": os.environ["PATH"], MARK: self.mark, **fields.pop("env", {})}
        bounds = {"timeout_s": 0, "grace_s": 5, "output_bytes_max": MIB, "free_bytes_min": 0, "file_bytes_max": 0}
        return CommandOrder(
            **{"argv": argv, "env": env, "directory": self.work, "streams": self.streams} | bounds | fields
        )

    def run(self, *argv: str, should_stop: Callable[[], bool] = never, **fields: Any) -> CommandResult:
        """As a worker does it, with the supervisor of the next command ready when this one is over."""
        try:
            return self.runner.run(self.order(*argv, **fields), self.hear, should_stop, now_ms)
        finally:
            self.runner.prepare()

    def shell(self, script: str, **fields: Any) -> CommandResult:
        return self.run("sh", "-c", script, **fields)

    def python(self, script: str, *arguments: str, **fields: Any) -> CommandResult:
        return self.run(sys.executable, "-I", "-S", "-c", script, *arguments, **fields)

    def hear(self, stream: str, chunk: bytes) -> None:
        self.heard[stream] += chunk

    def survivors(self) -> list[int]:
        return processes_with(f"{MARK}={self.mark}")


@contextmanager
def bench_in(root: Path) -> Iterator[Bench]:
    made = Bench(root)
    try:
        yield made
    finally:
        made.runner.close()


def processes_with(setting: str) -> list[int]:
    """The processes that have this in their environment. One that has ended has none, even if nobody waited for it."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if setting.encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
                found.append(int(number))
        except OSError:
            continue
    return found


def children(parent: int) -> dict[int, str]:
    """The processes that have this parent, each with its state; Z is one that nobody has waited for. A supervisor that
    waits for an order is left out."""
    return {number: state for number, (name, state) in _below(parent).items() if name != READY}


def ready(parent: int) -> list[int]:
    """Supervisors of this runner that wait for an order, and their first processes."""
    found = [number for number, (name, state) in _below(parent).items() if name == READY and state != "Z"]
    return found + [first for each in found for first in _below(each)]


def _below(parent: int) -> dict[int, tuple[bytes, str]]:
    found = {}
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            head, _, rest = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[1]) == parent:
            found[int(number)] = head.partition(b"(")[2], fields[0].decode()
    return found


def descriptors() -> int:
    """How many are open. What earlier tests left behind does not count: it would be closed at any time."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
