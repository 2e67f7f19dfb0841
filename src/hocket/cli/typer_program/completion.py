"""What a shell offers for a word that names something of the home: jobs, kinds, nodes. Which words those are
follows from what their place is called in the help. A home that cannot be read offers nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import typer

from hocket.api import Service, job_lists, kinds, nodes
from hocket.node.home import Home, default_home
from hocket.node.runtime import Runtime

LATEST_JOBS = 100

# A word to offer, and what a shell shows beside it.
Offered = tuple[str, str]


def offers(metavar: str | None) -> Callable[[typer.Context, str], list[Offered]] | None:
    """What typer calls for the words of this place; None if nothing of the home stands there."""
    listed = _LISTS.get(metavar or "")
    if listed is None:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[Offered]:
        home = ctx.params.get("home") or ctx.find_root().params.get("home") or default_home()
        with suppress(Exception):
            runtime = Runtime.open(Home(home).path)
            try:
                return [each for each in dict(listed(Service(runtime))).items() if each[0].startswith(incomplete)]
            finally:
                runtime.close()
        return []

    return complete


def _jobs(service: Service) -> Iterator[Offered]:
    for each in job_lists.listing(service, limit=LATEST_JOBS).items:
        yield each.job_id, f"{each.kind}, {each.outcome or each.state}"


def _kinds(service: Service) -> Iterator[Offered]:
    for shown in kinds.listing(service):
        yield shown.kind, "has options"
    for each in job_lists.listing(service, limit=LATEST_JOBS).items:
        yield each.kind, "has jobs"


def _nodes(service: Service) -> Iterator[Offered]:
    for each in nodes.listing(service):
        yield each.name or each.node, each.standing


_LISTS: dict[str, Callable[[Service], Iterator[Offered]]] = {
    "JOB": _jobs,
    "KIND": _kinds,
    "NODE": _nodes,
}
