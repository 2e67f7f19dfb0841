"""What a run costs: a rate card prices beats and measured resources by the formula of Backbeat 14.3. A beat is the
quantum of time: a run that has begun one has used it.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

from hocket.extensions.command.execution import DEVICES_MAX, Amount, Count, DeviceClass, Resources
from hocket.kernel.decoding import convert
from hocket.kernel.ids import content_hash
from hocket.kernel.policy import Measured, covers
from hocket.kernel.texts import BEAT_MS_DEFAULT
from hocket.kernel.yaml_subset import BadText, read_text

BEAT_MS_MIN, BEAT_MS_MAX = 10, 3_600_000
CURRENCY_CHARS_MAX = 16
CLASSES_MAX = 1_000
# The rate of every kind for which a card names no other.
DEFAULT_ROLE = "default"

_MB = 1e6

RatePerUnit = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class BadRateCard(ValueError):
    """Not a rate card."""


class RateCard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in `currency`. `role_rate_bu` has the price of a beat for each kind that has one of its own (`acme.` for
    all kinds below), and `default` for all others; `rate_gpu_sec` has one for each class of device. A resource whose
    rate is None is not priced.
    """

    role_rate_bu: Annotated[dict[str, RatePerUnit], msgspec.Meta(max_length=CLASSES_MAX)] | None = None
    rate_gpu_sec: Annotated[dict[str, RatePerUnit], msgspec.Meta(max_length=CLASSES_MAX)] | None = None
    rate_cpu_sec: RatePerUnit | None = None
    rate_mem_gbs: RatePerUnit | None = None
    rate_io_mb: RatePerUnit | None = None
    rate_egress_mb: RatePerUnit | None = None
    rate_storage_gbh: RatePerUnit | None = None
    currency: Annotated[str, msgspec.Meta(min_length=1, max_length=CURRENCY_CHARS_MAX)] = "units"
    beat_ms: Annotated[int, msgspec.Meta(ge=BEAT_MS_MIN, le=BEAT_MS_MAX)] = BEAT_MS_DEFAULT

    def beat_rate(self, kind: str) -> float:
        """The price of a beat of this kind: the longest name that covers it counts."""
        if self.role_rate_bu is None:
            return 0.0
        names = [name for name in self.role_rate_bu if name != DEFAULT_ROLE and covers(name, kind)]
        return self.role_rate_bu[max(names, key=len, default=DEFAULT_ROLE)]

    @property
    def hash(self) -> bytes:
        """Names the card in proofs, whatever its spelling."""
        return content_hash(msgspec.json.encode(self, order="sorted"))


_RATES = tuple(name for name in RateCard.__struct_fields__ if name not in ("currency", "beat_ms"))


def read_rate_card(text: bytes) -> RateCard:
    """Reads YAML or JSON. A card may name some of the rates. Raises BadRateCard with the names of what is wrong."""
    try:
        found = read_text(text)
    except BadText as error:
        raise BadRateCard(str(error)) from None
    if not isinstance(found, dict):
        raise BadRateCard("a rate card is a mapping of names and rates")
    if unknown := [str(name) for name in found if name not in RateCard.__struct_fields__]:
        raise BadRateCard(f"unknown: {', '.join(unknown)}; known are {', '.join(RateCard.__struct_fields__)}")
    if not any(name in found for name in _RATES):
        raise BadRateCard(f"it names no rate; there are {', '.join(_RATES)}")
    if empty := [name for name, value in found.items() if value is None]:
        raise BadRateCard(f"{', '.join(empty)} has no value; leave out a rate that is not known, and write 0 for free")
    try:
        card = convert(found, RateCard)
    except msgspec.ValidationError as error:
        raise BadRateCard(str(error)) from None
    if card.role_rate_bu is not None and DEFAULT_ROLE not in card.role_rate_bu:
        raise BadRateCard("role_rate_bu lacks `default`, the rate of the kinds that it does not name")
    return card


Devices = Annotated[dict[DeviceClass, Amount], msgspec.Meta(max_length=DEVICES_MAX)]


class ResourceUse(msgspec.Struct, frozen=True):
    """What a run used: the resource primitives of Backbeat 14.2, and its beats."""

    beats: Count = 0
    cpu_sec: Amount = 0.0
    gpu_sec: Devices = {}
    mem_gbs: Amount = 0.0
    disk_io_mb: Amount = 0.0
    net_egress_mb: Amount = 0.0
    storage_gbh: Amount = 0.0
    accel_sec: Devices = {}

    def __add__(self, other: "ResourceUse") -> "ResourceUse":
        return ResourceUse(
            self.beats + other.beats,
            self.cpu_sec + other.cpu_sec,
            _summed(self.gpu_sec, other.gpu_sec),
            self.mem_gbs + other.mem_gbs,
            self.disk_io_mb + other.disk_io_mb,
            self.net_egress_mb + other.net_egress_mb,
            self.storage_gbh + other.storage_gbh,
            _summed(self.accel_sec, other.accel_sec),
        )

    def fits(self, beat_ms: int, span_ms: int) -> bool:
        """Whether one machine can have used this much in so long a time, by the clock of the log."""
        whole = Resources(
            wall_s=max(0, self.beats - 1) * beat_ms / 1000,
            cpu_s=self.cpu_sec,
            memory_gb_s=self.mem_gbs,
            disk_written_bytes=int(self.disk_io_mb * _MB),
            network_bytes=int(self.net_egress_mb * _MB),
            gpu_s=_summed(self.gpu_sec, self.accel_sec),
        )
        return whole.fits(span_ms)


def _summed(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    return {name: left.get(name, 0.0) + right.get(name, 0.0) for name in sorted(left.keys() | right.keys())}


def measured(used: ResourceUse, cost: float) -> dict[Measured, float]:
    """What the ceilings for one beat are compared with."""
    return {
        "cpu_sec": used.cpu_sec,
        "gpu_sec": math.fsum(used.gpu_sec.values()),
        "accel_sec": math.fsum(used.accel_sec.values()),
        "mem_gbs": used.mem_gbs,
        "disk_io_mb": used.disk_io_mb,
        "net_egress_mb": used.net_egress_mb,
        "storage_gbh": used.storage_gbh,
        "cost": cost,
    }


def beats_used(wall_ms: float, beat_ms: int) -> int:
    """A run that has begun a beat has used it."""
    return max(0, math.ceil(wall_ms / beat_ms))


def usage_of(used: Resources, beat_ms: int) -> ResourceUse:
    """What the runner measured. What was not measured costs nothing."""
    return ResourceUse(
        beats_used(used.wall_s * 1000, beat_ms),
        used.cpu_s,
        dict(used.gpu_s),
        used.memory_gb_s,
        (used.disk_read_bytes + used.disk_written_bytes) / _MB,
        (used.network_bytes or 0) / _MB,
    )


USAGE_TYPE = "hocket.usage"
"""The type of the artifacts that say what a run used."""


class UsageRecord(msgspec.Struct, frozen=True):
    """What a run used, and the beat of the cluster while it ran."""

    beat_ms: Annotated[int, msgspec.Meta(ge=BEAT_MS_MIN, le=BEAT_MS_MAX)]
    usage: ResourceUse


class Charge(msgspec.Struct, frozen=True):
    """What a run, or several, cost in `currency`, and of that each part of the formula."""

    total: float
    currency: str
    parts: dict[str, float]


def unpriced_devices(usage: ResourceUse, card: RateCard) -> list[str]:
    """The classes of devices that were used and that are not among those that the card prices."""
    used = usage.gpu_sec.keys() | usage.accel_sec.keys()
    return [] if card.rate_gpu_sec is None else sorted(used - card.rate_gpu_sec.keys())


def skipped_rates(usage: ResourceUse, card: RateCard) -> list[str]:
    """The rates that the card does not name, of resources that were used."""
    used = {
        "role_rate_bu": usage.beats,
        "rate_gpu_sec": math.fsum((*usage.gpu_sec.values(), *usage.accel_sec.values())),
        "rate_cpu_sec": usage.cpu_sec,
        "rate_mem_gbs": usage.mem_gbs,
        "rate_io_mb": usage.disk_io_mb,
        "rate_egress_mb": usage.net_egress_mb,
        "rate_storage_gbh": usage.storage_gbh,
    }
    return [name for name, amount in used.items() if amount and getattr(card, name) is None]


def charge(usage: ResourceUse, card: RateCard, kind: str) -> Charge:
    """The formula, over what the card prices, with one list of rates for GPUs and other accelerators. `skipped_rates`
    and `unpriced_devices` say what it does not price.
    """
    devices = card.rate_gpu_sec or {}
    parts = {
        "beats": usage.beats * card.beat_rate(kind),
        "gpu_sec": math.fsum(seconds * devices.get(name, 0.0) for name, seconds in usage.gpu_sec.items()),
        "accel_sec": math.fsum(seconds * devices.get(name, 0.0) for name, seconds in usage.accel_sec.items()),
        "cpu_sec": usage.cpu_sec * (card.rate_cpu_sec or 0.0),
        "mem_gbs": usage.mem_gbs * (card.rate_mem_gbs or 0.0),
        "disk_io_mb": usage.disk_io_mb * (card.rate_io_mb or 0.0),
        "net_egress_mb": usage.net_egress_mb * (card.rate_egress_mb or 0.0),
        "storage_gbh": usage.storage_gbh * (card.rate_storage_gbh or 0.0),
    }
    return Charge(math.fsum(parts.values()), card.currency, parts)


class Estimate(msgspec.Struct, frozen=True):
    """What runs like this have cost: of `jobs` jobs, the median and the 90th percentile."""

    jobs: int
    median: float
    p90: float


def estimate(costs: Sequence[float]) -> Estimate | None:
    """None without a history."""
    if not costs:
        return None
    ordered = sorted(costs)
    median, p90 = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9))
    return Estimate(len(ordered), median, p90)
