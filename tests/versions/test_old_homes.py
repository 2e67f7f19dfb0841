"""Homes that earlier versions of the program have made: each is brought to the current version, with everything that
its log says. `homes` has one of each of the last three versions of the store.
"""

import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

from hocket.api import Service
from hocket.api.retention import pruning
from hocket.families.retention.facts import RETENTION, Retained, SetRetention
from hocket.kernel.ids import parse_ulid
from hocket.kernel.vocabulary import Subject
from hocket.log.audit import verify
from hocket.log.checkpoints import verification
from hocket.node.runtime import Runtime
from hocket.store.checkpoint_rows import CheckpointState
from tests.cli.conftest import Program

HOMES = Path(__file__).parent / "homes"
# The job that was done with the payload {"n": 4}, and the one that waited with {"n": 5}. The home also has a message to
# ada, and a lock.
MADE = {
    17: ("01M7V31ZACXW99KQDBQFN6PW6B", "01M7V324F0JCBD68VKC5RJEA13"),
    16: ("01M7TXZN45Z1887G7T62122YZ6", "01M7TXZP9J80NK4J7MAWGESFP8"),
    15: ("01M7TVJJFEKZJFM31B3V0R5HP8", "01M7TVK4JJFHCSB08HSD98BAFC"),
}
DAY = 86_400_000
TASKS = """
import hocket

@hocket.job("acme.double")
def double(ctx, n):
    return 2 * n
"""


def home_of(version: int, directory: Path) -> Path:
    with tarfile.open(HOMES / f"store-{version}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "home"


def test_there_are_three_versions_back(tmp_path: Path) -> None:
    """A new version of the store needs the home of the one before it, made by that program."""
    hocket = Program(tmp_path / "home")
    hocket("init", code=0)
    version = hocket("store", "migrate", "--json", code=0).json["to"]
    assert {version - back for back in (1, 2, 3)} <= MADE.keys()


@pytest.mark.req("VX-02")
@pytest.mark.parametrize("version", MADE)
def test_a_home_of_an_earlier_version_is_migrated(version: int, tmp_path: Path) -> None:
    hocket = Program(home_of(version, tmp_path))
    (tmp_path / "tasks.py").write_text(TASKS)
    before = (hocket.home / "log.db").read_bytes()
    planned = hocket("store", "migrate", "--dry-run", "--json", code=0).json
    assert planned["from"] == version and planned["sql"]
    assert (hocket.home / "log.db").read_bytes() == before, "a dry run changes nothing"
    done = hocket("store", "migrate", "--json", code=0).json
    assert (done["from"], done["to"]) == (version, planned["to"])
    assert "nothing to do" in hocket("store", "migrate", code=0).out

    first, second = MADE[version]
    hocket("log", "verify", code=0)
    assert hocket.show(first)["result"] == 8 and hocket.show(second)["state"] == "pending"
    hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(second)["result"] == 10
    [message] = hocket("mail", "inbox", "--agent", "ada", "--json", code=0).json
    assert message["body"] == f"hello from {version}"
    # What is derived from the log is what the old program had derived.
    jobs = hocket("jobs", "--json", code=0).json
    hocket("log", "rebuild", code=0)
    assert hocket("jobs", "--json", code=0).json == jobs
    assert not [each for each in hocket("node", "doctor", "--json", code=0).json if each["verdict"] == "bad"]


@pytest.mark.req("VX-02", "VX-07", "LW-52")
@pytest.mark.parametrize("version", MADE)
def test_a_home_of_an_earlier_version_gains_checkpoints_and_prunes(version: int, tmp_path: Path) -> None:
    home = home_of(version, tmp_path)
    first, second = map(parse_ulid, MADE[version])
    with Runtime.open(home) as runtime:
        log = runtime.log
        before = _states(runtime)
        # Three days after its last op, whatever the clock of this machine says.
        now = max(log.physical(), before.wall) + 3 * DAY
        log.physical, log.wall = lambda: now, lambda floor: max(now, floor)
        log.checkpoints.make()
        with runtime.read() as session:
            row = session.checkpoint(log.author, CheckpointState.SIGNED)
        assert row is not None and row.size == before.entries
        log.run(lambda tx: tx.author(SetRetention(Retained.JOBS, "", DAY, None, True, 0)))
        done = pruning.prune(Service(runtime, warn=pytest.fail))
        assert done.moved and done.deleted_ops and done.horizon.deleted
        after = _states(runtime)
        assert before.jobs - after.jobs == {first} and second in after.jobs
        assert (after.messages, after.subjects) == (before.messages, before.subjects)
        assert verify(runtime.store, user=log.user, marks=log.signer, is_bound=True).findings == []
        assert verification.check(runtime.store, log.node, log.user) == []
        assert runtime.rebuild().unchanged
    hocket = Program(home)
    hocket("log", "verify", code=0)
    assert hocket.show(MADE[version][1])["state"] == "pending"


class _States(NamedTuple):
    """What a home shows: `subjects` are the states of locks and of all else that stays."""

    jobs: set[bytes]
    messages: set[bytes]
    subjects: dict[Subject, bytes]
    entries: int
    wall: int


def _states(runtime: Runtime) -> _States:
    runtime.log.settle()
    with runtime.read() as session:
        subjects = {row.subject: row.state for row in session.each_subject() if row.subject.family != RETENTION}
        jobs = {entry.job.id for entry in session.each_job()}
        messages = {message.id for message in session.each_message()}
        return _States(jobs, messages, subjects, session.entry_count(), session.head().wall)
