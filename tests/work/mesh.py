"""What the tests about work share: a home, worker processes in it, the journal that their handlers write, and waiting
for an event with a deadline. The deadline is only there to end a test that has failed; no test measures by it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import hocket
from hocket.kernel.ops import decode
from hocket.node.node import SyncNode
from hocket.node.runtime import Runtime
from hocket.store import Session, Stage
from tests.cli.fork_server import start_command
from tests.suspending import suspend
from tests.waiting import PATIENCE_S, wait_for

T = TypeVar("T")

SOURCE = str(Path(hocket.__file__).parents[1])
CHECKOUT = str(Path(__file__).parents[2])
PROCESS = "tests.work.worker_process"


class Process:
    """One worker process. Its lines arrive in a file."""

    def __init__(self, mesh: "Mesh", options: dict[str, Any]) -> None:
        self._home, before = options.pop("home", mesh.home), options.pop("before", ())
        self.output = mesh.root / f"out-{os.urandom(4).hex()}"
        words = [str(self._home), json.dumps(options)]
        paths = f"{SOURCE}{os.pathsep}{CHECKOUT}"
        told = os.environ | {"HOCKET_TEST_JOURNAL": str(mesh.journal_path), "PYTHONPATH": paths}
        self.popen: subprocess.Popen[Any]
        with self.output.open("wb") as out:
            if before:
                command = [*before, sys.executable, "-m", PROCESS, *words]
                self.popen = subprocess.Popen(command, stdout=out, stderr=out, env=told, cwd=mesh.root)
            else:
                self.popen = start_command(words, told, mesh.root, (out.fileno(), out.fileno()), module=PROCESS)
        self.pid = self.popen.pid
        self._mesh = mesh

    def lines(self) -> list[str]:
        return self.output.read_text().splitlines()

    def number(self) -> int | None:
        """The number under which it is registered, once it is."""
        with self._mesh.runtime.read() as session:
            return next((each.number for each in session.workers() if each.pid == self.pid), None)

    def up(self) -> "Process":
        def look() -> bool:
            assert self.popen.poll() is None, self.output.read_text()
            return self.number() is not None

        wait_for(look, "a worker to register")
        return self

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def suspend(self) -> None:
        suspend(self.pid, self._home)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """Asks it to end, once it is up and listens to signals, and gives its exit code."""
        if self.popen.poll() is None:
            self.up()
            self.popen.terminate()
        return self.popen.wait(PATIENCE_S)

    def ended(self) -> tuple[int, int, int]:
        """Its own count of what succeeded, failed and was handed back."""
        self.popen.wait(PATIENCE_S)
        last = [line for line in self.lines() if line.startswith("ended ")]
        assert last, self.output.read_text()
        succeeded, failed, back = last[-1].split()[1:]
        return int(succeeded), int(failed), int(back)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Mesh:
    """A home, and whoever works in it. `server` is the address of its store, if that is in PostgreSQL."""

    def __init__(self, root: Path, server: str | None = None) -> None:
        self.root = root
        self.home = root / "home"
        self.journal_path = root / "journal"
        self.journal_path.touch()
        Runtime.init(self.home, server=server).close()
        self.runtime = Runtime.open(self.home)
        self.node = SyncNode(self.runtime)
        self.processes: list[Process] = []

    def worker(self, **options: Any) -> Process:
        """`home` is another home than the mesh's own; `before` stands before the command line."""
        process = Process(self, options)
        self.processes.append(process)
        return process

    def run(self, **options: Any) -> tuple[int, int, int]:
        """A worker process that ends when there is nothing left to do."""
        return self.worker(until_idle=True, **options).ended()

    def close(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGCONT)
                process.kill()
        self.node.close()

    def journal(self, event: str | None = None) -> list[dict[str, Any]]:
        """What the handlers wrote, in the order of writing. The last line may be under way."""
        whole = self.journal_path.read_text().rpartition("\n")[0].splitlines()
        lines = [json.loads(line) for line in whole]
        return [line for line in lines if event in (None, line["event"])]

    def wait_journal(self, event: str, count: int = 1, job: str | None = None) -> list[dict[str, Any]]:
        def look() -> list[dict[str, Any]]:
            found = [line for line in self.journal(event) if job in (None, line["job"])]
            return found if len(found) >= count else []

        return wait_for(look, f"{count} × {event} in the journal")

    def wait_done(self, count: int, patience: float = PATIENCE_S) -> None:
        self.node.until(lambda session: (self.done(session) >= count, None), patience)

    def done(self, session: Session) -> int:
        return sum(number for (stage, _), number in session.counts().items() if stage is Stage.DONE)

    def claim_of(self, job_id: str) -> tuple[str, int]:
        shown = self.runtime.show(job_id)
        return shown["state"], shown["fence"]

    def ops(self, job_id: str) -> list[str]:
        """The types of the ops on a job that count."""
        return [op["type"] for op in self.runtime.show(job_id)["ops"] if op["counts"]]

    def check_log(self) -> None:
        """The log proves itself, and its roster comes out the same when it is made anew. Workers must have stopped."""
        assert self.runtime.verify().findings == []
        assert self.runtime.rebuild().unchanged

    def payloads(self) -> list[tuple[int, Any]]:
        """Every op that counts, in the log's order: its wall time and what it carries."""
        with self.runtime.read() as session:
            rows = session.ops_after(0, 1_000_000)
        ops = [decode(row.body) for row in rows if row.reason == 0]
        return [(op.timestamp.wall, op) for op in ops]


@contextmanager
def mesh_in(root: Path, server: str | None = None) -> Iterator[Mesh]:
    mesh = Mesh(root, server)
    try:
        yield mesh
    finally:
        mesh.close()
