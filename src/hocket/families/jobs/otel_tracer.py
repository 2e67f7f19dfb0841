"""The tracer over OpenTelemetry's SDK. A thread of the SDK sends spans by OTLP over HTTP, and drops what it cannot
send. OpenTelemetry's own variables (OTEL_EXPORTER_OTLP_HEADERS and others) hold, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hocket.families.jobs.rules import Job
from hocket.kernel import __version__
from hocket.kernel.ids import node_text, ulid_text

# How long one export may take, and how often spans are sent.
EXPORT_S = 2
EVERY_MS = 1_000
_HEADER = "traceparent"
_MS = 1_000_000

_propagator = TraceContextTextMapPropagator()


class OtelTracer:
    def __init__(self, endpoint: str) -> None:
        resource = Resource.create({"service.name": "hocket", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=EVERY_MS))
        self._tracer = self._provider.get_tracer("hocket", __version__)

    def current(self) -> str | None:
        return _written(contexts.get_current())

    def submit(self, kind: str, parent: str | None) -> "OtelSubmit":
        attributes = {"hocket.kind": kind}
        span = self._tracer.start_span(f"submit {kind}", _read(parent), SpanKind.PRODUCER, attributes)
        return OtelSubmit(span)

    def run(self, job: Job, node: int) -> "OtelRun":
        parent = _read(job.policy.trace)
        attributes: dict[str, str | int] = {
            "hocket.job": ulid_text(job.id),
            "hocket.kind": job.kind,
            "hocket.fence": job.fence,
            "hocket.node": node_text(node),
        }
        ready_ms = max(job.scheduled.wall, job.ready_at)
        if job.fence == 1 and ready_ms < job.last.wall:
            wait = self._tracer.start_span(
                f"wait {job.kind}", parent, SpanKind.INTERNAL, attributes, start_time=ready_ms * _MS
            )
            wait.end(job.last.wall * _MS)
        return OtelRun(self._tracer.start_span(f"run {job.kind}", parent, SpanKind.CONSUMER, attributes))

    def flush(self) -> None:
        self._provider.force_flush(EXPORT_S * 1000)


class OtelSubmit:
    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def context(self) -> str:
        return _written(trace.set_span_in_context(self._span)) or ""

    def end(self, job_id: str) -> None:
        self._span.set_attribute("hocket.job", job_id)
        self._span.end()


class OtelRun:
    def __init__(self, span: Span) -> None:
        self._span = span

    @contextmanager
    def entered(self) -> Iterator[None]:
        token = contexts.attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            contexts.detach(token)

    def end(self, outcome: str, error: str | None) -> None:
        self._span.set_attribute("hocket.outcome", outcome)
        if error is not None:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


def _read(parent: str | None) -> Context | None:
    """None goes on with the context of this thread or task."""
    return None if parent is None else _propagator.extract({_HEADER: parent}, Context())


def _written(context: Context) -> str | None:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get(_HEADER)
