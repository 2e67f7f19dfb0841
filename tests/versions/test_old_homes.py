"""Homes that earlier versions of the program have made: each is brought to the current version, with everything that
its log says. `homes` has one of each of the last three versions of the store.
"""

import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import Program

HOMES = Path(__file__).parent / "homes"
# The job that was done with the payload {"n": 4}, and the one that waited with {"n": 5}. The home also has a message to
# ada, and a lock.
MADE = {
    16: ("01M7TXZN45Z1887G7T62122YZ6", "01M7TXZP9J80NK4J7MAWGESFP8"),
    15: ("01M7TVJJFEKZJFM31B3V0R5HP8", "01M7TVK4JJFHCSB08HSD98BAFC"),
    14: ("01M7TVMY5HA50NNJ7S7GH6B04M", "01M7TVNGE503558WZGCSZDQDAS"),
}
TASKS = """
import hocket

@hocket.job("acme.double")
def double(ctx, n):
    return 2 * n
"""


def test_there_are_three_versions_back(tmp_path: Path) -> None:
    """A new version of the store needs the home of the one before it, made by that program."""
    hocket = Program(tmp_path / "home")
    hocket("init", code=0)
    version = hocket("store", "migrate", "--json", code=0).json["to"]
    assert {version - back for back in (1, 2, 3)} <= MADE.keys()


@pytest.mark.req("VX-02")
@pytest.mark.parametrize("version", MADE)
def test_a_home_of_an_earlier_version_is_migrated(version: int, tmp_path: Path) -> None:
    with tarfile.open(HOMES / f"store-{version}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    hocket = Program(tmp_path / "home")
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
