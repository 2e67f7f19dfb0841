"""The first view: whether all is well, and if not, where."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hocket.api import nodes, status
from hocket.api.figures import figures
from hocket.api.status import NodeStatus
from hocket.families.jobs.view import COUNTED
from hocket.kernel.policy import covers
from hocket.kernel.texts import counted, span
from hocket.page.rendering import bars
from hocket.page.views import PageView, Trouble, ViewCall, extension_views

# Ops that wait longer than this for the coordinator are worth a look, and so are nodes that are silent.
LAG_MS = 60_000
_SILENT = ("alert", "critical", "dead")


class KindNow(NamedTuple):
    kind: str
    counts: Mapping[str, int]
    failed_lately: int


def now(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    shown, live, found = status.status.function(service), nodes.live.function(service), figures(service)
    now_ms, failing = int(time.time() * 1000), call.throughput.failing()
    readable = [each for each in found.jobs if call.may("Job", "Read", each.kind)]
    kinds: dict[str, dict[str, int]] = {}
    for each in readable:
        kinds.setdefault(each.kind, dict.fromkeys(COUNTED, 0))[each.state] = each.jobs
    lines = [KindNow(kind, counts, failing.get(kind, 0)) for kind, counts in kinds.items()]
    # Kinds with work to do come first.
    lines.sort(key=lambda each: (-sum(each.counts[word] for word in COUNTED[:4]), each.kind))
    minutes = call.throughput.minutes(now_ms)
    succeeded = [each.succeeded for each in minutes]
    failed = [each.failed for each in minutes]
    totals = {word: sum(each.counts[word] for each in lines) for word in COUNTED}
    troubles = [*_troubles(shown, now_ms), *_silent(live), *_unserved(shown, lines), *_failing(lines)]
    troubles += [trouble for each in extension_views() for trouble in each.troubles(call)]
    return {
        "title": "Now",
        "troubles": troubles,
        "status": shown,
        "totals": totals,
        "kinds": lines,
        "words": COUNTED,
        "nodes": live,
        "known_minutes": sum(each is not None for each in succeeded),
        "succeeded": bars(succeeded, f"{_sum(succeeded)} jobs succeeded in the last hour, a bar for each minute"),
        "failed": bars(failed, f"{_sum(failed)} jobs failed in the last hour, a bar for each minute", "bad"),
        "succeeded_sum": _sum(succeeded),
        "failed_sum": _sum(failed),
    }


def _sum(values: list[int | None]) -> int:
    return sum(each for each in values if each is not None)


def _troubles(shown: NodeStatus, now_ms: int) -> Iterator[Trouble]:
    if shown.rebuilding:
        yield Trouble("The log is being rebuilt, or that was interrupted: run `hocket log rebuild`.", "/log")
    if shown.coordinator_is_quiet:
        yield Trouble("The coordinator has been silent for long: claims of other nodes wait.", "/mesh")
    for peer in shown.peers:
        if peer.state not in ("ok", "new", "unknown", ""):
            yield Trouble(f"The peer {peer.address}: {peer.state} {peer.detail}".strip() + ".", "/mesh")
    if shown.outbox.since_ms is not None and now_ms - shown.outbox.since_ms > LAG_MS:
        waited = span(now_ms - shown.outbox.since_ms)
        yield Trouble(f"{counted(shown.outbox.ops, 'op')} waited {waited} for the coordinator.", "/mesh")
    for breaker in shown.breakers:
        if breaker.state != "closed":
            yield Trouble(f"{breaker.what} does not answer: {breaker.error}.", "/mesh")
    for over in shown.over_quota:
        yield Trouble(f"Node {over.node} is over its quota: {counted(over.ops, 'op')} refused.", "/mesh")
    if shown.held_ops:
        yield Trouble(f"{counted(shown.held_ops, 'op')} came from clocks that are too far ahead.", "/log")
    if shown.dead_workers:
        yield Trouble(f"{counted(len(shown.dead_workers), 'worker')} died; the next one returns its jobs.", "/mesh")
    if shown.kept.refused:
        yield Trouble(f"{counted(shown.kept.refused, 'kept request')} refused when sent.", "/log")


def _silent(live: list[nodes.LiveNode]) -> Iterator[Trouble]:
    for each in live:
        if each.grade in _SILENT:
            yield Trouble(f"Node {each.name or each.node} is silent: {each.grade}.", "/mesh")


def _unserved(shown: NodeStatus, lines: list[KindNow]) -> Iterator[Trouble]:
    served = [kind for worker in shown.workers for kind in worker.kinds]
    served += [kind for other in shown.workers_elsewhere for kind in other.kinds]
    for each in lines:
        if (ready := each.counts["ready"]) and not any(covers(kind, each.kind) for kind in served):
            sentence = f"{counted(ready, 'job')} of {each.kind} {'is' if ready == 1 else 'are'} ready, and no worker"
            yield Trouble(f"{sentence} serves that kind.", f"/jobs?state=ready&kind={each.kind}")


def _failing(lines: list[KindNow]) -> Iterator[Trouble]:
    for each in lines:
        if each.failed_lately:
            sentence = f"{counted(each.failed_lately, 'job')} of {each.kind} failed in the last hour."
            yield Trouble(sentence, f"/jobs?state=failed&kind={each.kind}")


NOW = PageView("/", "now.html", now, "Now")
