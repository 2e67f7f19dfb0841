"""Three machines and a network that is cut, heals and is cut again while they work on jobs of both kinds: those that
the coordinator decides on, and open ones. In the end everybody agrees, every job is completed once, and no job that is
decided on was run twice without need.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import AcceptWork, CompleteJob, number_of
from tests.scenarios.cables import Cable, namespaces, proxies
from tests.scenarios.machines import Machine, Reason, agree, journal, machines, until, verify

PORT = 7315
ONE, OPEN, HOLD = "acme.one", "acme.open", "hold.one"
ACTIONS = ("schedule", "claim", "complete")
GRANTS = tuple(f"job:{action}:{prefix}" for action in ACTIONS for prefix in ("acme.", "hold."))


class Mesh(NamedTuple):
    """The owner's machine, which is the coordinator, and two others, each with its own way there."""

    root: Path
    owner: Machine
    left: Machine
    right: Machine
    ways: dict[str, Cable]

    @property
    def all(self) -> tuple[Machine, Machine, Machine]:
        return self.owner, self.left, self.right

    def runs(self, kind: str, machine: Machine | None = None) -> int:
        lines = [line for line in journal(self.root) if line["kind"] == kind and line["event"] == "start"]
        return sum(machine is None or line["machine"] == machine.name for line in lines)


@pytest.fixture(params=["proxy", "namespaces"])
def mesh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mesh]:
    with ExitStack() as stack:
        names = ("owner", "left", "right")
        if request.param == "proxy":
            made = stack.enter_context(machines(tmp_path, *names))
            proxy = stack.enter_context(proxies())
            listen = ("--port", "0")
        else:
            spaces, why_not = namespaces(names[0], names[1:])
            if spaces is None:
                pytest.skip(f"network namespaces cannot be made here: {why_not}")
            stack.callback(spaces.close)
            made = stack.enter_context(machines(tmp_path, *names, reached=spaces.reached))
            listen = ("--port", str(PORT), "--host", "0.0.0.0")

        def way(name: str) -> Cable:
            return proxy(address) if request.param == "proxy" else spaces.cable(name, PORT)

        owner, left, right = made
        owner("init")
        address = owner.serve(*listen)
        ways = {each.name: way(each.name) for each in (left, right)}
        for each in (left, right):
            each("join", owner.invite(each.name, *GRANTS, address=ways[each.name].address))
        yield Mesh(tmp_path, owner, left, right, ways)


def jobs(count: int) -> list[dict[str, Any]]:
    """Half of them open, in turns."""
    pair = ({"kind": ONE, "payload": {"ms": 30}}, {"kind": OPEN, "payload": {"ms": 2}, "open": True})
    return [pair[number % 2] for number in range(count)]


@pytest.mark.slow
@pytest.mark.req("LW-09", "LW-32", "LW-37", "LW-39", "LW-40")
@pytest.mark.parametrize("total", [200, pytest.param(2_000, marks=pytest.mark.soak)])
def test_cut_heal_and_cut_again(mesh: Mesh, total: int, record_property: Callable[..., None]):
    began = time.monotonic()
    owner, left, right = mesh.all
    ids = owner.submit_all(jobs(total * 4 // 10))
    # The owner has less room than the others, or it would do everything that it decides on by itself.
    workers = {place.name: place.work("--concurrency", 1 if place is owner else 4) for place in mesh.all}
    until(lambda: owner.done() >= total // 10, "work to be under way")

    # One machine is cut off, and everybody gets more to do.
    mesh.ways["left"].cut(silent=True)
    ran, done = mesh.runs(OPEN, left), owner.done()
    alone = left.submit_all(jobs(total // 10))
    ids += alone + right.submit_all(jobs(total // 10)) + owner.submit_all(jobs(total // 10))
    until(lambda: mesh.runs(OPEN, left) >= ran + total // 40, "open jobs to be done by the one that is cut off")
    until(lambda: owner.done() >= done + total // 40, "the others to go on")
    unasked = {job for job, each in zip(alone, jobs(len(alone)), strict=True) if each["kind"] == ONE}
    assert not unasked & {line["job"] for line in journal(mesh.root)}, "nobody could have decided on these"
    mesh.ways["left"].heal()

    # A third of the way, a worker dies in the middle of runs, which are lost with it.
    until(lambda: owner.done() >= total // 3, "a third of the work")
    owner("route", HOLD, "right")
    held = owner.submit_all([{"kind": HOLD, "payload": {"gate": "gate"}}] * 2)
    until(lambda: set(held) <= {line["job"] for line in journal(mesh.root)}, "runs that will be lost")
    died = time.monotonic()
    workers["right"].kill()
    killed = workers["right"].pid
    (mesh.root / "gate").touch()
    workers["right"] = right.work("--concurrency", 4)

    # Both are cut off, one of them with all its connections broken.
    mesh.ways["left"].cut(silent=True)
    mesh.ways["right"].cut(silent=False)
    done = owner.done()
    for place in mesh.all:
        ids += place.submit_all(jobs(total // 10))
    until(lambda: owner.done() >= done + total // 40, "the owner to go on alone")
    for way in mesh.ways.values():
        way.heal()

    assert len(ids) == len(set(ids)) == total
    ids += held
    until(lambda: all(place.done() == len(ids) for place in mesh.all), "all jobs to be done, everywhere", 150)
    agree(*mesh.all)
    elapsed = time.monotonic() - began
    for place in mesh.all:
        place.stop()
    assert len({place.digest() for place in mesh.all}) == 1

    for place in mesh.all:
        completed = completions(place)
        assert set(completed) == set(ids) and set(completed.values()) == {1}
    assert all(mesh.runs(kind, place) for kind in (ONE, OPEN) for place in mesh.all)
    lost, expired = check_runs(mesh, killed, died)
    assert lost >= len(held)
    late = {reason: count for reason, count in open_completions(owner).items() if reason}
    assert sum(late.values()) > 0, "two did an open job, and one of them was too late"
    for place in mesh.all:
        assert {reason: count for reason, count in open_completions(place).items() if reason} == late
    verify(*mesh.all)
    counts = {place.name: (mesh.runs(ONE, place), mesh.runs(OPEN, place)) for place in mesh.all}
    said = f"{elapsed:.1f} s; runs {counts}; {lost} lost with a process, {expired} after a lease; late completions "
    said += ", ".join(f"{count} × {Reason(reason).name}" for reason, count in late.items())
    record_property("partition", said)
    print(said)


def completions(machine: Machine) -> Counter[str]:
    """How often each job was completed, by what counts on this log: by the arbiter's acceptances where there are any,
    else by the completion itself, as with the coordinator's own. An open job may have been completed by another node
    before the arbiter's acceptance settled it.
    """
    rows = machine.look(lambda session: session.ops_of_variants((number_of(CompleteJob), number_of(AcceptWork))))
    ops = {row.id: (row, decode(row.body).payload) for row in rows}
    accepted: Counter[str] = Counter()
    written: Counter[str] = Counter()
    for row, payload in ops.values():
        if row.reason == 0 and isinstance(payload, CompleteJob):
            written[ulid_text(payload.job_id)] += 1
        elif row.reason == 0 and payload.offer in ops:
            accepted[ulid_text(payload.job_id)] += 1
    return accepted + Counter({job: count for job, count in written.items() if job not in accepted})


def open_completions(machine: Machine) -> Counter[int]:
    """The completions of open jobs, by what became of them."""
    rows = machine.look(lambda session: {job.job.id for job in session.each_job() if job.job.policy.open})
    known = {ulid_text(each) for each in rows}
    return Counter(line.reason for line in machine.ops() if line.type == "CompleteJob" and line.job in known)


class Run(NamedTuple):
    fence: int
    start: float
    end: float | None
    pid: int


def check_runs(mesh: Mesh, killed: int, died: float) -> tuple[int, int]:
    """No fence was given twice, no two runs of a job overlap, and none was run again but for a reason. Gives how many
    were: because they were lost with the process that died, and because a lease had run out.
    """
    lines = [line for line in journal(mesh.root) if line["kind"] != OPEN]
    ends = {(line["job"], line["fence"], line["pid"]): line["at"] for line in lines if line["event"] == "end"}
    runs: dict[str, list[Run]] = {}
    for line in lines:
        if line["event"] == "start":
            key = line["job"], line["fence"], line["pid"]
            runs.setdefault(line["job"], []).append(Run(line["fence"], line["at"], ends.get(key), line["pid"]))
    expired = {line.job for line in mesh.owner.ops() if line.type == "ExpireWork" and line.reason == 0}
    lost = after = 0
    for job, those in runs.items():
        assert len({run.fence for run in those}) == len(those), f"a fence of {job} was given twice: {those}"
        for earlier, later in pairwise(sorted(those)):
            over = died if earlier.pid == killed else earlier.end
            assert over is not None and later.start >= over, f"{job} was run twice at once: {those}"
            assert earlier.pid == killed or job in expired, f"{job} was run twice for no reason: {those}"
            lost, after = lost + (earlier.pid == killed), after + (earlier.pid != killed)
    return lost, after


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Machine, Machine, Cable]]:
    """The owner's machine, another one that may do everything with jobs, and the way between them."""
    with machines(tmp_path, "owner", "gpu") as [owner, gpu], proxies() as proxy:
        owner("init")
        way = proxy(owner.serve())
        gpu("join", owner.invite("gpu", "job:all", address=way.address))
        gpu("sync")
        yield owner, gpu, way


def starts(root: Path, job: str) -> list[dict[str, Any]]:
    return [line for line in journal(root) if line["job"] == job and line["event"] == "start"]


def ends(root: Path, job: str) -> list[dict[str, Any]]:
    return [line for line in journal(root) if line["job"] == job and line["event"] == "end"]


@pytest.mark.req("LW-07", "LW-37", "LW-39")
def test_a_holder_that_is_cut_off_stops_in_time(pair: tuple[Machine, Machine, Cable], tmp_path: Path):
    """It holds on to what it has until the deadline and stops then, before anybody else begins; what it could not ask
    for it does not start. Its late word is refused.
    """
    owner, gpu, way = pair
    worker = gpu.work()
    held = owner.submit("hold.one", '{"gate": "gate"}', "--lease", "3s")
    until(lambda: starts(tmp_path, held), "the job to run on the other machine")
    way.cut(silent=True)
    unasked = gpu.submit("acme.one")
    owner.work()
    worker.says(f"job {held}")
    until(lambda: ends(tmp_path, held), "the holder to stop")
    until(lambda: starts(tmp_path, held)[-1]["machine"] == "owner", "a second run")
    (tmp_path / "gate").touch()
    until(lambda: owner.is_done(held), "the second run's end")
    for earlier, later in pairwise(starts(tmp_path, held)):
        [end] = [line["at"] for line in ends(tmp_path, held) if line["fence"] == earlier["fence"]]
        assert later["fence"] > earlier["fence"] and later["at"] >= end
    assert unasked not in {line["job"] for line in journal(tmp_path)}
    way.heal()
    until(lambda: gpu.is_done(held) and gpu.is_done(unasked) and owner.is_done(unasked), "everybody to know")
    agree(owner, gpu)
    assert owner.runtime.show(held)["result"] == gpu.runtime.show(held)["result"] == "owner"
    assert owner.ops_of(held).count("ExpireWork") >= 1
    owner.stop()
    gpu.stop()
    verify(owner, gpu)


@pytest.mark.req("LW-09", "LW-37", "LW-39")
def test_a_displaced_holder_of_an_open_job_is_stopped_and_its_end_refused(
    pair: tuple[Machine, Machine, Cable], tmp_path: Path
):
    """Both sides of a cut claim the same two open jobs. The first claim stands; the other's handler is stopped while it
    runs, and if it has ended, its completion does not count.
    """
    owner, gpu, way = pair
    done, held = owner.submit_all(
        [
            {"kind": "hold.open", "payload": {"gate": "first"}, "open": True},
            {"kind": "hold.open", "payload": {"gate": "second"}, "open": True},
        ]
    )
    gpu("sync")
    way.cut(silent=True)
    owner.work()
    until(lambda: len(journal(tmp_path)) == 2, "both jobs to run here")
    displaced = gpu.work()
    until(lambda: len(journal(tmp_path)) == 4, "both jobs to run there too")
    (tmp_path / "first").touch()
    until(lambda: len(ends(tmp_path, done)) == 2, "both ends of the first job")
    until(lambda: owner.is_done(done) and gpu.is_done(done), "each to believe in its own")
    way.heal()
    displaced.says(f"job {held}")
    [stopped] = until(lambda: ends(tmp_path, held), "the displaced handler to end")
    assert stopped["machine"] == "gpu" and stopped["cancelled"]
    (tmp_path / "second").touch()
    until(lambda: owner.is_done(held) and gpu.is_done(held), "the second job")
    agree(owner, gpu)
    for place in (owner, gpu):
        assert [place.runtime.show(job)["result"] for job in (done, held)] == ["owner", "owner"]
        by = Counter((line.author, line.reason != 0) for line in place.ops() if line.type == "CompleteJob")
        assert by == {(owner.node, False): 2, (gpu.node, True): 1}
    owner.stop()
    gpu.stop()
    verify(owner, gpu)
