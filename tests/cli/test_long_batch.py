"""A long file of jobs: it goes in whole or not at all, and needs little memory."""

import json
import tracemalloc
from pathlib import Path

import pytest

from hocket.cli.settings import settings
from hocket.cli.submit import submit_batch
from hocket.node.runtime import Runtime

from .conftest import Program

TEXT = "x" * 3_000


def lines(path: Path, count: int) -> Path:
    jobs = ({"kind": "test.echo", "payload": {"n": n, "text": TEXT}} for n in range(count))
    path.write_text("".join(json.dumps(job) + "\n" for job in jobs))
    return path


@pytest.mark.slow
@pytest.mark.req("LW-41")
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def peak(count: int) -> int:
        Runtime.init(tmp_path / f"home-{count}").close()
        monkeypatch.setattr(settings, "home", tmp_path / f"home-{count}")
        file = lines(tmp_path / f"{count}.jsonl", count)
        tracemalloc.start()
        submit_batch(str(file))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(capsys.readouterr().out.splitlines()) == count
        return most

    peak(10)  # what is loaded once
    assert peak(6_000) - peak(2_000) < 3_000_000, "twelve megabytes more of jobs"


@pytest.mark.req("LW-41")
def test_the_last_line_of_a_long_file_can_still_undo_all(hocket: Program, tmp_path: Path) -> None:
    gone = hocket.submit("test.echo")
    hocket("cancel", gone, code=0)
    before = hocket("status", "--json").json["ops"]
    file = lines(tmp_path / "jobs.jsonl", 2_500)
    with file.open("a") as more:
        more.write(json.dumps({"kind": "test.echo", "after": gone}) + "\n")
    assert "line 2501: " in hocket("submit", "--batch", file, code=3).sentence
    assert hocket("status", "--json").json["ops"] == before
    assert hocket("log", "verify", code=0)
    # The same from a pipe, without that line.
    given = "".join(file.read_text().splitlines(keepends=True)[:-1])
    made = hocket("submit", "--batch", "-", "--json", input=given, code=0).json
    assert len({each["job_id"] for each in made}) == 2_500
    assert hocket("status", "--json").json["ops"] == before + 2_500
    assert hocket("log", "verify", code=0)
