"""A process that archives, prunes, writes a snapshot or takes one is killed at any moment: another one goes on, and
nothing is lost. They are real processes on real homes. Each dies before or after some call of a function, of the
database or of the system, so that a busy machine changes nothing.
"""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.families.retention.facts import Retained, SetRetention
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy
from hocket.log.archives.archive import archived_ops
from hocket.log.archives.checking import verify_archive
from hocket.log.archives.writing import write_archive
from hocket.log.audit import verify
from hocket.log.snapshots.checking import check_snapshot
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.writing import write_snapshot
from hocket.node.runtime import Runtime
from tests.effort import IS_SOAK
from tests.log.child import prune, three_days_later
from tests.log.processes import go, start
from tests.stores import STORES, StoreKind

pytestmark = [pytest.mark.touches("LW-33"), pytest.mark.slow]
DAY = 86_400_000
ENDED, OPEN, BYTES = 60, 5, 3_000
# Each process makes more calls than the one before, by this factor on average.
CALLS, MORE = 300, 1.2 if IS_SOAK else 3.0


class Home(NamedTuple):
    path: Path
    open: frozenset[bytes]


@pytest.fixture
def home(tmp_path: Path, store_kind: StoreKind, store_url: str) -> Home:
    """Jobs of which most have ended; a rule lets those go after a day."""
    path = tmp_path / "home"
    with Runtime.init(path, server=None if store_kind is STORES["sqlite"] else store_url) as runtime:
        made = [each.job_id for n in range(ENDED + OPEN) for each in runtime.submit([_draft(n)])]
        runtime.log.run(lambda tx: [jobs.cancel(tx, each, "done") for each in made[OPEN:]])
        runtime.log.run(lambda tx: tx.author(SetRetention(Retained.JOBS, "", DAY, None, True, 0)))
    return Home(path, frozenset(made[:OPEN]))


def _draft(number: int) -> Draft:
    return Draft("k", b'{"n":%d,"text":"%s"}' % (number, b"x" * BYTES), Policy())


def killed_until_done(home: Path, what: str, place: Path, look: Callable[[], None]) -> int:
    """Starts processes until one comes to its end, and looks after each that did not. How many were killed."""
    chance, limit, killed = Random(what), float(CALLS), 0
    while True:
        child = start("keep", home, what, place, max(1, round(chance.uniform(0.5, 1.5) * limit)))
        go(child)
        answer, _ = child.communicate(timeout=120)
        if answer:
            assert child.returncode == 0 and answer == "done\n"
            return killed
        assert child.returncode < 0, "it ended by itself, and not well"
        look()
        killed, limit = killed + 1, limit * MORE


def jobs_of(runtime: Runtime) -> set[bytes]:
    runtime.log.settle()
    with runtime.read() as session:
        return {entry.job.id for entry in session.each_job()}


def is_sound(home: Home) -> None:
    with Runtime.open(home.path) as runtime:
        log = runtime.log
        assert verify(runtime.store, user=log.user, marks=log.signer, is_bound=True).findings == []
        assert home.open <= jobs_of(runtime)


def pruned(home: Home) -> None:
    with Runtime.open(home.path) as runtime:
        three_days_later(runtime.log)
        prune(runtime.log)
        assert jobs_of(runtime) == home.open


@pytest.mark.req("LW-52")
def test_a_process_that_prunes_may_be_killed(home: Home, tmp_path: Path) -> None:
    assert killed_until_done(home.path, "prune", tmp_path, lambda: is_sound(home))
    is_sound(home)
    with Runtime.open(home.path) as runtime:
        assert jobs_of(runtime) == home.open
        with runtime.read() as session:
            horizon = session.horizon()
        assert horizon is not None and horizon.is_deleted
        assert runtime.rebuild().unchanged


def test_a_process_that_archives_may_be_killed(home: Home, tmp_path: Path) -> None:
    place = tmp_path / "archive"
    with Runtime.open(home.path) as runtime, runtime.read() as session:
        ids = {row.id for row in session.entries_after(0, 10_000)}
    assert killed_until_done(home.path, "archive", place, lambda: is_sound(home))
    assert verify_archive(place).findings == []
    assert {op.id for _, op in archived_ops(place)} >= ids
    # An archive that nothing has interrupted has the same bytes.
    with Runtime.open(home.path) as runtime:
        three_days_later(runtime.log)
        assert list(write_archive(runtime.log, tmp_path / "again", runtime.log.physical()))
    assert _files(place) == _files(tmp_path / "again")


def _files(place: Path) -> dict[str, bytes]:
    return {str(each.relative_to(place)): each.read_bytes() for each in place.rglob("*.zst")}


def test_a_process_that_writes_a_snapshot_may_be_killed(home: Home, tmp_path: Path) -> None:
    pruned(home)
    place = tmp_path / "snapshot"

    def look() -> None:
        is_sound(home)
        if SnapshotFolder(place).is_complete():
            checked(home, place)

    killed_until_done(home.path, "snapshot", place, look)
    checked(home, place)


def checked(home: Home, place: Path) -> None:
    with Runtime.open(home.path) as runtime:
        three_days_later(runtime.log)
        log = runtime.log
        assert check_snapshot(SnapshotFolder(place), log.user, log.rules, log.physical()).entries


def test_a_process_that_takes_a_snapshot_may_be_killed(home: Home, tmp_path: Path) -> None:
    """What the node itself had written, and nobody else has, is there once, too."""
    pruned(home)
    place = tmp_path / "snapshot"
    with Runtime.open(home.path) as runtime:
        three_days_later(runtime.log)
        write_snapshot(runtime.log, place)
    taker = tmp_path / "taker"
    with Runtime.init(taker, user_key=home.path / "user.key") as runtime:
        mine = runtime.submit([Draft("mine", b"{}", Policy())])[0].job_id

    def look() -> None:
        with Runtime.open(taker) as runtime:
            three_days_later(runtime.log)
            found = jobs_of(runtime)
            assert found in ({mine}, found & home.open | found - {mine})
            assert verify(runtime.store, user=runtime.log.user, marks=runtime.log.signer, is_bound=True).findings == []

    assert killed_until_done(taker, "load", place, look)
    with Runtime.open(taker) as runtime:
        three_days_later(runtime.log)
        found = jobs_of(runtime)
        (again,) = found - home.open
        assert home.open < found and again != mine, ulid_text(again)
        assert verify(runtime.store, user=runtime.log.user, marks=runtime.log.signer, is_bound=True).findings == []
        assert runtime.rebuild().unchanged
