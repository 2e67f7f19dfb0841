"""A home with everything that the view of tempo shows: windows of reverb, promises, budgets and costs by account, with
texts of strangers among them.
"""

import json
from contextlib import closing
from pathlib import Path

import hocket
from hocket.extensions.tempo.beats import beat_at, timeline
from hocket.extensions.tempo.messages import (
    ClaimState,
    HelpPromise,
    NodeLoad,
    PromiseOutcome,
    PromiseResult,
    StatusClaim,
    to_json,
)
from hocket.extensions.tempo.policy import read_policy
from hocket.extensions.tempo.promises import HELP_TYPE, PROMISE_TYPE
from hocket.extensions.tempo.reports import keep, packed_window
from hocket.extensions.tempo.windows import BarWindows
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ids import node_text
from hocket.node.runtime import Runtime
from tests.page.test_views import HIDDEN, MARKUP

POLICY = {"cluster_id": "chorus-<i>aus</i>", "initial_bpm": 120, "bar_len_beats": 8}
SCORE = {
    "score": {
        "bar_len": 8,
        "phases": {"plan": 2, "work": 4, "review": 2},
        "wait_budget": {"help": 2, "io": 1},
        "retry": {"max_phrases": 2},
        "escalation": {"on_wait_exhausted": ["emit:needs-attention", "fallback:coarse-answer"]},
    }
}
WINDOWS = 12


def keep_windows(home: Path) -> None:
    """Windows with tasks in all states; every third one has overruns and a broken promise."""
    policy = read_policy((home / "tempo.yaml").read_bytes())
    tempo = policy.initial_tempo
    with Runtime.open(home) as runtime:
        now_ms = runtime.log.physical()
        for place in range(WINDOWS):
            start_ms = beat_at(tempo, now_ms - (WINDOWS - place) * tempo.bar_ms).window_ms
            windows = BarWindows(policy, timeline(tempo))
            at = hlc_text(Hlc(start_ms + 10, 0, 0))
            is_bad = place % 3 == 2
            tasks = {
                ClaimState.DONE: 5 + place % 4,
                ClaimState.EXECUTING: 2 + place % 3,
                ClaimState.FAILED: int(is_bad),
            }
            for number, state in enumerate(ClaimState):
                for each in range(tasks.get(state, 1)):
                    left = -1 if is_bad and each == 0 else 1
                    claim = StatusClaim(f"a{MARKUP}", f"t{number}-{each}", 1, state, left, 0.5, HIDDEN, at)
                    windows.add(claim, start_ms + 10)
            windows.add(NodeLoad(f"n{MARKUP}", place, 3, 4, at, {f"acme.{MARKUP}": place}), start_ms + 10)
            outcome = PromiseOutcome.BROKEN if is_bad else PromiseOutcome.KEPT
            windows.add(PromiseResult(f"th{place}", f"h{MARKUP}", outcome, at), start_ms + 10)
            (content,), (report,) = windows.contents(), windows.reports()
            packed = packed_window(runtime.blobs, report, content)
            runtime.log.run(lambda tx, packed=packed: keep(tx, runtime.blobs, packed))  # type: ignore[misc]


def keep_promises(node: hocket.SyncNode, id: str) -> None:
    """One that is open, one that was kept, and one that was broken."""
    for beats, answers in ((10_000, False), (10_000, True), (0, False)):
        thread = node.send("librarian", f"{MARKUP}{HIDDEN}", agent="writer", type=HELP_TYPE)
        made = HelpPromise(thread, beats, 0.8, beats, f"plan-{MARKUP}{HIDDEN}")
        to = f"writer@{id}"
        node.send(to, to_json(made), agent="librarian", type=PROMISE_TYPE, reply_to=thread)
        if answers:
            node.send(to, "here it is", agent="librarian", reply_to=thread)


def fill_tempo(home: Path) -> str:
    """Returns the id of a job that has a budget and a score, and has not ended."""
    (home / "tempo.yaml").write_text(json.dumps(POLICY))
    (home / "rates.yaml").write_text("currency: AUD\nrole_rate_bu: {default: 0.5}\n")
    keep_windows(home)
    with Runtime.open(home) as runtime:
        id = node_text(runtime.log.node)

    def run(ctx: hocket.Context) -> None:
        return None

    job_type = hocket.job("acme.costly", retries=0, budget={"max_bu": 8, "charge_to": id})(run)
    with closing(hocket.open_sync(home)) as node:
        keep_promises(node, id)
        for _ in range(3):
            node.submit(job_type)
        node.work([job_type], until_idle=True, signals=False)
        kind = hocket.kind(
            "acme.capped",
            score=SCORE,
            budget={"max_bu": 8, "max_cost": 2.5, "phase_caps": {"work": 3}, "hard_end": "bar+4", "charge_to": id},
        )
        return str(node.submit(kind).job_id)
