"""The clock: order, the two disciplines, and the two ways to write a time down."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.kernel.clock import U32_MAX, ClockOverflow, Hlc, hlc_text, pack, parse_hlc, recv, tick, unpack

pytestmark = pytest.mark.touches("LW-22")

U64S = st.integers(0, 2**64 - 1)
WALLS = st.integers(0, 20) | U64S
# The bound leaves room for one step; the step beyond it has its own tests.
LOGICALS = st.integers(0, 20) | st.integers(0, U32_MAX - 1)
CLOCKS = st.builds(Hlc, WALLS, LOGICALS, U64S)


@pytest.mark.req("LW-22")
@given(CLOCKS, WALLS)
def test_a_tick_is_later_and_not_behind_the_wall(prior: Hlc, wall_now: int) -> None:
    new = tick(prior, wall_now)
    assert new > prior
    assert new.wall == max(prior.wall, wall_now)
    assert new.node == prior.node
    assert new.logical == (0 if wall_now > prior.wall else prior.logical + 1)


@pytest.mark.req("LW-22")
@given(CLOCKS, CLOCKS, WALLS)
def test_after_recv_the_node_is_later_than_both(prior: Hlc, remote: Hlc, wall_now: int) -> None:
    new = recv(prior, remote, wall_now)
    assert new[:2] > prior[:2] and new[:2] > remote[:2]
    assert new.wall == max(prior.wall, remote.wall, wall_now)
    assert new.node == prior.node


@pytest.mark.req("LW-22")
@pytest.mark.parametrize(
    ("prior", "remote", "wall_now", "expected"),
    [
        (Hlc(10, 3, 1), Hlc(10, 7, 2), 9, Hlc(10, 8, 1)),
        (Hlc(10, 7, 1), Hlc(10, 3, 2), 10, Hlc(10, 8, 1)),
        (Hlc(10, 3, 1), Hlc(9, 7, 2), 10, Hlc(10, 4, 1)),
        (Hlc(9, 3, 1), Hlc(10, 7, 2), 10, Hlc(10, 8, 1)),
        (Hlc(9, 3, 1), Hlc(10, 7, 2), 11, Hlc(11, 0, 1)),
        (Hlc(10, 3, 1), Hlc(9, U32_MAX, 2), 9, Hlc(10, 4, 1)),
    ],
)
def test_recv_takes_the_counter_of_the_greatest_wall(prior: Hlc, remote: Hlc, wall_now: int, expected: Hlc) -> None:
    assert recv(prior, remote, wall_now) == expected


@pytest.mark.req("LW-22")
def test_a_spent_counter_refuses_until_the_wall_moves() -> None:
    spent = Hlc(10, U32_MAX, 1)
    for wall_now in (0, 9, 10):
        with pytest.raises(ClockOverflow):
            tick(spent, wall_now)
    assert tick(spent, 11) == Hlc(11, 0, 1)
    assert tick(Hlc(10, U32_MAX - 1, 1), 10) == spent


@pytest.mark.req("LW-22")
@pytest.mark.parametrize(
    ("prior", "remote"),
    [
        (Hlc(10, U32_MAX, 1), Hlc(9, 0, 2)),
        (Hlc(9, 0, 1), Hlc(10, U32_MAX, 2)),
        (Hlc(10, 0, 1), Hlc(10, U32_MAX, 2)),
        (Hlc(10, U32_MAX, 1), Hlc(10, 0, 2)),
    ],
)
def test_recv_overflows_too(prior: Hlc, remote: Hlc) -> None:
    with pytest.raises(ClockOverflow):
        recv(prior, remote, 5)
    assert recv(prior, remote, 11) == Hlc(11, 0, 1)


@given(CLOCKS, CLOCKS)
def test_packed_bytes_sort_as_times_do(a: Hlc, b: Hlc) -> None:
    assert len(pack(a)) == 20
    assert unpack(pack(a)) == a
    assert (pack(a) < pack(b)) == (a < b)


@given(CLOCKS)
def test_text_comes_back(h: Hlc) -> None:
    assert parse_hlc(hlc_text(h), h.node) == h


@given(st.integers(0, 253_402_300_799_999), LOGICALS)
def test_text_agrees_with_the_calendar_of_the_standard_library(wall: int, logical: int) -> None:
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=wall)
    expected = date.isoformat(timespec="milliseconds").replace("+00:00", f"Z+{logical}")
    assert hlc_text(Hlc(wall, logical, 0)) == expected


def test_the_turns_of_months_and_centuries() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for year in range(1971, 3300):
        for month, day in ((1, 1), (2, 28), (3, 1), (12, 31)):
            date = datetime(year, month, day, tzinfo=UTC)
            for at in (date, date + timedelta(days=1)):
                h = Hlc((at - epoch) // timedelta(milliseconds=1), 0, 0)
                assert hlc_text(h) == f"{at:%Y-%m-%d}T00:00:00.000Z+0"
                assert parse_hlc(hlc_text(h), 0) == h


def test_text_by_example() -> None:
    assert hlc_text(Hlc(1_756_865_547_183, 17, 9)) == "2025-09-03T02:12:27.183Z+17"
    assert parse_hlc("2025-09-03T02:12:27.183Z+17", 9) == Hlc(1_756_865_547_183, 17, 9)
    assert hlc_text(Hlc(0, 0, 0)) == "1970-01-01T00:00:00.000Z+0"
    assert hlc_text(Hlc(2**64 - 1, U32_MAX, 0)).startswith("584556019-04-03T")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2025-09-03T02:12:27.183Z",
        "2025-09-03T02:12:27.183Z+",
        "2025-09-03T02:12:27.183Z+017",
        "2025-09-03T02:12:27.183Z+-1",
        "2025-09-03T02:12:27.183Z+4294967296",
        "2025-09-03 02:12:27.183Z+1",
        "2025-02-29T02:12:27.183Z+1",
        "2025-13-03T02:12:27.183Z+1",
        "2025-00-03T02:12:27.183Z+1",
        "2025-09-03T24:12:27.183Z+1",
        "2025-09-03T02:60:27.183Z+1",
        "1969-12-31T23:59:59.999Z+0",
        "02025-09-03T02:12:27.183Z+1",
        "999999999-09-03T02:12:27.183Z+1",
        "٢٠٢٥-09-03T02:12:27.183Z+1",
        "2025-09-03T02:12:27.183Z+1\n",
    ],
)
def test_text_that_we_would_not_write_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an HLC time"):
        parse_hlc(text, 1)
