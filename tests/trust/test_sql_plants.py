"""Each check of a shared store's rows, taken away: the attack that it stops is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.roster import Job
from hocket.log import checked_registers, job_check, job_projector, permissions, store_check
from hocket.store import JobEntry, Stage
from hocket.work import authorship
from tests.trust import test_sql_job_rows as rows
from tests.trust import test_sql_sharer as attacks
from tests.trust.sharer import SharedMesh

RETRIES = encode_policy(Policy(retries=9))
Plant = Callable[[pytest.MonkeyPatch], None]
Attack = Callable[[SharedMesh], None]


def ops_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_check.StoreCheck, "_faults", lambda self, session, new: [None] * len(new))
    patch.setattr(store_check.StoreCheck, "_binding_fault", lambda self, new: None)


def columns_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_check.StoreCheck, "_is_good", lambda self, row, verdict: True)


def job_rows_are_believed(patch: pytest.MonkeyPatch) -> None:
    def believe(self: job_check.JobCheck, session: Any, job: Job, op: Any, permissions: Any, faults: Any) -> None:
        self.enter(JobEntry(job, Stage.READY, None))

    patch.setattr(job_check.JobCheck, "_judge_new", believe)


def submitters_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_check.JobCheck, "_unauthorised", lambda self, *args: None)


def claims_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_check.JobCheck, "_claim_fault", lambda self, *args: None)


def claimers_need_no_grant(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_check, "_is_claim", lambda *args: True)
    patch.setattr(job_check, "_late_fault", lambda session, job: None)


def entries_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_projector.JobProjector, "sound", lambda self, entries: entries)


def late_ops_are_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    knows = job_check.JobCheck.knows
    patch.setattr(job_check.JobCheck, "knows", lambda self, entry: knows(self, entry._replace(other_last=None)))


def stages_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(job_projector.JobProjector, "is_blocked", lambda self, job: False)


def dependents_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Policy, "dependencies", lambda self: AnyJob())


class AnyJob(tuple[bytes, ...]):
    def __contains__(self, job_id: object) -> bool:
        return True


def keys_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_check.StoreCheck, "nodes", lambda self, session, keys: keys)


def routes_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_check.StoreCheck, "route", lambda self, *args: True)


def definitions_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_check.StoreCheck, "definition", lambda self, *args: True)


def registers_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checked_registers.CheckedRegisters, "_checked", lambda self, session, check, fresh, rows: rows)


def designations_need_no_grant(patch: pytest.MonkeyPatch) -> None:
    def read(self: permissions.PermissionsReader, session: Any, fresh: Any) -> permissions.Permissions:
        return self._made(session, fresh, self._registers.read(session, fresh))

    patch.setattr(permissions.PermissionsReader, "_read", read)


def revocations_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        checked_registers.CheckedRegisters, "_with_lost", lambda self, session, check, revocations, stored: revocations
    )


def revocations_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checked_registers.RevocationFile, "add", lambda self, revocations: None)


def authors_are_those_of_the_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(authorship, "replace", lambda job, **changes: job)


PLANTS: list[tuple[Plant, Attack]] = [
    (ops_are_believed, attacks.test_a_changed_command_is_not_run_by_another_process_either),
    (ops_are_believed, attacks.test_the_sharers_signature_does_not_make_a_command_the_owners),
    (ops_are_believed, attacks.test_a_changed_op_is_not_folded),
    (ops_are_believed, attacks.test_a_changed_op_is_neither_exported_nor_sent),
    (ops_are_believed, attacks.test_a_schedule_whose_op_was_changed_ticks_no_job),
    (columns_are_believed, lambda mesh: attacks.test_an_op_with_other_columns_than_its_bytes_is_not_used(mesh, "key")),
    (
        job_rows_are_believed,
        lambda mesh: attacks.test_a_job_with_another_kind_or_policy_than_its_op_is_not_run(mesh, "policy", RETRIES),
    ),
    (submitters_are_believed, attacks.test_a_job_that_its_author_may_not_submit_is_not_run),
    (claims_are_believed, attacks.test_a_claim_is_its_claimers_op),
    (claimers_need_no_grant, attacks.test_a_claim_is_its_claimers_op),
    (entries_are_believed, attacks.test_the_sharer_claims_no_job_by_another_kind),
    (entries_are_believed, lambda mesh: rows.test_a_finished_job_that_is_put_back_does_not_run_again(mesh, False)),
    (entries_are_believed, rows.test_no_two_runs_share_a_fence),
    (entries_are_believed, rows.test_a_lease_does_not_end_because_its_row_says_so),
    (late_ops_are_not_looked_for, rows.test_a_claim_that_has_ended_and_is_put_back_completes_nothing),
    (stages_are_believed, rows.test_a_blocked_job_does_not_run_because_its_row_says_ready),
    (dependents_are_believed, rows.test_only_jobs_that_come_after_a_lost_one_are_cancelled_with_it),
    (keys_are_believed, attacks.test_a_node_has_the_key_of_its_delegation),
    (routes_are_believed, attacks.test_a_kind_goes_where_an_owner_has_routed_it),
    (definitions_are_believed, attacks.test_the_options_of_a_kind_are_those_of_its_definition),
    (registers_are_believed, attacks.test_a_delegation_without_an_op_grants_nothing),
    (registers_are_believed, attacks.test_an_inserted_proof_of_two_histories_proves_nothing),
    (registers_are_believed, attacks.test_a_deleted_revocation_still_counts),
    (designations_need_no_grant, attacks.test_the_sharer_does_not_become_the_coordinator),
    (revocations_are_forgotten, attacks.test_a_deleted_revocation_still_counts),
    (revocations_are_not_kept, attacks.test_a_revocation_that_a_home_has_seen_counts_in_its_next_process),
    (authors_are_those_of_the_row, attacks.test_a_command_is_its_signers_whatever_its_row_says),
]


@pytest.mark.slow
@pytest.mark.req("LW-48")
@pytest.mark.parametrize(
    ("plant", "attack"), PLANTS, ids=[f"{plant.__name__}-{number}" for number, (plant, _) in enumerate(PLANTS)]
)
def test_a_check_that_is_taken_away_is_missed(
    plant: Plant, attack: Attack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = SharedMesh(tmp_path)
    plant(monkeypatch)
    try:
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            attack(mesh)
    finally:
        mesh.close()
