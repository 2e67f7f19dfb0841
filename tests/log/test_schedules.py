"""Schedules belong to their authors. A tick runs with the authority of the node that set the schedule, whichever node
writes it down, and it must be exactly what that node asked for; and nobody else may change the schedule who could not
have set it. All of it comes out the same in every order of arrival.
"""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.families.jobs import cron
from hocket.families.jobs.rules import tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import derived_ulid, node_id, ulid_ms, ulid_text
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op
from hocket.kernel.policy import DEFAULT, Policy, decode_policy, encode_policy
from hocket.kernel.ucan import Capability
from hocket.kernel.vocabulary import ClearSchedule, RevokeUcan, ScheduleJob, SetSchedule
from hocket.log import Log
from hocket.log.rebuild import rebuild
from tests.log.roster import world
from tests.log.roster.test_cascades import everywhere_the_same, reason
from tests.log.roster.world import INTRODUCTIONS, START
from tests.log.test_permissions import OTHER, WORKER, WORKER_NODE, Mesh, admitted, token

SECOND = 1_000
PHONE = SigningKey(b"fone" * 8)


@pytest.fixture(autouse=True)
def all_can_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(world.KEY_OF, WORKER_NODE, WORKER)
    monkeypatch.setitem(world.KEY_OF, node_id(PHONE.public), PHONE)


def schedule(
    kind: str = "acme.mail", name: str = "n", cron: str = "* * * * * *", policy: Policy = DEFAULT
) -> SetSchedule:
    """It ticks each second, unless told otherwise."""
    return SetSchedule(name, cron, "UTC", kind, b'{"n":1}', encode_policy(policy))


def tick(of: Op, wall: int) -> ScheduleJob:
    """The job of the tick that falls `wall` after the start of the world."""
    asked = of.payload
    assert isinstance(asked, SetSchedule)
    policy = tick_policy(decode_policy(asked.policy_envelope), asked.name, of.id)
    return ScheduleJob(tick_id(of.id, START + wall), asked.kind, asked.payload, encode_policy(policy))


def judged(mesh: Mesh, *ops: Op, known: int = 1) -> tuple[list[int], Log]:
    """The reasons of the ops, which are the same in every order; the first few are `known` beforehand."""
    log = everywhere_the_same(mesh.ops[known:], (*INTRODUCTIONS, *mesh.ops[:known]))
    return [reason(log, op) for op in ops], log


@pytest.mark.req("LW-44", "LW-41", "LW-32")
def test_any_member_may_write_a_tick_down_and_two_make_one_job() -> None:
    mesh = Mesh()
    mail = mesh.owner(10, schedule("acme.mail"))
    first = mesh.worker(SECOND, tick(mail, SECOND), (mail.id,))
    second = mesh.worker(SECOND + 1, tick(mail, SECOND), (mail.id,))
    reasons, log = judged(mesh, mail, first, second)
    assert reasons == [0, 0, Reason.DUPLICATE_JOB]
    with log.store.read() as session:
        assert [entry.job.kind for entry in session.each_job()] == ["acme.mail"]


@pytest.mark.req("LW-44", "LW-24")
def test_a_member_cannot_have_the_owner_submit_what_it_may_not_submit_itself() -> None:
    mesh = Mesh()
    mine, foreign = mesh.worker(10, schedule("acme.render.x")), mesh.worker(11, schedule("hocket.run", "m"))
    good = mesh.owner(SECOND, tick(mine, SECOND), (mine.id,))
    bad = mesh.owner(SECOND + 1, tick(foreign, SECOND), (foreign.id,))
    reasons, _ = judged(mesh, mine, foreign, good, bad)
    assert reasons == [0, Reason.UNAUTHORISED, 0, Reason.DEPENDENCY_REJECTED]


@pytest.mark.req("LW-44", "LW-24")
def test_the_schedules_author_must_still_be_allowed_when_a_tick_is_written() -> None:
    ends = (START + 10 * SECOND) // 1000
    mesh = Mesh(token(expires=ends))
    mine = mesh.worker(10, schedule("acme.render.x"))
    in_time = mesh.owner(SECOND, tick(mine, SECOND), (mine.id,))
    late = mesh.owner(20 * SECOND, tick(mine, 20 * SECOND), (mine.id,))
    reasons, _ = judged(mesh, mine, in_time, late)
    assert reasons == [0, 0, Reason.UNAUTHORISED]


@pytest.mark.req("LW-44", "LW-24")
def test_a_stranger_writes_no_ticks() -> None:
    mesh = Mesh(token(expires=(START + 5 * SECOND) // 1000))
    mail = mesh.owner(10, schedule("acme.mail"))
    late = mesh.worker(8 * SECOND, tick(mail, 8 * SECOND), (mail.id,))
    reasons, _ = judged(mesh, mail, late)
    assert reasons == [0, Reason.UNAUTHORISED]


@pytest.mark.req("LW-44", "LW-24", "LW-27")
def test_ticks_fall_with_their_author_and_with_the_delegation_that_they_lean_on() -> None:
    narrow = token([Capability("Job", "Schedule", {"time_range": [0, START + 5 * SECOND]})])
    mesh = Mesh(narrow)
    wide = token([Capability("Job", "Schedule", {"kind_prefix": ["acme."]})])
    more = mesh.worker(5, mesh.delegation(wide))
    mine = mesh.worker(10, schedule("acme.mail"))
    late = mesh.other(8 * SECOND, tick(mine, 8 * SECOND), (mine.id,))
    reasons, _ = judged(mesh, mine, late)
    assert reasons == [0, 0], "the first delegation allows the schedule, the second the tick"
    mesh.owner(9 * SECOND, RevokeUcan(more.payload.ucan_cid))  # type: ignore[union-attr]
    reasons, log = judged(mesh, mine, late, known=2)
    assert reasons == [0, Reason.REVOKED]
    with log.store.read() as session:
        assert not list(session.each_job())


def changed(job: ScheduleJob, policy: Callable[[Policy], Policy]) -> ScheduleJob:
    return replace(job, policy_envelope=encode_policy(policy(decode_policy(job.policy_envelope))))


FORGERIES: dict[str, Callable[[Op], ScheduleJob]] = {
    "payload": lambda of: replace(tick(of, 60_000 - START % 60_000), payload=b'{"n":2}'),
    "kind": lambda of: replace(tick(of, 60_000 - START % 60_000), kind="acme.other"),
    "priority": lambda of: changed(tick(of, 60_000 - START % 60_000), lambda p: replace(p, priority=9)),
    "open": lambda of: changed(tick(of, 60_000 - START % 60_000), lambda p: replace(p, open=True)),
    "name": lambda of: changed(tick(of, 60_000 - START % 60_000), lambda p: replace(p, schedule="m")),
    "no name": lambda of: changed(tick(of, 60_000 - START % 60_000), lambda p: replace(p, schedule=None)),
    "id": lambda of: replace(tick(of, 60_000 - START % 60_000), job_id=derived_ulid(START + 60_000, b"any")),
    "not a minute": lambda of: tick(of, 61_000 - START % 60_000),
    "part of a second": lambda of: tick(of, 60_001 - START % 60_000),
    "before it was set": lambda of: tick(of, -START % 60_000 - 60_000),
    "in the future": lambda of: tick(of, 180_000 - START % 60_000),
    "in the near future": lambda of: tick(of, 120_000 - START % 60_000),
}


@pytest.mark.req("LW-44", "LW-42")
@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_tick_is_exactly_what_the_schedule_says(forge: Callable[[Op], ScheduleJob]) -> None:
    mesh = Mesh()
    mail = mesh.owner(10, schedule("acme.mail", cron="* * * * *"))
    false = mesh.worker(70_000, forge(mail), (mail.id,))
    true = mesh.worker(70_001, tick(mail, 60_000 - START % 60_000), (mail.id,))
    log = admitted(mesh.ops)
    assert (reason(log, true), reason(log, false)) == (0, Reason.NOT_A_TICK)
    with log.store.read() as session:
        assert [entry.job.schedule_op for entry in session.each_job()] == [true.id]


@pytest.mark.req("LW-44")
def test_a_tick_cites_the_op_that_set_its_schedule_and_that_is_one() -> None:
    mesh = Mesh()
    mail = mesh.owner(10, schedule())
    uncited = mesh.worker(SECOND, tick(mail, SECOND))
    cleared = mesh.owner(2 * SECOND, ClearSchedule("m"))
    policy = encode_policy(Policy(schedule="n", schedule_op=ulid_text(cleared.id)))
    of_nothing = mesh.worker(
        3 * SECOND, ScheduleJob(tick_id(cleared.id, START + 3 * SECOND), "acme.mail", b"", policy), (cleared.id,)
    )
    assert judged(mesh, uncited, of_nothing)[0] == [Reason.NOT_A_TICK] * 2


@pytest.mark.req("LW-44")
@pytest.mark.parametrize("timezone", ["UTC", "Europe/Vienna"])
def test_ticks_that_were_missed_are_not_made_up_by_others(timezone: str) -> None:
    """Else a member could have the owner's command run once for each minute in which nobody was awake. In a timezone
    other than UTC the log cannot tell, but the worker does.
    """
    mesh = Mesh()
    mail = mesh.owner(10, replace(schedule("acme.mail", cron="* * * * *"), timezone=timezone))
    missed = mesh.worker(100_000, tick(mail, 20_000), (mail.id,))
    newest = mesh.worker(100_001, tick(mail, 80_000), (mail.id,))
    log = admitted(mesh.ops)
    assert [reason(log, op) for op in (missed, newest)] == [Reason.NOT_A_TICK if timezone == "UTC" else 0, 0]
    with log.store.read() as session:
        entries = {entry.job.schedule_op: entry.job for entry in session.each_job()}
        assert cron.is_tick(session, entries[newest.id])
        assert missed.id not in entries or not cron.is_tick(session, entries[missed.id])


@pytest.mark.req("LW-44", "LW-32")
@pytest.mark.parametrize(
    "end", [ClearSchedule("n"), schedule("acme.other"), schedule()], ids=["cleared", "other", "same"]
)
def test_a_schedule_ticks_until_it_is_cleared_or_replaced(end: ClearSchedule | SetSchedule) -> None:
    mesh = Mesh()
    old = mesh.owner(10, schedule())
    mesh.owner(2 * SECOND + 500, end)
    in_time = mesh.worker(2 * SECOND + 600, tick(old, 2 * SECOND), (old.id,))
    too_late = mesh.worker(3 * SECOND + 2, tick(old, 3 * SECOND), (old.id,))
    assert judged(mesh, in_time, too_late)[0] == [0, Reason.NOT_A_TICK]


@pytest.mark.req("LW-44", "LW-32", "LW-24")
def test_a_schedule_is_changed_by_its_author_or_by_one_that_may_schedule_its_kind() -> None:
    mesh = Mesh()
    mesh.owner(10, schedule("acme.mail", "mail"))
    mesh.owner(11, schedule("acme.render.x", "render"))
    taken = mesh.worker(12, schedule("acme.render.x", "mail"))
    cleared = mesh.worker(13, ClearSchedule("mail"))
    replaced = mesh.worker(14, schedule("acme.render.y", "render"))
    reasons, log = judged(mesh, taken, cleared, replaced)
    assert reasons == [Reason.OTHERS_SCHEDULE, Reason.OTHERS_SCHEDULE, 0]
    with log.store.read() as session:
        assert {each.name: (each.kind, each.author) for each in session.schedules()} == {
            "mail": ("acme.mail", world.NODES[0]),
            "render": ("acme.render.y", WORKER_NODE),
        }


@pytest.mark.req("LW-44", "LW-32")
def test_a_name_that_was_given_up_is_free_however_late_that_is_heard() -> None:
    mesh = Mesh()
    mesh.owner(10, schedule("acme.mail"))
    mesh.owner(20, ClearSchedule("n"))
    mine = mesh.worker(30, schedule("acme.render.x"))
    back = mesh.owner(40, schedule("acme.mail"))
    again = mesh.worker(50, schedule("acme.render.x"))
    assert judged(mesh, mine, back, again)[0] == [0, 0, Reason.OTHERS_SCHEDULE]


@pytest.mark.req("LW-44", "LW-32", "LW-27")
def test_a_schedule_that_was_in_the_way_and_is_revoked_is_in_the_way_no_more() -> None:
    mesh = Mesh()
    phones = token([Capability("Job", "Schedule", {"kind_prefix": ["acme.mail"]})], audience=PHONE)
    phone = node_id(PHONE.public)
    mesh._say(phone, 1, mesh.delegation(phones), ())
    mesh._say(phone, 10, schedule("acme.mail"), ())
    mine = mesh.worker(20, schedule("acme.render.x"))
    assert judged(mesh, mine, known=2)[0] == [Reason.OTHERS_SCHEDULE]
    mesh.owner(30, RevokeUcan(mesh.ops[1].payload.ucan_cid))  # type: ignore[union-attr]
    assert judged(mesh, mine, known=2)[0] == [0]


@pytest.mark.req("LW-44", "LW-32", "LW-27")
def test_a_schedule_goes_on_when_the_one_that_replaced_it_is_revoked() -> None:
    mesh = Mesh()
    phones = token([Capability("Job", "Schedule", {"kind_prefix": ["acme.mail"]})], audience=PHONE)
    phone = node_id(PHONE.public)
    given = mesh._say(phone, 1, mesh.delegation(phones), ())
    old = mesh.owner(10, schedule("acme.mail"))
    new = mesh._say(phone, 2 * SECOND + 500, schedule("acme.mail"), ())
    late = mesh.worker(3 * SECOND, tick(old, 3 * SECOND), (old.id,))
    assert judged(mesh, new, late, known=2)[0] == [0, Reason.NOT_A_TICK]
    mesh.owner(4 * SECOND, RevokeUcan(given.payload.ucan_cid))  # type: ignore[union-attr]
    assert judged(mesh, new, late, known=2)[0] == [Reason.REVOKED, 0]


@pytest.mark.req("LW-44", "LW-32")
def test_a_grant_that_is_heard_of_late_counts_for_changes_too() -> None:
    mesh = Mesh()
    more = token([Capability("Job", "Schedule", {"kind_prefix": ["acme.mail"]})])
    mesh.owner(10, schedule("acme.mail"))
    mesh.worker(15, mesh.delegation(more))
    cleared = mesh.worker(20, ClearSchedule("n"))
    assert judged(mesh, cleared)[0] == [0]


@pytest.mark.req("LW-44")
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (schedule(policy=Policy(after=(ulid_text(bytes(16)),))), Reason.BAD_POLICY),
        (schedule(policy=Policy(unique="one")), Reason.BAD_POLICY),
        (schedule(policy=Policy(schedule="other")), Reason.BAD_POLICY),
        (schedule(policy=Policy(schedule_op=ulid_text(bytes(16)))), Reason.BAD_POLICY),
        (replace(schedule(), policy_envelope=b"{"), Reason.BAD_POLICY),
        (schedule(kind="k\n"), Reason.BAD_KIND),
        (schedule(name=""), Reason.BAD_SCHEDULE),
        (schedule(name="n" * 129), Reason.BAD_SCHEDULE),
        (schedule(cron="9" * 5_000 + " * * * *"), Reason.BAD_SCHEDULE),
    ],
    ids=["after", "unique", "schedule", "schedule op", "unreadable", "kind", "no name", "long name", "long cron"],
)
def test_a_schedule_that_could_make_no_jobs_is_refused(bad: SetSchedule, why: Reason) -> None:
    mesh = Mesh()
    refused = mesh.owner(10, bad)
    assert judged(mesh, refused)[0] == [why]


@pytest.mark.req("LW-44")
def test_a_job_that_only_says_so_is_no_tick_and_holds_up_none() -> None:
    mesh = Mesh()
    mail = mesh.owner(10, schedule("acme.mail"))
    job = ScheduleJob(derived_ulid(2**47, b"far"), "acme.render.x", b"", encode_policy(Policy(schedule="n")))
    liar = mesh.worker(20, job)
    true = mesh.other(SECOND, tick(mail, SECOND), (mail.id,))
    reasons, log = judged(mesh, liar, true)
    assert reasons == [0, 0], "it is an ordinary job of its own author"
    with log.store.read() as session:
        assert [each.last_tick for each in session.schedules()] == [START + SECOND]


@pytest.mark.req("LW-44")
@pytest.mark.parametrize("number", [0, OTHER])
def test_the_owner_and_the_author_may_always_clear(number: int) -> None:
    mesh = Mesh()
    mesh.worker(10, schedule("acme.render.x"))
    cleared = mesh.worker(20, ClearSchedule("n")) if number else mesh.owner(20, ClearSchedule("n"))
    reasons, log = judged(mesh, cleared)
    with log.store.read() as session:
        assert reasons == [0] and session.schedules() == []


# Histories at random, against a model that goes through the ops once, in HLC order.

KINDS = ("acme.mail", "acme.render.x", "acme.backup")
Said = tuple[int, int, int, str, int, int]  # author, milliseconds, which, kind, name, which schedule is ticked
said = st.tuples(
    st.integers(0, 2),
    st.integers(1, 6_000),
    st.integers(0, 5),
    st.sampled_from(KINDS),
    st.integers(0, 1),
    st.integers(0, 9),
)


def may(author: int, kind: str) -> bool:
    return author == 0 or kind.startswith("acme.render." if author == 1 else "acme.mail")


def spoken(mesh: Mesh, words: list[Said]) -> list[Op]:
    """One op for each: half of them are ticks of whatever was set by then, true or a second off."""
    nodes = world.NODES[0], WORKER_NODE, node_id(PHONE.public)
    sets: list[Op] = []
    made = []
    for author, wall, which, kind, name, ticked in words:
        if which < 2 or not sets:
            op = mesh._say(nodes[author], wall, schedule(kind, f"n{name}"), ())
            sets.append(op)
        elif which == 2:
            op = mesh._say(nodes[author], wall, ClearSchedule(f"n{name}"), ())
        else:
            of = sets[ticked % len(sets)]
            at = START + wall - (START + wall) % SECOND - START - (SECOND if which == 5 else 0)
            op = mesh._say(nodes[author], wall, tick(of, at), (of.id,))
        made.append(op)
    return made


def modelled(ops: list[Op]) -> dict[bytes, bool]:
    """Whether each counts."""
    nodes = [world.NODES[0], WORKER_NODE, node_id(PHONE.public)]
    counts: dict[bytes, bool] = {}
    history: dict[str, list[Op]] = {}
    jobs: set[bytes] = set()
    for op in sorted(ops, key=lambda op: op.timestamp):
        author, payload = nodes.index(op.node_id), op.payload
        if isinstance(payload, ScheduleJob):
            (of,) = (each for each in ops if each.id in op.causal_deps)
            assert isinstance(of.payload, SetSchedule)
            at, now = ulid_ms(payload.job_id), op.timestamp.wall
            good = counts.get(of.id, False) and of.timestamp.wall < at == now - now % SECOND
            if good:
                later = history[of.payload.name][history[of.payload.name].index(of) + 1 :]
                good = (not later or later[0].timestamp.wall >= at) and payload.job_id not in jobs
            if good:
                jobs.add(payload.job_id)
        else:
            assert isinstance(payload, SetSchedule | ClearSchedule)
            before = history.get(payload.name, [])
            good = not isinstance(payload, SetSchedule) or may(author, payload.kind)
            if before and isinstance(before[-1].payload, SetSchedule) and before[-1].node_id != op.node_id:
                good = good and may(author, before[-1].payload.kind)
            if good:
                history.setdefault(payload.name, []).append(op)
        counts[op.id] = good
    return counts


@pytest.mark.req("LW-44", "LW-32", "LW-33")
@given(words=st.lists(said, min_size=2, max_size=12, unique_by=lambda word: (word[0], word[1])), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_history_of_schedules_comes_out_as_modelled_in_every_order(
    words: list[Said], data: st.DataObject
) -> None:
    mesh = Mesh()
    phones = token([Capability("Job", "Schedule", {"kind_prefix": ["acme.mail"]})], audience=PHONE)
    mesh._say(node_id(PHONE.public), 0, mesh.delegation(phones), ())
    ops = spoken(mesh, words)
    expected = modelled(ops)
    order = data.draw(st.permutations(ops))
    cut = data.draw(st.integers(0, len(order)))
    log = admitted(mesh.ops[:2], order[:cut], order[cut:])
    for again in (False, True):
        if again:
            rebuild(log.store, log.permissions_reader, world.NOW)
        assert {op.id: reason(log, op) == 0 for op in ops} == expected
