"""What jobs cost. `hocket.extensions.cost.node_costs` computes it for programs, too."""

from pathlib import Path

from hocket.api import Service
from hocket.extensions.command.request import KIND as COMMAND
from hocket.extensions.cost import node_costs as costs
from hocket.extensions.cost.costs import CostRow, Costs, CostsBy
from hocket.extensions.cost.rate_card import Estimate


def of_job(service: Service, job: str, rates: Path | None = None) -> CostRow:
    """The cost of a job. Its proofs are fetched from other nodes if they are not here."""
    return costs.job_cost(service.runtime, job, rates, service.fetch)


def by(service: Service, group: CostsBy, window_ms: int | None = None, rates: Path | None = None) -> Costs:
    since_ms = 0 if window_ms is None else service.runtime.log.reading().wall - window_ms
    return costs.costs(service.runtime, group, since_ms, rates)


def expected(service: Service, what: str) -> Estimate | None:
    """What a job of a kind is expected to cost, or, for `hocket.run PROGRAM`, a command."""
    kind, _, program = what.partition(" ")
    return costs.estimate_of(service.runtime, kind, program if kind == COMMAND and program else None)
