"""Lists of jobs in pages, and who may give commands."""

import msgspec
import pytest

import hocket.testing
from hocket.api import Principal, Service, job_lists, jobs
from hocket.api.job_lists import JobQuery, OutcomeName
from hocket.api.job_operations import job_submits
from hocket.errors import NotAuthorised, Usage
from hocket.families.jobs import view
from hocket.families.jobs.view import JobState


def done(ctx: hocket.Context) -> None:
    pass


def broken(ctx: hocket.Context) -> None:
    raise ValueError("no such frame")


GOOD, BAD = hocket.JobType("s.good", function=done), hocket.JobType("s.bad", function=broken)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_pages_have_every_job_once_and_the_newest_first(size: int) -> None:
    with hocket.testing.node() as node:
        made = [node.submit("s.good").job_id for _ in range(7)]
        service = Service(node.runtime)
        seen: list[str] = []
        before = None
        while True:
            page = job_lists.page(service, JobQuery(limit=size, before=before))
            seen += [each.job_id for each in page.items]
            if page.next is None:
                break
            assert len(page.items) == size
            before = page.next
        assert seen == sorted(made, reverse=True)


def test_pages_of_one_outcome() -> None:
    with hocket.testing.node() as node:
        bad = []
        for _ in range(12):
            bad.append(node.submit(BAD).job_id)
            for _ in range(3):
                node.submit(GOOD)
        node.drain([GOOD, BAD])
        service = Service(node.runtime)
        first = job_lists.page(service, JobQuery(outcome=OutcomeName.failed, limit=5))
        rest = job_lists.page(service, JobQuery(outcome=OutcomeName.failed, limit=50, before=first.next))
        found = [each.job_id for each in (*first.items, *rest.items)]
        assert found == sorted(bad, reverse=True) and rest.next is None
        assert job_lists.page(service, JobQuery(JobState.pending, OutcomeName.failed)).items == []


def test_a_page_begins_at_a_job() -> None:
    with hocket.testing.node() as node, pytest.raises(Usage, match="not a job id"):
        job_lists.page(Service(node.runtime), JobQuery(before="nonsense"))


def test_answers_have_the_fields_of_a_handles_status() -> None:
    """Programs read the same from Python and from the command line."""
    with hocket.testing.node() as node:
        handle = node.submit(BAD)
        node.drain([BAD])
        service = Service(node.runtime)
        shown = jobs.show(service, handle.job_id)
        assert msgspec.to_builtins(shown) == handle.status()
        assert shown.ops[0].type == "ScheduleJob" and shown.error == "ValueError: no such frame"
        with node.runtime.read() as session:
            brief = view.brief(session, view.find(session, handle.job_id))
        assert msgspec.json.encode(jobs.brief(service, handle.job_id)) == msgspec.json.encode(brief)


def test_a_principal_of_another_node_reads_and_gives_no_command() -> None:
    with hocket.testing.node() as node:
        job_id = node.submit("s.good").job_id
        service = Service(node.runtime, Principal(node.runtime.log.node ^ 1, "planner"))
        assert jobs.show(service, job_id).state == "pending"
        for command in (jobs.cancel, jobs.retry):
            with pytest.raises(NotAuthorised, match="cannot write as this node"):
                command(service, job_id, "because")
        with pytest.raises(NotAuthorised):
            job_submits.submit_drafts(service, [GOOD.draft({})])
        assert jobs.show(service, job_id).state == "pending"
        assert jobs.cancel(Service(node.runtime), job_id, "because").outcome == "cancelled"
