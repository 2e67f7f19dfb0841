"""Quotas as people write and read them: `ops=50/s,bytes=1M/s,ops=1M,bytes=2G`."""

import re

from hocket.errors import Usage
from hocket.kernel.quota import Quota

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_PART = re.compile(r"(ops|bytes)\s*=\s*([0-9]{1,15})\s*([kmgt]i?|)\s*(/s|)", re.IGNORECASE)
_FIELDS = {("ops", "/s"): "ops_per_s", ("bytes", "/s"): "bytes_per_s", ("ops", ""): "ops", ("bytes", ""): "bytes"}
_NUMBER_MAX = 2**53 - 1


def parse_quota(text: str) -> Quota:
    """A number with `/s` is a rate, a number without it is a total. An unnamed limit takes the mesh's default."""
    found: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise Usage(
                f"bad quota {part.strip()!r}: write ops=N/s, bytes=N/s, ops=N or bytes=N, several with commas between,"
                " like ops=50/s,bytes=1M/s,bytes=2G"
            )
        what, number, unit, rate = match.groups()
        field, value = _FIELDS[what.lower(), rate.lower()], int(number) * _UNITS[unit.lower()]
        if field in found:
            raise Usage(f"bad quota {text!r}: {what}{rate} is given twice")
        if not 0 < value <= _NUMBER_MAX:
            raise Usage(f"bad quota {part.strip()!r}: a quota must be more than 0 and at most 2^53 - 1")
        found[field] = value
    return Quota(**found)


def quota_words(quota: Quota) -> str:
    """What a quota allows, in a few words; empty if it sets no limit."""
    rates = _amounts(quota.ops_per_s, quota.bytes_per_s)
    totals = _amounts(quota.ops, quota.bytes)
    said = ([f"{rates} a second"] if rates else []) + ([f"{totals} in all"] if totals else [])
    return ", ".join(said)


def _amounts(ops: int | None, size: int | None) -> str:
    said = ([] if ops is None else [f"{ops:,} ops"]) + ([] if size is None else [size_words(size)])
    return " and ".join(said)


def size_words(size: int) -> str:
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f}".removesuffix(".0") + " " + units[0]
