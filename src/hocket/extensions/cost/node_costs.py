"""The rate card of a node: the file that $HOCKET_RATES names, else `rates.yaml` in its home. What jobs of its log cost
by that card, what others like them are expected to cost, and which jobs are refused because of it.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hocket.errors import NotAuthorised, OverBudget, Usage
from hocket.extensions.command.request import KIND as COMMAND
from hocket.extensions.cost import costs as runs
from hocket.extensions.cost.costs import CostRow, Costs, CostsBy, cost_estimate
from hocket.extensions.cost.rate_card import BadRateCard, Estimate, RateCard, read_rate_card
from hocket.extensions.tempo.policy_file import tempo_policy
from hocket.families.artifacts import Fetch
from hocket.families.jobs import view
from hocket.families.jobs.requests import Draft
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import node_text
from hocket.kernel.policy import RATES_LABEL
from hocket.kernel.yaml_subset import TEXT_BYTES_MAX
from hocket.node.home import Home
from hocket.node.runtime import Runtime
from hocket.node.variables import RATES, given

if TYPE_CHECKING:
    from hocket.extensions.cost.costs import Prices
    from hocket.node.local_node import LocalNode
    from hocket.work.environment import WorkerOptions


FILE = "rates.yaml"


def rates_of(home: Home, path: Path | str | None = None) -> RateCard | None:
    """The card at `path`, or the node's own; None if it has none. Raises Usage with what is wrong in the file."""
    named = path or given(RATES)
    file = Path(named).expanduser() if named else home.path / FILE
    try:
        with file.open("rb") as opened:
            return read_rate_card(opened.read(TEXT_BYTES_MAX + 1))
    except FileNotFoundError:
        if named is None:
            return None
        raise Usage(f"no rate card at {file}") from None
    except OSError as error:
        raise Usage(f"cannot read the rate card {file}: {error.strerror}") from None
    except BadRateCard as error:
        raise Usage(f"bad rate card {file}: {error}") from None


def price(runtime: Runtime, options: "WorkerOptions") -> None:
    """A worker that is made with these options from now on prices its runs, and takes jobs that are capped by their
    price, if this node has a rate card.
    """
    if (rates := rates_of(runtime.home)) is not None:
        from hocket.extensions.cost.run_meter import EXTENSION, metering

        options.labels = {*options.labels, RATES_LABEL}
        runtime.pacers[EXTENSION] = metering(rates)


@asynccontextmanager
async def priced(node: "LocalNode", options: "WorkerOptions") -> AsyncIterator[None]:
    """Round a worker: its runs are priced."""
    price(node.runtime, options)
    yield


def prices_of(home: Home, card: RateCard, now: Hlc) -> "Prices":
    """A run that does not say its beat is charged by that of the home's tempo, if it has one."""
    from hocket.extensions.cost.costs import Prices

    policy = tempo_policy(home)
    return Prices(card, card.beat_ms if policy is None else policy.initial_tempo.beat_ms, now.wall)


def need_rates(home: Home, path: Path | str | None = None) -> RateCard:
    found = rates_of(home, path)
    if found is None:
        raise Usage(f"this node has no rate card; write {home.path / FILE}, or name one with ${RATES}")
    return found


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


def estimate_of(runtime: Runtime, kind: str, program: str | None = None) -> Estimate | None:
    """What a job of this kind, or a command of this program, is expected to cost; None without a history."""
    prices = prices_of(runtime.home, need_rates(runtime.home), runtime.log.reading())
    with runtime.read() as session:
        return cost_estimate(session, runtime.blobs, prices, kind, program)


def check_budgets(runtime: Runtime, drafts: Iterable[Draft]) -> None:
    """Raises OverBudget if the median of a job's history is over its cap. Nothing is known without a rate card here, or
    without a history; then the cap is kept by the worker. Raises NotAuthorised if a job names an account that this node
    may not charge.
    """
    drafts = list(drafts)
    _check_accounts(runtime, {each.policy.budget.charge_to for each in drafts if each.policy.budget is not None})
    capped = [each for each in drafts if each.policy.budget is not None and each.policy.budget.max_cost is not None]
    rates = rates_of(runtime.home) if capped else None
    if rates is None:
        return
    for draft in capped:
        expected = estimate_of(runtime, draft.kind, program_of(draft))
        cap = draft.policy.budget.max_cost if draft.policy.budget is not None else None
        if expected is not None and cap is not None and expected.median > cap:
            raise OverBudget(
                f"a job of {draft.kind} is expected to cost {expected.median:.6g} {rates.currency} (the median of"
                f" {expected.jobs}; the 90th percentile is {expected.p90:.6g}), and may cost {cap:g}; nothing was"
                " submitted"
            )


def _check_accounts(runtime: Runtime, accounts: set[str | None]) -> None:
    named = sorted(each for each in accounts if each is not None)
    if not named:
        return
    log = runtime.log
    permissions = log.permissions()
    for account in named:
        if not permissions.may_charge(log.node, log.physical(), account):
            raise NotAuthorised(
                f"this node may not charge the account {account!r}, so nothing was submitted; the owner grants it with"
                f" --may account:charge:{account}, and the account {node_text(log.node)} needs no grant"
            )


def program_of(draft: Draft) -> str | None:
    """The program of a command; None for any other job."""
    return str(msgspec.json.decode(draft.payload)["command"][0]) if draft.kind == COMMAND else None
