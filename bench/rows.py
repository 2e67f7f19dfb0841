"""What is measured: the rows of the table, and how much of everything a run takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.lineups import ON_SQLITE, OURS, Lineup

MESH = "bench.mesh"
COMMANDS = "bench.commands"
GIT = "bench.gitplane"
LOCKS = "bench.locks"
PRESENCE = "bench.presence"
INBOX = "bench.inbox"
HTTP = "bench.http_api"
CLAIMS = "bench.claims"
GRID = "bench.grid"
PULSE = "bench.pulse"
REVERB = "bench.reverb"
UPDATE_REF, PUSH = "`git update-ref`", "`git push --atomic`"
BATCHES = (1, 2, 16)  # a git worker claims as many at once as it has free slots; it has two unless it is told otherwise


@dataclass(frozen=True)
class Size:
    single: int = 20_000
    batch: int = 100_000
    batch_size: int = 1_000
    drain: int = 20_000
    samples: int = 200
    finished: int = 1_000_000
    refold: int = 300_000
    admitted: int = 60_000
    synced: int = 200_000
    questions: int = 300_000
    mesh_samples: int = 300
    idle_nodes: int = 200
    simulated: float = 3.0
    messages: int = 3_000
    stored: int = 1_000_000
    commands: int = 200
    claims: int = 1_000
    pushes: int = 64
    listed: int = 10_000
    verified: int = 1_000
    locked: int = 4_000
    contended_s: float = 10.0
    lock_history: int = 10_000
    lock_history_mesh: int = 10_000
    ranked: int = 1_000_000
    grid: int = 4_000
    grid_nodes: int = 50
    grid_samples: int = 200
    counted: int = 10_000
    beats_s: float = 60.0
    failovers: int = 10
    tempo_rounds: int = 5
    status_claims: int = 200_000
    agents: int = 10_000
    waiting: int = 500
    waiting_s: float = 60.0
    repeat: int = 3


QUICK = Size(
    single=2_000,
    batch=10_000,
    drain=2_000,
    samples=50,
    finished=20_000,
    refold=10_000,
    admitted=10_000,
    synced=10_000,
    questions=50_000,
    mesh_samples=30,
    idle_nodes=20,
    simulated=0.5,
    messages=600,
    stored=20_000,
    commands=15,
    claims=320,
    pushes=8,
    listed=1_000,
    verified=200,
    locked=300,
    contended_s=2.0,
    lock_history=3_000,
    lock_history_mesh=2_000,
    ranked=50_000,
    grid=400,
    grid_nodes=10,
    grid_samples=20,
    counted=400,
    beats_s=10.0,
    failovers=3,
    tempo_rounds=1,
    status_claims=20_000,
    agents=1_000,
    waiting=100,
    waiting_s=5.0,
    repeat=1,
)


@dataclass(frozen=True)
class Figure:
    """One line of a row that has several: what the measurement calls it, or the samples of which it is a percentile."""

    name: str
    title: str
    unit: str
    less_is_more: bool = False
    percentile: float | None = None
    is_compared: bool = True


@dataclass(frozen=True)
class Goal:
    """What a line of a row has to reach: at least so many times the best peer, or at most so much in the line's unit.

    The peers are those that the row's lineup compares. On the full log it is ours on an empty one.
    """

    at_least: float | None = None
    at_most: float | None = None
    line: str = ""  # the end of the line's key, after that of the row; the row's first line if empty
    row: str = ""  # ours in this row, in the place of the peers
    figures: Mapping[str, str] = field(default_factory=dict)  # the peers' figures in the same result, and their names
    cores: int = 1  # on fewer the goal says nothing


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    function: str
    arguments: dict[str, Any]
    count: int = 0  # jobs or ops a run; 0 where the figure is not a rate
    full: bool = False  # measured on the home that already holds the finished jobs
    ours_only: bool = False
    module: str = OURS  # where the function is, if it is only ours
    # Its directories stay until the end: a file system is slow to make files where many have just been deleted.
    kept: bool = False
    figures: tuple[Figure, ...] = ()  # the row's lines, where they are not those of its function
    lineup: Lineup = ON_SQLITE
    group: str = ""  # with other rows, for --only
    unasked: int | None = None  # repetitions in a run of all rows, if fewer than usual; 0: only when asked for by name
    goals: tuple[Goal, ...] = ()


def rows(size: Size) -> list[Row]:
    single, batch = {"count": size.single}, {"count": size.batch, "size": size.batch_size}
    shipped, polled = {"samples": size.samples, "polled": False}, {"samples": size.samples, "polled": True}

    def drain(workers: int, *goals: Goal, ours_only: bool = False) -> Row:
        title = f"no-op jobs/s, {workers} worker process{'es' if workers > 1 else ''}"
        arguments = {"count": size.drain, "processes": workers}
        return Row(f"drain-{workers}", title, "drain", arguments, size.drain, ours_only=ours_only, goals=goals)

    def on_full_log(row: Row) -> Row:
        title = f"{row.title}, {size.finished:,} finished"
        goals = (Goal(at_least=0.95),)
        return replace(row, key=f"full-{row.key}", title=title, full=True, ours_only=True, goals=goals)

    memory = Goal(at_most=55, line="memory")
    singles = Row("single", "single submits/s", "submit_single", single, size.single, goals=(Goal(at_least=0.9),))
    batches = Row(
        "batch",
        f"batch submits/s ({size.batch_size:,} a batch)",
        "submit_batch",
        batch,
        size.batch,
        goals=(Goal(at_least=4.0),),
    )
    drains = [drain(1, Goal(at_least=1.5), memory), drain(2, Goal(at_least=1.3), memory)]
    latency = Row("latency", "submit to start, as shipped", "latency", shipped)
    return [
        singles,
        batches,
        *drains,
        drain(4, Goal(at_least=1.8, row="drain-1", cores=4), ours_only=True),
        drain(8, Goal(at_least=1.0, row="drain-4"), ours_only=True),
        latency,
        Row("latency-polled", "submit to start, peers polling each ms", "latency", polled),
        *(on_full_log(row) for row in (singles, batches, *drains)),
        on_full_log(replace(latency, title="submit to start")),
        Row(
            "refold", f"refold of {size.refold:,} ops, ops/s", "refold", {"ops": size.refold}, size.refold, False, True
        ),
        *mesh_rows(size),
        *pulse_rows(size),
        *inbox_rows(size),
        *http_rows(size),
        *command_rows(size),
        *git_rows(size),
        *lock_rows(size),
        *(_ranking_row(workers, size.ranked) for workers in (10, 1_000, 10_000)),
        *grid_rows(size),
        *reverb_rows(size),
    ]


def mesh_rows(size: Size) -> list[Row]:
    def row(key: str, title: str, function: str, arguments: dict[str, Any]) -> Row:
        return Row(key, title, function, arguments, ours_only=True, module=MESH)

    return [
        row("admit", "ops admitted/s, without the network", "admit", {"ops": size.admitted}),
        row("sync", f"first sync of {size.synced:,} ops, ops/s", "first_sync", {"ops": size.synced}),
        *(
            row(
                f"authorise-{count}",
                f"authorisations/s, {count:,} delegations",
                "authorise",
                {"delegations": count, "questions": size.questions},
            )
            for count in (10, 100, 1_000)
        ),
        row("hint", "submit to start on another node", "hint_to_claim", {"samples": size.mesh_samples}),
        row("sim", "simulated node-minutes/s, 20 nodes, every fault", "simulate", {"minutes": size.simulated}),
        _idle_row(size.idle_nodes),
    ]


def _idle_row(nodes: int) -> Row:
    of_server, of_node = f"{nodes} idle nodes: the server's heartbeats,", f"{nodes} idle nodes: a node's heartbeats,"
    figures = (
        Figure("server_heartbeat_statements", f"{of_server} statements", "/s", True),
        Figure("server_heartbeat_commits", f"{of_server} commits", "/s", True),
        Figure("node_heartbeat_statements", f"{of_node} statements", "/s", True),
        Figure("node_heartbeat_commits", f"{of_node} commits", "/s", True),
        Figure("heartbeats", f"{nodes} idle nodes: heartbeats", "/s", True),
        Figure("heartbeat_bytes", f"{nodes} idle nodes: bytes of heartbeats, both ways", "/s", True),
        Figure("server_statements", f"{nodes} idle nodes: the server's statements, all", "/s", True),
        Figure("node_statements", f"{nodes} idle nodes: a node's statements, all", "/s", True),
        Figure("bytes", f"{nodes} idle nodes: bytes, all", "/s", True),
    )
    arguments = {"nodes": nodes, "seconds": 40.0}
    title = f"{nodes} idle nodes"
    return Row("idle", title, "heartbeats", arguments, ours_only=True, module=PRESENCE, figures=figures)


def pulse_rows(size: Size) -> list[Row]:
    def row(key: str, title: str, function: str, arguments: dict[str, Any], *figures: Figure) -> Row:
        return Row(key, title, function, arguments, ours_only=True, module=PULSE, figures=figures)

    def lateness(key: str, title: str, is_loaded: bool) -> Row:
        return row(
            key,
            title,
            "lateness",
            {"seconds": size.beats_s, "bpm": 60, "is_loaded": is_loaded},
            Figure("late_ms", f"{title}, p50", "ms", True, 0.50),
            Figure("late_ms", "  p99", "ms", True, 0.99),
            Figure("late_max_ms", "  at most", "ms", True),
        )

    return [
        lateness("beats", "a beat of 60 a minute is heard late by", False),
        lateness("beats-loaded", "the same while another process keeps a core busy", True),
        row(
            "failover",
            "beats from the death of a leading pulse to a frame of the next",
            "failover",
            {"times": size.failovers},
            Figure("beats", "beats from the death of a leading pulse to a frame of the next, p50", "beats", True, 0.50),
            Figure("beats_max", "  at most", "beats", True),
        ),
        row(
            "drift",
            "a pulse's clock over an hour",
            "drift",
            {},
            Figure("hour_pct", "how far a pulse's clock is off after an hour", "%", True),
            Figure("beat_pct", "  the beat that differs most from its length", "%", True),
        ),
        row(
            "tempo-drain",
            "no-op jobs/s, 1 worker process without a tempo",
            "drain",
            {"count": size.drain, "rounds": size.tempo_rounds},
            Figure("plain_rate", "no-op jobs/s, 1 worker process without a tempo", "/s"),
            Figure("pulse_rate", "  with a tempo of 60 and a pulse", "/s"),
            Figure("pulse_ratio", "  with : without", "×"),
            Figure("pulse_cpu_ratio", "  with : without, jobs for each second of the worker's processor time", "×"),
            Figure("reverb_rate", "  with a pulse and a reverb", "/s"),
            Figure("reverb_ratio", "  with : without", "×"),
            Figure("reverb_cpu_ratio", "  with : without, jobs for each second of the worker's processor time", "×"),
        ),
    ]


def inbox_rows(size: Size) -> list[Row]:
    figures = []
    for step, title in (("send", "messages sent/s"), ("claim", "messages claimed/s"), ("ack", "acknowledgements/s")):
        figures += [
            Figure(f"{step}_rate", f"{title}, one at a time", "/s"),
            Figure(f"full_{step}_rate", f"  with {size.stored:,} stored messages", "/s"),
            Figure(f"{step}_ratio", "  stored : empty", "×"),
        ]
    arguments = {"count": size.messages, "stored": size.stored}
    return [Row("inbox", "inbox", "rates", arguments, ours_only=True, module=INBOX, figures=tuple(figures))]


def http_rows(size: Size) -> list[Row]:
    def row(connections: int, *goals: Goal) -> Row:
        title = f"single submits over HTTP/s, {connections} connection{'s' if connections > 1 else ''}"
        figures = (
            Figure("rate", title, "/s"),
            Figure("each_ms", "  time of one", "ms", True),
            Figure("cpu_ms", "  of the server's processors", "ms", True),
        )
        arguments = {"count": size.single, "connections": connections}
        options = {"ours_only": True, "module": HTTP, "figures": figures, "group": "http", "goals": goals}
        return Row(f"http-{connections}", title, "submits", arguments, **options)

    def drain(workers: int, *goals: Goal) -> Row:
        title = f"no-op jobs/s over HTTP, claims of 32, {workers} worker{'s' if workers > 1 else ''}"
        figures = Figure("rate", title, "/s"), Figure("cpu_ms", "  of the server's processors", "ms", True)
        arguments = {"count": size.drain, "workers": workers}
        options = {"ours_only": True, "module": HTTP, "figures": figures, "group": "http", "goals": goals}
        return Row(f"http-drain-{workers}", title, "drain", arguments, **options)

    title = f"{size.waiting} workers wait over HTTP, of one core"
    waiting = Row(
        *("http-wait", title, "wait", {"workers": size.waiting, "seconds": size.waiting_s}),
        ours_only=True,
        module=HTTP,
        figures=(Figure("cpu_percent", title, "%", True),),
        group="http",
        goals=(Goal(at_most=2.0),),
    )
    return [
        *(row(1), row(16, Goal(at_most=0.667, line="each_ms")), row(64)),
        *(drain(1, Goal(at_least=0.5, row="drain-1")), drain(4), waiting),
    ]


def command_rows(size: Size) -> list[Row]:
    def row(key: str, function: str, title: str) -> Row:
        figures = (
            Figure("plain_ms", "`true`, from start to end, p50", "ms", True, 0.50),
            Figure("latencies_ms", f"{title}, p50", "ms", True, 0.50),
            Figure("added_ms", "  added to `true`, p50", "ms", True, 0.50),
            Figure("added_ms", "  added to `true`, p99", "ms", True, 0.99),
        )
        arguments = {"samples": size.commands}
        return Row(key, title, function, arguments, ours_only=True, module=COMMANDS, figures=figures)

    return [
        row("run", "run_resident", "`hocket run -- true`, a worker is there"),
        row("run-alone", "run_alone", "`hocket run -- true`, no worker"),
    ]


def lock_rows(size: Size) -> list[Row]:
    def row(key: str, title: str, function: str, arguments: dict[str, Any], *figures: Figure) -> Row:
        return Row(key, title, function, arguments, ours_only=True, module=LOCKS, figures=figures)

    def history(key: str, where: str, function: str, rounds: int) -> Row:
        title = f"acquire and release/s, {where}, first 1,000 rounds"
        return row(
            key,
            title,
            function,
            {"rounds": rounds},
            Figure("rate", title, "/s"),
            Figure("later_rate", f"  the last 1,000 of {rounds:,}", "/s"),
            Figure("ratio", "  later : first", "×"),
        )

    def contended(processes: int) -> Row:
        title = f"acquire and release/s, {processes} processes want one lock"
        return row(
            f"locks-{processes}",
            title,
            "contended",
            {"processes": processes, "seconds": size.contended_s},
            Figure("rate", title, "/s"),
            Figure("raw_rate", "  by raw compare-and-set", "/s"),
            Figure("slowest", "  the slowest process : the mean", "×"),
            Figure("raw_slowest", "  the same by raw compare-and-set", "×"),
        )

    return [
        row(
            "locks",
            "acquire and release/s, one process",
            "alone",
            {"count": size.locked},
            Figure("rate", "acquire and release/s, one process", "/s"),
            Figure("raw_rate", "  by raw compare-and-set", "/s"),
            Figure("submit_rate", "  two single submits/s", "/s"),
            Figure("ratio", "  ours : two single submits", "×"),
        ),
        contended(8),
        contended(16),
        row(
            "locks-wait",
            "release to the waiting agent's start",
            "waiting",
            {"samples": size.samples},
            Figure("latencies_ms", "release to the waiting agent's start, p50", "ms", True, 0.50),
            Figure("latencies_ms", "  p99", "ms", True, 0.99),
            Figure("start_ms", "  submit to start, p50", "ms", True, 0.50),
            Figure("start_ms", "  submit to start, p99", "ms", True, 0.99),
            Figure("ratio", "  ours : submit to start, p50", "×", True),
        ),
        history("locks-history", "one home", "history", size.lock_history),
        history("locks-history-mesh", "a node of a mesh", "mesh_history", size.lock_history_mesh),
    ]


def _ranking_row(workers: int, hashes: int) -> Row:
    title = f"rankings/s of {workers:,} workers"
    figures = (
        Figure("rate", title, "/s"),
        Figure("raw_rate", "  by a bare loop of hashlib, unsorted", "/s"),
        Figure("ratio", "  ours : bare", "×"),
        Figure("weighted_ratio", "  with weights : bare", "×"),
        Figure("own_ratio", "  a worker's own turn : bare", "×"),
    )
    arguments = {"workers": workers, "hashes": hashes}
    return Row(f"rank-{workers}", title, "rankings", arguments, ours_only=True, module=CLAIMS, figures=figures)


def grid_rows(size: Size) -> list[Row]:
    def row(
        key: str,
        title: str,
        function: str,
        arguments: dict[str, Any],
        *figures: Figure,
        goals: tuple[Goal, ...] = (),
    ) -> Row:
        return Row(key, title, function, arguments, ours_only=True, module=GRID, figures=figures, goals=goals)

    def throughput(workers: int, *goals: Goal) -> Row:
        title = f"jobs/s through the grid, {workers} workers" if workers > 1 else "jobs/s through the grid, 1 worker"
        return row(
            f"grid-{workers}",
            title,
            "throughput",
            {"count": size.grid, "workers": workers},
            Figure("rate", f"{title} of one node", "/s"),
            Figure("nodes_rate", "  each on a node of its own", "/s"),
            Figure("taskiq_rate", "  by taskiq on NATS, as shipped", "/s"),
            Figure("taskiq_synced_rate", "  by taskiq, NATS syncs each message to the disk", "/s"),
            Figure("jetstream_rate", "  by plain JetStream consumers", "/s"),
            Figure("ratio", "  ours, one node : taskiq", "×"),
            Figure("nodes_ratio", "  ours, a node each : taskiq", "×"),
            Figure("synced_ratio", "  ours, one node : taskiq with synced NATS", "×"),
            Figure("nodes_synced_ratio", "  ours, a node each : taskiq with synced NATS", "×"),
            goals=goals,
        )

    def duplicates(key: str, state: str, count: int, churning: bool) -> Row:
        return row(
            key,
            f"duplicate starts, {state}",
            "duplicates",
            {"count": count, "nodes": 6, "churning": churning},
            Figure("repeated", f"starts of started jobs in 10,000, {state}", "", True),
            Figure("same_fence", "  of which under the same fence", "", True),
            Figure("killed", "  workers killed meanwhile", "", True),
            Figure("rate", "  jobs/s", "/s"),
        )

    taskiq = {"taskiq_rate": "taskiq", "taskiq_synced_rate": "taskiq, synced NATS"}
    return [
        throughput(1),
        throughput(2),
        throughput(4, Goal(at_least=1.0, figures=taskiq), Goal(at_least=0.5, line="nodes_rate", figures=taskiq)),
        throughput(8),
        row(
            "grid-claim",
            f"announcement to claim, {size.grid_nodes} workers",
            "announcements",
            {"nodes": size.grid_nodes, "processes": 5, "samples": size.grid_samples},
            Figure("claims_ms", f"announcement to claim, {size.grid_nodes} workers, p50", "ms", True, 0.50),
            Figure("claims_ms", "  p99", "ms", True, 0.99),
            Figure("starts_ms", "  submit to start, p50", "ms", True, 0.50),
            Figure("starts_ms", "  submit to start, p99", "ms", True, 0.99),
        ),
        duplicates("grid-steady", "nobody comes or goes", size.counted, churning=False),
        duplicates("grid-churn", "a third killed every 10 s", size.counted // 4, churning=True),
    ]


def reverb_rows(size: Size) -> list[Row]:
    def row(key: str, title: str, function: str, arguments: dict[str, Any], *figures: Figure) -> Row:
        return Row(key, title, function, arguments, ours_only=True, module=REVERB, figures=figures)

    agents = f"{size.agents:,} agents"
    title = f"StatusClaims/s into windows, {agents}"

    def signed(together: int) -> Row:
        title = f"  with the signatures of messages checked, {together} claims in each"
        arguments = {"count": size.status_claims // 10, "agents": size.agents, "together": together}
        return row(f"reverb-signed-{together}", title, "signed", arguments, Figure("rate", title, "/s"))

    return [
        row(
            "reverb",
            title,
            "aggregate",
            {"count": size.status_claims, "agents": size.agents},
            Figure("rate", title, "/s"),
        ),
        *(signed(together) for together in (1, 4, 16, 64)),
        row(
            "reverb-memory",
            f"memory of 32 windows, {agents}",
            "memory",
            {"agents": size.agents},
            Figure("mib", f"memory of 32 windows, {agents}", "MiB", True),
            Figure("window_mib", "  of one window", "MiB", True),
        ),
    ]


def git_rows(size: Size) -> list[Row]:
    def row(key: str, title: str, function: str, arguments: dict[str, Any], *figures: Figure) -> Row:
        return Row(key, title, function, arguments, ours_only=True, module=GIT, figures=figures)

    def claims(key: str, where: str, raw: str, count: int, batch: int) -> Row:
        at_once = "one at a time" if batch == 1 else f"{batch} at a time"
        title = f"git claims/s, {where}, {at_once}"
        figures = (
            Figure("rate", title, "/s"),
            Figure("raw_rate", f"  by {raw}", "/s"),
            Figure("ratio", f"  ours : {raw}", "×"),
        )
        arguments = {"count": count * (batch if raw == PUSH else 1), "batch": batch}
        made = row(f"{key}-{batch}", title, key.replace("-", "_"), arguments, *figures)
        return replace(made, kept=True)

    def listing(key: str, state: str, finished: bool) -> Row:
        title = f"listing of {size.listed:,} jobs, {state}"
        return row(
            key,
            title,
            "listing",
            {"count": size.listed, "finished": finished},
            Figure("seconds", f"{title}, seconds", "s", True),
            Figure("raw_seconds", "  by `git for-each-ref`", "s", True),
            Figure("ratio", "  ours : `git for-each-ref`", "×", True),
        )

    return [
        *(claims("claims-local", "on this disk", UPDATE_REF, size.claims, batch) for batch in BATCHES),
        *(claims("claims-http", "over HTTP", PUSH, size.pushes, batch) for batch in BATCHES),
        listing("listing", "all pending", finished=False),
        listing("listing-done", "all done", finished=True),
        row(
            "verifying",
            "results verified/s, one thread",
            "verifying",
            {"count": size.verified},
            Figure("rate", "results verified/s, with their jobs and claims, one thread", "/s"),
            Figure("proof_rate", "  proofs checked/s, alone", "/s"),
        ),
    ]
