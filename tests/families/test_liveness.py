"""The contract of liveness: who is dead, to whom, and when. It holds for real locks in real processes and for the
simulator's. Time is a number that the test moves.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hocket.extensions.sim.node import SimHost
from hocket.families import liveness as rule
from hocket.families.liveness import (
    BEAT_S,
    SILENT_S,
    FileLocks,
    Liveness,
    LockLiveness,
    Locks,
    SignOfLife,
    WorkerState,
    place_of,
    standing,
    whereabouts,
)
from hocket.log import Log
from hocket.store import MEMORY, Place, WorkerRow
from hocket.store import open as open_store
from tests.log.roster.world import new_log
from tests.work.mesh import SOURCE

HERE = Place("machine", "this start", "first namespace", "directory")
CLONE = HERE._replace(boot="start of the copy")
REBOOTED = HERE._replace(boot="next start")
CONTAINER = HERE._replace(namespace="second namespace")
APART = HERE._replace(namespace="second namespace", locks="another directory")
ELSEWHERE = Place("another machine", "its start", "its namespace", "directory")
HOLDER = (
    "import sys, pathlib, hocket.families.liveness as p\n"
    "lock = p.ProcessLock(pathlib.Path(sys.argv[1]), sys.argv[2]); print(flush=True); sys.stdin.read()"
)


@dataclass
class Neighbour:
    """A worker somewhere. `kill` ends its process without a word."""

    sign: SignOfLife
    kill: Callable[[], None]


class World:
    """Directories of locks, workers that hold some, and one store that they share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: Log = new_log(open_store(MEMORY))
        self.now = 0.0
        self._count = itertools.count()

    def directory(self) -> Any: ...
    def copied(self, directory: Any) -> Any:
        """The directory as it is on the disk of a copy of the machine."""

    def locks(self, directory: Any) -> Locks: ...
    def hold(self, directory: Any, name: str) -> Callable[[], None]:
        """A process of its own holds that lock; gives how to kill it."""

    def close(self) -> None: ...

    def observer(self, directory: Any, place: Place = HERE) -> Liveness:
        return LockLiveness(self.locks(directory), place, 1, lambda: self.now)

    def worker(self, directory: Any, place: Place = HERE) -> Neighbour:
        name = f"worker-{next(self._count)}"
        kill = self.hold(directory, name)
        neighbour = Neighbour(SignOfLife(name, 1, place, lambda: None), kill)
        self.log.run(neighbour.sign.beat)
        return neighbour

    def rows(self) -> list[WorkerRow]:
        with self.log.store.read() as session:
            return session.workers(self.log.node.to_bytes(8, "big"))

    def dead(self, observer: Liveness) -> set[int]:
        return observer.dead(self.rows())

    def watch(self, observer: Liveness, seconds: float, *beating: Neighbour) -> set[int]:
        """Lets time pass, with a look each quarter of a second; gives all that were called dead in it."""
        dead = self.dead(observer)
        for step in range(int(seconds * 4)):
            self.now += 0.25
            if step % int(BEAT_S * 4) == 0:
                for each in beating:
                    self.log.run(each.sign.beat)
            dead |= self.dead(observer)
        return dead


class RealWorld(World):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._processes: list[subprocess.Popen[bytes]] = []

    def directory(self) -> Path:
        path = self.root / f"locks-{next(self._count)}"
        path.mkdir()
        return path

    def copied(self, directory: Path) -> Path:
        return Path(shutil.copytree(directory, self.root / f"copy-{next(self._count)}"))

    def locks(self, directory: Path) -> Locks:
        return FileLocks(directory)

    def hold(self, directory: Path, name: str) -> Callable[[], None]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(directory), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": SOURCE},
        )
        assert process.stdout is not None
        process.stdout.readline()
        self._processes.append(process)

        def kill() -> None:
            process.kill()
            process.wait()

        return kill

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


class SimWorld(World):
    def directory(self) -> SimHost:
        return SimHost(HERE)

    def copied(self, directory: SimHost) -> SimHost:
        copy = SimHost(directory.place)
        copy._held = dict.fromkeys(directory._held, False)
        return copy

    def locks(self, directory: SimHost) -> Locks:
        return directory

    def hold(self, directory: SimHost, name: str) -> Callable[[], None]:
        directory.take(name)
        return directory.crash


def name_of(world: World, worker: Neighbour) -> str:
    return next(row.name for row in world.rows() if row.number == worker.sign.number)


@pytest.fixture(params=[RealWorld, SimWorld], ids=["real", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made: World = request.param(tmp_path)
    yield made
    made.close()


@pytest.mark.touches("LW-41")
@pytest.mark.parametrize("place", [HERE, CONTAINER], ids=["process", "container with the same directory"])
def test_a_killed_worker_is_dead_at_once_where_its_lock_tells(world: World, place: Place) -> None:
    directory = world.directory()
    first, second = world.worker(directory, place), world.worker(directory, HERE)
    observer = world.observer(directory)
    assert world.dead(observer) == set()
    assert [observer.is_running(row) for row in world.rows()] == [True, True]
    first.kill()
    if isinstance(world, RealWorld):  # the simulator's crash ends all processes of a host
        assert world.dead(observer) == {first.sign.number}
    assert first.sign.number in world.dead(observer)
    assert first.sign.number in world.dead(world.observer(directory, CONTAINER)), "looking takes nothing away"
    second.kill()
    assert world.dead(observer) == {first.sign.number, second.sign.number}


@pytest.mark.touches("LW-41")
@pytest.mark.parametrize("place", [APART, CLONE, ELSEWHERE], ids=["another directory", "copy", "another machine"])
def test_workers_that_share_a_store_but_no_directory_never_call_each_other_dead(world: World, place: Place) -> None:
    mine, theirs = world.directory(), world.directory()
    here, there = world.worker(mine, HERE), world.worker(theirs, place)
    assert world.watch(world.observer(mine, HERE), 5 * SILENT_S, here, there) == set()
    assert world.watch(world.observer(theirs, place), 5 * SILENT_S, here, there) == set()


@pytest.mark.touches("LW-41")
@pytest.mark.parametrize("place", [APART, CLONE, ELSEWHERE], ids=["another directory", "copy", "another machine"])
def test_a_worker_whose_lock_tells_nothing_is_dead_when_it_has_been_silent(world: World, place: Place) -> None:
    mine, theirs = world.directory(), world.directory()
    there = world.worker(theirs, place)
    observer = world.observer(mine)
    world.watch(observer, SILENT_S, there)
    there.kill()
    assert world.watch(observer, SILENT_S - BEAT_S - 1) == set()
    assert world.watch(observer, BEAT_S + 2) == {there.sign.number}


@pytest.mark.parametrize(
    "place",
    [CLONE, HERE._replace(locks="another directory"), HERE._replace(host="another machine")],
    ids=["copied machine", "copied home", "another machine id"],
)
def test_a_copy_has_free_locks_of_workers_that_run_on_the_original(world: World, place: Place) -> None:
    """It was made while they ran. Of a copied machine all is the same but the start."""
    original = world.directory()
    running = world.worker(original, HERE)
    copy = world.copied(original)
    on_copy = world.worker(copy, place)
    observer = world.observer(copy, place)
    assert world.locks(copy).is_held(name_of(world, running)) is False
    assert world.watch(observer, 3 * SILENT_S, running, on_copy) == set()
    assert world.watch(world.observer(original, HERE), 3 * SILENT_S, running, on_copy) == set()
    running.kill()
    assert running.sign.number not in world.dead(observer), "a free lock proves nothing there"
    assert world.watch(observer, SILENT_S + 1, on_copy) == {running.sign.number}


def test_a_worker_from_before_a_reboot_is_dead_when_it_has_been_silent(world: World) -> None:
    """Its lock is there and free, but so it is on a copy of the machine: this wait tells them apart."""
    directory = world.directory()
    before = world.worker(directory, HERE)
    before.kill()
    after = world.worker(directory, REBOOTED)
    observer = world.observer(directory, REBOOTED)
    assert world.watch(observer, SILENT_S - 1, after) == set()
    assert world.watch(observer, 2, after) == {before.sign.number}


def test_a_lock_that_is_not_there_proves_nothing(world: World) -> None:
    directory = world.directory()
    worker = world.worker(directory, HERE)
    world.locks(directory).remove(name_of(world, worker))
    observer = world.observer(directory)
    assert world.watch(observer, 2 * SILENT_S, worker) == set()
    assert world.watch(observer, SILENT_S + BEAT_S) == {worker.sign.number}


def test_a_held_lock_means_a_running_worker_whatever_its_row_says(world: World) -> None:
    """The row of a program from before: it says nothing of the place, and nobody renews it."""
    directory = world.directory()
    old = world.worker(directory, Place())
    observer = world.observer(directory)
    assert world.watch(observer, 3 * SILENT_S) == set()
    old.kill()
    assert world.dead(observer) == set()
    assert world.watch(observer, SILENT_S) == {old.sign.number}


@pytest.mark.parametrize("unknown", ["boot", "locks"])
def test_what_is_unknown_is_not_the_same(world: World, unknown: str) -> None:
    place = HERE._replace(**{unknown: ""})
    directory = world.directory()
    world.worker(directory, place).kill()
    assert world.dead(world.observer(directory, place)) == set()


def test_an_observer_does_not_take_its_own_pause_for_the_silence_of_others(world: World) -> None:
    mine, theirs = world.directory(), world.directory()
    there = world.worker(theirs, ELSEWHERE)
    observer = world.observer(mine)
    world.watch(observer, 1, there)
    for _ in range(int(SILENT_S / rule.LOOK_S_MAX) - 1):
        world.now += 3600
        assert world.dead(observer) == set()


def test_clocks_that_are_set_kill_nobody(world: World) -> None:
    """The beat is a time of day, and only its changes count."""
    mine, theirs = world.directory(), world.directory()
    there = world.worker(theirs, ELSEWHERE)
    observer = world.observer(mine)
    for jump in (-86_400_000, 86_400_000, -1):
        (row,) = world.rows()
        with world.log.store.write() as session:
            session.put_worker(row._replace(beat=row.beat + jump))
        assert world.watch(observer, SILENT_S - 1) == set()
    assert world.watch(observer, 1) == {there.sign.number}


def test_what_is_forgotten_leaves_nothing_behind(world: World) -> None:
    directory = world.directory()
    dead, alive = world.worker(directory), world.worker(directory, CONTAINER)
    dead.kill()
    observer = world.observer(directory)
    found = world.dead(observer) - {alive.sign.number}
    name = name_of(world, dead)
    observer.forget(found)
    assert world.locks(directory).is_held(name) is None
    if isinstance(world, RealWorld):
        assert len(list(directory.iterdir())) == 1


def test_a_worker_that_was_taken_for_dead_gets_a_new_row(world: World) -> None:
    worker = world.worker(world.directory())
    first = worker.sign.number
    assert world.log.run(worker.sign.row) == first
    world.log.run(lambda tx: tx.session.drop_worker(first))
    second = world.log.run(worker.sign.row)
    assert second != first and [row.number for row in world.rows()] == [second]


def test_workers_of_other_nodes_are_not_ours(world: World) -> None:
    mine = world.worker(world.directory())
    with world.log.store.write() as session:
        other = session.put_worker(WorkerRow(0, "theirs", 1, 0, b"othernod", 0, ELSEWHERE))
        assert [row.number for row in session.workers(b"othernod")] == [other]
        assert {row.number for row in session.workers()} == {mine.sign.number, other}
    assert [row.number for row in world.rows()] == [mine.sign.number]


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (HERE, ""),
        (CONTAINER, "in another container"),
        (HERE._replace(locks="another"), "with locks in another directory"),
        (CLONE, "from before this machine's last start, or on a copy of this machine"),
        (ELSEWHERE, "on another machine"),
        (Place(), "in an unknown place"),
    ],
)
def test_whereabouts(place: Place, words: str) -> None:
    assert whereabouts(place, HERE) == words


def test_how_a_worker_stands_at_one_look(world: World) -> None:
    directory = world.directory()
    near, far = world.worker(directory), world.worker(world.directory(), ELSEWHERE)
    observer = world.observer(directory)

    def stand(later_s: float = 0) -> list[WorkerState]:
        return [standing(observer, row, int(row.beat + later_s * 1000)) for row in world.rows()]

    assert stand() == [WorkerState.RUNNING, WorkerState.RUNNING]
    assert stand(SILENT_S) == [WorkerState.RUNNING, WorkerState.SILENT]
    near.kill()
    assert stand() == [WorkerState.DIED, WorkerState.RUNNING]
    far.kill()
    assert stand()[1] is WorkerState.RUNNING


def test_the_machine_id_is_not_given_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = {"a": "0123456789abcdef" * 2, "b": "fedcba9876543210" * 2, "c": "uninitialized", "d": ""}
    hosts = {}
    for name, text in ids.items():
        (tmp_path / name).write_text(text + "\n")
        monkeypatch.setattr(rule, "_MACHINE_IDS", (str(tmp_path / "nowhere"), str(tmp_path / name)))
        hosts[name] = place_of(tmp_path).host
        assert not text or text not in "".join(place_of(tmp_path))
    assert hosts["a"] != hosts["b"] and hosts["a"] and hosts["c"] == hosts["d"] == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_place_is_known_and_stays_the_same(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    assert place_of(one) == place_of(one) != place_of(other)
    (tmp_path / "link").symlink_to(one)
    assert place_of(tmp_path / "link") == place_of(one)
    assert place_of(one).boot and place_of(one).namespace
    assert place_of(tmp_path / "nowhere").locks == ""


@pytest.mark.req("LW-48")
@pytest.mark.parametrize("name", ["../outside", "../locks/inside", "a\0b", "x" * 5_000])
def test_the_name_of_a_worker_leads_to_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    """A node that shares the store can give a worker any name."""
    (tmp_path / "locks").mkdir()
    for each in ("outside.lock", "locks/inside.lock"):
        (tmp_path / each).touch()
    assert FileLocks(tmp_path / "locks").is_held(name) is None
    assert FileLocks(tmp_path / "locks").is_held("inside") is False
