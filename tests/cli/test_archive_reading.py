"""Jobs that are read back from an archive, by a home that has no op of them: it was made before they were."""

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hocket.families.jobs import claiming, requests
from hocket.families.jobs.requests import Draft, Held
from hocket.kernel.ids import node_id, ulid_text
from hocket.kernel.keys import key_text
from hocket.kernel.policy import DEFAULT
from hocket.log.archives.reached import archived_heads, reached_archives
from hocket.log.archives.writing import write_archive
from hocket.log.copies import import_ops
from hocket.node.runtime import Runtime
from tests.cli.conftest import Program, copied
from tests.log.roster.world import READER, USER
from tests.log.test_archive import exported
from tests.log.test_archives import FIRST_DAY, Author

DAY_MS = 86_400_000


READER_ID = node_id(READER.public).to_bytes(8, "big")


class Past(NamedTuple):
    """A home without the jobs, an archive with them, and the jobs: of one bundle, of which the first has ended."""

    home: Path
    archive: Path
    jobs: list[str]


@pytest.fixture(scope="module")
def made_past(tmp_path_factory: pytest.TempPathFactory) -> Past:
    directory = tmp_path_factory.mktemp("past")
    author = Author(READER)
    early = exported(author.log)
    author.on_day(1, 0)
    drafts = [Draft("acme.render", b'{"frame":%d}' % frame, DEFAULT) for frame in range(3)]
    made = author.log.run(lambda tx: requests.submit(tx, drafts))
    author.on_day(2, 0)
    (worker,) = author.log.run(lambda tx: claiming.claim(tx, 1, 1, lambda kind: 60_000)).taken
    held = Held(worker.job.id, worker.job.claim_op)
    author.log.run(lambda tx: requests.complete(tx, held, b'"done"', 5))
    author.on_day(3, 4)
    list(write_archive(author.log, directory / "archive", FIRST_DAY + 30 * DAY_MS))
    key = directory / "user.key"
    key.write_text(key_text(USER.seed))
    with Runtime.init(directory / "home", key) as runtime:
        assert import_ops(runtime.log, io.BytesIO(early)).rejected == 0
    author.log.store.close()
    jobs = sorted((ulid_text(each.job_id) for each in made), key=lambda text: text != ulid_text(worker.job.id))
    return Past(directory / "home", directory / "archive", jobs)


@pytest.fixture
def past(made_past: Past, tmp_path: Path) -> Iterator[tuple[Program, Past]]:
    program = Program(copied(made_past.home, tmp_path))
    shutil.copytree(made_past.archive, tmp_path / "archive")
    yield program, made_past._replace(archive=tmp_path / "archive")
    program.end_started()


def test_a_job_is_shown_from_an_archive(past: tuple[Program, Past]) -> None:
    hocket, (_, archive, (ended, *others)) = past
    assert "no job" in hocket("show", ended, code=2).sentence
    done = hocket("show", ended, "--archive", archive, "--json", code=0)
    assert (done.json["state"], done.json["result"]) == ("succeeded", "done")
    assert [op["type"] for op in done.json["ops"]] == ["ScheduleJob", "ClaimWork", "CompleteJob"]
    assert all(op["counts"] for op in done.json["ops"])
    assert f"read from the archive {archive}" in done.sentence
    assert hocket("show", others[0], "--archive", archive, "--json", code=0).json["state"] == "pending"
    assert ended in hocket("why", ended, "--archive", archive, code=0).out
    lines = hocket("log", "--job", ended, "--archive", archive, code=0).out.splitlines()
    assert len(lines) == len(done.json["ops"])


def test_a_beginning_of_an_id_is_enough_if_it_names_one(past: tuple[Program, Past]) -> None:
    hocket, (_, archive, jobs) = past
    assert jobs[0] in hocket("show", jobs[0][:20], "--archive", archive, code=0).out
    assert "is the beginning of several ids" in hocket("show", jobs[0][:9], "--archive", archive, code=2).sentence


def test_a_damaged_or_missing_archive_is_said(past: tuple[Program, Past]) -> None:
    hocket, (home, archive, jobs) = past
    assert "has no archive" in hocket("show", jobs[0], "--archive", home, code=2).sentence
    file = min(archive.rglob("2026-01-31*"))
    file.write_bytes(file.read_bytes()[:-1])
    assert "is damaged: it is cut off" in hocket("show", jobs[0], "--archive", archive, code=1).sentence


def test_the_home_notes_how_far_its_archives_reach_and_looks_there(past: tuple[Program, Past], tmp_path: Path) -> None:
    hocket, (_, archive, jobs) = past
    with Runtime.open(hocket.home) as runtime:
        own = runtime.log.author
        with runtime.store.read() as session:
            assert (archived_heads(session), reached_archives(session)) == ({}, [])
    # The archive is ahead of this log: nothing is noted.
    assert (
        "has ops that this log has not"
        in hocket("log", "archive", "--before", "100d", "--to", archive, code=3).sentence
    )
    own_archive = tmp_path / "own"
    hocket("log", "archive", "--before", "100d", "--to", own_archive, code=0)
    with Runtime.open(hocket.home) as runtime:
        with runtime.store.read() as session:
            (noted,) = reached_archives(session)
            heads = archived_heads(session)
    assert noted.address == str(own_archive)
    assert READER_ID in heads and own not in heads
    shutil.rmtree(own_archive)
    shutil.copytree(archive, own_archive)
    found = hocket("show", jobs[0], "--json", code=0)
    assert found.json["state"] == "succeeded" and f"read from the archive {own_archive}" in found.sentence
    shutil.rmtree(own_archive)
    missing = hocket("show", jobs[0], code=2)
    assert "could not be searched" in missing.err and "no job" in missing.err
