"""Commands on many jobs, and options of handlers that hold for jobs from the shell: real processes on real homes."""

import json
from pathlib import Path

import pytest

from .conftest import Program, until
from .test_mesh_commands import typed

LIMITED = """
import os
import time
from pathlib import Path

import hocket

JOURNAL = Path(__file__).with_name("journal")


@hocket.job("limit.one", concurrency=1, retries=2, backoff="10ms")
def one(ctx, **payload):
    for event in ("begin", "end"):
        with JOURNAL.open("a") as file:
            file.write(f"{event} {ctx.job_id}\\n")
        time.sleep(0.05)


@hocket.job("limit.gpu", needs="gpu=a100")
def gpu(ctx):
    return "on the gpu"
"""


@pytest.mark.req("LW-41")
def test_a_handlers_options_hold_for_the_shell_a_batch_and_cron(hocket: Program) -> None:
    """They were ignored: up to four ran at once."""
    place = hocket.home.parent
    (place / "limited.py").write_text(LIMITED)
    (place / "jobs.jsonl").write_text((json.dumps({"kind": "limit.one"}) + "\n") * 4)
    for _ in range(3):
        hocket.submit("limit.one")
    worker = hocket.start("work", "limited.py", "--concurrency", "4")
    until(lambda: hocket("kinds", "--json").json)
    shown = {each["kind"]: each for each in hocket("kinds", "--json").json}
    assert shown["limit.one"]["options"] == {"concurrency": 1, "retries": 2, "backoff_ms": 10}
    assert shown["limit.one"]["author"] == hocket("status", "--json").json["node"]
    assert "limit.gpu\t" in hocket("kinds").out
    hocket("cron", "add", "pulse", "* * * * * *", "limit.one", code=0)
    hocket("submit", "--batch", place / "jobs.jsonl", code=0)
    one = hocket.submit("limit.one")
    assert hocket.show(one)["options"] == {"concurrency": 1, "retries": 2, "backoff_ms": 10}
    said = hocket.submit("limit.one", "--retries", "0", "--backoff", "1s")
    assert hocket.show(said)["options"] == {"concurrency": 1, "retries": 0, "backoff_ms": 1_000}
    until(lambda: len(hocket("jobs", "--outcome", "succeeded", "--json").json) >= 3 + 4 + 2 + 1)
    hocket("cron", "remove", "pulse", code=0)
    worker.terminate()
    hocket.finished(worker)
    lines = (place / "journal").read_text().split()
    events = list(zip(lines[::2], lines[1::2], strict=True))
    for begin, end in zip(events[::2], events[1::2], strict=False):
        assert (begin[0], end[0], begin[1]) == ("begin", "end", end[1]), "two at once"


def test_a_job_waits_for_a_worker_with_the_label_that_it_needs(hocket: Program) -> None:
    (hocket.home.parent / "limited.py").write_text(LIMITED)
    gpu = hocket.submit("limit.gpu", "--needs", "gpu")
    hocket("work", "limited.py", "--until-idle", code=0)
    hocket("work", "limited.py", "--until-idle", "--label", "ssd", code=0)
    assert hocket.show(gpu)["state"] == "pending"
    assert (
        "waits: no worker that this node knows of serves limit.gpu with the label gpu\n"
        in hocket("why", gpu, code=0).out
    )
    assert hocket("why", gpu, "--json", code=0).json["needs"] == ["gpu"]
    hocket("work", "limited.py", "--until-idle", "--label", "gpu=a100", code=0)
    assert hocket.show(gpu)["result"] == "on the gpu"
    assert "waits" not in hocket("why", gpu, code=0).out


@pytest.mark.parametrize("arguments", [("submit", "a.b", "--needs", "a b"), ("work", "--label", "gpu=")])
def test_a_bad_label_is_refused(hocket: Program, arguments: tuple[str, ...]) -> None:
    assert "write it like gpu or gpu=a100" in hocket(*arguments, code=2).sentence


@pytest.mark.req("LW-41")
def test_many_jobs_are_cancelled_and_retried(hocket: Program, tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text("".join(f'{{"kind": "acme.{kind}"}}\n' for kind in "aab"))
    hocket("submit", "--batch", lines, code=0)
    hocket.submit("other.a")
    filters = ("--kind", "acme.", "--state", "pending")
    assert hocket("cancel", *filters, code=2).sentence == "3 jobs match; give --yes to go on without a question"
    assert hocket("cancel", *filters, "--older-than", "1h", "--yes", code=0).out == "no job matches\n"
    assert hocket("cancel", *filters, "--yes", code=0).out == "cancelled 3 jobs\n"
    assert len(hocket("jobs", "--outcome", "cancelled", "--json").json) == 3
    done = hocket("retry", "--state", "cancelled", "--kind", "acme.b", "--yes", "--json", code=0).json
    assert done == {"matched": 1, "changed": 1, "refused": 0, "why": None}
    assert hocket("postpone", "--kind", "acme.", "--for", "1h", "--dry-run").out == "1 job would be postponed\n"
    assert hocket("postpone", "--kind", "acme.", "--for", "1h", "--yes", code=0).out == "postponed 1 job\n"
    assert [each["kind"] for each in hocket("jobs", "--state", "delayed", "--json").json] == ["acme.b"]
    assert "only pending" in hocket("postpone", "--state", "failed", "--now", "--yes", code=2).sentence
    assert (
        hocket("cancel", "--yes", code=2).sentence == "say which jobs to cancel: by kind, state, age or another filter"
    )
    assert "give either a job" in hocket("cancel", "01J", "--kind", "a", code=2).sentence


def test_on_a_terminal_the_number_of_jobs_is_asked_first(hocket: Program) -> None:
    hocket.submit("acme.a")
    code, shown = typed(hocket, "cancel", "--kind", "acme.", answers={"cancel 1 job?": "n"})
    assert code == 3 and "nothing was changed" in shown
    code, shown = typed(hocket, "cancel", "--kind", "acme.", answers={"cancel 1 job?": "y"})
    assert code == 0 and "cancelled 1 job" in shown


def test_many_jobs_cannot_be_cancelled_in_a_strict_mesh(hocket: Program, tmp_path: Path) -> None:
    strict = Program(tmp_path / "strict")
    strict("init", "--strict", code=0)
    strict.submit("acme.a")
    assert "strict mesh" in strict("cancel", "--kind", "acme.", "--yes", code=2).sentence
