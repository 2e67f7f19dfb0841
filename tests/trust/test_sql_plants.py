"""Each check of a shared store's rows, taken away: the attack that it stops is found."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hocket.families.jobs import authorship
from hocket.families.jobs.rules import Job
from hocket.kernel.ids import content_hash
from hocket.kernel.policy import Policy, encode_policy
from hocket.log import (
    job_check,
    job_projector,
    permissions,
    state_check,
    store_check,
)
from hocket.store import JobEntry, Stage
from tests.trust import test_sql_job_rows as rows
from tests.trust import test_sql_sharer as attacks
from tests.trust import test_sql_states as states
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
    def believe(self: job_check.JobCheck, session: Any, job: Job, *args: Any) -> None:
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


def states_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_check.SessionStates, "state", lambda self, subject, row, latest: row)


def known_states_are_believed_for_ever(patch: pytest.MonkeyPatch) -> None:
    right = state_check.StateCheck.state

    def state(self: Any, session: Any, subject: Any, row: bytes | None, latest: bytes | None) -> Any:
        known = self._known.get(subject)
        return known if known is not None and known.row == row else right(self, session, subject, row, latest)

    patch.setattr(state_check.StateCheck, "state", state)


def states_are_believed_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    right = state_check.SessionStates.wrote_state

    def wrote_state(self: Any, subject: Any, state: bytes | None, last: bytes) -> None:
        right(self, subject, state, last)
        self._states.wrote(self.session, {subject: (state, last)})

    patch.setattr(state_check.SessionStates, "wrote_state", wrote_state)
    known_states_are_believed_for_ever(patch)


def artifacts_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_check.SessionStates, "artifacts", lambda self, found: found)


def creators_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_check, "_made", lambda op, artifact, permissions: state_check.artifact_of(op, op.payload))


def reasons_are_believed(patch: pytest.MonkeyPatch) -> None:
    folded = state_check._Fold._folded

    def counting(self: Any, rows: Any, *others: Any) -> Any:
        return folded(self, [row for row in rows if not row.reason], *others)

    patch.setattr(state_check._Fold, "_folded", counting)


def registers_are_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permissions.CheckedRegisters, "_checked", lambda self, session, check, fresh, rows: rows)


def designations_need_no_grant(patch: pytest.MonkeyPatch) -> None:
    def read(self: permissions.PermissionsReader, session: Any, fresh: Any) -> permissions.Permissions:
        return self._made(session, fresh, self._registers.read(session, fresh))

    patch.setattr(permissions.PermissionsReader, "_read", read)


def revocations_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        permissions.CheckedRegisters, "_with_lost", lambda self, session, check, revocations, stored: revocations
    )


def revocations_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(permissions.RevocationFile, "add", lambda self, revocations: None)


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
    (states_are_believed, attacks.test_the_options_of_a_kind_are_those_of_its_definition),
    *(
        (states_are_believed, partial(attack, process=process))
        for attack in (
            states.test_a_hold_that_was_ended_with_sql_still_holds,
            states.test_a_scope_that_was_deleted_is_still_there,
            states.test_a_fence_does_not_go_down,
            states.test_a_hold_that_nobody_asked_for_holds_nothing,
            states.test_a_leased_message_is_not_given_again,
            states.test_an_acknowledged_message_is_not_given_again,
            states.test_a_message_does_not_reach_another_agent,
            states.test_the_value_of_a_row_is_the_signed_one,
            states.test_a_sharer_drains_no_other_node,
            partial(states.test_a_quarantined_sharer_stays_so, is_deleted=True),
        )
        for process in (states.the_same, states.another)
    ),
    (states_are_believed, states.test_a_message_that_nobody_has_sent_is_not_shown),
    (
        artifacts_are_believed,
        partial(
            states.test_an_artifact_is_what_its_op_says,
            column="hash",
            value=content_hash(b"other"),
            process=states.another,
        ),
    ),
    (creators_are_believed, states.test_an_artifact_that_its_author_may_not_create_is_none),
    (states_are_believed, states.test_an_audit_names_changed_states),
    (known_states_are_believed_for_ever, states.test_a_row_from_before_another_nodes_op_is_not_believed),
    (known_states_are_believed_for_ever, states.test_a_message_that_another_node_has_leased_is_not_given_again),
    (known_states_are_believed_for_ever, states.test_what_a_revoked_node_has_put_back_is_not_believed),
    (states_are_believed_before_the_commit, states.test_a_state_that_was_never_committed_is_not_believed),
    (
        reasons_are_believed,
        partial(states.test_an_op_that_is_called_bad_still_counts, column="reason = 60", process=states.another),
    ),
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
