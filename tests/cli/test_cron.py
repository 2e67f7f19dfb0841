"""Schedules from the command line."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hocket.families.jobs import cron
from hocket.work.handlers import kind as job_kind
from tests.mesh.enrolment.people import Mesh, exchange

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
    assert shown["author"] == hocket("status", "--json").json["node"] and shown["allowed"]
    assert time.time() * 1000 < shown["next_ms"] < (time.time() + 86_400) * 1000
    assert hocket("cron", "add", "nightly", "0 3 * * *", "test.echo", "--json", code=0).json["cron"] == "0 3 * * *"
    assert hocket("cron", "list", code=0).out.startswith("nightly\t0 3 * * *\tUTC\ttest.echo\t")
    assert hocket("status", "--json").json["schedules"] == ["nightly"]
    hocket("cron", "remove", "nightly", code=0)
    assert hocket("cron", "list", "--json", code=0).json == []
    assert "no schedule 'nightly'" in hocket("cron", "remove", "nightly", code=2).sentence


@pytest.mark.req("LW-41")
def test_ticks_make_jobs_once_for_two_workers(hocket: Program):
    hocket("cron", "add", "pulse", "* * * * * *", "test.echo", '{"n": 1}', code=0)
    workers = [hocket.start("work", "tasks.py") for _ in range(2)]
    until(lambda: len(hocket("status", "--json").json["workers"]) == 2, "both workers")
    done = until(lambda: [job for job in hocket("jobs", "--json").json if job["outcome"] == "succeeded"])
    hocket("cron", "remove", "pulse", code=0)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        hocket.finished(worker)
    ids = [job["job_id"] for job in hocket("jobs", "--json").json]
    assert done and len(ids) == len({job_id[:10] for job_id in ids})


def test_names_stand_for_five_fields(hocket: Program):
    assert hocket("cron", "add", "a", "@daily", "test.echo", "--json", code=0).json["cron"] == "0 0 * * *"
    assert hocket("cron", "add", "b", "@Hourly", "test.echo", "--json", code=0).json["cron"] == "0 * * * *"
    assert "or @daily" in hocket("cron", "add", "c", "@fortnightly", "test.echo", code=2).sentence


def test_a_tick_is_skipped_while_the_last_job_has_not_ended_unless_it_may_queue(hocket: Program):
    hocket("cron", "add", "skips", "* * * * * *", "other.skips", code=0)
    hocket("cron", "add", "queues", "* * * * * *", "other.queues", "--overlap", "queue", code=0)
    worker = hocket.start("work", "tasks.py")

    def jobs(kind: str) -> list[str]:
        return [each["job_id"] for each in hocket("jobs", "--kind", kind, "--json", code=0).json]

    until(lambda: len(jobs("other.queues")) >= 4, "jobs of four ticks, which nobody runs")
    (first,) = jobs("other.skips")
    hocket("cancel", first, code=0)
    until(lambda: len(jobs("other.skips")) == 2, "the tick after the end of the first job")
    worker.terminate()
    hocket.finished(worker)


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


@pytest.fixture
def people(tmp_path: Path) -> Iterator[Mesh]:
    made = Mesh(tmp_path)
    yield made
    made.close()


@pytest.mark.req("LW-44", "LW-24")
def test_schedules_of_others_are_listed_with_their_authors_and_not_changed(people: Mesh):
    """A phone that may schedule `acme.mail` jobs alone."""
    phone = people.join(people.invite("phone", ["job:schedule:acme.mail", "ops:read"], lifetime_s=600), "phone")
    people.owner.log.run(lambda tx: cron.add(tx, plan("backup", "acme.backup")))
    phone.log.run(lambda tx: cron.add(tx, plan("mail", "acme.mail")))
    exchange(phone, people.owner)
    here, there = Program(people.directory / "owner"), Program(people.directory / "phone")
    listed = {each["name"]: each for each in here("cron", "list", "--json", code=0).json}
    assert {name: (each["author_name"], each["allowed"]) for name, each in listed.items()} == {
        "backup": (listed["backup"]["author_name"], True),
        "mail": ("phone", True),
    }
    for arguments in (["add", "backup", "* * * * *", "acme.mail"], ["remove", "backup"]):
        refused = there("cron", *arguments, code=4).sentence
        assert "set the schedule 'backup'" in refused and "acme.backup" in refused
    assert (
        "may not schedule acme.backup jobs" in there("cron", "add", "new", "* * * * *", "acme.backup", code=4).sentence
    )
    people.clock.advance(1_000)
    people.owner.log.run(lambda tx: cron.add(tx, plan("later", "acme.backup")))
    listed = {each["name"]: each for each in here("cron", "list", "--json", code=0).json}
    assert (listed["mail"]["allowed"], listed["backup"]["allowed"]) == (False, True), "its time is over"
    shown = here("cron", "list", code=0).out.splitlines()
    assert [line.split("\t")[-2:] for line in shown if line.startswith("mail")] == [["phone", "no"]]
    here("cron", "remove", "mail", code=0)


def plan(name: str, kind: str) -> cron.NewSchedule:
    return cron.check(cron.NewSchedule(name, "* * * * *", "UTC", job_kind(kind).draft({})))
