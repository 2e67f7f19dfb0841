"""Races between real processes, on every kind of plane: one winner, and only one, for each job and fence."""

import json
import os
from collections import Counter

import pytest

from hocket.extensions.git import git_jobs, holding
from hocket.extensions.git.verify import verify
from tests.cli.fork_server import start_command
from tests.docs.reader import ROOT
from tests.effort import IS_SOAK
from tests.extensions.git.hands import NOW_MS, seen, submitted, worker
from tests.extensions.git.places import Place

RACERS = 8 if IS_SOAK else 5
JOBS = 6

Won = dict[str, list[tuple[str, int, str]]]


def race(here: Place, what: str, names: list[str]) -> Won:
    """Starts a process for each name, lets all go at once, and gives what each won."""
    start = here.directory.parent / "start"
    os.mkfifo(start)
    environment = here.outside | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    racers = {
        name: start_command(
            [what, here.address, str(here.cache), name, str(start)],
            environment,
            ROOT,
            module="tests.extensions.git.racer",
        )
        for name in names
    }
    try:
        for racer in racers.values():
            assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
        with start.open("w"):
            won = {name: json.loads(racer.communicate(timeout=90)[0]) for name, racer in racers.items()}
        assert [racer.returncode for racer in racers.values()] == [0] * len(names)
        return won
    finally:
        for racer in racers.values():
            if racer.poll() is None:
                racer.kill()
            racer.wait()


def winners(won: Won) -> Counter[tuple[str, int]]:
    return Counter((job, fence) for each in won.values() for job, fence, _ in each)


@pytest.mark.req("GT-04", "GT-05", "GT-06")
def test_each_job_is_claimed_once(anywhere: Place):
    plane = anywhere.open()
    ids = [submitted(plane, number).refs.content_id for number in range(JOBS)]
    won = race(anywhere, "claim", [f"racer{number}" for number in range(RACERS)])
    assert winners(won) == {(id.hex(), 1): 1 for id in ids}
    for name, each in won.items():
        for job, _, _ in each:
            found = seen(plane, bytes.fromhex(job))
            assert found.claim is not None and found.claim.worker == worker(name).key.public
            assert set(found.refs.claims) == {found.claim.worker}
    assert all(not found.findings for found in verify(plane))


@pytest.mark.req("GT-11")
def test_a_claim_is_taken_over_once(anywhere: Place):
    plane, dead = anywhere.open(), worker("dead")
    ids = [submitted(plane, number).refs.content_id for number in range(JOBS // 2)]
    for id in ids:
        assert holding.claim(plane, seen(plane, id), dead, NOW_MS) is not None
    won = race(anywhere, "claim", [f"racer{number}" for number in range(RACERS)])
    assert winners(won) == {(id.hex(), 2): 1 for id in ids}
    assert all(not found.findings for found in verify(plane))


@pytest.mark.req("GT-11")
def test_finishing_against_taking_over(anywhere: Place):
    """Either the worker finishes or another takes over; never both, never neither."""
    plane, slow = anywhere.open(), worker("slow", process="slow")
    job = submitted(plane, 0)
    assert holding.claim(plane, job, slow, NOW_MS) is not None
    won = race(anywhere, "finish", ["slow", "racer1", "racer2"])
    (outcome,) = [how for each in won.values() for _, _, how in each]
    found = seen(plane, job.refs.content_id)
    assert found.claim is not None
    if outcome == "finished":
        assert found.state == "succeeded" and found.claim.fence == 1
    else:
        assert found.state == "claimed" and found.claim.fence == 2 and found.refs.result is None
    assert all(not each.findings for each in verify(plane))


@pytest.mark.req("GT-04")
def test_a_worker_that_lost_finds_the_job_taken(anywhere: Place):
    plane = anywhere.open()
    job = submitted(plane)
    assert holding.claim(plane, job, worker("one"), NOW_MS) is not None
    assert holding.claim(plane, job, worker("two"), NOW_MS) is None
    watch = holding.ClaimWatch(worker("two").key.public, lambda _: False, lambda: 0.0)
    assert watch.open(git_jobs.listing(plane)) == []
