"""Two programs of different versions in one mesh, as real processes: whichever of them is the coordinator, jobs go on,
what only the newer one knows is kept and passed on by the older one without effect, and operators are told.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.machines import Machine, machines, until, verify
from tests.versions import programs

WRITE = """
from hocket.node.runtime import Runtime
from hocket.kernel.vocabulary import Note
with Runtime.open() as runtime:
    print(runtime.log.run(lambda tx: tx.author(Note("written on the moon"))).id.hex())
"""
# A further delegation, of which a caveat and a resource are new.
DELEGATE = """
from hocket.node.runtime import Runtime
from hocket.kernel.ids import content_hash
from hocket.kernel.ucan import Capability, issue
from hocket.kernel.vocabulary import DelegateUcan
grants = [
    Capability("Job", "Claim", {{"kind_prefix": ["light."], "gravity": True}}),
    Capability("Job", "Complete", {{"kind_prefix": ["acme."]}}),
    Capability("Moon", "Write", {{}}),
]
with Runtime.open() as runtime, runtime.read() as session:
    public, _ = session.nodes()[int("{node}", 16).to_bytes(8, "big")]
    token = issue(runtime.home.user_key(), public, grants, 0, None)
    op = runtime.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
    print(op.id.hex())
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.make(tmp_path_factory.mktemp("newer"), programs.NEWER)


@pytest.fixture(scope="module")
def before_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return programs.make(tmp_path_factory.mktemp("older"), programs.OLDER)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "owner", "left", "right") as made:
        yield made


def join(owner: Machine, *others: Machine) -> str:
    """Gives the owner's address."""
    owner("init")
    address = owner.serve()
    for each in others:
        each("join", owner.invite(each.name, "all", address=address))
    return address


def log(machine: Machine, type: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = machine("log", "--limit", "1000", "--json").json
    return [line for line in lines if line["type"] == type]


def status(machine: Machine) -> dict[str, Any]:
    shown: dict[str, Any] = machine("status", "--json").json
    return shown


def runs_jobs(by: Machine, asked: Machine, kind: str) -> None:
    """Jobs that one of them submits the other one does."""
    job_ids = asked.submit_all([{"kind": kind, "payload": {"n": n}} for n in range(5)])
    for job_id in job_ids:
        until(lambda job_id=job_id: asked.show(job_id).get("outcome") == "succeeded", f"{by.name} to do {kind}")  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.req("LW-34", "LW-30")
@pytest.mark.timeout(300)
def test_the_coordinator_is_newer(three: list[Machine], program: Path) -> None:
    owner, left, right = three
    programs.install(owner, program)
    join(owner, left, right)
    left.work()
    runs_jobs(left, owner, "acme.before")
    programs.script(owner, WRITE)
    programs.script(owner, DELEGATE.format(node=node(left)))
    runs_jobs(left, owner, "acme.after")
    right("sync")
    for older in (left, right):
        until(lambda older=older: log(older, str(programs.NOTE)), f"the note to reach {older.name}")  # type: ignore[misc]
        (kept,) = log(older, str(programs.NOTE))
        assert not kept["counts"] and "unknown" in kept["reason"]
        shown = status(older)
        assert shown["unknown_ops"] == 1
        assert shown["unknown_grants"] == ["caveat gravity", "resource Moon"]
        assert f"payload {programs.NOTE}" in shown["programs"][node(owner)]
        assert "upgrade this node" in older("status").out
    assert log(owner, "Note")[0]["counts"]
    told = status(owner)["programs"]
    lacks = f"does not know caveat gravity, payload {programs.NOTE} (Note), resource Moon"
    assert all(lacks in told[node(older)] for older in (left, right))
    # What the new delegation says in words that the older program knows is in force there.
    assert left("may", left.name, "complete", "acme.x", code=None).code == 0
    verify(owner, left, right)


@pytest.mark.req("LW-34", "LW-30")
@pytest.mark.timeout(300)
def test_the_coordinator_is_older(three: list[Machine], program: Path) -> None:
    owner, left, right = three
    join(owner, left, right)
    for each in (left, right):
        programs.install(each, program)
    left.work()
    right.serve()
    runs_jobs(left, owner, "acme.before")
    programs.script(left, WRITE)
    runs_jobs(left, right, "acme.after")
    # The older coordinator passes on what it cannot read, and so what follows it.
    until(lambda: log(right, "Note"), "the note to reach the other newer node")
    assert log(right, "Note")[0]["counts"]
    (kept,) = log(owner, str(programs.NOTE))
    assert not kept["counts"] and status(owner)["unknown_ops"] == 1
    verify(owner, left, right)
    # After an upgrade the coordinator reads what it has kept.
    owner.stop()
    programs.install(owner, program)
    assert log(owner, "Note")[0]["counts"] and status(owner)["unknown_ops"] == 0
    verify(owner)


@pytest.mark.slow
@pytest.mark.req("LW-34", "LW-46")
@pytest.mark.touches("LW-51")
@pytest.mark.timeout(300)
def test_a_mesh_of_an_older_program_has_no_bundles_until_all_agree(three: list[Machine], before_bundles: Path) -> None:
    owner, left, right = three
    own, path = owner.program, owner.environment["PYTHONPATH"]
    for older in (owner, right):
        programs.install(older, before_bundles)
    address = join(owner, left, right)
    left.work()
    runs_jobs(left, owner, "acme.before")
    left.submit_all([{"kind": "acme.before", "payload": {"n": n}} for n in range(5)])
    assert bundles(left) == bundles(owner) == 0 and status(owner)["unknown_ops"] == 0
    # Each says what the other lacks.
    lacks = f"payload {programs.BUNDLE} (Bundle)"
    assert f"does not know {lacks}" in status(left)["programs"][node(owner)]
    assert f"also knows payload {programs.BUNDLE}" in status(owner)["programs"][node(left)]
    # The owner upgrades, and two of them agree on bundles. The third is told that the rules are others.
    owner.stop()
    left.stop()
    owner.program, owner.environment["PYTHONPATH"] = own, path
    for each in (owner, left):
        each("rules", "set", "--bundles")
    owner.serve("--port", address.rpartition(":")[2])
    left.work()
    runs_jobs(left, owner, "acme.after")
    assert bundles(owner) > 0
    told = right("sync", code=None)
    assert told.code == 1 and "the mesh rules here are" in told.out
    verify(owner, left)


@pytest.mark.req("LW-30", "LW-46")
@pytest.mark.timeout(300)
def test_an_older_program_cannot_join_a_mesh_with_bundles_and_is_told(
    three: list[Machine], before_bundles: Path
) -> None:
    owner, older, _ = three
    programs.install(older, before_bundles)
    refused = older("join", owner.invite(older.name, "all", address=join(owner)), code=None)
    assert refused.code != 0 and "rules" in refused.err


@pytest.mark.slow
@pytest.mark.req("LW-34", "LW-41")
@pytest.mark.timeout(300)
def test_an_older_worker_does_not_run_a_postponed_job_before_its_time(
    three: list[Machine], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It does not know the new start and asks for the job at once; the coordinator refuses, and the older node passes
    on what it does not know.
    """
    owner, older, client = three
    programs.install(older, programs.make(tmp_path_factory.mktemp("older"), programs.BEFORE_POSTPONING))
    join(owner, older, client)
    job = client.submit("acme.later", "{}")
    client("postpone", job, "--for", "1h", "--reason", "no disk")
    shown = client.show(job)
    assert (shown["stage"], shown["wait_reason"]) == ("delayed", "time")
    older.work()
    runs_jobs(older, owner, "acme.now")
    assert owner.show(job)["fence"] == 0 and owner.show(job)["stage"] == "delayed"
    until(lambda: status(older)["unknown_ops"] == 1, "the older node to keep what it does not know")
    client("postpone", job, "--now")
    until(lambda: client.show(job).get("outcome") == "succeeded", "the job to run once it may")
    verify(owner, older, client)


@pytest.mark.req("VX-02")
@pytest.mark.parametrize("command", ["jobs", "submit", "log verify", "log rebuild", "work"])
def test_an_older_program_leaves_a_home_alone_in_which_a_newer_one_has_written(
    three: list[Machine], program: Path, command: str
) -> None:
    """Nothing marks the end of an op that this program does not know and this node has written."""
    machine = three[0]
    older, environment = machine.program, dict(machine.environment)
    programs.install(machine, program)
    machine("init")
    machine.submit("acme.x", "{}")
    programs.script(machine, WRITE)
    machine.program, machine.environment = older, environment
    words = [*command.split(), *(("acme.x", "{}") if command == "submit" else ())]
    refused = machine(*words, code=5)
    assert "a newer version of Hocket has written ops" in refused.err and "upgrade" in refused.err
    assert "internal error" not in refused.err
    programs.install(machine, program)
    assert len(machine("jobs", "--json").json) == 1
    verify(machine)


def bundles(machine: Machine) -> int:
    """How many entries of its log are bundles."""
    entries = machine.look(lambda session: session.entries_after(0, 10_000))
    return sum(each.variant == programs.BUNDLE for each in entries)


def node(machine: Machine) -> str:
    return str(status(machine)["node"])
