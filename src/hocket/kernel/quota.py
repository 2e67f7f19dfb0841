"""How much a node may store: ops and bytes, a second and in all. The issuer of a delegation can write a quota into its
facts, where readers that do not know it pass over it. Which quota a node has by its delegations is decided in
`entitlement`; that it is kept, where ops come in.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct

# The largest number that every JSON reader reads exactly.
_NUMBER_MAX = 2**53 - 1


class Quota(Struct, frozen=True, omit_defaults=True):
    """A field that is None sets no bound."""

    ops_per_s: int | None = None
    bytes_per_s: int | None = None
    ops: int | None = None
    bytes: int | None = None


NO_QUOTA = Quota()


def strictest(quotas: Iterable[Quota]) -> Quota:
    """The smallest bound of each field."""
    return _combined(quotas, lambda bounds: min((each for each in bounds if each is not None), default=None))


def widest(quotas: Iterable[Quota]) -> Quota:
    """The largest bound of each field."""
    return _combined(quotas, lambda bounds: None if None in bounds else max(filter(None, bounds), default=0))


def filled(quota: Quota, default: Quota) -> Quota:
    """The quota, with the default where it sets no bound."""
    return _combined((quota, default), lambda bounds: bounds[1] if bounds[0] is None else bounds[0])


def read_quota(facts: object) -> Quota:
    """What the facts of a token say about a quota. A number that cannot be read is as good as none."""
    found = facts.get("quota") if isinstance(facts, dict) else None
    if not isinstance(found, dict):
        return NO_QUOTA
    return Quota(**{name: _number(found.get(name)) for name in Quota.__struct_fields__})


def _number(value: object) -> int | None:
    # The type is compared, because True is an int to isinstance.
    return value if type(value) is int and 0 <= value <= _NUMBER_MAX else None


def _combined(quotas: Iterable[Quota], choose: Callable[[list[int | None]], int | None]) -> Quota:
    found = list(quotas)
    return Quota(*(choose([getattr(each, name) for each in found]) for name in Quota.__struct_fields__))
