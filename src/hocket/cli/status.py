"""`hocket status` and `hocket doctor`: the state of a node on one page, and what is wrong with it."""

import time
from typing import Any

from hocket.api.status import BreakerStatus, BusStatus, NodeStatus, WorkerStatus
from hocket.api.status import status as node_status
from hocket.api.views import ago
from hocket.cli.output import emit, fields, table
from hocket.cli.settings import open_service, settings
from hocket.errors import Failed
from hocket.kernel.retrying import BreakerState
from hocket.kernel.texts import counted, span
from hocket.work.liveness import WorkerState

# The most job ids that are shown for one worker.
SHOWN_MAX = 3


def status() -> None:
    """Show the state of this node: identity, log, jobs, workers, schedules, and refused ops.

    \b
      hocket status
      hocket status --json | jq .jobs
    """
    with open_service() as service:
        service.refresh()
        shown = node_status(service)
    emit(shown)
    fields(_fields(shown))


def _worker(shown: WorkerStatus, now: int) -> str:
    """Describes one worker. Its last heartbeat matters only if its lock cannot be tested from here."""
    said = [f"process {shown.pid} {shown.where}".strip(), f"started {ago(shown.started_ms, now)}"]
    if shown.state == WorkerState.SILENT.value:
        said.append(f"silent for {span(now - shown.heard_ms)}")
    elif shown.where:
        said.append(f"heard from {ago(min(now, shown.heard_ms), now)}")
    said.append(f"serves {', '.join(shown.kinds)}" if shown.kinds else "does not say what it serves")
    ids = " ".join(shown.running[:SHOWN_MAX]) + (" …" if len(shown.running) > SHOWN_MAX else "")
    said.append(f"runs {len(shown.running)} ({ids})" if shown.running else "runs nothing")
    return f"{shown.name or shown.node}: {', '.join(said)}"


def _processes(shown: NodeStatus, now: int) -> list[tuple[str, object]]:
    """The server and the workers of this node, and the workers that other nodes have told about."""
    pairs: list[tuple[str, object]] = [
        ("server", f"{each.address}, process {each.pid}, started {ago(each.started_ms, now)}") for each in shown.servers
    ]
    pairs = pairs or [("server", "none")]
    pairs += [("worker", _worker(each, now)) for each in shown.workers] or [("workers", "none")]
    for each in shown.workers_elsewhere:
        state = "away, last" if each.is_away else "last"
        heard = f"{state} heard {ago(min(now, each.heard_ms), now)}"
        work = "" if each.availability.state == "active" else f", {each.availability}"
        pairs.append(("elsewhere", f"{each.name or each.node}, serves {', '.join(each.kinds)}{work}, {heard}"))
    return pairs


def _mesh(shown: NodeStatus) -> list[tuple[str, Any]]:
    """What concerns other nodes, if there is anything to report."""
    pairs: list[tuple[str, Any]] = []
    if shown.coordinator not in (None, shown.node):
        quiet = " (silent for long; `hocket coordinator NODE` designates another)"
        pairs.append(("coordinator", shown.coordinator + (quiet if shown.coordinator_is_quiet else "")))
    for peer in shown.peers:
        pairs.append(("peer", " ".join(part for part in (peer.address, peer.state, peer.detail) if part)))
    now = int(time.time() * 1000)
    if shown.kept.waiting and shown.kept.since_ms is not None:
        waited = f"the oldest for {span(max(0, now - shown.kept.since_ms))}"
        pairs.append(("kept", f"{counted(shown.kept.waiting, 'request')} waiting here for the database, {waited}"))
    if shown.kept.refused:
        where = "in spool/refused.jsonl of the home"
        pairs.append(("refused", f"{counted(shown.kept.refused, 'kept request')} when sent; see why {where}"))
    if shown.outbox.ops and shown.outbox.since_ms is not None:
        waited = f"the oldest for {span(max(0, now - shown.outbox.since_ms))}"
        pairs.append(("outbox", f"{counted(shown.outbox.ops, 'op')} waiting here for the coordinator, {waited}"))
    pairs += [("breaker", _breaker(each, now)) for each in shown.breakers]
    pairs += [("bus", _bus(each, now)) for each in shown.buses]
    for over in shown.over_quota:
        refused = f"{over.ops:,} ops refused, last {ago(over.last_ms, now)}"
        pairs.append(("over quota", f"node {over.node}: {refused}; see `hocket nodes`"))
    pairs += [("program", f"node {node}: {how}") for node, how in shown.programs.items()]
    if shown.unknown_ops:
        kept = f"{shown.unknown_ops} ops of newer programs do nothing here; upgrade this node to read them"
        pairs.append(("unknown ops", kept))
    if shown.unknown_grants:
        names = ", ".join(shown.unknown_grants)
        pairs.append(("unknown grants", f"delegations name {names}; upgrade this node to honour that"))
    if shown.held_ops:
        pairs.append(("held", f"{shown.held_ops} ops from clocks that are too far ahead; check this machine's clock"))
    return pairs


def _availability(shown: NodeStatus, now: int) -> list[tuple[str, object]]:
    """If this node takes no new jobs."""
    availability = shown.availability
    if availability.since_ms is None:
        return []
    said = f"{availability}, set by {availability.by} {ago(availability.since_ms, now)}"
    return [("work", f"{said}; `hocket resume here` ends that")]


def _bus(shown: BusStatus, now: int) -> str:
    state = "connected" if shown.is_connected else "away"
    said = [f"{shown.server}, process {shown.process}: {state} for {span(max(0, now - shown.since_ms))}"]
    said += [shown.detail] if shown.detail else []
    said += [] if shown.is_connected else ["work goes on without it"]
    said += ["keeps no announcements"] if shown.is_connected and not shown.keeps else []
    said += [f"{counted(shown.lost, 'message')} lost"] if shown.lost else []
    said += [f"{count:,} refused as {reason}" for reason, count in shown.refused.items()]
    return "; ".join(said)


def _breaker(shown: BreakerStatus, now: int) -> str:
    whose = shown.what if shown.process is None else f"{shown.what} in process {shown.process}"
    said = f"{whose} is {shown.state}: {shown.failures} failures in a row, the last: {shown.error}"
    if shown.state == BreakerState.OPEN and shown.next_ms is not None:
        return f"{said}; the next try is {'due' if shown.next_ms <= now else f'in {span(shown.next_ms - now)}'}"
    return f"{said}; one try is under way" if shown.state == BreakerState.HALF_OPEN else said


def _fields(shown: NodeStatus) -> list[tuple[str, object]]:
    now = int(time.time() * 1000)
    dead = ", ".join(str(each.pid) for each in shown.dead_workers)
    pairs: list[tuple[str, object]] = [
        ("node", shown.node if shown.name is None else f"{shown.node} ({shown.name})"),
        ("user", shown.user),
        ("home", shown.home),
        *_availability(shown, now),
        ("ops", shown.ops),
        ("clock", shown.clock),
        ("chain head", shown.chain_head),
    ]
    if shown.replica is not None:
        pairs.append(("replica", f"{shown.replica.path}, {span(max(0, now - shown.replica.followed_ms))} old"))
    if shown.rebuilding:
        pairs.append(("rebuild", "under way or interrupted; run `hocket log rebuild` to finish it"))
    pairs += [
        ("jobs", ", ".join(f"{count} {name}" for name, count in shown.jobs.items() if count) or "none"),
        *_processes(shown, now),
        *([("died", f"process {dead}; the next worker returns its jobs to the queue")] if dead else []),
        ("schedules", ", ".join(shown.schedules) or "none"),
        ("waiting ops", shown.waiting_ops),
    ]
    pairs += _mesh(shown)
    pairs += [("refused", f"{count}: {sentence}") for sentence, count in shown.refusals.items()]
    return pairs


def doctor() -> None:
    """Check this node for problems and suggest fixes. Exit code 1 if a check fails.

    \b
      hocket doctor
      hocket --home /srv/render doctor --json
    """
    from hocket.api.checks import examine
    from hocket.node.home import Home, default_home

    findings = list(examine(Home(settings.home or default_home())))
    emit(findings)
    table(("", "check", "finding"), [(each.verdict, each.check, each.says) for each in findings], "")
    bad = sum(each.verdict == "bad" for each in findings)
    if bad:
        raise Failed(f"{bad} of {len(findings)} checks {'is' if bad == 1 else 'are'} bad")
