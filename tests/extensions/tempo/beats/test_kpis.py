"""Key figures: shares are shares, the figures of many windows are those of one long window, and each alarm has its
cause.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.tempo.messages import BarReport, ClaimState
from hocket.extensions.tempo.reports import OVERRUN_RATE_MAX, PROMISE_MISS_RATE_MAX, Alarm, alarms, kpis

COUNTS = st.integers(0, 50)


def report(
    done: int = 0,
    tasks: int | None = None,
    *,
    overruns: int = 0,
    promises: tuple[int, int, int] = (0, 0, 0),
    beats: tuple[int, int, int] = (0, 0, 0),
    load: tuple[int, int, float] = (1, 0, 0.0),
    bar_len: int = 8,
) -> BarReport:
    """`promises` are kept, late and broken; `beats` are useful, waits and lost; `load` is nodes, queue, utilisation."""
    useful, waits, lost = beats
    nodes, queue, utilisation = load
    return BarReport(
        *("one", "2025-09-03T02:12:16.000Z", 15, bar_len, 1, done if tasks is None else tasks),
        {ClaimState.DONE: done},
        overruns,
        *promises,
        *(queue, utilisation, 15, False, "2025-09-03T02:12:16.000Z+0"),
        *(nodes, useful + waits + lost, waits, lost),
    )


REPORTS = st.builds(report, COUNTS, promises=st.tuples(COUNTS, COUNTS, COUNTS), beats=st.tuples(COUNTS, COUNTS, COUNTS))


@pytest.mark.req("BB-15")
def test_the_figures_of_two_windows() -> None:
    found = [
        report(3, 5, promises=(2, 1, 1), beats=(12, 6, 2)),
        report(1, 2, promises=(4, 0, 0), beats=(4, 0, 0)),
    ]
    shown = kpis(found, 10.0, [100, 900, 300])
    assert (shown.windows, shown.deliverables) == (2, 4)
    assert shown.tnt == 4 / 16, "deliverables a beat, whatever the tempo"
    assert shown.bpd == 24 / 4
    assert shown.wr == 6 / 24
    assert shown.efficiency == 16 / 24
    assert shown.pmr == 2 / 8
    assert shown.cpd == 2.5
    assert shown.ttfu_ms == 300


@pytest.mark.req("BB-15")
def test_without_deliverables_nothing_is_divided() -> None:
    shown = kpis([report()], 10.0, [])
    assert shown.tnt == 0
    assert (shown.bpd, shown.wr, shown.efficiency, shown.pmr, shown.cpd, shown.ttfu_ms) == (None,) * 6
    assert kpis([], None, []).tnt is None
    assert kpis([report(1)], None, []).cpd is None


@pytest.mark.req("BB-15")
@given(st.lists(REPORTS, max_size=8), st.randoms(use_true_random=False))
def test_shares_are_shares_in_any_order(reports: list[BarReport], random: Any) -> None:
    shown = kpis(reports, 1.0, [])
    shares = [each for each in (shown.wr, shown.efficiency, shown.pmr) if each is not None]
    assert all(0 <= each <= 1 for each in shares)
    if shown.wr is not None and shown.efficiency is not None:
        assert shown.wr + shown.efficiency <= 1 + 1e-9
    if shown.tnt and shown.bpd is not None:
        bars = sum(each.bar_len_beats for each in reports)
        assert shown.tnt * shown.bpd * bars == pytest.approx(sum(each.task_beats for each in reports))
    shuffled = random.sample(reports, len(reports))
    assert kpis(shuffled, 1.0, []) == shown


@pytest.mark.req("BB-15")
@pytest.mark.parametrize(
    ("window", "raised"),
    [
        (report(5), []),
        (report(5, promises=(4, 1, 0)), []),
        (report(5, promises=(3, 1, 1)), [Alarm.PROMISE_MISS_RATE]),
        (report(5, overruns=1), []),
        (report(5, overruns=2), [Alarm.OVERRUN_RATE]),
        (report(load=(3, 0, 0.0)), []),
        (report(load=(3, 1, 0.0)), [Alarm.NO_STATUS_CLAIMS]),
        (report(load=(3, 0, 0.5)), [Alarm.NO_STATUS_CLAIMS]),
        (report(load=(0, 0, 0.0)), [Alarm.NO_STATUS_CLAIMS]),
    ],
)
def test_each_alarm_has_its_cause(window: BarReport, raised: list[Alarm]) -> None:
    assert alarms(window) == raised


@pytest.mark.req("BB-15")
@given(REPORTS)
def test_an_alarm_is_raised_above_its_rate_and_only_there(window: BarReport) -> None:
    raised, missed = alarms(window), window.late_promises + window.broken_promises
    assert (Alarm.PROMISE_MISS_RATE in raised) == (missed > PROMISE_MISS_RATE_MAX * window.promises)
    assert (Alarm.OVERRUN_RATE in raised) == (window.overruns > OVERRUN_RATE_MAX * window.tasks)
