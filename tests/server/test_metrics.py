"""Metrics, health and readiness, asked of real processes over real sockets."""

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from hocket.api import Service
from hocket.api.figures import figures
from hocket.bus.messages import MemoryMessages, MemoryServer
from hocket.events import Event
from hocket.events.jobs import (
    JobClaimed,
    JobHandedBack,
    JobPostponed,
    JobRescued,
    LeaseLost,
    ResultDiscarded,
    RetryPlanned,
    RunFailed,
    RunFinished,
    RunStarted,
)
from hocket.events.nodes import OpRefused
from hocket.extensions.tempo import metrics as tempo_metrics
from hocket.kernel.ids import node_text
from hocket.mesh.wire import Request
from hocket.node.node import Node
from hocket.node.runtime import Runtime
from hocket.server.monitoring import metrics
from hocket.server.monitoring.collector import Collector
from hocket.server.monitoring.event_counts import LABEL_VALUES_MAX, OTHER, EventCounts
from hocket.server.monitoring.metrics import MetricType
from hocket.server.monitoring.monitor import Monitor, names_this_machine
from hocket.server.monitoring.monitor_server import parse_address
from tests.api.test_grid import claim, tell
from tests.bus.test_signed import ALICE, BOB, MALLORY, SUBJECT, Clock, all_of, member
from tests.cli.fork_server import start_command
from tests.mesh.world import Place, run
from tests.server.served import PATIENCE_S, ROOT, Served, environment, serving
from tests.server.served import hocket as program
from tests.waiting import wait_for as until
from tests.work.test_claim_order import FRIEND, KIND, Fleet, fleet

assert fleet

METRICS_PAGE = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "docs" / "grafana-dashboard.json"

TASKS = """
import time
import hocket

@hocket.job("test.good")
def good(ctx): return 1

@hocket.job("test.bad", retries=0)
def bad(ctx): raise ValueError("it broke")

@hocket.job("test.slow")
def slow(ctx):
    while not ctx.cancelled: time.sleep(0.01)
"""


class Samples:
    def __init__(self, text: str) -> None:
        self.families = {each.name: each for each in text_string_to_metric_families(text)}
        self.all = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels; None if there is none."""
        found = [s.value for s in self.all if s.name == name and labels.items() <= s.labels.items()]
        return sum(found) if found else None


def samples(served: Served) -> Samples:
    answer = served.ask("GET", "/metrics")
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    return Samples(answer.body.decode())


@contextmanager
def working(home: Path, *options: str) -> Iterator[tuple[Served, "subprocess.Popen[str]"]]:
    """Runs `hocket work --metrics` until the block ends."""
    words = ["--home", str(home), "work", "--metrics", "0", "--json", *options]
    process = start_command(words, environment({}), ROOT)
    assert process.stderr is not None
    try:
        lines = map(json.loads, iter(process.stderr.readline, ""))
        yield Served(home, next(each["address"] for each in lines if each["type"] == "MetricsServed")), process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.touches("BB-17")
def test_a_server_shows_the_figures_of_its_node(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Runtime.init(home).close()
    for kind in ("acme.a", "acme.a", "acme.b"):
        assert program(home, "submit", kind, "{}").returncode == 0
    with serving(home) as served:
        shown = samples(served)
        assert shown.value("hocket_jobs", kind="acme.a", state="ready") == 2
        assert shown.value("hocket_jobs", kind="acme.b", state="ready") == 1
        assert shown.value("hocket_jobs", kind="acme.b", state="failed") == 0
        assert shown.value("hocket_store_readable") == 1 and shown.value("hocket_outbox_ops") == 0
        assert served.ask("GET", "/nowhere").status == 404
        assert served.ask("POST", "/metrics", body={}).status == 405
        refused = {"name": "hocket_requests_refused_total", "reason": "an unknown path"}
        until(lambda: samples(served).value(**refused) == 1)
        assert served.ask("GET", "/readyz").json == {"ready": True, "reasons": []}
        assert served.ask("GET", "/healthz").status == 200
        head = served.ask("HEAD", "/readyz")
        assert (head.status, head.body) == (200, b"")


@pytest.mark.touches("BB-17")
def test_a_client_chooses_the_format(served: Served) -> None:
    accept = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
    answer = served.ask("GET", "/metrics", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "hocket_jobs" in {each.name for each in openmetrics_families(answer.body.decode())}
    for accept in ("application/openmetrics-text; version=x", "text/plain; version=1.x.", ";=,;", "\xff"):
        answer = served.ask("GET", "/metrics", headers={"Accept": accept})
        assert answer.status == 200 and b"hocket_log_ops" in answer.body


def test_another_machine_needs_a_token_for_metrics_and_none_for_probes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Runtime.init(home).close()
    made = {
        name: json.loads(program(home, "token", "create", name, "--may", may, "--json").stdout)["token"]
        for name, may in (("reader", "mesh:read"), ("locker", "lock:acquire"))
    }
    with serving(home, "--trust-proxy", "127.0.0.1") as served:
        elsewhere = {"X-Forwarded-For": "203.0.113.9"}
        assert served.ask("GET", "/metrics", headers=elsewhere).status == 401
        assert served.ask("GET", "/metrics", made["locker"], headers=elsewhere).status == 403
        assert served.ask("GET", "/metrics", made["reader"], headers=elsewhere).status == 200
        assert served.ask("GET", "/metrics", headers={"X-Forwarded-For": "127.0.0.1"}).status == 200
        # A proxy that names no caller stands for anybody.
        assert served.ask("GET", "/metrics").status == 401
        assert served.ask("GET", "/readyz", headers=elsewhere).status == 200


def test_a_web_page_that_points_its_name_at_this_machine_reads_no_metrics(tmp_path: Path) -> None:
    home, tasks = tmp_path / "home", tmp_path / "tasks.py"
    Runtime.init(home).close()
    tasks.write_text(TASKS)
    made = json.loads(program(home, "token", "create", "reader", "--may", "mesh:read", "--json").stdout)["token"]
    page = {"Host": "page.attacker.example:9464"}
    with serving(home) as served:
        refused = served.ask("GET", "/metrics", headers=page)
        assert refused.status == 401 and b"hocket_jobs" not in refused.body
        assert served.ask("GET", "/metrics", made, headers=page).status == 200
        assert served.ask("GET", "/metrics", headers={"Host": "localhost:9464"}).status == 200
        assert served.ask("GET", "/readyz", headers=page).status == 200
    with working(home, str(tasks)) as (served, _):
        refused = served.ask("GET", "/metrics", headers=page)
        assert refused.status == 403 and b"--metrics NAME:PORT" in refused.body
        assert served.ask("GET", "/metrics").status == 200
        assert served.ask("GET", "/readyz", headers=page).status != 403


@pytest.mark.parametrize(
    ("host", "bound", "is_ours"),
    [
        (None, "", True),
        ("127.0.0.1:9464", "", True),
        ("192.0.2.7", "", True),
        ("[::1]:9464", "", True),
        ("localhost", "", True),
        ("metrics.localhost:1", "", True),
        ("gpu-box:9464", "", True),
        (socket.gethostname(), "", True),
        ("GPU.example.org:9464", "gpu.example.org", True),
        ("gpu.example.org:9464", "0.0.0.0", False),
        ("gpu.example.org.", "gpu.example.org", False),
        ("127.0.0.1.attacker.example", "", False),
        ("localhost.attacker.example", "", False),
        ("[::1].attacker.example", "", False),
        ("127.0.0.1@attacker.example", "", False),
        ("", "", False),
    ],
)
def test_a_host_header_that_names_this_machine(host: str | None, bound: str, is_ours: bool) -> None:
    assert names_this_machine(host, bound) is is_ours


@pytest.mark.touches("BB-17")
def test_a_worker_shows_its_runs_and_that_it_is_ready(tmp_path: Path) -> None:
    home, tasks = tmp_path / "home", tmp_path / "tasks.py"
    Runtime.init(home).close()
    tasks.write_text(TASKS)
    for kind in ("test.good", "test.good", "test.bad"):
        assert program(home, "submit", kind, "{}").returncode == 0
    with working(home, str(tasks), "--grace", "60s") as (served, process):
        until(lambda: served.ask("GET", "/readyz").status == 200)
        until(lambda: samples(served).value("hocket_jobs", state="ready") == 0)
        until(lambda: samples(served).value("hocket_runs_total", kind="test.bad", outcome="failed") == 1)
        shown = samples(served)
        assert shown.value("hocket_runs_total", kind="test.good", outcome="succeeded") == 2
        assert shown.value("hocket_runs_started_total") == 3
        assert shown.value("hocket_run_duration_seconds_count", kind="test.good", outcome="succeeded") == 2
        assert shown.value("hocket_job_wait_seconds_count", kind="test.good") == 2
        assert shown.value("hocket_jobs", kind="test.good", state="succeeded") == 2
        assert shown.value("hocket_jobs", kind="test.bad", state="failed") == 1
        assert shown.value("hocket_workers", state="running") == 1
        assert shown.value("hocket_leases_lost_total") == 0
        assert served.ask("GET", "/ops").status == 404 and served.ask("GET", "/healthz").status == 200
        assert program(home, "submit", "test.slow", "{}").returncode == 0
        until(lambda: samples(served).value("hocket_jobs", kind="test.slow", state="running") == 1)
        process.terminate()
        until(lambda: served.ask("GET", "/readyz").status == 503)
        assert served.ask("GET", "/readyz").json == {"ready": False, "reasons": ["this worker stops"]}
        assert served.ask("GET", "/healthz").status == 200


def test_a_worker_without_metrics_loads_nothing_for_them(tmp_path: Path) -> None:
    home, tasks = tmp_path / "home", tmp_path / "tasks.py"
    Runtime.init(home).close()
    tasks.write_text(TASKS)
    check = (
        "import atexit, sys; sys.argv = ['hocket', '--home', sys.argv[1], 'work', sys.argv[2], '--until-idle']\n"
        "atexit.register(lambda: print([n for n in sys.modules if 'server.monitoring' in n or 'prometheus' in n]))\n"
        "from hocket.cli.__main__ import main\nmain()\n"
    )
    words = [sys.executable, "-c", check, str(home), str(tasks)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment({}))
    assert done.stdout.splitlines()[-1] == "[]", done


@pytest.mark.parametrize("text", ["", "x", "70000", "127.0.0.1:", "127.0.0.1:-1", "9464x"])
def test_a_bad_address_for_metrics_is_named(tmp_path: Path, text: str) -> None:
    Runtime.init(tmp_path / "home").close()
    done = program(tmp_path / "home", "work", "--metrics", text, "--until-idle")
    assert done.returncode == 2 and done.stderr.startswith(f"hocket: bad --metrics {text!r}; write PORT or HOST:PORT")


def test_an_address_for_metrics() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("[::1]:0") == ("::1", 0)
    assert parse_address("0.0.0.0:1") == ("0.0.0.0", 1)


def test_events_are_counted() -> None:
    counts = EventCounts()
    about = "J", "k", 1
    told: list[Event] = [
        JobClaimed(*about, waited_s=0.3),
        JobClaimed(*about),
        RunStarted(*about),
        RunFinished(*about, run_s=0.2, cost=1.5),
        RunFailed(*about, "no", run_s=9999.0),
        JobHandedBack(*about),
        JobPostponed(*about, 1.0, "later"),
        RetryPlanned(*about, 1, 1.0),
        JobRescued(*about, "gone"),
        LeaseLost("J", "gone"),
        ResultDiscarded("J", "late"),
        OpRefused("n", "UNLINKED", 7),
    ]
    for event in told:
        counts(event)
    found = {metric.name: {} for metric, _ in counts.counters}  # type: ignore[var-annotated]
    for (metric, labels), count in counts.counters.items():
        found[metric.name][labels] = count
    assert found.pop("hocket_events_total")["JobClaimed",] == 2
    assert found == {
        "hocket_runs_started_total": {("k",): 1},
        "hocket_runs_total": {("k", outcome): 1 for outcome in ("succeeded", "failed", "handed_back", "postponed")},
        "hocket_run_cost_total": {("k",): 1.5},
        "hocket_retries_total": {("k",): 1},
        "hocket_jobs_rescued_total": {("k",): 1},
        "hocket_leases_lost_total": {(): 1},
        "hocket_results_discarded_total": {(): 1},
        "hocket_ops_refused_total": {("unlinked",): 7},
    }
    waits = counts.histograms[metrics.WAIT_SECONDS, ("k",)]
    assert (sum(waits.counts), waits.total) == (1, 0.3)
    assert counts.histograms[metrics.RUN_SECONDS, ("k", "failed")].counts[-1] == 1


def test_a_label_has_a_bounded_number_of_values() -> None:
    counts = EventCounts()
    for number in range(LABEL_VALUES_MAX + 50):
        counts(RunStarted("J", f"k{number}", 1))
    counts(RunStarted("J", "k3", 1))
    of_kinds = {labels[0]: n for (metric, labels), n in counts.counters.items() if metric is metrics.RUNS_STARTED}
    assert len(of_kinds) == LABEL_VALUES_MAX + 1 and of_kinds[OTHER] == 50 and of_kinds["k3"] == 2


def test_the_figures_of_the_grid_are_shown(fleet: Fleet) -> None:
    fleet.worker("one", 2.0)
    fleet.elsewhere(FRIEND.id, "w")
    fleet.submit(3)
    claim(fleet, 2)
    shown = Samples(Collector(Service(fleet.runtime), EventCounts()).text("")[0].decode())
    other = node_text(FRIEND.id)
    assert shown.value("hocket_grid_claims", kind=KIND) == 2
    assert shown.value("hocket_grid_share_ratio", kind=KIND, worker_node=other) == 0.0
    assert shown.value("hocket_grid_expected_share_ratio", kind=KIND, worker_node=other) == pytest.approx(1 / 3)
    assert shown.value("hocket_grid_takeovers", kind=KIND) == 0
    assert shown.value("hocket_grid_double_starts", kind=KIND) == 0
    assert shown.value("hocket_grid_workers", kind=KIND, worker_node=other) == 1
    assert shown.value("hocket_grid_epoch", kind=KIND) is not None
    tell(fleet, FRIEND.id, big=(30, 3_600_000, 3.0), small=(10, 3_600_000, 1.0))
    shown = Samples(Collector(Service(fleet.runtime), EventCounts()).text("")[0].decode())
    for name, share in (("big", 0.75), ("small", 0.25)):
        worker = f"{other}/{name}"
        assert shown.value("hocket_grid_worker_share_ratio", kind=KIND, worker=worker) == share
        assert shown.value("hocket_grid_worker_expected_share_ratio", kind=KIND, worker=worker) is not None


def test_messages_that_the_bus_dropped_are_shown(tmp_path: Path) -> None:
    async def test() -> None:
        server, clock = MemoryServer(), Clock()
        sender, receiver = (member(MemoryMessages(server), key, clock) for key in (ALICE, BOB))
        stranger = member(MemoryMessages(server), MALLORY, clock)
        queue = await receiver.subscribe(SUBJECT, capacity=1)
        other = await receiver.subscribe(SUBJECT)
        for _ in range(3):
            await sender.publish(SUBJECT, b"x")
        await stranger.publish(SUBJECT, b"x")
        assert len(await all_of(other)) == 3
        queue.close()  # what it dropped still counts
        with Runtime.init(tmp_path / "home") as runtime:
            shown = Samples(Collector(Service(runtime), EventCounts(), bus=lambda: receiver).text("")[0].decode())
        assert shown.value("hocket_bus_messages_dropped_total", reason="queue_full") == 3
        assert shown.value("hocket_bus_messages_dropped_total", reason="unknown") == 1
        assert shown.value("hocket_bus_messages_dropped_total", reason="not_sent") == 0
        assert shown.value("hocket_bus_connected") == 1

    asyncio.run(test())


def test_a_node_whose_log_is_being_rebuilt_is_not_ready(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        told: list[Event] = []
        monitor = Monitor(node, EventCounts(), emit=told.append)
        with node.runtime.store.write() as session:
            session.put_head(session.head()._replace(rebuilding=bytes(20)))
        reply = await monitor.answer(Request("GET", "/readyz"))
        assert reply.status == 503 and json.loads(reply.body)["reasons"] == ["the log is being rebuilt"]
        shown = Samples((await monitor.answer(Request("GET", "/metrics"))).body.decode())
        assert shown.value("hocket_store_readable") == 1 and told == []
        assert (await monitor.answer(Request("GET", "/nowhere"))).status == 404

    async def run_test() -> None:
        with Runtime.init(tmp_path / "home") as runtime:
            node = Node(runtime)
            try:
                await test(node)
            finally:
                await node.finish()

    asyncio.run(run_test())


def test_the_lag_behind_the_coordinator_is_shown(tmp_path: Path) -> None:
    async def test(a: Place, b: Place) -> None:
        address = a.address
        b.befriend(address)
        await b.exchanges.visit(address)
        assert (figures(Service(b.runtime)).outbox_ops, figures(Service(b.runtime)).lag_ms) == (0, 0)
        await a.stop_serving()
        b.submit(3)
        await b.exchanges.visit(address)
        shown = Samples(Collector(Service(b.runtime), EventCounts()).text("")[0].decode())
        assert shown.value("hocket_outbox_ops") == 3 and (shown.value("hocket_sync_lag_seconds") or 0) > 0
        assert shown.value("hocket_peers", state="unreachable") == 1
        assert shown.value("hocket_peer_last_exchange_timestamp_seconds", peer=address) is not None

    run(tmp_path, test)


# Names.

ALL = (*metrics.ALL, *tempo_metrics.ALL)


def test_names_follow_the_conventions() -> None:
    for metric in ALL:
        assert re.fullmatch(r"hocket(_[a-z]+)+", metric.name) and metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
        assert not re.search(r"_(ms|millis|minutes|count|sum|bucket)(_|$)", metric.name)
        assert all(
            re.fullmatch(r"[a-z_]+", label) and label not in ("node", "le", "job", "instance")
            for label in metric.labels
        )
    assert len({metric.name for metric in ALL}) == len(ALL) > 30


def test_the_documentation_names_every_metric_with_its_type_and_labels() -> None:
    rows = re.findall(r"^\| `(hocket_\w+)` \| (\w+) \|([^|]*)\|", METRICS_PAGE.read_text(), re.M)
    told = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert told == {each.name: (each.type.value, set(each.labels)) for each in ALL}


def expressions(board: object) -> Iterator[str]:
    match board:
        case dict():
            for key, value in board.items():
                if key in ("expr", "definition") and isinstance(value, str):
                    yield value
                else:
                    yield from expressions(value)
        case list():
            for each in board:
                yield from expressions(each)


def test_the_dashboard_uses_every_metric_and_only_ours() -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = " ".join(expressions(board))
    series = {
        name: each
        for each in ALL
        for name in (
            [each.name + part for part in ("_bucket", "_sum", "_count")]
            if each.type is MetricType.HISTOGRAM
            else [each.name]
        )
    }
    named = set(re.findall(r"hocket_\w+", asked))
    assert named <= series.keys() and {series[name] for name in named} == set(ALL)
    for name, selectors in re.findall(r"(hocket_\w+)\{([^}]*)\}", asked):
        labels = set(re.findall(r"(\w+)=", selectors))
        assert labels <= {*series[name].labels, "node"}, (name, labels)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
