"""The harness: which rows, in which order, how often; then the tables, and at the end what is reached of the goals.

Each figure is the median of several repetitions. Within a repetition every subject takes its turn at the same row, and
the order rotates, so that a machine that slows down slows everybody alike.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bench.goals import Judge, print_goals
from bench.lineups import ON_POSTGRES, OURS, POSTGRES, Lineup
from bench.postgres_rows import postgres_rows
from bench.rows import QUICK, Row, Size, rows
from bench.table import EARLIER, EMPTY, Figures, Line, label, lines, print_table

if TYPE_CHECKING:
    from bench.databases import Databases

ROOT = Path(__file__).resolve().parent.parent


def load_subjects(lineup: Lineup) -> tuple[dict[str, ModuleType], list[str]]:
    """Every subject that imports here, ours first, and a word on each that does not. Ours is OURS in every lineup."""
    found, missing = {}, []
    for name in (lineup.ours, *lineup.peers):
        try:
            module = importlib.import_module(name)
            module.describe()  # some import their package only when they use it
            found[OURS if name == lineup.ours else name] = module
        except ImportError as error:
            missing.append(f"{name} cannot be imported: {error}")
    return found, missing


def measure(
    subject: str, function: str, home: Path, arguments: dict[str, Any], timeout_s: float, root: Path = ROOT
) -> dict[str, Any]:
    """One figure, in a process of its own, by the program in the checkout at `root`."""
    text = json.dumps({"home": str(home), **arguments})
    command = [sys.executable, "-m", "bench.measure", subject, function, text]
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        silent = f"it ended with {done.returncode} and no output"
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or silent).splitlines()[-1])
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def sockets(directory: str, names: list[str]) -> list[str]:
    """What copytree must leave out: a socket or a pipe that a finished process left behind."""
    return [name for name in names if (path := Path(directory, name)).is_socket() or path.is_fifo()]


@contextmanager
def checkout(revision: str, directory: Path) -> Iterator[Path]:
    """The tree of another commit, for as long as the block lasts."""
    root = directory / "earlier"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(root), revision], check=True)
    try:
        yield root
    finally:
        subprocess.run([*git, "remove", "--force", str(root)], check=True)


@dataclass(frozen=True)
class FullStore:
    """The home of the node, the address of its database, and what filling it gave."""

    home: Path
    address: str
    result: dict[str, Any]


class Run:
    """`earlier` is the checkout of another commit to compare with. `databases` are those of the PostgreSQL server."""

    def __init__(
        self,
        directory: Path,
        size: Size,
        timeout_s: float,
        say: Callable[[str], None],
        earlier: Path | None = None,
        databases: Databases | None = None,
    ) -> None:
        self.directory = directory
        self.size = size
        self.timeout_s = timeout_s
        self.say = say
        self._earlier = earlier
        self._databases = databases
        self._full: dict[Path, Path] = {}
        self._full_stores: dict[Path, FullStore | None] = {}

    def full_home(self, root: Path) -> Path:
        """The home with many finished jobs, made once for each program, since filling it takes long."""
        if root not in self._full:
            home = Path(tempfile.mkdtemp(prefix="full-", dir=self.directory))
            self.say(f"filling a log with {self.size.finished:,} finished jobs")
            measure(OURS, "fill", home, {"finished": self.size.finished}, self.timeout_s * 4, root)
            self._full[root] = home
        return self._full[root]

    def full_store(self, root: Path) -> FullStore:
        """The same in PostgreSQL: a home, and the database with its finished jobs. It is tried once."""
        assert self._databases is not None
        if root not in self._full_stores:
            self._full_stores[root] = None
            home = Path(tempfile.mkdtemp(prefix="full-", dir=self.directory))
            self.say(f"filling a store in PostgreSQL with {self.size.finished:,} finished jobs")
            address = self._databases.make()
            with self._databases.used(address):
                result = measure(POSTGRES, "fill", home, {"finished": self.size.finished}, self.timeout_s * 4, root)
            self._full_stores[root] = FullStore(home / "node", address, result)
        full = self._full_stores[root]
        if full is None:
            raise RuntimeError("the store could not be filled")
        return full

    def once(self, name: str, row: Row) -> dict[str, Any]:
        root = self._earlier if name == EARLIER and self._earlier is not None else ROOT
        is_full = row.full and name in (OURS, EARLIER)
        if row.lineup is ON_POSTGRES and row.function == "fill":
            return self.full_store(root).result
        subject = row.module if name in (OURS, EMPTY, EARLIER) else name
        home = Path(tempfile.mkdtemp(prefix=f"{row.key}-", dir=self.directory))
        try:
            with ExitStack() as stack:
                # A copy each time: jobs that a submit row leaves pending must not be drained by the next row.
                if row.lineup is ON_POSTGRES:
                    assert self._databases is not None
                    full = self.full_store(root) if is_full else None
                    stack.enter_context(self._databases.fresh(None if full is None else full.address))
                    if full is not None:  # a copy of the home would not be let in: its key is another home's
                        (home / "node").symlink_to(full.home)
                elif is_full:
                    shutil.copytree(self.full_home(root), home, dirs_exist_ok=True, ignore=sockets)
                    os.sync()
                return measure(subject, row.function, home, row.arguments, self.timeout_s, root)
        finally:
            if not row.kept:
                shutil.rmtree(home, ignore_errors=True)

    def row(self, row: Row, subjects: dict[str, ModuleType], repeat: int) -> dict[str, Figures]:
        able = [name for name, module in subjects.items() if hasattr(module, row.function)]
        if row.ours_only:
            able = [OURS]
        if self._earlier is not None:
            able.append(EARLIER)
        elif row.full and able:
            able.append(EMPTY)
        figures = {name: Figures() for name in able}
        for repetition in range(repeat):
            turn = repetition % len(able) if able else 0
            for name in able[turn:] + able[:turn]:
                if figures[name].error:
                    continue
                self.say(f"{row.title}: {label(name, subjects)}, {repetition + 1} of {repeat}")
                try:
                    figures[name].results.append(self.once(name, row))
                except (RuntimeError, subprocess.TimeoutExpired, ValueError) as error:
                    figures[name].error = str(error)
        return figures


def file_system(path: Path) -> str:
    best, kind = "", "?"
    for mount in Path("/proc/mounts").read_text().splitlines():
        _, point, found = mount.split()[:3]
        if str(path).startswith(point) and len(point) > len(best):
            best, kind = point, found
    return kind


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small counts, one repetition: does it run at all")
    parser.add_argument("--only", action="append", metavar="ROW", help="only this row or group (may be repeated)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every single figure here")
    parser.add_argument("--repeat", type=int, help="repetitions a figure")
    parser.add_argument(
        "--dir", type=Path, default=ROOT / ".cache" / "bench", help="where the databases go: a real disk"
    )
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="for one measurement")
    parser.add_argument("--list", action="store_true", help="list the rows")
    parser.add_argument("--against", metavar="REV", help="compare with our program at this commit, not with the peers")
    return parser.parse_args()


def repetitions(row: Row, size: Size, is_asked: bool) -> int:
    return size.repeat if is_asked or row.unasked is None else min(row.unasked, size.repeat)


@contextmanager
def postgres(directory: Path, missing: list[str]) -> Iterator[Databases | None]:
    """The server for the rows on PostgreSQL, or nothing and a word on why."""
    with ExitStack() as stack:
        databases = None
        try:
            from bench.databases import serving

            databases = stack.enter_context(serving(directory))
        except (AssertionError, ImportError, OSError, RuntimeError) as error:
            missing.append(f"no PostgreSQL server: {error}")
        yield databases


def report(
    console: Console,
    chosen: list[Row],
    figures: dict[str, dict[str, Figures]],
    teams: dict[Lineup, dict[str, ModuleType]],
    against: str | None,
) -> tuple[list[Line], list[str]]:
    """Prints a table for each lineup; gives all their lines, and a word on each measurement that failed."""
    told: list[Line] = []
    failed = []
    for lineup, subjects in teams.items():
        measured = [row for row in chosen if row.lineup is lineup and row.key in figures]
        table_lines = [line for row in measured for line in lines(row, figures[row.key])]
        told += table_lines
        if not measured:
            continue
        print_table(console, table_lines, lineup, subjects, against)
        used = {row.function for row in measured}
        for note in [note for module in subjects.values() for key, note in module.NOTES.items() if key in used]:
            console.print(f"- {note}", highlight=False)
        for row in measured:
            failed += [
                f"{row.key}, {label(name, subjects)}: {figure.error}"
                for name, figure in figures[row.key].items()
                if figure.error
            ]
            for result in [each for figure in figures[row.key].values() for each in figure.results[:1]]:
                if "tables_after" in result:
                    subjects[OURS].print_tables(console, result["tables_before"], result["tables_after"])
    return told, failed


def main() -> int:
    options = parse()
    size = QUICK if options.quick else Size()
    if options.repeat:
        size = Size(**{**size.__dict__, "repeat": options.repeat})
    known = [*rows(size), *postgres_rows(size)]
    if options.list:
        for row in known:
            print(f"{row.key:24} {row.group:16} {row.title}")
        return 0
    only = set(options.only or ())
    if unknown := only - {row.key for row in known} - {row.group for row in known}:
        print(f"no such row: {', '.join(sorted(unknown))}; --list shows them", file=sys.stderr)
        return 2
    chosen = [row for row in known if not only or {row.key, row.group} & only]
    chosen = [row for row in chosen if repetitions(row, size, bool(only))]

    teams, missing = {}, []
    for lineup in dict.fromkeys(row.lineup for row in chosen):
        subjects, absent = load_subjects(lineup)
        missing += absent
        teams[lineup] = {name: each for name, each in subjects.items() if options.against is None or name == OURS}
    options.dir.mkdir(parents=True, exist_ok=True)
    progress = Console(stderr=True)
    machine = (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, "
        f"databases on {file_system(options.dir.resolve())}, median of {size.repeat}, synchronous=FULL everywhere"
    )
    console = Console(width=None if sys.stdout.isatty() else 160)
    described = [module.describe() for subjects in teams.values() for module in subjects.values()]
    console.print(machine, *described, sep="\n", highlight=False)
    figures: dict[str, dict[str, Figures]] = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="run-", dir=options.dir)))
        earlier = None if options.against is None else stack.enter_context(checkout(options.against, directory))
        databases = None
        if OURS in teams.get(ON_POSTGRES, {}):
            databases = stack.enter_context(postgres(directory, missing))
        if databases is not None:
            repeat = max(repetitions(row, size, bool(only)) for row in chosen if row.lineup is ON_POSTGRES)
            console.print(f"{databases.describe()}; median of {repeat}", highlight=False)
        say = lambda text: progress.print(text, style="dim", highlight=False)  # noqa: E731
        run = Run(directory, size, options.timeout, say, earlier, databases)
        for row in chosen:
            if row.ours_only and OURS not in teams[row.lineup]:
                continue
            if row.lineup is ON_POSTGRES and databases is None:
                continue
            figures[row.key] = run.row(row, teams[row.lineup], repetitions(row, size, bool(only)))

    table_lines, failed = report(console, chosen, figures, teams, options.against)
    for text in [*missing, *failed]:
        console.print(f"! {text}", highlight=False)
    # Beside an earlier commit there are no peers.
    verdicts = []
    if options.against is None:
        verdicts = Judge(chosen, figures, teams, len(os.sched_getaffinity(0))).verdicts()
    if verdicts:
        print_goals(console, verdicts)
    if verdicts and options.quick:
        console.print("A quick run is too short to judge by.", highlight=False)
    if options.json:
        raw = {key: {name: figure.results for name, figure in row.items()} for key, row in figures.items()}
        told = {
            "machine": machine,
            "lines": [asdict(line) for line in table_lines],
            "goals": [asdict(each) for each in verdicts],
            "results": raw,
        }
        options.json.write_text(json.dumps(told, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
