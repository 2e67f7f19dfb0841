"""`hocket claims` and `hocket claims grid`: how jobs find their workers, and how those that go by rank spread over
them. `rank` needs no home: anyone can compute a ranking.
"""

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated

from hocket.api import claims
from hocket.cli.declarations import App, Option
from hocket.cli.derived import add_operations
from hocket.cli.options import seconds
from hocket.cli.printing import console, emit, on_terminal, say, table
from hocket.cli.settings import open_service, settings
from hocket.errors import Usage
from hocket.kernel.texts import counted

if TYPE_CHECKING:
    from collections.abc import Collection

    from hocket.api.claims import GridKind, GridShare

claims_app = App()


@claims_app.callback()
def claims_group() -> None:
    """How jobs find their workers.

    \b
      hocket claims explain 01J9ZC
      hocket claims rank --job 01J9ZC0000000000000000000A --seed 7f3a… --worker w1 --worker w2
    """


add_operations(claims_app, claims.explain)


@claims_app.command()
def rank(
    job: Annotated[str, Option("--job", "ID", "The job's id, as it is hashed.")],
    seed: Annotated[str, Option("--seed", "HEX", "The first 64 hex digits of the job's signature, or all 128.")],
    worker: Annotated[
        list[str] | None, Option("--worker", "WORKER", "A worker's id; repeat it for each worker.")
    ] = None,
    weight: Annotated[
        list[str] | None, Option("--weight", "WORKER=N", "A worker's weight, 0.001 to 1000; the default is 1.")
    ] = None,
) -> None:
    """Rank workers for a job, as every worker does: rank 0 tries first, each further rank after another 5 s without a
    claim. The score is SHA-256 over job id, seed and worker id, and the lowest wins. With weights the highest weighted
    score wins, −w / ln h, where h is the score as a fraction.

    \b
      hocket claims rank --job 01J9ZC0000000000000000000A --seed 7f3a… --worker w1 --worker w2
      hocket claims rank --job 01J9ZC0000000000000000000A --seed 7f3a… --worker w1 --worker w2 --weight w2=2 --json
    """
    from hocket.families.jobs import rendezvous

    _check("--job", job)
    seed_bytes, weights = _seed(seed), _weights(worker or (), weight or ())
    scores = {each: rendezvous.score(job, seed_bytes, each) for each in weights}
    weighted = rendezvous.weighted_scores(scores, weights) if weight else {}
    ranking = rendezvous.rank_weighted(job, seed_bytes, weights)
    emit(
        {
            "ranking": [
                {"worker": each, "score": scores[each].hex(), "rank": place}
                | ({"weight": weights[each], "weighted_score": weighted[each]} if weighted else {})
                for place, each in enumerate(ranking)
            ]
        }
    )
    table(
        ("rank", "worker", "score", *(("weight", "weighted score") if weighted else ())),
        [
            (
                place,
                each,
                scores[each].hex(),
                *((f"{weights[each]:g}", f"{weighted[each]:.6g}") if weighted else ()),
            )
            for place, each in enumerate(ranking)
        ],
        "no workers",
    )


def _check(option: str, text: str) -> None:
    """A text that is hashed must have one UTF-8 form; bytes that are no UTF-8 arrive here as lone surrogates."""
    if not text or any("\ud800" <= each <= "\udfff" for each in text):
        raise Usage(f"bad {option} {text!r}; give it as UTF-8 text of at least one character")


def _seed(text: str) -> bytes:
    from hocket.families.jobs.rendezvous import SEED_BYTES

    wrong = "is not hex" if re.fullmatch("[0-9a-fA-F]*", text) is None else f"has {len(text)} hex digits"
    if wrong not in ("has 64 hex digits", "has 128 hex digits"):
        raise Usage(f"--seed {wrong}; give the first 64 hex digits of the signature, or all 128")
    return bytes.fromhex(text)[:SEED_BYTES]


def _weights(workers: "Collection[str]", given: "Collection[str]") -> dict[str, float]:
    """The weight of each worker."""
    from hocket.families.jobs.rendezvous import WEIGHT_MAX, WEIGHT_MIN, is_weight

    if not workers:
        raise Usage("no workers; name each with --worker")
    weights: dict[str, float] = {}
    for each in workers:
        _check("--worker", each)
        if each in weights:
            raise Usage(f"the worker {each!r} is named twice")
        weights[each] = 1.0
    weighted = set()
    for each in given:
        worker, equals, text = each.rpartition("=")
        if not equals:
            raise Usage(f"bad --weight {each!r}; write it like WORKER=2")
        if worker not in weights:
            raise Usage(f"--weight {each!r} is for a worker that no --worker names")
        if worker in weighted:
            raise Usage(f"the worker {worker!r} has two weights")
        weighted.add(worker)
        try:
            weights[worker] = float(text)
        except ValueError:
            raise Usage(f"bad --weight {each!r}: {text!r} is not a number") from None
        if not is_weight(weights[worker]):
            raise Usage(f"bad --weight {each!r}; a weight is between {WEIGHT_MIN:g} and {WEIGHT_MAX:g}")
    return weights


# How often a watched table is drawn again.
DRAW_S = 2.0


def grid(
    kind: Annotated[str | None, Option("--kind", "KIND", "Only this kind; `acme.` for all.")] = None,
    window: Annotated[str, Option("--window", "DURATION", "Count the claims of this last time.")] = "10m",
    watch: Annotated[bool, Option("--watch", help="Show it again every 2 seconds until Ctrl-C.")] = False,
) -> None:
    """Show how the jobs that go by rank spread over the nodes and their workers: for each kind the weights, each
    share of the claims against the share that weights and the time in the ranking promise, takeovers, refused claims
    and double starts. A deviation that chance does not explain is marked. The counts of nodes are of the newest 2,000
    jobs, within the window; those of workers are what they tell, by the minute.

    \b
      hocket claims grid --watch
      hocket claims grid --kind acme. --window 1h --json
    """
    from hocket.api.claims import grid

    window_s = seconds(window, "--window")
    assert window_s is not None
    with open_service() as service:
        while True:
            shown = grid(service, kind, round(window_s * 1000))
            if watch and on_terminal() and not settings.as_json:
                console().clear()
            emit(shown)
            _show(shown)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(DRAW_S)


def _show(shown: "list[GridKind]") -> None:
    for each in shown:
        say(
            f"{each.kind}: epoch {each.epoch} ({each.candidates}), {counted(each.claims, 'claim')},"
            f" {counted(each.takeovers, 'takeover')}, {each.refused} refused,"
            f" {counted(each.double_starts, 'double start')}",
            "bold",
        )
        rows = []
        for node in each.nodes:
            rows.append((node.name or node.node, f"{node.weight:g}", *_columns(node)))
            rows += [(f"  {worker.worker}", f"{worker.weight:g}", *_columns(worker)) for worker in node.workers]
        table(("node, workers", "weight", "claims", "share", "expected", "beyond chance"), rows, "no workers")
    if not shown:
        say("no jobs that go by rank", "dim")


def _columns(shared: "GridShare") -> tuple[object, ...]:
    marked = "yes" if shared.is_beyond_chance else "-"
    return shared.claims, _percent(shared.share), _percent(shared.expected), marked


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
