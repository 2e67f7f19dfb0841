"""What a worker runs, as it tells others: its kinds, its labels, and the commands of other nodes that it allows. No
node decides by this who holds a job. It lets a node say which worker could take a job, and why none does; and
`members` knows by it which workers are ranked for a job.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from hocket.kernel.decoding import decode_json
from hocket.work.claim_tally import Tally

if TYPE_CHECKING:
    from hocket.work.handlers import JobType

# The longest text about the workers of one node. What does not fit is left out.
TEXT_CHARS_MAX = 16_384


class Serving(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker. A kind that ends with a dot stands for every kind below it. `allow`, `allow_any` and `variables`
    limit the commands of other nodes that it runs, which get the `network` only with this switch; `refuses` is why it
    runs none, as an `Obstacle`; `labels` are what jobs may need. `id` is the worker's own, and
    `weight` its share of the jobs that go by rank; a worker without an id is not ranked. `since_ms` is when it began,
    and `claimed` how many jobs it has claimed by rank: kind, minute, claims.
    """

    kinds: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    allow_any: bool = False
    variables: tuple[str, ...] = ()
    network: bool = False
    refuses: str = ""
    labels: tuple[str, ...] = ()
    id: str = ""
    weight: float = 1.0
    since_ms: int = 0
    claimed: Tally = ()

    def covers(self, kind: str) -> bool:
        return any(kind == each or (each.endswith(".") and kind.startswith(each)) for each in self.kinds)

    def labelled(self, labels: Iterable[str]) -> "Serving":
        return msgspec.structs.replace(self, labels=tuple(sorted(labels)))

    def ranked(self, id: str, weight: float, since_ms: int = 0) -> "Serving":
        return msgspec.structs.replace(self, id=id, weight=weight, since_ms=since_ms)


class WorkerPart(Protocol):
    """What an extension adds to a worker: its jobs, and what other nodes are told about them."""

    kind: str
    limit: Callable[[Serving], Serving]

    def job_type(self) -> "JobType": ...


def serving(kinds: Iterable[str], parts: Iterable[WorkerPart] = ()) -> Serving:
    """What a worker of these kinds runs, with these parts."""
    found = Serving(tuple(sorted(kinds)))
    for each in parts:
        if each.kind in found.kinds:
            found = each.limit(found)
    return found


def without_tallies(workers: Iterable[Serving]) -> list[Serving]:
    return [msgspec.structs.replace(each, claimed=()) for each in workers]


def serving_text(workers: Sequence[Serving]) -> str:
    """The workers as text: if they do not fit, without what they have claimed, and then without the last ones."""
    shown = list(workers)
    if len(text := msgspec.json.encode(shown).decode()) > TEXT_CHARS_MAX:
        shown = without_tallies(shown)
    while len(text := msgspec.json.encode(shown).decode()) > TEXT_CHARS_MAX:
        shown.pop()
    return text


def read_serving(text: str) -> list[Serving]:
    """The workers in a text of this or another program; none if it is unreadable."""
    try:
        return decode_json(text or "[]", list[Serving])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
