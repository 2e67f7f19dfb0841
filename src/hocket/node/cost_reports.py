"""What jobs of this node's log cost, by its rate card or by another."""

from pathlib import Path

from hocket.errors import Usage
from hocket.node.rates import need_rates, prices_of
from hocket.node.runtime import Runtime
from hocket.work import costs as runs
from hocket.work import view
from hocket.work.artifacts import Fetch
from hocket.work.costs import CostRow, Costs, CostsBy


def job_cost(runtime: Runtime, job: str, rates: Path | None = None, fetch: Fetch | None = None) -> CostRow:
    """What a job cost; `job` is an id, or the beginning of one."""
    prices = prices_of(runtime.home, need_rates(runtime.home, rates), runtime.log.reading())
    with runtime.read() as session:
        return runs.job_cost(session, runtime.blobs, view.find(session, job).job, prices, fetch)


def costs(runtime: Runtime, by: CostsBy | str, since_ms: int = 0, rates: Path | None = None) -> Costs:
    """The costs of the runs that ended since that time. A proof whose content is not here counts by its time alone."""
    try:
        chosen = CostsBy(by)
    except ValueError:
        raise Usage(f"costs go by {', '.join(CostsBy)}, not by {by!r}") from None
    prices = prices_of(runtime.home, need_rates(runtime.home, rates), runtime.log.reading())
    with runtime.read() as session:
        may_charge = runtime.log.permissions(session).may_charge
        return runs.costs_by(session, runtime.blobs, chosen, prices, may_charge, since_ms)
