"""Traces of jobs across machines, off unless $HOCKET_TRACES names an OTLP endpoint. A submit begins a trace, or belongs
to that of its program. The context travels in the policy envelope, and each run adds its spans to the trace. Without an
endpoint nothing is loaded and nothing is written.
"""

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Protocol

from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.families.jobs.rules import Job

TRACES = "HOCKET_TRACES"


class SubmitTrace(Protocol):
    """The span of a submit. `context` is its W3C traceparent; it is exported only if it ends."""

    @property
    def context(self) -> str: ...
    def end(self, job_id: str) -> None: ...


class RunTrace(Protocol):
    """The span of a run."""

    def entered(self) -> AbstractContextManager[None]:
        """Spans that are made inside the block in this thread or task belong to the run."""

    def end(self, outcome: str, error: str | None) -> None: ...


class Tracer(Protocol):
    def current(self) -> str | None:
        """The context of this thread or task, if it has one."""

    def submit(self, kind: str, parent: str | None) -> SubmitTrace: ...
    def run(self, job: "Job", node: int) -> RunTrace:
        """Also adds a span for the time from the submit until now, in which the job waited."""

    def flush(self) -> None: ...


@cache
def tracer() -> Tracer | None:
    """The tracer of this process; None if traces are off."""
    endpoint = os.environ.get(TRACES, "").strip()
    if not endpoint:
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise Usage(f"bad {TRACES} {endpoint!r}; it is the address of an OTLP endpoint, like http://localhost:4318")
    try:
        from hocket.families.jobs.otel_tracer import OtelTracer
    except ImportError as error:
        raise Usage(f"{TRACES} is set, and traces need {error.name}; install hocket[traces]") from None
    return OtelTracer(endpoint)


def current_trace() -> str | None:
    found = tracer()
    return None if found is None else found.current()


def flush_traces() -> None:
    """Sends what is not sent yet, for a short time at most."""
    if (found := tracer()) is not None:
        found.flush()
