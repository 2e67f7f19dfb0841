"""Many processes create one home, or one database, at the same moment, and some of them are killed in the middle."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import apsw
import pytest

import hocket
from hocket import store
from hocket.errors import Conflict
from hocket.node.runtime import Runtime

PROCESSES = 16
CREATORS = Path(__file__).with_name("creators.py")


def race(verb: str, path: Path, kills: int, seed: int = 0) -> list[str]:
    """What the processes have done that were not killed."""
    command = [sys.executable, str(CREATORS), verb, str(path), str(PROCESSES), str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout)
    assert len(said) == PROCESSES - kills
    return said


@pytest.mark.req("VX-02")
@pytest.mark.parametrize(("kills", "seed"), [(0, 0), (8, 1), (8, 2), (15, 3)])
def test_sixteen_processes_create_one_home(tmp_path: Path, kills: int, seed: int):
    home = tmp_path / "home"
    said = race("home", home, kills, seed)
    assert set(said) <= {"created", "exists"} and said.count("created") <= 1
    assert kills or said.count("created") == 1
    with Runtime.open(home) as runtime:
        audit = runtime.verify()
        assert audit.findings == [] and audit.ops == 2
        assert runtime.submit([]) == []
    assert not [path.name for path in home.iterdir() if path.name.endswith(".new")]


def tables(path: Path) -> list[tuple[object, ...]]:
    return sorted(apsw.Connection(str(path)).execute("SELECT type, name, sql FROM sqlite_schema"), key=str)


def nothing(path: Path) -> None:
    pass


def first_version(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(resources.files("hocket.store.sqlite").joinpath("schema.sql").read_text())
    connection.execute("PRAGMA application_id=1213154123; PRAGMA user_version=1")
    connection.close()


@pytest.mark.req("VX-02")
@pytest.mark.parametrize("before", [nothing, first_version])
@pytest.mark.parametrize("kills", [0, 8])
def test_sixteen_processes_create_or_upgrade_one_schema(tmp_path: Path, before: Callable[[Path], None], kills: int):
    path = tmp_path / "log.db"
    before(path)
    said = race("schema", path, kills)
    assert said == ["added"] * (PROCESSES - kills)
    opened = store.open(path)
    with opened.read() as session:
        assert PROCESSES - kills <= session.rate("k") <= PROCESSES
        assert session.damage() == []
    opened.close()
    store.open(tmp_path / "new.db", create=True).close()
    assert tables(path) == tables(tmp_path / "new.db")


@pytest.mark.req("GR-12")
def test_a_program_begins_a_mesh_whose_ranked_jobs_are_open(tmp_path: Path):
    hocket.init(tmp_path / "home", ranked_open=True)
    with Runtime.open(tmp_path / "home") as runtime:
        assert runtime.log.rules.ranked_open
    with pytest.raises(hocket.Usage, match="strict mesh"):
        hocket.init(tmp_path / "both", strict=True, ranked_open=True)


@pytest.mark.parametrize("make", [Runtime.open, Runtime.init])
def test_a_home_that_cannot_be_used_leaves_nothing_open(
    make: Callable[[Path], Runtime], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may try again and again."""
    home, closed = tmp_path / "home", list[Runtime]()
    if make == Runtime.open:
        Runtime.init(home).close()

    def fail(runtime: Runtime) -> None:
        raise Conflict("a newer Hocket uses this store")

    monkeypatch.setattr(Runtime, "catch_up", fail)
    close = Runtime.close
    monkeypatch.setattr(Runtime, "close", lambda runtime: (closed.append(runtime), close(runtime)))
    with pytest.raises(Conflict, match="a newer Hocket"):
        make(home)
    assert len(closed) == 1
