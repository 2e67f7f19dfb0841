"""How much a node may store: ops and bytes, per second and in total. The issuer of a delegation can write a quota into
its facts, which readers that do not know it ignore. `entitlement` decides which quota a node has by its delegations;
the code that receives ops enforces it.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

# The largest number that every JSON reader reads exactly.
_NUMBER_MAX = 2**53 - 1


class Quota(Struct, frozen=True, omit_defaults=True):
    """A field that is None sets no limit."""

    ops_per_s: int | None = None
    bytes_per_s: int | None = None
    ops: int | None = None
    bytes: int | None = None


NO_QUOTA = Quota()


def strictest(quotas: Iterable[Quota]) -> Quota:
    """The smallest limit of each field."""
    return _combined(quotas, lambda bounds: min((each for each in bounds if each is not None), default=None))


def widest(quotas: Iterable[Quota]) -> Quota:
    """The largest limit of each field."""
    return _combined(quotas, lambda bounds: None if None in bounds else max(filter(None, bounds), default=0))


def filled(quota: Quota, default: Quota) -> Quota:
    """The quota, with the default for each field that sets no limit."""
    return _combined((quota, default), lambda bounds: bounds[1] if bounds[0] is None else bounds[0])


def read_quota(facts: object) -> Quota:
    """The quota in the facts of a token. An unreadable number counts as none."""
    found = facts.get("quota") if isinstance(facts, dict) else None
    if not isinstance(found, dict):
        return NO_QUOTA
    return Quota(**{name: _number(found.get(name)) for name in Quota.__struct_fields__})


def _number(value: object) -> int | None:
    # The type is compared, because isinstance accepts True as an int.
    return value if type(value) is int and 0 <= value <= _NUMBER_MAX else None


def _combined(quotas: Iterable[Quota], choose: Callable[[list[int | None]], int | None]) -> Quota:
    found = list(quotas)
    return Quota(*(choose([getattr(each, name) for each in found]) for name in Quota.__struct_fields__))
