"""A log forgets what its owner lets it forget, and nothing else: what remains is as before, fences never fall, nodes
agree, and every step can be broken off.
"""

from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.families.retention.facts import RETENTION, Retained
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import Subject
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from tests.log.pruning_world import DAY, HOUR, Member, World

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


def test_ended_jobs_go_and_the_rest_stays() -> None:
    world = World()
    owner, other = world.members
    old = [owner.run_job("acme.render") for _ in range(3)]
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
        assert each.entries() < entries
        assert each.read(lambda session: session.horizon()).is_deleted
        assert is_sound(each)
    assert rebuilt(owner) == rebuilt(other)


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
    *("submit", "run", "run", "fail", "claim", "complete", "cancel", "retry", "after"),
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
        case "revoke" if each.who == 0 and number == 5:
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
    horizons = {member.read(lambda session: session.horizon()) for member in world.members}
    assert len(horizons) == 1
    for member in world.members:
        assert is_sound(member)
    assert len({str(sorted(rebuilt(member).items())) for member in world.members}) == 1
