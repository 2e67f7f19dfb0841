"""`hocket run` on another node: real nodes, real processes, a command that says where it runs."""

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Program, until
from tests.mesh.test_commands import program as program
from tests.mesh.test_commands import serving

# The directory of the command is below the home of the node that runs it.
WHERE = ("--", "sh", "-c", "pwd; cat in/a; echo aside >&2; exit 3")


def joined(program: Callable[[str], Program], *names: str) -> tuple[Program, ...]:
    """The first node serves; the others are workers that allow `sh`, and are known to it."""
    first = program("first")
    first("keys", "reissue", "--name", "first", code=0)
    address, _ = serving(first)
    others = tuple(program(name) for name in names)
    for other, name in zip(others, names, strict=True):
        other("peers", "add", address, code=0)
        other("keys", "reissue", "--name", name, code=0)
        other("sync", code=0)
        other.start("work", "--allow", "sh **")
    until(lambda: len(first("nodes", "--json", code=0).json) == 1 + len(names), "the nodes to be known")
    return (first, *others)


def test_a_command_runs_on_the_node_that_is_named(program: Callable[[str], Program], tmp_path: Path) -> None:
    first, _, third = joined(program, "second", "third")
    # A worker of this node is running too; it leaves the command alone.
    first.start("work")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("input\n")
    ended = first("run", "--on", "third", "--input", "in", *WHERE, code=3)
    where, given = ended.out.splitlines()
    assert where.startswith(str(third.home)) and given == "input"
    # On a slow machine it also says what it waits for.
    assert [line for line in ended.err.splitlines() if not line.startswith("hocket: waiting")] == ["aside"]
    told = first("run", "--on", "third", "--input", "in", "--json", *WHERE, code=3).json
    assert told["stdout"].startswith(str(third.home)) and told["stderr"] == "aside\n"
    shown = first.show(told["job_id"])
    assert shown["claimer"] == third("whoami", "--json", code=0).json["node"] and shown["fence"] == 1


def test_a_node_that_may_not_run_commands_is_refused_at_once(program: Callable[[str], Program]) -> None:
    first, second = joined(program, "second")
    first("route", "hocket.run", "here", code=0)
    refused = first("run", "--on", "second", "--", "true", code=4).sentence
    assert refused == "second may not run commands: hocket.run is routed to first"
    phone = Program(first.home.parent / "phone")
    first("route", "hocket.run", "--clear", code=0)
    token = first("invite", "phone", "--may", "job:schedule", code=0).out.splitlines()[0]
    phone("join", token, code=0)
    refused = first("run", "--on", "phone", "--", "true", code=4).sentence
    assert refused == "phone may not run commands: no delegation lets it claim hocket.run"
    assert second("jobs", code=0).out == ""
