"""Programs get typed events while a node works, people get sentences."""

from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any, get_type_hints

import msgspec
import pytest

import hocket
import hocket.events
import hocket.testing
from hocket.events import Event, sentences
from hocket.events.jobs import JobClaimed, JobHandedBack, LeaseLost, RunFailed, RunFinished, RunStarted
from hocket.events.nodes import PeerChanged
from hocket.extensions.tempo.messages import BarReport

REPORT = SimpleNamespace(window="w", tasks=1, overruns=2, broken_promises=0)
VALUES: dict[object, Any] = {
    **{int: 3, str: "text", float: 1.5, bool: True, tuple[str, ...]: ("a.b", "a.c"), BarReport: REPORT},
    **{str | None: "text", float | None: 1.5},
}


@hocket.job("events.add")
def add(ctx: hocket.Context, a: int, b: int) -> int:
    return a + b


@hocket.job("events.broken")
def broken(ctx: hocket.Context) -> None:
    raise ValueError("no such frame")


def event_types() -> list[type[Event]]:
    modules = [import_module(f"hocket.events.{each.name}") for each in iter_modules(hocket.events.__path__)]
    types = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return [each for each in types if issubclass(each, Event) and each is not Event and each.__name__[0] != "_"]


def example(type_: type[Event]) -> Event:
    hints = get_type_hints(type_, localns={"BarReport": BarReport})
    return type_(*[VALUES[hints[name]] for name in type_.__struct_fields__])


def untimed(event: Event) -> Event:
    match event:
        case JobClaimed():
            return msgspec.structs.replace(event, waited_s=None)
        case RunFinished() | RunFailed():
            return msgspec.structs.replace(event, run_s=0.0)
    return event


@pytest.mark.touches("LW-41")
def test_a_worker_tells_the_course_of_each_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    hocket.init(home)
    told: list[Event] = []
    notices: list[str] = []
    with hocket.open(home) as node:
        good, bad = node.submit(add, a=1, b=2).job_id, node.submit(broken).job_id
        node.work([add, broken], until_idle=True, events=told.append, notice=notices.append)
    assert [untimed(each) for each in told if getattr(each, "job_id", None) == good] == [
        JobClaimed(good, "events.add", 1),
        RunStarted(good, "events.add", 1),
        RunFinished(good, "events.add", 1),
    ]
    (ran_s,) = [each.run_s for each in told if isinstance(each, RunFinished)]
    (failed_s,) = [each.run_s for each in told if isinstance(each, RunFailed)]
    waited = [each.waited_s for each in told if isinstance(each, JobClaimed)]
    assert ran_s > 0 and failed_s > 0 and len(waited) == 2 and all(each is not None and each >= 0 for each in waited)
    assert [untimed(each) for each in told if getattr(each, "job_id", None) == bad] == [
        JobClaimed(bad, "events.broken", 1),
        RunStarted(bad, "events.broken", 1),
        RunFailed(bad, "events.broken", 1, "ValueError: no such frame"),
    ]
    assert notices == [], "a job that fails is on the log; nobody has to be told"


def test_people_are_told_what_is_not_routine() -> None:
    told: list[Event] = []
    notices: list[str] = []
    emit = sentences(notices.append, also=told.append)
    emit(JobHandedBack("J", "a.kind", 2))
    emit(LeaseLost("J", "the lease ran out here"))
    assert notices == ["job J: handler stopped: the lease ran out here"]
    assert [type(each) for each in told] == [JobHandedBack, LeaseLost]


def test_an_event_is_json_with_its_type() -> None:
    event = PeerChanged("http://a:1", "unreachable", "")
    assert str(event) == "peer http://a:1 is unreachable"
    encoded = msgspec.json.encode(event)
    assert msgspec.json.decode(encoded)["type"] == "PeerChanged"
    assert msgspec.json.decode(encoded, type=PeerChanged) == event


@pytest.mark.parametrize("type_", event_types(), ids=lambda type_: type_.__name__)
def test_every_event_has_a_sentence_of_its_own(type_: type[Event]) -> None:
    """Type checkers do not read the fields that a sentence names."""
    assert ("sentence" in vars(type_)) != ("__str__" in vars(type_))
    assert str(example(type_)).strip()


@pytest.mark.parametrize("type_", event_types(), ids=lambda type_: type_.__name__)
def test_no_event_has_a_higher_level_than_its_type(type_: type[Event]) -> None:
    """A listener that asks for the level of a type misses no event."""
    assert example(type_).own_level <= type_.level
