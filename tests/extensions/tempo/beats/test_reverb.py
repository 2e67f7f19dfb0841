"""Windows: any order, any repetition and any partition of the same messages gives the same reports, byte for byte."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.beats import changed, timeline
from hocket.extensions.tempo.messages import (
    BarReport,
    ClaimState,
    NodeLoad,
    PromiseOutcome,
    PromiseResult,
    StatusClaim,
    from_json,
    to_json,
)
from hocket.extensions.tempo.policy import make_policy
from hocket.extensions.tempo.windows import (
    CONTENT_BYTES_MAX,
    BarWindows,
    BoundedMap,
    WindowContent,
    WindowDigests,
    WindowLimits,
    WindowMessage,
    content_parts,
    decode_content,
)
from hocket.kernel.clock import Hlc, hlc_text, wall_text
from hocket.kernel.postcard import Malformed

POLICY = make_policy("one", 60, 4)
START = 1_756_865_547_183 // 4000 * 4000
# The tempo changes while the messages of the tests are sent.
LINE = timeline(POLICY.initial_tempo).with_change(changed(POLICY.initial_tempo, 50, START + 9000))
LATEST = START + 10**6
NARROW = WindowLimits(windows=3, tasks=4, promises=3, nodes=2)

HLCS = st.builds(lambda ms, logical: hlc_text(Hlc(START + ms, logical, 0)), st.integers(0, 30_000), st.integers(0, 1))
NAMES = st.sampled_from(("a", "b", "c", "ab", "1:a", "é"))
MESSAGES: st.SearchStrategy[WindowMessage] = st.one_of(
    st.builds(
        StatusClaim,
        *(NAMES, NAMES, st.integers(1, 4), st.sampled_from(ClaimState), st.integers(-2, 4), st.just(0.5)),
        *(st.just(""), HLCS),
    ),
    st.builds(PromiseResult, NAMES, NAMES, st.sampled_from(PromiseOutcome), HLCS),
    st.builds(NodeLoad, NAMES, st.integers(0, 9), st.integers(0, 3), st.integers(3, 5), HLCS),
)


def windows(limits: WindowLimits) -> BarWindows:
    return BarWindows(POLICY, LINE, limits)


def filled(messages: Any, limits: WindowLimits) -> BarWindows:
    found = windows(limits)
    for message in messages:
        found.add(message, LATEST)
    return found


def reports(found: BarWindows) -> list[bytes]:
    return [to_json(each) for each in found.reports()]


def exchange(one: BarWindows, other: BarWindows) -> None:
    """Both tell each other what they have, as over the bus."""
    told = [[to_json(part) for each in side.contents() for part in content_parts(each)] for side in (one, other)]
    for side, parts in ((other, told[0]), (one, told[1])):
        for part in parts:
            side.absorb(decode_content(part), LATEST)


@pytest.mark.touches("BB-06")
@given(st.lists(MESSAGES, max_size=40), st.randoms(), st.sampled_from((WindowLimits(), NARROW)))
def test_any_order_and_repetition_gives_the_same_reports(messages: Any, random: Random, limits: WindowLimits) -> None:
    expected = reports(filled(messages, limits))
    again = [*messages, *random.choices(messages, k=len(messages))] if messages else []
    random.shuffle(again)
    assert reports(filled(again, limits)) == expected


@pytest.mark.touches("BB-06")
@given(st.lists(MESSAGES, max_size=40), st.integers(1, 5), st.randoms(), st.sampled_from((WindowLimits(), NARROW)))
def test_any_partition_heals_to_the_same_reports(
    messages: Any, count: int, random: Random, limits: WindowLimits
) -> None:
    expected = reports(filled(messages, limits))
    sides = [windows(limits) for _ in range(count)]
    for message in messages:
        # Some messages reach several sides.
        for side in random.sample(sides, random.randint(1, count)):
            side.add(message, LATEST)
    pairs = [(one, other) for one in sides for other in sides if one is not other]
    random.shuffle(pairs)
    for one, other in [*pairs, *pairs]:
        exchange(one, other)
    for side in sides:
        assert reports(side) == expected


def claim(ms: int, state: ClaimState, agent: str = "a", task: str = "t", beats_left: int = 1) -> StatusClaim:
    return StatusClaim(agent, task, 1, state, beats_left, 0.5, "", hlc_text(Hlc(START + ms, 0, 0)))


@pytest.mark.touches("BB-06")
def test_a_report() -> None:
    found = filled(
        [
            claim(100, ClaimState.PLANNING),
            claim(900, ClaimState.EXECUTING, beats_left=-1),
            claim(3999, ClaimState.DONE),
            claim(500, ClaimState.WAITING, "a", "u"),
            claim(500, ClaimState.WAITING, "b"),
            claim(4000, ClaimState.FAILED, "b"),
            PromiseResult("t", "h", PromiseOutcome.BROKEN, wall_text(START) + "+0"),
            PromiseResult("u", "h", PromiseOutcome.KEPT, wall_text(START) + "+0"),
            PromiseResult("u", "h", PromiseOutcome.LATE, wall_text(START) + "+1"),
            NodeLoad("n", 7, 1, 2, wall_text(START) + "+0"),
            NodeLoad("m", 5, 2, 2, wall_text(START) + "+0"),
        ],
        WindowLimits(),
    )
    first, second = found.reports()
    states = dict.fromkeys(ClaimState, 0)
    assert first == BarReport(
        cluster_id="one",
        window=wall_text(START),
        tempo_bpm=60,
        bar_len_beats=4,
        agents=2,
        tasks=3,
        states=states | {ClaimState.DONE: 1, ClaimState.WAITING: 2},
        overruns=1,
        kept_promises=0,
        late_promises=1,
        broken_promises=1,
        queue_depth=7,
        utilisation=0.75,
        suggested_tempo_bpm=59,
        truncated=False,
        hlc=hlc_text(Hlc(START + 3999, 0, 0)),
        nodes=2,
        task_beats=4,
        wait_beats=2,
        overruns_by_phase={"work": 1},
    )
    assert (second.task_beats, second.wait_beats, second.lost_beats) == (1, 0, 1)
    assert second.window == wall_text(START + 4000) and second.states[ClaimState.FAILED] == second.tasks == 1
    assert from_json(to_json(first), BarReport) == first
    assert found.take_changed(START + 4000) == [START]
    assert found.take_changed(LATEST) == [START + 4000] and found.take_changed(LATEST) == []
    assert found.add(claim(1000, ClaimState.FAILED, "c"), LATEST) and found.take_changed(LATEST) == [START]


@pytest.mark.touches("BB-06")
def test_a_silent_window_has_a_report() -> None:
    found = windows(WindowLimits())
    found.open(START)
    (report,) = found.reports()
    assert (report.tasks, report.nodes, report.window) == (0, 0, wall_text(START))
    other = windows(WindowLimits())
    exchange(found, other)
    assert reports(other) == reports(found)
    other.add(claim(0, ClaimState.DONE), LATEST)
    exchange(found, other)
    assert reports(found) == reports(filled([claim(0, ClaimState.DONE)], WindowLimits()))


@pytest.mark.touches("BB-06")
@given(st.lists(MESSAGES, max_size=20), st.lists(MESSAGES, max_size=5))
def test_digests_tell_which_windows_differ(messages: Any, more: Any) -> None:
    one, other = filled(messages, WindowLimits()), filled([*messages, *more], WindowLimits())
    told = from_json(to_json(other.digests(LATEST)), WindowDigests)
    contents = {each.window_ms: to_json(each) for each in other.contents()}
    differing = [each.window_ms for each in one.contents() if contents[each.window_ms] != to_json(each)]
    assert sorted(one.differing(told, LATEST)) == differing
    exchange(one, other)
    assert one.differing(other.digests(LATEST), LATEST) == []


@pytest.mark.touches("BB-06")
def test_windows_follow_a_change_of_tempo() -> None:
    found = filled([claim(ms, ClaimState.DONE) for ms in (11_999, 12_000, 16_799, 16_800)], WindowLimits())
    assert [(each.window, each.tempo_bpm) for each in found.reports()] == [
        (wall_text(START + 8000), 60),
        (wall_text(START + 12_000), 50),
        (wall_text(START + 16_800), 50),
    ]


@pytest.mark.touches("BB-06")
def test_memory_is_bounded_and_says_so() -> None:
    found = windows(WindowLimits(windows=2, tasks=10))
    for number in range(1000):
        found.add(claim(0, ClaimState.DONE, f"a{number}"), LATEST)
    (report,) = found.reports()
    assert report.tasks == 10 and report.truncated
    other = windows(WindowLimits(windows=2, tasks=10))
    exchange(found, other)
    assert reports(other) == reports(found)
    # The oldest windows go, and do not come back; nor does a clock that is far ahead displace them.
    for ms in (4000, 8000, 0, 4001):
        found.add(claim(ms, ClaimState.DONE), LATEST)
    assert [each.window for each in found.reports()] == [wall_text(START + 4000), wall_text(START + 8000)]
    assert found.dropped == 1
    assert not found.add(claim(10**6 + 1, ClaimState.DONE), LATEST) and found.dropped == 2


def test_names_that_run_together_are_two_tasks() -> None:
    found = filled([claim(0, ClaimState.DONE, "a", "bc"), claim(0, ClaimState.DONE, "ab", "c")], WindowLimits())
    assert found.reports()[0].tasks == 2


def test_a_window_is_sent_in_messages_of_the_bus() -> None:
    found = filled([claim(0, ClaimState.DONE, f"agent-{number}" * 9) for number in range(2000)], WindowLimits())
    (content,) = found.contents()
    parts = [to_json(each) for each in content_parts(content)]
    assert len(parts) > 2 and all(len(part) <= CONTENT_BYTES_MAX for part in parts)
    other = windows(WindowLimits())
    for part in parts:
        assert other.absorb(decode_content(part), LATEST)
    assert reports(other) == reports(found)


def test_what_does_not_belong_to_a_window_is_not_absorbed() -> None:
    (good,) = filled([claim(10, ClaimState.DONE)], WindowLimits()).contents()
    (key, task), other = *good.tasks.items(), windows(WindowLimits())
    bad: list[dict[str, Any]] = [
        {"window_ms": START + 1},
        {"newest": (START + 4000, 0)},
        {"tasks": {key: type(task)(START - 1, 0, task.state, 0, "a", 1, 0)}},
        {"tasks": {key: type(task)(START, 0, task.state, 0, "a", 16, 0)}},
        {"tasks": {key: type(task)(START, 0, task.state, 0, "a", 1, 2)}},
    ]
    for change in bad:
        fields = {name: getattr(good, name) for name in WindowContent.__struct_fields__} | change
        assert not other.absorb(WindowContent(**fields), LATEST)
    assert not other.absorb(good, START) and other.reports() == []
    assert other.absorb(good, LATEST)
    for data in (b"", b"{}", to_json(good).replace(b'"done"', b'"gone"')):
        with pytest.raises(Malformed):
            decode_content(data)


@given(st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=50), st.integers(1, 8), st.randoms())
def test_a_bounded_map_is_the_same_in_any_order(items: list[tuple[str, int]], limit: int, random: Random) -> None:
    def made(given: list[tuple[str, int]]) -> BoundedMap[int]:
        found = BoundedMap(limit, max)
        for key, value in given:
            found.add(key, value)
        return found

    one, shuffled = made(items), random.sample(items, len(items))
    other = made(shuffled)
    assert dict(one.items()) == dict(other.items()) and one.is_truncated == other.is_truncated
    assert len(one) == min(limit, len(dict(items))) and one.is_truncated == (len(dict(items)) > limit)
