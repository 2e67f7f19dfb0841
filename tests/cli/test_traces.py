"""Traces: real processes on two nodes, and a real receiver of OTLP over HTTP."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.conftest import TASKS, Program, until
from tests.mesh.test_commands import program as program
from tests.mesh.test_commands import serving

NESTED = """
import hocket

@hocket.job("test.outer")
def outer(ctx):
    return ctx.node.submit("test.echo", n=1).job_id
"""


class Receiver:
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {each.key: each.value.string_value for each in resource.resource.attributes}
                    assert names["service.name"] == "hocket"
                    receiver.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def of(self, job_id: str) -> dict[str, Any]:
        return {each.name: each for each in self.spans if attributes(each).get("hocket.job") == job_id}


def attributes(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv("HOCKET_TRACES", made.address)
    yield made
    made.close()


def test_a_trace_goes_from_the_submit_to_the_end_across_machines(
    program: Callable[[str], Program], receiver: Receiver, tmp_path: Path
):
    first, second = program("first"), program("second")
    address, _ = serving(first)
    second("peers", "add", address, code=0)
    second("sync", code=0)
    (tmp_path / "tasks.py").write_text(TASKS)
    good, bad = first.submit("test.echo", '{"n": 1}'), first.submit("test.fail")
    worker = second.start("work", str(tmp_path / "tasks.py"))
    until(lambda: receiver.of(good).get("run test.echo") and receiver.of(bad).get("run test.fail"), "the spans")
    worker.terminate()
    worker.wait(30)
    for job, kind, outcome in ((good, "test.echo", "succeeded"), (bad, "test.fail", "failed")):
        spans = receiver.of(job)
        submit, wait, run = (spans[f"{word} {kind}"] for word in ("submit", "wait", "run"))
        assert submit.trace_id == wait.trace_id == run.trace_id and submit.parent_span_id == b""
        assert wait.parent_span_id == run.parent_span_id == submit.span_id
        assert attributes(run)["hocket.node"] == second("whoami", "--json", code=0).json["node"]
        assert attributes(run)["hocket.outcome"] == outcome
        assert (run.status.code == 2) == (outcome == "failed") and run.end_time_unix_nano > run.start_time_unix_nano
        context = first.show(job)["options"]["trace"]
        assert context.startswith(f"00-{submit.trace_id.hex()}-{submit.span_id.hex()}-")
    assert receiver.of(bad)["run test.fail"].status.message == "ValueError: it broke"
    assert receiver.of(good)["submit test.echo"].trace_id != receiver.of(bad)["submit test.fail"].trace_id


def test_a_job_that_a_handler_submits_belongs_to_its_trace(hocket: Program, receiver: Receiver, tmp_path: Path):
    (tmp_path / "nested.py").write_text(NESTED)
    outer = hocket.submit("test.outer")
    hocket("work", str(tmp_path / "nested.py"), "tasks.py", "--until-idle", code=0)
    inner = hocket.show(outer)["result"]
    until(lambda: "run test.echo" in receiver.of(inner), "the spans")
    run, submit = receiver.of(outer)["run test.outer"], receiver.of(inner)["submit test.echo"]
    assert submit.trace_id == run.trace_id and submit.parent_span_id == run.span_id
    assert receiver.of(inner)["run test.echo"].parent_span_id == submit.span_id


def test_a_receiver_that_is_away_costs_a_command_little_and_changes_nothing(
    hocket: Program, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOCKET_TRACES", "http://127.0.0.1:9")
    job = hocket.submit("test.echo", '{"n": 1}')
    ended = hocket("work", "tasks.py", "--until-idle", code=0)
    assert hocket.show(job)["outcome"] == "succeeded" and "opentelemetry" not in ended.err
    monkeypatch.setenv("HOCKET_TRACES", "localhost:4318")
    assert hocket("submit", "test.echo", code=2).sentence.startswith("bad HOCKET_TRACES 'localhost:4318'")


def test_without_an_endpoint_nothing_is_loaded_and_no_context_is_written(hocket: Program):
    check = (
        "import sys, hocket\n"
        "with hocket.open(sys.argv[1]) as node:\n"
        "    handle = node.submit('test.echo', n=1)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')], handle.job_id)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HOCKET_TRACES"}
    words = [sys.executable, "-c", check, str(hocket.home)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    loaded, job = done.stdout.split()
    assert loaded == "[]" and "trace" not in hocket.show(job)["options"]
