"""`hocket status`: one look at a node."""

import time
from typing import Any

from hocket.cli.app import new_app
from hocket.cli.output import ago, emit, fields, span
from hocket.cli.settings import HomeOption, JsonOption, open_desk
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_text
from hocket.kernel.knowledge import unknown_of
from hocket.kernel.reasons import BY_NUMBER, Reason
from hocket.kernel.roster import Outcome
from hocket.mesh.peers import coordinator, silence
from hocket.mesh.programs import differences
from hocket.node.runtime import Runtime
from hocket.store import Session
from hocket.work.liveness import WorkerState, standing, whereabouts

app = new_app()


@app.command()
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show how this node stands: identity, log, jobs, workers, schedules, and what was refused.

    \b
      hocket status
      hocket status --json | jq .jobs
    """
    with open_desk() as runtime, runtime.read() as session:
        shown = _status(runtime, session)
    emit(shown)
    fields(_fields(shown))


def _status(runtime: Runtime, session: Session) -> dict[str, Any]:
    head = session.head()
    refused = session.refusal_counts()
    workers = _workers(runtime, session)
    return {
        "node": node_text(runtime.log.node),
        "user": runtime.log.user,
        "home": str(runtime.home.path),
        "ops": head.seq,
        "clock": hlc_text(Hlc(head.wall, head.logical, runtime.log.node)),
        "chain_head": f"{head.seq}:{head.chain.hex()}",
        "rebuilding": head.rebuilding is not None,
        "jobs": _counts(session),
        "workers": [each for each in workers if each["state"] != WorkerState.DIED.value],
        "dead_workers": [each for each in workers if each["state"] == WorkerState.DIED.value],
        "waiting_ops": refused.pop(int(Reason.WAITING), 0),
        "offered_ops": refused.pop(int(Reason.OFFERED), 0),
        "refusals": {BY_NUMBER[number].sentence: count for number, count in sorted(refused.items())},
        "schedules": [each.name for each in session.schedules()],
        "over_quota": [
            {"node": node_text(int.from_bytes(each.node, "big")), "last_ms": each.wall, "ops": each.ops}
            for each in session.over_quota().values()
        ],
        "programs": {node_text(node): how for node, how in differences(session).items()},
        "unknown_ops": refused.pop(int(Reason.UNKNOWN_VARIANT), 0),
        "unknown_grants": sorted(
            unknown_of(runtime.log.permissions_reader.read(session, head.permissions_state).delegations)
        ),
        "held_ops": session.held()[0],
        "held_until_ms": session.held()[1],
        "coordinator": None if (node := coordinator(runtime.log, session)) is None else node_text(node),
        "coordinator_is_quiet": silence(runtime.log, session) is not None,
        "peers": [
            {"address": each.address, "state": each.state, "detail": each.detail, "seen_ms": each.seen or None}
            for each in session.peers()
        ],
    }


def _workers(runtime: Runtime, session: Session) -> list[dict[str, Any]]:
    liveness = runtime.liveness()
    now = max(session.head().wall, int(time.time() * 1000))
    return [
        {
            "pid": each.pid,
            "started_ms": each.started,
            "heard_ms": each.beat,
            "state": standing(liveness, each, now).value,
            "where": whereabouts(each.place, liveness.place),
        }
        for each in session.workers()
    ]


def _worker(shown: dict[str, Any], now: int) -> str:
    """One worker in words. When it was last heard of matters only where no lock tells."""
    said = [f"process {shown['pid']} {shown['where']}".strip(), f"started {ago(shown['started_ms'], now)}"]
    if shown["state"] == WorkerState.SILENT.value:
        said.append(f"silent for {span(now - shown['heard_ms'])}")
    elif shown["where"]:
        said.append(f"heard of {ago(min(now, shown['heard_ms']), now)}")
    return ", ".join(said)


def _mesh(shown: dict[str, Any]) -> list[tuple[str, Any]]:
    """What concerns other nodes, as far as there is something to tell."""
    pairs: list[tuple[str, Any]] = []
    if shown["coordinator"] not in (None, shown["node"]):
        quiet = " (nothing heard of it for long; `hocket coordinator NODE` names another)"
        pairs.append(("coordinator", shown["coordinator"] + (quiet if shown["coordinator_is_quiet"] else "")))
    for peer in shown["peers"]:
        pairs.append(("peer", " ".join(part for part in (peer["address"], peer["state"], peer["detail"]) if part)))
    now = int(time.time() * 1000)
    for over in shown["over_quota"]:
        refused = f"{over['ops']:,} ops refused, last {ago(over['last_ms'], now)}"
        pairs.append(("over quota", f"node {over['node']}: {refused}; see `hocket nodes`"))
    pairs += [("program", f"node {node}: {how}") for node, how in shown["programs"].items()]
    if shown["unknown_ops"]:
        kept = f"{shown['unknown_ops']} ops of newer programs do nothing here; upgrade this node to read them"
        pairs.append(("unknown ops", kept))
    if shown["unknown_grants"]:
        names = ", ".join(shown["unknown_grants"])
        pairs.append(("unknown grants", f"delegations name {names}; upgrade this node to honour that"))
    if shown["held_ops"]:
        pairs.append(("held", f"{shown['held_ops']} ops from clocks that are too far ahead; is this machine's right?"))
    return pairs


def _counts(session: Session) -> dict[str, int]:
    """How many jobs there are of each state that people tell apart, in the order of a job's life."""
    counts = dict.fromkeys(("ready", "delayed", "blocked", "claimed", *(each.name.lower() for each in Outcome)), 0)
    for (stage, outcome), count in session.counts().items():
        name = (stage if outcome is None else outcome).name.lower()
        counts[name] = counts.get(name, 0) + count
    return counts


def _fields(shown: dict[str, Any]) -> list[tuple[str, object]]:
    now = int(time.time() * 1000)
    workers = "; ".join(_worker(each, now) for each in shown["workers"])
    dead = ", ".join(str(each["pid"]) for each in shown["dead_workers"])
    pairs: list[tuple[str, object]] = [
        (name.replace("_", " "), shown[name]) for name in ("node", "user", "home", "ops", "clock", "chain_head")
    ]
    if shown["rebuilding"]:
        pairs.append(("rebuild", "under way or interrupted; run `hocket log rebuild` to finish it"))
    pairs += [
        ("jobs", ", ".join(f"{count} {name}" for name, count in shown["jobs"].items() if count) or "none"),
        ("workers", workers or "none"),
        *([("died", f"process {dead}; the next worker returns its jobs to the queue")] if dead else []),
        ("schedules", ", ".join(shown["schedules"]) or "none"),
        ("waiting ops", shown["waiting_ops"]),
    ]
    pairs += _mesh(shown)
    pairs += [("refused", f"{count}: {sentence}") for sentence, count in shown["refusals"].items()]
    return pairs
