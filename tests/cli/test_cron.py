"""Schedules from the command line."""

import time

import pytest

from .conftest import Program, until


@pytest.mark.req("LW-41")
def test_a_schedule_is_set_listed_replaced_and_removed(hocket: Program):
    arguments = ["30 2 * * *", "test.echo", '{"full": true}', "--timezone", "Europe/Vienna", "--priority", "3"]
    assert "next tick" in hocket("cron", "add", "nightly", *arguments, code=0).out
    (shown,) = hocket("cron", "list", "--json", code=0).json
    assert (shown["name"], shown["cron"], shown["timezone"], shown["kind"]) == (
        "nightly",
        "30 2 * * *",
        "Europe/Vienna",
        "test.echo",
    )
    assert shown["payload"] == {"full": True} and shown["options"]["priority"] == 3
    assert time.time() * 1000 < shown["next_ms"] < (time.time() + 86_400) * 1000
    assert hocket("cron", "add", "nightly", "0 3 * * *", "test.echo", "--json", code=0).json["cron"] == "0 3 * * *"
    assert hocket("cron", "list", code=0).out.startswith("nightly\t0 3 * * *\tUTC\ttest.echo\t")
    assert hocket("status", "--json").json["schedules"] == ["nightly"]
    hocket("cron", "remove", "nightly", code=0)
    assert hocket("cron", "list", "--json", code=0).json == []
    assert "no schedule 'nightly'" in hocket("cron", "remove", "nightly", code=2).sentence


@pytest.mark.req("LW-41")
@pytest.mark.xdist_group("processes")
def test_ticks_make_jobs_once_for_two_workers(hocket: Program):
    hocket("cron", "add", "pulse", "* * * * * *", "test.echo", '{"n": 1}', code=0)
    workers = [hocket.start("work", "tasks.py") for _ in range(2)]
    done = until(lambda: [job for job in hocket("jobs", "--json").json if job["outcome"] == "succeeded"])
    hocket("cron", "remove", "pulse", code=0)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        hocket.finished(worker)
    ids = [job["job_id"] for job in hocket("jobs", "--json").json]
    assert done and len(ids) == len({job_id[:10] for job_id in ids})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["n", "every day", "a.b"], "bad cron expression 'every day'"),
        (["n", "99 * * * *", "a.b"], "bad cron expression"),
        (["n", "0 0 30 2 *", "a.b"], "'0 0 30 2 *'"),
        (["n", "* * * * *", "bad kind"], "illegal kind"),
        (["n", "* * * * *", "a.b", "{"], "not JSON"),
        (["n", "* * * * *", "a.b", "--timezone", "Mars/Olympus"], "unknown timezone 'Mars/Olympus'"),
        (["", "* * * * *", "a.b"], "bad schedule name"),
        (["a\nb", "* * * * *", "a.b"], "bad schedule name"),
        (["n", "* * * * *", "a.b", "--lease", "-1s"], "bad lease"),
    ],
    ids=lambda value: " ".join(value)[:30].replace("\n", " ") if isinstance(value, list) else None,
)
def test_bad_schedules(hocket: Program, arguments: list[str], says: str):
    assert says in hocket("cron", "add", *arguments, code=2).sentence
