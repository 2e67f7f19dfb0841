"""A log forgets what its owner lets it forget, and nothing else: what remains is as before, fences never fall, nodes
agree, and every step can be broken off.
"""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import Conflict
from hocket.events.nodes import HorizonDiffers
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import tick_id, tick_policy
from hocket.families.retention.facts import REPORT_TYPE, RETENTION, WINDOW_TYPE, Retained, SetRetention
from hocket.families.retention.rules import rule_of
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import pack
from hocket.kernel.ids import content_hash, make_ulid, ulid_ms, ulid_text
from hocket.kernel.ops import NO_ID, Op, artifact_id, decode
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.snapshots.leaves import Leaf, LeafTag
from hocket.kernel.vocabulary import (
    CompleteJob,
    CreateArtifact,
    EvictArtifact,
    ScheduleJob,
    SetSchedule,
    SetSuccession,
    Subject,
    TakeOver,
    Telemetry,
    number_of,
)
from hocket.log.archives.reached import ArchivedHead, note_archive
from hocket.log.audit import verify
from hocket.log.checkpoints.horizon_notes import horizon_note
from hocket.log.citations import keyed
from hocket.log.copies import export_ops
from hocket.log.rebuild import rebuild
from hocket.log.retention.proof import remaining_leaves
from hocket.node.runtime import Runtime
from hocket.store.horizon_rows import GapRow, HorizonRow
from tests.log.processes import go, start
from tests.log.pruning_world import DAY, HOUR, Member, World, take_over
from tests.stores import STORES, StoreKind, raw

pytestmark = pytest.mark.touches("LW-33")


def is_sound(member: Member) -> bool:
    assert verify(member.log.store, user=member.log.user, marks=member.log.signer, is_bound=True).findings == []
    return True


def states(shown: dict[str, Any]) -> dict[Subject, bytes]:
    return {subject: state for subject, state in shown["subjects"].items() if subject.family != RETENTION}


def rebuilt(member: Member) -> dict[str, bytes]:
    before = member.digests()
    assert rebuild(member.log.store, member.log.permissions_reader, member.world.now).unchanged
    assert member.digests() == before
    return before


def prune(world: World) -> None:
    assert world.owner.move_horizon()
    world.exchange(1)
    for each in world.members:
        each.follow()


@pytest.mark.req("LW-52")
def test_ended_jobs_go_and_the_rest_stays() -> None:
    world = World()
    owner, other = world.members
    old = [owner.run_job("acme.render") for _ in range(3)]
    assert isinstance(owner.erase(old[0], "acme.render"), Op)
    open_one, kept = owner.submit("acme.render"), owner.run_job("acme.other")
    world.wait(3 * DAY)
    young = owner.run_job("acme.render")
    world.exchange()
    owner.retain(match="acme.render", ms=DAY)
    world.wait(HOUR)
    before = owner.shown()
    entries = owner.entries()
    prune(world)
    for each in world.members:
        after = each.shown()
        gone = set(before["jobs"]) - set(after["jobs"])
        assert gone == set(old)
        assert all(after["jobs"][job] == before["jobs"][job] for job in after["jobs"])
        assert {open_one, kept, young} <= after["jobs"].keys()
        assert each.entries() < entries and not each.read(lambda session: session.erasure_ops(old[0]))
        assert each.read(lambda session: session.horizon()).is_deleted
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(other)


@pytest.mark.req("LW-52")
def test_locks_rows_and_messages_keep_their_last_word() -> None:
    world = World()
    owner, other = world.members
    for _ in range(5):
        owner.acquire("file:a")
        owner.release()
    owner.acquire("file:b", ttl_ms=DAY)
    written: list[Op] = []
    for n in range(3):
        put = owner.put("t/a", b'{"n":%d}' % n, written[-1].id if written else None)
        assert isinstance(put, Op)
        written.append(put)
    thread = owner.send()
    claim = owner.take_message(thread)
    assert claim is not None
    owner.acknowledge(thread, claim)
    waiting = owner.send()
    world.wait(12 * HOUR)
    last = owner.put("t/a", b'{"n":9}', written[-1].id)
    assert isinstance(last, Op)
    owner.retain(Retained.MESSAGES, ms=HOUR)
    world.wait(2 * HOUR)
    world.exchange()
    before, fence = owner.shown(), owner.scope().fence  # type: ignore[union-attr]
    prune(world)
    for each in world.members:
        after = each.shown()
        assert states(after) == states(before)
        assert set(before["messages"]) - set(after["messages"]) == {thread} and waiting in after["messages"]
        assert each.read(lambda session: session.has_bases())
        assert is_sound(each)
    next_lock = owner.acquire("file:c")
    assert isinstance(next_lock, Op) and owner.scope().fence == fence + 1  # type: ignore[union-attr]
    # The version from before the horizon is still merged with.
    assert isinstance(owner.put("t/a", b'{"n":0,"m":1}', written[0].id), Op)
    assert owner.row("t/a").value == b'{"m":1,"n":9}'
    world.exchange()
    assert rebuilt(owner) == rebuilt(other)


def write_window(member: Member, content: bytes) -> tuple[bytes, bytes]:
    """A window that begins now, and its report, as a reverb writes them."""
    window_ms, made = member.world.now, []
    for type in (WINDOW_TYPE, REPORT_TYPE):
        inputs = tuple(made[-1:])
        payload = CreateArtifact(
            make_ulid(window_ms, bytes(10)), type, None, inputs, content_hash(content), content, None, None, 1
        )
        payload = msgspec.structs.replace(payload, artifact_id=artifact_id(member.log.node, payload))
        assert isinstance(member.say(payload), Op)
        made.append(payload.artifact_id)
    return made[0], made[1]


@pytest.mark.req("LW-52")
def test_windows_go_by_a_rule_of_their_own() -> None:
    world = World()
    owner, other = world.members
    job = owner.run_job("k")
    note = owner.say(CreateArtifact(NO_ID, "acme.note", None, (), content_hash(b"n"), b"n", None, None, 1))
    old = [write_window(owner, b"old"), write_window(other, b"of another node")]
    assert isinstance(owner.say(EvictArtifact(old[0][0])), Op)
    used = write_window(owner, b"used")
    user = owner.say(CreateArtifact(NO_ID, "acme.sum", None, (used[1],), content_hash(b"s"), b"s", None, None, 1))
    assert isinstance(note, Op) and isinstance(user, Op)
    world.wait(3 * DAY)
    young = write_window(owner, b"young")
    world.wait(HOUR)
    world.exchange()
    with owner.log.store.read() as session:
        assert owner.log.horizons.plan(session, rules=()) is None
    owner.retain(Retained.WINDOWS, ms=DAY)
    world.exchange()
    with owner.log.store.read() as session:
        plan = owner.log.horizons.plan(session)
    assert plan is not None and len(plan.settlement.remains.windows) == 1 and plan.settlement.gone_ops == 5
    prune(world)
    for each in world.members:
        after = each.shown()
        assert not {*old[0], *old[1]} & after["artifacts"] and job in after["jobs"]
        assert {*used, *young, note.id, user.id} <= after["artifacts"]
        assert each.read(lambda session: not session.is_evicted(old[0][0]))
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(other)


@pytest.mark.req("LW-52")
def test_fences_go_on_through_many_horizons() -> None:
    world = World()
    owner, other = world.members
    owner.retain(ms=HOUR)
    fences = []
    for _ in range(4):
        owner.acquire("file:a")
        fences.append(owner.scope().fence)  # type: ignore[union-attr]
        owner.release()
        owner.run_job("acme.render")
        world.wait(6 * HOUR)
        world.exchange()
        prune(world)
    assert fences == sorted(set(fences))
    for each in world.members:
        assert each.shown()["jobs"].keys() <= {owner.jobs[-1]}
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(other)


@pytest.mark.req("LW-52")
def test_a_job_that_another_job_or_a_later_op_refers_to_stays() -> None:
    world = World()
    owner = world.owner
    needed, failed, gone = owner.run_job("k"), owner.submit("k"), owner.run_job("k")
    claim = owner.claim(failed)
    assert claim is not None
    owner.fail(failed, claim)
    waits = owner.submit("other", f'{{"after":["{ulid_text(needed)}"]}}'.encode())
    owner.retain(ms=HOUR, match="k")
    world.wait(DAY)
    assert isinstance(owner.retry(failed), Op)
    world.exchange()
    prune(world)
    for each in world.members:
        assert {needed, failed, waits} <= each.shown()["jobs"].keys() and gone not in each.shown()["jobs"]
        assert is_sound(each)
    rebuilt(owner)


@pytest.mark.req("LW-52")
def test_what_a_node_wrote_before_the_horizon_and_brings_after_it_does_not_count() -> None:
    world = World(3)
    owner, other, away = world.members
    owner.run_job("k")
    world.exchange()
    owner.retain(ms=HOUR, match="k")
    late = away.submit("k")
    away.put("t/late", b"1")
    world.wait(DAY)
    for each in (owner, other):
        each.pull(owner)
    assert owner.move_horizon()
    other.pull(owner)
    owner.follow()
    other.follow()
    soon = away.submit("k")
    world.exchange()
    away.follow()
    for each in world.members:
        assert each.read(lambda session: session.horizon()) is not None
        assert late not in each.shown()["jobs"] and soon in each.shown()["jobs"] and each.row("t/late") is None
        reason = each.read(lambda session: session.op(late).reason)
        assert reason == Reason.BEHIND_HORIZON
        assert is_sound(each)
    assert len({str(sorted(rebuilt(each).items())) for each in world.members}) == 1
    # With the next horizon it goes.
    world.wait(DAY)
    prune(world)
    for each in world.members:
        assert each.read(lambda session: session.op(late)) is None
        assert is_sound(each)
    assert len({str(sorted(rebuilt(each).items())) for each in world.members}) == 1


class Act(NamedTuple):
    """A member does something; the number chooses with what."""

    who: int
    what: str
    number: int


KINDS = ("acme.render", "acme.scale", "other")
WRITES = (
    *("submit", "run", "batch", "batch", "erase", "evict", "fail", "claim", "complete", "cancel", "retry", "after"),
    *("acquire", "acquire", "release", "break", "put", "put", "merge", "send", "take", "acknowledge", "wait", "wait"),
)
acts = st.builds(Act, st.integers(0, 1), st.sampled_from(WRITES), st.integers(0, 5))
everyones = st.builds(
    Act, st.integers(0, 2), st.sampled_from((*WRITES, "pull", "pull", "revoke", "prune", "follow")), st.integers(0, 5)
)
HOURS = (1, 2, 5, 12, 25, 60)


def act(world: World, each: Act) -> None:
    member, number = world.members[each.who], each.number
    jobs, messages = world.members[number % 2].jobs, world.members[number % 2].messages
    job, message = (
        jobs[-1 - number % len(jobs)] if jobs else None,
        messages[-1 - number % len(messages)] if messages else None,
    )
    kind, row = KINDS[number % 3], f"t/{number % 2}"
    match each.what:
        case "submit":
            member.submit(kind)
        case "after" if job is not None:
            member.submit(kind, f'{{"after":["{ulid_text(job)}"]}}'.encode())
        case "run":
            if (claim := member.claim(member.submit(kind))) is not None:
                member.complete(member.jobs[-1], claim)
        case "batch":
            member.run_batch(kind, number % 4)
        case "erase" if job is not None and (state := member.job(job)) is not None:
            member.erase(job, state.kind)
        case "evict" if job is not None and (state := member.job(job)) is not None and state.artifacts:
            member.say(EvictArtifact(state.artifacts[0]))
        case "claim" if job is not None:
            if (claim := member.claim(job)) is not None:
                member.held.append((job, claim))
        case "complete" if member.held:
            member.complete(*member.held.pop())
        case "fail" if member.held:
            member.fail(*member.held.pop())
        case "cancel" if job is not None:
            member.cancel(job)
        case "retry" if job is not None:
            member.retry(job)
        case "acquire":
            member.acquire(f"file:{number % 2}", f"s{number % 2}", HOUR, HOUR * (number % 3))
        case "release":
            member.release(f"s{number % 2}")
        case "break":
            member.break_lock(f"file:{number % 2}", f"s{number % 2}")
        case "put":
            member.put(row, b'{"a":%d}' % number)
        case "merge" if (state := member.row(row)) is not None:
            base = state.past[0].op if number % 2 and state.past else state.op
            member.put(row, b'{"a":%d,"b":%d}' % (number % 2, number), base)
        case "send":
            member.send(message if number % 2 else None)
        case "take" if message is not None:
            if (claim := member.take_message(message)) is not None:
                member.held_messages.append((message, claim))
        case "acknowledge" if member.held_messages:
            member.acknowledge(*member.held_messages.pop())
        case "wait":
            world.wait(HOURS[number] * HOUR)
        case "pull":
            member.pull(world.members[number % len(world.members)])
        case "revoke" if each.who == 0 and number >= 3:
            member.revoke(world.members[1])
        case "prune" if each.who == 0:
            member.move_horizon()
            member.follow(number)
        case "follow":
            member.follow(number)


rules = st.lists(
    st.tuples(
        st.sampled_from(("", *KINDS, "acme.")), st.sampled_from((None, HOUR, DAY)), st.sampled_from((None, 0, 1, 3))
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@pytest.mark.req("LW-52")
@settings(deadline=None)
@given(st.booleans(), rules, st.lists(acts, max_size=40), st.lists(st.integers(0, 40), max_size=3))
def test_what_remains_is_as_it_would_be_without_a_horizon(
    has_coordinator: bool, said: list[tuple[str, int | None, int | None]], history: list[Act], horizons: list[int]
) -> None:
    world = World(3, has_coordinator=has_coordinator)
    owner, other, whole = world.members
    for match, ms, count in said:
        owner.retain(match=match, ms=ms, count=count)
    owner.retain(Retained.MESSAGES, ms=HOUR)
    for number, each in enumerate(history):
        act(world, each)
        world.exchange(1)
        if number in horizons:
            world.wait(HOUR)
            world.exchange(2)
            owner.move_horizon()
            other.pull(owner)
            owner.follow()
            other.follow()
    world.wait(2 * HOUR)
    world.exchange()
    owner.move_horizon()
    world.exchange()
    expected = whole.shown()
    for each in (owner, other):
        each.follow()
        seen = each.shown()
        assert seen["subjects"] == expected["subjects"]
        for what in ("jobs", "messages"):
            assert seen[what] == {key: value for key, value in expected[what].items() if key in seen[what]}
        for gone in expected["jobs"].keys() - seen["jobs"].keys():
            assert expected["jobs"][gone].done is not None
        assert seen["artifacts"] <= expected["artifacts"]
        for job in seen["jobs"].values():
            assert set(job.artifacts) & expected["artifacts"] <= seen["artifacts"]
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(other)


@pytest.mark.slow
@pytest.mark.req("LW-52")
@settings(deadline=None)
@given(st.booleans(), st.lists(everyones, max_size=40), st.permutations(range(3)))
def test_nodes_agree_whatever_reached_them_before_and_after_a_horizon(
    has_coordinator: bool, history: list[Act], order: list[int]
) -> None:
    world = World(3, has_coordinator=has_coordinator, workers=True)
    owner = world.owner
    owner.retain(ms=HOUR)
    owner.retain(Retained.MESSAGES, ms=HOUR)
    for each in history:
        act(world, each)
    world.wait(2 * HOUR)
    world.exchange()
    owner.follow()
    owner.move_horizon()
    for _ in range(3):
        world.exchange()
        for number in order:
            world.members[number].follow()
    # A node whose rights were revoked no longer holds every op, and follows no horizon.
    following = [member for member in world.members if member.read(member.log.horizons.obstacle) is None]
    assert owner in following
    assert len({member.read(lambda session: session.horizon()) for member in following}) == 1
    for member in world.members:
        assert is_sound(member)
    assert len({str(sorted(rebuilt(member).items())) for member in following}) == 1


@pytest.mark.req("LW-52")
def test_a_process_killed_in_or_after_any_step_leaves_what_another_one_can_go_on_from(
    tmp_path: Path, store_kind: StoreKind, store_url: str
) -> None:
    home = tmp_path / "home"
    with Runtime.init(home, server=None if store_kind is STORES["sqlite"] else store_url) as runtime:
        made = runtime.submit([Draft("k", b"{}", Policy()) for _ in range(12)])
        for each in made[:9]:
            runtime.log.run(lambda tx, each=each: jobs.cancel(tx, each.job_id, ""))
        runtime.log.run(lambda tx: tx.author(SetRetention(Retained.JOBS, "", DAY, None, True, 0)))
    left = {each.job_id for each in made[9:]}
    for commits in range(1, 40):
        child = start("prune", home, commits)
        go(child)
        said, _ = child.communicate(timeout=120)
        with Runtime.open(home) as runtime:
            assert verify(runtime.store, user=runtime.log.user, marks=runtime.log.signer, is_bound=True).findings == []
            with runtime.read() as session:
                jobs_now = {each.job.id for each in session.each_job()}
                row = session.horizon()
            assert left <= jobs_now
        if said:
            break
    assert child.returncode == 0 and row is not None and row.is_deleted
    assert jobs_now == left and commits > 6
    with Runtime.open(home) as runtime:
        assert runtime.rebuild().unchanged


def pruned() -> World:
    """Two nodes with kept ops, bases and bundles that are partly gone."""
    world = World()
    owner = world.owner
    for n in range(3):
        owner.acquire("file:a")
        owner.release()
        owner.put("t/a", b"%d" % n)
        owner.run_job("k")
    owner.submit("k")
    owner.retain(ms=HOUR)
    world.exchange()
    world.wait(DAY)
    prune(world)
    owner.submit("k")
    world.exchange()
    return world


def faults(member: Member) -> list[str]:
    found = verify(member.log.store, user=member.log.user, marks=member.log.signer, is_bound=True)
    return [each.what for each in found.findings]


def seqs(member: Member, where: str) -> list[int]:
    return [int(str(seq)) for (seq,) in raw(member.log.store, f"SELECT seq FROM ops WHERE {where} ORDER BY seq")]


@pytest.mark.req("LW-52")
def test_verify_finds_what_was_taken_besides(store_kind: StoreKind) -> None:
    owner = pruned().owner
    assert faults(owner) == []
    kept = seqs(owner, "variant = 10 AND reason = 0")
    raw(owner.log.store, "DELETE FROM ops WHERE seq = ?", kept[0])
    assert any("missing" in each for each in faults(owner))


@pytest.mark.req("LW-52")
def test_verify_finds_a_gap_that_another_program_has_drawn() -> None:
    owner = pruned().owner
    last = owner.read(lambda session: session.head().seq)
    hidden = last - 1
    ((chain,),) = raw(owner.log.store, "SELECT chain FROM ops WHERE seq = ?", hidden)
    raw(owner.log.store, "DELETE FROM ops WHERE seq = ?", hidden)
    node = owner.log.author
    raw(owner.log.store, "INSERT INTO gaps VALUES (?, ?, ?, ?, ?)", node, hidden, hidden, chain, bytes(16))
    assert any("missing" in each for each in faults(owner))
    # With the node's own key a gap can be drawn, but not behind an author's head.
    with owner.log.store.write() as session:
        session.put_gap(GapRow(hidden, hidden, bytes(chain)))  # type: ignore[arg-type]
    assert any("entry of its author" in each for each in faults(owner))


@pytest.mark.req("LW-52")
def test_verify_finds_a_base_that_was_changed() -> None:
    owner = pruned().owner
    raw(owner.log.store, "UPDATE bases SET state = ? WHERE family = 'lock'", b"\x94\x00\x90\x90\x93\x00\x00\x00")
    assert any("what remains" in each for each in faults(owner))


@pytest.mark.req("LW-52")
def test_a_root_that_differs_lets_nothing_go() -> None:
    world = World()
    owner, other = world.members
    owner.run_job("k")
    owner.retain(ms=HOUR)
    world.wait(DAY)
    world.exchange()
    with owner.log.store.read() as session:
        plan = owner.log.horizons.plan(session)
    assert plan is not None
    lie = plan.settlement._replace(root=bytes(32))
    assert owner.log.horizons.move(plan._replace(settlement=lie))
    other.pull(owner)
    before = other.shown()
    assert [type(each) for each in other.follow()] == [HorizonDiffers]
    assert other.follow() == []
    assert other.read(lambda session: session.horizon()) is None and other.shown() == before


@pytest.mark.req("LW-52")
def test_the_op_at_the_border_stays_on_its_side() -> None:
    world = World()
    owner, other = world.members
    first = owner.run_job("k")
    border = world.now
    # Later in the same millisecond, and one millisecond later.
    second = owner.run_job("k")
    world.wait(1)
    third = owner.run_job("k")
    owner.retain(ms=HOUR)
    world.wait(DAY)
    world.exchange()
    assert owner.move_horizon(border + HOUR)
    world.exchange()
    for each in (owner, other):
        each.follow()
        assert each.shown()["jobs"].keys() == {third}
        assert is_sound(each)
    assert owner.job(first) is None and owner.job(second) is None
    assert rebuilt(owner) == rebuilt(other)


@pytest.mark.req("LW-52")
def test_revocations_and_rules_are_never_pruned() -> None:
    world = World(3)
    owner, _, rogue = world.members
    rogue.run_job("k")
    world.exchange()
    owner.revoke(rogue)
    owner.retain(ms=HOUR)
    world.wait(DAY)
    world.exchange()
    prune(world)
    world.wait(DAY)
    owner.run_job("k")
    world.exchange()
    prune(world)
    for each in world.members[:2]:
        kept = {row.variant for row in each.read(lambda session: session.ops_after(0, 1_000))}
        assert {22, 23, 1033, 1055, 1056} <= kept
        assert not each.log.authority().may(rogue.log.node, "Job", "Schedule", "k", world.now)
        assert is_sound(each)


@pytest.mark.req("LW-52")
def test_deleting_waits_for_an_archive_and_for_witnesses() -> None:
    world = World()
    owner = world.owner
    owner.run_job("k")
    owner.retain(ms=HOUR, waives=False, witnesses=1)
    world.wait(DAY)
    world.exchange()
    prune(world)
    row = owner.read(lambda session: session.horizon())
    assert row.is_denied and not row.is_deleted and owner.jobs[0] not in owner.shown()["jobs"]
    assert "archive" in owner.read(lambda session: owner.log.horizons.missing(session, row))
    assert is_sound(owner)
    heads = {each.node.to_bytes(8, "big"): ArchivedHead(pack(each.at), each.entry) for each in _heads(owner, row)}
    owner.log.run(lambda tx: note_archive(tx.session, "/backup", 1, 1, heads))
    assert "1 more" in owner.read(lambda session: owner.log.horizons.missing(session, row))
    owner.follow()
    assert not owner.read(lambda session: session.horizon()).is_deleted, "its own word is not enough"
    other = world.members[1]
    other.follow()
    owner.log.checkpoints.receive([other.read(lambda session: horizon_note(session, row.op))])
    owner.follow()
    assert owner.read(lambda session: session.horizon()).is_deleted
    assert is_sound(owner)


def _heads(member: Member, row: HorizonRow) -> Any:
    return decode(member.read(lambda session: session.op(row.op).body)).payload.heads  # type: ignore[union-attr]


@pytest.mark.req("LW-52")
def test_a_bundle_stays_as_long_as_one_of_its_facts_does() -> None:
    world = World()
    owner = world.owner
    ended = owner.run_batch("k", 2)
    owner.run_batch("other", 3)
    owner.retain(ms=HOUR)
    world.wait(DAY)
    world.exchange()
    entries = owner.entries()
    prune(world)
    for each in world.members:
        assert each.shown()["jobs"].keys() == {ended[2]}
        # The three bundles of the other kind, and that of the two completions.
        assert each.entries() == entries + 1 - 4
        partial = [leaf for leaf in each.read(leaves_here) if leaf.tag is LeafTag.PARTIAL]
        assert len(partial) == 2
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(world.members[1])
    # The last of them ends, and with the next horizon the bundles go, too.
    owner.cancel(ended[2])
    world.wait(DAY)
    world.exchange()
    prune(world)
    for each in world.members:
        assert each.shown()["jobs"] == {} and is_sound(each)
        assert not seqs(each, "variant = 1051")


def leaves_here(session: Any) -> list[Leaf]:
    return list(remaining_leaves(session))


def test_no_file_of_ops_is_made_of_a_pruned_log(tmp_path: Path) -> None:
    owner = pruned().owner
    with pytest.raises(Conflict, match="log snapshot DIR"), (tmp_path / "ops").open("wb") as file:
        export_ops(owner.log, file)


@pytest.mark.req("LW-52")
def test_a_rule_is_the_owners_to_set_and_has_bounds() -> None:
    world = World(2, workers=True)
    owner, worker = world.members
    assert worker.retain(ms=HOUR) in UNAUTHORISED
    assert worker.retain(Retained.MESSAGES, ms=HOUR) in UNAUTHORISED
    assert owner.retain(ms=HOUR - 1) is Reason.BAD_RETENTION
    assert owner.retain(Retained.MESSAGES, match="acme.", ms=HOUR) is Reason.BAD_RETENTION
    assert owner.retain(ms=HOUR, witnesses=65) is Reason.BAD_RETENTION
    assert isinstance(owner.retain(ms=HOUR), Op)
    world.exchange()
    owner.run_job("k")
    world.wait(DAY)
    world.exchange()
    # The worker computes a horizon, and may not move it.
    with worker.log.store.read() as session:
        plan = worker.log.horizons.plan(session)
        assert not worker.log.horizons.may_move(session)
    assert plan is not None and not worker.log.horizons.move(plan)


@pytest.mark.req("LW-52")
def test_a_rule_that_is_settled_cannot_be_passed_over() -> None:
    world = World()
    owner = world.owner
    owner.run_job("k")
    owner.retain(ms=HOUR)
    world.wait(DAY)
    owner.retain(ms=30 * DAY)
    world.wait(DAY)
    world.exchange()
    with owner.log.store.read() as session:
        rules = session.ops_of_variants((1055,))
        first = rule_of(keyed(rules[0]), keyed(rules[0]).payload)
        plan = owner.log.horizons.plan(session, rules=(first,))
    assert plan is not None and plan.settlement.gone_ops
    assert not owner.log.horizons.move(plan)


def test_a_log_without_rules_writes_nothing_and_reads_little() -> None:
    world = World()
    owner = world.owner
    owner.run_job("k")
    entries = owner.entries()
    assert not owner.log.horizons.move_if_due() and owner.follow() == []
    assert owner.entries() == entries


def test_the_horizon_moves_by_itself_when_it_is_due() -> None:
    world = World()
    owner, other = world.members
    owner.run_job("k")
    owner.retain(ms=HOUR)
    world.exchange()
    assert not owner.log.horizons.move_if_due()
    world.wait(DAY)
    assert not other.log.horizons.move_if_due()
    assert owner.log.horizons.move_if_due()
    owner.follow()
    assert owner.shown()["jobs"] == {}
    world.wait(HOUR // 2)
    owner.run_job("k")
    assert not owner.log.horizons.move_if_due()


@pytest.mark.req("LW-52")
def test_an_op_that_comes_while_a_horizon_is_computed_keeps_what_it_refers_to() -> None:
    world = World()
    owner = world.owner
    failed = owner.submit("k")
    claim = owner.claim(failed)
    assert claim is not None
    owner.fail(failed, claim)
    owner.retain(ms=HOUR)
    world.wait(DAY)
    with owner.log.store.read() as session:
        plan = owner.log.horizons.plan(session)
    assert plan is not None and isinstance(owner.retry(failed), Op)
    assert not owner.log.horizons.move(plan)
    assert not owner.move_horizon() or owner.follow() is not None
    assert owner.job(failed) is not None


@pytest.mark.req("LW-52")
def test_a_missed_tick_that_may_have_been_here_before_is_not_made_again() -> None:
    world = World()
    owner = world.owner
    setting = owner.say(SetSchedule("daily", "0 0 * * *", "UTC", "k", b"{}", b""))
    assert isinstance(setting, Op)
    ticks = []
    for _ in range(3):
        world.wait(DAY)
        midnight = world.now - world.now % DAY
        policy = encode_policy(tick_policy(Policy(), "daily", setting.id))
        job_id = tick_id(setting.id, midnight)
        tick = ScheduleJob(job_id, "k", b"{}", policy)
        assert isinstance(owner.say(tick, (setting.id,)), Op)
        claim = owner.claim(job_id)
        assert claim is not None
        owner.say(CompleteJob(job_id, (), (), Telemetry(1)), (claim,))
        ticks.append((job_id, tick))
    owner.retain(ms=HOUR)
    world.wait(10 * HOUR)
    world.exchange()
    prune(world)
    # The newest tick stays, so that the schedule goes on from it.
    assert owner.shown()["jobs"].keys() == {ticks[-1][0]}
    ((schedule,),) = (owner.read(lambda session: session.schedules()),)
    assert schedule.last_tick == ulid_ms(ticks[-1][0])
    refused = owner.say(ticks[0][1], (setting.id,))
    assert isinstance(refused, Reason)
    assert rebuilt(owner) == rebuilt(world.members[1])


@pytest.mark.req("LW-52")
def test_successions_and_takeovers_are_kept_for_good(alone: None) -> None:
    """A horizon that a successor moves, and what is decided after it, rest on them."""
    world = World(3)
    owner, second, _ = world.members
    owner.retain(ms=HOUR)
    owner.run_job("k")
    take_over(world, second)
    assert second.run_job("k") in second.jobs
    for _ in range(2):
        world.wait(DAY)
        second.run_job("k")
        world.exchange()
        assert second.move_horizon()
        world.exchange()
        for each in world.members:
            each.follow()
    for each in world.members:
        kept = {row.variant for row in each.read(lambda session: session.ops_after(0, 1_000))}
        assert {number_of(SetSuccession), number_of(TakeOver)} <= kept
        assert [node for _, node in each.log.permissions().coordinators] == [owner.log.node, second.log.node]
        rebuilt(each)
        assert is_sound(each)
