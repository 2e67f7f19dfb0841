"""How many jobs ended in each of the last minutes, from counts that only grow, read now and then."""

from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hocket.families.jobs.rules import Outcome
from hocket.page.throughput import KINDS_MAX, MINUTE_MS, MINUTES, OTHERS, Throughput
from hocket.store import Stage

START_MS = 1_750_000_000_000


class Counts:
    """A session with these counts."""

    def __init__(self, succeeded: Counter[str], failed: Counter[str]) -> None:
        self._by_outcome = {Outcome.SUCCEEDED: succeeded, Outcome.FAILED: failed}

    def counts_by_kind(self) -> dict[Any, int]:
        ended = {
            (Stage.DONE, outcome, kind): jobs
            for outcome, kinds in self._by_outcome.items()
            for kind, jobs in kinds.items()
        }
        return {**ended, (Stage.READY, None, "waiting"): 5}


def sample(throughput: Throughput, now_ms: int, succeeded: Counter[str], failed: Counter[str]) -> None:
    throughput.sample(Counts(succeeded, failed), now_ms)  # type: ignore[arg-type]


ends = st.lists(st.tuples(st.integers(0, 90_000), st.sampled_from("ab"), st.booleans()), max_size=60)


@given(ends=ends)
def test_the_minutes_have_what_ended_in_them(tmp_path_factory: Any, ends: list[tuple[int, str, bool]]):
    throughput = Throughput(tmp_path_factory.mktemp("page") / "throughput.json")
    counts: dict[bool, Counter[str]] = {True: Counter(a=7), False: Counter(b=3)}
    expected: Counter[tuple[int, bool]] = Counter()
    now_ms = START_MS
    sample(throughput, now_ms, *counts.values())
    for pause_ms, kind, is_good in ends:
        # It looks at least once a minute, as a server does.
        for step_ms in (pause_ms // 2, pause_ms - pause_ms // 2):
            now_ms += step_ms
            sample(throughput, now_ms, *counts.values())
        counts[is_good][kind] += 1
        expected[now_ms // MINUTE_MS, is_good] += 1
        sample(throughput, now_ms, *counts.values())
    minutes = throughput.minutes(now_ms)
    assert len(minutes) == MINUTES
    for place, found in enumerate(minutes):
        minute = now_ms // MINUTE_MS - MINUTES + 1 + place
        for is_good, jobs in ((True, found.succeeded), (False, found.failed)):
            assert jobs in (None, expected[minute, is_good])
    assert minutes[-1].succeeded is not None
    lately = now_ms // MINUTE_MS - MINUTES
    if all(minute > lately for minute, _ in expected):
        assert sum(throughput.failing().values()) == sum(n for (_, good), n in expected.items() if not good)


def test_a_restart_keeps_the_hour_and_a_damaged_file_is_no_hour(tmp_path: Path):
    file = tmp_path / "throughput.json"
    throughput = Throughput(file)
    for minute in range(3):
        sample(throughput, START_MS + minute * MINUTE_MS, Counter(a=minute), Counter())
    throughput.keep()
    again = Throughput(file)
    now_ms = START_MS + 2 * MINUTE_MS
    assert again.minutes(now_ms) == throughput.minutes(now_ms)
    assert [each.succeeded for each in again.minutes(now_ms)[-3:]] == [0, 1, 1]
    file.write_bytes(b"[[1,")
    assert {each.succeeded for each in Throughput(file).minutes(now_ms)} == {None}


def test_kinds_beyond_a_bound_are_counted_together(tmp_path: Path):
    throughput = Throughput(tmp_path / "throughput.json")
    sample(throughput, START_MS, Counter(), Counter())
    sample(throughput, START_MS + MINUTE_MS, Counter(), Counter({f"k{n}": 1 for n in range(KINDS_MAX + 5)}))
    failing = throughput.failing()
    assert len(failing) == KINDS_MAX + 1 and failing[OTHERS] == 5
