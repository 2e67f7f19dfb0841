"""Costs for programs: of one job, of many together, and what a job of a kind is expected to cost."""

from typing import Annotated

from msgspec import Meta

from hocket.api import Service
from hocket.api.jobs import READ, JobText, found_job
from hocket.api.operation import TokenNeed, operation
from hocket.extensions.cost.costs import CostRow, Costs, CostsBy, costs, estimate_of
from hocket.extensions.cost.costs import job_cost as cost_of
from hocket.extensions.cost.rate_card import Estimate
from hocket.families.jobs.rules import KIND_LENGTH_MAX
from hocket.kernel.ids import EXACT_MAX

# The newest jobs that a sum for a program looks at.
SUMMED_MAX = 5_000
SUMMED_DEFAULT = 1_000


@operation("job_cost", "GET /v1/jobs/{job}/cost", READ)
def job_cost(service: Service, job: JobText) -> CostRow:
    """Show what the runs of a job used and cost so far, by the rate card of this node; the token also needs
    `artifact:read` for its kind. Its budget is among its options.
    """
    with service.read() as session:
        service.check("Artifact", "Read", found_job(service, session, job, "Read").kind)
    return cost_of(service.runtime, job)


@operation("list_costs", "GET /v1/costs", TokenNeed("Job", "Read"))
def sums(
    service: Service,
    by: Annotated[CostsBy, Meta(description="What to sum up by.")] = CostsBy.KIND,
    since_ms: Annotated[int, Meta(ge=0, le=EXACT_MAX, description="Only runs that ended at this time or later.")] = 0,
    jobs: Annotated[int, Meta(ge=1, le=SUMMED_MAX, description="How many of the newest jobs to look at.")] = (
        SUMMED_DEFAULT
    ),
) -> Costs:
    """Show what jobs used and cost, summed up by kind, node or account, by the rate card of this node. The token also
    needs `artifact:read`, both without a prefix. A proof that is on another node counts by its time alone.
    """
    service.check("Artifact", "Read")
    return costs(service.runtime, by, since_ms, jobs_max=jobs)


@operation("estimate_cost", "GET /v1/costs/estimate", TokenNeed("Job", "Read", lambda service, asked: [asked["kind"]]))
def estimate(
    service: Service,
    kind: Annotated[str, Meta(min_length=1, max_length=KIND_LENGTH_MAX, description="The kind of the job.")],
) -> Estimate | None:
    """Show what a job of a kind is expected to cost, from the newest that have succeeded; null without such jobs. The
    token also needs `artifact:read` for the kind.
    """
    service.check("Artifact", "Read", kind)
    return estimate_of(service.runtime, kind)
