"""Refuses jobs that would cost more than their caps, going by what jobs like them have cost, and jobs that would charge
an account which this node may not charge.
"""

from collections.abc import Iterable

import msgspec

from hocket.errors import NotAuthorised, OverBudget
from hocket.kernel.ids import node_text
from hocket.kernel.rate_card import Estimate
from hocket.node.rates import need_rates, prices_of, rates_of
from hocket.node.runtime import Runtime
from hocket.work.command.request import KIND as COMMAND
from hocket.work.costs import cost_estimate
from hocket.work.jobs import Draft


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
