"""Machines for the scenarios: each has a home and runs the installed program, nothing else. Commands run to their end;
servers and workers stay, in a process group of their machine's own, and can be killed as a power cut kills them. What
the tests look at they read from the machine's database; what they do they do by the program.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.vocabulary import NAMES
from hocket.log.rebuild import roster_digest
from hocket.node.runtime import Runtime
from hocket.store import Session, Stage
from tests.cli.conftest import Result
from tests.cli.fork_server import run_command, start_command
from tests.waiting import PATIENCE_S
from tests.waiting import wait_for as until

T = TypeVar("T")

# Only there to end a test that has failed: no test measures by it.
CHECKOUT = str(Path(__file__).parents[2])
HANDLERS = str(Path(__file__).with_name("handlers.py"))

# The program as pip has installed it. It ends with the test run, even if that is killed.
_INSTALLED = Path(sys.executable).with_name("hocket")
_PROGRAM = [str(_INSTALLED)] if _INSTALLED.exists() else [sys.executable, "-m", "hocket.cli"]
_MORTAL = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"
MORTAL = [sys.executable, "-I", "-S", "-c", _MORTAL]


class OpLine(NamedTuple):
    """An op as a log has it."""

    type: str
    author: str
    job: str | None
    reason: int
    at: Hlc


class Process:
    """A process that stays. Its two outputs go to files, so that it never waits for a reader."""

    def __init__(self, machine: "Machine", arguments: Sequence[object], environment: dict[str, str]) -> None:
        name = f"{arguments[0]}-{os.urandom(3).hex()}"
        self.out, self.err = machine.root / f"{name}.out", machine.root / f"{name}.err"
        words, told, group = list(map(str, arguments)), machine.environment | environment, machine.group()
        self.popen: subprocess.Popen[Any]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            if machine.program == _PROGRAM:
                self.popen = start_command(words, told, machine.root, (out.fileno(), err.fileno()), group=group)
            else:
                self.popen = subprocess.Popen(
                    [*MORTAL, *machine.program, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=machine.root,
                    env=told,
                    process_group=group,
                )

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def is_alive(self) -> bool:
        return self.popen.poll() is None

    @property
    def notices(self) -> list[str]:
        return self.err.read_text().splitlines()

    def says(self, text: str, patience: float = PATIENCE_S) -> str:
        """Waits for a line of its notices that has this in it."""

        def look() -> str | None:
            found = next((line for line in self.notices if text in line), None)
            assert found is not None or self.is_alive, f"{self.popen.args} ended: {self.err.read_text()}"
            return found

        found = until(look, f"{text!r}, it said {self.notices}", patience)
        assert found is not None
        return found

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> Result:
        """Asks it to end and gives how it did."""
        if self.is_alive:
            self.popen.terminate()
        return self.ended()

    def ended(self) -> Result:
        code = self.popen.wait(PATIENCE_S)
        result = Result(code, self.out.read_text(), self.err.read_text())
        assert "Traceback" not in result.err, result.err
        return result


BRIEFLY = """
import hocket.kernel.retrying as breaker
import hocket.node.delivery as delivery
breaker.OPEN_MS = 2_000
delivery.REFRESH_S = 30.0
"""


class Machine:
    """`reached` are the words by which a program is started where this machine's network is."""

    def __init__(self, root: Path, name: str, reached: Sequence[str] = ()) -> None:
        self.root = root / name
        self.root.mkdir(parents=True)
        self.name = name
        self.home = self.root / "home"
        self.program = [*reached, *_PROGRAM]
        self.environment = dict(os.environ) | {
            "HOCKET_HOME": str(self.home),
            "HOCKET_TEST_JOURNAL": str(root / "journal"),
            "HOCKET_TEST_MACHINE": name,
            "HOCKET_TEST_ROOT": str(root),
            "PYTHONPATH": os.pathsep.join(filter(None, [CHECKOUT, os.environ.get("PYTHONPATH")])),
        }
        self.processes: list[Process] = []
        self._runtime: Runtime | None = None

    # What a person does there.

    def __call__(self, *arguments: object, input: str | None = None, code: int | None = 0) -> Result:
        words, given = list(map(str, arguments)), None if input is None else input.encode()
        if self.program == _PROGRAM:
            done = run_command(words, given, self.environment, self.root, 2 * PATIENCE_S)
        else:
            done = subprocess.run(
                [*self.program, *words],
                input=given,
                stdin=subprocess.DEVNULL if given is None else None,
                capture_output=True,
                cwd=self.root,
                env=self.environment,
                timeout=2 * PATIENCE_S,
            )
        result = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in result.err, result.err
        assert code is None or result.code == code, (arguments, result)
        return result

    def submit(self, *arguments: object) -> str:
        return self("submit", *arguments).job_id

    def submit_all(self, lines: Sequence[dict[str, Any]]) -> list[str]:
        """Submits many jobs at once; gives their ids."""
        made = self("submit", "--batch", "-", "--json", input="\n".join(map(json.dumps, lines))).json
        return [each["job_id"] for each in made]

    def show(self, job_id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self("show", job_id, "--json").json
        return shown

    def open_briefly(self) -> str:
        """The PYTHONPATH of a process whose circuit breakers are open for two seconds instead of thirty, and which may
        wait longer than a second for the coordinator's news, as it must on a busy machine.
        """
        directory = self.root / "brief"
        directory.mkdir(exist_ok=True)
        (directory / "sitecustomize.py").write_text(BRIEFLY)
        return f"{directory}{os.pathsep}{self.environment['PYTHONPATH']}"

    def start(self, *arguments: object, **environment: str) -> Process:
        process = Process(self, arguments, environment)
        self.processes.append(process)
        return process

    def serve(self, *arguments: object) -> str:
        """Starts a server; gives its address once it answers."""
        process = self.start("serve", "--json", *(arguments or ("--port", "0")))

        def look() -> str:
            assert process.is_alive, process.err.read_text()
            return process.out.read_text()

        address: str = json.loads(until(look, "the server's address"))["address"]
        return address

    def work(self, *arguments: object, module: str = HANDLERS, **environment: str) -> Process:
        """Starts a worker; it is up when this returns."""
        process = self.start("work", module, *arguments, **environment)
        process.says("serves")
        return process

    def invite(self, name: str, *grants: str, address: str | None = None) -> str:
        may = [word for grant in grants for word in ("--may", grant)]
        where = () if address is None else ("--address", address)
        token: str = self("invite", name, *may, *where, "--json").json["token"]
        return token

    # What becomes of it.

    def group(self) -> int:
        """The process group of this machine: that of its first process that lives, else a new one."""
        alive = [each for each in self.processes if each.is_alive]
        return os.getpgid(alive[0].pid) if alive else 0

    def cut_power(self) -> None:
        """Kills everything that runs here, at one moment."""
        alive = [each for each in self.processes if each.is_alive]
        if alive:
            os.killpg(os.getpgid(alive[0].pid), signal.SIGKILL)
        for process in alive:
            process.popen.wait()

    def stop(self) -> None:
        """Ends everything that runs here in good order."""
        alive = [each for each in self.processes if each.is_alive]
        for process in alive:
            process.popen.terminate()
        for process in alive:
            assert process.ended().code == 0, process.notices

    def close(self) -> None:
        if self._runtime is not None:
            self._runtime.close()
        for process in self.processes:
            if process.is_alive:
                process.kill()

    # What is there to see.

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            self._runtime = Runtime.open(self.home)
        return self._runtime

    def look(self, query: Callable[[Session], T]) -> T:
        with self.runtime.read() as session:
            return query(session)

    @property
    def node(self) -> str:
        return f"{self.runtime.log.node:016x}"

    def digest(self) -> bytes:
        return self.look(roster_digest)

    def jobs(self) -> list[Job]:
        """Every job, without the time of the last op that was written about it, be it one that does not count."""
        jobs = self.look(lambda session: [entry.job for entry in session.each_job()])
        return [msgspec.structs.replace(job, last=job.scheduled) for job in jobs]

    def ops(self) -> list[OpLine]:
        with self.runtime.read() as session:
            rows = session.ops_after(0, 10_000_000)
        return [
            OpLine(
                NAMES.get(row.variant, "?"),
                f"{unpack(row.hlc).node:016x}",
                None if row.job is None else ulid_text(row.job),
                row.reason,
                unpack(row.hlc),
            )
            for row in rows
        ]

    def ops_of(self, job_id: str) -> list[str]:
        """The types of the ops that count for a job, in the order of their time."""
        lines = [line for line in self.ops() if line.job == job_id and line.reason == 0]
        return [line.type for line in sorted(lines, key=lambda line: line.at)]

    def reasons(self, type: str) -> Counter[int]:
        return Counter(line.reason for line in self.ops() if line.type == type)

    def has(self, job_id: str) -> bool:
        return self.look(lambda session: session.job(parse_ulid(job_id))) is not None

    def state(self, job_id: str) -> str | None:
        """pending, claimed or completed; None when the job is not known here."""
        entry = self.look(lambda session: session.job(parse_ulid(job_id)))
        return None if entry is None else entry.job.state.name.lower()

    def is_done(self, job_id: str) -> bool:
        entry = self.look(lambda session: session.job(parse_ulid(job_id)))
        return entry is not None and entry.job.outcome is Outcome.SUCCEEDED

    def done(self) -> int:
        counts = self.look(lambda session: session.counts())
        return sum(number for (stage, _), number in counts.items() if stage is Stage.DONE)


@contextmanager
def machines(root: Path, *names: str, reached: Callable[[str], Sequence[str]] = lambda name: ()) -> Iterator[list[Any]]:
    made = [Machine(root, name, reached(name)) for name in names]
    (root / "journal").touch()
    try:
        yield made
    finally:
        for machine in made:
            machine.close()


class Journal:
    """What handlers wrote, in the order of writing. It grows: only what is new is read."""

    def __init__(self) -> None:
        self._lines: dict[Path, tuple[int, list[dict[str, Any]]]] = {}

    def __call__(self, root: Path) -> list[dict[str, Any]]:
        at, lines = self._lines.get(root, (0, []))
        with (root / "journal").open("rb") as file:
            file.seek(at)
            whole = file.read().rpartition(b"\n")[0]  # the last line may be under way
        if whole:
            lines += [json.loads(line) for line in whole.splitlines()]
            at += len(whole) + 1
        self._lines[root] = at, lines
        return lines


journal = Journal()


def verify(*places: Machine) -> None:
    """Every log proves itself."""
    audits = [place.start("log", "verify") for place in places]
    assert all(audit.ended().code == 0 and "ops verified" in audit.ended().out for audit in audits)


def agree(*places: Machine) -> None:
    """Waits until all of them have the same roster, byte for byte."""
    until(lambda: len({place.digest() for place in places}) == 1, "one roster on every machine")


__all__ = [
    "HANDLERS",
    "PATIENCE_S",
    "Machine",
    "OpLine",
    "Process",
    "Reason",
    "agree",
    "journal",
    "machines",
    "until",
    "verify",
]
