"""The module that taskiq's workers import."""

from __future__ import annotations

import os

from taskiq import TaskiqEvents, TaskiqMessage, TaskiqMiddleware, TaskiqResult, TaskiqState

from bench import meter
from bench.peers.taskiq import connect


class Counting(TaskiqMiddleware):
    def post_save(self, message: TaskiqMessage, result: TaskiqResult[object]) -> None:
        meter.hit()


broker, noop = connect(os.environ["BENCH_NATS"])
broker.add_middlewares(Counting())


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
def begin(state: TaskiqState) -> None:
    meter.wait_for_gate()


@broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)
def end(state: TaskiqState) -> None:
    meter.report()
