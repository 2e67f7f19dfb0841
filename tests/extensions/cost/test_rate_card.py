"""The rate card: what is missing is named, and the formula is the document's."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.extensions.command.execution import Resources
from hocket.extensions.cost.rate_card import (
    BadRateCard,
    RateCard,
    ResourceUse,
    beats_used,
    charge,
    estimate,
    read_rate_card,
    skipped_rates,
    unpriced_devices,
    usage_of,
)
from hocket.kernel.texts import BEAT_MS_DEFAULT

FIELDS = {
    "currency": "EUR",
    "beat_ms": 2000,
    "role_rate_bu": {"default": 0.5, "acme.": 1.0, "acme.render": 3.0},
    "rate_gpu_sec": {"A100": 0.25, "NVIDIA H200": 2.0},
    "rate_cpu_sec": 0.125,
    "rate_mem_gbs": 4.0,
    "rate_io_mb": 8.0,
    "rate_egress_mb": 16.0,
    "rate_storage_gbh": 32.0,
}
RATES = [name for name in FIELDS if name not in ("currency", "beat_ms")]
CARD = read_rate_card(msgspec.json.encode(FIELDS))

amounts = st.floats(0, 1e6)
uses = st.builds(
    ResourceUse,
    beats=st.integers(0, 10**6),
    cpu_sec=amounts,
    gpu_sec=st.dictionaries(st.sampled_from(["A100", "NVIDIA H200"]), amounts),
    mem_gbs=amounts,
    disk_io_mb=amounts,
    net_egress_mb=amounts,
    storage_gbh=amounts,
)


@pytest.mark.touches("BB-14")
def test_the_total_is_that_of_the_document() -> None:
    used = ResourceUse(3, 2.0, {"A100": 4.0, "NVIDIA H200": 1.0}, 0.5, 0.25, 0.125, 2.0)
    found = charge(used, CARD, "other")
    by_hand = 3 * 0.5 + (4 * 0.25 + 1 * 2.0) + 2 * 0.125 + 0.5 * 4 + 0.25 * 8 + 0.125 * 16 + 2 * 32
    assert found.total == by_hand == sum(found.parts.values()) and found.currency == "EUR"


def test_a_kind_may_have_a_price_of_its_own() -> None:
    assert [CARD.beat_rate(kind) for kind in ("k", "acme", "acme.x", "acme.render", "acme.render.x")] == [
        *(0.5, 0.5, 1.0, 3.0, 1.0),
    ]


@pytest.mark.touches("BB-14")
@given(st.sets(st.sampled_from(RATES), max_size=len(RATES) - 1))
def test_a_card_may_name_some_rates_and_the_others_are_skipped_and_named(missing: set[str]) -> None:
    card = read_rate_card(msgspec.json.encode({name: FIELDS[name] for name in FIELDS if name not in missing}))
    used = ResourceUse(3, 2.0, {"A100": 4.0}, 0.5, 0.25, 0.125, 2.0)
    nothing: dict[str, dict[str, int]] = {"role_rate_bu": {"default": 0}, "rate_gpu_sec": {"A100": 0}}
    free = {name: nothing.get(name, 0) for name in missing}
    assert set(skipped_rates(used, card)) == missing
    assert charge(used, card, "k").parts == charge(used, read_rate_card(msgspec.json.encode(FIELDS | free)), "k").parts
    assert skipped_rates(ResourceUse(), card) == []


def test_a_card_without_any_rate_is_refused() -> None:
    with pytest.raises(BadRateCard, match="names no rate; there are role_rate_bu, rate_gpu_sec"):
        read_rate_card(b"currency: EUR")


def test_classes_of_devices_that_are_missing_are_named_and_not_priced() -> None:
    used = ResourceUse(gpu_sec={"TPU v9": 1.0, "A100": 1.0, "MI300X": 0.0})
    assert unpriced_devices(used, CARD) == ["MI300X", "TPU v9"]
    assert charge(used, CARD, "k").total == 0.25


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"rate_cpu_sec": -1}, "rate_cpu_sec"),
        ({"rate_cpu_sec": "1"}, "rate_cpu_sec"),
        ({"rate_cpu_sec": None}, "rate_cpu_sec"),
        ({"rate_cpu_sec": 1e300}, "rate_cpu_sec"),
        ({"rate_gpu_sec": {"A100": -1}}, "rate_gpu_sec"),
        ({"rate_gpu_sec": 3}, "rate_gpu_sec"),
        ({"role_rate_bu": {"acme.": 1}}, "role_rate_bu lacks `default`"),
        ({"beat_ms": 0}, "beat_ms"),
        ({"beat_ms": 10**9}, "beat_ms"),
        ({"currency": ""}, "currency"),
        ({"rate_gpu_second": {}}, "unknown: rate_gpu_second"),
    ],
)
def test_a_bad_card_is_refused_with_the_field(change: dict[str, object], part: str) -> None:
    with pytest.raises(BadRateCard, match=part):
        read_rate_card(msgspec.json.encode(FIELDS | change))


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"3", b"\xff", b"{", b"a: &x [1]\nb: *x", b"x: " + b"[" * 100, b"rate_cpu_sec: .inf", b"a: 1\na: 2"],
)
def test_what_is_no_card_is_refused(text: bytes) -> None:
    with pytest.raises(BadRateCard):
        read_rate_card(text)


def test_a_card_in_yaml() -> None:
    text = b"""
role_rate_bu: {default: 0}
rate_gpu_sec:
  NVIDIA H200: 0.002
rate_cpu_sec: 0.00001
rate_mem_gbs: 0
rate_io_mb: 0
rate_egress_mb: 0
rate_storage_gbh: 0
"""
    card = read_rate_card(text)
    assert (card.rate_gpu_sec, card.rate_cpu_sec, card.beat_ms) == ({"NVIDIA H200": 0.002}, 0.00001, BEAT_MS_DEFAULT)
    assert card.hash == read_rate_card(msgspec.json.encode(card)).hash != CARD.hash


@given(uses, uses)
def test_costs_add_up(one: ResourceUse, other: ResourceUse) -> None:
    parts = charge(one, CARD, "k").total + charge(other, CARD, "k").total
    assert math.isclose(charge(one + other, CARD, "k").total, parts, rel_tol=1e-9, abs_tol=1e-9)


@given(st.floats(0, 1e9, allow_subnormal=False), st.integers(10, 3_600_000))
def test_a_beat_that_has_begun_is_used(wall_ms: float, beat_ms: int) -> None:
    beats = beats_used(wall_ms, beat_ms)
    assert (beats - 1) * beat_ms < wall_ms <= beats * beat_ms or wall_ms == beats == 0


def test_what_the_runner_measured_is_used() -> None:
    measured = Resources(4.5, 1.5, 10, 0.25, 2_000_000, 1_000_000, 500_000, {"A100": 2.0})
    assert usage_of(measured, 2000) == ResourceUse(3, 1.5, {"A100": 2.0}, 0.25, 3.0, 0.5)
    assert usage_of(msgspec.structs.replace(measured, network_bytes=None), 2000).net_egress_mb == 0.0


@given(st.lists(st.floats(0, 1e9)))
def test_an_estimate_is_the_median_and_the_90th_percentile(costs: list[float]) -> None:
    found = estimate(costs)
    if not costs:
        assert found is None
        return
    assert found is not None and found.jobs == len(costs)
    for value, share in ((found.median, 0.5), (found.p90, 0.9)):
        assert value in costs
        assert sum(cost <= value for cost in costs) >= share * len(costs) > sum(cost < value for cost in costs)


def test_a_card_has_no_price_below_zero() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(FIELDS | {"rate_io_mb": -0.5}, RateCard)
