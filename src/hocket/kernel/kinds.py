"""Kinds of jobs: which definitions and routes hold for one, and how a job's policy, the options of its kind and those
of its handler make one.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from hocket.kernel.policy import DEFAULT, Policy

# What belongs to one job and not to its kind.
_OF_ONE_JOB = frozenset(
    {"not_before", "after", "unique", "unique_for_ms", "schedule", "schedule_op", "trace", "overlap"}
)
_OF_A_KIND = tuple(name for name in Policy.__struct_fields__ if name not in _OF_ONE_JOB)

# How a job waits in the queue; its submitter's node writes this down. The other options say how it runs.
_OF_A_PLACE = ("priority", "ttl_ms", "open", "claim", "sticky", "claim_timeout_ms")
_OF_A_RUN = tuple(name for name in _OF_A_KIND if name not in _OF_A_PLACE)


def names_of(kind: str) -> Iterator[str]:
    """The definitions and the routes that can hold for jobs of a kind, the first that exists: `a.b.c`, `a.b.`, `a.`"""
    yield kind
    for end in range(len(kind) - 1, 0, -1):
        if kind[end - 1] == ".":
            yield kind[:end]


def routed_to(kind: str, routes: Mapping[str, int]) -> int | None:
    """The node that a kind is routed to, by the routes of kinds and of prefixes."""
    return next((routes[name] for name in names_of(kind) if name in routes), None)


def of_kind(policy: Policy) -> Policy:
    """The options that a handler can set for its kind; the others belong to one job."""
    return replace(policy, **{name: getattr(DEFAULT, name) for name in _OF_ONE_JOB})


def with_defaults(policy: Policy, said: Collection[str], defaults: Policy) -> Policy:
    """A job's policy, with the options of its kind for those that its submitter has not said."""
    if defaults == DEFAULT:
        return policy
    taken = {
        name: getattr(defaults, name)
        for name in _OF_A_KIND
        if name not in said and getattr(policy, name) == getattr(DEFAULT, name)
    }
    return replace(policy, **taken)


def with_open(policy: Policy, is_ranked_open: bool) -> Policy:
    """A job's policy with the answer whether it is open. If nobody has said it, a job that workers claim by rank is
    open where the rules of the mesh say so.
    """
    if policy.open is None and is_ranked_open and policy.claim != "first":
        return replace(policy, open=True)
    return replace(policy, open=None) if policy.open is False else policy


def run_options(policy: Policy, options: Policy) -> Policy:
    """A job's policy while it runs: the options of its handler hold where the job says nothing, also for a job that was
    submitted before the kind was defined.
    """
    if options is DEFAULT or policy == options:
        return policy
    taken = {
        name: getattr(options, name)
        for name in _OF_A_RUN
        if getattr(policy, name) == getattr(DEFAULT, name) != getattr(options, name)
    }
    if policy.lease_ms is not None or policy.lease_beats is not None:
        taken = {name: value for name, value in taken.items() if name not in ("lease_ms", "lease_beats")}
    return replace(policy, **taken) if taken else policy


def is_placed(options: Policy) -> bool:
    """Whether the options say how jobs wait in the queue, which is decided when they are submitted."""
    return any(getattr(options, name) != getattr(DEFAULT, name) for name in _OF_A_PLACE)


def covers(wanted: str, kind: str) -> bool:
    """How a command names kinds: `acme.` with its dot stands for every kind below it, `acme.render` for that kind
    alone.
    """
    return kind.startswith(wanted) if wanted.endswith(".") else kind == wanted
