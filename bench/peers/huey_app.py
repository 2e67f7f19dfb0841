"""The module that Huey's consumer imports: two tasks, and a queue with durable writes."""

from __future__ import annotations

from huey import SqliteHuey

from bench import meter

huey = SqliteHuey("bench", filename=str(meter.home() / "huey.db"), fsync=True)


@huey.task()
def noop(n: int) -> None:
    meter.hit()


@huey.task()
def stamp(n: int) -> None:
    meter.started(n)


@huey.on_startup()
def gate() -> None:
    meter.wait_for_gate()
